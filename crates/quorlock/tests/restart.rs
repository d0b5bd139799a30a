//! The restart guard on real servers: nodes that may have forgotten their votes have none.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

mod common;

use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{PATIENCE, all_servers, calls, eventually, get, key_count, run};
use quorlock::node::FailureKind;
use quorlock::{AcquireError, Client, ClientBuilder, Guard, NodeSaid, NodeStanding, RestartGuard};
use quorlock_servers::{Listen, Nodes, Reply, Server, ServerOptions, find_or_skip, not_for};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// Short, so that the quarantine is.
const TTL: Duration = Duration::from_millis(500);

/// The ttl × 1.01 + 2 s.
const QUARANTINE: Duration = Duration::from_millis(2505);

/// The keys of the library's own that a node keeps.
const MARKER: &str = "quorlock:node";
const ADOPTION: &str = "quorlock:adopt";

fn strict(nodes: &[Server]) -> ClientBuilder {
    named("abcdefg".chars().zip(nodes.iter().map(Server::url)))
}

fn named(nodes: impl IntoIterator<Item = (char, String)>) -> ClientBuilder {
    let nodes = nodes.into_iter().map(|(name, url)| format!("{name}={url}"));
    Client::builder().nodes(nodes).ttl(TTL).max_ttl(TTL).node_timeout(TTL / 4).wait(PATIENCE)
}

fn start(test: &str, count: usize, options: ServerOptions) -> Option<Nodes> {
    common::start(test, count, options)
}

fn with_args(args: &[&str]) -> ServerOptions {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    ServerOptions { args, listen: Listen::Tcp, ..ServerOptions::default() }
}

fn standing(client: &Client, place: usize) -> NodeStanding {
    client.stats().nodes[place].standing.clone()
}

/// Waits until all of a client's nodes vote. Somebody must ask for that.
async fn all_trusted(client: &Client) {
    let guard = client.acquire("warming up").await.unwrap();
    assert!(guard.release().await.is_released());
    for place in 0..client.stats().nodes.len() {
        let is_trusted = || standing(client, place) == NodeStanding::Trusted;
        eventually("all nodes are trusted", is_trusted).await;
    }
    eventually("nothing is held", || client.stats().releases_owed == 0).await;
}

/// A lock that is had without waiting for any quarantine. A node that a busy machine kept from answering
/// in time is asked again.
async fn without_a_wait(client: &Client) -> Guard {
    let started = Instant::now();
    let guard = client.acquire("orders").await.unwrap();
    assert!(started.elapsed() < QUARANTINE, "{:?}", started.elapsed());
    guard
}

/// Why a lock that nobody holds cannot be had right now.
async fn unsafe_now(client: &Client) -> AcquireError {
    let started = Instant::now();
    let error = loop {
        let error = client.try_acquire("orders").await.unwrap_err();
        // A node that a busy machine kept from answering in time is asked again.
        let late = error.nodes().iter().any(|node| matches!(node.said, NodeSaid::Nothing));
        let settled = matches!(error, AcquireError::Unsafe(_)) || !late;
        if settled || started.elapsed() > PATIENCE {
            break error;
        }
    };
    assert!(matches!(error, AcquireError::Unsafe(_)), "{error}");
    assert!(!error.is_contended() && !error.lacks_rights(), "{error}");
    error
}

