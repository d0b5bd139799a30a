//! A held lock is extended, restored or lost.

use std::time::Duration;

use quorlock::{ExtendError, LockOptions, LossCause, NodeReleased, Outcome};
use quorlock_servers::Nodes;
use tokio::time::Instant;

use crate::common::{
    PATIENCE, all_up, builder, client, eventually, five, get, no_key_is_left, pttl, run,
};

#[tokio::test]
async fn a_lock_whose_keys_are_gone_from_a_majority_is_lost_at_once() {
    let Some(nodes) = five() else {
        return;
    };
    let client = client(&nodes);
    let guard = client.acquire("orders").await.unwrap();
    eventually("all nodes have given their votes", || guard.votes() == 5).await;
    for node in &nodes[..3] {
        run(node, &["DEL", "orders"]);
    }
    assert!(guard.is_valid(), "the client cannot know yet");
    let error = guard.extend().await.unwrap_err();
    let cause = LossCause::KeyGone;
    assert_eq!(error, ExtendError::Lost { resource: "orders".into(), cause });
    assert!(!guard.is_valid());
    assert_eq!((guard.remaining(), guard.votes()), (Duration::ZERO, 0));
    assert_eq!(guard.lost().await, cause);
    assert_eq!(guard.extend().await.unwrap_err().to_string(), error.to_string());
    // After the loss, the client releases the remaining keys although the guard still exists.
    no_key_is_left(&nodes).await;
    let next = client.acquire("orders").await.unwrap();
    assert_eq!(guard.release().await.outcome, Outcome::TakenByOther);
    assert!(next.is_valid());
    assert!(next.extend().await.is_ok(), "the late release has deleted nothing");
}

#[tokio::test]
async fn the_next_extension_restores_a_lost_key() {
    let Some(nodes) = five() else {
        return;
    };
    let client = client(&nodes);
    let guard = client.acquire("orders").await.unwrap();
    eventually("all nodes have given their votes", || guard.votes() == 5).await;
    run(&nodes[0], &["FLUSHALL"]);
    nodes[1].restart().unwrap();
    all_up(&client).await;
    let token = guard.token().to_string();
    eventually("an extension needs three nodes only", || guard.votes() >= 3).await;
    for _ in 0..3 {
        guard.extend().await.unwrap();
    }
    for node in &nodes {
        eventually("the key is restored", || get(node, "orders").as_deref() == Some(&token)).await;
        assert!(pttl(node, "orders") > 0);
    }
    eventually("its vote counts again", || guard.votes() == 5).await;
    assert!(guard.release().await.is_released());
    no_key_is_left(&nodes).await;
}

#[tokio::test]
async fn a_release_after_expiry_reports_it_and_deletes_nothing() {
    let Some(nodes) = five() else { return };
    let short = builder(&nodes)
        .options(
            LockOptions::new()
                .ttl(Duration::from_millis(400))
                .node_timeout(Duration::from_millis(100))
                .auto_extend(false),
        )
        .build()
        .unwrap();
    let other = client(&nodes);
    let guard = short.acquire("orders").await.unwrap();
    assert_eq!(guard.lost().await, LossCause::Expired);
    let expired = guard.release().await;
    assert_eq!(expired.outcome, Outcome::Expired, "{expired:?}");
    assert!(!expired.is_released());

    let guard = short.acquire("orders").await.unwrap();
    let theirs = other.acquire("orders").await.unwrap();
    eventually("all nodes have given their votes", || theirs.votes() == 5).await;
    assert!(!guard.is_valid());
    let late = guard.release().await;
    assert_eq!(late.outcome, Outcome::TakenByOther, "{late:?}");
    assert!(late.nodes().any(|(_, said)| *said == NodeReleased::Other));
    for node in &nodes {
        assert_eq!(get(node, "orders"), Some(theirs.token().to_string()));
    }
    assert!(theirs.is_valid());
    assert!(theirs.release().await.is_released());
}

