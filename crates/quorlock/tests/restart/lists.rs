//! Clients with different lists of nodes, or with different databases, never hold one lock together.

use std::time::Duration;

use quorlock::node::FailureKind;
use quorlock::{AcquireError, LockOptions, NodeTrustState, RestartGuard};
use quorlock_servers::{Nodes, Reply, Server, ServerOptions};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::common::{PATIENCE, all_servers, eventually, get, run, start};
use crate::{ADOPTION, TTL, all_trusted, named, strict, trust_state, with_args, without_a_wait};

#[tokio::test]
async fn clients_with_different_lists_get_an_error_with_both() {
    let Some(nodes) = start(5, ServerOptions::default()) else { return };
    let five = strict(&nodes).build().unwrap();
    all_trusted(&five).await;
    for (other, differs) in [
        (strict(&nodes[..4]), "nodes=a,b,c,d quorum=3"),
        (named("vwxyz".chars().zip(nodes.iter().map(Server::url))), "nodes=v,w,x,y,z quorum=3"),
        (strict(&nodes).quorum(4), "nodes=a,b,c,d,e quorum=4"),
        (
            strict(&nodes).options(LockOptions::new().ttl(TTL * 2)).max_ttl(TTL * 2),
            "max_ttl_ms=1000",
        ),
    ] {
        let other = other.build().unwrap();
        // The first acquire fails before its wait ends, because waiting does not help.
        let error = other.acquire("orders").await.unwrap_err();
        assert!(matches!(error, AcquireError::NodesUntrusted(_)), "{error}");
        assert_eq!(error.retry_after(), None);
        let failure = error.nodes().iter().find_map(|node| node.failure());
        assert_eq!(failure.unwrap().kind(), FailureKind::OtherConfiguration);
        let text = error.to_string();
        assert!(
            text.contains(
                "this client's settings do not fit the nodes, so it may not have the lock"
            ),
            "{text}"
        );
        for settings in ["nodes=a,b,c,d,e quorum=3 max_ttl_ms=500", differs] {
            assert!(text.contains(settings), "{text}");
        }
    }
    assert!(without_a_wait(&five).await.is_valid(), "the others are not disturbed");
}

