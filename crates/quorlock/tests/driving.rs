//! Callers that let the driver work in their own threads: what befalls them there, and what the client owes all others
//! meanwhile.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

mod common;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use common::{PATIENCE, all_up, client, eventually, five, no_key_is_left};
use quorlock::node::{MemoryNode, NodeState};
use quorlock::{AcquireError, Client, ExtendError, Guard, LossCause, blocking};
use quorlock_servers::Nodes;
use tokio::runtime::{Builder, Handle};
use tokio::time::{Instant, timeout};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

fn memory() -> Client {
    Client::builder().custom_nodes(["a", "b", "c"].map(MemoryNode::new)).build().unwrap()
}

fn poll_once<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Does something when its thread ends, after all that the thread has used since is gone.
struct AtEnd(Option<Box<dyn FnOnce()>>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        self.0.take().unwrap()();
    }
}

thread_local! {
    static AT_END: RefCell<Option<AtEnd>> = const { RefCell::new(None) };
}

/// There is no place for a runtime any more in a thread that ends. A panic there would end the process.
#[tokio::test]
async fn a_thread_that_ends_may_give_back_extend_and_call() {
    let Some(nodes) = five() else { return };
    let client = client(&nodes);
    all_up(&client).await;
    let dropped = client.acquire("dropped").await.unwrap();
    let released = client.acquire("released").await.unwrap();
    let extended = client.acquire("extended").await.unwrap();
    let had_a_place = Arc::new(OnceLock::new());
    let (calls, seen) = (client.clone(), had_a_place.clone());
    let at_end = move || {
        let why = Handle::try_current().unwrap_err();
        seen.set(!why.is_thread_local_destroyed()).unwrap();
        drop(dropped);
        drop(released.release());
        assert!(poll_once(pin!(extended.extend())).is_pending());
        // Given up as soon as it was asked for.
        assert!(poll_once(pin!(calls.acquire("called").into_future())).is_pending());
    };
    let ends = thread::spawn(move || {
        AT_END.set(Some(AtEnd(Some(Box::new(at_end)))));
        // What is used first is gone last.
        assert!(Handle::try_current().is_err());
    });
    ends.join().unwrap();
    assert_eq!(had_a_place.get(), Some(&false), "nothing was tested");
    no_key_is_left(&nodes).await;
    eventually("nothing is held", || client.stats().locks_held == 0).await;
    assert!(client.acquire("dropped").await.unwrap().release().await.is_released());
}

/// The client's own thread drives then. All three calls are answered, and not given up.
#[test]
fn a_thread_that_ends_may_make_blocking_calls() {
    let Some(nodes) = five() else { return };
    let client = common::builder(&nodes).blocking().build().unwrap();
    let guard = client.acquire("held").call().unwrap();
    let (calls, answers) = (client.clone(), Arc::new(OnceLock::new()));
    let seen = answers.clone();
    let at_end = move || {
        assert!(Handle::try_current().unwrap_err().is_thread_local_destroyed());
        let extended = guard.extend().is_ok();
        let released = guard.release().is_released();
        let called = calls.acquire("called").call().map(drop).is_ok();
        seen.set((extended, released, called)).unwrap();
    };
    let ends = thread::spawn(move || {
        AT_END.set(Some(AtEnd(Some(Box::new(at_end)))));
        assert!(Handle::try_current().is_err());
    });
    ends.join().unwrap();
    assert_eq!(answers.get(), Some(&(true, true, true)));
    assert!(client.acquire("held").call().unwrap().release().is_released());
    client.shutdown(PATIENCE).unwrap();
}

/// Sees whose children spans are, in the thread that it is set for.
#[derive(Clone, Default)]
struct SpanTree(Arc<SpanTreeState>);

