//! Data of other clients is shown without control characters, truncated, and never with a complete token.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::fmt::Write as _;
use std::time::Duration;

use common::{ONCE, five, guarded, run};
use quorlock::{Client, LockOptions};
use quorlock_admin::{doctor, init};
use quorlock_servers::Server;

const TOKEN: &str = "0123456789abcdef0123456789abcdef01234567";

/// The longest allowed line of a message, in characters. Some messages list all nodes with their settings.
const LENGTH_MAX: usize = 16_000;

fn is_fit(printed: &str) {
    let obeyed = |c: char| c.is_control() && c != '\n';
    assert!(!printed.contains(obeyed), "a terminal would obey it: {printed:?}");
    assert!(!printed.contains(TOKEN), "a token is whole: {printed}");
    let longest = printed.lines().map(|line| line.chars().count()).max();
    assert!(longest <= Some(LENGTH_MAX), "{longest:?} characters: {printed}");
}

/// Contents that the test plants in the library's own keys: control characters, the settings of other versions, and
/// tokens.
fn plants() -> Vec<String> {
    let nasty = "\u{1b}[2J\u{1b}]0;x\u{7}\r\u{202e}".repeat(4096);
    let rest = "quorum=2 max_ttl_ms=30000 run_id=0d2f promoted=-1 floor=0 wait_ms=1";
    vec![
        nasty.clone(),
        format!("{TOKEN} {nasty}"),
        TOKEN.to_owned(),
        format!("quorlock 1 nodes={nasty} {rest}"),
        format!("quorlock 1 nodes={} {rest}", format!("{TOKEN},").repeat(1500)),
        format!("quorlock 2 {TOKEN} {nasty}"),
    ]
}

async fn printed(nodes: &[Server]) -> String {
    let mut printed = String::new();
    let builder = || guarded(nodes).options(ONCE);
    let client: Client = builder().build().unwrap();
    for _ in 0..2 {
        if let Err(error) = client
            .acquire("orders")
            .options(LockOptions::new().wait(Duration::from_millis(300)))
            .await
        {
            write!(printed, "{error}\n{error:?}\n{:?}\n", error.holder()).unwrap();
        }
    }
    for node in client.stats().nodes {
        writeln!(printed, "{}\n{node:?}", node.trust_state).unwrap();
    }
    let seen = client.inspect("orders").await.unwrap();
    writeln!(printed, "{seen:?}\n{:?}", seen.holder()).unwrap();
    let examined = doctor::examine(&builder()).await.unwrap();
    writeln!(printed, "{examined:?}").unwrap();
    for finding in examined.nodes.iter().flat_map(|node| &node.findings) {
        writeln!(printed, "{}\n{}", finding.what, finding.fix).unwrap();
    }
    let in_use = init::in_use(&builder()).await;
    writeln!(printed, "{:?}", in_use.map(|found| found.before)).unwrap();
    match init::reconfigure(&builder(), &[]).await {
        Ok(moving) => writeln!(printed, "{:?}", moving.nodes).unwrap(),
        Err(error) => writeln!(printed, "{error}\n{error:?}").unwrap(),
    }
    printed
}

#[tokio::test]
async fn data_of_other_clients_is_shown_escaped_truncated_and_without_tokens() {
    let Some(nodes) = five() else { return };
    for plant in plants() {
        for key in ["quorlock:node", "quorlock:adopt", "orders"] {
            for node in nodes.iter() {
                run(node, &["FLUSHALL"]);
                run(node, &["SET", key, &plant]);
            }
            let printed = printed(&nodes).await;
            assert!(printed.len() > 500, "something is printed: {printed}");
            is_fit(&printed);
        }
    }
}
