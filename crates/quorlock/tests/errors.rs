//! Invalid input is refused before any command is sent, and each error names the cause.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

mod common;

use std::error::Error;
use std::time::Duration;

use common::{run, server};
use quorlock::node::{MemoryNode, NodeConfig};
use quorlock::{
    AcquireError, BuildError, Client, ClientBuilder, Clock, Delay, ExtendError, HoldError,
    InvalidRequest, LockOptions, LossCause, Resources, RestartGuard, Retry,
};
use quorlock_servers::{Listen, Reply, Server, ServerOptions};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

fn memory() -> ClientBuilder {
    Client::builder().memory_nodes(["a", "b", "c"].map(MemoryNode::new)).clock(Clock::Tokio)
}

#[track_caller]
fn refused(builder: ClientBuilder) -> String {
    builder.build().unwrap_err().to_string()
}

const RESERVED: &str = "the resource's name, with the key prefix before it, must not contain \
     \"quorlock:\", which the library keeps for itself";

/// No combination of prefix and resource yields one of the library's own keys, neither for this prefix nor for
/// another.
#[tokio::test]
async fn no_lock_uses_one_of_the_librarys_own_keys() {
    for prefix in ["quorlock:", "app:quorlock:", "quorlock:fence:", "my-quorlock:x"] {
        let refused = memory().key_prefix(prefix).build().unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(
                "the key prefix \"{prefix}\" must not contain \"quorlock:\", which the library keeps for itself"
            )
        );
        let servers = Client::builder().nodes(["redis://127.0.0.1:1"]).key_prefix(prefix);
        assert!(
            quorlock_admin::doctor::examine(&servers).await.is_err(),
            "also where nothing is locked"
        );
    }
    for (prefix, resource) in [
        ("app:quor", "lock:node"),
        ("quorlock", ":adopt"),
        ("a", "quorlock:database"),
        ("", "app:quorlock:adopt"),
    ] {
        let client = memory().key_prefix(prefix).build().unwrap();
        assert_eq!(client.acquire(resource).await.unwrap_err().to_string(), RESERVED);
        assert!(client.inspect(resource).await.is_err());
        assert!(client.stats().nodes.iter().all(|node| node.commands == 0), "nothing was sent");
    }
    for (prefix, resource) in
        [("quorlock-app:", "node"), ("app:", "quorlock"), ("quorlock", "/x:y")]
    {
        let client = memory().key_prefix(prefix).build().unwrap();
        assert!(client.try_acquire(resource).await.is_ok(), "{prefix}{resource}");
    }
}

