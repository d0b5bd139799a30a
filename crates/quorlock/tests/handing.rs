//! Release by the server's own command (`DELIFEQ`), by script on servers without it, and the hand-over within one
//! process.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

mod common;

use std::time::Duration;

use common::{all_servers, all_up, builder, calls, client, eventually, get, no_key_is_left, run};
use quorlock::{LockOptions, LossCause, NodeReleased, Outcome};
use quorlock_servers::{Nodes, Server, ServerBinary, ServerOptions};

fn three(binary: &ServerBinary) -> Nodes {
    Nodes::start(binary, 3, ServerOptions::default()).unwrap()
}

fn forget_what_was_said(nodes: &[Server]) {
    for node in nodes {
        run(node, &["CONFIG", "RESETSTAT"]);
    }
}

/// The number of times that the node has executed each command that can release a lock.
fn releases(node: &Server) -> [u64; 3] {
    ["delifeq", "evalsha", "eval"].map(|command| calls(node, command))
}

#[tokio::test]
async fn a_dropped_guard_is_released_by_the_servers_own_command_where_there_is_one() {
    for binary in all_servers() {
        let nodes = three(&binary);
        let client = client(&nodes);
        all_up(&client).await;
        let guard = client.acquire("orders").await.unwrap();
        eventually("all nodes have given their votes", || guard.votes() == 3).await;
        forget_what_was_said(&nodes);
        drop(guard);
        no_key_is_left(&nodes).await;
        let expected = if binary.has_delifeq() { [1, 0, 0] } else { [0, 1, 0] };
        for node in &nodes {
            assert_eq!(releases(node), expected, "{} {:?}", node.address(), binary.version);
        }
    }
}

/// A script that the server has forgotten is sent again.
#[tokio::test]
async fn a_release_works_when_the_scripts_are_gone() {
    for binary in all_servers() {
        let nodes = three(&binary);
        let client = client(&nodes);
        all_up(&client).await;
        let guard = client.acquire("orders").await.unwrap();
        eventually("all nodes have given their votes", || guard.votes() == 3).await;
        for node in &nodes {
            run(node, &["SCRIPT", "FLUSH"]);
        }
        forget_what_was_said(&nodes);
        let released = guard.release().await;
        assert_eq!(released.outcome, Outcome::Released, "{released:?}");
        no_key_is_left(&nodes).await;
        let expected = if binary.has_delifeq() { [1, 0, 0] } else { [0, 1, 1] };
        for node in &nodes {
            assert_eq!(releases(node), expected, "{:?}", binary.version);
        }
    }
}

/// `DELIFEQ` does not say whether another client holds the lock, so the client then asks with the script.
#[tokio::test]
async fn a_release_reports_that_another_client_holds_the_lock() {
    for binary in all_servers() {
        let nodes = three(&binary);
        let client = builder(&nodes)
            .options(
                LockOptions::new()
                    .ttl(Duration::from_millis(400))
                    .node_timeout(Duration::from_millis(100))
                    .auto_extend(false),
            )
            .build()
            .unwrap();
        all_up(&client).await;
        for scripts_are_gone in [false, true] {
            let guard = client.acquire("orders").await.unwrap();
            assert_eq!(guard.lost().await, LossCause::Expired);
            no_key_is_left(&nodes).await;
            for node in &nodes {
                run(node, &["SET", "orders", "uuid-of-another-library", "NX", "PX", "60000"]);
                if scripts_are_gone {
                    run(node, &["SCRIPT", "FLUSH"]);
                }
            }
            let late = guard.release().await;
            assert_eq!(late.outcome, Outcome::TakenByOther, "{:?} {late:?}", binary.version);
            assert!(late.nodes().any(|(_, said)| *said == NodeReleased::Other), "{late:?}");
            for node in &nodes {
                assert_eq!(get(node, "orders").as_deref(), Some("uuid-of-another-library"));
                run(node, &["DEL", "orders"]);
            }
        }
    }
}

#[tokio::test]
async fn within_a_process_a_lock_is_handed_over_without_any_command() {
    for binary in all_servers() {
        let nodes = three(&binary);
        let client = client(&nodes);
        all_up(&client).await;
        let first = client.acquire("orders").await.unwrap();
        eventually("all nodes have given their votes", || first.votes() == 3).await;
        let second = tokio::spawn(client.acquire("orders").into_future());
        eventually("the second one waits", || client.stats().calls_waiting == 1).await;
        forget_what_was_said(&nodes);
        let token = first.token();
        let released = first.release().await;
        assert!(released.is_released() && released.handed_over, "{released:?}");
        assert!(released.nodes().all(|(_, said)| *said == NodeReleased::HandedOver));
        let second = second.await.unwrap().unwrap();
        assert!(second.is_valid());
        assert_eq!((token.handover_count(), second.token().handover_count()), (0, 1));
        assert_eq!(second.token().stored(), token.stored());
        assert_eq!(second.token().to_string(), format!("{token}/1"));
        assert_ne!(second.token(), token, "no two guards look alike");
        for node in &nodes {
            assert_eq!(get(node, "orders"), Some(token.to_string()));
            assert_eq!((calls(node, "set"), releases(node)), (0, [0; 3]), "{:?}", binary.version);
        }
        let released = second.release().await;
        assert!(released.is_released() && !released.handed_over, "{released:?}");
        no_key_is_left(&nodes).await;
    }
}
