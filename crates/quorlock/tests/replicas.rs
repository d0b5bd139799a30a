//! A node that is a master with a replica: a vote counts only if the replica acknowledges it.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

mod common;

use std::time::Duration;

use common::replication::{follow, master_and};
use common::{ONCE, PATIENCE, UNEXTENDED, all_servers, calls, eventually, get, run};
use quorlock::node::NodeState;
use quorlock::{
    AcquireError, BuildError, Client, ClientBuilder, LeaseError, LockOptions, NodeTrustState,
    RestartGuard, Verdict,
};
use quorlock_servers::proxy::Door;
use quorlock_servers::{Reply, Server};
use tokio::time::Instant;

const TTL: Duration = Duration::from_millis(800);

/// The error message for a vote that the replica has not acknowledged.
const MISSING: &str = "not acknowledged by its replicas in time: 0 of 1 replicas have it";

/// The error message for a vote that the node has not confirmed in time, because it waits for the replica.
const WAITS: &str = "no answer in time: a vote waits until every replica has it";

/// The error message for a connection that the client has closed, because votes were not acknowledged.
const CLOSED: &str = "its replicas are missing, so its name is resolved again";

/// The node timeout is long, so that a busy machine does not look like a missing replica.
fn builder(url: &str) -> ClientBuilder {
    Client::builder()
        .nodes([format!("a={url}?replicas=1")])
        .options(LockOptions::new().ttl(TTL).node_timeout(TTL / 4).wait(PATIENCE))
        .max_ttl(TTL)
}

fn client(url: &str) -> Client {
    builder(url).build().unwrap()
}

async fn trusted(client: &Client) {
    let guard = client.acquire("warming up").await.unwrap();
    assert!(guard.release().await.is_released());
    assert_eq!(client.stats().nodes[0].trust_state, NodeTrustState::Trusted);
}

fn missing(error: &AcquireError) {
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
    assert!(names_the_replica(error), "{error}");
}

fn names_the_replica(error: &impl std::fmt::Display) -> bool {
    let error = error.to_string();
    [MISSING, WAITS, CLOSED].iter().any(|message| error.contains(message))
}

/// On each server version: a master, its replica, and a client for which the master's votes count.
async fn with_a_replica(test: impl AsyncFn(&Server, &Server, Client)) {
    for binary in all_servers() {
        let nodes = master_and(1, &binary).await;
        let client = client(&nodes[0].url());
        trusted(&client).await;
        test(&nodes[0], &nodes[1], client).await;
    }
}

/// An address that forwards connections to the master, until the test directs it to another server.
async fn name_of(master: &Server) -> Door {
    let name = Door::open(master, |mut client, server| async move {
        let Some(mut server) = server else { return };
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    });
    name.await.unwrap()
}

#[tokio::test]
async fn votes_of_every_kind_count_once_the_replica_has_them() {
    with_a_replica(async |master, replica, client| {
        let guard = client.acquire("plain").await.unwrap();
        assert!(get(replica, "plain").is_some(), "the replica has the lock when it is granted");
        guard.extend().await.unwrap();
        let guard = client.acquire_shared("shared").await.map(|reader| (reader, guard)).unwrap();
        drop(guard);
        let fenced = client.acquire_fenced("fenced").await.unwrap();
        assert!(get(replica, "quorlock:fence:fenced").is_some());
        assert!(fenced.release().await.is_released());
        let writer = client.acquire("downgraded").await.unwrap();
        assert!(writer.downgrade().is_valid());
        let several = client.acquire(["one", "two"]).await.unwrap();
        let lease = several.detach().await.unwrap();
        let lease = client.extend_lease(&lease).await.unwrap();
        assert!(client.attach(&lease).await.unwrap().is_valid());
        let taken = client.take("taken", "value", TTL).await.unwrap();
        taken.extend().await.unwrap();
        // A new client needs no wait: the marker shows that the master is the same.
        assert!(self::client(&master.url()).acquire("new").options(ONCE).await.is_ok());
    })
    .await;
}

#[tokio::test]
async fn without_its_replica_a_node_gives_no_vote_and_keeps_no_key() {
    with_a_replica(async |master, replica, client| {
        let held = client.acquire("held").options(UNEXTENDED).await.unwrap();
        replica.pause().unwrap();
        let error = held.extend().await.unwrap_err();
        assert!(names_the_replica(&error), "{error}");
        drop(held);
        missing(&client.acquire("plain").options(ONCE).await.unwrap_err());
        missing(&client.acquire_fenced("fenced").options(ONCE).await.unwrap_err());
        missing(&client.acquire_shared("shared").options(ONCE).await.unwrap_err());
        missing(&client.take("taken", "value", TTL).await.unwrap_err());
        // The failed votes are released, although they did not count.
        for key in ["plain", "shared", "taken", "held"] {
            eventually("no key is left", || run(master, &["EXISTS", key]) == Reply::Int(0)).await;
        }
        replica.resume().unwrap();
        // The locks are free, so the calls need not wait for a ttl or a quarantine.
        for key in ["plain", "shared", "taken", "held"] {
            let guard = client.acquire(key).await.unwrap();
            assert!(guard.is_valid());
        }
    })
    .await;
}

