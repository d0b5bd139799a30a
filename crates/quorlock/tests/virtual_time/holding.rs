//! Loss of a held lock.

use quorlock::{LockOptions, LossCause, Outcome};
use tokio::time::sleep;

use crate::{MS, TTL, client, nodes, total_keys};

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
