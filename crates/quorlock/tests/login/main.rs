//! Ways to connect: sockets and ports, databases, passwords and permissions, TLS, and servers without RESP3.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

#[path = "../common/mod.rs"]
mod common;
mod rotation;
mod tls;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::{
    PATIENCE, PATIENT, all_servers, all_up, builder, calls, client, eventually, no_key_is_left,
    run, start,
};
use quorlock::node::{Credentials, FailureKind, NodeConfig, NodeState};
use quorlock::{AcquireError, Client, ClientBuilder, LockOptions};
use quorlock_servers::{Listen, Nodes, Reply, Server, ServerOptions};
use tokio::time::Instant;

/// Acquires, extends, inspects and releases a lock with the votes of all nodes.
async fn does_everything(client: &Client) {
    all_up(client).await;
    let guard = client.acquire("orders").await.unwrap();
    let all = client.stats().nodes.len();
    eventually("all nodes have given their votes", || guard.votes() == all).await;
    guard.extend().await.unwrap();
    let seen = client.inspect("orders").await.unwrap();
    assert!(seen.nodes.iter().all(|node| node.holder().is_some()), "{seen:?}");
    assert!(guard.release().await.is_released());
    eventually("nothing is owed", || client.stats().releases_owed == 0).await;
}

#[tokio::test]
async fn unix_sockets_ports_and_databases() {
    for (listen, database) in [
        (Listen::UnixSocket, ""),
        (Listen::UnixSocket, "?db=3"),
        (Listen::Tcp, ""),
        (Listen::Tcp, "/3"),
    ] {
        let options = ServerOptions { listen, ..ServerOptions::default() };
        let Some(nodes) = start(3, options) else { return };
        let urls = nodes.iter().map(|node| format!("{}{database}", node.url()));
        let client = common::unguarded().nodes(urls).options(PATIENT).build().unwrap();
        does_everything(&client).await;
        no_key_is_left(&nodes).await;
        let guard = client.acquire("orders").await.unwrap();
        let keys = || match run(&nodes[0], &["INFO", "keyspace"]) {
            Reply::Bulk(Some(info)) => String::from_utf8(info).unwrap(),
            other => panic!("INFO answered {other:?}"),
        };
        let expected = if database.is_empty() { "db0:keys=1," } else { "db3:keys=1," };
        eventually("the key is where it should be", || keys().contains(expected)).await;
        drop(guard);
        eventually("the key is gone", || !keys().contains("keys=")).await;
    }
}

#[tokio::test]
async fn the_schemes_of_valkey_and_a_name_for_a_node() {
    let options = ServerOptions { listen: Listen::Tcp, ..ServerOptions::default() };
    let Some(nodes) = start(1, options) else { return };
    let url = nodes[0].url().replace("redis://", "valkey://");
    let client = common::unguarded().nodes([format!("eu-west={url}")]).build().unwrap();
    does_everything(&client).await;
    assert_eq!(&*client.stats().nodes[0].name, "eu-west");
    let by_name = url.replace("127.0.0.1", "localhost");
    does_everything(&common::unguarded().nodes([by_name]).build().unwrap()).await;
    nodes[0].kill().unwrap();
    let error = client.try_acquire("orders").await.unwrap_err();
    assert!(error.to_string().contains("node eu-west failed: unreachable: "), "{error}");

    let client = common::unguarded().nodes(["valkey+unix:///nowhere/at/all"]).build().unwrap();
    let error = client.try_acquire("orders").await.unwrap_err();
    assert_eq!(error.nodes()[0].failure().unwrap().kind(), FailureKind::Unreachable);
}

const PASSWORD: &str = "s3cr et/&?@#%";

fn start_with_password(count: usize) -> Option<Nodes> {
    let password = Some(PASSWORD.to_owned());
    start(count, ServerOptions { password, ..ServerOptions::default() })
}

/// Starts three servers with a further user. `user` contains the user's name and the rules of `ACL SETUSER`.
fn start_with_user(user: &str) -> Option<Nodes> {
    let args = ["--user"].into_iter().chain(user.split(' ')).map(String::from).collect();
    start(3, ServerOptions { args, ..ServerOptions::default() })
}

