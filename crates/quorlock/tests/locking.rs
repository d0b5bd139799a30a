//! The lock on real servers: taking, keeping, losing and giving back.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

mod common;

use std::time::Duration;

use common::{
    PATIENCE, all_up, builder, client, eventually, five, get, key_count, no_key_is_left, pttl, run,
};
use quorlock::node::{FailureKind, Holding};
use quorlock::{
    AcquireError, Client, ExtendError, HolderKind, LossCause, NodeReleased, NodeSaid, Outcome,
    Verdict,
};
use quorlock_servers::{Nodes, Reply, Server};
use tokio::time::Instant;

const TTL: Duration = Duration::from_secs(10);

/// ttl × 0.01 + 2 ms.
const DRIFT: Duration = Duration::from_millis(102);

#[tokio::test]
async fn a_lock_is_acquired_extended_and_released_on_all_nodes() {
    let Some(nodes) = five("a_lock_is_acquired_extended_and_released_on_all_nodes") else { return };
    let client = client(&nodes);
    let started = Instant::now();
    let guard = client.acquire("orders").owner("build-7").await.unwrap();
    assert!(guard.is_valid());
    let (remaining, elapsed) = (guard.remaining(), started.elapsed());
    assert!(remaining <= TTL - DRIFT, "the drift is allowed for: {remaining:?}");
    assert!(remaining + elapsed >= TTL - DRIFT - TTL / 50, "{remaining:?} after {elapsed:?}");
    eventually("votes that come late are counted too", || guard.votes() == 5).await;
    let value = format!("{} build-7", guard.token());
    for node in &nodes {
        assert_eq!(get(node, "orders").as_deref(), Some(value.as_str()));
        assert!((1..=10_000).contains(&pttl(node, "orders")));
    }

    for node in &nodes {
        run(node, &["PEXPIRE", "orders", "5000"]);
    }
    let extended = guard.extend().await.unwrap();
    assert!(extended > TTL / 2 && extended <= TTL - DRIFT, "{extended:?}");
    for node in &nodes {
        eventually("every node has extended", || pttl(node, "orders") > 5000).await;
        assert_eq!(get(node, "orders").as_deref(), Some(value.as_str()));
    }

    let released = guard.release().await;
    assert_eq!(released.outcome, Outcome::Released);
    assert!(released.is_released());
    let deleted = released.nodes().filter(|(_, said)| **said == NodeReleased::Deleted);
    assert!(deleted.count() >= 3);
    let names: Vec<&str> = released.nodes().map(|(name, _)| name).collect();
    let addresses: Vec<String> = nodes.iter().map(Server::address).collect();
    assert_eq!(names, addresses);
    no_key_is_left(&nodes).await;
}

#[tokio::test]
async fn of_two_clients_one_waits_and_is_told_for_whom() {
    let Some(nodes) = five("of_two_clients_one_waits_and_is_told_for_whom") else { return };
    let holder = builder(&nodes).owner("api-7:41 nightly").build().unwrap();
    let other = client(&nodes);
    let guard = holder.acquire("orders").await.unwrap();
    eventually("all nodes have given their votes", || guard.votes() == 5).await;

    let error = other.try_acquire("orders").await.unwrap_err();
    assert!(matches!(error, AcquireError::Contended(_)), "{error:?}");
    assert!(error.is_contended() && !error.lacks_rights());
    let held_by = error.holder().unwrap();
    assert_eq!(held_by.kind, HolderKind::Owner("api-7:41 nightly".to_owned()));
    assert!(held_by.remaining.is_some_and(|left| left <= TTL));
    assert!(error.retry_after().is_some_and(|time| time <= TTL));
    assert_eq!(error.nodes().len(), 5);
    let refused = error.nodes().iter().filter(|node| matches!(node.said, NodeSaid::Refused(_)));
    assert!(refused.count() >= 3, "{error:?}");
    let text = error.to_string();
    assert!(text.starts_with("lock \"orders\" not acquired after 1 attempt in "), "{text}");
    let story = |node: &Server| format!("node {} refused (held by api-7:41", node.address());
    assert!(nodes.iter().filter(|node| text.contains(&story(node))).count() >= 3, "{text}");
    assert!(!text.contains(&guard.token().to_string()), "a token is nobody else's business");

    let waiting = tokio::spawn(other.acquire("orders").into_future());
    eventually("the other one tries", || other.stats().calls_waiting == 1).await;
    let before = guard.token();
    assert!(guard.release().await.is_released());
    let guard = waiting.await.unwrap().unwrap();
    assert!(guard.is_valid());
    assert_ne!(guard.token(), before);
    drop(guard);
    no_key_is_left(&nodes).await;
}

