//! What others have written is shown on no terminal and to no script as it is.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use common::{Testbed, stderr, stdout};
use quorlock_servers::Server;

const TOKEN: &str = "0123456789abcdef0123456789abcdef01234567";

/// No line is longer: some are about five nodes, with the settings of each.
const LINE_MAX: usize = 16_000;

fn set(node: &Server, key: &str, value: &str) {
    node.command(&["FLUSHALL"]).unwrap();
    node.command(&["SET", key, value]).unwrap();
}

#[test]
fn no_output_has_what_a_terminal_would_obey_nor_a_token() {
    let Some(testbed) = Testbed::new("no_output_has_what_a_terminal_would_obey_nor_a_token") else {
        return;
    };
    let nasty = "\u{1b}[2J\u{1b}]0;x\u{7}\r\u{202e}".repeat(4096);
    let rest = "quorum=2 max_ttl_ms=30000 run_id=0d2f promoted=-1 floor=0 wait_ms=1";
    let plants = [
        format!("{TOKEN} {nasty}"),
        format!("quorlock 1 nodes={nasty},{TOKEN} {rest}"),
        TOKEN.to_owned(),
    ];
    let calls: [&[&str]; 8] = [
        &["status", "k"],
        &["status", "k", "--json"],
        &["doctor"],
        &["doctor", "--json"],
        &["run", "k", "--wait", "200ms", "--", "true"],
        &["run", "k", "--json", "--wait", "200ms", "--", "true"],
        &["init", "--reconfigure", "--yes"],
        &["init", "--reconfigure", "--yes", "--json"],
    ];
    for key in ["quorlock:node", "quorlock:adopt", "k"] {
        for plant in &plants {
            for args in calls.iter().filter(|args| args[0] != "init" || key != "k") {
                for node in testbed.nodes.iter() {
                    set(node, key, plant);
                }
                let mut command = testbed.quorlock(args);
                command.env("QUORLOCK_RESTART_GUARD", "strict").env("QUORLOCK_MAX_TTL", "1s");
                if args[0] == "run" {
                    command.env("QUORLOCK_TTL", "1s");
                }
                let output = command.output().unwrap();
                let printed = stdout(&output) + &stderr(&output);
                assert!(!printed.is_empty(), "{args:?}");
                let obeyed = |c: char| c.is_control() && c != '\n';
                assert!(
                    !printed.contains(obeyed),
                    "{args:?}: a terminal would obey it: {printed:?}"
                );
                assert!(!printed.contains(TOKEN), "{args:?}: a token is whole: {printed}");
                assert!(printed.lines().all(|line| line.len() <= LINE_MAX), "{args:?}: {printed}");
            }
        }
    }
}
