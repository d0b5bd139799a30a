//! The lock while servers die, freeze, restart or refuse, and while connections break.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

#[path = "../common/mod.rs"]
mod common;
mod connections;
mod frozen;

use std::time::Duration;

use common::{
    ONCE, PATIENCE, all_up, builder, calls, client, eventually, five, get, no_key_is_left, run,
    server, state,
};
use quorlock::node::{FailureKind, NodeState};
use quorlock::{AcquireError, Client, LockOptions, Outcome};
use quorlock_servers::{Listen, Nodes, Server, ServerOptions};
use tokio::time::{Instant, sleep, timeout};

use crate::frozen::CONNECT_TIMEOUT;

/// The node timeout of tests that measure it. It is longer than any pause of a busy machine.
const NODE_TIMEOUT: Duration = Duration::from_secs(1);

fn measured(nodes: &[Server]) -> Client {
    builder(nodes)
        .options(LockOptions::new().node_timeout(NODE_TIMEOUT))
        .connect_timeout(CONNECT_TIMEOUT)
        .build()
        .unwrap()
}

fn kind(error: &AcquireError, place: usize) -> FailureKind {
    error.nodes()[place]
        .failure()
        .unwrap_or_else(|| panic!("no failure of {place}: {error}"))
        .kind()
}

#[tokio::test]
async fn two_dead_nodes_of_five_do_not_delay_the_lock() {
    let Some(nodes) = start_on_tcp_and_sockets() else { return };
    for nodes in &nodes {
        let client = measured(nodes);
        drop(client.acquire("orders").await.unwrap());
        nodes[0].kill().unwrap();
        nodes[1].kill().unwrap();
        for _ in 0..5 {
            let started = Instant::now();
            let guard = client.acquire("orders").await.unwrap();
            assert!(started.elapsed() < NODE_TIMEOUT, "the dead are not waited for");
            assert_eq!(guard.votes(), 3);
            guard.extend().await.unwrap();
            let started = Instant::now();
            assert_eq!(guard.release().await.outcome, Outcome::Released);
            assert!(started.elapsed() < NODE_TIMEOUT, "the dead are not waited for");
        }
        let is_down = || matches!(state(&client, 0), NodeState::Down(_));
        eventually("the node is known to be down", is_down).await;
        no_key_is_left(&nodes[2..]).await;
    }
}

#[tokio::test]
async fn three_dead_nodes_of_five_are_named_with_the_cause() {
    let Some(nodes) = five() else { return };
    let client = measured(&nodes);
    drop(client.acquire("orders").await.unwrap());
    for node in &nodes[..3] {
        node.kill().unwrap();
    }
    let (started, wait) = (Instant::now(), Duration::from_secs(1));
    let error = client.acquire("orders").options(LockOptions::new().wait(wait)).await.unwrap_err();
    let elapsed = started.elapsed();
    assert!(elapsed >= wait && elapsed < wait + PATIENCE, "{elapsed:?}");
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
    assert!(!error.is_contended() && !error.is_permission_denied() && error.holder().is_none());
    let text = error.to_string();
    assert!(text.contains("no quorum, 3 of 5 nodes must grant; nodes "), "{text}");
    for place in 0..3 {
        assert_eq!(kind(&error, place), FailureKind::Unreachable);
    }
    let dead: Vec<String> = nodes[..3].iter().map(|node| node.address()).collect();
    let story = format!("nodes {} failed: unreachable: ", dead.join(", "));
    assert!(text.contains(&story), "{text}");
    assert!(error.nodes()[3..].iter().all(|node| node.failure().is_none()), "{text}");
    no_key_is_left(&nodes[3..]).await;

    let error = client.try_acquire("orders").await.unwrap_err();
    assert!(matches!(error, AcquireError::NoQuorum(_)), "at once, and the same: {error}");
}

#[tokio::test]
async fn a_restarted_node_is_used_again() {
    let Some(nodes) = start_on_tcp_and_sockets() else {
        return;
    };
    for nodes in &nodes {
        let client = client(nodes);
        drop(client.acquire("orders").await.unwrap());
        for node in &nodes[..3] {
            node.kill().unwrap();
        }
        assert!(client.try_acquire("orders").await.is_err());
        let waiting = tokio::spawn(client.acquire("orders").into_future());
        sleep(Duration::from_millis(300)).await;
        for node in &nodes[..3] {
            node.restart().unwrap();
        }
        drop(waiting.await.unwrap().unwrap());
        all_up(&client).await;
        let guard = client.acquire("orders").await.unwrap();
        eventually("all nodes have given their votes", || guard.votes() == 5).await;
        drop(guard);
        no_key_is_left(nodes).await;
    }
}

