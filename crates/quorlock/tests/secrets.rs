//! No log and no debug output contains a token or a password.
//!
//! This test is the only one of its program, because its subscriber receives the events of all threads.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

mod common;

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{PATIENCE, PATIENT, all_up, eventually, run, server};
use quorlock::node::{NodeConfig, Tls};
use quorlock::{LockOptions, LossCause};
use quorlock_servers::certificates::Authority;
use quorlock_servers::{Nodes, Server, ServerOptions};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

const PASSWORD: &str = "pa55-w0rd";
const WRONG: &str = "wr0ng-gu355";
const FOREIGN: &str = "uuid-that-another-library-keeps-for-itself";

/// Records all spans and events.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl Log {
    fn write(&self, what: &str, metadata: &Metadata<'_>, record: impl FnOnce(&mut LogLine)) {
        let mut line = LogLine(format!("{what} {} {}", metadata.level(), metadata.name()));
        record(&mut line);
        let mut log = self.0.lock().unwrap();
        log.push_str(&line.0);
        log.push('\n');
    }

    fn text(&self) -> String {
        self.0.lock().unwrap().clone()
    }
}

struct LogLine(String);

impl Visit for LogLine {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.write("span", span.metadata(), |line| span.record(line));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        let mut line = LogLine("record".to_owned());
        values.record(&mut line);
        self.0.lock().unwrap().push_str(&line.0);
    }

    fn event(&self, event: &Event<'_>) {
        self.write("event", event.metadata(), |line| event.record(line));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn neither_logs_nor_debug_output_contain_a_secret() {
    let Some(binary) = server() else { return };
    let log = Log::default();
    tracing::subscriber::set_global_default(log.clone()).unwrap();
    let password = Some(PASSWORD.to_owned());
    let options = ServerOptions { password, ..ServerOptions::default() };
    let nodes = Nodes::start(&binary, 3, options).unwrap();
    let mut printed = String::new();
    let mut tokens = Vec::new();

    let builder = common::builder(&nodes).options(LockOptions::new().owner("api-7"));
    write!(printed, "{builder:?}").unwrap();
    let client = builder.build().unwrap();
    all_up(&client).await;
    let call = client.acquire("orders");
    write!(printed, "{client:?} {call:?}").unwrap();
    let call = call.into_future();
    write!(printed, "{call:?}").unwrap();
    let guard = call.await.unwrap();
    tokens.push(guard.token().to_string());
    eventually("all nodes have given their votes", || guard.votes() == 3).await;
    write!(printed, "{guard:?} {:?} {:?}", client.stats(), guard.token()).unwrap();
    write!(printed, "{:?}", client.inspect("orders").await).unwrap();
    write!(printed, "{:?}", guard.extend().await).unwrap();

    let other = common::client(&nodes);
    let error = other.try_acquire("orders").await.unwrap_err();
    write!(printed, "{error} {error:?}").unwrap();
    for node in &nodes {
        run(node, &["SET", "foreign", FOREIGN]);
    }
    // The error shows the beginning of the foreign value to the caller. The log does not.
    let error = other.try_acquire("foreign").await.unwrap_err();
    assert!(error.to_string().contains(&FOREIGN[..6]), "{error}");
    write!(printed, "{error} {error:?}").unwrap();

    for node in &nodes {
        run(node, &["DEL", "orders"]);
        run(node, &["SCRIPT", "FLUSH"]);
    }
    write!(printed, "{:?}", guard.extend().await).unwrap();
    assert_eq!(guard.loss_cause(), Some(LossCause::KeyGone));
    write!(printed, "{:?}", guard.release().await).unwrap();
    for _ in 0..3 {
        let guard = client.acquire("dropped").await.unwrap();
        tokens.push(guard.token().to_string());
    }
    run(&nodes[0], &["CLIENT", "KILL", "TYPE", "normal"]);
    nodes[1].kill().unwrap();
    let guard = client.acquire("orders").await.unwrap();
    tokens.push(guard.token().to_string());
    write!(printed, "{:?}", guard.release().await).unwrap();
    nodes[0].kill().unwrap();
    let error = client
        .acquire("orders")
        .options(LockOptions::new().wait(Duration::from_millis(200)))
        .await
        .unwrap_err();
    write!(printed, "{error} {error:?}").unwrap();
    nodes[0].restart().unwrap();
    nodes[1].restart().unwrap();
    write!(printed, "{:?}", client.shutdown(PATIENCE).await).unwrap();

    let urls = nodes.iter().map(|node| node.url().replace(PASSWORD, WRONG));
    let configs: Vec<NodeConfig> = urls.map(|url| NodeConfig::parse(&url).unwrap()).collect();
    let tls = Tls::new().client_pem("certificate", Authority::new().issue().key);
    write!(printed, "{configs:?} {tls:?} {:?}", configs[0].clone().tls(tls.clone())).unwrap();
    let wrong = configs.into_iter().fold(common::unguarded(), quorlock::ClientBuilder::node);
    let wrong = wrong.password("unused-pa55").options(PATIENT);
    write!(printed, "{wrong:?}").unwrap();
    let wrong = wrong.build().unwrap();
    let error = wrong.acquire("orders").await.unwrap_err();
    write!(printed, "{error} {error:?} {wrong:?} {:?}", wrong.stats()).unwrap();
    for url in [format!("redis://:{WRONG}@a:x"), format!("a@{WRONG}@b=redis://c")] {
        write!(printed, "{:?}", NodeConfig::parse(&url)).unwrap();
    }

    let threads = std::thread::spawn({
        let urls: Vec<String> = nodes.iter().map(Server::url).collect();
        move || {
            let builder = common::unguarded().nodes(urls).options(PATIENT);
            let client = builder.blocking().build().unwrap();
            let call = client.acquire("threads");
            let mut printed = format!("{client:?} {call:?}");
            let guard = call.call().unwrap();
            write!(printed, "{guard:?}").unwrap();
            let token = guard.token().to_string();
            write!(printed, "{:?} {:?}", guard.extend(), guard.release()).unwrap();
            (printed, token)
        }
    });
    let (more, token) = tokio::task::spawn_blocking(|| threads.join().unwrap()).await.unwrap();
    printed.push_str(&more);
    tokens.push(token);

    let logged = log.text();
    for told in [
        "span DEBUG acquire resource=\"orders\"",
        "span DEBUG hold resource=\"orders\"",
        "span DEBUG extend",
        "span DEBUG release",
        "event WARN",
        "message=lock lost: its key is gone",
        "message=not acquired attempts=1 contended=true",
        "message=released outcome=Released",
        "message=connected",
        "message=not connected",
        "message=no quorum of nodes can be reached: ",
        "message=disconnected",
    ] {
        assert!(logged.contains(told), "the log does not contain {told:?}:\n{logged}");
    }
    assert!(!logged.contains(FOREIGN), "{logged}");
    // The secrets include the private key, as text and as the debug output of its bytes.
    let secrets = [PASSWORD, WRONG, "unused-pa55", "PRIVATE KEY", "45, 45, 45, 45, 45, 66"];
    for secret in tokens.iter().map(String::as_str).chain(secrets) {
        assert!(!logged.contains(secret), "{secret} is in the log:\n{logged}");
        assert!(!printed.contains(secret), "{secret} is printed:\n{printed}");
    }
    let bytes = format!("{:?}", tokens[0].as_bytes());
    assert!(!printed.contains(bytes.trim_matches(['[', ']'])), "{printed}");
}
