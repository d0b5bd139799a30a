//! Locks with a value of the caller: `take`, the calls that compare the value alone, and `query`.

use std::time::Duration;

use quorlock::{Client, InvalidRequest, LeaseError, LockOptions, Outcome, Query};
use quorlock_servers::Reply;

use crate::common::{PATIENCE, all_up, eventually, five, get, no_key_is_left, pttl, run};
use crate::{LONG, block, builder, client, key_is, sent, unblock};

const VALUE: &[u8] = b"LockTakeValue";
const NONCE_KEY: &str = "quorlock:take:k";

fn is_value(query: &Query) -> bool {
    *query == Query::Value(VALUE.to_vec())
}

#[tokio::test]
async fn the_lock_with_the_callers_value_is_taken_extended_and_released() {
    let Some(nodes) = five() else { return };
    let (one, other) = (client(&nodes).await, client(&nodes).await);
    assert_eq!(one.query("k").await.unwrap(), Query::Free);
    let taken = one.take("k", VALUE, LONG).await.unwrap();
    assert_eq!((taken.resource(), taken.value(), taken.is_valid()), ("k", VALUE, true));
    let nonce = taken.nonce().to_string();
    let is_set =
        || key_is(&nodes, "k", Some("LockTakeValue")) && key_is(&nodes, NONCE_KEY, Some(&nonce));
    eventually("all nodes have the value and the nonce", is_set).await;
    assert!(is_value(&other.query("k").await.unwrap()));
    for client in [&one, &other] {
        for value in [VALUE, b"another"] {
            let error = client.take("k", value, LONG).await.unwrap_err();
            assert!(error.is_contended(), "{error}");
        }
        assert!(client.try_acquire("k").await.unwrap_err().is_contended());
        assert!(client.acquire_shared("k").options(crate::common::ONCE).await.is_err());
    }
    nodes.iter().for_each(|node| drop(run(node, &["PEXPIRE", "k", "60000"])));
    let remaining = taken.extend().await.unwrap();
    assert!(remaining > LONG / 2 && remaining <= LONG);
    let is_long =
        || nodes.iter().all(|node| pttl(node, "k") > 60_000 && pttl(node, NONCE_KEY) > 60_000);
    eventually("all nodes extend", is_long).await;
    run(&nodes[4], &["DEL", "k", NONCE_KEY]);
    taken.extend().await.unwrap();
    taken.extend().await.unwrap();
    assert_eq!(get(&nodes[4], "k"), None, "no node sets the value again");
    assert!(taken.release().await.is_released());
    no_key_is_left(&nodes).await;
    assert_eq!(other.query("k").await.unwrap(), Query::Free);
    assert!(other.take("k", VALUE, LONG).await.unwrap().release().await.is_released());
}

#[tokio::test]
async fn a_dropped_taken_leaves_the_lock_for_the_forms_by_value() {
    let Some(nodes) = five() else { return };
    let (one, other) = (client(&nodes).await, client(&nodes).await);
    let taken = one.take("k", VALUE, LONG).await.unwrap();
    eventually("all nodes have the value", || key_is(&nodes, "k", Some("LockTakeValue"))).await;
    drop(taken);
    eventually("nothing is held", || one.stats().locks_held == 0).await;
    one.shutdown(PATIENCE).await.unwrap();
    assert!(is_value(&other.query("k").await.unwrap()));

    let wrong = other.extend_value("k", "another", LONG).await.unwrap_err();
    assert!(matches!(wrong, LeaseError::Lost { .. }), "{wrong}");
    assert_ne!(other.release_value("k", "another").await.unwrap().outcome, Outcome::Released);
    assert!(key_is(&nodes, "k", Some("LockTakeValue")));

    let nonce = get(&nodes[0], NONCE_KEY).unwrap();
    let remaining = other.extend_value("k", VALUE, LONG * 2).await.unwrap();
    assert!(remaining > LONG && remaining <= LONG * 2, "{remaining:?}");
    let is_other = || nodes.iter().all(|node| get(node, NONCE_KEY).is_some_and(|it| it != nonce));
    eventually("the nonce is another", is_other).await;
    assert!(other.release_value("k", VALUE).await.unwrap().is_released());
    no_key_is_left(&nodes).await;
}

