//! Frozen nodes: a client suspends them, notices when they resume, and leaves no key on them.

use std::time::Duration;

use quorlock::node::{FailureKind, NodeState};
use quorlock::{AcquireError, LockOptions};
use tokio::time::Instant;

use crate::common::{PATIENCE, all_up, builder, eventually, five, no_key_is_left, state};
use crate::{NODE_TIMEOUT, kind, measured};

pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time within which the tests expect a reaction. A client probes an idle node later, so no probe causes it.
pub(crate) const SOON: Duration = Duration::from_secs(12);

#[tokio::test]
async fn a_frozen_node_is_suspended_and_fails_at_once_until_it_resumes() {
    let Some(nodes) = five() else {
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
    assert!(error.to_string().contains("suspended: no answer for "), "{error}");

    for node in &nodes[..3] {
        node.resume().unwrap();
    }
    all_up(&client).await;
    let guard = client.acquire("orders").await.unwrap();
    eventually("all nodes have given their votes", || guard.votes() == 5).await;
    assert!(guard.release().await.is_released());
    no_key_is_left(&nodes).await;
}

/// A frozen node executes queued acquires when it resumes. The client's releases must follow.
#[tokio::test]
async fn a_frozen_majority_keeps_no_key_when_it_resumes() {
    let Some(nodes) = five() else { return };
    let client = builder(&nodes)
        .options(LockOptions::new().node_timeout(Duration::from_millis(100)))
        .build()
        .unwrap();
    drop(client.acquire("orders").await.unwrap());
    for node in &nodes[..3] {
        node.pause().unwrap();
    }
    let wait = Duration::from_secs(1);
    let started = Instant::now();
    let error = client.acquire("orders").options(LockOptions::new().wait(wait)).await.unwrap_err();
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

/// The client probes an idle node from time to time.
#[tokio::test]
async fn a_probe_notices_when_an_idle_node_freezes_and_resumes() {
    let Some(nodes) = five() else {
        return;
    };
    let client = builder(&nodes)
        .options(LockOptions::new().node_timeout(Duration::from_millis(200)))
        .build()
        .unwrap();
    all_up(&client).await;
    nodes[0].pause().unwrap();
    let is_suspended = || matches!(state(&client, 0), NodeState::Suspended(_));
    eventually("the node is suspended", is_suspended).await;
    nodes[0].resume().unwrap();
    eventually("the node is up again", || state(&client, 0) == NodeState::Up).await;
    assert_eq!(client.stats().nodes[0].commands, 0, "no call has used the node");
}

#[tokio::test]
async fn a_client_that_starts_with_frozen_nodes_uses_them_once_they_resume() {
    let Some(nodes) = five() else {
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