#[tokio::test]
async fn a_password_in_the_url_or_by_option() {
    for listen in [Listen::UnixSocket, Listen::Tcp] {
        let password = Some(PASSWORD.to_owned());
        let options = ServerOptions { listen, password, ..ServerOptions::default() };
        let Some(nodes) = start(3, options) else { return };
        does_everything(&client(&nodes)).await;
        let bare = nodes.iter().map(bare_url);
        let by_option = common::unguarded().nodes(bare).password(PASSWORD).options(PATIENT);
        does_everything(&by_option.build().unwrap()).await;
        // The password in the URL takes precedence.
        does_everything(&builder(&nodes).password("wrong").build().unwrap()).await;
        no_key_is_left(&nodes).await;
    }
}

#[tokio::test]
async fn a_wrong_password_is_reported_at_once() {
    let Some(nodes) = start_with_password(5) else { return };
    let bare = || common::unguarded().nodes(nodes.iter().map(bare_url)).options(PATIENT);
    for (builder, said) in [
        (bare().password("guess-1234"), "not authenticated: "),
        (bare().username("nobody").password("guess-1234"), "not authenticated: "),
        (bare(), "not authenticated: a password is needed"),
    ] {
        let client = builder.build().unwrap();
        let started = Instant::now();
        let error = client.acquire("orders").await.unwrap_err();
        assert!(started.elapsed() < PATIENCE, "waiting does not help");
        assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
        assert!(error.is_permission_denied() && !error.is_contended(), "{error}");
        let text = format!("{error} {error:?} {client:?}");
        assert!(text.contains(said), "{text}");
        assert!(!text.contains("guess-1234") && !text.contains("s3cr"), "{text}");
        let started = Instant::now();
        client.shutdown(PATIENCE).await.unwrap();
        assert!(started.elapsed() < PATIENCE, "nothing is owed");
    }

    // Two wrong passwords of five do not prevent a quorum.
    let mut configs: Vec<NodeConfig> =
        nodes.iter().map(|node| NodeConfig::parse(&node.url()).unwrap()).collect();
    for config in &mut configs[..2] {
        *config = config.clone().password("wrong");
    }
    let builder = configs.into_iter().fold(common::unguarded(), ClientBuilder::node);
    let client = builder.options(PATIENT).build().unwrap();
    let guard = client.acquire("orders").await.unwrap();
    assert_eq!(guard.votes(), 3);
    assert!(guard.release().await.is_released());
    eventually("nothing is owed to nodes that gave nothing", || client.stats().releases_owed == 0)
        .await;
    no_key_is_left(&nodes).await;

    // If the password is corrected on the server, a running client connects to it.
    for node in &nodes[..2] {
        run(node, &["CONFIG", "SET", "requirepass", "wrong"]);
    }
    eventually("all nodes can be used", || {
        client.stats().nodes.iter().all(|node| node.state == NodeState::Up)
    })
    .await;
}

/// SECURITY.md tells operators to rotate passwords in this way.
#[tokio::test]
async fn a_password_is_rotated_while_a_lock_is_held() {
    let Some(nodes) = start_with_user("locker on >old-one ~* +@all") else { return };
    let with = |password| {
        let builder = builder(&nodes).username("locker").password(password);
        builder.options(PATIENT).build().unwrap()
    };
    let change = |rule: &str| {
        for node in &nodes {
            run(node, &["ACL", "SETUSER", "locker", rule]);
        }
    };
    let old = with("old-one");
    all_up(&old).await;
    let guard = old.acquire("orders").await.unwrap();

    change(">new-one");
    let new = with("new-one");
    all_up(&new).await;
    assert!(new.try_acquire("orders").await.unwrap_err().is_contended());

    // An open connection stays logged in. A new connection needs the new password.
    change("<old-one");
    guard.extend().await.unwrap();
    assert!(guard.release().await.is_released());
    does_everything(&new).await;
    for node in &nodes {
        run(node, &["CLIENT", "KILL", "TYPE", "normal"]);
    }
    does_everything(&new).await;
    let error = old.acquire("orders").await.unwrap_err();
    assert!(error.is_permission_denied(), "{error}");
}

fn with_credentials<F, Fut>(nodes: &Nodes, ask: F) -> Client
where
    F: Fn() -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<Credentials, &'static str>> + Send + 'static,
{
    let configs = nodes.iter().map(|node| NodeConfig::parse(&bare_url(node)).unwrap());
    let configs = configs.map(|config| config.credentials(ask.clone()));
    let builder = configs.fold(common::unguarded(), ClientBuilder::node);
    builder.connect_timeout(Duration::from_millis(200)).options(PATIENT).build().unwrap()
}