#[tokio::test]
async fn a_lock_is_extended_automatically_but_not_past_max_hold() {
    let Some(nodes) = five() else {
        return;
    };
    let ttl = Duration::from_secs(1);
    let client =
        builder(&nodes).options(LockOptions::new().ttl(ttl).node_timeout(ttl / 4)).build().unwrap();
    let max_hold = Duration::from_secs(3);
    let started = Instant::now();
    let guard =
        client.acquire("orders").options(LockOptions::new().max_hold(max_hold)).await.unwrap();
    let cause = guard.lost().await;
    let held = started.elapsed();
    assert_eq!(cause, LossCause::HoldLimit);
    assert!(held > 2 * ttl, "it was extended: {held:?}");
    assert!(held < max_hold + PATIENCE, "{held:?}");
    assert!(!guard.is_valid());
    no_key_is_left(&nodes).await;
    let expected = ExtendError::Lost { resource: "orders".into(), cause };
    assert_eq!(guard.extend().await, Err(expected));

    let guard = client.acquire("orders").options(LockOptions::new().max_hold(ttl)).await.unwrap();
    let expected = ExtendError::HoldLimit { resource: "orders".into() };
    assert_eq!(guard.extend().await, Err(expected), "the ttl from now reaches past it");
    assert!(guard.is_valid(), "the lock is held as long as before");
}

/// A minority does not answer for three ttls. The lock must stay valid.
#[tokio::test]
async fn automatic_extension_survives_a_frozen_minority() {
    let Some(nodes) = five() else { return };
    let ttl = Duration::from_secs(2);
    let client =
        builder(&nodes).options(LockOptions::new().ttl(ttl).node_timeout(ttl / 4)).build().unwrap();
    let guard = client.acquire("orders").await.unwrap();
    freeze(&nodes, 2);
    let until = Instant::now() + 3 * ttl;
    while Instant::now() < until {
        assert_eq!(guard.loss_cause(), None);
        assert!(guard.is_valid());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(guard.release().await.is_released());
    thaw(&nodes);
    no_key_is_left(&nodes).await;
}

/// Without answers from a majority, the lock ends before its keys expire.
#[tokio::test]
async fn a_frozen_majority_ends_the_lock_before_its_validity() {
    let Some(nodes) = five() else { return };
    let ttl = Duration::from_secs(2);
    let client =
        builder(&nodes).options(LockOptions::new().ttl(ttl).node_timeout(ttl / 8)).build().unwrap();
    let guard = client.acquire("orders").await.unwrap();
    freeze(&nodes, 3);
    let frozen_at = Instant::now();
    let error = guard.extend().await.unwrap_err();
    assert!(matches!(error, ExtendError::Unconfirmed { .. }), "{error}");
    assert!(guard.is_valid(), "what is unknown changes nothing: {error}");
    assert_eq!(guard.lost().await, LossCause::Expired);
    assert!(frozen_at.elapsed() < ttl + PATIENCE);
    let released = guard.release().await;
    assert_eq!(released.outcome, Outcome::Expired, "{released:?}");
    thaw(&nodes);
    no_key_is_left(&nodes).await;
}

#[tokio::test]
async fn hold_does_its_work_under_the_lock_and_stops_it_when_the_lock_is_lost() {
    let Some(nodes) = five() else {
        return;
    };
    let client = client(&nodes);
    let sum = client.acquire("orders").hold(async |guard| {
        assert!(guard.is_valid());
        eventually("all nodes have given their votes", || guard.votes() == 5).await;
        assert_eq!(get(&nodes[0], "orders"), Some(guard.token().to_string()));
        1 + 1
    });
    assert_eq!(sum.await.unwrap(), 2);
    no_key_is_left(&nodes).await;

    let mut stopped_at = 0;
    let result = client.acquire("orders").hold(async |guard| {
        eventually("all nodes have given their votes", || guard.votes() == 5).await;
        for node in &nodes[..3] {
            run(node, &["DEL", "orders"]);
        }
        stopped_at = 1;
        let _ = guard.extend().await;
        // `hold` notices the loss and does not poll this future again.
        std::future::pending::<()>().await;
        stopped_at = 2;
    });
    let error = result.await.unwrap_err();
    let told = error.to_string();
    let cause = "lock \"orders\" was lost during the work: its key is gone from so many nodes that no quorum is left; ";
    assert!(told.starts_with(cause) && told.ends_with(": the key is not there"), "{told}");
    assert_eq!(stopped_at, 1);
    no_key_is_left(&nodes).await;
}

fn freeze(nodes: &Nodes, count: usize) {
    nodes.iter().take(count).for_each(|node| node.pause().unwrap());
}

fn thaw(nodes: &Nodes) {
    nodes.iter().for_each(|node| node.resume().unwrap());
}
