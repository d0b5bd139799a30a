//! What `quorlock run` says while nodes do not confirm its lock, on three real servers.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::ChildStdout;
use std::time::Duration;

use common::{Running, Testbed, boot, eventually};
use quorlock_servers::{Reply, ServerOptions};
use serde_json::Value;

const NODE_TIMEOUT: Duration = Duration::from_millis(500);

/// A run of a command that ends when the file `stop` is there, and its events.
struct Watched {
    run: Running,
    events: BufReader<ChildStdout>,
}

impl Watched {
    fn start(testbed: &Testbed, ttl: &str, more: &[&str]) -> Self {
        let script = "echo > up; until [ -e stop ]; do sleep 0.05; done";
        let first = ["run", "k", "--ttl", ttl, "--node-timeout", "500ms", "--status-fd", "1"];
        let args: Vec<&str> = first.iter().chain(more).copied().collect();
        let mut command = testbed.quorlock(&args);
        let mut run = Running::start(command.args(["--", "sh", "-c", script]));
        testbed.await_file("up");
        let events = BufReader::new(run.0.stdout.take().unwrap());
        Self { run, events }
    }

    /// The next event with this name; those before it are passed over.
    fn next(&mut self, name: &str) -> Value {
        let mut seen = Vec::new();
        loop {
            let mut line = String::new();
            let bytes = self.events.read_line(&mut line).unwrap();
            assert!(bytes > 0, "no event {name}, but {seen:?}");
            let event: Value = serde_json::from_str(&line).unwrap();
            if event["event"] == name {
                return event;
            }
            seen.push(line);
        }
    }

    /// The exit code, the messages for people, and the events that come before the end.
    fn end(mut self) -> (Option<i32>, String, Vec<Value>) {
        let events = self.events.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap());
        let events = events.collect();
        let status = eventually("quorlock ends", || self.run.0.try_wait().unwrap());
        let mut said = String::new();
        let stderr = self.run.0.stderr.as_mut().unwrap();
        std::io::Read::read_to_string(stderr, &mut said).unwrap();
        (status.code(), said, events)
    }
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
fn two_killed_nodes_of_three_are_named_at_once_and_in_the_loss() {
    let name = "two_killed_nodes_of_three_are_named_at_once_and_in_the_loss";
    let Some(testbed) = Testbed::sized(name, 3, ServerOptions::default()) else { return };
    let mut watched = Watched::start(&testbed, "3s", &["--also", "other"]);
    let killed = boot();
    testbed.nodes[1..].iter().for_each(|node| node.kill().unwrap());
    let event = watched.next("unconfirmed");
    let after = boot() - killed;
    assert!(after <= Duration::from_secs(1) + NODE_TIMEOUT, "{after:?}");
    let expected = [("a", "granted"), ("b", "failed"), ("c", "failed")];
    assert_eq!(states(&event), expected);
    assert_eq!((&event["confirmed"], &event["of"]), (&1.into(), &3.into()));
    assert_eq!((&event["key"], &event["also"][0]), (&"k".into(), &"other".into()));
    let term_in_ms = event["term_in_ms"].as_u64().unwrap();
    assert!((1..2400).contains(&term_in_ms), "{term_in_ms}");

    let (code, said, events) = watched.end();
    assert_eq!(code, Some(79), "{said}");
    let first = line(&said, "SIGTERM in");
    let start = "quorlock: only 1 of 3 nodes confirms \"k\", \"other\": b, c: unreachable: ";
    assert!(first.starts_with(start), "{first}");
    assert!(first.ends_with(" unless a quorum answers"), "{first}");
    assert_eq!(said.matches("SIGTERM in").count(), 1, "said once: {said}");
    let lost = line(&said, "lost the lock \"k\", \"other\"");
    assert!(lost.contains("quorlock doctor): b, c: unreachable: "), "{lost}");
    let event = events.last().unwrap();
    assert_eq!((&event["event"], &event["cause"]), (&"lost".into(), &"expired".into()));
    assert_eq!(states(event), expected);
    assert_eq!(event["also"][0], "other");
}

