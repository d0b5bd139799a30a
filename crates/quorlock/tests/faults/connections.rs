//! Connections that are slow to open, break or fall silent.

use std::time::Duration;

use quorlock::node::{FailureKind, NodeState};
use quorlock::{AcquireError, LockOptions, NodeOutcome};
use quorlock_servers::proxy::{Blow, Proxy};
use quorlock_servers::{Server, ServerOptions};
use tokio::time::{Instant, sleep, timeout};

use crate::common::{
    PATIENT, all_up, builder, calls, client, eventually, five, key_count, no_key_is_left, run,
    start, state,
};
use crate::frozen::{CONNECT_TIMEOUT, SOON};
use crate::{kind, measured};

/// The wait of a call includes the time until a connection is open.
#[tokio::test]
async fn a_call_waits_for_a_majority_to_connect_until_its_wait_ends() {
    let Some(nodes) = five() else {
        return;
    };
    for node in &nodes[..3] {
        node.pause().unwrap();
    }
    let client = builder(&nodes).connect_timeout(Duration::from_secs(20)).build().unwrap();
    let (started, wait) = (Instant::now(), Duration::from_millis(500));
    let error = client.acquire("orders").options(LockOptions::new().wait(wait)).await.unwrap_err();
    let elapsed = started.elapsed();
    assert!(elapsed >= wait && elapsed < Duration::from_secs(20), "{elapsed:?}");
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
    assert!(error.nodes()[..3].iter().all(|node| node.said == NodeOutcome::Nothing), "{error}");

    let short = builder(&nodes).connect_timeout(Duration::from_millis(200)).build().unwrap();
    let error = short.try_acquire("orders").await.unwrap_err();
    assert_eq!(kind(&error, 0), FailureKind::ConnectTimeout, "{error}");
    assert!(
        error
            .to_string()
            .contains("no connection in time: nothing within the connect timeout of 200ms"),
        "{error}"
    );
    no_key_is_left(&nodes[3..]).await;
    for node in &nodes[..3] {
        node.resume().unwrap();
    }
    all_up(&client).await;
    no_key_is_left(&nodes).await;
}

/// For the first connection to a node, a longer timeout applies, but only while that connection is being made.
#[tokio::test]
async fn a_node_that_was_down_at_first_gets_no_longer_timeout_later() {
    let Some(nodes) = start(3, ServerOptions::default()) else {
        return;
    };
    // The node accepts a connection and dies before its first reply.
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

/// While a connection is being made, commands wait. They are sent in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_never_overtakes_its_acquire_on_a_new_connection() {
    let Some(nodes) = five() else {
        return;
    };
    for round in 0..10 {
        for node in &nodes {
            node.pause().unwrap();
        }
        let client = client(&nodes);
        for place in 0..8 {
            // The timeout drops the call before the connection is open. The acquire is queued, and its release behind
            // it.
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

/// Connections are killed while releases are in flight. The releases must reach the node.
#[tokio::test]
async fn releases_reach_a_node_whose_connection_was_killed() {
    let Some(nodes) = five() else { return };
    let client =
        builder(&nodes).options(LockOptions::new().ttl(Duration::from_secs(30))).build().unwrap();
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

/// V12 of docs/algorithm.md: if a server accepts every connection and breaks it, the client retries with a back-off.
#[tokio::test]
async fn connections_that_break_repeatedly_are_retried_with_a_back_off() {
    let Some(nodes) = start(1, ServerOptions::default()) else { return };
    let client = client(&nodes);
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(1500) {
        run(&nodes[0], &["CLIENT", "KILL", "TYPE", "normal"]);
        sleep(Duration::from_millis(1)).await;
    }
    // The delays before new connections are at least 25, 50, 100, 200 and 400 ms, so only few fit into the 1.5 s.
    let made = calls(&nodes[0], "hello");
    assert!(made <= 8, "{made} connections");
    all_up(&client).await;
    assert!(client.acquire("orders").await.unwrap().is_valid());
}

/// The connection accepts a release and breaks before the server receives it. The client must send the release again.
#[tokio::test]
async fn a_release_lost_with_its_connection_is_sent_again() {
    let Some(nodes) = five() else {
        return;
    };
    let proxy = Proxy::start(&nodes[0]).await.unwrap();
    let urls = [proxy.url()].into_iter().chain(nodes[1..].iter().map(Server::url));
    let client = crate::common::unguarded()
        .nodes(urls)
        .options(
            LockOptions::new().ttl(Duration::from_secs(30)).node_timeout(Duration::from_secs(5)),
        )
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

/// A firewall may forget a connection: no reply comes, and the connection does not break.
#[tokio::test]
async fn a_silent_connection_is_replaced_and_its_acquires_are_released() {
    let Some(nodes) = five() else {
        return;
    };
    let proxy = Proxy::start(&nodes[0]).await.unwrap();
    let urls = [proxy.url()].into_iter().chain(nodes[1..].iter().map(Server::url));
    let client = crate::common::unguarded()
        .nodes(urls)
        .options(
            LockOptions::new()
                .ttl(Duration::from_secs(30))
                .node_timeout(Duration::from_millis(100)),
        )
        .build()
        .unwrap();
    all_up(&client).await;
    let guard = client.acquire("orders").options(PATIENT).await.unwrap();
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
    let guard = client.acquire("orders").options(PATIENT).await.unwrap();
    eventually("its vote counts again", || guard.votes() == 5).await;
}