/// Each database has its own marker, the key that shows that no data was lost. Database 0 registers which database
/// contains the locks.
#[tokio::test]
async fn clients_with_different_databases_get_an_error_with_both() {
    let servers = all_servers();
    let each = servers.into_iter().map(|binary| async move {
        let nodes = Nodes::start(&binary, 3, with_args(&[])).unwrap();
        let client = |database: &str, guard| {
            let urls = nodes.iter().map(|node| format!("{}/{database}", node.url()));
            named("abc".chars().zip(urls)).restart_guard(guard).build().unwrap()
        };
        // A client in the mode `Observe` does not write.
        let observer = client("0", RestartGuard::Observe);
        drop(observer.acquire("orders").await.unwrap());
        assert!(nodes.iter().all(|node| get(node, "quorlock:database").is_none()));
        drop(observer);
        let third = client("3", RestartGuard::Strict);
        all_trusted(&third).await;
        let holder = third.acquire("orders").await.unwrap();
        let other = client("0", RestartGuard::Strict);
        let error = other.acquire("orders").await.unwrap_err();
        assert!(matches!(error, AcquireError::NodesUntrusted(_)), "{error}");
        let kinds = error.nodes().iter().filter_map(|node| Some(node.failure()?.kind()));
        assert!(kinds.into_iter().any(|kind| kind == FailureKind::OtherConfiguration), "{error}");
        let both = "its locks are in database 3, but this client uses database 0";
        assert!(error.to_string().contains(both), "{error}");
        assert!(holder.is_valid(), "the others are not disturbed");
        // Neither the refused client nor the observing client has written.
        assert!(nodes.iter().all(|node| get(node, ADOPTION).is_none()));
        drop(holder);
        // `other` must end here. It would otherwise register its own database after the flush below.
        other.shutdown(PATIENCE).await.unwrap();

        // After each flush, the client `third` checks the registration, and writes it again if it is missing.
        for node in &nodes {
            run(node, &["FLUSHDB"]);
            eventually("the registration is written again", || {
                get(node, "quorlock:database").as_deref() == Some("3")
            })
            .await;
        }
        assert!(third.try_acquire("orders").await.is_ok(), "its own data are what they were");
        // If another client has registered another database, the clients of the previous database get an error.
        for node in &nodes {
            run(node, &["SET", "quorlock:database", "0"]);
            run(node, &["EVAL", "redis.call('SELECT', 9) return redis.call('FLUSHDB')", "0"]);
        }
        let refused = || matches!(trust_state(&third, 0), NodeTrustState::Refused(_));
        let look = async {
            loop {
                drop(third.try_acquire("other").await);
                if refused() {
                    break;
                }
                sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(PATIENCE, look).await.expect("the client reports it");
        assert!(third.try_acquire("orders").await.is_err());
    });
    each.collect::<JoinSet<()>>().join_all().await;
}

/// A call retries until its wait ends, because an operator may correct the server's settings meanwhile. The first
/// answer already shows the fault, so a short wait is enough here.
const SHORT_WAIT: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_refused_server_is_not_written_to() {
    let servers = all_servers();
    let each = servers.into_iter().map(|binary| async move {
        for args in [["--cluster-enabled", "yes"], ["--maxmemory-policy", "allkeys-lru"]] {
            let nodes =
                Nodes::start(&binary, 1, with_args(&[args[0], args[1], "--maxmemory", "64mb"]))
                    .unwrap();
            let client = named([('a', nodes[0].url())]).build().unwrap();
            for resources in [vec!["one"], vec!["one", "other"]] {
                let error = client
                    .acquire(resources)
                    .options(LockOptions::new().wait(SHORT_WAIT))
                    .await
                    .unwrap_err();
                assert!(matches!(error, AcquireError::NodesUntrusted(_)), "{args:?}: {error}");
            }
            assert_eq!(run(&nodes[0], &["DBSIZE"]), Reply::Int(0), "{args:?}");
        }
    });
    each.collect::<JoinSet<()>>().join_all().await;
}

/// One server under two addresses. The client cannot see that from the addresses, so it asks the server.
#[tokio::test]
async fn one_server_under_two_names_is_refused() {
    let Some(nodes) = start(2, with_args(&[])) else { return };
    let Reply::Array(config) = run(&nodes[0], &["CONFIG", "GET", "unixsocket"]) else { panic!() };
    let Reply::Bulk(Some(path)) = &config[1] else { panic!("{config:?}") };
    let socket = format!("redis+unix://{}", String::from_utf8_lossy(path));
    let urls = [('a', nodes[0].url()), ('b', socket), ('c', nodes[1].url())];
    let client = named(urls).build().unwrap();
    let error = client.acquire("orders").await.unwrap_err();
    assert!(matches!(error, AcquireError::NodesUntrusted(_)), "{error}");
    let duplicates = error.nodes().iter().filter_map(|node| node.failure());
    assert_eq!(duplicates.filter(|failure| failure.kind() == FailureKind::SameServer).count(), 2);
    assert!(error.to_string().contains("is the same server"), "{error}");
}

/// Version 0.1.0 leaves markers without a registration. A client that takes a single lock must register its database,
/// so that a client with another database is refused later.
#[tokio::test]
async fn a_client_that_lives_for_one_lock_registers_its_database() {
    let Some(nodes) = start(3, with_args(&[])) else { return };
    all_trusted(&strict(&nodes).build().unwrap()).await;
    for node in &nodes {
        run(node, &["DEL", "quorlock:database"]);
    }
    let client = strict(&nodes).build().unwrap();
    let guard = client.acquire("orders").await.unwrap();
    assert!(guard.release().await.is_released());
    client.shutdown(PATIENCE).await.unwrap();
    let is_written = |node: &&Server| get(node, "quorlock:database").as_deref() == Some("0");
    assert!(nodes.iter().filter(is_written).count() >= 2, "on a quorum of the nodes");
}

/// A full server cannot register the database. Existing locks can be extended, and the client registers once there is
/// memory.
#[tokio::test]
async fn a_full_server_without_a_registration_still_extends() {
    let servers = all_servers();
    let each = servers.into_iter().map(|binary| async move {
        let nodes = Nodes::start(&binary, 3, with_args(&[])).unwrap();
        let client = strict(&nodes)
            .options(LockOptions::new().ttl(4 * TTL).node_timeout(TTL))
            .max_ttl(4 * TTL);
        let client = client.build().unwrap();
        all_trusted(&client).await;
        let guard = client.acquire("orders").await.unwrap();
        for node in &nodes {
            run(node, &["DEL", "quorlock:database"]);
            run(node, &["CONFIG", "SET", "maxmemory", "1"]);
            run(node, &["CLIENT", "KILL", "TYPE", "normal"]);
        }
        while guard.extend().await.is_err() {
            assert!(guard.is_valid(), "on new connections");
        }
        for _ in 0..3 {
            guard.extend().await.unwrap();
        }
        for node in &nodes {
            run(node, &["CONFIG", "SET", "maxmemory", "0"]);
            let is_written = || get(node, "quorlock:database").as_deref() == Some("0");
            assert!(!is_written());
            guard.extend().await.unwrap();
            eventually("the database is registered", is_written).await;
        }
        assert!(guard.release().await.is_released());
    });
    each.collect::<JoinSet<()>>().join_all().await;
}
