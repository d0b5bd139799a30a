//! The messages and events of `quorlock run` while nodes do not confirm its lock, on three real servers.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::fs;
use std::time::Duration;

use common::{Running, Testbed, boot, code, eventually, json_lines, stderr, stdout};
use serde_json::Value;

/// `quorlock run` with a command that ends when the file `stop` exists.
fn run(testbed: &Testbed, ttl: &str, more: &[&str]) -> Running {
    let script = "echo > up; until [ -e stop ]; do sleep 0.05; done";
    let first = ["run", "k", "--ttl", ttl, "--node-timeout", "500ms", "--status-fd", "1"];
    let run = testbed.start(&[&first, more, &["--", "sh", "-c", script]].concat());
    testbed.await_file("up");
    run
}

fn event(run: &Running, name: &str) -> Value {
    let line = run.await_line(&format!("\"event\":\"{name}\""));
    serde_json::from_str(&line).unwrap()
}

fn states(event: &Value) -> Vec<(&str, &str)> {
    let nodes = event["nodes"].as_array().unwrap().iter();
    nodes.map(|it| (it["node"].as_str().unwrap(), it["state"].as_str().unwrap())).collect()
}

fn line<'a>(said: &'a str, part: &str) -> &'a str {
    let line = said.lines().find(|line| line.contains(part));
    line.unwrap_or_else(|| panic!("no line with {part:?}: {said}"))
}

#[test]
fn two_killed_nodes_of_three_are_named_at_once_and_when_the_lock_is_lost() {
    let Some(testbed) = Testbed::sized(3) else { return };
    let run = run(&testbed, "3s", &["--also", "other"]);
    testbed.nodes[1..].iter().for_each(|node| node.kill().unwrap());
    let unconfirmed = event(&run, "unconfirmed");
    let expected = [("a", "granted"), ("b", "failed"), ("c", "failed")];
    assert_eq!(states(&unconfirmed), expected);
    assert_eq!((&unconfirmed["confirmed"], &unconfirmed["of"]), (&1.into(), &3.into()));
    assert_eq!((&unconfirmed["key"], &unconfirmed["also"][0]), (&"k".into(), &"other".into()));
    let term_in_ms = unconfirmed["term_in_ms"].as_u64().unwrap();
    assert!((1..2400).contains(&term_in_ms), "{term_in_ms}");

    let output = run.end();
    code(&output, 79);
    let said = stderr(&output);
    let first = line(&said, "SIGTERM in");
    let start = "quorlock: only 1 of 3 nodes confirms \"k\", \"other\": b, c: unreachable: ";
    assert!(first.starts_with(start), "{first}");
    assert!(first.ends_with(" unless a quorum answers"), "{first}");
    assert_eq!(said.matches("SIGTERM in").count(), 1, "one message: {said}");
    let lost = line(&said, "lost the lock \"k\", \"other\"");
    assert!(lost.contains("quorlock doctor): b, c: unreachable: "), "{lost}");
    let lost = json_lines(&stdout(&output)).pop().unwrap();
    assert_eq!((&lost["event"], &lost["cause"]), (&"lost".into(), &"expired".into()));
    assert_eq!(states(&lost), expected);
    assert_eq!(lost["also"][0], "other");
}

#[test]
fn two_silent_nodes_of_three_are_named_and_named_again_when_they_answer() {
    let Some(testbed) = Testbed::sized(3) else { return };
    let run = run(&testbed, "9s", &[]);
    testbed.nodes[1..].iter().for_each(|node| node.pause().unwrap());
    assert_eq!(event(&run, "unconfirmed")["nodes"][1]["failure"], "no answer in time");
    testbed.nodes[1..].iter().for_each(|node| node.resume().unwrap());
    assert!(event(&run, "confirmed")["confirmed"].as_u64().unwrap() >= 2);
    fs::write(testbed.path("stop"), "").unwrap();
    let output = run.end();
    code(&output, 0);
    let said = stderr(&output);
    line(&said, "only 1 of 3 nodes confirms \"k\": b, c: no answer in time; SIGTERM in ");
    line(&said, "nodes confirm \"k\" again");
}

/// At least ten seconds pass between two messages about one node, however often it fails and confirms the lock again.
#[test]
fn a_node_that_fails_again_and_again_is_named_once_each_way() {
    let Some(testbed) = Testbed::sized(3) else { return };
    let run = run(&testbed, "2s", &[]);
    testbed.nodes[1].kill().unwrap();
    let silent = event(&run, "node_silent");
    let named_at = boot();
    assert_eq!((&silent["node"], &silent["state"]), (&"b".into(), &"failed".into()));
    for _ in 0..2 {
        testbed.nodes[1].restart().unwrap();
        eventually("b has the key again", || (testbed.holders_of("k") == 3).then_some(()));
        testbed.nodes[1].kill().unwrap();
    }
    testbed.nodes[1].restart().unwrap();
    assert_eq!(event(&run, "node_back")["node"], "b");
    let after = boot() - named_at;
    // The limit is nine seconds and not ten, because the test may have read the first event late.
    assert!(after >= Duration::from_secs(9), "{after:?}");
    fs::write(testbed.path("stop"), "").unwrap();
    let output = run.end();
    code(&output, 0);
    let said = stderr(&output);
    line(&said, "; 2 of 3 nodes confirm \"k\"");
    assert_eq!(said.lines().filter(|line| line.contains("node b")).count(), 2, "{said}");
    line(&said, "quorlock: node b confirms \"k\" again");
}

