//! Presets: options with the numbers of other libraries, and their effect as a node sees it.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorlock::node::MemoryNode;
use quorlock::{AcquireError, Client, Clock, Delay, LockOptions, NodeOutcome, Outcome, Retry};
use quorlock_core::Command;
use tokio::time::{Instant, sleep, timeout};

const MS: Duration = Duration::from_millis(1);
const TTL: Duration = Duration::from_secs(10);

/// The tolerance for measured times, because timers of tokio have a resolution of one millisecond.
const TICK: Duration = Duration::from_millis(2);

fn retry(attempts_max: Option<u32>, min: u32, max: u32) -> Retry {
    Retry { delay: Delay::Between { min: min * MS, max: max * MS }, attempts_max }
}

/// The expected numbers are those of the other libraries. The documentation of each preset names the source.
#[test]
fn the_presets_have_the_numbers_of_their_libraries() {
    let new = || LockOptions::new().auto_extend(false);
    for (library, preset, expected) in [
        (
            "redlock-php",
            LockOptions::redlock_php(),
            new().retry(retry(Some(3), 100, 200)).drift(10_000, 2 * MS).margin(Duration::ZERO),
        ),
        (
            "redsync",
            LockOptions::redsync(),
            new()
                .ttl(8000 * MS)
                .retry(retry(Some(32), 50, 250))
                .node_timeout(400 * MS)
                .drift(10_000, Duration::ZERO)
                .margin(Duration::ZERO),
        ),
        (
            "node-redlock",
            LockOptions::node_redlock(),
            new().retry(retry(Some(11), 100, 300)).drift(10_000, 2 * MS).margin(Duration::ZERO),
        ),
        (
            "redis-py",
            LockOptions::redis_py(),
            new().auto_extend(true).retry(retry(None, 100, 100)).wait_forever(),
        ),
        ("StackExchange.Redis", LockOptions::stack_exchange(), new().wait(Duration::ZERO)),
    ] {
        assert_eq!(preset, expected, "{library}");
    }
}

fn world() -> ([MemoryNode; 3], Client) {
    let nodes = ["a", "b", "c"].map(MemoryNode::new);
    let client = Client::builder().memory_nodes(nodes.clone()).clock(Clock::Tokio).build().unwrap();
    (nodes, client)
}

/// Records when attempts arrive at the node.
fn record_attempts(node: &MemoryNode) -> Arc<Mutex<Vec<Instant>>> {
    let recorded = Arc::<Mutex<Vec<Instant>>>::default();
    let record = recorded.clone();
    node.intercept(move |commands, answers| {
        let attempts = commands.iter().filter(|it| matches!(it, Command::Acquire { .. }));
        record.lock().unwrap().extend(attempts.map(|_| Instant::now()));
        answers
    });
    recorded
}

