//! A node's data is replaced while a connection lasts, or after a promotion.

use std::time::Duration;

use quorlock::{AcquireError, Verdict};
use quorlock_servers::{Nodes, Reply, Server, ServerOptions};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::common::{UNEXTENDED, all_servers, eventually, get, key_count, run, server, start};
use crate::{MARKER, all_trusted, strict, untrusted_now, with_args, without_a_wait};

/// Makes a server the replica of a master, and waits until both are in sync.
async fn follow(replica: &Server, master: &Server) {
    let (_, port) =
        master.url().rsplit_once(':').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    run(replica, &["REPLICAOF", "127.0.0.1", &port]);
    eventually("the replica is in step", || {
        let Reply::Bulk(Some(info)) = run(replica, &["INFO", "replication"]) else { panic!() };
        String::from_utf8_lossy(&info).contains("master_link_status:up")
    })
    .await;
}

/// A promoted replica may lack the master's last votes. So it is quarantined: it does not vote until they have expired.
#[tokio::test]
async fn a_promoted_replica_is_quarantined() {
    let Some(nodes) = start(2, with_args(&[])) else { return };
    let old = strict(&nodes[..1]).build().unwrap();
    all_trusted(&old).await;
    follow(&nodes[1], &nodes[0]).await;
    assert!(get(&nodes[1], MARKER).is_some(), "it has the old master's marker");
    run(&nodes[1], &["REPLICAOF", "NO", "ONE"]);
    let new = strict(&nodes[1..]).build().unwrap();
    let error = untrusted_now(&new).await;
    assert!(error.to_string().contains("quarantined: was a replica"), "{error}");
    all_trusted(&new).await;
    // The node still counts as promoted, but clients quarantine it only once.
    let next = strict(&nodes[1..]).build().unwrap();
    assert!(without_a_wait(&next).await.is_valid());
}

/// A flush while the connection lasts makes votes worthless. Every client must notice it.
#[tokio::test]
async fn a_flush_is_noticed() {
    let Some(nodes) = start(3, ServerOptions::default()) else { return };
    let client = strict(&nodes).build().unwrap();
    all_trusted(&client).await;
    let holder = client.acquire("orders").await.unwrap();
    for node in &nodes {
        run(node, &["FLUSHALL"]);
    }
    // An attempt right after the flush must not count the votes, because the flush has deleted the marker.
    let rival = strict(&nodes).build().unwrap();
    let error = rival.try_acquire("orders").await.unwrap_err();
    assert!(matches!(error, AcquireError::NodesUntrusted(_)), "{error}");
    let error = client.try_acquire("other").await.unwrap_err();
    assert!(matches!(error, AcquireError::NodesUntrusted(_)), "{error}");
    let guard = rival.acquire("orders").await.unwrap();
    assert!(!holder.is_valid() && guard.is_valid());
}

/// A look after a flush must not show a free lock. A server without RESP3 does not announce the flush, and the client
/// examines its nodes only every 15 s.
#[tokio::test]
async fn a_flush_is_noticed_by_a_look_also_without_resp3() {
    for args in [&[][..], &["--rename-command", "HELLO", ""]] {
        let Some(nodes) = start(3, with_args(args)) else { return };
        let client = strict(&nodes).build().unwrap();
        all_trusted(&client).await;
        assert_eq!(client.inspect("orders").await.unwrap().verdict(), Verdict::Free);
        // After this time a look examines the nodes again.
        sleep(Duration::from_millis(60)).await;
        for node in &nodes {
            run(node, &["FLUSHALL"]);
        }
        let seen = client.inspect("orders").await.unwrap();
        assert_eq!((seen.verdict(), seen.untrusted()), (Verdict::Unknown, 3), "{args:?}: {seen:?}");
    }
}

#[tokio::test]
async fn data_of_another_master_is_noticed() {
    let Some(nodes) = start(2, with_args(&[])) else { return };
    let client = strict(&nodes[..1]).build().unwrap();
    all_trusted(&client).await;
    let holder = client.acquire("orders").await.unwrap();
    // Connection, uptime and run id stay the same, but the data is another server's.
    follow(&nodes[0], &nodes[1]).await;
    run(&nodes[0], &["REPLICAOF", "NO", "ONE"]);
    assert_eq!(get(&nodes[0], "orders"), None);
    let error = client.try_acquire("other").await.unwrap_err();
    assert!(matches!(error, AcquireError::NodesUntrusted(_)), "{error}");
    let rival = strict(&nodes[..1]).build().unwrap();
    untrusted_now(&rival).await;
    drop(holder);
    all_trusted(&client).await;
}