#[test]
fn two_silent_nodes_of_three_are_named_after_a_node_timeout_and_so_is_their_return() {
    let name = "two_silent_nodes_of_three_are_named_after_a_node_timeout_and_so_is_their_return";
    let Some(testbed) = Testbed::sized(name, 3, ServerOptions::default()) else { return };
    let mut watched = Watched::start(&testbed, "9s", &[]);
    testbed.nodes[1..].iter().for_each(|node| node.pause().unwrap());
    let event = watched.next("unconfirmed");
    assert_eq!(event["nodes"][1]["failure"], "no answer in time");
    testbed.nodes[1..].iter().for_each(|node| node.resume().unwrap());
    let event = watched.next("confirmed");
    assert!(event["confirmed"].as_u64().unwrap() >= 2, "{event}");
    fs::write(testbed.path("stop"), "").unwrap();
    let (code, said, _) = watched.end();
    assert_eq!(code, Some(0), "{said}");
    line(&said, "only 1 of 3 nodes confirms \"k\": b, c: no answer in time; SIGTERM in ");
    line(&said, "nodes confirm \"k\" again");
}

/// However often it goes and comes back within ten seconds.
#[test]
fn a_node_that_goes_and_comes_back_is_named_once_each_way() {
    let name = "a_node_that_goes_and_comes_back_is_named_once_each_way";
    let Some(testbed) = Testbed::sized(name, 3, ServerOptions::default()) else { return };
    let mut watched = Watched::start(&testbed, "2s", &[]);
    testbed.nodes[1].kill().unwrap();
    let event = watched.next("node_silent");
    let named_at = boot();
    assert_eq!((&event["node"], &event["state"]), (&"b".into(), &"failed".into()));
    for _ in 0..2 {
        testbed.nodes[1].restart().unwrap();
        let has_key = || {
            let exists = testbed.nodes[1].command(&["EXISTS", "k"]);
            exists.is_ok_and(|reply| reply == Reply::Int(1)).then_some(())
        };
        eventually("it is healed", has_key);
        testbed.nodes[1].kill().unwrap();
    }
    testbed.nodes[1].restart().unwrap();
    assert_eq!(watched.next("node_back")["node"], "b");
    let after = boot() - named_at;
    // This process may have noticed the first of the two late.
    assert!(after >= Duration::from_secs(9), "{after:?}");
    fs::write(testbed.path("stop"), "").unwrap();
    let (code, said, _) = watched.end();
    assert_eq!(code, Some(0), "{said}");
    line(&said, "; 2 of 3 nodes confirm \"k\"");
    let lines = said.lines().filter(|line| line.contains("node b"));
    assert_eq!(lines.count(), 2, "{said}");
    line(&said, "quorlock: node b confirms \"k\" again");
}

#[test]
fn the_servers_own_words_are_in_both_messages() {
    let name = "the_servers_own_words_are_in_both_messages";
    let Some(testbed) = Testbed::sized(name, 3, ServerOptions::default()) else { return };
    let watched = Watched::start(&testbed, "2s", &[]);
    for node in &testbed.nodes[..2] {
        // A snapshot cannot take the place of a folder.
        fs::create_dir(node.home().join("dump.rdb")).unwrap();
        node.command(&["CONFIG", "SET", "save", "3600 1"]).unwrap();
        node.command(&["BGSAVE"]).unwrap();
    }
    let (code, said, events) = watched.end();
    assert_eq!(code, Some(79), "{said}");
    for part in ["SIGTERM in", "lost the lock"] {
        let line = line(&said, part);
        assert!(line.contains(" a, b: cannot persist, writes refused: MISCONF "), "{line}");
    }
    let failure = events.last().unwrap()["nodes"][0]["failure"].as_str().unwrap();
    assert!(failure.contains("MISCONF"), "{failure}");
}
