//! Fencing tokens on real servers: each holder gets a larger token than every holder before.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

mod common;

use std::time::Duration;

use common::{
    ONCE, PATIENCE, UNEXTENDED, all_servers, all_up, builder, calls, client, eventually, five, get,
    pttl, run,
};
use quorlock::{Client, LockOptions, Query};
use quorlock_admin::doctor;
use quorlock_servers::{Nodes, Server, ServerOptions};

const COUNTER: &str = "quorlock:fence:orders";

const WEEK: i64 = 7 * 86_400_000;

#[tokio::test]
async fn fencing_tokens_grow_from_holder_to_holder() {
    for binary in all_servers() {
        let nodes = Nodes::start(&binary, 3, ServerOptions::default()).unwrap();
        let clients = [client(&nodes), client(&nodes)];
        let mut last = 0;
        for turn in 0..10 {
            let guard = clients[turn % 2].acquire_fenced("orders").await.unwrap();
            assert!(guard.fencing_token() > last, "{} after {last}", guard.fencing_token());
            assert!(!guard.is_superseded());
            last = guard.fencing_token();
            assert!(guard.release().await.is_released());
        }
        // The tokens are derived from clocks, in microseconds, and fit into an IEEE double.
        assert!(last > 1_700_000_000_000_000 && last < 1 << 53, "{last}");
        // Tokens also rise if a client hands a released lock to another caller of the same process.
        let guard = clients[0].acquire_fenced("orders").await.unwrap();
        let next = tokio::spawn(clients[0].acquire_fenced("orders").into_future());
        eventually("it waits", || clients[0].stats().calls_waiting == 1).await;
        let first = guard.fencing_token();
        assert!(guard.release().await.handed_over);
        let next = next.await.unwrap().unwrap();
        assert!(first > last && next.fencing_token() > first);
        assert!(next.release().await.is_released());
        for node in &nodes {
            assert!(pttl(node, COUNTER) > WEEK - 600_000, "{}", pttl(node, COUNTER));
        }
    }
}

#[tokio::test]
async fn an_uncontended_fenced_acquire_is_one_command_per_node() {
    let Some(nodes) = five() else { return };
    let client = builder(&nodes).key_prefix("app:").build().unwrap();
    all_up(&client).await;
    // The first iteration finds no counters on the nodes. The second finds equal counters from the first acquire.
    // The first one also carries the text of the script, which is too long for the greeting.
    for expected in [[0, 1], [1, 0]] {
        for node in &nodes {
            run(node, &["CONFIG", "RESETSTAT"]);
        }
        let guard = client.acquire_fenced("orders").options(UNEXTENDED).await.unwrap();
        eventually("all have voted", || guard.votes() == 5).await;
        for node in &nodes {
            let said = ["evalsha", "eval"].map(|command| calls(node, command));
            assert_eq!(said, expected, "{}", node.address());
            assert_eq!(
                get(node, "app:quorlock:fence:orders"),
                Some(guard.fencing_token().to_string())
            );
        }
        assert!(guard.release().await.is_released());
    }
}

/// A fenced acquire succeeds after the servers have forgotten their scripts.
#[tokio::test]
async fn a_fenced_acquire_works_when_the_scripts_are_gone() {
    for binary in all_servers() {
        let nodes = Nodes::start(&binary, 3, ServerOptions::default()).unwrap();
        let client = client(&nodes);
        all_up(&client).await;
        for node in &nodes {
            run(node, &["SCRIPT", "FLUSH"]);
        }
        // One attempt suffices: no command follows the acquire, so the client repeats it with the script's text.
        let guard = client.acquire_fenced("orders").options(ONCE).await.unwrap();
        assert!(guard.fencing_token() > 0);
        assert!(guard.release().await.is_released());
        for node in &nodes {
            run(node, &["SCRIPT", "FLUSH"]);
        }
        // Many calls share each connection. If a later command was sent before a node rejects an acquire, the client
        // must not repeat the acquire there. If too few votes are left, the call makes a new attempt.
        let calls = (0..50).map(|number| client.acquire_fenced(format!("job {number}")));
        let calls: Vec<_> = calls.map(|call| tokio::spawn(call.into_future())).collect();
        for call in calls {
            assert!(call.await.unwrap().unwrap().fencing_token() > 0);
        }
        for node in &nodes {
            eventually("no lock is left", || get(node, "job 7").is_none()).await;
        }
    }
}

/// A call is dropped while a server reports an unknown script. The call's release is in flight by then, so the client
/// must not repeat the acquire behind the release.
#[tokio::test]
async fn a_dropped_call_leaves_no_key_when_the_scripts_are_gone() {
    let Some(nodes) = five() else { return };
    let client =
        builder(&nodes).options(LockOptions::new().ttl(Duration::from_secs(30))).build().unwrap();
    all_up(&client).await;
    for number in 0..40 {
        for node in &nodes {
            run(node, &["SCRIPT", "FLUSH"]);
        }
        let call = tokio::spawn(client.acquire_fenced(format!("job {number}")).into_future());
        for _ in 0..number / 4 {
            tokio::task::yield_now().await;
        }
        call.abort();
        let _ = call.await;
    }
    client.shutdown(PATIENCE).await.unwrap();
    for (number, node) in (0..40).flat_map(|number| nodes.iter().map(move |node| (number, node))) {
        assert_eq!(get(node, &format!("job {number}")), None, "{number} on {}", node.address());
    }
}

