//! Two of three nodes are near and one is distant. A near one fails under a waiting call.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use quorlock_servers::{Nodes, ServerOptions};
use tokio::time::{Instant, sleep};

use crate::cells::{Place, Scene};
use crate::common::{PATIENT, eventually, server};

/// A waiting call has the lock this time after it is free, also if a node has failed.
const HANDOVER: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
enum Fault {
    Frozen,
    Dead,
    CutOff,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_call_gets_the_lock_if_a_near_node_fails_and_another_is_distant() {
    let Some(binary) = server() else { return };
    let mut cases = Vec::new();
    for fault in [Fault::Frozen, Fault::Dead, Fault::CutOff] {
        // The connection to the node is there, suspended, and being made again.
        for millis in [0, 500, 3000] {
            let nodes = Nodes::start(&binary, 3, ServerOptions::default()).unwrap();
            cases.push(waits(Arc::new(nodes), fault, Duration::from_millis(millis)));
        }
    }
    join_all(cases).await;
}

/// The lock is released this time after the fault.
async fn waits(nodes: Arc<Nodes>, fault: Fault, later: Duration) {
    let place = Arc::new(Place::new("one distant", &nodes, None, [0, 0, 150]).await);
    let scene = Scene::new(&place, "k".to_owned());
    let held = scene.near().acquire("k").await.unwrap();
    eventually("all nodes have voted", || held.votes() == 3).await;
    let client = scene.builder().build().unwrap();
    let waiting = scene.spawn(client.acquire("k").options(PATIENT).into_future());
    let asks = || client.stats().nodes.iter().all(|node| node.commands > 0);
    eventually("the call asks", || client.stats().calls_waiting == 1 && asks()).await;
    // All nodes have refused after this time, which no event shows.
    sleep(2 * scene.round_trip()).await;
    match fault {
        Fault::Frozen => nodes[0].pause().unwrap(),
        Fault::Dead => nodes[0].kill().unwrap(),
        Fault::CutOff => place.cut_off(0),
    }
    sleep(later).await;
    assert!(held.release().await.is_released(), "{fault:?}");
    let free = Instant::now();
    let guard = waiting.await.unwrap().unwrap();
    assert!(free.elapsed() <= HANDOVER, "{fault:?}, after {later:?}: {:?}", free.elapsed());
    assert!(guard.release().await.is_released(), "{fault:?}");
}
