//! A held lock: extended, healed, lost.

use std::time::Duration;

use quorlock::node::{FailureKind, MemoryNode};
use quorlock::{AcquireError, ExtendError, LossCause, Outcome};
use tokio::time::{Instant, sleep};

use crate::{HELD_FOR, MS, SECOND, TICK, TTL, assert_took, client, nodes, total_keys};

#[tokio::test(start_paused = true)]
async fn without_extension_a_lock_is_held_for_its_ttl_less_drift_and_margin() {
    let nodes = nodes::<5>();
    let client = client(&nodes);
    let guard = client.acquire("orders").auto_extend(false).await.unwrap();
    let started = Instant::now();
    assert_eq!(guard.remaining(), HELD_FOR);
    let until = guard.valid_until();
    assert!(until.is_some());
    sleep(HELD_FOR - MS).await;
    assert_eq!((guard.is_valid(), guard.remaining(), guard.valid_until()), (true, MS, until));
    assert_eq!(guard.lost().await, LossCause::Expired);
    assert_took(started.elapsed(), HELD_FOR);
    assert_eq!((guard.is_valid(), guard.valid_until()), (false, None));
    sleep(MS).await;
    assert_eq!(total_keys(&nodes), 0, "what is lost is given back at once");
    assert_eq!(guard.release().await.outcome, Outcome::Expired);
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_extended_every_third_of_its_ttl_for_as_long_as_max_hold_allows() {
    let nodes = nodes::<5>();
    let client = client(&nodes);
    let started = Instant::now();
    let day = Duration::from_secs(24 * 3600);
    let guard = client.acquire("orders").await.unwrap();
    sleep(TTL / 3 - TICK).await;
    assert!(guard.remaining() < HELD_FOR - TTL / 3 + 2 * TICK, "not yet extended");
    let until = guard.valid_until();
    sleep(3 * TICK).await;
    assert!(guard.remaining() > HELD_FOR - 3 * TICK, "extended");
    assert!(guard.valid_until() > until, "later than before");
    assert!(nodes.iter().all(|node| node.ttl_of("orders").unwrap() > TTL - 3 * TICK));
    sleep(day - 20 * SECOND - started.elapsed()).await;
    assert!(guard.is_valid());
    assert_eq!(guard.lost().await, LossCause::HoldLimit);
    let held = started.elapsed();
    assert!(held <= day && held > day - TTL / 2, "{held:?}");

    let short = client.acquire("short").max_hold(TTL).await.unwrap();
    let started = Instant::now();
    let limit = ExtendError::HoldLimit { resource: "short".into() };
    assert_eq!(short.extend().await, Ok(HELD_FOR), "no time has passed");
    sleep(MS).await;
    assert_eq!(short.extend().await, Err(limit));
    assert_eq!(short.lost().await, LossCause::HoldLimit);
    assert_took(started.elapsed(), HELD_FOR);
}

#[tokio::test(start_paused = true)]
async fn an_extension_that_too_few_confirm_changes_nothing() {
    let nodes = nodes::<5>();
    let client = client(&nodes);
    let guard = client.acquire("orders").auto_extend(false).await.unwrap();
    sleep(SECOND).await;
    for node in &nodes[2..] {
        node.fail_with(FailureKind::Loading);
    }
    let error = guard.extend().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "lock \"orders\" not extended, still held: nodes n0, n1 granted; nodes n2, n3, n4 \
         failed: loading data"
    );
    let ExtendError::Unconfirmed { nodes: answers, .. } = &error else { panic!("{error}") };
    assert_eq!(answers.len(), 5);
    assert_eq!(guard.remaining(), HELD_FOR - SECOND);
    assert!(nodes.iter().all(|node| node.contains("orders")), "nothing is deleted");
    nodes.iter().for_each(MemoryNode::recover);
    assert_eq!(guard.extend().await, Ok(HELD_FOR));
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_cannot_be_extended_is_lost_in_time() {
    let nodes = nodes::<5>();
    let client = client(&nodes);
    let guard = client.acquire("orders").await.unwrap();
    let started = Instant::now();
    for node in &nodes[..3] {
        node.freeze();
    }
    assert_eq!(guard.lost().await, LossCause::Expired);
    assert_took(started.elapsed(), HELD_FOR);
    sleep(MS).await;
    assert_eq!(total_keys(&nodes[3..]), 0);
    nodes.iter().for_each(MemoryNode::thaw);
    assert!(!guard.is_valid(), "what is lost stays lost, whatever is answered afterwards");
    sleep(MS).await;
    assert_eq!(total_keys(&nodes), 0);
}

#[tokio::test(start_paused = true)]
async fn votes_that_vanish_are_healed_or_end_the_lock_at_once() {
    let nodes = nodes::<5>();
    let client = client(&nodes);
    let guard = client.acquire("orders").await.unwrap();
    let token = guard.token().to_string();
    nodes[0].remove("orders");
    nodes[1].stop();
    nodes[1].start();
    sleep(TTL / 3 + 2 * TICK).await;
    assert!(nodes.iter().all(|node| node.value_of("orders").as_deref() == Some(token.as_bytes())));
    assert_eq!(guard.votes(), 5);

    let started = Instant::now();
    for node in &nodes[..2] {
        node.remove("orders");
        node.insert("orders", "taken", None);
    }
    nodes[2].remove("orders");
    assert_eq!(guard.lost().await, LossCause::KeyOverwritten);
    assert!(started.elapsed() <= TTL / 3 + 2 * TICK, "with the next extension");
    let late = guard.release().await;
    assert_eq!(late.outcome, Outcome::TakenByOther);
    assert_eq!(total_keys(&nodes), 2, "others' keys are left alone");
}

#[tokio::test(start_paused = true)]
async fn a_lost_lock_that_is_kept_is_given_back_with_its_guard() {
    let nodes = nodes::<5>();
    let client = client(&nodes);
    let guard = client.acquire("orders").keep_on_loss().await.unwrap();
    nodes[..3].iter().for_each(|node| assert!(node.remove("orders")));
    assert_eq!(guard.lost().await, LossCause::KeyGone);
    sleep(TTL / 2).await;
    assert_eq!(total_keys(&nodes), 2, "what is left is left alone");
    let refused = client.acquire("orders").wait(TTL / 10).await.unwrap_err();
    assert!(refused.is_contended(), "{refused}");
    assert_eq!(guard.release().await.outcome, Outcome::Expired);
    assert_eq!(total_keys(&nodes), 0);

    let guard = client.acquire("orders").keep_on_loss().await.unwrap();
    nodes[..3].iter().for_each(|node| assert!(node.remove("orders")));
    assert_eq!(guard.lost().await, LossCause::KeyGone);
    drop(guard);
    sleep(MS).await;
    assert_eq!(total_keys(&nodes), 0, "a guard that is dropped gives back what was kept");
}

#[tokio::test(start_paused = true)]
async fn hold_stops_the_work_when_the_lock_is_lost() {
    let nodes = nodes::<3>();
    let client = client(&nodes);
    nodes[0].stop();
    let started = Instant::now();
    let result = client.acquire("orders").hold(async |guard| {
        nodes[1].freeze();
        sleep(3600 * SECOND).await;
        guard.is_valid()
    });
    let error = result.await.unwrap_err();
    assert_took(started.elapsed(), HELD_FOR);
    assert_eq!(
        error.to_string(),
        "lock \"orders\" was lost during the work: its validity ran out before enough nodes \
         confirmed an extension; n0: unreachable: stopped; n1: not asked for now"
    );
    nodes[1].thaw();
    sleep(MS).await;
    assert_eq!(total_keys(&nodes), 0);

    let refused = client.acquire("orders").hold(async |_| ()).await;
    assert!(refused.is_ok());
    nodes[1].stop();
    let error =
        client.acquire("orders").hold(async |_| unreachable!("the work is not begun")).await;
    assert!(matches!(error, Err(quorlock::HoldError::NotAcquired(AcquireError::NoQuorum(_)))));
}
