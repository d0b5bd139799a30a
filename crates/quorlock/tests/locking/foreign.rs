//! Locks of other clients, and keys that are not locks.

use quorlock::node::{FailureKind, Holding};
use quorlock::{HolderKind, LockOptions, NodeOutcome, Verdict};
use quorlock_servers::{Reply, Server};

use crate::common::{builder, client, eventually, five, get, no_key_is_left, pttl, run, skip};

/// The other client stands for any library that uses `SET NX PX`.
#[tokio::test]
async fn a_plain_set_nx_client_and_ours_exclude_each_other() {
    let Some(nodes) = five() else { return };
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
async fn a_redis_py_lock_and_ours_exclude_each_other() {
    let Some(nodes) = five() else { return };
    let python = |script: &str| {
        let mut command = std::process::Command::new("python3");
        command.args(["-c", script]).args(nodes.iter().take(3).map(Server::address));
        command.output()
    };
    if !python("import redis").is_ok_and(|output| output.status.success()) {
        return skip("python3 has no module redis");
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
async fn keys_that_are_no_locks_are_reported_and_never_deleted() {
    let Some(nodes) = five() else { return };
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
async fn an_inspection_distinguishes_held_free_split_and_unknown() {
    let Some(nodes) = five() else { return };
    let client = builder(&nodes).options(LockOptions::new().owner("api-7")).build().unwrap();
    let free = client.inspect("orders").await.unwrap();
    assert_eq!((free.verdict(), free.holder(), free.quorum()), (Verdict::Free, None, 3));

    let guard = client.acquire("orders").await.unwrap();
    eventually("all nodes have given their votes", || guard.votes() == 5).await;
    let held = client.inspect("orders").await.unwrap();
    assert_eq!(held.verdict(), Verdict::Held);
    assert_eq!(held.holder().unwrap().kind, HolderKind::Owner("api-7".to_owned()));
    let is_ours = |said: &NodeOutcome| matches!(said, NodeOutcome::Seen(Holding::Held { value, ttl: Some(_) }) if value.ends_with(b" api-7"));
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
