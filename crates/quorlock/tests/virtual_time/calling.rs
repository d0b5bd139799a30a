//! Calls: their order, their waits, their attempts.

use std::future::IntoFuture as _;
use std::time::Duration;

use quorlock::node::{FailureKind, MemoryNode};
use quorlock::{Delay, HolderKind, Retry};
use tokio::time::{Instant, sleep, timeout};

use crate::{MS, SECOND, TICK, assert_took, builder, client, nodes};

#[tokio::test(start_paused = true)]
async fn callers_of_one_process_get_the_lock_in_the_order_in_which_they_came() {
    let nodes = nodes::<3>();
    let client = client(&nodes);
    let guard = client.acquire("orders").await.unwrap();
    let (order, mut seen) = tokio::sync::mpsc::unbounded_channel();
    for place in 0..10 {
        let (call, order) = (client.acquire("orders").wait(60 * SECOND), order.clone());
        tokio::spawn(async move {
            let _guard = call.await.unwrap();
            order.send(place).unwrap();
            sleep(SECOND).await;
        });
        sleep(MS).await;
    }
    assert_eq!(client.stats().calls_waiting, 10);
    assert_eq!(client.stats().nodes[0].commands, 1, "nobody else has asked the nodes");
    let error = client.try_acquire("orders").await.unwrap_err();
    assert_eq!(error.holder().unwrap().kind, HolderKind::ThisProcess);
    assert_eq!(
        error.to_string(),
        "lock \"orders\" not acquired: held or wanted by another caller of this process"
    );
    assert!(error.is_contended() && error.nodes().is_empty());
    let started = Instant::now();
    drop(guard);
    for place in 0..10 {
        assert_eq!(seen.recv().await, Some(place));
    }
    let elapsed = started.elapsed();
    assert!(
        elapsed < 9 * SECOND + 20 * TICK,
        "nobody waits longer than for the others: {elapsed:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn there_is_no_reentrancy() {
    let nodes = nodes::<3>();
    let client = client(&nodes);
    let guard = client.acquire("orders").await.unwrap();
    let started = Instant::now();
    let error = client.acquire("orders").wait(3 * SECOND).await.unwrap_err();
    assert_took(started.elapsed(), 3 * SECOND);
    assert_eq!(
        error.to_string().split(" in ").next(),
        Some("lock \"orders\" not acquired"),
        "{error}"
    );
    assert!(error.is_contended() && guard.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_when_its_wait_does() {
    let nodes = nodes::<3>();
    let (holder, other) = (client(&nodes), client(&nodes));
    let guard = holder.acquire("orders").await.unwrap();
    for wait in [Duration::ZERO, 700 * MS, 10 * SECOND] {
        let started = Instant::now();
        let call = other.acquire("orders");
        // Ten seconds are the default.
        let call = if wait == 10 * SECOND { call } else { call.wait(wait) };
        let error = call.await.unwrap_err();
        assert_took(started.elapsed(), wait);
        assert!(error.is_contended(), "{error}");
    }
    let patient = other.acquire("orders").wait_forever().into_future();
    assert!(timeout(3600 * SECOND, patient).await.is_err());
    assert!(guard.is_valid());
}

/// V3: a crashed holder blocks others for its ttl, and not much longer.
#[tokio::test(start_paused = true)]
async fn a_lock_left_behind_is_had_right_after_it_expires() {
    let nodes = nodes::<5>();
    let client = client(&nodes);
    for node in &nodes {
        node.insert("orders", "left behind", Some(7 * SECOND));
    }
    let started = Instant::now();
    let error = client.try_acquire("orders").await.unwrap_err();
    assert_eq!(error.retry_after(), Some(7 * SECOND));
    let guard = client.acquire("orders").await.unwrap();
    let elapsed = started.elapsed();
    assert!(elapsed >= 7 * SECOND && elapsed < 7 * SECOND + 5 * MS, "{elapsed:?}");
    assert_eq!(guard.votes(), 5);
}

#[tokio::test(start_paused = true)]
async fn attempts_follow_each_other_as_configured() {
    let nodes = nodes::<3>();
    let (holder, other) = (client(&nodes), client(&nodes));
    let _guard = holder.acquire("orders").await.unwrap();
    let delay = Delay::Between { min: 200 * MS, max: 200 * MS };
    let retry = Retry { delay, attempts_max: Some(4) };
    let started = Instant::now();
    let error = other.acquire("orders").retry(retry).await.unwrap_err();
    assert!(error.to_string().contains("not acquired after 4 attempts in 60"), "{error}");
    let elapsed = started.elapsed();
    assert!(elapsed >= 600 * MS && elapsed < 600 * MS + 4 * TICK, "{elapsed:?}");
    // Three nodes, four times: an acquire, a release, and two of them a look, for a no is a no at
    // the second.
    let commands = other.stats().nodes.iter().map(|node| node.commands).sum::<u64>();
    assert!((32..=36).contains(&commands), "{commands}");
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_told_why() {
    let nodes = nodes::<3>();
    let (holder, other) = (builder(&nodes).owner("api-7").build().unwrap(), client(&nodes));
    let guard = holder.acquire("orders").await.unwrap();
    let (told, mut seen) = tokio::sync::watch::channel(None);
    let call = tokio::spawn(other.acquire("orders").progress(told).into_future());
    for attempts in 1..3 {
        seen.changed().await.unwrap();
        let waiting = seen.borrow_and_update().clone().unwrap();
        assert_eq!((waiting.attempts, waiting.contended), (attempts, true));
        assert_eq!(waiting.holder().unwrap().kind, HolderKind::Owner("api-7".to_owned()));
        // The nodes tell that the lock has changed, though not to whose advantage.
        guard.extend().await.unwrap();
    }
    for node in &nodes[1..] {
        node.stop();
    }
    drop(guard);
    let waiting = seen.wait_for(|told| told.as_ref().is_some_and(|told| !told.contended)).await;
    let waiting = waiting.unwrap().clone().unwrap();
    assert_eq!(waiting.nodes[1].failure().unwrap().kind(), FailureKind::Unreachable);
    assert_eq!(waiting.holder(), None);
    nodes.iter().for_each(MemoryNode::start);
    assert!(call.await.unwrap().unwrap().is_valid());
}