#[tokio::test]
async fn each_connection_asks_for_its_credentials() {
    let Some(nodes) = start_with_user("locker on >token-1 ~* +@all") else { return };
    let number = Arc::new(AtomicU32::new(1));
    let client = with_credentials(&nodes, {
        let number = Arc::clone(&number);
        move || {
            let number = number.load(Ordering::Relaxed);
            async move { Ok(Credentials::new("locker", format!("token-{number}"))) }
        }
    });
    does_everything(&client).await;
    number.store(2, Ordering::Relaxed);
    for node in &nodes {
        run(node, &["ACL", "SETUSER", "locker", "resetpass", ">token-2"]);
        run(node, &["CLIENT", "KILL", "TYPE", "normal"]);
    }
    does_everything(&client).await;
}

#[tokio::test]
async fn a_node_without_credentials_is_unreachable_until_it_has_some() {
    let Some(nodes) = start_with_password(1) else { return };
    let stage = Arc::new(AtomicU32::new(0));
    let client = with_credentials(&nodes, {
        let stage = Arc::clone(&stage);
        move || {
            let stage = Arc::clone(&stage);
            async move {
                match stage.load(Ordering::Relaxed) {
                    0 => Err("the token service is down"),
                    1 => panic!("a fault of the caller"),
                    2 => std::future::pending().await,
                    _ => Ok(Credentials::password(PASSWORD)),
                }
            }
        }
    });
    for (number, said) in (0..).zip([
        "unreachable: no credentials: the token service is down",
        "unreachable: no credentials: the function of NodeConfig::credentials panicked",
        "nothing within the connect timeout of 200ms from the function of NodeConfig::credentials",
    ]) {
        stage.store(number, Ordering::Relaxed);
        let detail = || match &client.stats().nodes[0].state {
            NodeState::Down(failure) => failure.to_string(),
            state => format!("{state:?}"),
        };
        eventually(said, || detail().contains(said)).await;
    }
    let error = client.try_acquire("orders").await.unwrap_err();
    assert!(!error.is_permission_denied(), "a later try may succeed: {error}");
    stage.store(3, Ordering::Relaxed);
    does_everything(&client).await;
}

/// The permissions of a user who can only lock.
const RIGHTS: &str = "-@all +set +get +del +pttl +pexpire +eval +evalsha";

#[tokio::test]
async fn the_least_permissions_suffice_to_lock() {
    for binary in all_servers() {
        let rule = format!("locker on >{} ~locks:* {RIGHTS}", "pass-word");
        let args = ["--user"].into_iter().chain(rule.split(' ')).map(String::from).collect();
        let options = ServerOptions { args, ..ServerOptions::default() };
        let nodes = Nodes::start(&binary, 1, options).unwrap();
        let bare = || common::unguarded().nodes(nodes.urls()).options(PATIENT).key_prefix("locks:");
        let client = bare().username("locker").password("pass-word").build().unwrap();
        does_everything(&client).await;
        does_everything(&client).await;
        assert_eq!(calls(&nodes[0], "script|load") + calls(&nodes[0], "script"), 0);
        assert!(
            calls(&nodes[0], "eval") >= 2,
            "the first one asks for rights; so the text was sent"
        );
        no_key_is_left(&nodes).await;

        let url = format!("{}?user=locker&pass=pass-word", nodes[0].url());
        let in_the_url = common::unguarded().nodes([url]).options(PATIENT).key_prefix("locks:");
        does_everything(&in_the_url.build().unwrap()).await;

        let client = bare().username("locker").password("pass-word").key_prefix("other:");
        let error = client.build().unwrap().acquire("orders").await.unwrap_err();
        assert!(error.is_permission_denied(), "another key is not allowed: {error}");
    }
}

#[tokio::test]
async fn missing_permissions_are_reported_at_once() {
    let Some(nodes) = start_with_user("guest on >pass-word ~* +get") else { return };
    let ttl = Duration::from_secs(30);
    let client = builder(&nodes)
        .username("guest")
        .password("pass-word")
        .options(LockOptions::new().ttl(ttl))
        .build()
        .unwrap();
    let started = Instant::now();
    let error = client.acquire("orders").await.unwrap_err();
    assert!(started.elapsed() < PATIENCE, "waiting does not help");
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
    assert!(error.is_permission_denied(), "{error}");
    let failures: Vec<_> = error.nodes().iter().filter_map(|node| node.failure()).collect();
    assert!(failures.len() >= 2, "they decide it: {error}");
    assert!(failures.iter().all(|failure| failure.kind() == FailureKind::Forbidden), "{error}");
    let text = error.to_string();
    assert!(text.contains("failed: not allowed: the user lacks +eval +evalsha"), "{text}");
    // The key was certainly not set, so the client has no release to send again, and does not wait for the ttl.
    client.shutdown(ttl / 2).await.unwrap();
}