#[tokio::test]
async fn invalid_calls_are_refused_and_send_nothing() {
    let client = memory().build().unwrap();
    let long = "x".repeat(Resources::NAME_BYTES_MAX + 1);
    let between = |min, max| Retry { delay: Delay::Between { min, max }, attempts_max: None };
    let never = Retry { attempts_max: Some(0), ..Retry::default() };
    let orders = || client.acquire("orders");
    for (call, expected) in [
        (client.acquire(""), "the resource has no name; an empty one cannot be locked"),
        (client.acquire_shared(""), "the resource has no name; an empty one cannot be locked"),
        (client.acquire(&long), "the resource's name has 4097 bytes; at most 4096 are possible"),
        (client.acquire("quorlock:node"), RESERVED),
        (client.acquire("app:quorlock:node"), RESERVED),
        (client.acquire_shared("app:quorlock:fence:orders"), RESERVED),
        (
            orders().options(LockOptions::new().ttl(Duration::ZERO)),
            "ttl (0s) must be at least 100ms",
        ),
        (orders().options(LockOptions::new().ttl(99 * MS)), "ttl (99ms) must be at least 100ms"),
        (
            orders().options(LockOptions::new().ttl(31 * SECOND)),
            "ttl (31s) must not be above max_ttl (30s)",
        ),
        (
            orders().options(LockOptions::new().ttl(Duration::MAX)),
            "ttl (18446744073709551615.999999999s) must not be above max_ttl (30s)",
        ),
        (
            orders().options(LockOptions::new().min_validity(10 * SECOND)),
            "drift (102ms) plus the larger of margin (200ms) and min_validity (10s) must be less \
             than ttl (10s)",
        ),
        (
            orders().options(LockOptions::new().max_hold(9 * SECOND)),
            "max_hold (9s) must be at least ttl (10s)",
        ),
        (
            orders().options(LockOptions::new().owner("line\nbreak")),
            "the owner's description must have at most 256 bytes and no control characters",
        ),
        (
            orders()
                .options(LockOptions::new().owner("x".repeat(LockOptions::OWNER_BYTES_MAX + 1))),
            "the owner's description must have at most 256 bytes and no control characters",
        ),
        (
            orders().options(LockOptions::new().retry(between(2 * SECOND, SECOND))),
            "retry: the shortest delay (2s) must not be above the longest (1s), and at least one \
             attempt must be allowed",
        ),
        (
            orders().options(LockOptions::new().retry(between(Duration::ZERO, Duration::ZERO))),
            "retry: the shortest delay (0ns) must not be above the longest (0ns), and at least \
             one attempt must be allowed",
        ),
        (
            orders().options(LockOptions::new().retry(never)),
            "retry: the shortest delay (0ns) must not be above the longest (250ms), and at least \
             one attempt must be allowed",
        ),
    ] {
        let error = call.await.unwrap_err();
        assert_eq!(error.to_string(), expected);
        assert!(matches!(error, AcquireError::Invalid(_)), "{error:?}");
        assert!(!error.is_contended() && !error.is_permission_denied());
        assert_eq!((error.retry_after(), error.holder(), error.nodes()), (None, None, &[][..]));
    }
    let error = client.acquire("").hold(async |_| ()).await.unwrap_err();
    assert!(matches!(error, HoldError::NotAcquired(AcquireError::Invalid(_))), "{error:?}");
    assert_eq!(client.inspect("").await.unwrap_err(), InvalidRequest::ResourceEmpty);
    assert!(client.inspect("quorlock:x").await.is_err());
    assert!(client.stats().nodes.iter().all(|node| node.commands == 0), "nothing was sent");

    // Values that are exactly at a limit are allowed.
    let longest = "x".repeat(Resources::NAME_BYTES_MAX);
    for call in [
        client.acquire(longest),
        orders().options(LockOptions::new().ttl(100 * MS)),
        orders().options(LockOptions::new().ttl(30 * SECOND)),
        orders().options(LockOptions::new().owner("x".repeat(LockOptions::OWNER_BYTES_MAX))),
        orders().options(LockOptions::new().max_hold(10 * SECOND)),
        orders().options(LockOptions::new().wait(Duration::MAX)),
        orders().options(LockOptions::new().max_hold(Duration::MAX)),
        orders().options(LockOptions::new().retry(between(SECOND, SECOND))),
        client.acquire("quorlock"),
        client.acquire(" "),
    ] {
        assert!(call.await.unwrap().release().await.is_released());
    }
}

#[tokio::test]
async fn times_that_contradict_each_other_are_refused_with_both_values() {
    let node_timeout = |timeout: &str| {
        format!("node timeout ({timeout}) must be above zero and at most a quarter of ttl (10s)")
    };
    assert_eq!(
        refused(memory().options(LockOptions::new().node_timeout(3 * SECOND))),
        node_timeout("3s")
    );
    assert_eq!(
        refused(memory().options(LockOptions::new().node_timeout(Duration::ZERO))),
        node_timeout("0s")
    );
    assert!(memory().options(LockOptions::new().node_timeout(2500 * MS)).build().is_ok());
    assert_eq!(
        refused(memory().connect_timeout(Duration::ZERO)),
        "connect timeout must be above zero"
    );
    assert_eq!(
        refused(memory().options(LockOptions::new().ttl(Duration::ZERO))),
        "ttl (0s) must be at least 100ms"
    );
    assert_eq!(refused(memory().max_ttl(SECOND)), "ttl (10s) must not be above max_ttl (1s)");
    assert_eq!(
        refused(memory().options(LockOptions::new().max_hold(SECOND))),
        "max_hold (1s) must be at least ttl (10s)"
    );
    assert_eq!(
        refused(memory().options(LockOptions::new().drift(1_000_000, Duration::ZERO))),
        "drift (10s) plus the larger of margin (200ms) and min_validity (0s) must be less than \
         ttl (10s)"
    );
    assert_eq!(
        refused(memory().options(LockOptions::new().margin(10 * SECOND))),
        "drift (102ms) plus the larger of margin (10s) and min_validity (0s) must be less than \
         ttl (10s)"
    );
    assert_eq!(
        refused(memory().options(LockOptions::new().owner("\x1b[31m"))),
        "the owner's description must have at most 256 bytes and no control characters"
    );
    assert_eq!(
        refused(memory().key_prefix("x".repeat(ClientBuilder::PREFIX_BYTES_MAX + 1))),
        "the key prefix has 1025 bytes; at most 1024 are possible"
    );

    // The ttl of a call is checked against the node timeout of the client.
    let client = memory().options(LockOptions::new().node_timeout(SECOND)).build().unwrap();
    let error =
        client.acquire("orders").options(LockOptions::new().ttl(2 * SECOND)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "node timeout (1s) must be above zero and at most a quarter of ttl (2s)"
    );
}

