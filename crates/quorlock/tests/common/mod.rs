//! Helpers for the tests of the library: real servers, and clients for them.

#![allow(dead_code, reason = "each test file uses its part")]
#![expect(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

pub(crate) mod replication;
pub(crate) mod resp;
pub(crate) mod tls;

use std::time::Duration;

use quorlock::node::NodeState;
use quorlock::{Client, ClientBuilder, LockOptions, RestartGuard};
use quorlock_servers::{
    Nodes, NotFound, REQUIRE_VARIABLE, Reply, Server, ServerBinary, ServerOptions, find_all,
    find_or_skip,
};
use tokio::time::{Instant, sleep};

/// A step that takes longer than this counts as hanging, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const PATIENT: LockOptions = LockOptions::new().wait(PATIENCE);
pub(crate) const ONCE: LockOptions = LockOptions::new().wait(Duration::ZERO);
pub(crate) const UNEXTENDED: LockOptions = LockOptions::new().auto_extend(false);

/// The long node timeout of tests that do not measure it. A busy machine must not look like a failed node.
pub(crate) const NODE_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) fn test_name() -> String {
    std::thread::current().name().unwrap_or("a test").to_owned()
}

/// A server program. `None`: this machine has none, and the test is reported as skipped.
pub(crate) fn server() -> Option<ServerBinary> {
    find_or_skip(&test_name())
}

pub(crate) fn skip(why: &str) {
    quorlock_servers::skip(&test_name(), why);
}

/// Every server program of this machine. If there is none, the test is reported as skipped.
pub(crate) fn all_servers() -> Vec<ServerBinary> {
    match find_all(None) {
        Ok(servers) => servers,
        Err(NotFound::Nowhere) if std::env::var_os(REQUIRE_VARIABLE).is_none() => {
            skip("no Redis or Valkey server found");
            Vec::new()
        }
        Err(help) => panic!("{} needs a server: {help}", test_name()),
    }
}

/// Five servers on Unix sockets. `None`: the test is reported as skipped.
pub(crate) fn five() -> Option<Nodes> {
    start(5, ServerOptions::default())
}

pub(crate) fn start(count: usize, options: ServerOptions) -> Option<Nodes> {
    let binary = server()?;
    Some(Nodes::start(&binary, count, options).unwrap())
}

/// A client with timeouts for a busy machine, and without the restart guard: new nodes vote at once.
pub(crate) fn builder(nodes: &[Server]) -> ClientBuilder {
    guarded(nodes).restart_guard(RestartGuard::Off)
}

/// A builder without nodes and without the restart guard: new nodes vote at once.
pub(crate) fn unguarded() -> ClientBuilder {
    Client::builder()
        .restart_guard(RestartGuard::Off)
        .options(LockOptions::new().node_timeout(NODE_TIMEOUT))
}

/// As [`builder`], but with the restart guard: new nodes do not vote yet.
pub(crate) fn guarded(nodes: &[Server]) -> ClientBuilder {
    Client::builder()
        .nodes(nodes.iter().map(Server::url))
        .options(LockOptions::new().wait(PATIENCE).node_timeout(NODE_TIMEOUT))
        .connect_timeout(Duration::from_secs(10))
}

pub(crate) fn client(nodes: &[Server]) -> Client {
    builder(nodes).build().unwrap()
}

pub(crate) async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "still not so: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) async fn no_key_is_left<'a>(nodes: impl IntoIterator<Item = &'a Server>) {
    for node in nodes {
        eventually("no key is left", || key_count(node) == 0).await;
    }
}

pub(crate) fn key_count(node: &Server) -> i64 {
    match node.command(&["DBSIZE"]).unwrap() {
        Reply::Int(count) => count,
        other => panic!("DBSIZE answered {other:?}"),
    }
}

pub(crate) fn get(node: &Server, key: &str) -> Option<String> {
    match node.command(&["GET", key]).unwrap() {
        Reply::Bulk(value) => value.map(|bytes| String::from_utf8(bytes).unwrap()),
        other => panic!("GET answered {other:?}"),
    }
}

pub(crate) fn pttl(node: &Server, key: &str) -> i64 {
    match node.command(&["PTTL", key]).unwrap() {
        Reply::Int(ms) => ms,
        other => panic!("PTTL answered {other:?}"),
    }
}

pub(crate) fn run<A: AsRef<[u8]>>(node: &Server, command: &[A]) -> Reply {
    match node.command(command).unwrap() {
        Reply::Error(error) => panic!("{error}"),
        reply => reply,
    }
}

/// The number of calls of a command, from `INFO commandstats`.
pub(crate) fn calls(node: &Server, command: &str) -> u64 {
    let Reply::Bulk(Some(info)) = run(node, &["INFO", "commandstats"]) else {
        panic!("INFO answers a string")
    };
    let info = String::from_utf8(info).unwrap();
    let prefix = format!("cmdstat_{command}:calls=");
    let line = info.lines().find_map(|line| line.strip_prefix(&prefix));
    line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

pub(crate) fn state(client: &Client, place: usize) -> NodeState {
    client.stats().nodes[place].state.clone()
}

pub(crate) async fn all_up(client: &Client) {
    let nodes = client.stats().nodes.len();
    for place in 0..nodes {
        let started = Instant::now();
        while state(client, place) != NodeState::Up {
            assert!(started.elapsed() < PATIENCE, "node {place} is {:?}", state(client, place));
            sleep(Duration::from_millis(5)).await;
        }
    }
}