/// The permissions are removed while the lock is held. The lock ends with its ttl, and the release names the cause.
#[tokio::test]
async fn without_the_permission_to_release_the_lock_ends_with_its_ttl() {
    let Some(nodes) = start_with_user("half on >pass-word ~* +@all") else { return };
    let client = builder(&nodes)
        .username("half")
        .password("pass-word")
        .options(
            LockOptions::new()
                .ttl(Duration::from_millis(500))
                .node_timeout(Duration::from_millis(125)),
        )
        .build()
        .unwrap();
    let guard = client.acquire("orders").await.unwrap();
    for node in &nodes {
        run(node, &["ACL", "SETUSER", "half", "-@all"]);
    }
    let released = guard.release().await;
    assert_eq!(released.outcome, quorlock::Outcome::Unknown, "{released:?}");
    assert!(released.nodes().any(|(_, said)| matches!(
        said,
        quorlock::NodeReleased::Failed(failure) if failure.kind() == FailureKind::Forbidden
    )));
    no_key_is_left(&nodes).await;
}

/// A server without `HELLO` speaks RESP2. Its error repeats the unknown command with the password, which must not
/// reach a message.
#[tokio::test]
async fn servers_without_resp3_are_used_with_resp2() {
    for binary in all_servers() {
        let args = ["--rename-command", "HELLO", ""].map(String::from).to_vec();
        let password = Some(PASSWORD.to_owned());
        let options = ServerOptions { args, password, ..ServerOptions::default() };
        let nodes = Nodes::start(&binary, 3, options).unwrap();
        does_everything(&client(&nodes)).await;
        no_key_is_left(&nodes).await;
        assert_eq!(calls(&nodes[0], "hello"), 0);

        let bare = nodes.iter().map(bare_url);
        let wrong = common::unguarded().nodes(bare).password("guess-1234").build().unwrap();
        let error = wrong.acquire("orders").options(PATIENT).await.unwrap_err();
        assert!(error.is_permission_denied(), "{error}");
        let text = format!("{error} {error:?} {wrong:?}");
        assert!(!text.contains("guess-1234"), "{text}");

        // Without pushes, the client notices a broken connection with its next command at the latest.
        let client = client(&nodes);
        does_everything(&client).await;
        run(&nodes[0], &["CLIENT", "KILL", "TYPE", "normal"]);
        let guard = client.acquire("orders").await.unwrap();
        drop(guard);
        no_key_is_left(&nodes).await;
        does_everything(&client).await;
    }
}

/// Tokens are secrets, and some servers repeat unknown commands in their errors.
#[tokio::test]
async fn a_command_that_a_server_repeats_in_an_error_is_not_shown() {
    let args = ["--rename-command", "SET", ""].map(String::from).to_vec();
    let Some(nodes) = start(1, ServerOptions { args, ..ServerOptions::default() }) else {
        return;
    };
    let client = client(&nodes);
    let error = client
        .acquire("orders")
        .options(LockOptions::new().owner("api-7").wait(Duration::ZERO))
        .await
        .unwrap_err();
    let text = format!("{error} {error:?}");
    assert!(text.contains("the server has no command SET"), "{text}");
    assert!(!text.contains("api-7"), "the value follows the token: {text}");
}

#[tokio::test]
async fn a_database_that_does_not_exist_is_named_as_the_cause() {
    let Some(nodes) = start(1, ServerOptions::default()) else { return };
    let url = format!("{}?db=99", nodes[0].url());
    let client = common::unguarded().nodes([url]).build().unwrap();
    let error = client.try_acquire("orders").await.unwrap_err();
    assert!(error.to_string().contains("DB index is out of range"), "{error}");
}

fn bare_url(server: &Server) -> String {
    let url = server.url();
    match url.rsplit_once('@') {
        Some((_, address)) => format!("redis://{address}"),
        None => url.split('?').next().unwrap().to_owned(),
    }
}
