//! Nodes that are slow, silent or frozen.

use std::future::IntoFuture as _;
use std::time::Duration;

use quorlock::node::{Answers, Batch, BoxFuture, FailureKind, MemoryNode, Node, NodeState};
use quorlock::{AcquireError, Client, Clock, ExtendError, LockOptions};
use tokio::time::{Instant, sleep, timeout};

use crate::{MS, SECOND, TICK, TTL, client, nodes, total_keys};

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
    let [down, silent, near, far, farther] = nodes();
    down.stop();
    silent.freeze();
    let round_trips = [(near, 10 * MS), (far, 80 * MS), (farther, 100 * MS)];
    let distant = round_trips.map(|(node, round_trip)| Delayed { node, round_trip });
    let client = Client::builder()
        .custom_nodes([down, silent])
        .custom_nodes(distant)
        .clock(Clock::Tokio)
        .build()
        .unwrap();
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

/// If the node timeout is shorter than the round trip, no attempt can succeed. The error names both.
#[tokio::test(start_paused = true)]
async fn a_node_timeout_below_the_round_trip_is_reported_with_both() {
    let slow = nodes::<3>().map(|node| Delayed { node, round_trip: 20 * MS });
    let builder = Client::builder().custom_nodes(slow).clock(Clock::Tokio);
    let client = builder.options(LockOptions::new().node_timeout(5 * MS)).build().unwrap();
    let error =
        client.acquire("orders").options(LockOptions::new().wait(SECOND)).await.unwrap_err();
    assert!(matches!(error, AcquireError::NoQuorum(_)));
    let told = "; the node timeout of 5.0ms is shorter than the usual 20.0ms of node n0: choose a longer \
                one, or none, because it then follows the round trip; nodes n0, n1, n2 ";
    assert!(error.to_string().contains(told), "the remedy comes first: {error}");
}

/// A stall of the first reply must not count as the round trip of the node.
#[tokio::test(start_paused = true)]
async fn a_slow_first_round_trip_counts_for_half_a_second_at_most() {
    let slow = nodes::<3>().map(|node| Delayed { node, round_trip: 2 * SECOND });
    let builder = Client::builder().custom_nodes(slow).clock(Clock::Tokio);
    let client = builder.options(LockOptions::new().node_timeout(5 * SECOND / 2)).build().unwrap();
    drop(client.acquire("orders").await.unwrap());
    for node in client.stats().nodes {
        assert!(node.round_trip.unwrap() <= SECOND / 2, "{:?}", node.round_trip);
    }
}

/// A node that delays its answers, not the execution.
#[derive(Debug)]
pub(crate) struct Delayed {
    pub(crate) node: MemoryNode,
    pub(crate) round_trip: Duration,
}

impl Node for Delayed {
    fn name(&self) -> &str {
        self.node.name()
    }

    fn execute(&self, batch: Batch) -> BoxFuture<Answers> {
        let (answers, round_trip) = (self.node.execute(batch), self.round_trip);
        Box::pin(async move {
            sleep(round_trip).await;
            answers.await
        })
    }
}