#[tokio::test]
async fn who_waits_is_told_after_each_attempt_why() {
    let Some(nodes) = five("who_waits_is_told_after_each_attempt_why") else { return };
    let (holder, other) = (builder(&nodes).owner("api-7").build().unwrap(), client(&nodes));
    let guard = holder.acquire("orders").await.unwrap();
    let (told, mut seen) = tokio::sync::watch::channel(None);
    let waiting = tokio::spawn(other.acquire("orders").progress(told).into_future());
    let told = seen.wait_for(Option::is_some).await.unwrap().clone().unwrap();
    assert!(told.contended && told.attempts >= 1, "{told:?}");
    assert_eq!(told.holder().unwrap().kind, HolderKind::Owner("api-7".to_owned()));
    assert_eq!(told.nodes.len(), 5);
    drop(guard);
    assert!(waiting.await.unwrap().unwrap().is_valid());
}

/// Mutual exclusion by the plainest witness there is: a counter that is read, and written a moment
/// later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_that_is_read_and_written_loses_nothing() {
    const TEST: &str = "a_counter_that_is_read_and_written_loses_nothing";
    let Some(nodes) = five(TEST) else { return };
    let counter = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let clients: Vec<Client> = (0..4).map(|_| client(&nodes)).collect();
    let mut workers = tokio::task::JoinSet::new();
    for client in clients.iter().flat_map(|client| [client; 3]) {
        let (client, counter) = (client.clone(), counter.clone());
        workers.spawn(async move {
            for _ in 0..5 {
                let guard = client.acquire("counter").await.unwrap();
                let read = counter.load(std::sync::atomic::Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(1)).await;
                assert!(guard.is_valid());
                counter.store(read + 1, std::sync::atomic::Ordering::Relaxed);
                assert!(guard.release().await.is_released());
            }
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker.unwrap();
    }
    assert_eq!(counter.load(std::sync::atomic::Ordering::Relaxed), 4 * 3 * 5);
    no_key_is_left(&nodes).await;
}

#[tokio::test]
async fn one_node_four_nodes_and_a_raised_quorum() {
    let Some(nodes) = five("one_node_four_nodes_and_a_raised_quorum") else { return };
    let single = client(&nodes[..1]);
    let guard = single.acquire("single").await.unwrap();
    assert_eq!(guard.votes(), 1);
    assert!(guard.release().await.is_released());

    let four = client(&nodes[..4]);
    let guard = four.acquire("four").await.unwrap();
    assert!(guard.votes() >= 3, "of four nodes, two are no majority");
    for node in &nodes[..2] {
        run(node, &["SET", "half", "foreign", "PX", "60000"]);
    }
    let error = four.try_acquire("half").await.unwrap_err();
    assert!(error.is_contended(), "a tie is a no: {error}");
    drop(guard);

    let raised = builder(&nodes).quorum(4).build().unwrap();
    let guard = raised.acquire("raised").await.unwrap();
    assert!(guard.votes() >= 4);
    drop(guard);
    eventually("only the foreign keys are left", || nodes.iter().map(key_count).sum::<i64>() == 2)
        .await;
    nodes[3].kill().unwrap();
    nodes[4].kill().unwrap();
    let error = raised.try_acquire("raised").await.unwrap_err();
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
}

#[tokio::test]
async fn the_prefix_stands_before_the_key() {
    let Some(nodes) = five("the_prefix_stands_before_the_key") else { return };
    let client = builder(&nodes).key_prefix("locks:").build().unwrap();
    let guard = client.acquire("orders").await.unwrap();
    assert_eq!(guard.resource(), "orders");
    eventually("all nodes have given their votes", || guard.votes() == 5).await;
    for node in &nodes {
        assert_eq!(get(node, "locks:orders"), Some(guard.token().to_string()));
        assert_eq!(key_count(node), 1);
    }
}

/// Any client that does `SET NX PX`, in whatever language.
#[tokio::test]
async fn a_plain_set_nx_client_is_respected_and_respects_us() {
    let Some(nodes) = five("a_plain_set_nx_client_is_respected_and_respects_us") else { return };
    let client = client(&nodes);
    let set = |node: &Server| {
        run(node, &["SET", "orders", "uuid-of-another-library", "NX", "PX", "60000"])
    };
    for node in &nodes[..3] {
        assert_eq!(set(node), Reply::Simple("OK".to_owned()));
    }
    let error = client.try_acquire("orders").await.unwrap_err();
    assert!(error.is_contended(), "{error}");
    let holder = error.holder().unwrap();
    assert_eq!(holder.kind, HolderKind::Foreign("uuid-o…".to_owned()));
    assert!(holder.remaining.is_some());
    no_key_is_left(&nodes[3..]).await;
    for node in &nodes[..3] {
        assert_eq!(get(node, "orders").as_deref(), Some("uuid-of-another-library"));
        run(node, &["DEL", "orders"]);
    }

    let guard = client.acquire("orders").await.unwrap();
    eventually("all nodes have given their votes", || guard.votes() == 5).await;
    for node in &nodes {
        assert_eq!(set(node), Reply::Bulk(None), "a plain client is refused");
    }
    assert!(guard.release().await.is_released());
    no_key_is_left(&nodes).await;
    assert_eq!(set(&nodes[0]), Reply::Simple("OK".to_owned()));
}

#[tokio::test]
async fn redis_pys_lock_is_respected_and_respects_us() {
    const TEST: &str = "redis_pys_lock_is_respected_and_respects_us";
    let Some(nodes) = five(TEST) else { return };
    let python = |script: &str| {
        let mut command = std::process::Command::new("python3");
        command.args(["-c", script]).args(nodes.iter().take(3).map(Server::address));
        command.output()
    };
    if !python("import redis").is_ok_and(|output| output.status.success()) {
        return quorlock_servers::skip(TEST, "python3 has no module redis");
    }
    let lock = |then: &str| {
        let script = format!(
            "import sys, redis\n\
             for path in sys.argv[1:]:\n    \
                 lock = redis.Redis(unix_socket_path=path).lock('orders', timeout=60)\n    \
                 print(lock.acquire(blocking=False))\n    {then}\n"
        );
        let output = python(&script).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let client = client(&nodes);

    assert_eq!(lock("pass"), "True\n".repeat(3));
    let error = client.try_acquire("orders").await.unwrap_err();
    assert!(error.is_contended(), "{error}");
    assert!(matches!(error.holder().unwrap().kind, HolderKind::Foreign(_)));
    for node in &nodes {
        run(node, &["DEL", "orders"]);
    }

    let guard = client.acquire("orders").await.unwrap();
    eventually("all nodes have given their votes", || guard.votes() == 5).await;
    assert_eq!(lock("pass"), "False\n".repeat(3));
    assert!(guard.release().await.is_released());
    no_key_is_left(&nodes).await;
    assert_eq!(lock("lock.release()"), "True\n".repeat(3));
    no_key_is_left(&nodes).await;
}

#[tokio::test]
async fn what_is_no_lock_is_reported_and_never_deleted() {
    let Some(nodes) = five("what_is_no_lock_is_reported_and_never_deleted") else { return };
    let client = client(&nodes);
    for node in &nodes[..3] {
        run(node, &["RPUSH", "list", "element"]);
        run(node, &["SET", "eternal", "data"]);
    }
    let error = client.try_acquire("list").await.unwrap_err();
    assert!(error.is_contended(), "{error}");
    assert_eq!(error.holder().unwrap().kind, HolderKind::OtherType);
    assert_eq!(error.retry_after(), None, "it does not expire");
    let error = client.try_acquire("eternal").await.unwrap_err();
    let holder = error.holder().unwrap();
    assert_eq!(holder.kind, HolderKind::Foreign("data".to_owned()));
    assert_eq!((holder.remaining, error.retry_after()), (None, None));
    assert!(error.to_string().contains("without expiry"), "{error}");
    no_key_is_left(&nodes[3..]).await;
    for node in &nodes[..3] {
        assert_eq!(run(node, &["LLEN", "list"]), Reply::Int(1));
        assert_eq!(get(node, "eternal").as_deref(), Some("data"));
        assert_eq!(pttl(node, "eternal"), -1);
    }
}

#[tokio::test]
async fn an_inspection_tells_held_free_split_and_unknown() {
    let Some(nodes) = five("an_inspection_tells_held_free_split_and_unknown") else { return };
    let client = builder(&nodes).owner("api-7").build().unwrap();
    let free = client.inspect("orders").await.unwrap();
    assert_eq!((free.verdict(), free.holder(), free.quorum()), (Verdict::Free, None, 3));

    let guard = client.acquire("orders").await.unwrap();
    eventually("all nodes have given their votes", || guard.votes() == 5).await;
    let held = client.inspect("orders").await.unwrap();
    assert_eq!(held.verdict(), Verdict::Held);
    assert_eq!(held.holder().unwrap().kind, HolderKind::Owner("api-7".to_owned()));
    let is_ours = |said: &NodeSaid| matches!(said, NodeSaid::Seen(Holding::Held { value, ttl: Some(_) }) if value.ends_with(b" api-7"));
    assert!(held.nodes.iter().all(|node| is_ours(&node.said)), "{held:?}");

    run(&nodes[0], &["DEL", "orders"]);
    run(&nodes[1], &["DEL", "orders"]);
    run(&nodes[2], &["SET", "orders", "foreign"]);
    assert_eq!(client.inspect("orders").await.unwrap().verdict(), Verdict::Split);
    for node in &nodes[..3] {
        node.kill().unwrap();
    }
    let unknown = client.inspect("orders").await.unwrap();
    assert_eq!(unknown.verdict(), Verdict::Unknown, "{unknown:?}");
    assert_eq!(unknown.nodes[0].failure().unwrap().kind(), FailureKind::Unreachable);
}

#[tokio::test]
async fn a_lock_whose_keys_are_gone_from_a_majority_is_lost_at_once() {
    let Some(nodes) = five("a_lock_whose_keys_are_gone_from_a_majority_is_lost_at_once") else {
        return;
    };
    let client = client(&nodes);
    let guard = client.acquire("orders").await.unwrap();
    eventually("all nodes have given their votes", || guard.votes() == 5).await;
    for node in &nodes[..3] {
        run(node, &["DEL", "orders"]);
    }
    assert!(guard.is_valid(), "nobody can know yet");
    let error = guard.extend().await.unwrap_err();
    let cause = LossCause::KeyGone;
    assert_eq!(error, ExtendError::Lost { resource: "orders".into(), cause });
    assert!(!guard.is_valid());
    assert_eq!((guard.remaining(), guard.votes()), (Duration::ZERO, 0));
    assert_eq!(guard.lost().await, cause);
    assert_eq!(guard.extend().await.unwrap_err().to_string(), error.to_string());
    // The others are given back without waiting for the guard.
    no_key_is_left(&nodes).await;
    let next = client.acquire("orders").await.unwrap();
    assert_eq!(guard.release().await.outcome, Outcome::TakenByOther);
    assert!(next.is_valid());
    assert!(next.extend().await.is_ok(), "the late release has deleted nothing");
}

/// The automatic extension notices it as well.
#[tokio::test]
async fn the_holder_of_vanished_keys_is_told_by_the_next_automatic_extension() {
    let Some(nodes) = five("the_holder_of_vanished_keys_is_told_by_the_next_automatic_extension")
    else {
        return;
    };
    let client = builder(&nodes).ttl(Duration::from_secs(8)).build().unwrap();
    let guard = client.acquire("orders").await.unwrap();
    for node in &nodes {
        run(node, &["FLUSHALL"]);
    }
    let cause = tokio::time::timeout(PATIENCE, guard.lost()).await.unwrap();
    assert_eq!(cause, LossCause::KeyGone, "before the validity has run out");
}

#[tokio::test]
async fn a_node_that_lost_the_key_gets_it_back_with_the_next_extension() {
    let Some(nodes) = five("a_node_that_lost_the_key_gets_it_back_with_the_next_extension") else {
        return;
    };
    let client = client(&nodes);
    let guard = client.acquire("orders").await.unwrap();
    eventually("all nodes have given their votes", || guard.votes() == 5).await;
    run(&nodes[0], &["FLUSHALL"]);
    nodes[1].restart().unwrap();
    all_up(&client).await;
    let token = guard.token().to_string();
    eventually("an extension needs three nodes only", || guard.votes() >= 3).await;
    for _ in 0..3 {
        guard.extend().await.unwrap();
    }
    for node in &nodes {
        eventually("it is healed", || get(node, "orders").as_deref() == Some(&token)).await;
        assert!(pttl(node, "orders") > 0);
    }
    eventually("its vote counts again", || guard.votes() == 5).await;
    assert!(guard.release().await.is_released());
    no_key_is_left(&nodes).await;
}

#[tokio::test]
async fn a_release_after_expiry_says_so_and_touches_nothing() {
    let Some(nodes) = five("a_release_after_expiry_says_so_and_touches_nothing") else { return };
    let short = builder(&nodes)
        .ttl(Duration::from_millis(400))
        .node_timeout(Duration::from_millis(100))
        .auto_extend(false)
        .build()
        .unwrap();
    let other = client(&nodes);
    let guard = short.acquire("orders").await.unwrap();
    assert_eq!(guard.lost().await, LossCause::Expired);
    let expired = guard.release().await;
    assert_eq!(expired.outcome, Outcome::Expired, "{expired:?}");
    assert!(!expired.is_released());

    let guard = short.acquire("orders").await.unwrap();
    let theirs = other.acquire("orders").await.unwrap();
    eventually("all nodes have given their votes", || theirs.votes() == 5).await;
    assert!(!guard.is_valid());
    let late = guard.release().await;
    assert_eq!(late.outcome, Outcome::TakenByOther, "{late:?}");
    assert!(late.nodes().any(|(_, said)| *said == NodeReleased::Other));
    for node in &nodes {
        assert_eq!(get(node, "orders"), Some(theirs.token().to_string()));
    }
    assert!(theirs.is_valid());
    assert!(theirs.release().await.is_released());
}

#[tokio::test]
async fn a_lock_is_extended_automatically_but_not_past_max_hold() {
    let Some(nodes) = five("a_lock_is_extended_automatically_but_not_past_max_hold") else {
        return;
    };
    let ttl = Duration::from_secs(1);
    let client = builder(&nodes).ttl(ttl).node_timeout(ttl / 4).build().unwrap();
    let max_hold = Duration::from_secs(3);
    let started = Instant::now();
    let guard = client.acquire("orders").max_hold(max_hold).await.unwrap();
    let cause = guard.lost().await;
    let held = started.elapsed();
    assert_eq!(cause, LossCause::HoldLimit);
    assert!(held > 2 * ttl, "it was extended: {held:?}");
    assert!(held < max_hold + PATIENCE, "{held:?}");
    assert!(!guard.is_valid());
    no_key_is_left(&nodes).await;
    let expected = ExtendError::Lost { resource: "orders".into(), cause };
    assert_eq!(guard.extend().await, Err(expected));

    let guard = client.acquire("orders").max_hold(ttl).await.unwrap();
    let expected = ExtendError::HoldLimit { resource: "orders".into() };
    assert_eq!(guard.extend().await, Err(expected), "the ttl from now reaches past it");
    assert!(guard.is_valid(), "the lock is held as long as before");
}

/// Three ttls under a minority that says nothing.
#[tokio::test]
async fn automatic_extension_survives_a_frozen_minority() {
    let Some(nodes) = five("automatic_extension_survives_a_frozen_minority") else { return };
    let ttl = Duration::from_secs(2);
    let client = builder(&nodes).ttl(ttl).node_timeout(ttl / 4).build().unwrap();
    let guard = client.acquire("orders").await.unwrap();
    freeze(&nodes, 2);
    let until = Instant::now() + 3 * ttl;
    while Instant::now() < until {
        assert_eq!(guard.loss(), None);
        assert!(guard.is_valid());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(guard.release().await.is_released());
    thaw(&nodes);
    no_key_is_left(&nodes).await;
}

/// And a majority that says nothing ends the lock, in time.
#[tokio::test]
async fn a_frozen_majority_ends_the_lock_before_its_validity() {
    let Some(nodes) = five("a_frozen_majority_ends_the_lock_before_its_validity") else { return };
    let ttl = Duration::from_secs(2);
    let client = builder(&nodes).ttl(ttl).node_timeout(ttl / 8).build().unwrap();
    let guard = client.acquire("orders").await.unwrap();
    freeze(&nodes, 3);
    let frozen_at = Instant::now();
    let error = guard.extend().await.unwrap_err();
    assert!(matches!(error, ExtendError::Unconfirmed { .. }), "{error}");
    assert!(guard.is_valid(), "what is unknown changes nothing: {error}");
    assert_eq!(guard.lost().await, LossCause::Expired);
    assert!(frozen_at.elapsed() < ttl + PATIENCE);
    let released = guard.release().await;
    assert_eq!(released.outcome, Outcome::Expired, "{released:?}");
    thaw(&nodes);
    no_key_is_left(&nodes).await;
}

#[tokio::test]
async fn hold_does_its_work_under_the_lock_and_stops_it_when_the_lock_is_lost() {
    let Some(nodes) = five("hold_does_its_work_under_the_lock_and_stops_it_when_it_is_lost") else {
        return;
    };
    let client = client(&nodes);
    let sum = client.hold("orders", async |guard| {
        assert!(guard.is_valid());
        eventually("all nodes have given their votes", || guard.votes() == 5).await;
        assert_eq!(get(&nodes[0], "orders"), Some(guard.token().to_string()));
        1 + 1
    });
    assert_eq!(sum.await.unwrap(), 2);
    no_key_is_left(&nodes).await;

    let mut stopped_at = 0;
    let result = client.hold("orders", async |guard| {
        eventually("all nodes have given their votes", || guard.votes() == 5).await;
        for node in &nodes[..3] {
            run(node, &["DEL", "orders"]);
        }
        stopped_at = 1;
        let _ = guard.extend().await;
        // The loss is seen in this very turn, or the next time this future would be polled.
        std::future::pending::<()>().await;
        stopped_at = 2;
    });
    let error = result.await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "lock \"orders\" was lost during the work: its key is gone from so many nodes that no \
         quorum is left"
    );
    assert_eq!(stopped_at, 1);
    no_key_is_left(&nodes).await;
}

fn freeze(nodes: &Nodes, count: usize) {
    nodes.iter().take(count).for_each(|node| node.pause().unwrap());
}

fn thaw(nodes: &Nodes) {
    nodes.iter().for_each(|node| node.resume().unwrap());
}
