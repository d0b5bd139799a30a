//! The time that a call waits, and the expiry of the key for which it waits.

use std::future::IntoFuture as _;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::{MS, SECOND, assert_took, client, nodes};

#[tokio::test(start_paused = true)]
async fn a_call_ends_with_its_wait() {
    let nodes = nodes::<3>();
    let (holder, other) = (client(&nodes), client(&nodes));
    let guard = holder.acquire("orders").await.unwrap();
    for wait in [Duration::ZERO, 700 * MS, 10 * SECOND] {
        let started = Instant::now();
        let call = other.acquire("orders");
        // The default wait is ten seconds, so the call need not set it.
        let call = if wait == 10 * SECOND {
            call
        } else {
            call.options(quorlock::LockOptions::new().wait(wait))
        };
        let error = call.await.unwrap_err();
        assert_took(started.elapsed(), wait);
        assert!(error.is_contended(), "{error}");
    }
    let patient =
        other.acquire("orders").options(quorlock::LockOptions::new().wait_forever()).into_future();
    assert!(timeout(3600 * SECOND, patient).await.is_err());
    assert!(guard.is_valid());
}

/// V3 of docs/algorithm.md: the lock of a crashed holder is free as soon as its ttl has ended.
#[tokio::test(start_paused = true)]
async fn a_lock_left_behind_is_granted_as_soon_as_it_expires() {
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