/// Another client ends the lock by its value and takes the lock with an equal value, but with another nonce.
#[tokio::test]
async fn a_taken_does_not_extend_or_release_a_lock_with_an_equal_value() {
    let Some(nodes) = five() else { return };
    let (one, other) = (client(&nodes).await, client(&nodes).await);
    let taken = one.take("k", VALUE, LONG).await.unwrap();
    eventually("all nodes have the value", || key_is(&nodes, "k", Some("LockTakeValue"))).await;
    assert!(other.release_value("k", VALUE).await.unwrap().is_released());
    no_key_is_left(&nodes).await;
    let next = other.take("k", VALUE, LONG).await.unwrap();
    eventually("all nodes have the value", || key_is(&nodes, "k", Some("LockTakeValue"))).await;
    assert!(taken.extend().await.is_err());
    assert!(!taken.is_valid());
    assert_ne!(taken.release().await.outcome, Outcome::Released);
    assert!(next.extend().await.unwrap() > LONG / 2);
    assert!(key_is(&nodes, "k", Some("LockTakeValue")));
    assert!(next.release().await.is_released());
}

#[test]
fn a_blocking_client_has_the_same_calls() {
    let Some(nodes) = five() else { return };
    let client = builder(&nodes).blocking().build().unwrap();
    let taken = client.take("k", VALUE, LONG).call().unwrap();
    assert_eq!((taken.resource(), taken.value(), taken.is_valid()), ("k", VALUE, true));
    assert!(client.take("k", VALUE, LONG).call().unwrap_err().is_contended());
    assert!(taken.extend().unwrap() > LONG / 2);
    assert!(is_value(&client.query("k").unwrap()));
    assert!(taken.release().is_released());
    drop(client.take("k", VALUE, LONG).options(LockOptions::new().wait(PATIENCE)).call().unwrap());
    assert!(client.extend_value("k", VALUE, LONG).unwrap() > LONG / 2);
    assert!(client.release_value("k", VALUE).unwrap().is_released());
    assert_eq!(client.query("k").unwrap(), Query::Free);
    let lease = client.take("l", VALUE, LONG).call().unwrap().detach().unwrap();
    let lease = crate::reread(&client.extend_lease(&lease).unwrap());
    assert_eq!(lease.value(), Some(VALUE));
    assert!(client.release_lease(&lease).unwrap().is_released());
}

#[tokio::test]
async fn a_query_distinguishes_values_readers_splits_and_silence() {
    let Some(nodes) = five() else { return };
    let client = builder(&nodes)
        .options(LockOptions::new().node_timeout(Duration::from_secs(1)))
        .build()
        .unwrap();
    all_up(&client).await;
    let query = async || client.query("k").await.unwrap();
    block(&nodes[..2], "k");
    assert_eq!(query().await, Query::Free);
    run(&nodes[2], &["SET", "k", "another"]);
    assert_eq!(query().await, Query::Split);
    run(&nodes[2], &["SET", "k", "blocked"]);
    assert_eq!(query().await, Query::Value(b"blocked".to_vec()));
    unblock(&nodes[..3], "k");
    let reader = client.acquire_shared("k").await.unwrap();
    assert_eq!(query().await, Query::Shared);
    assert!(reader.release().await.is_released());
    nodes[..3].iter().for_each(|node| node.kill().unwrap());
    assert_eq!(query().await, Query::Unknown);
}

#[tokio::test]
async fn values_have_limits_and_the_nodes_keep_every_byte() {
    let Some(nodes) = five() else { return };
    let client = client(&nodes).await;
    let longest = vec![0xff; Client::VALUE_BYTES_MAX];
    for value in [&b""[..], &[&longest[..], b"x"].concat()] {
        let refused = |error| {
            let max = Client::VALUE_BYTES_MAX;
            assert_eq!(error, InvalidRequest::Value { bytes: value.len(), max });
        };
        match client.take("k", value, LONG).await.unwrap_err() {
            quorlock::AcquireError::Invalid(error) => refused(error),
            other => panic!("{other}"),
        }
        match client.extend_value("k", value, LONG).await.unwrap_err() {
            LeaseError::Invalid(error) => refused(error),
            other => panic!("{other}"),
        }
        refused(client.release_value("k", value).await.unwrap_err());
    }
    assert_eq!(sent(&client), 0);
    for value in [&longest[..], b"\0", b"\r\n$1\r\n", b" v "] {
        let taken = client.take("k", value, LONG).await.unwrap();
        assert_eq!(client.query("k").await.unwrap(), Query::Value(value.to_vec()));
        let length = Reply::Int(value.len().try_into().unwrap());
        let is_whole = |node| run(node, &["STRLEN", "k"]) == length;
        eventually("all nodes have the value", || nodes.iter().all(is_whole)).await;
        let lease = crate::reread(&taken.detach().await.unwrap());
        assert_eq!(lease.value(), Some(value));
        assert!(client.release_lease(&lease).await.unwrap().is_released());
        no_key_is_left(&nodes).await;
    }
}