/// A node that may have been replaced must not show a free lock, because its successor may have granted the lock.
#[tokio::test]
async fn a_master_that_lacks_its_replica_does_not_show_that_a_lock_is_free() {
    with_a_replica(async |master, replica, client| {
        let said = async |client: &Client| {
            let seen = client.inspect("free").await.unwrap();
            (seen.verdict(), seen.doubt(0).map(ToString::to_string).unwrap_or_default())
        };
        assert_eq!(said(&client).await, (Verdict::Free, String::new()));
        // The replica is still connected, and does not acknowledge a vote.
        replica.pause().unwrap();
        missing(&client.acquire("plain").options(ONCE).await.unwrap_err());
        let (verdict, why) = said(&client).await;
        assert_eq!(verdict, Verdict::Unknown);
        assert!(why.is_empty() || why.contains(" 0 of 1 replicas"), "{why}");
        replica.resume().unwrap();
        trusted(&client).await;
        assert_eq!(said(&client).await.0, Verdict::Free);

        run(replica, &["REPLICAOF", "NO", "ONE"]);
        let info = || match run(master, &["INFO", "replication"]) {
            Reply::Bulk(Some(info)) => String::from_utf8_lossy(&info).into_owned(),
            other => panic!("{other:?}"),
        };
        eventually("the replica is away", || info().contains("connected_slaves:0")).await;
        for client in [self::client(&master.url()), client] {
            let is_known = |(verdict, why): (Verdict, String)| {
                verdict == Verdict::Unknown && why.contains("it has 0 of 1 replicas")
            };
            let started = Instant::now();
            while !is_known(said(&client).await) {
                assert!(started.elapsed() < PATIENCE, "{:?}", said(&client).await);
            }
        }
    })
    .await;
}

/// A master is stopped while its replica is promoted. When the master continues, it grants locks again. They do not
/// count for a client that waits for the replica's acknowledgement.
#[tokio::test]
async fn a_master_that_was_stopped_during_a_failover_grants_nothing_that_counts() {
    for binary in all_servers() {
        let nodes = master_and(1, &binary).await;
        let (master, replica) = (&nodes[0], &nodes[1]);
        let name = name_of(master).await;
        let (old, other) = (client(&name.url()), client(&name.url()));
        trusted(&old).await;
        trusted(&other).await;
        let held = old.acquire("held").await.unwrap();
        master.pause().unwrap();
        run(replica, &["REPLICAOF", "NO", "ONE"]);
        name.lead_to(replica);
        // The promoted replica is in quarantine. After that, it gives no vote until it has a replica of its own.
        let new = client(&name.url());
        let error = new.acquire("other").options(LockOptions::new().wait(TTL)).await.unwrap_err();
        assert!(error.to_string().contains("quarantined: was a replica"), "{error}");
        eventually("the lock is lost", || !held.is_valid()).await;
        drop(held);
        master.resume().unwrap();
        // The old connections still lead to the old master, which grants locks to other programs.
        let granted = run(master, &["SET", "foreign", "x", "NX", "PX", "5000"]);
        assert_eq!(granted, Reply::Simple("OK".to_owned()));
        let started = tokio::time::Instant::now();
        while started.elapsed() < TTL {
            for client in [&old, &other] {
                assert!(client.acquire("held").options(ONCE).await.is_err());
            }
        }
        // The old master becomes a replica of the promoted server, which votes from then on. The old clients notice
        // the change, resolve the name again, and get the promoted server's votes too.
        follow(master, replica).await;
        for client in [new, old, other] {
            let guard = client.acquire("held").await.unwrap();
            assert!(get(replica, "held").is_some() && guard.is_valid());
            assert!(guard.release().await.is_released());
        }
    }
}

