use std::time::Duration;

use quorlock::{LockOptions, LossCause, Mode, Verdict};
use quorlock_servers::Reply;
use tokio::time::timeout;

use crate::common::{ONCE, PATIENT, builder, eventually, five, no_key_is_left, run};
use crate::{PATIENCE, give_back, is_held, two_clients};

#[tokio::test]
async fn readers_share_and_writers_do_not() {
    let (nodes, one, other) = two_clients();
    let readers = [
        one.acquire_shared("k").options(LockOptions::new().owner("r1")).await.unwrap(),
        one.acquire_shared("k").options(LockOptions::new().owner("r2")).await.unwrap(),
        other.acquire_shared("k").options(LockOptions::new().owner("r3")).await.unwrap(),
    ];
    assert!(readers.iter().all(|reader| reader.mode() == Mode::Shared && reader.is_valid()));
    for client in [&one, &other] {
        assert!(is_held(&client.try_acquire("k").await));
    }
    let seen = other.inspect("k").await.unwrap();
    assert_eq!(seen.verdict(), Verdict::Shared);
    let mut names: Vec<String> = seen.readers().iter().map(|it| it.kind.to_string()).collect();
    names.sort();
    assert_eq!(names, ["r1", "r2", "r3"]);
    for reader in readers {
        assert!(is_held(&other.try_acquire("k").await));
        assert!(reader.release().await.is_released());
    }
    assert!(nodes.iter().all(|node| !node.contains("k")));
    let writer = other.acquire("k").await.unwrap();
    assert!(is_held(&one.acquire_shared("k").options(ONCE).await));
    assert_eq!(one.inspect("k").await.unwrap().verdict(), Verdict::Held);
    give_back(writer).await;
}

/// Readers overlap, so the lock is never free. A writer must still get it.
#[tokio::test]
async fn a_writer_gets_the_lock_although_readers_keep_coming() {
    let Some(nodes) = five() else { return };
    let stop = stop_flag();
    let mut tasks = Vec::new();
    for nth in 0..4 {
        let client = builder(&nodes).build().unwrap();
        let stop = stop.clone();
        tasks.push(tokio::spawn(async move {
            // The readers overlap: at any time at least one holds the lock.
            tokio::time::sleep(Duration::from_millis(5 * nth)).await;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let guard = client.acquire_shared("k").options(PATIENT).await.unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
                give_back(guard).await;
            }
        }));
    }
    let writer = builder(&nodes).build().unwrap();
    for _ in 0..5 {
        let guard = writer.acquire("k").options(PATIENT).await.unwrap();
        assert_eq!(writer.inspect("k").await.unwrap().verdict(), Verdict::Held);
        give_back(guard).await;
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    for task in tasks {
        timeout(PATIENCE, task).await.unwrap().unwrap();
    }
    no_key_is_left(&nodes).await;
}

fn stop_flag() -> std::sync::Arc<std::sync::atomic::AtomicBool> {
    std::sync::Arc::default()
}

#[tokio::test]
async fn a_writer_becomes_a_reader_without_a_gap() {
    let Some(nodes) = five() else { return };
    let client = builder(&nodes).build().unwrap();
    let other = builder(&nodes).build().unwrap();
    let guard = client.acquire_fenced("k").await.unwrap();
    eventually("all nodes have given their votes", || guard.votes() == 5).await;
    let waiting = other.clone();
    let writer = tokio::spawn(async move { waiting.acquire("k").options(PATIENT).await });
    let guard = guard.downgrade();
    assert_eq!(guard.mode(), Mode::Shared, "before any node has answered");
    let remaining = timeout(PATIENCE, guard.extend()).await.unwrap().unwrap();
    assert!(remaining > Duration::ZERO && guard.is_valid());
    let reader = client.acquire_shared("k").options(PATIENT).await.unwrap();
    assert!(!writer.is_finished());
    // `extend` returns when a quorum has answered. The other nodes may still have to receive the downgrade.
    for node in &nodes {
        let is_set = || run(node, &["TYPE", "k"]) == Reply::Simple("zset".into());
        eventually("the node has turned the vote", is_set).await;
    }
    guard.extend().await.unwrap();
    let guard = guard.downgrade();
    guard.extend().await.unwrap();
    assert_eq!(guard.votes(), 5);
    give_back(guard).await;
    give_back(reader).await;
    give_back(writer.await.unwrap().unwrap()).await;
}