/// V10 of docs/algorithm.md: a minority's errors fail no operation. If a majority fails, the error names the causes.
#[tokio::test]
async fn errors_of_nodes_that_refuse_writes_are_distinguished() {
    let Some(nodes) = five() else { return };
    let client = client(&nodes);
    drop(client.acquire("orders").await.unwrap());
    no_key_is_left(&nodes).await;

    // Node 0 becomes a replica without a reachable master. Node 1 has no memory left.
    run(&nodes[0], &["REPLICAOF", "127.0.0.1", "1"]);
    run(&nodes[1], &["CONFIG", "SET", "maxmemory", "1"]);
    let guard = client.acquire("orders").await.unwrap();
    guard.extend().await.unwrap();
    assert!(guard.release().await.is_released());
    no_key_is_left(&nodes).await;

    run(&nodes[2], &["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let error = client.try_acquire("orders").await.unwrap_err();
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
    assert_eq!(kind(&error, 0), FailureKind::ReadOnly);
    assert_eq!(kind(&error, 1), FailureKind::OutOfMemory);
    assert_eq!(kind(&error, 2), FailureKind::Rejected);
    let text = error.to_string();
    for part in [
        "failed: read-only replica: READONLY ",
        "failed: out of memory: OOM ",
        "failed: answered with an error: NOREPLICAS ",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!error.is_permission_denied() && !error.is_contended());
    no_key_is_left(&nodes).await;

    run(&nodes[0], &["CONFIG", "SET", "replica-serve-stale-data", "no"]);
    let seen = client.inspect("orders").await.unwrap();
    assert_eq!(seen.nodes[0].failure().unwrap().kind(), FailureKind::MasterDown);

    run(&nodes[0], &["REPLICAOF", "NO", "ONE"]);
    let guard = client.acquire("orders").await.unwrap();
    assert!(guard.votes() >= 3, "a promoted node votes again");
}

/// Locks that were acquired before the node was full can be extended, downgraded and released, also after the node
/// has forgotten its scripts. New readers are refused.
#[tokio::test]
async fn a_full_node_still_extends_downgrades_and_releases() {
    let Some(nodes) = five() else { return };
    let client = client(&nodes);
    let reader = client.acquire_shared("orders").await.unwrap();
    let single = client.acquire("index").await.unwrap();
    let writer = client.acquire(["jobs", "mails"]).await.unwrap();
    let all_votes = || [&reader, &single, &writer].iter().all(|guard| guard.votes() == 5);
    eventually("all nodes have given their votes", all_votes).await;
    for node in &nodes {
        run(node, &["CONFIG", "SET", "maxmemory", "1"]);
        run(node, &["SCRIPT", "FLUSH"]);
    }
    for guard in [&reader, &single, &writer] {
        guard.extend().await.unwrap();
    }
    let writer = writer.downgrade();
    writer.extend().await.unwrap();
    writer.extend().await.unwrap();
    assert!(reader.votes() == 5 && writer.votes() == 5);
    let refused = async || client.acquire_shared("orders").options(ONCE).await.unwrap_err();
    let mut late = refused().await;
    // A node without the script rejects the acquire. The client then sends it again with the script's text, unless
    // another command has been sent to the node meanwhile. In that case the error says "too late".
    while late.to_string().contains("too late") {
        late = refused().await;
    }
    // The error lists only the nodes that answered before the attempt was decided.
    let failures: Vec<_> = late.nodes().iter().filter_map(|node| node.failure()).collect();
    assert!(failures.len() >= 3, "{late}");
    assert!(failures.iter().all(|it| it.kind() == FailureKind::OutOfMemory), "{late}");
    for guard in [reader, single, writer] {
        assert!(guard.release().await.is_released());
    }
    no_key_is_left(&nodes).await;
}

/// Many locks at once on few connections. A quarter of the calls is dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_locks_at_once() {
    let Some(nodes) = five() else { return };
    let client = client(&nodes);
    let mut callers = tokio::task::JoinSet::new();
    for place in 0..1000 {
        let call = client.acquire(format!("lock {place}"));
        callers.spawn(async move {
            if place % 4 == 0 {
                // The timeout drops the call before, during or after the grant.
                let _ = timeout(Duration::from_millis(place % 7), call).await;
                return None;
            }
            Some(call.await.unwrap())
        });
    }
    let mut guards = Vec::new();
    while let Some(guard) = callers.join_next().await {
        guards.extend(guard.unwrap());
    }
    assert_eq!(guards.len(), 750);
    assert!(guards.iter().all(quorlock::Guard::is_valid));
    let mut tokens: Vec<_> = guards.iter().map(quorlock::Guard::token).collect();
    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len(), 750, "no token is used twice");
    drop(guards);
    no_key_is_left(&nodes).await;
    assert_eq!(calls(&nodes[0], "hello"), 1, "one connection per node");
}

#[tokio::test]
async fn stats_report_locks_calls_and_nodes() {
    let Some(nodes) = five() else { return };
    let client = client(&nodes);
    let guard = client.acquire("orders").await.unwrap();
    eventually("all nodes have given their votes", || guard.votes() == 5).await;
    eventually("the figures are up to date", || client.stats().locks_held == 1).await;
    let stats = client.stats();
    assert_eq!((stats.locks_held, stats.calls_waiting, stats.releases_owed), (1, 0, 0));
    assert_eq!(stats.nodes.len(), 5);
    for (node, server) in stats.nodes.iter().zip(&nodes) {
        assert_eq!(*node.name, server.address());
        assert_eq!((node.state.clone(), node.timeouts, node.commands), (NodeState::Up, 0, 1));
        let round_trip = node.round_trip.unwrap();
        assert!(!round_trip.is_zero() && round_trip < PATIENCE);
    }
    let other = client.clone();
    let waiting = tokio::spawn(async move { other.acquire("orders").await });
    eventually("one call waits", || client.stats().calls_waiting == 1).await;
    waiting.abort();
    eventually("no call waits", || client.stats().calls_waiting == 0).await;
    drop(guard);
    eventually("nothing is held", || client.stats().locks_held == 0).await;
    eventually("nothing is owed", || client.stats().releases_owed == 0).await;
    let node = &nodes[0];
    assert_eq!(get(node, "orders"), None);
}

fn start_on_tcp_and_sockets() -> Option<[Nodes; 2]> {
    let binary = server()?;
    Some([Listen::UnixSocket, Listen::Tcp].map(|listen| {
        let options = ServerOptions { listen, ..ServerOptions::default() };
        Nodes::start(&binary, 5, options).unwrap()
    }))
}
