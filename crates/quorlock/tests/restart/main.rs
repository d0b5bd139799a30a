//! The restart guard on real servers: a node that may have forgotten its votes does not vote.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

#[path = "../common/mod.rs"]
mod common;
mod data;
mod lists;
mod modes;
mod worthless;

use std::time::Duration;

use common::{PATIENCE, UNEXTENDED, all_servers, eventually, get, key_count, start};
use quorlock::{
    AcquireError, Client, ClientBuilder, Guard, LockOptions, NodeOutcome, NodeTrustState,
    RestartGuard,
};
use quorlock_servers::{Listen, Nodes, Server, ServerOptions};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// A short ttl makes the quarantine, the time without votes, short.
const TTL: Duration = Duration::from_millis(500);

/// The time for which a restarted node does not vote: `TTL` × 1.01, plus 2 s.
const QUARANTINE: Duration = Duration::from_millis(2505);

const MARKER: &str = "quorlock:node";
const ADOPTION: &str = "quorlock:adopt";

fn strict(nodes: &[Server]) -> ClientBuilder {
    named("abcdefg".chars().zip(nodes.iter().map(Server::url)))
}

fn named(nodes: impl IntoIterator<Item = (char, String)>) -> ClientBuilder {
    let nodes = nodes.into_iter().map(|(name, url)| format!("{name}={url}"));
    Client::builder()
        .nodes(nodes)
        .options(LockOptions::new().ttl(TTL).node_timeout(TTL / 4).wait(PATIENCE))
        .max_ttl(TTL)
}

fn with_args(args: &[&str]) -> ServerOptions {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    ServerOptions { args, listen: Listen::Tcp, ..ServerOptions::default() }
}

fn trust_state(client: &Client, place: usize) -> NodeTrustState {
    client.stats().nodes[place].trust_state.clone()
}

/// Waits until all nodes of a client vote. The client takes a new node into use only while a call needs the node, so
/// this function acquires a lock.
async fn all_trusted(client: &Client) {
    let guard = client.acquire("warming up").await.unwrap();
    assert!(guard.release().await.is_released());
    for place in 0..client.stats().nodes.len() {
        let is_trusted = || trust_state(client, place) == NodeTrustState::Trusted;
        eventually("all nodes are trusted", is_trusted).await;
    }
    let stats = || client.stats();
    eventually("all would vote", || stats().nodes.iter().all(|node| node.would_vote)).await;
    eventually("nothing is held", || stats().releases_owed == 0).await;
}

/// Acquires a lock and asserts that no quarantine delayed the call. The call itself retries if a node was too slow to
/// answer.
async fn without_a_wait(client: &Client) -> Guard {
    let started = Instant::now();
    let guard = client.acquire("orders").await.unwrap();
    assert!(started.elapsed() < QUARANTINE, "{:?}", started.elapsed());
    guard
}

/// The error of an acquire while too few nodes vote.
async fn untrusted_now(client: &Client) -> AcquireError {
    let started = Instant::now();
    let error = loop {
        let error = client.try_acquire("orders").await.unwrap_err();
        // A busy machine may keep a node from answering in time, so the loop retries.
        let late = error.nodes().iter().any(|node| matches!(node.said, NodeOutcome::Nothing));
        let settled = matches!(error, AcquireError::NodesUntrusted(_)) || !late;
        if settled || started.elapsed() > PATIENCE {
            break error;
        }
    };
    assert!(matches!(error, AcquireError::NodesUntrusted(_)), "{error}");
    assert!(!error.is_contended() && !error.is_permission_denied(), "{error}");
    error
}

#[tokio::test]
async fn a_new_server_is_quarantined_once_and_trusted_afterwards() {
    let servers = all_servers();
    let each = servers.into_iter().map(|binary| async move {
        let nodes = Nodes::start(&binary, 3, ServerOptions::default()).unwrap();
        let client = strict(&nodes).build().unwrap();
        let (progress, mut reports) = mpsc::channel(1);
        let started = Instant::now();
        let acquiring = tokio::spawn(client.acquire("orders").progress(progress).into_future());
        let waiting = reports.recv().await.unwrap();
        assert!(waiting.untrusted && !waiting.contended);
        let said = waiting.nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        assert!(said.contains("its votes count in 3 s"), "{said}");

        let guard = acquiring.await.unwrap().unwrap();
        assert!(started.elapsed() >= QUARANTINE, "{:?}", started.elapsed());
        assert!(guard.release().await.is_released());
        for (place, node) in nodes.iter().enumerate() {
            eventually("the node is trusted", || {
                trust_state(&client, place) == NodeTrustState::Trusted
            })
            .await;
            let marker = get(node, MARKER).unwrap();
            let agreed = "quorlock 1 nodes=a,b,c quorum=2 max_ttl_ms=500 run_id=";
            assert!(marker.starts_with(agreed), "{marker}");
            assert_eq!(get(node, ADOPTION), None);
        }
        // A client that starts after the quarantine does not wait.
        let next = strict(&nodes).build().unwrap();
        assert!(without_a_wait(&next).await.is_valid());
        // The acquire needs only two of the three nodes. The third may not have answered yet.
        let trusted = (0..3).filter(|place| trust_state(&next, *place) == NodeTrustState::Trusted);
        assert!(trusted.count() >= 2, "{:?}", next.stats().nodes);
    });
    // The test runs with all servers in parallel, because it mostly waits.
    each.collect::<JoinSet<()>>().join_all().await;
}