/// The guard is shared as soon as `downgrade` returns, whatever the nodes answer.
#[tokio::test]
async fn a_downgrade_takes_effect_even_if_no_node_confirms_it() {
    let (nodes, one, other) = two_clients();
    let guard =
        one.acquire("k").options(LockOptions::new().ttl(Duration::from_secs(2))).await.unwrap();
    nodes.iter().for_each(quorlock::node::MemoryNode::freeze);
    let guard = guard.downgrade();
    assert!(guard.extend().await.is_err());
    assert_eq!((guard.mode(), guard.is_valid()), (Mode::Shared, true));
    nodes.iter().for_each(quorlock::node::MemoryNode::thaw);
    let reader = other.acquire_shared("k").options(PATIENT).await.unwrap();
    assert!(guard.is_valid(), "both read");
    give_back(reader).await;
    give_back(guard).await;
}

#[tokio::test]
async fn a_reader_that_lost_its_keys_learns_of_the_loss() {
    let (nodes, one, _) = two_clients();
    let guard = one.acquire_shared("k").await.unwrap();
    for node in &nodes[..2] {
        assert!(node.remove("k"));
    }
    assert!(guard.extend().await.is_err());
    assert_eq!(guard.loss_cause(), Some(LossCause::KeyGone));
    let again = one.acquire_shared("k").await.unwrap();
    give_back(again).await;
}

/// The key may be a Redisson hash, or a sorted set of an application.
#[tokio::test]
async fn a_key_that_is_no_lock_is_refused_and_left_alone() {
    let Some(nodes) = five() else { return };
    let client = builder(&nodes).build().unwrap();
    for make in [&["HSET", "k", "8f:1", "1"][..], &["ZADD", "k", "1790000000000", "alice"][..]] {
        for node in &nodes {
            run(node, &["DEL", "k"]);
            run(node, make);
            run(node, &["PEXPIRE", "k", "600000"]);
        }
        let error = client.acquire_shared("k").options(ONCE).await.unwrap_err();
        assert!(error.is_contended() && error.to_string().contains("no lock"), "{error}");
        let error = client.acquire_shared(["k", "l"]).options(ONCE).await.unwrap_err();
        assert!(error.is_contended(), "{error}");
        for node in &nodes {
            let kept = [&["HLEN", "k"], &["ZCARD", "k"]].map(|ask| {
                let kind = run(node, &["TYPE", "k"]);
                let is_hash = kind == Reply::Simple("hash".into());
                (is_hash == (ask[0] == "HLEN")).then(|| run(node, ask))
            });
            assert!(kept.into_iter().flatten().all(|count| count == Reply::Int(1)));
        }
    }
}

/// symfony/lock stores a sorted set that expires with its largest score, as readers do. The member `__write__` marks an
/// exclusive lock.
#[tokio::test]
async fn an_exclusive_lock_of_symfony_is_no_reader() {
    let Some(nodes) = five() else { return };
    let client = builder(&nodes).build().unwrap();
    let lock = "local time = redis.call('TIME') local ends = time[1] * 1000 + 600000 \
                redis.call('ZADD', KEYS[1], ends, '__write__', ends, 'token') \
                return redis.call('PEXPIREAT', KEYS[1], ends)";
    for node in &nodes {
        run(node, &["EVAL", lock, "1", "k"]);
    }
    let error = client.acquire_shared("k").options(ONCE).await.unwrap_err();
    assert!(error.is_contended() && error.to_string().contains("no lock"), "{error}");
    for node in &nodes {
        assert_eq!(run(node, &["ZCARD", "k"]), Reply::Int(2));
        run(node, &["ZREM", "k", "__write__"]);
    }
    assert!(client.acquire_shared("k").options(ONCE).await.is_ok(), "readers of symfony share");
}

#[tokio::test]
async fn several_keys_can_be_read_together() {
    let (nodes, one, other) = two_clients();
    let both = one.acquire_shared(["a", "b"]).await.unwrap();
    let same = other.acquire_shared(["b", "c"]).await.unwrap();
    assert!(is_held(&other.try_acquire(["a", "c"]).await));
    assert!(is_held(&other.try_acquire("c").await));
    give_back(both).await;
    assert!(other.try_acquire("a").await.is_ok());
    give_back(same).await;
    assert!(nodes.iter().all(|node| !node.contains("b") && !node.contains("c")));
}
