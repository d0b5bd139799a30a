//! The lock on real servers: acquired, extended, lost and released.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

#[path = "../common/mod.rs"]
mod common;
mod foreign;
mod holding;

use std::time::Duration;

use common::{builder, client, eventually, five, get, key_count, no_key_is_left, pttl, run};
use quorlock::{
    AcquireError, Client, Delay, HolderKind, LockOptions, NodeOutcome, NodeReleased, Outcome, Retry,
};
use quorlock_servers::Server;
use tokio::time::Instant;

const TTL: Duration = Duration::from_secs(10);

/// The drift, an allowance for clock errors: `TTL` × 0.01 + 2 ms.
const DRIFT: Duration = Duration::from_millis(102);

#[tokio::test]
async fn a_lock_is_acquired_extended_and_released_on_all_nodes() {
    let Some(nodes) = five() else { return };
    let client = client(&nodes);
    let started = Instant::now();
    let guard =
        client.acquire("orders").options(LockOptions::new().owner("build-7")).await.unwrap();
    assert!(guard.is_valid());
    let (remaining, elapsed) = (guard.remaining(), started.elapsed());
    assert!(remaining <= TTL - DRIFT, "the drift is allowed for: {remaining:?}");
    assert!(remaining + elapsed >= TTL - DRIFT - TTL / 50, "{remaining:?} after {elapsed:?}");
    eventually("votes that come late are counted too", || guard.votes() == 5).await;
    let value = get(&nodes[0], "orders").unwrap();
    let is_ours = value.starts_with(&format!("{} @", guard.token())) && value.ends_with(" build-7");
    assert!(is_ours, "{value}");
    for node in &nodes {
        assert_eq!(get(node, "orders").as_deref(), Some(value.as_str()));
        assert!((1..=10_000).contains(&pttl(node, "orders")));
    }

    for node in &nodes {
        run(node, &["PEXPIRE", "orders", "5000"]);
    }
    let extended = guard.extend().await.unwrap();
    assert!(extended > TTL / 2 && extended <= TTL - DRIFT, "{extended:?}");
    for node in &nodes {
        eventually("every node has extended", || pttl(node, "orders") > 5000).await;
        assert_eq!(get(node, "orders").as_deref(), Some(value.as_str()));
    }

    let released = guard.release().await;
    assert_eq!(released.outcome, Outcome::Released);
    assert!(released.is_released());
    let deleted = released.nodes().filter(|(_, said)| **said == NodeReleased::Deleted);
    assert!(deleted.count() >= 3);
    let names: Vec<&str> = released.nodes().map(|(name, _)| name).collect();
    let addresses: Vec<String> = nodes.iter().map(Server::address).collect();
    assert_eq!(names, addresses);
    no_key_is_left(&nodes).await;
}

#[tokio::test]
async fn a_waiting_client_learns_who_holds_the_lock() {
    let Some(nodes) = five() else { return };
    let holder =
        builder(&nodes).options(LockOptions::new().owner("api-7:41 nightly")).build().unwrap();
    let other = client(&nodes);
    let guard = holder.acquire("orders").await.unwrap();
    eventually("all nodes have given their votes", || guard.votes() == 5).await;

    let error = other.try_acquire("orders").await.unwrap_err();
    assert!(matches!(error, AcquireError::Contended(_)), "{error:?}");
    assert!(error.is_contended() && !error.is_permission_denied());
    let held_by = error.holder().unwrap();
    assert_eq!(held_by.kind, HolderKind::Owner("api-7:41 nightly".to_owned()));
    assert!(held_by.remaining.is_some_and(|left| left <= TTL));
    assert!(error.retry_after().is_some_and(|time| time <= TTL));
    assert_eq!(error.nodes().len(), 5);
    let refused = error.nodes().iter().filter(|node| matches!(node.said, NodeOutcome::Refused(_)));
    assert!(refused.count() >= 3, "{error:?}");
    let text = error.to_string();
    assert!(text.starts_with("lock \"orders\" not acquired in "), "{text}");
    let (those_that_refused, _) = text.split_once(" refused (held by api-7:41").expect("one entry");
    let is_named = |node: &&Server| those_that_refused.contains(&node.address());
    assert!(nodes.iter().filter(is_named).count() >= 3, "{text}");
    assert!(held_by.since.is_some(), "{held_by:?}");
    assert!(!text.contains(&guard.token().to_string()), "a token is shown");

    let waiting = tokio::spawn(other.acquire("orders").into_future());
    eventually("the other one tries", || other.stats().calls_waiting == 1).await;
    let before = guard.token();
    assert!(guard.release().await.is_released());
    let guard = waiting.await.unwrap().unwrap();
    assert!(guard.is_valid());
    assert_ne!(guard.token(), before);
    drop(guard);
    no_key_is_left(&nodes).await;
}

