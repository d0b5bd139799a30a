//! Text that other clients have written is shown without control characters and without tokens.

mod common;

use common::{Testbed, stderr, stdout};

const TOKEN: &str = "0123456789abcdef0123456789abcdef01234567";

/// The longest allowed line of output, in bytes. Some lines contain the settings of five nodes.
const LINE_MAX: usize = 16_000;

#[test]
fn no_output_has_control_characters_or_a_token() {
    let Some(testbed) = Testbed::new() else { return };
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
                testbed.on_all(&["FLUSHALL"]);
                testbed.on_all(&["SET", key, plant]);
                let mut command = testbed.quorlock(args);
                command.env("QUORLOCK_RESTART_GUARD", "strict").env("QUORLOCK_MAX_TTL", "1s");
                if args[0] == "run" {
                    command.env("QUORLOCK_TTL", "1s");
                }
                let output = command.output().expect("quorlock starts");
                let printed = stdout(&output) + &stderr(&output);
                assert!(!printed.is_empty(), "{args:?}");
                let is_obeyed = |c: char| c.is_control() && c != '\n';
                assert!(!printed.contains(is_obeyed), "{args:?}: {printed:?}");
                assert!(!printed.contains(TOKEN), "{args:?}: {printed}");
                assert!(printed.lines().all(|line| line.len() <= LINE_MAX), "{args:?}: {printed}");
            }
        }
    }
}