/// A span's name, its parent's, and that of the one that was entered.
type Seen = (&'static str, Option<&'static str>, Option<&'static str>);

#[derive(Default)]
struct SpanTreeState {
    /// By their ids, which count from one.
    names: Mutex<Vec<&'static str>>,
    entered: Mutex<Vec<Id>>,
    seen: Mutex<Vec<Seen>>,
}

impl Subscriber for SpanTree {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut names = self.0.names.lock().unwrap();
        let name = span.metadata().name();
        let entered = self.0.entered.lock().unwrap().last().cloned();
        let parent = if span.is_contextual() { entered.clone() } else { span.parent().cloned() };
        let named = |id: Id| names[usize::try_from(id.into_u64()).unwrap() - 1];
        let seen = (name, parent.map(named), entered.map(named));
        self.0.seen.lock().unwrap().push(seen);
        names.push(name);
        Id::from_u64(names.len() as u64)
    }

    fn enter(&self, span: &Id) {
        self.0.entered.lock().unwrap().push(span.clone());
    }

    fn exit(&self, span: &Id) {
        assert_eq!(self.0.entered.lock().unwrap().pop().as_ref(), Some(span));
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn event(&self, _: &Event<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
}

/// The driver grants a lock in the thread of a caller who is in a span of his own, which may long be over when the lock
/// is given back.
#[tokio::test]
async fn a_hold_is_no_child_of_what_its_caller_does() {
    let client = memory();
    drop(client.acquire("before").await.unwrap().release().await);
    let span_tree = SpanTree::default();
    let set = tracing::subscriber::set_default(span_tree.clone());
    let stranger = tracing::info_span!("stranger").entered();
    let Poll::Ready(guard) = poll_once(pin!(client.acquire("orders").into_future())) else {
        panic!("the caller has not let the driver work")
    };
    drop(stranger);
    drop(set);
    let seen = span_tree.0.seen.lock().unwrap().clone();
    let of_hold: Vec<_> = seen.iter().filter(|(name, ..)| *name == "hold").collect();
    assert_eq!(of_hold, [&("hold", None, Some("stranger"))], "{seen:?}");
    drop(guard);
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("whoever wakes this task");
    }
}

/// A caller's waker panics in the thread of another caller, who has let the driver work. Nobody knows what the driver
/// has left undone then: it ends, and all are told.
#[tokio::test]
async fn if_a_callers_waker_panics_all_are_told_that_the_client_has_ended() {
    let nodes = ["a", "b", "c"].map(MemoryNode::new);
    let client = Client::builder().custom_nodes(nodes).build().unwrap();
    let guard = client.acquire("orders").await.unwrap();
    let other = client.acquire("other").await.unwrap();
    let waits = tokio::spawn(async move { other.lost().await });
    eventually("all have voted", || guard.votes() == 3).await;
    {
        let mut changed = pin!(guard.changed());
        let waker = Waker::from(Arc::new(Panics));
        assert!(changed.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let extended = timeout(PATIENCE, guard.extend()).await.expect("somebody waits for ever");
        assert!(matches!(extended, Err(ExtendError::Lost { cause: LossCause::Shutdown, .. })));
    }
    assert_eq!(guard.loss_cause(), Some(LossCause::Shutdown));
    assert_eq!(timeout(PATIENCE, waits).await.unwrap().unwrap(), LossCause::Shutdown);
    let called = timeout(PATIENCE, client.acquire("more").into_future()).await.unwrap();
    assert!(matches!(called, Err(AcquireError::Closed { .. })));
    client.shutdown(PATIENCE).await.unwrap();
}

/// Gives its lock back when it is dropped, and does not wait.
struct GivesBack(Option<Guard>);

impl Drop for GivesBack {
    fn drop(&mut self) {
        assert!(thread::panicking());
        drop(self.0.take().unwrap().release());
    }
}

/// The same from a thread, which waits.
struct GivesBackAndWaits(Option<blocking::Guard>);

impl Drop for GivesBackAndWaits {
    fn drop(&mut self) {
        assert!(thread::panicking());
        assert!(self.0.take().unwrap().release().is_released());
    }
}

#[tokio::test]
async fn a_caller_that_panics_gives_its_locks_back() {
    let Some(nodes) = five() else { return };
    let client = client(&nodes);
    all_up(&client).await;
    let calls = client.clone();
    let panicked = tokio::spawn(async move {
        let _dropped = calls.acquire("dropped").await.unwrap();
        let _given_back = GivesBack(Some(calls.acquire("given back").await.unwrap()));
        panic!("under both locks");
    });
    assert!(panicked.await.unwrap_err().is_panic());
    no_key_is_left(&nodes).await;
    // Everything goes on.
    assert!(client.acquire("dropped").await.unwrap().release().await.is_released());
    client.shutdown(PATIENCE).await.unwrap();
}

#[test]
fn a_thread_that_panics_gives_its_locks_back() {
    let Some(nodes) = five() else { return };
    let client = common::builder(&nodes).blocking().build().unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _dropped = client.acquire("dropped").call().unwrap();
        let _given_back = GivesBackAndWaits(Some(client.acquire("given back").call().unwrap()));
        client.acquire("held").hold(|_| panic!("under three locks")).unwrap()
    }));
    assert!(panicked.is_err());
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(no_key_is_left(&nodes));
    assert!(client.acquire("dropped").call().unwrap().release().is_released());
    client.shutdown(PATIENCE).unwrap();
}

