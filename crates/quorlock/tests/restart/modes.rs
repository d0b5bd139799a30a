//! The modes of the guard, and what it costs.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorlock::{Guard, LockOptions, NodeTrustState, RestartGuard};
use quorlock_servers::{Server, ServerOptions};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::common::{UNEXTENDED, calls, eventually, get, run, start};
use crate::{
    ADOPTION, MARKER, all_trusted, strict, trust_state, untrusted_now, with_args, without_a_wait,
};

#[tokio::test]
async fn a_node_that_is_said_to_last_votes_at_once_when_it_has_its_marker() {
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
    // It must not be there to mark the node while that is not contradicted yet.
    client.shutdown(Duration::from_secs(5)).await.unwrap();
    // The server's own word contradicts the operator's.
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
    // Who may not ask is not contradicted.
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
async fn observing_tells_and_does_nothing_else() {
    let Some(nodes) = start(3, ServerOptions::default()) else { return };
    let client = strict(&nodes).restart_guard(RestartGuard::Observe).build().unwrap();
    let guard = without_a_wait(&client).await;
    for (place, node) in nodes.iter().enumerate() {
        let is_told = || matches!(trust_state(&client, place), NodeTrustState::Quarantined { .. });
        eventually("it is told", is_told).await;
        assert_eq!((get(node, MARKER), get(node, ADOPTION)), (None, None));
    }
    assert!(guard.release().await.is_released());
    let off = strict(&nodes).restart_guard(RestartGuard::Off).build().unwrap();
    assert!(without_a_wait(&off).await.is_valid());
    assert_eq!(trust_state(&off, 0), NodeTrustState::Unguarded);
}

/// Modes differ in whose votes count, and agree on the keys: where nodes keep what they granted, a lock of
/// one mode is a lock for the others.
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
                assert!(before.is_none_or(|other| !other.is_valid()), "two hold it");
                sleep(Duration::from_millis(3)).await;
                let mut now = holder.lock().unwrap();
                if now.as_ref().is_some_and(|now| Arc::ptr_eq(now, &guard)) {
                    *now = None;
                }
                // The last one to drop it gives it back.
            }
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker.unwrap();
    }
}

/// The first lock costs a connection with its greeting, and one round trip in which all else is; every
/// further batch one command more than without the guard.
#[tokio::test]
async fn proof_costs_one_command_per_batch_and_one_per_connection() {
    let Some(nodes) = start(3, ServerOptions::default()) else { return };
    all_trusted(&strict(&nodes).build().unwrap()).await;
    // To ask is to send INFO, which is counted from the next time on: so that one comes first.
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
    for node in &nodes {
        // One of them for the database that the locks are in.
        assert_eq!(counts(node), [1, 1, 1, 2], "{}", node.address());
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
