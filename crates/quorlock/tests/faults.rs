//! The lock while servers die, stand still, come back, refuse, and connections break.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

mod common;

use std::time::Duration;

use common::{
    PATIENCE, all_up, builder, calls, client, eventually, five, get, key_count, no_key_is_left,
    run, start, state,
};
use quorlock::node::{FailureKind, NodeState};
use quorlock::{AcquireError, Client, NodeSaid, Outcome};
use quorlock_servers::proxy::{Blow, Proxy};
use quorlock_servers::{Listen, Nodes, Server, ServerOptions, find_or_skip};
use tokio::time::{Instant, sleep, timeout};

/// The node timeout of tests that measure against it: above all that a busy machine does in
/// between.
const NODE_TIMEOUT: Duration = Duration::from_secs(1);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Before a connection would be probed on which nothing is awaited.
const SOON: Duration = Duration::from_secs(12);

fn measured(nodes: &[Server]) -> Client {
    builder(nodes).node_timeout(NODE_TIMEOUT).connect_timeout(CONNECT_TIMEOUT).build().unwrap()
}

fn kind(error: &AcquireError, place: usize) -> FailureKind {
    error.nodes()[place]
        .failure()
        .unwrap_or_else(|| panic!("no failure of {place}: {error}"))
        .kind()
}