/// The old master can be reached, and stays a master, because only its link to the other servers is cut. Its `WAIT`
/// answers 0. With `min-replicas-to-write`, it answers the write before `WAIT` with an error.
#[tokio::test]
async fn clients_of_a_master_without_its_replica_resolve_its_name_again() {
    for (binary, replicas_to_write) in all_servers().iter().flat_map(|it| [(it, "0"), (it, "1")]) {
        let nodes = master_and(2, binary).await;
        let [master, replica, spare] = &nodes[..] else { panic!("three servers") };
        run(spare, &["REPLICAOF", "NO", "ONE"]);
        let name = name_of(master).await;
        let client = client(&name.url());
        trusted(&client).await;
        run(replica, &["REPLICAOF", "NO", "ONE"]);
        follow(spare, replica).await;
        run(master, &["CONFIG", "SET", "min-replicas-to-write", replicas_to_write]);
        name.lead_to(replica);
        let guard = client.acquire("orders").await.unwrap();
        assert!(get(replica, "orders").is_some() && guard.is_valid());
    }
}

/// A call that fails while the replica is away leaves no key, also if an inspection is sent before the vote's release.
#[tokio::test]
async fn a_vote_without_acknowledgement_is_released_before_the_connection_is_closed() {
    for binary in all_servers() {
        let nodes = master_and(1, &binary).await;
        let (master, replica) = (&nodes[0], &nodes[1]);
        let name = name_of(master).await;
        let client = client(&name.url());
        trusted(&client).await;
        // New connections fail, so a release is sent on the present connection or not at all.
        replica.kill().unwrap();
        name.lead_to(replica);
        let releases =
            || ["eval", "evalsha", "delifeq"].map(|it| calls(master, it)).iter().sum::<u64>();
        let is_down = || matches!(client.stats().nodes[0].state, NodeState::Down(_));
        while !is_down() {
            let before = releases();
            let call = async { client.acquire("orders").options(ONCE).await };
            let (called, _) = tokio::join!(call, client.inspect("other"));
            let error = called.unwrap_err().to_string();
            if error.contains(MISSING) || error.contains(WAITS) {
                eventually("the vote is released", || releases() > before).await;
            }
        }
    }
}

/// On a new connection, the old master confirms an extension without a write. Then Valkey, and Redis from 7.2 on,
/// answer `WAIT` as if the replica had everything. So the client writes a key of its own before `WAIT`.
#[tokio::test]
async fn a_vote_that_needs_no_write_counts_only_if_the_replica_has_what_it_rests_on() {
    with_a_replica(async |master, replica, first| {
        let lease = first.acquire("orders").await.unwrap().detach().await.unwrap();
        let second = client(&master.url());
        trusted(&second).await;
        // The replica acknowledges all earlier writes, also those of the second client.
        let mut connection = master.connect().unwrap();
        connection.command(&["SET", "x", "1"]).unwrap();
        assert_eq!(connection.command(&["WAIT", "1", "5000"]).unwrap(), Reply::Int(1));
        replica.pause().unwrap();
        // Another client's write, which the replica does not have.
        run(master, &["PEXPIRE", "orders", "60000"]);
        let error = second.extend_lease(&lease).await.unwrap_err();
        assert!(matches!(error, LeaseError::Unconfirmed { .. }), "{error}");
        assert!(names_the_replica(&error), "{error}");
        replica.resume().unwrap();
        let lease = first.extend_lease(&lease).await.unwrap();
        assert!(first.release_lease(&lease).await.unwrap().is_released());
    })
    .await;
}

#[tokio::test]
async fn a_node_with_more_replicas_than_its_url_says_is_refused_with_the_remedy() {
    for binary in all_servers() {
        let nodes = master_and(2, &binary).await;
        let error = client(&nodes[0].url()).acquire("orders").options(ONCE).await.unwrap_err();
        let remedy = "it has 2 replicas, but this client expects 1; set replicas=2 in all clients";
        assert!(error.to_string().contains(remedy), "{error}");
        eventually("no lock is left", || get(&nodes[0], "orders").is_none()).await;
    }
}

#[tokio::test]
async fn a_node_with_replicas_needs_pushes() {
    for binary in all_servers() {
        let nodes = master_and(1, &binary).await;
        run(&nodes[0], &["ACL", "SETUSER", "default", "-client"]);
        let error = client(&nodes[0].url()).acquire("orders").options(ONCE).await.unwrap_err();
        let needs = "needs RESP3 and the right +client|tracking";
        assert!(error.to_string().contains(needs), "{error}");
    }
}

#[tokio::test]
async fn replicas_need_the_restart_guard_and_exclude_durable_nodes() {
    let url = "redis://127.0.0.1:1";
    for builder in [
        builder(url).restart_guard(RestartGuard::Off),
        builder(url).restart_guard(RestartGuard::Observe),
        builder(url).durable_nodes(["a"]),
    ] {
        let error = builder.build().unwrap_err();
        assert!(matches!(error, BuildError::Replicas { .. }), "{error}");
    }
    assert!(builder(url).build().is_ok());
}
