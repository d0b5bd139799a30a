//! Giving back: by the server's own command where there is one, by script elsewhere, and within one
//! process from hand to hand.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use common::{all_servers, all_up, builder, calls, client, eventually, get, run};
use common::{no_key_is_left, start};
use quorlock::{LockOptions, LossCause, NodeReleased, Outcome};
use quorlock_servers::{Nodes, Server, ServerBinary, ServerOptions};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

fn three(binary: &ServerBinary) -> Nodes {
    Nodes::start(binary, 3, ServerOptions::default()).unwrap()
}

fn forget_what_was_said(nodes: &[Server]) {
    for node in nodes {
        run(node, &["CONFIG", "RESETSTAT"]);
    }
}

/// How often a node was told to do each.
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

/// What a node has forgotten, or never knew, it is told again.
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

/// What the server's own command does not tell, the script does.
#[tokio::test]
async fn a_release_of_what_another_holds_says_so_on_every_server() {
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
async fn within_a_process_a_lock_is_handed_over_without_a_word_to_the_servers() {
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

/// So many times in a row a lock goes from hand to hand.
const HANDOVERS_MAX: u32 = 64;

/// One process hands a lock around among its tasks for as long as another waits for it. Returns the
/// most turns of a stored token, and the longest time after which one was handed over.
async fn contend(nodes: &[Server], ttl: Duration, hold: Duration) -> (u32, Duration) {
    let (greedy, other) =
        (builder(nodes).options(LockOptions::new().ttl(ttl).node_timeout(ttl / 4)), client(nodes));
    let greedy = greedy.build().unwrap();
    all_up(&greedy).await;
    all_up(&other).await;
    let (done, holders) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let begins = Arc::new(std::sync::Mutex::new(std::collections::HashMap::new()));
    let mut tasks = JoinSet::new();
    for _ in 0..3 {
        let (greedy, done, holders) = (greedy.clone(), done.clone(), holders.clone());
        let begins = begins.clone();
        tasks.spawn(async move {
            let (mut turns, mut longest) = (0, Duration::ZERO);
            while !done.load(Ordering::Relaxed) {
                let guard = greedy.acquire("orders").await.unwrap();
                enter(&holders);
                let token = guard.token();
                let now = Instant::now();
                let began = *begins.lock().unwrap().entry(token.stored()).or_insert(now);
                turns = turns.max(token.handover_count());
                sleep(hold).await;
                assert!(guard.is_valid());
                let had = began.elapsed();
                holders.fetch_sub(1, Ordering::SeqCst);
                if guard.release().await.handed_over {
                    longest = longest.max(had);
                }
            }
            (turns, longest)
        });
    }
    eventually("it goes from hand to hand", || begins.lock().unwrap().len() >= 2).await;
    for _ in 0..2 {
        let guard = other.acquire("orders").await.unwrap();
        enter(&holders);
        assert_eq!(guard.token().handover_count(), 0);
        sleep(hold).await;
        assert!(guard.is_valid());
        holders.fetch_sub(1, Ordering::SeqCst);
        drop(guard);
    }
    done.store(true, Ordering::Relaxed);
    let (mut turns, mut longest) = (0, Duration::ZERO);
    while let Some(task) = tasks.join_next().await {
        let (its_turns, its_longest) = task.unwrap();
        (turns, longest) = (turns.max(its_turns), longest.max(its_longest));
    }
    assert!(begins.lock().unwrap().len() >= 2);
    no_key_is_left(nodes).await;
    (turns, longest)
}

/// The witness of mutual exclusion.
fn enter(holders: &AtomicU32) {
    assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two hold it at once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_so_many_turns_another_process_has_its_turn() {
    let Some(nodes) = start(3, ServerOptions::default()) else { return };
    let ttl = Duration::from_secs(30);
    let (turns, longest) = contend(&nodes, ttl, Duration::from_millis(1)).await;
    assert!((1..=HANDOVERS_MAX).contains(&turns), "{turns} turns");
    assert!(longest <= ttl / 10, "{longest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_tenth_of_the_ttl_another_process_has_its_turn() {
    let Some(nodes) = start(3, ServerOptions::default()) else { return };
    let ttl = Duration::from_secs(4);
    let (turns, longest) = contend(&nodes, ttl, Duration::from_millis(40)).await;
    assert!((1..=HANDOVERS_MAX).contains(&turns), "{turns} turns");
    assert!(longest <= ttl / 10, "handed over after {longest:?}");
}