#[tokio::test]
async fn node_lists_without_a_quorum_are_refused() {
    let none: [&str; 0] = [];
    assert_eq!(refused(Client::builder()), "no nodes were given");
    assert_eq!(refused(Client::builder().nodes(none)), "no nodes were given");
    let many = (0..32).map(|place| MemoryNode::new(&place.to_string()));
    assert_eq!(
        refused(Client::builder().memory_nodes(many)),
        "32 nodes were given; at most 31 are possible"
    );
    for needed in [0, 1, 4] {
        assert_eq!(
            refused(memory().quorum(needed)),
            format!(
                "a quorum of {needed} of 3 nodes is not possible: it must be between 2 (the \
                 majority) and 3"
            )
        );
    }
    let server = "two nodes have this address; every node must be a server of its own";
    for (first, second, name) in [
        ("redis://a", "redis://a:6379", "a:6379"),
        ("redis://a", "redis://A", "a:6379"),
        ("redis://a/1", "valkey://user:pass@a/2", "a:6379"),
        ("one=redis://a", "two=redis://a", "a:6379"),
        ("redis+unix:///run/a", "unix:///run/a?db=3", "/run/a"),
    ] {
        let error = refused(Client::builder().nodes([first, second]));
        assert_eq!(error, format!("node {name} is listed twice: {server}"));
    }
    let name = "node a is listed twice: two nodes have this name; give each a name of its own, as in NAME=redis://HOST";
    assert_eq!(refused(Client::builder().nodes(["a=redis://b", "a=redis://c"])), name);
    assert_eq!(refused(memory().memory_nodes([MemoryNode::new("a")])), name);
}

