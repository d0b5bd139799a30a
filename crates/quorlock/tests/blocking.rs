//! The blocking client: the same lock for threads without a runtime.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use common::{ONCE, PATIENCE, PATIENT, UNEXTENDED, eventually, five, get, key_count};
use quorlock::blocking::{Client, FencedGuard, Guard};
use quorlock::node::MemoryNode;
use quorlock::{AcquireError, ExtendError, HoldError, LockOptions, LossCause, Outcome, Verdict};
use quorlock_servers::Nodes;

fn client(nodes: &Nodes) -> Client {
    common::builder(nodes).blocking().build().unwrap()
}

fn memory() -> ([MemoryNode; 3], Client) {
    let nodes = ["a", "b", "c"].map(MemoryNode::new);
    let builder = Client::builder().memory_nodes(nodes.clone());
    (nodes, builder.build().unwrap())
}

fn no_key_is_left(nodes: &Nodes) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(common::no_key_is_left(nodes));
}

fn spin_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(eventually(what, &mut is_so));
}

#[test]
fn the_blocking_client_acquires_extends_inspects_and_releases() {
    let Some(nodes) = five() else { return };
    let client = client(&nodes);
    let guard = client
        .acquire("orders")
        .options(
            LockOptions::new()
                .ttl(Duration::from_secs(20))
                .wait(PATIENCE)
                .owner("cron")
                .max_hold(Duration::from_secs(60))
                .auto_extend(true),
        )
        .call()
        .unwrap();
    assert!(guard.is_valid() && guard.votes() >= 3 && guard.loss_cause().is_none());
    assert!(guard.remaining() > Duration::from_secs(10));
    assert_eq!(guard.resource(), "orders");
    spin_until("all have voted", || guard.votes() == 5);
    let value = get(&nodes[0], "orders").unwrap();
    assert!(
        value.starts_with(&format!("{} @", guard.token())) && value.ends_with(" cron"),
        "{value}"
    );
    assert!(guard.extend().unwrap() > Duration::from_secs(10));

    let error = client.try_acquire("orders").unwrap_err();
    assert!(error.is_contended());
    let other = self::client(&nodes);
    let error = other.acquire("orders").options(ONCE).call().unwrap_err();
    assert_eq!(error.holder().unwrap().to_string().split(',').next(), Some("cron"));
    assert_eq!(client.inspect("orders").unwrap().verdict(), Verdict::Held);
    assert_eq!(client.stats().locks_held, 1);
    assert_eq!(guard.release().outcome, Outcome::Released);
    no_key_is_left(&nodes);

    assert!(client.acquire("orders").hold(Guard::is_valid).unwrap());
    drop(client.acquire("orders").call().unwrap());
    client.shutdown(PATIENCE).unwrap();
    assert!(nodes.iter().all(|node| key_count(node) == 0), "drained is drained");
    assert!(matches!(client.acquire("orders").call(), Err(AcquireError::Closed { .. })));
    client.shutdown(Duration::MAX).unwrap();
}

#[test]
fn threads_exclude_each_other() {
    let Some(nodes) = five() else { return };
    let clients = [client(&nodes), client(&nodes)];
    let inside = Arc::new(AtomicU32::new(0));
    let total = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for client in clients.iter().flat_map(|client| [client; 3]) {
            let (inside, total) = (inside.clone(), &total);
            scope.spawn(move || {
                for _ in 0..3 {
                    let guard = client.acquire("orders").call().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
                    std::thread::sleep(Duration::from_millis(1));
                    inside.fetch_sub(1, Ordering::SeqCst);
                    total.fetch_add(1, Ordering::SeqCst);
                    let _ = guard.release();
                }
            });
        }
    });
    assert_eq!(total.into_inner(), 18);
    no_key_is_left(&nodes);
}

/// A thread polls the driver during its calls. The client must also extend and release locks while that thread makes no
/// call, or while another thread waits for a long time.
#[test]
fn locks_are_extended_while_no_thread_calls_or_one_call_waits() {
    let Some(nodes) = five() else {
        return;
    };
    let ttl = Duration::from_secs(1);
    let client = || {
        common::builder(&nodes)
            .options(LockOptions::new().ttl(ttl).node_timeout(ttl / 4))
            .blocking()
            .build()
            .unwrap()
    };
    let (busy, waiting) = (client(), client());
    let held = busy.acquire("orders").call().unwrap();
    let beside = waiting.acquire("beside").call().unwrap();
    let held_for_others = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| waiting.acquire("orders").options(PATIENT).call().unwrap());
        let calls = scope.spawn(|| {
            while held_for_others.load(Ordering::Relaxed) {
                assert!(waiting.acquire("often").call().unwrap().release().is_released());
            }
        });
        for _ in 0..5 * 100 {
            std::thread::sleep(Duration::from_millis(10));
            assert!(held.is_valid(), "{:?}", held.loss_cause());
            assert!(beside.is_valid(), "{:?}", beside.loss_cause());
        }
        assert!(!waits.is_finished());
        held_for_others.store(false, Ordering::Relaxed);
        // No caller waits for this release. The client must send it before the keys expire.
        #[expect(clippy::disallowed_methods, reason = "compared with a protocol bound")]
        let dropped = std::time::Instant::now();
        drop(held);
        let _ = waits.join().unwrap().release();
        assert!(dropped.elapsed() < ttl / 2, "{:?}", dropped.elapsed());
        calls.join().unwrap();
    });
    assert!(beside.release().is_released());
    no_key_is_left(&nodes);
}

