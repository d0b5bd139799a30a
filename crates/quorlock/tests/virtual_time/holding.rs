//! Loss of a held lock.

use quorlock::{AcquireError, LockOptions, LossCause, Outcome};
use tokio::time::{Instant, sleep};

use crate::{HELD_FOR, MS, SECOND, TTL, assert_took, client, nodes, total_keys};

#[tokio::test(start_paused = true)]
async fn with_keep_on_loss_the_guard_releases_a_lost_lock() {
    let nodes = nodes::<5>();
    let client = client(&nodes);
    let guard =
        client.acquire("orders").options(LockOptions::new().keep_on_loss(true)).await.unwrap();
    nodes[..3].iter().for_each(|node| assert!(node.remove("orders")));
    assert_eq!(guard.lost().await, LossCause::KeyGone);
    sleep(TTL / 2).await;
    assert_eq!(total_keys(&nodes), 2, "what is left is left alone");
    let refused =
        client.acquire("orders").options(LockOptions::new().wait(TTL / 10)).await.unwrap_err();
    assert!(refused.is_contended(), "{refused}");
    assert_eq!(guard.release().await.outcome, Outcome::Expired);
    assert_eq!(total_keys(&nodes), 0);

    let guard =
        client.acquire("orders").options(LockOptions::new().keep_on_loss(true)).await.unwrap();
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
