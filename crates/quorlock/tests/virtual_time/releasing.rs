//! Releases that have failed, and that the client has not yet sent again when it ends.

use std::future::IntoFuture as _;

use quorlock::LockOptions;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::{MS, SECOND, TICK, TTL, client, nodes, total_keys};

#[tokio::test(start_paused = true)]
async fn a_shutdown_counts_the_intents_that_are_not_withdrawn() {
    let nodes = nodes::<3>();
    let (one, other) = (client(&nodes), client(&nodes));
    let reader = other.acquire_shared("orders").await.unwrap();
    let waits = one.clone();
    let waits =
        tokio::spawn(
            async move { waits.acquire("orders").options(LockOptions::new().wait(TTL)).await },
        );
    sleep(SECOND).await;
    assert!(nodes[0].contains("quorlock:intent:orders"));
    nodes[0].freeze();
    let error = one.shutdown(100 * MS).await.unwrap_err();
    assert_eq!(error.owed, 1);
    assert!(waits.await.unwrap().is_err());
    assert!(reader.is_valid());
}

/// After the last handle is dropped, the driver sends failed releases again for a limited time, and then ends.
#[tokio::test(start_paused = true)]
async fn the_driver_ends_after_the_last_handle_is_dropped() {
    let nodes = nodes::<3>();
    for freeze in [false, true] {
        let client = client(&nodes);
        let guard = client.acquire("orders").await.unwrap();
        let waiting = tokio::spawn(client.acquire("orders").into_future());
        sleep(MS).await;
        if freeze {
            nodes[0].freeze();
        }
        waiting.abort();
        drop((guard, client));
        let started = Instant::now();
        while Handle::current().metrics().num_alive_tasks() > 0 {
            sleep(MS).await;
        }
        let elapsed = started.elapsed();
        if freeze {
            assert!(elapsed > SECOND && elapsed <= 31 * SECOND + TICK, "{elapsed:?}");
        } else {
            assert!(elapsed <= TICK, "nothing is owed: {elapsed:?}");
        }
        assert_eq!(total_keys(&nodes[1..]), 0);
    }
}
