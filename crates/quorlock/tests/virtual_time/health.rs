//! How a guard learns that nodes do not confirm its lock.

use quorlock::node::FailureKind;
use quorlock::{HoldError, LossCause};
use tokio::time::{Instant, sleep, timeout};

use crate::{MS, SECOND, TICK, TTL, assert_took, client, nodes};

#[tokio::test(start_paused = true)]
async fn a_loss_announces_itself_and_so_does_the_recovery() {
    let nodes = nodes::<3>();
    let client = client(&nodes);
    let started = Instant::now();
    let guard = client.acquire("orders").await.unwrap();
    let mut health = guard.health();
    assert!(health.borrow().is_confirmed() && health.borrow().reasons().is_empty());
    assert_eq!(health.borrow().nodes().len(), 3);

    // Refused at once: the line comes with the first extension.
    nodes[1].fail_with(FailureKind::OutOfMemory);
    nodes[2].stop();
    health.changed().await.unwrap();
    assert_took(started.elapsed(), TTL / 3);
    let now = health.borrow_and_update().clone();
    assert_eq!((now.is_confirmed(), now.confirmed()), (false, 1));
    assert_eq!(now.unconfirmed().map(|node| &*node.node).collect::<Vec<_>>(), ["n1", "n2"]);
    assert_eq!(
        now.to_string(),
        "1 of 3 nodes confirms it; n1: out of memory; n2: unreachable: stopped"
    );
    assert!(guard.is_valid());

    // The next one is a tenth of the ttl later.
    nodes[1].recover();
    health.changed().await.unwrap();
    assert_took(started.elapsed(), TTL / 3 + TTL / 10);
    let now = health.borrow_and_update().clone();
    assert_eq!((now.is_confirmed(), now.confirmed()), (true, 2));
    assert_eq!(now.reasons(), "n2: unreachable: stopped");

    // The same answers again are no news.
    assert!(timeout(3 * TTL, health.changed()).await.is_err());
    nodes[2].start();
    health.changed().await.unwrap();
    // It is healed now, and confirms the next extension.
    assert_eq!(health.borrow_and_update().reasons(), "n2: the key is gone");
    health.changed().await.unwrap();
    assert_eq!(health.borrow_and_update().to_string(), "3 of 3 nodes confirm it");
    assert!(timeout(3 * TTL, health.changed()).await.is_err());
    drop(guard);
    assert!(health.changed().await.is_err(), "the lock is given back");
}

/// Whoever asks only after the loss learns what the nodes said.
#[tokio::test(start_paused = true)]
async fn what_the_nodes_said_is_in_the_error_of_the_work() {
    let nodes = nodes::<3>();
    let client = client(&nodes);
    let error = client.acquire("orders").hold(async |_| {
        nodes[0].fail_with(FailureKind::CannotPersist);
        nodes[1].fail_with(FailureKind::CannotPersist);
        sleep(TTL).await;
    });
    let error = error.await.unwrap_err();
    let text = error.to_string();
    let end = "confirmed an extension; n0, n1: cannot persist, writes refused";
    assert!(text.ends_with(end), "{text}");
    let HoldError::Lost { nodes: answers, .. } = error else { panic!("{error}") };
    assert_eq!(answers.len(), 2);

    // Keys that vanish end the lock with the answers.
    nodes.iter().for_each(quorlock::node::MemoryNode::recover);
    let guard = client.acquire("others").await.unwrap();
    sleep(SECOND + MS).await;
    nodes.iter().for_each(|node| assert!(node.remove("others")));
    assert_eq!(guard.lost().await, LossCause::KeyGone);
    let health = guard.health().borrow().clone();
    assert!(!health.is_confirmed() && health.confirmed() < 2);
    assert!(health.reasons().ends_with(": the key is gone"), "{health}");
    sleep(TICK).await;
}
