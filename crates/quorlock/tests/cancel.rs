//! Drop, cancellation and shutdown in every phase of a call: no call blocks or panics, and no key stays on a node
//! that answers.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

mod common;

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use common::{
    PATIENCE, all_up, builder, calls, client, eventually, five, get, key_count, no_key_is_left,
};
use quorlock::{AcquireError, Client, Guard, LockOptions, LossCause, Outcome};
use quorlock_servers::Nodes;
use tokio::time::{Instant, sleep, timeout};

fn is_closed(result: &Result<Guard, AcquireError>) -> bool {
    matches!(result, Err(AcquireError::Closed { .. }))
}

/// Waits until no call waits, the client holds no lock and has no failed release to send again, and no key is left.
async fn is_at_rest(client: &Client, nodes: &Nodes) {
    eventually("no call waits", || client.stats().calls_waiting == 0).await;
    eventually("nothing is held", || client.stats().locks_held == 0).await;
    eventually("nothing is owed", || client.stats().releases_owed == 0).await;
    no_key_is_left(nodes).await;
}

#[tokio::test]
async fn a_call_that_is_never_polled_sends_nothing() {
    let Some(nodes) = five() else { return };
    let client = client(&nodes);
    all_up(&client).await;
    // The handshake also sends scripts, so the test compares the counts before and after.
    let sets = |node| calls(node, "evalsha") + calls(node, "set");
    let all_sets = || nodes.iter().map(sets).sum::<u64>();
    let before = all_sets();
    drop(client.acquire("orders"));
    drop(client.acquire("orders").into_future());
    drop(
        client
            .acquire("orders")
            .options(LockOptions::new().wait(Duration::ZERO).ttl(Duration::from_secs(1)))
            .into_future(),
    );
    drop(client.acquire("orders").hold(async |_| ()));
    drop(client.shutdown(Duration::ZERO));
    // The inspection sends one command per node. The count stays at one only if the dropped futures have sent none.
    let _ = client.inspect("orders").await;
    assert_eq!(all_sets(), before);
    assert!(client.stats().nodes.iter().all(|node| node.commands == 1));
    assert!(client.acquire("orders").await.unwrap().is_valid(), "the client still works");
}

/// The driver is a task of this runtime, which does not run between the polls. So the caller's own poll must have
/// sent the commands.
#[tokio::test]
async fn the_first_poll_of_a_call_sends_its_commands_if_the_driver_is_idle() {
    let Some(nodes) = five() else { return };
    let client = client(&nodes);
    all_up(&client).await;
    assert!(client.acquire("orders").await.unwrap().release().await.is_released());
    let mut call = Box::pin(client.acquire("orders").into_future());
    let polled = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "no task has read the answers");
    let began = Instant::now();
    while nodes.iter().any(|node| get(node, "orders").is_none()) {
        assert!(began.elapsed() < PATIENCE, "the acquire was not sent");
    }
    let guard = call.await.unwrap();
    drop(guard.release());
    while nodes.iter().any(|node| get(node, "orders").is_some()) {
        assert!(began.elapsed() < PATIENCE, "the release was not sent");
    }
    is_at_rest(&client, &nodes).await;
}