#[tokio::test]
async fn a_call_that_does_not_wait_learns_how_long_the_quarantine_lasts() {
    let Some(nodes) = start(3, ServerOptions::default()) else { return };
    let client = strict(&nodes).build().unwrap();
    let error = untrusted_now(&client).await;
    let left = error.retry_after().unwrap();
    assert!(left <= QUARANTINE + Duration::from_secs(1), "{left:?}");
    let text = error.to_string();
    assert!(text.contains("too few nodes vote, 2 of 3 must grant"), "{text}");
    let reason =
        ": quarantined: is new under these settings, or has lost its data; its votes count in 3 s";
    assert!(text.contains(reason), "{text}");
    // Two nodes in quarantine decide the attempt. The third may not have answered yet.
    let quarantined =
        |place: &usize| matches!(trust_state(&client, *place), NodeTrustState::Quarantined { .. });
    assert!((0..3).filter(quarantined).count() >= 2, "{:?}", client.stats().nodes);
    assert!(client.stats().nodes.iter().all(|node| !node.would_vote), "{:?}", client.stats());

    // A call whose wait is shorter than the quarantine also fails at once.
    let short = Duration::from_millis(1500);
    let error = client.acquire("orders").options(LockOptions::new().wait(short)).await.unwrap_err();
    let AcquireError::NodesUntrusted(attempts) = &error else { panic!("{error}") };
    assert!(attempts.elapsed < short, "{error}");
    assert!(error.retry_after().is_some());
    for node in &nodes {
        eventually("nothing but our own keys are left", || key_count(node) == 2).await;
        assert_eq!(get(node, "quorlock:database").as_deref(), Some("0"));
        assert!(get(node, ADOPTION).is_some());
    }
}

/// A ttl that is long enough for three servers to restart before a lock expires.
const LONG: Duration = Duration::from_secs(2);

/// Three of five servers restart empty while a lock is held. Returns whether two clients held the lock at once.
async fn three_of_five_forget(nodes: &Nodes, guard: RestartGuard) -> bool {
    let builder = || {
        let nodes = "abcde".chars().zip(nodes.urls());
        let builder =
            named(nodes).options(LockOptions::new().ttl(LONG).auto_extend(false)).max_ttl(LONG);
        builder
            .options(LockOptions::new().node_timeout(Duration::from_millis(400)))
            .restart_guard(guard)
    };
    let (client, known) = (builder().build().unwrap(), builder().build().unwrap());
    drop(known.acquire("warming up").await.unwrap());
    // The holder needs all five votes, so that the two nodes that do not restart refuse other clients.
    let holder: Guard = loop {
        let guard = client.acquire("orders").await.unwrap();
        if guard.votes() == 5 {
            break guard;
        }
        // A vote is missing, because a node was in quarantine or slow. The loop tries again.
        assert!(guard.release().await.is_released());
        sleep(Duration::from_millis(50)).await;
    };
    std::thread::scope(|scope| {
        for node in nodes.iter().take(3) {
            scope.spawn(|| node.restart().unwrap());
        }
    });
    // One client knew the servers before the restart, and one did not.
    let new = builder().build().unwrap();
    let (resource, still) = ("orders", &holder);
    let is_second = async |rival: &Client| {
        let guard = rival.acquire(resource).options(UNEXTENDED).await.unwrap();
        let both = still.is_valid() && guard.is_valid();
        assert!(guard.release().await.is_released());
        both
    };
    let (first, second) = tokio::join!(is_second(&new), is_second(&known));
    first || second
}

/// The servers are killed by SIGKILL and restarted empty at once.
#[tokio::test]
async fn restarted_nodes_do_not_grant_a_held_lock_to_another_client() {
    let Some(nodes) = start(5, ServerOptions::default()) else { return };
    assert!(!three_of_five_forget(&nodes, RestartGuard::Strict).await, "two clients held the lock");
}

/// The control experiment: without the restart guard, two clients hold the lock at once.
#[tokio::test]
async fn without_the_guard_restarted_nodes_grant_a_held_lock() {
    let Some(nodes) = start(5, ServerOptions::default()) else { return };
    assert!(
        three_of_five_forget(&nodes, RestartGuard::Off).await,
        "the servers have kept their votes"
    );
}
