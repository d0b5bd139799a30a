//! Nodes that are slow, silent or frozen.

use std::future::IntoFuture as _;
use std::time::Duration;

use quorlock::node::{FailureKind, MemoryNode, NodeState};
use quorlock::{AcquireError, ExtendError, LockOptions};
use tokio::time::{Instant, sleep, timeout};

use crate::{MS, SECOND, TICK, TTL, builder, client, nodes, total_keys};

/// Commands to a suspended node fail at once. Otherwise each attempt would wait for the node timeout.
#[tokio::test(start_paused = true)]
async fn a_frozen_memory_node_is_suspended_until_it_resumes() {
    let nodes = nodes::<3>();
    let client = client(&nodes);
    nodes[0].freeze();
    nodes[1].stop();
    assert!(client.try_acquire("orders").await.is_err());
    sleep(150 * MS).await;
    assert!(matches!(nodes[0].state(), NodeState::Suspended(_)));
    let started = Instant::now();
    let error = client.try_acquire("orders").await.unwrap_err();
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert_eq!(error.nodes()[0].failure().unwrap().kind(), FailureKind::Suspended);
    nodes[0].thaw();
    assert_eq!(nodes[0].state(), NodeState::Up);
    assert_eq!(client.try_acquire("orders").await.unwrap().votes(), 2);
    drop(client);
    sleep(SECOND).await;
    assert_eq!(total_keys(&nodes), 0);
}

/// A node that has never answered has no measured round trip. It must not shorten the timeout of the other nodes.
#[tokio::test(start_paused = true)]
async fn distant_nodes_get_enough_time_while_others_are_down() {
    let nodes = nodes::<5>();
    let [down, silent, near, far, farther] = &nodes;
    down.stop();
    silent.freeze();
    for (node, round_trip) in [(near, 10 * MS), (far, 80 * MS), (farther, 100 * MS)] {
        delay_answers(node, round_trip);
    }
    let client = client(&nodes);
    // The first attempts measure the round trips.
    let guard = client.acquire("orders").await.unwrap();
    assert_eq!(guard.votes(), 3);
    drop(guard);
    sleep(SECOND).await;
    for _ in 0..10 {
        let started = Instant::now();
        let guard = client.try_acquire("orders").await.unwrap();
        assert!(started.elapsed() <= 100 * MS + TICK);
        assert!(guard.release().await.is_released());
    }
}

