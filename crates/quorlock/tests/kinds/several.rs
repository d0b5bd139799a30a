use std::time::Duration;

use quorlock::InvalidRequest;
use tokio::time::timeout;

use crate::common::{PATIENT, builder, five, no_key_is_left};
use crate::{PATIENCE, give_back, is_held, two_clients};

#[tokio::test]
async fn a_lock_of_two_keys_is_held_on_both_or_on_none() {
    let (nodes, one, other) = two_clients();
    let both = one.acquire(["b", "a"]).await.unwrap();
    assert_eq!(both.resource(), "a, b");
    for tried in ["a", "b"] {
        assert!(is_held(&other.try_acquire(tried).await), "{tried}");
    }
    let b = other.try_acquire(["b", "c"]).await;
    let said = b.unwrap_err().to_string();
    assert!(said.starts_with("lock \"b, c\" not acquired"), "{said}");
    assert!(said.contains("\"b\" held by a client without a name"), "it says which: {said}");
    assert!(!nodes.iter().any(|node| node.contains("c")), "all or nothing");
    assert!(other.try_acquire("c").await.is_ok());
    give_back(both).await;
    assert!(nodes.iter().all(|node| !node.contains("a") && !node.contains("b")));
}

/// A call for both keys waits for the first key. It must not block a call for the second key, because the holder of
/// the first may need the second.
#[tokio::test]
async fn a_set_of_keys_between_two_nested_locks_does_not_deadlock() {
    let (_nodes, client, _) = two_clients();
    let a = client.acquire("a").await.unwrap();
    let both = client.clone();
    let both = tokio::spawn(async move { both.acquire(["a", "b"]).options(PATIENT).await });
    while client.stats().calls_waiting == 0 {
        tokio::task::yield_now().await;
    }
    let b = timeout(PATIENCE, client.acquire("b").options(PATIENT)).await.unwrap().unwrap();
    assert!(!both.is_finished());
    give_back(b).await;
    give_back(a).await;
    give_back(both.await.unwrap().unwrap()).await;
}

#[tokio::test]
async fn keys_in_opposite_orders_do_not_deadlock() {
    let (nodes, one, other) = two_clients();
    let work = |client: quorlock::Client, keys: [&'static str; 2]| {
        tokio::spawn(async move {
            for _ in 0..30 {
                let guard = client.acquire(keys).options(PATIENT).await.unwrap();
                tokio::task::yield_now().await;
                give_back(guard).await;
            }
        })
    };
    let tasks = [
        work(one.clone(), ["a", "b"]),
        work(one.clone(), ["b", "a"]),
        work(one, ["b", "c"]),
        work(other.clone(), ["c", "a"]),
        work(other, ["b", "a"]),
    ];
    for task in tasks {
        timeout(PATIENCE, task).await.unwrap().unwrap();
    }
    for node in nodes {
        while node.key_count() > 0 {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn equal_sets_are_handed_over_and_others_are_not() {
    let (_nodes, client, _) = two_clients();
    let held = client.acquire(["a", "b"]).await.unwrap();
    let token = held.token();
    let waits = |keys: Vec<&'static str>| {
        let client = client.clone();
        tokio::spawn(async move { client.acquire(keys).options(PATIENT).await })
    };
    let same = waits(vec!["b", "a"]);
    while client.stats().calls_waiting < 1 {
        tokio::task::yield_now().await;
    }
    let fewer = waits(vec!["a"]);
    while client.stats().calls_waiting < 2 {
        tokio::task::yield_now().await;
    }
    assert!(held.release().await.handed_over);
    let same = same.await.unwrap().unwrap();
    assert_eq!(same.token().stored(), token.stored());
    assert!(!same.release().await.handed_over, "another lock is another lock");
    give_back(fewer.await.unwrap().unwrap()).await;
}

#[tokio::test]
async fn invalid_lists_of_keys_are_refused_before_anything_is_sent() {
    let (nodes, client, _) = two_clients();
    let refused = async |keys: Vec<String>| match client.acquire(keys).await.unwrap_err() {
        quorlock::AcquireError::Invalid(why) => why,
        other => panic!("{other}"),
    };
    let twice = refused(vec!["a".into(), "b".into(), "a".into()]).await;
    assert_eq!(twice.to_string(), "the resource \"a\" is named twice");
    assert_eq!(refused(vec![]).await, InvalidRequest::ResourceCount { count: 0, max: 64 });
    let many = refused((0..65).map(|nth| nth.to_string()).collect()).await;
    assert_eq!(many.to_string(), "one lock is about 1 to 64 resources, not 65");
    assert_eq!(refused(vec!["a".into(), String::new()]).await, InvalidRequest::ResourceEmpty);
    assert!(nodes.iter().all(|node| node.key_count() == 0));
    let most: Vec<String> = (0..64).map(|nth| nth.to_string()).collect();
    give_back(client.acquire(most).await.unwrap()).await;
}

/// Each key has a counter of its own. The tokens of overlapping sets rise for every key.
#[tokio::test]
async fn fences_of_overlapping_sets_rise_for_each_key() {
    let Some(nodes) = five() else { return };
    let client = builder(&nodes).build().unwrap();
    let sets: [&[&str]; 6] = [&["a"], &["a", "b"], &["b"], &["b", "c"], &["a", "b", "c"], &["c"]];
    let mut last = std::collections::BTreeMap::new();
    for round in 0..30 {
        let keys = sets[(round * 5) % sets.len()];
        let guard = client.acquire_fenced(keys).options(PATIENT).await.unwrap();
        let fence = guard.fencing_token();
        for key in keys {
            let before = last.insert(*key, fence).unwrap_or(0);
            assert!(fence > before, "{key} of {keys:?}: {fence} behind {before}");
        }
        give_back(guard.into()).await;
    }
    client.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test]
async fn several_keys_are_extended_restored_and_released_on_servers() {
    let Some(nodes) = five() else { return };
    let client = builder(&nodes).build().unwrap();
    let keys: Vec<String> = (0..64).map(|nth| format!("k{nth:02}")).collect();
    let guard = client.acquire(&keys).options(PATIENT).await.unwrap();
    crate::common::eventually("all nodes have given their votes", || guard.votes() == 5).await;
    // Two nodes have lost one of the keys. Their votes are lost and then restored.
    for node in &nodes[..2] {
        crate::common::run(node, &["DEL", "k07"]);
    }
    guard.extend().await.unwrap();
    crate::common::eventually("both are healed", || {
        nodes.iter().all(|node| crate::common::get(node, "k07").is_some())
    })
    .await;
    crate::common::eventually("all votes are held", || guard.votes() == 5).await;
    assert!(guard.is_valid());
    give_back(guard).await;
    no_key_is_left(&nodes).await;
}