#[test]
fn the_error_of_the_server_is_in_both_messages() {
    let Some(testbed) = Testbed::sized(3) else { return };
    let run = run(&testbed, "2s", &[]);
    for node in &testbed.nodes[..2] {
        // A folder has the path of the snapshot file, so the server cannot save a snapshot. Then it refuses writes.
        fs::create_dir(node.home().join("dump.rdb")).unwrap();
    }
    testbed.on(0..2, &["CONFIG", "SET", "save", "3600 1"]);
    testbed.on(0..2, &["BGSAVE"]);
    let output = run.end();
    code(&output, 79);
    let said = stderr(&output);
    for part in ["SIGTERM in", "lost the lock"] {
        let line = line(&said, part);
        assert!(line.contains(" a, b: cannot persist, writes refused: MISCONF "), "{line}");
    }
    let lost = json_lines(&stdout(&output)).pop().unwrap();
    assert!(lost["nodes"][0]["failure"].as_str().unwrap().contains("MISCONF"), "{lost}");
}

/// In the time of a short command a node stops to confirm the lock, and confirms it again.
#[test]
fn votes_are_confirmations_and_a_node_that_is_back_is_reported_before_the_release() {
    let Some(testbed) = Testbed::sized(3) else { return };
    let run = run(&testbed, "3s", &[]);
    testbed.nodes[2].pause().unwrap();
    assert_eq!(event(&run, "node_silent")["node"], "c");
    let extended = run.await_line("\"votes\":2}");
    assert!(extended.contains("\"event\":\"extended\""), "{extended}");
    let before = run.count("\"votes\":3}");
    testbed.nodes[2].resume().unwrap();
    eventually("c confirms", || (run.count("\"votes\":3}") > before).then_some(()));
    fs::write(testbed.path("stop"), "").unwrap();
    let output = run.end();
    code(&output, 0);
    let events = json_lines(&stdout(&output));
    let names: Vec<&str> = events.iter().map(|it| it["event"].as_str().unwrap()).collect();
    assert!(names.ends_with(&["node_back", "released"]), "{names:?}");
    line(&stderr(&output), "node c confirms \"k\" again");
}

type Fault<'a> = &'a dyn Fn(&Testbed);

/// Nodes that lost all data vote for nobody while the lock may be held, so the work was done under the lock. A key that
/// was deleted from a node with its marker may have been another client's meanwhile.
#[test]
fn a_lock_that_only_restarts_took_is_not_lost_if_the_command_ends_in_time() {
    let Some(mut testbed) = Testbed::sized(3) else { return };
    testbed.guard = "strict";
    let restart = |testbed: &Testbed| {
        testbed.nodes.iter().for_each(|node| node.kill().unwrap());
        testbed.nodes.iter().for_each(|node| node.restart().unwrap());
    };
    let mark = |testbed: &Testbed| {
        code(&testbed.output(&["init", "--fresh", "--force", "--yes"]), 0);
    };
    let delete = |testbed: &Testbed| testbed.on(0..2, &["DEL", "k"]);
    // As a loop over `SCAN` deletes: another process has the lock between the key's end and that of the markers.
    let one_by_one = |testbed: &Testbed| {
        delete(testbed);
        code(&testbed.output(&["run", "k", "--wait", "0s", "--", "true"]), 0);
        testbed.on(0..3, &["DEL", "quorlock:node"]);
    };
    let faults: [(Fault<'_>, i32, &str); 5] = [
        (&restart, 0, ": the data is lost, and with it the lock"),
        (&|testbed| testbed.on(0..2, &["FLUSHALL"]), 0, "nodes a, b: the data is lost"),
        (&delete, 79, "cause: too few nodes still have its key"),
        (&one_by_one, 79, "cause: too few nodes still have its key"),
        (
            &|testbed| (restart(testbed), mark(testbed)).1,
            79,
            "cause: too few nodes still have its key",
        ),
    ];
    for (fault, expected, said) in faults {
        mark(&testbed);
        let run = run(&testbed, "20s", &[]);
        fault(&testbed);
        fs::write(testbed.path("stop"), "").unwrap();
        let output = run.end();
        code(&output, expected);
        assert!(stderr(&output).contains(said), "{said}: {}", stderr(&output));
        let events = json_lines(&stdout(&output));
        let last = events.last().unwrap();
        assert_eq!(last["event"], if expected == 0 { "data_lost" } else { "lost" }, "{last}");
        ["stop", "up"].iter().for_each(|name| fs::remove_file(testbed.path(name)).unwrap());
    }
}