#[tokio::test]
async fn a_server_is_waited_for_once_and_is_trusted_then() {
    let servers = all_servers("a_server_is_waited_for_once_and_is_trusted_then");
    let each = servers.into_iter().map(|binary| async move {
        let nodes = Nodes::start(&binary, 3, ServerOptions::default()).unwrap();
        let client = strict(&nodes).build().unwrap();
        let (told, mut seen) = watch::channel(None);
        let started = Instant::now();
        let acquiring = tokio::spawn(client.acquire("orders").progress(told).into_future());
        seen.changed().await.unwrap();
        let waiting = seen.borrow().clone().unwrap();
        assert!(waiting.untrusted && !waiting.contended);
        let said = waiting.nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        assert!(said.contains("its votes count in 3 s"), "{said}");

        let guard = acquiring.await.unwrap().unwrap();
        assert!(started.elapsed() >= QUARANTINE, "{:?}", started.elapsed());
        assert!(guard.release().await.is_released());
        for (place, node) in nodes.iter().enumerate() {
            eventually("it is trusted", || standing(&client, place) == NodeStanding::Trusted).await;
            let marker = get(node, MARKER).unwrap();
            let agreed = "quorlock 1 nodes=a,b,c quorum=2 max_ttl_ms=500 run_id=";
            assert!(marker.starts_with(agreed), "{marker}");
            assert_eq!(get(node, ADOPTION), None);
        }
        // Whoever comes after need not wait.
        let next = strict(&nodes).build().unwrap();
        assert!(without_a_wait(&next).await.is_valid());
        // Two make a quorum: the third may not have answered yet.
        let trusted = (0..3).filter(|place| standing(&next, *place).to_string() == "trusted");
        assert!(trusted.count() >= 2, "{:?}", next.stats().nodes);
    });
    // All at a time, for they mostly wait.
    each.collect::<JoinSet<()>>().join_all().await;
}

#[tokio::test]
async fn who_will_not_wait_is_told_how_long_it_would_take() {
    let test = "who_will_not_wait_is_told_how_long_it_would_take";
    let Some(nodes) = start(test, 3, ServerOptions::default()) else { return };
    let client = strict(&nodes).build().unwrap();
    let error = unsafe_now(&client).await;
    let left = error.retry_after().unwrap();
    assert!(left <= QUARANTINE + Duration::from_secs(1), "{left:?}");
    let text = error.to_string();
    assert!(text.contains("too few nodes can be trusted, 2 of 3 must grant"), "{text}");
    let reason = ": quarantined: is new, or has lost its data, its votes count in 3 s";
    assert!(text.contains(reason), "{text}");
    // Two that may not vote settle it: the third may not even have answered yet.
    let quarantined =
        |place: &usize| matches!(standing(&client, *place), NodeStanding::Quarantined { .. });
    assert!((0..3).filter(quarantined).count() >= 2, "{:?}", client.stats().nodes);

    // The same for a wait that is too short: there is no use in it.
    let short = Duration::from_millis(1500);
    let error = client.acquire("orders").wait(short).await.unwrap_err();
    let AcquireError::Unsafe(attempts) = &error else { panic!("{error}") };
    assert!(attempts.elapsed < short, "{error}");
    assert!(error.retry_after().is_some());
    for node in &nodes {
        eventually("nothing but our own keys are left", || key_count(node) == 2).await;
        assert_eq!(get(node, "quorlock:database").as_deref(), Some("0"));
        assert!(get(node, ADOPTION).is_some());
    }
}

/// The long ttl of the next test, within which three servers are started again.
const LONG: Duration = Duration::from_secs(2);

/// Three of five servers come back empty while a lock is held. Returns whether there were two holders.
async fn three_of_five_forget(nodes: &Nodes, guard: RestartGuard) -> bool {
    let builder = || {
        let nodes = "abcde".chars().zip(nodes.urls());
        let builder = named(nodes).ttl(LONG).max_ttl(LONG).auto_extend(false);
        builder.node_timeout(Duration::from_millis(400)).restart_guard(guard)
    };
    let (client, known) = (builder().build().unwrap(), builder().build().unwrap());
    drop(known.acquire("warming up").await.unwrap());
    // Exactly three votes would be too few of a promise: the lock has all five.
    let holder: Guard = loop {
        let guard = client.acquire("orders").await.unwrap();
        if guard.votes() == 5 {
            break guard;
        }
        // Some node was still in quarantine, or slow.
        assert!(guard.release().await.is_released());
        sleep(Duration::from_millis(50)).await;
    };
    std::thread::scope(|scope| {
        for node in nodes.iter().take(3) {
            scope.spawn(|| node.restart().unwrap());
        }
    });
    // One that knew the servers before, and one that does not.
    let new = builder().build().unwrap();
    let (resource, still) = ("orders", &holder);
    let is_second = async |rival: &Client| {
        let guard = rival.acquire(resource).auto_extend(false).await.unwrap();
        let both = still.is_valid() && guard.is_valid();
        assert!(guard.release().await.is_released());
        both
    };
    let (first, second) = tokio::join!(is_second(&new), is_second(&known));
    first || second
}

