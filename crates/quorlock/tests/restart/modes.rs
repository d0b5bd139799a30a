//! The modes of the restart guard, and their cost in commands.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorlock::{Guard, LockOptions, NodeTrustState, RestartGuard};
use quorlock_servers::{Server, ServerOptions, find};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::common::{UNEXTENDED, calls, eventually, get, run, start};
use crate::{
    ADOPTION, MARKER, all_trusted, strict, trust_state, untrusted_now, with_args, without_a_wait,
};

#[tokio::test]
async fn a_durable_node_with_its_marker_votes_at_once() {
    let durable = with_args(&["--appendonly", "yes", "--appendfsync", "always"]);
    let Some(nodes) = start(1, durable) else { return };
    let build = |durable: &[&str]| strict(&nodes).durable_nodes(durable.iter().copied()).build();
    all_trusted(&build(&["a"]).unwrap()).await;
    nodes[0].restart().unwrap();
    let error = untrusted_now(&build(&[]).unwrap()).await;
    assert!(error.to_string().contains("quarantined: started "), "{error}");
    let client = build(&["a"]).unwrap();
    let guard = client
        .acquire("orders")
        .options(LockOptions::new().wait(Duration::from_secs(1)))
        .await
        .unwrap();
    assert!(guard.release().await.is_released());
    // This client must end before the server gets settings that contradict `durable_nodes`. Otherwise it would write a
    // marker after the restart and before `CONFIG SET`, and the node would be trusted.
    client.shutdown(Duration::from_secs(5)).await.unwrap();
    // `durable_nodes` declares that the server forgets nothing. The server's new settings contradict this.
    nodes[0].restart().unwrap();
    run(&nodes[0], &["CONFIG", "SET", "appendfsync", "everysec"]);
    let error = untrusted_now(&build(&["a"]).unwrap()).await.to_string();
    assert!(
        error.contains("declared to forget nothing, but it has appendfsync everysec"),
        "{error}"
    );
    run(&nodes[0], &["CONFIG", "SET", "appendfsync", "always"]);
    run(&nodes[0], &["CONFIG", "SET", "no-appendfsync-on-rewrite", "yes"]);
    let error = untrusted_now(&build(&["a"]).unwrap()).await.to_string();
    assert!(error.contains("but it has no-appendfsync-on-rewrite yes"), "{error}");
    // If the client may not read the server's settings, it relies on `durable_nodes`.
    run(&nodes[0], &["ACL", "SETUSER", "default", "-config"]);
    let guard = build(&["a"])
        .unwrap()
        .acquire("orders")
        .options(LockOptions::new().wait(Duration::from_secs(1)))
        .await;
    assert!(guard.is_ok(), "{guard:?}");
    let unknown = build(&["a", "z"]).unwrap_err().to_string();
    assert_eq!(unknown, "no node has the name \"z\"; the nodes are: a");
}

#[tokio::test]
async fn observe_reports_the_quarantine_and_does_not_enforce_it() {
    let Some(nodes) = start(3, ServerOptions::default()) else { return };
    let client = strict(&nodes).restart_guard(RestartGuard::Observe).build().unwrap();
    let guard = without_a_wait(&client).await;
    for (place, node) in nodes.iter().enumerate() {
        let is_reported =
            || matches!(trust_state(&client, place), NodeTrustState::Quarantined { .. });
        eventually("the quarantine is reported", is_reported).await;
        assert_eq!((get(node, MARKER), get(node, ADOPTION)), (None, None));
    }
    assert!(guard.release().await.is_released());
    let off = strict(&nodes).restart_guard(RestartGuard::Off).build().unwrap();
    assert!(without_a_wait(&off).await.is_valid());
    assert_eq!(trust_state(&off, 0), NodeTrustState::Unguarded);
}

/// The modes differ in which votes count, but use the same keys. If the nodes keep their data, a lock in one mode
/// excludes clients in the others.
#[tokio::test]
async fn clients_of_mixed_modes_exclude_each_other() {
    let Some(nodes) = start(3, ServerOptions::default()) else { return };
    let modes = [RestartGuard::Strict, RestartGuard::Observe, RestartGuard::Off];
    let clients = modes.map(|mode| strict(&nodes).restart_guard(mode).build().unwrap());
    all_trusted(&clients[0]).await;
    let holder: Arc<Mutex<Option<Arc<Guard>>>> = Arc::default();
    let mut workers = JoinSet::new();
    for client in clients.iter().chain(&clients) {
        let (client, holder) = (client.clone(), holder.clone());
        workers.spawn(async move {
            for _ in 0..10 {
                let guard = Arc::new(client.acquire("orders").await.unwrap());
                let before = holder.lock().unwrap().replace(guard.clone());
                assert!(before.is_none_or(|other| !other.is_valid()), "two clients hold the lock");
                sleep(Duration::from_millis(3)).await;
                let mut now = holder.lock().unwrap();
                if now.as_ref().is_some_and(|now| Arc::ptr_eq(now, &guard)) {
                    *now = None;
                }
                // Dropping the last reference releases the lock.
            }
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker.unwrap();
    }
}

/// The first lock costs one handshake and one round trip. Each further batch has one command more than without the
/// guard.
#[tokio::test]
async fn the_guard_costs_one_command_per_batch_and_one_per_connection() {
    let Some(nodes) = start(3, ServerOptions::default()) else { return };
    all_trusted(&strict(&nodes).build().unwrap()).await;
    // Each reading sends an `INFO`, which only later readings count. So the count of `INFO` is read first.
    let counts =
        |node: &Server| ["info", "hello", "set", "get"].map(|command| calls(node, command));
    let reset = || {
        for node in &nodes {
            run(node, &["CONFIG", "RESETSTAT"]);
        }
    };
    reset();
    let client = strict(&nodes).options(UNEXTENDED).build().unwrap();
    let guard = client.try_acquire("orders").await.unwrap();
    eventually("all have voted", || guard.votes() == 3).await;
    // On Redis 6, a script looks for missing rights by calling these commands. The server counts its calls too.
    let looks = u64::from(find().unwrap().version.major < 7);
    for node in &nodes {
        // The greeting reads `INFO`, the registration of the database, and the marker. The batch reads the marker again.
        let expected = [1 + looks, 1, 1 + looks, 3 + looks];
        assert_eq!(counts(node), expected, "{}", node.address());
    }
    assert!(guard.release().await.is_released());
    eventually("all have released", || client.stats().releases_owed == 0).await;
    reset();
    let guard = client.try_acquire("orders").await.unwrap();
    eventually("all have voted", || guard.votes() == 3).await;
    for node in &nodes {
        assert_eq!(counts(node), [0, 0, 1, 1], "{}", node.address());
    }
}