#[tokio::test]
async fn invalid_urls_are_refused_without_showing_their_secrets() {
    let schemes =
        "use redis://, rediss://, valkey://, valkeys://, redis+unix:// or redis+sentinel://";
    for (url, shown, reason) in [
        ("", "", "it is empty"),
        ("6379", "6379", "malformed: a URL starts with a scheme, such as redis://"),
        ("redis:/a", "redis:/a", "malformed: a URL starts with a scheme, such as redis://"),
        ("10.0.0.1:x", "***", "malformed: a URL starts with a scheme, such as redis://"),
        ("http://u:hunter2@a", "http://***@a", &format!("unknown scheme \"http\"; {schemes}")),
        (
            "redis-cluster://a",
            "redis-cluster://a",
            &format!("unknown scheme \"redis-cluster\"; {schemes}"),
        ),
        ("redis://", "redis://", "a host is missing"),
        ("redis:///0", "redis:///0", "a host is missing"),
        ("redis://:6379", "redis://***", "malformed: empty host"),
        ("redis://u@", "redis://***@", "malformed: empty host"),
        ("redis://:hunter2@", "redis://***@", "malformed: empty host"),
        (
            "redis://:h/unter2@a",
            "redis://***@a",
            "malformed: a /, ?, # or @ in a password is written %2F, %3F, %23 or %40",
        ),
        (
            "redis://a?replcas=1",
            "redis://a",
            "its parameters are replicas, tls-server-name (do you mean replicas?); the database is the path, as in /3",
        ),
        ("redis://u:hunter2@a:99999", "redis://***@a:99999", "malformed: invalid port number"),
        ("redis://u:hunter2@a/x", "redis://***@a/x", "a database has a number, such as 3"),
        (
            "rediss://u:hunter2@a/#insecure",
            "rediss://***@a/",
            "certificates are always checked; #insecure is not supported",
        ),
        (
            "redis+unix://a/b?pass=hunter2",
            "redis+unix://a/b",
            "a socket has an absolute path: redis+unix:///path",
        ),
        ("unix:", "unix:", "malformed: a URL starts with a scheme, such as redis://"),
        ("redis+unix://", "redis+unix://", "a socket has an absolute path: redis+unix:///path"),
        ("unix:///", "unix:///", "a socket has an absolute path: unix:///path"),
        (
            "redis+unix:///a?db=x&pass=hunter2",
            "redis+unix:///a",
            "a database has a number, such as 3",
        ),
        ("redis://a\x1b[31m", "redis://***", "malformed: invalid domain character"),
    ] {
        let error = refused(Client::builder().nodes([url]));
        assert_eq!(error, format!("node URL \"{shown}\": {reason}"));
        assert!(!error.contains("hunter2"));
    }
    for (text, name) in [
        ("a b=redis://c", "a b"),
        ("=redis://c", ""),
        ("über=redis://c", "über"),
        ("u:hunter2@a=redis://c", "***@a"),
    ] {
        let error = NodeConfig::parse(text).unwrap_err().to_string();
        let expected =
            format!("node name \"{name}\": a name has 1 to 64 letters, digits, '.', '_' or '-'");
        assert_eq!(error, expected);
    }
    assert!(NodeConfig::parse(&format!("{}=redis://c", "x".repeat(64))).is_ok());
    assert!(NodeConfig::parse(&format!("{}=redis://c", "x".repeat(65))).is_err());
}

/// If `build` fails, a server sees neither a connection nor a command.
#[tokio::test]
async fn a_builder_that_fails_has_not_connected() {
    let Some(binary) = server() else {
        return;
    };
    let options = ServerOptions { listen: Listen::Tcp, ..ServerOptions::default() };
    let server = Server::start(&binary, options).unwrap();
    let url = server.url();
    let connections = || {
        let Reply::Bulk(Some(info)) = run(&server, &["INFO", "stats"]) else {
            panic!("INFO answers a string")
        };
        let info = String::from_utf8(info).unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        line.unwrap().parse::<u64>().unwrap()
    };
    let before = connections();
    let good = || Client::builder().nodes([&url]);
    for builder in [
        good().nodes([&url]),
        good().nodes(["http://a"]),
        good().nodes(["redis://:hunter2@"]),
        good().options(LockOptions::new().ttl(Duration::ZERO)),
        good().options(LockOptions::new().ttl(60 * SECOND)),
        good().options(LockOptions::new().node_timeout(9 * SECOND)),
        good().quorum(2),
        good().key_prefix("x".repeat(5000)),
    ] {
        let error = builder.build().unwrap_err();
        assert!(!error.to_string().is_empty() && !matches!(error, BuildError::NoRuntime));
    }
    tokio::time::sleep(20 * MS).await;
    assert_eq!(connections(), before + 1, "but for the question itself");

    // Without the restart guard, the client sends nothing about the trust in a new node.
    let client = good().restart_guard(RestartGuard::Off).build().unwrap();
    for call in [
        client.acquire(""),
        client.acquire("orders").options(LockOptions::new().ttl(Duration::ZERO)),
    ] {
        assert!(matches!(call.await, Err(AcquireError::Invalid(_))));
    }
    common::all_up(&client).await;
    assert_eq!(client.stats().nodes[0].commands, 0);
}