/// A caller may poll the driver. If that caller is not polled again, its commands must still be answered, held locks
/// extended, and other calls served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_is_not_polled_again_delays_no_other_caller() {
    const PARKED: Duration = Duration::from_secs(5);
    let Some(nodes) = five() else { return };
    let ttl = Duration::from_secs(1);
    let client = || {
        builder(&nodes).options(LockOptions::new().ttl(ttl).node_timeout(ttl / 4)).build().unwrap()
    };
    let (client, other) = (client(), client());
    all_up(&client).await;
    let held = client.acquire("beside").await.unwrap();
    eventually("all nodes have given their votes", || held.votes() == 5).await;
    let began = Instant::now();
    let calls = client.clone();
    // This thread, outside any runtime, polls the call once.
    let polls = std::thread::spawn(move || {
        // The nodes may answer before the poll ends. Then the next try takes another lock, because the first one is
        // being released.
        for name in (0..).map(|nth| format!("orders-{nth}")) {
            let mut call = Box::pin(calls.acquire(&name).into_future());
            if call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                return (call, name);
            }
        }
        unreachable!("there are always more names");
    });
    let (call, name) = tokio::task::spawn_blocking(|| polls.join().unwrap()).await.unwrap();
    let is_locked = || nodes.iter().all(|node| get(node, &name).is_some());
    let is_held = || client.stats().locks_held == 2 && is_locked();
    eventually("the call has the lock, and was not polled", is_held).await;
    let mut waits =
        tokio::spawn(other.acquire(&name).options(LockOptions::new().wait(PATIENCE)).into_future());
    let mut pairs = 0;
    while began.elapsed() < PARKED {
        assert!(timeout(ttl, client.acquire("often")).await.unwrap().unwrap().is_valid());
        pairs += 1;
    }
    assert!(held.is_valid() && pairs > 0, "the lock is extended, and other calls are served");
    assert!(timeout(Duration::ZERO, &mut waits).await.is_err(), "this lock is extended, too");
    drop(call);
    assert!(waits.await.unwrap().unwrap().is_valid());
    drop(held);
    is_at_rest(&client, &nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_may_be_dropped_anywhere() {
    let Some(nodes) = five() else { return };
    let client = client(&nodes);

    drop(client.acquire("inside").await.unwrap());
    let guard = client.acquire("outside").await.unwrap();
    std::thread::spawn(move || drop(guard)).join().unwrap();
    let guard = client.acquire("blocking").await.unwrap();
    tokio::task::spawn_blocking(move || drop(guard)).await.unwrap();

    let guard = client.acquire("panic").await.unwrap();
    let panicked = tokio::spawn(async move {
        let _held = guard;
        panic!("the work went wrong");
    });
    assert!(panicked.await.unwrap_err().is_panic());
    let guard = client.acquire("panic outside").await.unwrap();
    let panicked = std::thread::spawn(move || {
        let _held = guard;
        panic!("the work went wrong");
    });
    assert!(panicked.join().is_err());

    let aborted = client.clone();
    let aborted =
        tokio::spawn(
            async move { aborted.acquire("hold").hold(async |_| sleep(PATIENCE).await).await },
        );
    eventually("the work goes on", || get(&nodes[0], "hold").is_some()).await;
    aborted.abort();
    let _ = aborted.await;
    is_at_rest(&client, &nodes).await;

    let guard = client.acquire("last").await.unwrap();
    drop(client);
    sleep(Duration::from_millis(50)).await;
    assert!(guard.extend().await.is_ok(), "a guard needs no client");
    drop(guard);
    no_key_is_left(&nodes).await;
}

#[test]
fn a_guard_is_lost_after_its_runtime_has_ended() {
    let Some(nodes) = five() else { return };
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let (client, guards) = first.block_on(async {
        let client = builder(&nodes).options(
            LockOptions::new().ttl(Duration::from_secs(4)).node_timeout(Duration::from_secs(1)),
        );
        let client = client.build().unwrap();
        let mut guards = Vec::new();
        for place in 0..4 {
            guards.push(client.acquire(format!("lock {place}")).await.unwrap());
        }
        (client, guards)
    });
    let waiting = client.acquire("lock 0").into_future();
    drop(first);

    let [dropped, asked, released, awaited] = <[Guard; 4]>::try_from(guards).unwrap();
    drop(dropped);
    assert!(!asked.is_valid(), "the lock is no longer extended");
    assert_eq!(asked.loss_cause(), Some(LossCause::Shutdown));
    runtime().block_on(async {
        let started = Instant::now();
        assert_eq!(awaited.lost().await, LossCause::Shutdown);
        let error = asked.extend().await.unwrap_err();
        assert_eq!(error.to_string(), "lock \"lock 1\" is lost: the client was shut down");
        let unknown = released.release().await;
        assert_eq!((unknown.outcome, unknown.nodes().count()), (Outcome::Unknown, 0));
        assert!(is_closed(&waiting.await), "no call hangs");
        assert!(is_closed(&client.acquire("orders").await));
        assert!(is_closed(&client.try_acquire("orders").await));
        assert!(client.inspect("orders").await.unwrap().nodes.is_empty());
        client.shutdown(PATIENCE).await.unwrap();
        assert!(started.elapsed() < PATIENCE, "nothing is waited for");
        // The driver has ended with its runtime and sends no release, so the keys stay until the ttl ends.
        no_key_is_left(&nodes).await;
    });
}

#[tokio::test]
async fn a_shutdown_ends_waiting_calls_and_releases_held_locks() {
    let Some(nodes) = five() else {
        return;
    };
    let (client, other) = (client(&nodes), client(&nodes));
    let foreign = other.acquire("foreign").await.unwrap();
    let guard = client.acquire("orders").await.unwrap();
    let queued = tokio::spawn(
        client.acquire("orders").options(LockOptions::new().wait_forever()).into_future(),
    );
    let waiting = tokio::spawn(
        client.acquire("foreign").options(LockOptions::new().wait_forever()).into_future(),
    );
    let lost = Arc::new(guard);
    let watching = tokio::spawn({
        let guard = lost.clone();
        async move { guard.lost().await }
    });
    eventually("both wait", || client.stats().calls_waiting == 2).await;
    eventually("all have voted", || lost.votes() == 5 && foreign.votes() == 5).await;

    client.clone().shutdown(PATIENCE).await.unwrap();
    for node in &nodes {
        assert_eq!(key_count(node), 1, "only the other client's key is left");
        assert_eq!(get(node, "foreign"), Some(foreign.token().to_string()));
    }
    let error = queued.await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "lock \"orders\" not acquired: the client is shut down");
    assert!(is_closed(&waiting.await.unwrap()));
    assert_eq!(watching.await.unwrap(), LossCause::Shutdown);
    assert!(!lost.is_valid());
    let guard = Arc::into_inner(lost).unwrap();
    assert_eq!(guard.release().await.outcome, Outcome::Unknown, "the driver has ended");

    assert!(is_closed(&client.acquire("orders").await));
    assert!(is_closed(&client.try_acquire("orders").await));
    client.shutdown(Duration::ZERO).await.unwrap();
    assert!(foreign.release().await.is_released());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_hangs_during_a_shutdown() {
    let Some(nodes) = five() else { return };
    for round in 0..20 {
        let client = client(&nodes);
        let mut callers = tokio::task::JoinSet::new();
        for place in 0..4 {
            let client = client.clone();
            callers.spawn(async move {
                loop {
                    let call = client.acquire(format!("lock {}", place % 2));
                    match timeout(PATIENCE, call).await.expect("no call hangs") {
                        Ok(guard) => drop(guard.release()),
                        Err(AcquireError::Closed { .. }) => return,
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        sleep(Duration::from_millis(round)).await;
        client.shutdown(PATIENCE).await.unwrap();
        for node in &nodes {
            assert_eq!(key_count(node), 0, "drained is drained");
        }
        while let Some(caller) = callers.join_next().await {
            caller.unwrap();
        }
    }
}

#[tokio::test]
async fn a_shutdown_that_times_out_reports_the_owed_releases() {
    let Some(nodes) = five() else { return };
    let client = client(&nodes);
    let guards = [client.acquire("a").await.unwrap(), client.acquire("b").await.unwrap()];
    for guard in &guards {
        eventually("all nodes have given their votes", || guard.votes() == 5).await;
    }
    nodes[0].pause().unwrap();
    drop(guards);
    let (started, bound) = (Instant::now(), Duration::from_millis(300));
    let error = client.shutdown(bound).await.unwrap_err();
    assert!(started.elapsed() >= bound);
    assert_eq!(error.owed, 2);
    assert_eq!(
        error.to_string(),
        "shut down with 2 releases still owed; their keys are gone after their ttl"
    );
    no_key_is_left(&nodes[1..]).await;
    assert!(is_closed(&client.acquire("a").await), "the client is shut down");
    nodes[0].resume().unwrap();
    client.shutdown(PATIENCE).await.unwrap();
    assert_eq!(key_count(&nodes[0]), 0, "the driver still sends owed releases");
}

/// The program blocks its runtime for three ttls. A driver that is a task of this runtime cannot extend the lock.
#[tokio::test]
async fn a_blocked_runtime_loses_the_lock_unless_the_driver_has_a_thread_of_its_own() {
    let Some(nodes) = five() else { return };
    let ttl = Duration::from_secs(2);
    let builder = || builder(&nodes).options(LockOptions::new().ttl(ttl).node_timeout(ttl / 4));
    let on_thread = builder().own_thread(true).build().unwrap();
    let on_runtime = builder().build().unwrap();
    let kept = on_thread.acquire("kept").await.unwrap();
    let lost = on_runtime.acquire("lost").await.unwrap();
    #[expect(clippy::disallowed_methods, reason = "a blocked thread is measured from outside")]
    let started = std::time::Instant::now();
    while started.elapsed() < 3 * ttl {
        std::thread::sleep(Duration::from_millis(10));
        assert!(kept.is_valid(), "lost after {:?}: {:?}", started.elapsed(), kept.loss_cause());
    }
    assert!(!lost.is_valid(), "the clock shows the loss before any task has run");
    assert_eq!((lost.remaining(), lost.loss_cause()), (Duration::ZERO, Some(LossCause::Expired)));
    assert!(kept.is_valid());
    assert_eq!(lost.lost().await, LossCause::Expired);
    assert_eq!(lost.release().await.outcome, Outcome::Expired);
    assert_eq!(kept.release().await.outcome, Outcome::Released);
    no_key_is_left(&nodes).await;
}

#[test]
fn a_client_needs_a_runtime_or_a_thread_of_its_own() {
    let Some(nodes) = five() else { return };
    let error = client_error(&nodes);
    assert_eq!(
        error,
        "no tokio runtime here: build the client inside one, or give it a thread of its own with \
         own_thread(true)"
    );
    let client = builder(&nodes).own_thread(true).build().unwrap();
    // Polls the call without a runtime.
    let mut call = Box::pin(client.acquire("orders").into_future());
    let waker = Waker::noop();
    let guard = loop {
        match call.as_mut().poll(&mut Context::from_waker(waker)) {
            Poll::Ready(guard) => break guard.unwrap(),
            Poll::Pending => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    assert!(guard.is_valid());
    // Drops the guard outside a runtime, during a panic.
    let panicked = panic::catch_unwind(AssertUnwindSafe(move || {
        let _held = guard;
        panic!("the work went wrong");
    }));
    assert!(panicked.is_err());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(is_at_rest(&client, &nodes));
}

fn client_error(nodes: &Nodes) -> String {
    builder(nodes).build().unwrap_err().to_string()
}