/// Tries for a minute to acquire a lock that another library holds. Returns the delays between the attempts as a node
/// sees them.
async fn delays(options: LockOptions) -> Vec<Duration> {
    let (nodes, client) = world();
    let attempts = record_attempts(&nodes[0]);
    for node in &nodes {
        node.insert("orders", "another library's", Some(120_000 * MS));
    }
    if let Ok(ended) = timeout(60_000 * MS, client.acquire("orders").options(options)).await {
        let error = ended.unwrap_err();
        assert!(error.is_contended(), "{error}");
    }
    let attempts = attempts.lock().unwrap();
    attempts.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[tokio::test(start_paused = true)]
async fn a_node_sees_the_attempts_of_each_library_and_its_delays() {
    for (options, attempts, min, max) in [
        (LockOptions::redlock_php(), 3, 100, 200),
        (LockOptions::redsync(), 32, 50, 250),
        (LockOptions::node_redlock(), 11, 100, 300),
        (LockOptions::stack_exchange(), 1, 0, 0),
    ] {
        let delays = delays(options.clone()).await;
        assert_eq!(delays.len() + 1, attempts, "{options:?}");
        let fits = |delay: &Duration| *delay >= min * MS && *delay <= max * MS + TICK;
        assert!(delays.iter().all(fits), "{options:?}: {delays:?}");
        let longest = delays.iter().max().copied().unwrap_or_default();
        let shortest = delays.iter().min().copied().unwrap_or_default();
        assert!(longest > shortest || attempts == 1, "random: {delays:?}");
    }
    let delays = delays(LockOptions::redis_py()).await;
    assert!((585..=600).contains(&delays.len()), "a minute of attempts: {}", delays.len());
    assert!(delays.iter().all(|delay| *delay >= 100 * MS && *delay <= 100 * MS + TICK));
}

#[tokio::test(start_paused = true)]
async fn a_function_chooses_the_delays() {
    let delay = Delay::Custom(|attempts, _| 10 * MS * attempts);
    let options = LockOptions::redsync().retry(Retry { delay, attempts_max: Some(5) });
    for (delay, attempts) in delays(options).await.into_iter().zip(1..) {
        let expected = 10 * MS * attempts;
        assert!(delay >= expected && delay <= expected + TICK, "{delay:?} after {attempts}");
    }
}

/// The validity that each library computes: ttl − elapsed − drift. No time has elapsed here.
#[tokio::test(start_paused = true)]
async fn a_lock_is_valid_as_long_as_in_each_library_and_is_not_extended() {
    for (options, ttl, validity) in [
        (LockOptions::redlock_php().ttl(TTL), TTL, 9898 * MS),
        (LockOptions::redsync(), 8000 * MS, 7920 * MS),
        (LockOptions::node_redlock().ttl(TTL), TTL, 9898 * MS),
    ] {
        let (nodes, client) = world();
        let guard = client.acquire("orders").options(options.clone()).await.unwrap();
        let remaining = guard.remaining();
        assert!(
            remaining <= validity && remaining + TICK >= validity,
            "{options:?}: {remaining:?}"
        );
        sleep(ttl + TICK).await;
        assert!(!guard.is_valid() && nodes.iter().all(|node| !node.contains("orders")));
        assert_eq!(
            guard.release().await.outcome,
            Outcome::Expired,
            "redsync: ErrLockAlreadyExpired"
        );
    }
    let (_nodes, client) = world();
    let guard = client.acquire("orders").options(LockOptions::redis_py()).await.unwrap();
    sleep(5 * TTL).await;
    assert!(guard.is_valid(), "without a timeout, redis-py's lock stays until its release");
}

#[tokio::test(start_paused = true)]
async fn redsync_waits_for_a_silent_node_for_a_twentieth_of_the_expiry_and_names_the_taken_nodes() {
    let (nodes, client) = world();
    let once = LockOptions::redsync().wait(Duration::ZERO);
    for node in &nodes[1..] {
        node.insert("orders", "another library's", Some(TTL));
    }
    let error = client.acquire("orders").options(once.clone()).await.unwrap_err();
    let taken = |node: &&quorlock::NodeAnswer| matches!(node.said, NodeOutcome::Refused(_));
    let taken: Vec<&str> = error.nodes().iter().filter(taken).map(|node| &*node.node).collect();
    assert!(error.is_contended());
    assert_eq!(taken, ["b", "c"], "redsync: ErrTaken with the nodes 1 and 2");

    nodes.iter().for_each(MemoryNode::freeze);
    let started = Instant::now();
    let error = client.acquire("stock").options(once).await.unwrap_err();
    let elapsed = started.elapsed();
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
    assert!(elapsed >= 400 * MS && elapsed <= 400 * MS + TICK, "{elapsed:?}");
}

/// These libraries let the caller choose the value: redsync by `genValueFunc`, StackExchange.Redis by `LockTake`.
#[tokio::test(start_paused = true)]
async fn the_caller_chooses_the_value() {
    let (nodes, client) = world();
    for options in [LockOptions::redsync(), LockOptions::stack_exchange()] {
        let taken = client.take("orders", "worker-7", TTL).options(options).await.unwrap();
        sleep(MS).await;
        let has_value = |it: &MemoryNode| it.value_of("orders").as_deref() == Some(b"worker-7");
        assert!(nodes.iter().all(has_value));
        assert!(taken.release().await.is_released());
    }
}