/// Killed by SIGKILL and started again empty, at once.
#[tokio::test]
async fn restarted_nodes_give_a_held_lock_to_nobody_else() {
    let test = "restarted_nodes_give_a_held_lock_to_nobody_else";
    let Some(nodes) = start(test, 5, ServerOptions::default()) else { return };
    assert!(!three_of_five_forget(&nodes, RestartGuard::Strict).await, "two held it");
}

/// The same without the guard: so the test above can fail.
#[tokio::test]
async fn without_the_guard_restarted_nodes_give_it_to_another() {
    let test = "without_the_guard_restarted_nodes_give_it_to_another";
    let Some(nodes) = start(test, 5, ServerOptions::default()) else { return };
    assert!(
        three_of_five_forget(&nodes, RestartGuard::Off).await,
        "the servers have not forgotten"
    );
}

#[tokio::test]
async fn clients_with_different_lists_are_told_both() {
    let test = "clients_with_different_lists_are_told_both";
    let Some(nodes) = start(test, 5, ServerOptions::default()) else { return };
    let five = strict(&nodes).build().unwrap();
    all_trusted(&five).await;
    for (other, differs) in [
        (strict(&nodes[..4]), "nodes=a,b,c,d quorum=3"),
        (named("vwxyz".chars().zip(nodes.iter().map(Server::url))), "nodes=v,w,x,y,z quorum=3"),
        (strict(&nodes).quorum(4), "nodes=a,b,c,d,e quorum=4"),
        (strict(&nodes).ttl(TTL * 2).max_ttl(TTL * 2), "max_ttl_ms=1000"),
    ] {
        let other = other.build().unwrap();
        // At the first acquire, and with time to spare: waiting does not mend it.
        let error = other.acquire("orders").await.unwrap_err();
        assert!(matches!(error, AcquireError::Unsafe(_)), "{error}");
        assert_eq!(error.retry_after(), None);
        let failure = error.nodes().iter().find_map(|node| node.failure());
        assert_eq!(failure.unwrap().kind(), FailureKind::OtherConfiguration);
        let text = error.to_string();
        assert!(text.contains("clients do not agree about the nodes"), "{text}");
        for settings in ["nodes=a,b,c,d,e quorum=3 max_ttl_ms=500", differs] {
            assert!(text.contains(settings), "{text}");
        }
    }
    assert!(without_a_wait(&five).await.is_valid(), "the others are not disturbed");
}