#[test]
fn errors_name_the_problem_and_its_cause() {
    let resource = || "orders".into();
    let lost = |cause| ExtendError::Lost { resource: resource(), cause };
    for (error, expected) in [
        (
            lost(LossCause::Expired),
            "lock \"orders\" is lost: its validity ran out before enough nodes confirmed an \
             extension",
        ),
        (
            lost(LossCause::KeyGone),
            "lock \"orders\" is lost: its key is gone from so many nodes that no quorum is left",
        ),
        (
            lost(LossCause::KeyOverwritten),
            "lock \"orders\" is lost: its key holds another value on so many nodes, or is gone from them, that \
             no quorum is left",
        ),
        (
            lost(LossCause::ClockJumped),
            "lock \"orders\" is lost: the wall clock moved ahead past the end of its validity: the clock was \
             set, or the machine was paused",
        ),
        (
            lost(LossCause::HoldLimit),
            "lock \"orders\" is lost: it was held for as long as max_hold allows",
        ),
        (lost(LossCause::Shutdown), "lock \"orders\" is lost: the client was shut down"),
        (
            ExtendError::HoldLimit { resource: resource() },
            "lock \"orders\" not extended: that would reach past max_hold",
        ),
    ] {
        assert_eq!(error.to_string(), expected);
    }
    let odd = ExtendError::HoldLimit { resource: "o'r\"d\x1b[31m\n".into() };
    assert_eq!(
        odd.to_string(),
        "lock \"o'r\"d\\u{1b}[31m\\n\" not extended: that would reach past max_hold",
        "control characters are escaped"
    );
    let closed = AcquireError::Closed { resource: resource() };
    let not_acquired = HoldError::from(closed);
    assert_eq!(not_acquired.to_string(), "lock \"orders\" not acquired: the client is shut down");
    assert!(not_acquired.source().is_none(), "the cause is shown once");
    let lost =
        HoldError::Lost { resource: resource(), cause: LossCause::HoldLimit, nodes: Vec::new() };
    assert_eq!(
        lost.to_string(),
        "lock \"orders\" was lost during the work: it was held for as long as max_hold allows"
    );
}

#[tokio::test(start_paused = true)]
async fn a_refusal_lists_the_answer_of_each_node() {
    let nodes = ["a", "b", "c", "d", "e"].map(MemoryNode::new);
    let client = Client::builder().memory_nodes(nodes.clone()).clock(Clock::Tokio).build().unwrap();
    let token = "0123456789abcdef0123456789abcdef01234567";
    nodes[0].insert("orders", format!("{token} api-7:41"), Some(4100 * MS));
    nodes[1].insert("orders", token, Some(4 * SECOND));
    nodes[2].insert("orders", "uuid\x1b[2J \"x\"", None);
    nodes[3].insert_other_type("orders");
    nodes[4].stop();
    let error = client.try_acquire("orders").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "lock \"orders\" not acquired in 1.0µs (1 attempt): a key without expiry blocks the lock until \
         somebody deletes it: quorlock status prints the command, if no program uses the key; node a refused (held by api-7:41, ends in 4.1s \
         unless extended); node b refused (held by a client without a name, ends in 4.0s unless extended); \
         node c refused (held by the value \"uuid\\u{1b}[…\", which is not one of quorlock's tokens, without \
         expiry); node d refused; node e failed: unreachable: stopped"
    );
    assert_eq!(error.holder().unwrap().to_string(), "api-7:41, ends in 4.1s unless extended");
    assert_eq!(error.retry_after(), None, "two of three never expire");
    let shows_token = |text: String| text.contains(token) || text.contains("48, 49, 50, 51, 52");
    assert!(!shows_token(format!("{error:?}")), "a token is shown: {error:?}");
    let seen = client.inspect("orders").await.unwrap();
    let story: Vec<String> = seen.nodes.iter().map(ToString::to_string).collect();
    assert_eq!(
        story[3],
        "d held by something that is no lock (a key of another type), without expiry"
    );
    assert_eq!(story[4], "e failed: unreachable: stopped");
    assert!(!shows_token(format!("{seen:?}")), "a token is shown: {seen:?}");
    let free = client.inspect("other").await.unwrap();
    assert_eq!(free.nodes[0].to_string(), "a free");

    // If the other nodes have decided the attempt, the error does not blame a node that has not answered yet.
    nodes[3].freeze();
    let error = client.try_acquire("orders").await.unwrap_err().to_string();
    assert!(error.contains("; node d: no answer was needed; node e failed: "), "{error}");
    nodes[3].thaw();

    // Long values of foreign keys are truncated.
    nodes[0].insert("long", "x".repeat(100), None);
    let seen = client.inspect("long").await.unwrap();
    let expected = format!(
        "a held by the value \"{}…\", which is not one of quorlock's tokens, without expiry",
        "x".repeat(6)
    );
    assert_eq!(seen.nodes[0].to_string(), expected);
}