/// Callers who ask without a pause, while all nodes are away and come back.
struct Asking {
    nodes: Nodes,
    started: Instant,
    tries: AtomicUsize,
    back: OnceLock<Instant>,
}

impl Asking {
    /// Nobody waits for longer than this between two attempts to connect.
    const RECONNECTS_AFTER: Duration = Duration::from_secs(1);

    fn new() -> Option<Self> {
        let (tries, back) = (AtomicUsize::new(0), OnceLock::new());
        Some(Self { nodes: five()?, started: Instant::now(), tries, back })
    }

    /// What came of a try. Returns whether the caller need not ask any more.
    fn is_done(&self, got: Result<(), AcquireError>) -> bool {
        self.tries.fetch_add(1, Ordering::Relaxed);
        if let Some(back) = self.back.get() {
            let bound = Self::RECONNECTS_AFTER + PATIENCE;
            assert!(back.elapsed() < bound, "the nodes are back: {got:?}");
            return got.is_ok();
        }
        assert!(self.started.elapsed() < 4 * PATIENCE, "the test does not go on");
        false
    }

    /// Takes the nodes away, and brings them back.
    fn away_and_back(&self, states: impl Fn() -> Vec<NodeState>) {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let wait = |what, is_so: &dyn Fn() -> bool| runtime.block_on(eventually(what, is_so));
        wait("all are up", &|| states().iter().all(|state| *state == NodeState::Up));
        self.nodes.iter().for_each(|node| node.kill().unwrap());
        let is_down = |state: &NodeState| matches!(state, NodeState::Down(_));
        wait("all are known to be away", &|| states().iter().all(is_down));
        let before = self.tries.load(Ordering::Relaxed);
        wait("they ask again and again", &|| self.tries.load(Ordering::Relaxed) > before + 1000);
        thread::scope(|scope| {
            for node in &self.nodes {
                scope.spawn(|| node.restart().unwrap());
            }
        });
        self.back.set(Instant::now()).unwrap();
    }
}

fn states(stats: &quorlock::Stats) -> Vec<NodeState> {
    stats.nodes.iter().map(|node| node.state.clone()).collect()
}

/// A reply that is there at once lets nobody drive, and the own thread steps aside at every call: it has its turns all
/// the same, and connects.
#[test]
fn threads_that_ask_without_a_pause_keep_nobody_from_connecting() {
    for callers in [1, 3] {
        let Some(asking) = Asking::new() else { return };
        let client = common::builder(&asking.nodes).blocking().build().unwrap();
        thread::scope(|scope| {
            for caller in 0..callers {
                let (asking, client) = (&asking, &client);
                scope.spawn(move || {
                    let resource = format!("orders of {caller}");
                    let ask = || client.try_acquire(&resource).map(drop);
                    while !asking.is_done(ask()) {}
                });
            }
            asking.away_and_back(|| states(&client.stats()));
        });
        client.shutdown(PATIENCE).unwrap();
    }
}

/// Each call is answered in its first poll, by its caller's own driving; nothing but these calls goes on in the only
/// thread.
#[test]
fn tasks_that_ask_without_a_pause_keep_nobody_from_connecting() {
    for callers in [1, 3] {
        let Some(asking) = Asking::new() else { return };
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(async { client(&asking.nodes) });
        thread::scope(|scope| {
            let (asking, client) = (&asking, &client);
            scope.spawn(move || {
                let ask = |caller| async move {
                    let resource = format!("orders of {caller}");
                    while !asking.is_done(client.try_acquire(&resource).await.map(drop)) {}
                };
                runtime.block_on(async {
                    futures_util::future::join_all((0..callers).map(ask)).await;
                    client.shutdown(PATIENCE).await.unwrap();
                });
            });
            asking.away_and_back(|| states(&client.stats()));
        });
    }
}