/// The markers of different databases know nothing of each other: which one has the locks is written in the
/// first.
#[tokio::test]
async fn clients_with_different_databases_are_told_both() {
    let servers = all_servers("clients_with_different_databases_are_told_both");
    let each = servers.into_iter().map(|binary| async move {
        let nodes = Nodes::start(&binary, 3, with_args(&[])).unwrap();
        let client = |database: &str, guard| {
            let urls = nodes.iter().map(|node| format!("{}/{database}", node.url()));
            named("abc".chars().zip(urls)).restart_guard(guard).build().unwrap()
        };
        // Who only looks writes nothing.
        let observer = client("0", RestartGuard::Observe);
        drop(observer.acquire("orders").await.unwrap());
        assert!(nodes.iter().all(|node| get(node, "quorlock:database").is_none()));
        drop(observer);
        let third = client("3", RestartGuard::Strict);
        all_trusted(&third).await;
        let holder = third.acquire("orders").await.unwrap();
        let other = client("0", RestartGuard::Strict);
        let error = other.acquire("orders").await.unwrap_err();
        assert!(matches!(error, AcquireError::Unsafe(_)), "{error}");
        let kinds = error.nodes().iter().filter_map(|node| Some(node.failure()?.kind()));
        assert!(kinds.into_iter().any(|kind| kind == FailureKind::OtherConfiguration), "{error}");
        let both = "its locks are in database 3, but this client uses database 0";
        assert!(error.to_string().contains(both), "{error}");
        assert!(holder.is_valid(), "the others are not disturbed");
        // It wrote nothing, nor does who only looks.
        assert!(nodes.iter().all(|node| get(node, ADOPTION).is_none()));
        drop(holder);
        // For as long as it is there, it would write its own where nothing is written.
        other.shutdown(PATIENCE).await.unwrap();

        // What is written there is looked at after every flush: and written again if it is gone.
        for node in &nodes {
            run(node, &["FLUSHDB"]);
            eventually("it is written again", || {
                get(node, "quorlock:database").as_deref() == Some("3")
            })
            .await;
        }
        assert!(third.try_acquire("orders").await.is_ok(), "its own data are what they were");
        // If another has come before, who uses the old one is told so.
        for node in &nodes {
            run(node, &["SET", "quorlock:database", "0"]);
            run(node, &["EVAL", "redis.call('SELECT', 9) return redis.call('FLUSHDB')", "0"]);
        }
        let refused = || matches!(standing(&third, 0), NodeStanding::Refused(_));
        let look = async {
            loop {
                drop(third.try_acquire("other").await);
                if refused() {
                    break;
                }
                sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(PATIENCE, look).await.expect("it is told");
        assert!(third.try_acquire("orders").await.is_err());
    });
    each.collect::<JoinSet<()>>().join_all().await;
}

/// One server by two addresses, which the client cannot tell from two servers: but it can be asked.
#[tokio::test]
async fn one_server_under_two_names_is_refused() {
    let test = "one_server_under_two_names_is_refused";
    let Some(nodes) = start(test, 2, with_args(&[])) else { return };
    let Reply::Array(config) = run(&nodes[0], &["CONFIG", "GET", "unixsocket"]) else { panic!() };
    let Reply::Bulk(Some(path)) = &config[1] else { panic!("{config:?}") };
    let socket = format!("redis+unix://{}", String::from_utf8_lossy(path));
    let urls = [('a', nodes[0].url()), ('b', socket), ('c', nodes[1].url())];
    let client = named(urls).build().unwrap();
    let error = client.acquire("orders").await.unwrap_err();
    assert!(matches!(error, AcquireError::Unsafe(_)), "{error}");
    let twins = error.nodes().iter().filter_map(|node| node.failure());
    assert_eq!(twins.filter(|failure| failure.kind() == FailureKind::SameServer).count(), 2);
    assert!(error.to_string().contains("is the same server"), "{error}");
}

/// What a client of this one server is told.
async fn refusal_of(server: &Server) -> String {
    let client = strict(std::slice::from_ref(server)).build().unwrap();
    // Whoever waits does so in the hope that somebody mends it.
    let error = unsafe_now(&client).await;
    assert_eq!(error.retry_after(), None, "{error}");
    let failure = error.nodes()[0].failure().unwrap();
    assert_eq!(failure.kind(), FailureKind::Unsafe);
    let NodeStanding::Refused(standing) = standing(&client, 0) else { panic!("{error}") };
    assert_eq!(standing.to_string(), failure.to_string());
    error.to_string()
}

#[tokio::test]
async fn servers_whose_votes_are_worthless_are_refused_with_the_reason_and_the_fix() {
    let test = "servers_whose_votes_are_worthless_are_refused_with_the_reason_and_the_fix";
    let Some(binary) = find_or_skip(test) else { return };
    let server = |args: &[&str]| Server::start(&binary, with_args(args)).unwrap();

    let replica = server(&[]);
    run(&replica, &["REPLICAOF", "127.0.0.1", "1"]);
    let text = refusal_of(&replica).await;
    assert!(text.contains("it is a replica") && text.contains("list masters alone"), "{text}");

    let evicting = server(&["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"]);
    let text = refusal_of(&evicting).await;
    assert!(text.contains("its maxmemory-policy is allkeys-lru"), "{text}");
    assert!(text.contains("CONFIG SET maxmemory-policy noeviction"), "{text}");
}

#[tokio::test]
async fn a_server_in_cluster_mode_is_refused_with_the_reason_and_the_fix() {
    let test = "a_server_in_cluster_mode_is_refused_with_the_reason_and_the_fix";
    let Some(binary) = find_or_skip(test) else { return };
    if binary.version.major < 7 {
        return not_for(&binary, test, "the port of its cluster bus cannot be chosen");
    }
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let args = with_args(&["--cluster-enabled", "yes", "--cluster-port", &free]);
    let clustered = Server::start(&binary, args).unwrap();
    let text = refusal_of(&clustered).await;
    assert!(text.contains("it is in cluster mode"), "{text}");
    assert!(text.contains("use independent masters"), "{text}");
}

/// A master and its replica, in step.
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

/// A replica that has become the master has what the old master had sent it, which may lack the last
/// votes: so it is adopted first.
#[tokio::test]
async fn a_promoted_replica_is_waited_for() {
    let Some(nodes) = start("a_promoted_replica_is_waited_for", 2, with_args(&[])) else { return };
    let old = strict(&nodes[..1]).build().unwrap();
    all_trusted(&old).await;
    follow(&nodes[1], &nodes[0]).await;
    assert!(get(&nodes[1], MARKER).is_some(), "it has the old master's marker");
    run(&nodes[1], &["REPLICAOF", "NO", "ONE"]);
    let new = strict(&nodes[1..]).build().unwrap();
    let error = unsafe_now(&new).await;
    assert!(error.to_string().contains("quarantined: was a replica"), "{error}");
    all_trusted(&new).await;
    // It remains one that was promoted, and is waited for once.
    let next = strict(&nodes[1..]).build().unwrap();
    assert!(without_a_wait(&next).await.is_valid());
}

/// What is behind a client's back, on a connection that lasts.
#[tokio::test]
async fn a_flush_is_noticed() {
    let Some(nodes) = start("a_flush_is_noticed", 3, ServerOptions::default()) else { return };
    let client = strict(&nodes).build().unwrap();
    all_trusted(&client).await;
    let holder = client.acquire("orders").await.unwrap();
    for node in &nodes {
        run(node, &["FLUSHALL"]);
    }
    // The very first that asks is not believed: the marker behind its vote is gone.
    let rival = strict(&nodes).build().unwrap();
    let error = rival.try_acquire("orders").await.unwrap_err();
    assert!(matches!(error, AcquireError::Unsafe(_)), "{error}");
    let error = client.try_acquire("other").await.unwrap_err();
    assert!(matches!(error, AcquireError::Unsafe(_)), "{error}");
    let guard = rival.acquire("orders").await.unwrap();
    assert!(!holder.is_valid() && guard.is_valid());
}

#[tokio::test]
async fn another_masters_data_is_noticed() {
    let Some(nodes) = start("another_masters_data_is_noticed", 2, with_args(&[])) else { return };
    let client = strict(&nodes[..1]).build().unwrap();
    all_trusted(&client).await;
    let holder = client.acquire("orders").await.unwrap();
    // The connection lasts, and so do uptime and run id: but what the node knew is gone.
    follow(&nodes[0], &nodes[1]).await;
    run(&nodes[0], &["REPLICAOF", "NO", "ONE"]);
    assert_eq!(get(&nodes[0], "orders"), None);
    let error = client.try_acquire("other").await.unwrap_err();
    assert!(matches!(error, AcquireError::Unsafe(_)), "{error}");
    let rival = strict(&nodes[..1]).build().unwrap();
    unsafe_now(&rival).await;
    drop(holder);
    all_trusted(&client).await;
}

/// A master that becomes the replica of its own replica, which lags behind, and a master again: older data,
/// with its own marker, on a connection that lasts. The server pushes that all data are others before it says
/// anything else, and who hears that asks anew what it is.
#[tokio::test]
async fn older_data_of_its_own_are_noticed_on_a_connection_that_lasts() {
    let servers = all_servers("older_data_of_its_own_are_noticed_on_a_connection_that_lasts");
    let each = servers.into_iter().map(|binary| async move {
        let options = with_args(&["--repl-diskless-sync-delay", "0"]);
        let nodes = Nodes::start(&binary, 2, options).unwrap();
        let clients = || strict(&nodes[..1]).build().unwrap();
        let (client, rival) = (clients(), clients());
        all_trusted(&client).await;
        // The replica follows no more from here on.
        follow(&nodes[1], &nodes[0]).await;
        run(&nodes[1], &["REPLICAOF", "NO", "ONE"]);
        all_trusted(&rival).await;
        let holder = client.acquire("orders").auto_extend(false).await.unwrap();
        follow(&nodes[0], &nodes[1]).await;
        run(&nodes[0], &["REPLICAOF", "NO", "ONE"]);
        assert_eq!(get(&nodes[0], "orders"), None, "the vote is forgotten");
        assert!(get(&nodes[0], MARKER).is_some(), "and the marker is not");
        unsafe_now(&rival).await;
        drop(holder);
        all_trusted(&rival).await;
    });
    each.collect::<JoinSet<()>>().join_all().await;
}

/// A partial resync carries out what the replica was told since, and changes nothing else: nothing is pushed.
/// GUARANTEES.md says what follows from that.
#[tokio::test]
async fn a_partial_resync_keeps_what_the_node_was_told() {
    let servers = all_servers("a_partial_resync_keeps_what_the_node_was_told");
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

/// A server that reads its own data anew forgets nothing, and goes on voting.
#[tokio::test]
async fn a_reload_of_its_own_data_costs_no_vote() {
    let test = "a_reload_of_its_own_data_costs_no_vote";
    let Some(binary) = find_or_skip(test) else { return };
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
    assert_eq!(holder.loss(), None);
    all_trusted(&rival).await;
}

#[tokio::test]
async fn a_node_that_is_said_to_last_votes_at_once_when_it_has_its_marker() {
    let test = "a_node_that_is_said_to_last_votes_at_once_when_it_has_its_marker";
    let durable = with_args(&["--appendonly", "yes", "--appendfsync", "always"]);
    let Some(nodes) = start(test, 1, durable) else { return };
    let build = |lasting: &[&str]| strict(&nodes).lasting_nodes(lasting.iter().copied()).build();
    all_trusted(&build(&["a"]).unwrap()).await;
    nodes[0].restart().unwrap();
    let error = unsafe_now(&build(&[]).unwrap()).await;
    assert!(error.to_string().contains("quarantined: started "), "{error}");
    let client = build(&["a"]).unwrap();
    let guard = client.acquire("orders").wait(Duration::from_secs(1)).await.unwrap();
    assert!(guard.release().await.is_released());
    // It must not be there to mark the node while that is not contradicted yet.
    client.shutdown(Duration::from_secs(5)).await.unwrap();
    // The server's own word contradicts the operator's.
    nodes[0].restart().unwrap();
    run(&nodes[0], &["CONFIG", "SET", "appendfsync", "everysec"]);
    let error = unsafe_now(&build(&["a"]).unwrap()).await.to_string();
    assert!(
        error.contains("declared to forget nothing, but it has appendfsync everysec"),
        "{error}"
    );
    run(&nodes[0], &["CONFIG", "SET", "appendfsync", "always"]);
    run(&nodes[0], &["CONFIG", "SET", "no-appendfsync-on-rewrite", "yes"]);
    let error = unsafe_now(&build(&["a"]).unwrap()).await.to_string();
    assert!(error.contains("but it has no-appendfsync-on-rewrite yes"), "{error}");
    // Who may not ask is not contradicted.
    run(&nodes[0], &["ACL", "SETUSER", "default", "-config"]);
    let guard = build(&["a"]).unwrap().acquire("orders").wait(Duration::from_secs(1)).await;
    assert!(guard.is_ok(), "{guard:?}");
    let unknown = build(&["a", "z"]).unwrap_err().to_string();
    assert_eq!(unknown, "there is no node \"z\" in the list; there are a");
}

#[tokio::test]
async fn observing_tells_and_does_nothing_else() {
    let test = "observing_tells_and_does_nothing_else";
    let Some(nodes) = start(test, 3, ServerOptions::default()) else { return };
    let client = strict(&nodes).restart_guard(RestartGuard::Observe).build().unwrap();
    let guard = without_a_wait(&client).await;
    for (place, node) in nodes.iter().enumerate() {
        let is_told = || matches!(standing(&client, place), NodeStanding::Quarantined { .. });
        eventually("it is told", is_told).await;
        assert_eq!((get(node, MARKER), get(node, ADOPTION)), (None, None));
    }
    assert!(guard.release().await.is_released());
    let off = strict(&nodes).restart_guard(RestartGuard::Off).build().unwrap();
    assert!(without_a_wait(&off).await.is_valid());
    assert_eq!(standing(&off, 0), NodeStanding::Unguarded);
}

/// Modes differ in whose votes count, and agree on the keys: where nodes keep what they granted, a lock of
/// one mode is a lock for the others.
#[tokio::test]
async fn clients_of_mixed_modes_exclude_each_other() {
    let test = "clients_of_mixed_modes_exclude_each_other";
    let Some(nodes) = start(test, 3, ServerOptions::default()) else { return };
    let modes = [RestartGuard::Strict, RestartGuard::Observe, RestartGuard::Off];
    let clients = modes.map(|mode| strict(&nodes).restart_guard(mode).build().unwrap());
    all_trusted(&clients[0]).await;
    let holder: Arc<Mutex<Option<Arc<Guard>>>> = Arc::default();
    let mut workers = JoinSet::new();
    for client in clients.iter().chain(&clients) {
        let (client, holder) = (client.clone(), holder.clone());
        workers.spawn(async move {
            for _ in 0..10 {
                let guard = Arc::new(client.acquire("orders").await.unwrap());
                let before = holder.lock().unwrap().replace(guard.clone());
                assert!(before.is_none_or(|other| !other.is_valid()), "two hold it");
                sleep(Duration::from_millis(3)).await;
                let mut now = holder.lock().unwrap();
                if now.as_ref().is_some_and(|now| Arc::ptr_eq(now, &guard)) {
                    *now = None;
                }
                // The last one to drop it gives it back.
            }
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker.unwrap();
    }
}

/// The first lock costs a connection with its greeting, and one round trip in which all else is; every
/// further batch one command more than without the guard.
#[tokio::test]
async fn proof_costs_one_command_per_batch_and_one_per_connection() {
    let test = "proof_costs_one_command_per_batch_and_one_per_connection";
    let Some(nodes) = start(test, 3, ServerOptions::default()) else { return };
    all_trusted(&strict(&nodes).build().unwrap()).await;
    // To ask is to send INFO, which is counted from the next time on: so that one comes first.
    let counts =
        |node: &Server| ["info", "hello", "set", "get"].map(|command| calls(node, command));
    let reset = || {
        for node in &nodes {
            run(node, &["CONFIG", "RESETSTAT"]);
        }
    };
    reset();
    let client = strict(&nodes).auto_extend(false).build().unwrap();
    let guard = client.try_acquire("orders").await.unwrap();
    eventually("all have voted", || guard.votes() == 3).await;
    for node in &nodes {
        // One of them for the database that the locks are in.
        assert_eq!(counts(node), [1, 1, 1, 2], "{}", node.address());
    }
    assert!(guard.release().await.is_released());
    eventually("all have released", || client.stats().releases_owed == 0).await;
    reset();
    let guard = client.try_acquire("orders").await.unwrap();
    eventually("all have voted", || guard.votes() == 3).await;
    for node in &nodes {
        assert_eq!(counts(node), [0, 0, 1, 1], "{}", node.address());
    }
}