#[tokio::test]
async fn a_waiting_call_reports_the_cause_after_each_attempt() {
    let Some(nodes) = five() else { return };
    let (holder, other) = (
        builder(&nodes).options(LockOptions::new().owner("api-7")).build().unwrap(),
        client(&nodes),
    );
    let guard = holder.acquire("orders").await.unwrap();
    let (progress, mut reports) = tokio::sync::mpsc::channel(1);
    let waiting = tokio::spawn(other.acquire("orders").progress(progress).into_future());
    let told = reports.recv().await.unwrap();
    assert!(told.contended && told.attempts >= 1, "{told:?}");
    assert_eq!(told.holder().unwrap().kind, HolderKind::Owner("api-7".to_owned()));
    assert_eq!(told.nodes.len(), 5);
    drop(guard);
    assert!(waiting.await.unwrap().unwrap().is_valid());
}

/// The driver must not wait for a receiver of reports. A full channel loses reports.
#[tokio::test]
async fn reports_that_are_not_received_do_not_stop_the_client() {
    let Some(nodes) = five() else { return };
    let (holder, other) = (client(&nodes), client(&nodes));
    let guard = holder.acquire("orders").await.unwrap();
    let (progress, mut reports) = tokio::sync::mpsc::channel(1);
    let (min, max) = (Duration::from_millis(1), Duration::from_millis(2));
    let retry = Retry { delay: Delay::Between { min, max }, attempts_max: None };
    let call = other.acquire("orders").options(LockOptions::new().retry(retry)).progress(progress);
    let waiting = tokio::spawn(call.into_future());
    for number in 0..20 {
        drop(other.acquire(format!("other {number}")).await.unwrap());
    }
    assert_eq!(reports.recv().await.unwrap().attempts, 1);
    drop(guard);
    assert!(waiting.await.unwrap().unwrap().is_valid());
    while reports.recv().await.is_some() {}
}

/// Mutual exclusion, shown by a counter that is read and written a moment later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_under_the_lock_loses_no_update() {
    let Some(nodes) = five() else { return };
    let counter = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let clients: Vec<Client> = (0..4).map(|_| client(&nodes)).collect();
    let mut workers = tokio::task::JoinSet::new();
    for client in clients.iter().flat_map(|client| [client; 3]) {
        let (client, counter) = (client.clone(), counter.clone());
        workers.spawn(async move {
            for _ in 0..5 {
                let guard = client.acquire("counter").await.unwrap();
                let read = counter.load(std::sync::atomic::Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(1)).await;
                assert!(guard.is_valid());
                counter.store(read + 1, std::sync::atomic::Ordering::Relaxed);
                assert!(guard.release().await.is_released());
            }
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker.unwrap();
    }
    assert_eq!(counter.load(std::sync::atomic::Ordering::Relaxed), 4 * 3 * 5);
    no_key_is_left(&nodes).await;
}

#[tokio::test]
async fn one_node_four_nodes_and_a_raised_quorum() {
    let Some(nodes) = five() else { return };
    let single = client(&nodes[..1]);
    let guard = single.acquire("single").await.unwrap();
    assert_eq!(guard.votes(), 1);
    assert!(guard.release().await.is_released());

    let four = client(&nodes[..4]);
    let guard = four.acquire("four").await.unwrap();
    assert!(guard.votes() >= 3, "of four nodes, two are no majority");
    for node in &nodes[..2] {
        run(node, &["SET", "half", "foreign", "PX", "60000"]);
    }
    let error = four.try_acquire("half").await.unwrap_err();
    assert!(error.is_contended(), "a tie is a no: {error}");
    drop(guard);

    let raised = builder(&nodes).quorum(4).build().unwrap();
    let guard = raised.acquire("raised").await.unwrap();
    assert!(guard.votes() >= 4);
    drop(guard);
    eventually("only the foreign keys are left", || nodes.iter().map(key_count).sum::<i64>() == 2)
        .await;
    nodes[3].kill().unwrap();
    nodes[4].kill().unwrap();
    let error = raised.try_acquire("raised").await.unwrap_err();
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
}

#[tokio::test]
async fn the_prefix_stands_before_the_key() {
    let Some(nodes) = five() else { return };
    let client = builder(&nodes).key_prefix("locks:").build().unwrap();
    let guard = client.acquire("orders").await.unwrap();
    assert_eq!(guard.resource(), "orders");
    eventually("all nodes have given their votes", || guard.votes() == 5).await;
    for node in &nodes {
        assert_eq!(get(node, "locks:orders"), Some(guard.token().to_string()));
        assert_eq!(key_count(node), 1);
    }
}