#[tokio::test]
async fn two_of_five_killed_cost_nothing() {
    let Some(nodes) = start_on_tcp_and_sockets("two_of_five_killed_cost_nothing") else { return };
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
async fn three_of_five_killed_are_named_with_their_reasons() {
    let Some(nodes) = five("three_of_five_killed_are_named_with_their_reasons") else { return };
    let client = measured(&nodes);
    drop(client.acquire("orders").await.unwrap());
    for node in &nodes[..3] {
        node.kill().unwrap();
    }
    let (started, wait) = (Instant::now(), Duration::from_secs(1));
    let error = client.acquire("orders").wait(wait).await.unwrap_err();
    let elapsed = started.elapsed();
    assert!(elapsed >= wait && elapsed < wait + PATIENCE, "{elapsed:?}");
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
    assert!(!error.is_contended() && !error.lacks_rights() && error.holder().is_none());
    let text = error.to_string();
    assert!(text.contains("no quorum, 3 of 5 nodes must grant: "), "{text}");
    for (place, node) in nodes.iter().enumerate().take(3) {
        assert_eq!(kind(&error, place), FailureKind::Unreachable);
        let story = format!("node {} failed: unreachable: ", node.address());
        assert!(text.contains(&story), "{text}");
    }
    assert!(error.nodes()[3..].iter().all(|node| node.failure().is_none()), "{text}");
    no_key_is_left(&nodes[3..]).await;

    let error = client.try_acquire("orders").await.unwrap_err();
    assert!(matches!(error, AcquireError::NoQuorum(_)), "at once, and the same: {error}");
}

#[tokio::test]
async fn a_node_that_comes_back_is_used_again() {
    let Some(nodes) = start_on_tcp_and_sockets("a_node_that_comes_back_is_used_again") else {
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

#[tokio::test]
async fn a_frozen_node_is_suspended_fails_at_once_and_is_resumed() {
    let Some(nodes) = five("a_frozen_node_is_suspended_fails_at_once_and_is_resumed") else {
        return;
    };
    let client = measured(&nodes);
    drop(client.acquire("orders").await.unwrap());
    no_key_is_left(&nodes).await;
    for node in &nodes[..3] {
        node.pause().unwrap();
    }

    let started = Instant::now();
    let error = client.try_acquire("orders").await.unwrap_err();
    let elapsed = started.elapsed();
    assert!(elapsed >= NODE_TIMEOUT && elapsed < CONNECT_TIMEOUT, "one node timeout: {elapsed:?}");
    for place in 0..3 {
        assert_eq!(kind(&error, place), FailureKind::Silent, "{error}");
        assert!(client.stats().nodes[place].timeouts >= 1);
    }
    for place in 0..3 {
        let is_suspended = || matches!(state(&client, place), NodeState::Suspended(_));
        eventually("the node is suspended", is_suspended).await;
    }
    assert!(started.elapsed() < SOON, "after three node timeouts: {:?}", started.elapsed());
    let started = Instant::now();
    let error = client.try_acquire("orders").await.unwrap_err();
    assert!(started.elapsed() < NODE_TIMEOUT, "it fails at once");
    for place in 0..3 {
        assert_eq!(kind(&error, place), FailureKind::Suspended, "{error}");
    }
    assert!(error.to_string().contains("suspended for being silent: no answer for "), "{error}");

    for node in &nodes[..3] {
        node.resume().unwrap();
    }
    all_up(&client).await;
    let guard = client.acquire("orders").await.unwrap();
    eventually("all nodes have given their votes", || guard.votes() == 5).await;
    assert!(guard.release().await.is_released());
    no_key_is_left(&nodes).await;
}

/// What a frozen majority did not answer has been taken back by the time it goes on.
#[tokio::test]
async fn a_frozen_majority_keeps_no_key_when_it_goes_on() {
    let Some(nodes) = five("a_frozen_majority_keeps_no_key_when_it_goes_on") else { return };
    let client = builder(&nodes).node_timeout(Duration::from_millis(100)).build().unwrap();
    drop(client.acquire("orders").await.unwrap());
    for node in &nodes[..3] {
        node.pause().unwrap();
    }
    let wait = Duration::from_secs(1);
    let started = Instant::now();
    let error = client.acquire("orders").wait(wait).await.unwrap_err();
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
    assert!(started.elapsed() < wait + PATIENCE);
    no_key_is_left(&nodes[3..]).await;
    for node in &nodes[..3] {
        node.resume().unwrap();
    }
    let releases = || client.stats().releases_owed == 0;
    eventually("every release is answered", releases).await;
    no_key_is_left(&nodes).await;
}

/// A node that is asked nothing is asked for a sign of life now and then.
#[tokio::test]
async fn the_silence_of_an_idle_node_is_noticed_by_a_probe_and_so_is_its_end() {
    let Some(nodes) = five("the_silence_of_an_idle_node_is_noticed_by_a_probe_and_so_is_its_end")
    else {
        return;
    };
    let client = builder(&nodes).node_timeout(Duration::from_millis(200)).build().unwrap();
    all_up(&client).await;
    nodes[0].pause().unwrap();
    let is_suspended = || matches!(state(&client, 0), NodeState::Suspended(_));
    eventually("the node is suspended", is_suspended).await;
    nodes[0].resume().unwrap();
    eventually("the node is up again", || state(&client, 0) == NodeState::Up).await;
    assert_eq!(client.stats().nodes[0].commands, 0, "nobody has asked it anything");
}

#[tokio::test]
async fn a_client_that_starts_with_frozen_nodes_uses_them_once_they_go_on() {
    let Some(nodes) = five("a_client_that_starts_with_frozen_nodes_uses_them_once_they_go_on")
    else {
        return;
    };
    nodes[0].pause().unwrap();
    nodes[1].pause().unwrap();
    let client = measured(&nodes);
    let started = Instant::now();
    let guard = client.acquire("orders").await.unwrap();
    assert!(started.elapsed() < CONNECT_TIMEOUT, "a minority is not waited for");
    assert_eq!(state(&client, 0), NodeState::Connecting);
    assert_eq!(guard.votes(), 3);
    nodes[0].resume().unwrap();
    nodes[1].resume().unwrap();
    eventually("votes that come late are counted too", || guard.votes() == 5).await;
    assert!(guard.release().await.is_released());
    no_key_is_left(&nodes).await;
}

/// A connection that is being made counts against the wait of a call, and no call waits longer.
#[tokio::test]
async fn a_majority_that_cannot_be_connected_to_is_waited_for_as_long_as_said() {
    let Some(nodes) = five("a_majority_that_cannot_be_connected_to_is_waited_for_as_long_as_said")
    else {
        return;
    };
    for node in &nodes[..3] {
        node.pause().unwrap();
    }
    let client = builder(&nodes).connect_timeout(Duration::from_secs(20)).build().unwrap();
    let (started, wait) = (Instant::now(), Duration::from_millis(500));
    let error = client.acquire("orders").wait(wait).await.unwrap_err();
    let elapsed = started.elapsed();
    assert!(elapsed >= wait && elapsed < Duration::from_secs(20), "{elapsed:?}");
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
    assert!(error.nodes()[..3].iter().all(|node| node.said == NodeSaid::Nothing), "{error}");

    let short = builder(&nodes).connect_timeout(Duration::from_millis(200)).build().unwrap();
    let error = short.try_acquire("orders").await.unwrap_err();
    assert_eq!(kind(&error, 0), FailureKind::ConnectTimeout, "{error}");
    assert!(error.to_string().contains("no connection in time: nothing within 200ms"), "{error}");
    no_key_is_left(&nodes[3..]).await;
    for node in &nodes[..3] {
        node.resume().unwrap();
    }
    all_up(&client).await;
    no_key_is_left(&nodes).await;
}

/// The time that a connection may take is given to a node only while one is being made.
#[tokio::test]
async fn a_node_that_was_down_at_first_gets_no_more_time_than_others_later() {
    let Some(nodes) = start(
        "a_node_that_was_down_at_first_gets_no_more_time_than_others_later",
        3,
        ServerOptions::default(),
    ) else {
        return;
    };
    // It takes a connection, and dies before it has said a word on it.
    nodes[0].pause().unwrap();
    let client = measured(&nodes);
    let guard = client.acquire("orders").await.unwrap();
    assert_eq!((guard.votes(), state(&client, 0)), (2, NodeState::Connecting));
    nodes[0].kill().unwrap();
    let is_down = || matches!(state(&client, 0), NodeState::Down(_));
    eventually("the node is known to be down", is_down).await;
    drop(guard);

    nodes[0].restart().unwrap();
    all_up(&client).await;
    no_key_is_left(&nodes).await;
    nodes[0].pause().unwrap();
    nodes[1].pause().unwrap();
    let started = Instant::now();
    let error = client.try_acquire("orders").await.unwrap_err();
    assert!(started.elapsed() < CONNECT_TIMEOUT, "{:?}: {error}", started.elapsed());
    assert_eq!(kind(&error, 0), FailureKind::Silent);
}

/// While a connection is being made commands wait; once it is there they go out in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_never_overtakes_its_acquire_on_a_new_connection() {
    let Some(nodes) = five("a_release_never_overtakes_its_acquire_on_a_new_connection") else {
        return;
    };
    for round in 0..10 {
        for node in &nodes {
            node.pause().unwrap();
        }
        let client = client(&nodes);
        for place in 0..8 {
            // Given up before the connection is there: an acquire waits, and a release behind it.
            let call = client.acquire(format!("lock {round} {place}"));
            assert!(timeout(Duration::from_millis(5), call).await.is_err());
        }
        for node in &nodes {
            node.resume().unwrap();
        }
        all_up(&client).await;
        eventually("every release is answered", || client.stats().releases_owed == 0).await;
        for node in &nodes {
            assert_eq!(key_count(node), 0, "round {round}: a key outlives its release");
        }
    }
}

/// Connections are killed while releases are on their way: they reach the node all the same.
#[tokio::test]
async fn releases_reach_a_node_whose_connection_was_killed() {
    let Some(nodes) = five("releases_reach_a_node_whose_connection_was_killed") else { return };
    let client = builder(&nodes).ttl(Duration::from_secs(30)).build().unwrap();
    for round in 0..50 {
        let guard = client.acquire("orders").await.unwrap();
        let node = &nodes[round % 5];
        if round % 2 == 0 {
            run(node, &["CLIENT", "KILL", "TYPE", "normal"]);
            drop(guard);
        } else {
            drop(guard);
            tokio::task::yield_now().await;
            run(node, &["CLIENT", "KILL", "TYPE", "normal"]);
        }
    }
    no_key_is_left(&nodes).await;
    all_up(&client).await;
    eventually("nothing is owed", || client.stats().releases_owed == 0).await;
}

/// V12: whoever takes every connection and breaks it is not asked as fast as we can.
#[tokio::test]
async fn connections_that_break_again_and_again_are_made_less_and_less_often() {
    const TEST: &str = "connections_that_break_again_and_again_are_made_less_and_less_often";
    let Some(nodes) = start(TEST, 1, ServerOptions::default()) else { return };
    let client = client(&nodes);
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(1500) {
        run(&nodes[0], &["CLIENT", "KILL", "TYPE", "normal"]);
        sleep(Duration::from_millis(1)).await;
    }
    // After at least 25, 50, 100, 200 and 400 milliseconds.
    let made = calls(&nodes[0], "hello");
    assert!(made <= 8, "{made} connections");
    all_up(&client).await;
    assert!(client.acquire("orders").await.unwrap().is_valid());
}

/// The release is taken from us and never arrives; the connection breaks. It is owed, and sent
/// again.
#[tokio::test]
async fn a_release_that_was_lost_with_its_connection_is_sent_again() {
    let Some(nodes) = five("a_release_that_was_lost_with_its_connection_is_sent_again") else {
        return;
    };
    let proxy = Proxy::start(&nodes[0]).await.unwrap();
    let urls = [proxy.url()].into_iter().chain(nodes[1..].iter().map(Server::url));
    let client = common::unguarded()
        .nodes(urls)
        .ttl(Duration::from_secs(30))
        .node_timeout(Duration::from_secs(5))
        .build()
        .unwrap();
    for _ in 0..5 {
        all_up(&client).await;
        let guard = client.acquire("orders").await.unwrap();
        eventually("all nodes have given their votes", || guard.votes() == 5).await;
        proxy.strike(Blow::Swallow);
        let before = client.stats().nodes[0].commands;
        drop(guard);
        eventually("the release is sent", || client.stats().nodes[0].commands > before).await;
        no_key_is_left(&nodes[1..]).await;
        sleep(Duration::from_millis(20)).await;
        assert_eq!(key_count(&nodes[0]), 1, "it never arrived");
        assert_eq!(client.stats().releases_owed, 1);
        proxy.strike(Blow::Close);
        no_key_is_left(&nodes[..1]).await;
        eventually("nothing is owed", || client.stats().releases_owed == 0).await;
    }
}

/// As by a firewall that has forgotten a connection: nothing comes back, and nothing breaks.
#[tokio::test]
async fn a_silent_connection_is_replaced_and_what_it_took_is_taken_back() {
    let Some(nodes) = five("a_silent_connection_is_replaced_and_what_it_took_is_taken_back") else {
        return;
    };
    let proxy = Proxy::start(&nodes[0]).await.unwrap();
    let urls = [proxy.url()].into_iter().chain(nodes[1..].iter().map(Server::url));
    let client = common::unguarded()
        .nodes(urls)
        .ttl(Duration::from_secs(30))
        .node_timeout(Duration::from_millis(100))
        .build()
        .unwrap();
    all_up(&client).await;
    let guard = client.acquire("orders").wait(PATIENCE).await.unwrap();
    eventually("all nodes have given their votes", || guard.votes() == 5).await;
    let connections = || calls(&nodes[0], "hello");
    let before = connections();
    proxy.strike(Blow::Swallow);
    let started = Instant::now();
    drop(guard);
    let suspended = || matches!(state(&client, 0), NodeState::Suspended(_));
    eventually("the node is suspended", suspended).await;
    eventually("the node is up again", || state(&client, 0) == NodeState::Up).await;
    let elapsed = started.elapsed();
    assert!(elapsed >= Duration::from_secs(2) && elapsed < SOON, "two seconds are its time");
    assert_eq!(connections(), before + 1, "on a new connection");
    no_key_is_left(&nodes).await;
    let guard = client.acquire("orders").wait(PATIENCE).await.unwrap();
    eventually("its vote counts again", || guard.votes() == 5).await;
}

/// V10: what a minority says that is neither yes nor no never fails an operation; a majority of it
/// is told with its reasons.
#[tokio::test]
async fn nodes_that_refuse_to_write_are_told_apart() {
    let Some(nodes) = five("nodes_that_refuse_to_write_are_told_apart") else { return };
    let client = client(&nodes);
    drop(client.acquire("orders").await.unwrap());
    no_key_is_left(&nodes).await;

    // A replica of nobody in particular.
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
        "failed: is a read-only replica: READONLY ",
        "failed: is out of memory: OOM ",
        "failed: answered with an error: NOREPLICAS ",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!error.lacks_rights() && !error.is_contended());
    no_key_is_left(&nodes).await;

    run(&nodes[0], &["CONFIG", "SET", "replica-serve-stale-data", "no"]);
    let seen = client.inspect("orders").await.unwrap();
    assert_eq!(seen.nodes[0].failure().unwrap().kind(), FailureKind::MasterDown);

    run(&nodes[0], &["REPLICAOF", "NO", "ONE"]);
    let guard = client.acquire("orders").await.unwrap();
    assert!(guard.votes() >= 3, "a promoted node votes again");
}

/// A lock that was acquired before its node ran full can still be extended and given back.
#[tokio::test]
async fn a_full_node_still_extends_and_releases() {
    let Some(nodes) = five("a_full_node_still_extends_and_releases") else { return };
    let client = client(&nodes);
    let guard = client.acquire("orders").await.unwrap();
    eventually("all nodes have given their votes", || guard.votes() == 5).await;
    for node in &nodes {
        run(node, &["CONFIG", "SET", "maxmemory", "1"]);
        run(node, &["SCRIPT", "FLUSH"]);
    }
    guard.extend().await.unwrap();
    assert!(guard.release().await.is_released());
    no_key_is_left(&nodes).await;
}

#[tokio::test]
async fn a_server_that_has_forgotten_the_scripts_is_told_them_again() {
    let Some(nodes) = five("a_server_that_has_forgotten_the_scripts_is_told_them_again") else {
        return;
    };
    let client = client(&nodes);
    for _ in 0..3 {
        let guard = client.acquire("orders").await.unwrap();
        eventually("all nodes have given their votes", || guard.votes() == 5).await;
        for node in &nodes {
            run(node, &["SCRIPT", "FLUSH"]);
        }
        guard.extend().await.unwrap();
        for node in &nodes {
            run(node, &["SCRIPT", "FLUSH"]);
        }
        let released = guard.release().await;
        assert_eq!(released.outcome, Outcome::Released, "{released:?}");
        no_key_is_left(&nodes).await;
    }
    // Where a command of the server's own gives back, only the extensions are scripts.
    let scripts = if nodes[0].binary().has_delifeq() { 3 } else { 6 };
    assert!(calls(&nodes[0], "eval") >= scripts, "the text was sent when the digest was unknown");
}

/// Many locks at a time on few connections, some of them given up half way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_locks_at_a_time() {
    let Some(nodes) = five("a_thousand_locks_at_a_time") else { return };
    let client = client(&nodes);
    let mut callers = tokio::task::JoinSet::new();
    for place in 0..1000 {
        let call = client.acquire(format!("lock {place}"));
        callers.spawn(async move {
            if place % 4 == 0 {
                // Given up at once, or after it was granted.
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
async fn the_figures_tell_what_happens() {
    let Some(nodes) = five("the_figures_tell_what_happens") else { return };
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

/// Five servers on unix sockets, and five on TCP ports.
fn start_on_tcp_and_sockets(test: &str) -> Option<[Nodes; 2]> {
    let binary = find_or_skip(test)?;
    Some([Listen::UnixSocket, Listen::Tcp].map(|listen| {
        let options = ServerOptions { listen, ..ServerOptions::default() };
        Nodes::start(&binary, 5, options).unwrap()
    }))
}
