//! Callers may poll the driver in their own threads. Panics there must not harm other callers, and a busy caller must
//! not starve other callers.

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
use quorlock::{AcquireError, Client, ExtendError, LossCause, blocking};
use quorlock_servers::Nodes;
use tokio::runtime::{Builder, Handle};
use tokio::time::{Instant, timeout};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

fn memory() -> Client {
    Client::builder().memory_nodes(["a", "b", "c"].map(MemoryNode::new)).build().unwrap()
}

fn poll_once<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Runs a function when its thread ends. By then, thread-locals that were created after this one are gone.
struct AtEnd(Option<Box<dyn FnOnce()>>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        self.0.take().unwrap()();
    }
}

thread_local! {
    static AT_END: RefCell<Option<AtEnd>> = const { RefCell::new(None) };
}

/// A thread that is ending cannot enter a runtime, because tokio's thread-locals are gone. A panic there would abort
/// the process.
#[tokio::test]
async fn a_thread_that_ends_may_release_extend_and_call() {
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
        // The call is dropped after its first poll.
        assert!(poll_once(pin!(calls.acquire("called").into_future())).is_pending());
    };
    let ends = thread::spawn(move || {
        AT_END.set(Some(AtEnd(Some(Box::new(at_end)))));
        // Thread-locals are destroyed in reverse order of their creation, so tokio's are gone here.
        assert!(Handle::try_current().is_err());
    });
    ends.join().unwrap();
    assert_eq!(had_a_place.get(), Some(&false), "nothing was tested");
    no_key_is_left(&nodes).await;
    eventually("nothing is held", || client.stats().locks_held == 0).await;
    assert!(client.acquire("dropped").await.unwrap().release().await.is_released());
}

/// A thread that is ending cannot poll the driver. The client's own thread polls it, so all three calls complete.
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

/// A tracing subscriber that records the parent of each new span.
#[derive(Clone, Default)]
struct SpanTree(Arc<SpanTreeState>);

/// The names of a new span, of its parent, and of the thread's current span.
type Seen = (&'static str, Option<&'static str>, Option<&'static str>);

#[derive(Default)]
struct SpanTreeState {
    /// The name of each span. A span's index is its id minus one.
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

/// The driver may grant a lock in the thread of a caller that is in a span of its own. That span may end long before
/// the lock is released, so it must not be the parent of the lock's span.
#[tokio::test]
async fn the_span_of_a_hold_is_not_a_child_of_its_callers_span() {
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

/// A caller's waker panics in the thread of another caller that polls the driver. The driver's state is uncertain
/// then, so the driver ends and all callers get an error.
#[tokio::test]
async fn if_a_callers_waker_panics_all_callers_get_an_error() {
    let nodes = ["a", "b", "c"].map(MemoryNode::new);
    let client = Client::builder().memory_nodes(nodes).build().unwrap();
    let guard = client.acquire("orders").await.unwrap();
    let other = client.acquire("other").await.unwrap();
    let waits = tokio::spawn(async move { other.lost().await });
    eventually("all have voted", || guard.votes() == 3).await;
    {
        let mut changed = pin!(guard.changed());
        let waker = Waker::from(Arc::new(Panics));
        assert!(changed.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let extended = timeout(PATIENCE, guard.extend()).await.expect("the call hangs");
        assert!(matches!(extended, Err(ExtendError::Lost { cause: LossCause::Shutdown, .. })));
    }
    assert_eq!(guard.loss_cause(), Some(LossCause::Shutdown));
    assert_eq!(timeout(PATIENCE, waits).await.unwrap().unwrap(), LossCause::Shutdown);
    let called = timeout(PATIENCE, client.acquire("more").into_future()).await.unwrap();
    assert!(matches!(called, Err(AcquireError::Closed { .. })));
    client.shutdown(PATIENCE).await.unwrap();
}

/// Releases its lock in `drop`, and waits for the result.
struct ReleasesOnDrop(Option<blocking::Guard>);

impl Drop for ReleasesOnDrop {
    fn drop(&mut self) {
        assert!(thread::panicking());
        assert!(self.0.take().unwrap().release().is_released());
    }
}

#[test]
fn a_thread_that_panics_releases_its_locks() {
    let Some(nodes) = five() else { return };
    let client = common::builder(&nodes).blocking().build().unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _dropped = client.acquire("dropped").call().unwrap();
        let _given_back = ReleasesOnDrop(Some(client.acquire("given back").call().unwrap()));
        client.acquire("held").hold(|_| panic!("under three locks")).unwrap()
    }));
    assert!(panicked.is_err());
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(no_key_is_left(&nodes));
    assert!(client.acquire("dropped").call().unwrap().release().is_released());
    client.shutdown(PATIENCE).unwrap();
}

/// The state that callers share while they call without a pause, and all nodes stop and restart.
struct Asking {
    nodes: Nodes,
    started: Instant,
    tries: AtomicUsize,
    back: OnceLock<Instant>,
}

impl Asking {
    /// The client's longest pause between two attempts to connect to a node.
    const RECONNECTS_AFTER: Duration = Duration::from_secs(1);

    fn new() -> Option<Self> {
        let (tries, back) = (AtomicUsize::new(0), OnceLock::new());
        Some(Self { nodes: five()?, started: Instant::now(), tries, back })
    }

    /// Counts a call. Returns whether the caller may stop, because the call got the lock after the nodes' restart.
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

    /// Stops all nodes until the callers have called many times, and restarts them.
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

/// If every call has its reply at once, no caller polls the driver. The client's own thread steps aside during each
/// call, and must still run often enough to reconnect.
#[test]
fn threads_that_call_without_a_pause_do_not_prevent_a_reconnect() {
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

/// Each call completes at its first poll, and the only thread of the runtime is busy with such calls. The driver must
/// still reconnect.
#[test]
fn tasks_that_call_without_a_pause_do_not_prevent_a_reconnect() {
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