/// A node loses the lock and gives a larger token to another client. The holder's guard must report this.
#[tokio::test]
async fn a_holder_learns_that_it_may_have_been_superseded() {
    let Some(nodes) = five() else { return };
    let client = client(&nodes);
    all_up(&client).await;
    let guard = client.acquire_fenced("orders").await.unwrap();
    eventually("all have voted", || guard.votes() == 5).await;
    run(&nodes[0], &["DEL", "orders"]);
    let larger = (guard.fencing_token() + 1).to_string();
    run(&nodes[0], &["SET", COUNTER, &larger]);
    // The extension tries to restore node 0's vote. The node refuses, because its token is larger.
    let _ = guard.extend().await;
    eventually("the guard reports it", || guard.is_superseded()).await;
    assert!(guard.is_valid(), "the others' votes are enough");
    assert_eq!(get(&nodes[0], "orders"), None, "nothing was written there");
    assert_eq!(get(&nodes[0], COUNTER), Some(larger));
}

/// A client with the permissions that `doctor` prints, and no others.
async fn with_the_permissions_of_doctor(nodes: &[Server]) -> Client {
    let settings = builder(nodes).key_prefix("locks:");
    let rules = doctor::examine(&settings).await.unwrap().acl("app");
    let [(rules, _)] = &rules[..] else { panic!("{rules:?}") };
    let rules = rules.replace("PASSWORD", "secret");
    let rules: Vec<&str> = rules.split(' ').map(|word| word.trim_matches('\'')).collect();
    for node in nodes {
        run(node, &rules);
    }
    let client = settings.username("app").password("secret").build().unwrap();
    all_up(&client).await;
    client
}

/// The permissions that `doctor` prints suffice for fenced locks.
#[tokio::test]
async fn the_permissions_that_doctor_prints_suffice_for_fencing() {
    for binary in all_servers() {
        let nodes = Nodes::start(&binary, 5, ServerOptions::default()).unwrap();
        let client = with_the_permissions_of_doctor(&nodes).await;
        let guard = client.acquire_fenced("orders").await.unwrap();
        eventually("all have voted", || guard.votes() == 5).await;
        // Node 0 loses the lock, and node 1 loses the lock and the counter. The extension restores the votes and raises
        // the counters.
        run(&nodes[0], &["DEL", "locks:orders"]);
        run(&nodes[1], &["DEL", "locks:orders", &format!("locks:{COUNTER}")]);
        guard.extend().await.unwrap();
        let fence = guard.fencing_token();
        for node in &nodes[..2] {
            eventually("its vote is healed", || get(node, "locks:orders").is_some()).await;
            assert_eq!(
                get(node, &format!("locks:{COUNTER}")).as_ref(),
                Some(&fence.to_string()),
                "{binary}"
            );
        }
        // Node 2 gives a larger token than the other nodes. The client raises their counters to that token.
        assert!(guard.release().await.is_released());
        run(&nodes[2], &["SET", &format!("locks:{COUNTER}"), &(fence + 7).to_string()]);
        let next = client.acquire_fenced("orders").await.unwrap();
        assert!(next.fencing_token() > fence, "{binary}: {} after {fence}", next.fencing_token());
        assert!(next.release().await.is_released());
    }
}

/// The permissions that `doctor` prints suffice for leases of each kind and for locks with the caller's value.
#[tokio::test]
async fn the_permissions_that_doctor_prints_suffice_for_leases_and_taken_locks() {
    for binary in all_servers() {
        let nodes = Nodes::start(&binary, 3, ServerOptions::default()).unwrap();
        let client = with_the_permissions_of_doctor(&nodes).await;
        let guards = [
            client.acquire("orders").await.unwrap(),
            client.acquire_shared("report").await.unwrap(),
            client.acquire(["a", "b"]).await.unwrap(),
        ];
        for guard in guards {
            let lease = guard.detach().await.unwrap();
            let lease = client.extend_lease(&lease).await.unwrap();
            let guard = client.attach(&lease).await.unwrap();
            // The first attach has changed the value on the nodes, so a second attach fails on every node.
            assert!(client.attach(&lease).options(ONCE).await.is_err(), "{binary}: {lease:?}");
            guard.extend().await.unwrap();
            let lease = guard.detach().await.unwrap();
            assert!(
                client.release_lease(&lease).await.unwrap().is_released(),
                "{binary}: {lease:?}"
            );
        }
        let lease = client.acquire_fenced("orders").await.unwrap().detach().await.unwrap();
        let guard = client.attach_fenced(&lease).await.unwrap();
        assert!(guard.fencing_token() > lease.fencing_token().unwrap().get(), "{binary}");
        assert!(guard.release().await.is_released());

        let taken = client.take("stock", "worker-7", PATIENCE).await.unwrap();
        taken.extend().await.unwrap();
        let said = client.query("stock").await.unwrap();
        assert_eq!(said, Query::Value(b"worker-7".into()), "{binary}");
        assert!(taken.release().await.is_released());
        let _stays =
            client.take("stock", "worker-7", PATIENCE).await.unwrap().detach().await.unwrap();
        client.extend_value("stock", "worker-7", PATIENCE).await.unwrap();
        assert!(client.release_value("stock", "worker-7").await.unwrap().is_released());
    }
}
