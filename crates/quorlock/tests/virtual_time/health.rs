//! A guard reports which nodes confirm its lock.

use quorlock::node::FailureKind;
use quorlock::{HoldError, LossCause};
use tokio::time::{Instant, sleep, timeout};

use crate::{MS, SECOND, TICK, TTL, assert_took, client, nodes};

#[tokio::test(start_paused = true)]
async fn health_reports_missing_confirmations_and_the_recovery() {
    let nodes = nodes::<3>();
    let client = client(&nodes);
    let started = Instant::now();
    let guard = client.acquire("orders").await.unwrap();
    let (health, mut changes) = (guard.health(), guard.health_changes());
    assert!(health.is_confirmed() && health.reasons().is_empty());
    assert_eq!(health.nodes().len(), 3);

    // The commands to nodes 1 and 2 fail without a delay, so the guard reports both nodes at the first extension.
    nodes[1].fail_with(FailureKind::OutOfMemory);
    nodes[2].stop();
    let now = changes.next().await.unwrap();
    assert_took(started.elapsed(), TTL / 3);
    assert_eq!((now.is_confirmed(), now.confirmed()), (false, 1));
    assert_eq!(now.unconfirmed().map(|node| &*node.node).collect::<Vec<_>>(), ["n1", "n2"]);
    assert_eq!(
        now.to_string(),
        "1 of 3 nodes confirms it; n1: out of memory; n2: unreachable: stopped"
    );
    assert!(guard.is_valid());

    // No quorum confirmed the extension, so the next one follows after only a tenth of the ttl.
    nodes[1].recover();
    let now = changes.next().await.unwrap();
    assert_took(started.elapsed(), TTL / 3 + TTL / 10);
    assert_eq!((now.is_confirmed(), now.confirmed()), (true, 2));
    assert_eq!(now.reasons(), "n2: unreachable: stopped");

    // Unchanged answers cause no notification.
    assert!(timeout(3 * TTL, changes.next()).await.is_err());
    nodes[2].start();
    // This extension finds that the key is gone, and restores the vote. All nodes confirm the extension after it.
    assert_eq!(changes.next().await.unwrap().reasons(), "n2: the key is not there");
    assert_eq!(changes.next().await.unwrap().to_string(), "3 of 3 nodes confirm it");
    assert!(timeout(3 * TTL, changes.next()).await.is_err());
    drop(guard);
    assert!(changes.next().await.is_none(), "the lock is given back");
}

/// The error contains the last answers of the nodes, although no caller watched them.
#[tokio::test(start_paused = true)]
async fn the_error_after_a_loss_contains_the_nodes_answers() {
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

    // If the keys disappear, the guard keeps the answers that ended the lock.
    nodes.iter().for_each(quorlock::node::MemoryNode::recover);
    let guard = client.acquire("others").await.unwrap();
    sleep(SECOND + MS).await;
    nodes.iter().for_each(|node| assert!(node.remove("others")));
    assert_eq!(guard.lost().await, LossCause::KeyGone);
    let health = guard.health();
    assert!(!health.is_confirmed() && health.confirmed() < 2);
    assert!(health.reasons().ends_with(": the key is not there"), "{health}");
    sleep(TICK).await;
}

#[tokio::test(start_paused = true)]
async fn the_figures_tell_how_many_nodes_would_vote_and_how_many_must() {
    let nodes = nodes::<3>();
    let client = client(&nodes);
    let would_vote = || client.stats().nodes.iter().filter(|node| node.would_vote).count();
    let guard = client.acquire("orders").await.unwrap();
    assert_eq!((client.stats().quorum, would_vote()), (2, 3));
    nodes[1].stop();
    nodes[2].stop();
    assert_eq!(would_vote(), 1);
    nodes[1].start();
    assert_eq!(would_vote(), 2);
    assert!(guard.is_valid());
}

#[tokio::test(start_paused = true)]
async fn an_earlier_vote_of_a_silent_node_counts_until_its_end_and_is_not_confirmed() {
    let nodes = nodes::<3>();
    let guard = client(&nodes).acquire("orders").await.unwrap();
    sleep(TTL / 10).await;
    assert_eq!((guard.votes(), guard.confirmed_votes()), (3, 3));
    nodes[2].freeze();
    sleep(TTL / 2).await;
    assert_eq!((guard.votes(), guard.confirmed_votes()), (3, 2));
    sleep(TTL).await;
    assert_eq!((guard.votes(), guard.confirmed_votes()), (2, 2));
}