/// A call that completes without the nodes does not poll the driver. While a thread makes such calls without a pause,
/// the client must still extend a held lock.
#[test]
fn calls_without_commands_do_not_delay_extensions() {
    let Some(nodes) = five() else { return };
    let ttl = Duration::from_secs(1);
    let client = common::builder(&nodes)
        .options(LockOptions::new().ttl(ttl).node_timeout(ttl / 4))
        .blocking()
        .build()
        .unwrap();
    let lost = client.acquire("lost").options(UNEXTENDED).call().unwrap();
    assert_eq!(lost.lost(), LossCause::Expired);
    let held = client.acquire("held").call().unwrap();
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !has_ended.load(Ordering::Relaxed) {
                assert!(lost.extend().is_err() && client.acquire("").call().is_err());
            }
        });
        let mut looks = 0..3 * 100;
        let is_kept = looks.all(|_| {
            std::thread::sleep(Duration::from_millis(10));
            held.is_valid()
        });
        has_ended.store(true, Ordering::Relaxed);
        assert!(is_kept, "{:?}", held.loss_cause());
    });
    drop((held, lost));
    no_key_is_left(&nodes);
}

/// A loss wakes the waiting thread, whether the nodes report the loss or the clock shows it.
#[test]
fn a_loss_wakes_the_thread_that_waits_for_it() {
    let (nodes, client) = memory();
    let ttl = Duration::from_millis(300);
    let expiring = client
        .acquire("expires")
        .options(LockOptions::new().ttl(ttl).auto_extend(false))
        .call()
        .unwrap();
    assert_eq!(expiring.lost(), LossCause::Expired);
    assert_eq!(expiring.release().outcome, Outcome::Expired);

    let guard = client.acquire("vanishes").call().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| guard.lost());
        spin_until("all have voted", || guard.votes() == 3);
        nodes.iter().for_each(|node| assert!(node.remove("vanishes")));
        let error = guard.extend().unwrap_err();
        assert!(matches!(error, ExtendError::Lost { cause: LossCause::KeyGone, .. }), "{error}");
        assert_eq!(waiting.join().unwrap(), LossCause::KeyGone);
    });

    let error = client.acquire("orders").hold(|guard| {
        nodes.iter().for_each(|node| assert!(node.remove("orders")));
        let _ = guard.extend();
    });
    let is_lost = matches!(&error, Err(HoldError::Lost { cause: LossCause::KeyGone, .. }));
    assert!(is_lost, "{error:?}");
    let guard = client.acquire("shut down").call().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| guard.lost());
        client.shutdown(PATIENCE).unwrap();
        assert_eq!(waiting.join().unwrap(), LossCause::Shutdown);
    });
}

/// A blocking call inside a runtime would block other tasks, so the call panics. The client releases the locks of
/// that call.
#[test]
fn a_blocking_call_inside_a_runtime_panics_and_leaves_no_key() {
    let (nodes, client) = memory();
    let guard = client.acquire("released").call().unwrap();
    let held = client.acquire("held").call().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let panics = |act: Box<dyn FnOnce() + '_>| {
        let inside = std::panic::AssertUnwindSafe(|| runtime.block_on(async { act() }));
        assert!(std::panic::catch_unwind(inside).is_err(), "it must not block a runtime");
    };
    panics(Box::new(|| {
        drop(client.acquire("held").options(LockOptions::new().wait_forever()).call())
    }));
    panics(Box::new(|| drop(client.acquire("free").call())));
    panics(Box::new(|| drop(held.extend())));
    panics(Box::new(|| drop(guard.release())));
    spin_until("no call waits", || client.stats().calls_waiting == 0);
    spin_until("only one key is left", || nodes.iter().all(|node| node.key_count() == 1));
    assert!(held.is_valid());

    let blocking = client.clone();
    let released = runtime.block_on(async {
        let work = move || blocking.acquire("elsewhere").call().unwrap().release();
        tokio::task::spawn_blocking(work).await.unwrap()
    });
    assert!(released.is_released());
}

#[test]
fn a_shutdown_that_times_out_reports_the_owed_releases() {
    let (nodes, client) = memory();
    let guard = client.acquire("orders").call().unwrap();
    nodes[0].freeze();
    drop(guard);
    let error = client.shutdown(Duration::from_millis(100)).unwrap_err();
    assert_eq!(error.owed, 1);
    nodes[0].thaw();
    client.shutdown(PATIENCE).unwrap();
}

#[test]
fn a_clone_of_a_builder_builds_a_client_with_the_same_settings() {
    let nodes = ["a", "b", "c"].map(MemoryNode::new);
    let builder = Client::builder().memory_nodes(nodes.clone()).key_prefix("app:");
    let builder = builder.options(LockOptions::new().owner("api-7"));
    let (one, other) = (builder.clone().build().unwrap(), builder.build().unwrap());
    let guard = one.acquire("orders").call().unwrap();
    assert!(nodes[0].ttl_of("app:orders").is_some());
    let error = other.acquire("orders").options(ONCE).hold(|_| unreachable!()).unwrap_err();
    assert!(matches!(error, HoldError::NotAcquired(AcquireError::Contended(_))), "{error}");
    assert!(error.to_string().contains("api-7"), "{error}");
    drop(guard);
}

#[test]
fn hold_uses_the_options_of_its_call() {
    let (nodes, client) = memory();
    let ttl = Duration::from_millis(500);
    let work = |guard: &FencedGuard| (guard.fencing_token(), guard.remaining() < ttl);
    let (token, is_short) =
        client.acquire_fenced("orders").options(LockOptions::new().ttl(ttl)).hold(work).unwrap();
    assert!(token > 0 && is_short);
    assert_eq!(nodes[0].ttl_of("orders"), None);
    let later = client.acquire_fenced("orders").call().unwrap();
    assert!(later.fencing_token() > token && !later.is_superseded());
    assert!(later.release().is_released());
}