/// A master becomes the replica of its own lagging replica, and then a master again. Its data is older and has the
/// same marker, while the connection lasts. The server pushes that all data has changed before any other reply, and
/// the client then checks the node again.
#[tokio::test]
async fn older_data_of_the_same_node_is_noticed_while_the_connection_lasts() {
    let servers = all_servers();
    let each = servers.into_iter().map(|binary| async move {
        let options = with_args(&["--repl-diskless-sync-delay", "0"]);
        let nodes = Nodes::start(&binary, 2, options).unwrap();
        let clients = || strict(&nodes[..1]).build().unwrap();
        let (client, rival) = (clients(), clients());
        all_trusted(&client).await;
        // From here on the replica no longer follows its master, so its data becomes old.
        follow(&nodes[1], &nodes[0]).await;
        run(&nodes[1], &["REPLICAOF", "NO", "ONE"]);
        all_trusted(&rival).await;
        let holder = client.acquire("orders").options(UNEXTENDED).await.unwrap();
        follow(&nodes[0], &nodes[1]).await;
        run(&nodes[0], &["REPLICAOF", "NO", "ONE"]);
        assert_eq!(get(&nodes[0], "orders"), None, "the vote is forgotten");
        assert!(get(&nodes[0], MARKER).is_some(), "and the marker is not");
        untrusted_now(&rival).await;
        drop(holder);
        all_trusted(&rival).await;
    });
    each.collect::<JoinSet<()>>().join_all().await;
}

/// A partial resync executes the commands that the replica missed and changes nothing else. So there is no push, and
/// clients keep counting the node's votes. GUARANTEES.md states the consequence.
#[tokio::test]
async fn a_partial_resync_keeps_the_votes_of_a_node() {
    let servers = all_servers();
    let each = servers.into_iter().map(|binary| async move {
        let options = with_args(&["--repl-diskless-sync-delay", "0"]);
        let nodes = Nodes::start(&binary, 2, options).unwrap();
        follow(&nodes[1], &nodes[0]).await;
        for key in ["kept", "deleted"] {
            run(&nodes[0], &["SET", key, "x", "PX", "60000"]);
        }
        eventually("the replica has them", || key_count(&nodes[1]) == 2).await;
        run(&nodes[1], &["REPLICAOF", "NO", "ONE"]);
        follow(&nodes[0], &nodes[1]).await;
        run(&nodes[1], &["DEL", "deleted"]);
        eventually("the other has followed", || key_count(&nodes[0]) == 1).await;
        run(&nodes[0], &["REPLICAOF", "NO", "ONE"]);
        let Reply::Bulk(Some(stats)) = run(&nodes[1], &["INFO", "stats"]) else { panic!() };
        let stats = String::from_utf8_lossy(&stats).into_owned();
        assert!(stats.contains("sync_partial_ok:1") && stats.contains("sync_full:0"), "{stats}");
        assert_eq!(get(&nodes[0], "kept").as_deref(), Some("x"));
        assert_eq!(get(&nodes[0], "deleted"), None);
    });
    each.collect::<JoinSet<()>>().join_all().await;
}

/// A server that reloads its own data set forgets nothing and keeps voting.
#[tokio::test]
async fn a_reload_of_its_own_data_costs_no_vote() {
    let Some(binary) = server() else { return };
    let args: &[&str] = match binary.version.major {
        ..7 => &[],
        7.. => &["--enable-debug-command", "yes"],
    };
    let nodes = Nodes::start(&binary, 3, with_args(args)).unwrap();
    let client = strict(&nodes).build().unwrap();
    all_trusted(&client).await;
    let holder = client.acquire("orders").await.unwrap();
    for node in &nodes {
        run(node, &["DEBUG", "RELOAD"]);
    }
    let rival = strict(&nodes).build().unwrap();
    let error = rival.try_acquire("orders").await.unwrap_err();
    assert!(error.is_contended(), "{error}");
    assert_eq!(holder.loss_cause(), None);
    all_trusted(&rival).await;
}