/// A pause of a minute must not count as a round trip of a minute.
#[tokio::test(start_paused = true)]
async fn the_time_of_a_freeze_does_not_count_as_a_round_trip() {
    let nodes = nodes::<3>();
    let client = client(&nodes);
    for _ in 0..10 {
        assert!(client.acquire("orders").await.unwrap().release().await.is_released());
    }
    nodes.iter().for_each(MemoryNode::freeze);
    assert!(client.try_acquire("orders").await.is_err());
    sleep(60 * SECOND).await;
    nodes.iter().for_each(MemoryNode::thaw);
    sleep(SECOND).await;
    nodes.iter().for_each(MemoryNode::freeze);
    let started = Instant::now();
    let error = client.try_acquire("orders").await.unwrap_err();
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
    let elapsed = started.elapsed();
    assert!(elapsed <= 4 * 30 * MS, "no slower than before: {elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn memory_nodes_freeze_thaw_stop_and_fail_as_servers_do() {
    let [node] = nodes();
    let client = client(std::slice::from_ref(&node));
    let attempt = || {
        client.acquire("orders").options(LockOptions::new().wait(Duration::ZERO).auto_extend(false))
    };
    let kind = |error: AcquireError| error.nodes()[0].failure().unwrap().kind();
    assert_eq!(node.state(), NodeState::Up);

    // A failing node keeps its data, also while it is frozen.
    let guard = attempt().await.unwrap();
    node.fail_with(FailureKind::OutOfMemory);
    node.freeze();
    assert!(timeout(MS, guard.extend()).await.is_err());
    node.thaw();
    assert!(matches!(guard.extend().await, Err(ExtendError::Unconfirmed { .. })));
    node.start();
    assert!(guard.extend().await.is_err(), "what was not stopped is not started");
    node.recover();
    assert!(guard.extend().await.is_ok());
    assert!(guard.release().await.is_released());

    // A stopped node has lost its data. Neither `freeze` nor `recover` starts it.
    let guard = attempt().await.unwrap();
    node.stop();
    node.freeze();
    node.thaw();
    node.fail_with(FailureKind::Busy);
    node.recover();
    assert!(matches!(node.state(), NodeState::Down(_)));
    drop(guard);
    assert_eq!(kind(attempt().await.unwrap_err()), FailureKind::Unreachable);
    node.start();
    assert_eq!((node.state(), node.key_count()), (NodeState::Up, 0));

    // A node that is killed while frozen has executed none of the queued commands.
    sleep(TTL + SECOND).await;
    node.freeze();
    let call = tokio::spawn(attempt().options(LockOptions::new().wait(TTL)).into_future());
    sleep(MS).await;
    node.stop();
    assert_eq!(kind(call.await.unwrap().unwrap_err()), FailureKind::Unreachable);
    node.start();
    assert_eq!(node.key_count(), 0);
    // Keys expire while a node is frozen.
    node.insert("other", "value", Some(SECOND));
    node.freeze();
    assert!(node.expire_in("other", 2 * SECOND) && !node.expire_in("absent", SECOND));
    sleep(3 * SECOND).await;
    assert_eq!((node.key_count(), node.value_of("other"), node.remove("other")), (0, None, false));
}

/// If the node timeout is shorter than the round trip, no attempt can succeed. The error names both, and a ttl that is
/// too short for the round trip.
#[tokio::test(start_paused = true)]
async fn a_setting_that_is_too_short_for_the_round_trip_is_reported_with_it() {
    let options = LockOptions::new().node_timeout(5 * MS);
    let client = builder(&distant(20 * MS)).options(options).build().unwrap();
    let error =
        client.acquire("orders").options(LockOptions::new().wait(SECOND)).await.unwrap_err();
    assert!(matches!(error, AcquireError::NoQuorum(_)));
    let message = "no answer in time: answers 15.0ms too late: a round trip takes 20.0ms and the node timeout is \
                5.0ms, choose at least 80ms, or none";
    assert!(error.to_string().contains(message), "{error}");

    let client = crate::client(&distant(30 * MS));
    drop(client.acquire("orders").await.unwrap());
    let error = client.acquire("orders").options(LockOptions::new().ttl(100 * MS)).await;
    let message =
        "answers 10.0ms too late: a round trip takes 30.0ms, choose a ttl of at least 600ms";
    assert!(error.as_ref().unwrap_err().to_string().contains(message), "{error:?}");
}

/// The first round trip counts in full, because a node may be that far away. A stall of the first reply makes later calls
/// wait for a fifth of the ttl at most.
#[tokio::test(start_paused = true)]
async fn a_slow_first_round_trip_counts_in_full_but_waits_are_bounded_by_the_ttl() {
    let options = LockOptions::new().node_timeout(5 * SECOND / 2);
    let client = builder(&distant(2 * SECOND)).options(options).build().unwrap();
    drop(client.acquire("orders").await.unwrap());
    for node in client.stats().nodes {
        assert!(node.round_trip.unwrap() >= 2 * SECOND, "{:?}", node.round_trip);
    }
    assert_eq!(crate::client(&nodes::<3>()).longest_node_timeout(TTL), 50 * MS);
    let client = crate::client(&distant(2 * SECOND));
    let wait = LockOptions::new().wait(4 * SECOND);
    drop(client.acquire("orders").options(wait).await);
    assert_eq!(client.longest_node_timeout(TTL), TTL / 5);
}

/// Delays the answers of a node, not the execution.
fn delay_answers(node: &MemoryNode, round_trip: Duration) {
    node.intercept(move |_, answers| async move {
        sleep(round_trip).await;
        answers.await
    });
}

fn distant(round_trip: Duration) -> [MemoryNode; 3] {
    let nodes = nodes();
    nodes.iter().for_each(|node| delay_answers(node, round_trip));
    nodes
}
