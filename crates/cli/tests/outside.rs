//! What is seen from outside: messages, exit codes, events, JSON and the commands that servers get, as they
//! were recorded in `outside/`.
//!
//! What differs from run to run (tokens, times, process ids, places) is replaced by its kind. `UPDATE_EXPECT=1
//! cargo test -p quorlock-cli --test outside` records anew; the difference belongs into the commit's message.
//! Servers differ in what they are asked and say, so one version stands for all.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::fmt::Write as _;
use std::process::{Command, Output};

use common::{Running, Testbed, stderr, stdout};
use expect_test::{ExpectFile, expect_file};
use quorlock_servers::{Flavor, Reply, ServerOptions, find_or_skip, not_for};
use regex_lite::Regex;

/// The server that was recorded.
const RECORDED: (Flavor, &str) = (Flavor::Redis, "7.0.");

/// A script, and what is seen of it.
struct Scene {
    testbed: Testbed,
    node_timeout: &'static str,
    seen: String,
}

impl Scene {
    /// `None`: there is no such server here, and that has been said.
    fn new(test: &str, nodes: usize) -> Option<Self> {
        let binary = find_or_skip(test)?;
        let (flavor, version) = RECORDED;
        if binary.flavor != flavor || !binary.version.to_string().starts_with(version) {
            not_for(&binary, test, "what it is asked and says was recorded with Redis 7.0");
            return None;
        }
        let testbed = Testbed::sized(test, nodes, ServerOptions::default())?;
        // Longer than any answer takes here, also on a busy machine.
        Some(Self { testbed, node_timeout: "2s", seen: String::new() })
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.testbed.quorlock(args);
        command.env("QUORLOCK_NODE_TIMEOUT", self.node_timeout);
        command
    }

    /// Runs it to its end.
    fn quorlock(&mut self, args: &[&str]) {
        let output = self.command(args).output().unwrap();
        self.note(args, &output);
    }

    /// Starts it and waits for the file `up`.
    fn start(&self, args: &[&str]) -> Running {
        let running = Running::start(&mut self.command(args));
        self.testbed.await_file("up");
        std::fs::remove_file(self.testbed.path("up")).unwrap();
        running
    }

    fn note(&mut self, args: &[&str], output: &Output) {
        let code = output.status.code().map_or("a signal".to_owned(), |code| code.to_string());
        writeln!(self.seen, "$ quorlock {}", args.join(" ")).unwrap();
        stdout(output).lines().for_each(|line| writeln!(self.seen, "{line}").unwrap());
        stderr(output).lines().for_each(|line| writeln!(self.seen, "! {line}").unwrap());
        writeln!(self.seen, "= {code}\n").unwrap();
    }

    /// Says in the record what happens.
    fn say(&mut self, what: &str) {
        writeln!(self.seen, "# {what}\n").unwrap();
    }

    /// Runs it, and notes what the first server is asked.
    fn wire(&mut self, what: &str, args: &[&str]) {
        let mut stream = self.testbed.nodes[0].connect().unwrap();
        assert_eq!(stream.command(&["MONITOR"]).unwrap(), Reply::Simple("OK".to_owned()));
        self.say(what);
        self.quorlock(args);
        self.server(0, &["ECHO", "the end"]);
        loop {
            let reply = stream.reply().unwrap();
            let Reply::Simple(line) = &reply else { panic!("before the end: {reply:?}") };
            let (by, command) = line.split_once("] ").unwrap();
            if command == r#""ECHO" "the end""# {
                break;
            }
            let by = if by.ends_with(" lua") { "  by the script: " } else { "  " };
            writeln!(self.seen, "{by}{command}").unwrap();
        }
        self.seen.push('\n');
    }

    /// What somebody else does to a node.
    fn server(&self, node: usize, command: &[&str]) {
        let reply = self.testbed.nodes[node].command(command).unwrap();
        assert!(!matches!(reply, Reply::Error(_)), "{reply:?}");
    }

    fn compare(self, recorded: &ExpectFile) {
        let folder = self.testbed.folder.path().display().to_string();
        let mut seen = self.seen.replace(&folder, "FOLDER");
        for (server, name) in self.testbed.nodes.iter().zip(["a", "b", "c", "d", "e"]) {
            seen = seen.replace(&server.address(), &format!("ADDRESS_{name}"));
        }
        for (pattern, kind) in KINDS {
            seen = Regex::new(pattern).unwrap().replace_all(&seen, *kind).into_owned();
        }
        recorded.assert_eq(&seen);
    }
}

/// What differs from run to run, and what stands for it.
const KINDS: &[(&str, &str)] = &[
    (r"(TOKEN=|run_id=|doctor:)[0-9a-f]{40}", "${1}ID"),
    (r"[0-9a-f]{40} [^ ]+:[0-9]+ ", "ID HOST:PID "),
    (r"[A-Za-z0-9.-]+:[0-9]+ nightly", "HOST:PID nightly"),
    // The scripts are in the library's sources.
    (r#""(-- [^\\"]*)\\n(?:[^"\\]|\\.)*""#, "\"$1…\""),
    (r#""([a-z_]+_(?:ms|us|s))":-?[0-9]+"#, "\"$1\":N"),
    (r"\b[0-9]{13,16}\b", "N"),
    (r"clock [^ ]+ms", "clock TIME"),
    (r"[0-9]+\.[0-9]+(?:ms|µs|s)", "TIME"),
    (r"up [0-9]+s", "up TIME"),
    (r"[0-9]+ s\b", "N s"),
    (r"  +", "  "),
];

#[test]
fn refused_before_anything_is_sent() {
    let Some(mut scene) = Scene::new("refused_before_anything_is_sent", 1) else { return };
    for args in [
        &["run"][..],
        &["run", "k"],
        &["run", "", "--", "true"],
        &["run", "k", "--ttl", "soon", "--", "true"],
        &["run", "k", "--ttl", "1ms", "--", "true"],
        &["run", "k", "--ttl", "1h", "--", "true"],
        &["run", "k", "--quorum", "2", "--", "true"],
        &["run", "k", "--wait", "-1s", "--", "true"],
        &["run", "k", "-n", "http://x", "--", "true"],
        &["run", "k", "-n", "redis://:secret@x#y", "--", "true"],
        &["run", "k", "-n", "a=redis://x", "-n", "a=redis://y", "--", "true"],
        &["run", "k", "--node-timeout", "9s", "--", "true"],
        &["run", "k", "--durable", "z", "--", "true"],
        &["run", "k", "--min-hold", "2h", "--max-hold", "1h", "--", "true"],
        &["run", "k", "--config", "missing.toml", "--", "true"],
        &["run", "k", "--status-fd", "77", "--", "true"],
        &["status"],
        &["init"],
        &["nonsense"],
    ] {
        scene.quorlock(args);
    }
    scene.compare(&expect_file!["outside/refused.txt"]);
}

#[test]
fn help_texts() {
    let Some(mut scene) = Scene::new("help_texts", 1) else { return };
    scene.quorlock(&["--help"]);
    for verb in ["run", "status", "init", "doctor", "bench", "demo"] {
        scene.quorlock(&[verb, "--help"]);
    }
    scene.compare(&expect_file!["outside/help.txt"]);
}

#[test]
fn commands_and_how_they_end() {
    let Some(mut scene) = Scene::new("commands_and_how_they_end", 1) else { return };
    for command in [
        &["true"][..],
        &["sh", "-c", "echo out; echo err >&2; exit 7"],
        &["sh", "-c", "kill -USR1 $$"],
        &["/no/such/program"],
        &["/dev/null"],
        &["sh", "-c", "env | grep ^QUORLOCK_ | sort"],
    ] {
        scene.quorlock(&[&["run", "k", "--wait", "10s", "--"], command].concat());
    }
    scene.quorlock(&["run", "k", "--fenced", "--", "sh", "-c", "env | grep ^QUORLOCK_ | sort"]);
    scene.quorlock(&["run", "k", "--json", "--", "true"]);
    scene.quorlock(&["run", "k", "--status-fd", "1", "--", "true"]);
    scene.compare(&expect_file!["outside/commands.txt"]);
}

/// What `run` and `status` say of a lock. On one node, for of three it is told what the first two have said.
#[test]
fn held_by_another() {
    let Some(mut scene) = Scene::new("held_by_another", 1) else { return };
    let look = |scene: &mut Scene| {
        scene.quorlock(&["status", "k"]);
        scene.quorlock(&["status", "k", "--json"]);
        scene.quorlock(&["run", "k", "--wait", "0s", "--", "true"]);
    };
    look(&mut scene);
    scene.say("another holds k");
    let args = ["run", "k", "--label", "nightly", "--", "sh", "-c", "echo > up; sleep 60"];
    let holder = scene.start(&args);
    look(&mut scene);
    scene.quorlock(&["status", "k", "--quiet"]);
    scene.quorlock(&["run", "k", "--wait", "0s", "--json", "--", "true"]);
    scene.quorlock(&["run", "k", "--wait", "0s", "--status-fd", "1", "--", "true"]);
    scene.quorlock(&["run", "k", "--wait", "0s", "--if-held", "skip", "--", "true"]);
    scene.quorlock(&["run", "k", "--wait", "0s", "-E", "3", "--", "true"]);
    scene.say("its key is deleted");
    scene.server(0, &["DEL", "k"]);
    scene.note(&args, &holder.end());
    for (what, command) in [
        ("a key that no quorlock wrote", &["SET", "k", "some\nother", "PX", "60000"][..]),
        ("one that does not expire", &["SET", "k", "other"]),
        ("one that is no string", &["HSET", "k", "f", "v"]),
    ] {
        scene.say(what);
        scene.server(0, &["DEL", "k"]);
        scene.server(0, command);
        look(&mut scene);
    }
    scene.compare(&expect_file!["outside/held.txt"]);
}

#[test]
fn a_lock_of_which_nobody_has_a_quorum() {
    let Some(mut scene) = Scene::new("a_lock_of_which_nobody_has_a_quorum", 3) else { return };
    for (node, value) in ["x", "y", "z"].iter().enumerate() {
        scene.server(node, &["SET", "k", value, "PX", "60000"]);
    }
    scene.quorlock(&["status", "k"]);
    scene.quorlock(&["status", "k", "--json"]);
    scene.compare(&expect_file!["outside/split.txt"]);
}

#[test]
fn nodes_that_are_down() {
    let Some(mut scene) = Scene::new("nodes_that_are_down", 3) else { return };
    scene.say("one node is down");
    scene.testbed.nodes[0].kill().unwrap();
    scene.quorlock(&["run", "k", "--", "echo", "ran"]);
    scene.quorlock(&["status", "k"]);
    scene.say("two nodes are down");
    scene.testbed.nodes[1].kill().unwrap();
    scene.quorlock(&["status", "k"]);
    scene.quorlock(&["status", "k", "--json"]);
    scene.quorlock(&["doctor"]);
    scene.quorlock(&["init", "--fresh", "--yes"]);
    scene.say("all nodes are down");
    scene.testbed.nodes[2].kill().unwrap();
    scene.quorlock(&["run", "k", "--wait", "0s", "--", "true"]);
    scene.quorlock(&["run", "k", "--wait", "0s", "--json", "--", "true"]);
    scene.quorlock(&["run", "k", "--wait", "0s", "--status-fd", "1", "--", "true"]);
    scene.compare(&expect_file!["outside/down.txt"]);
}

#[test]
fn a_node_that_is_taken_into_use() {
    let Some(mut scene) = Scene::new("a_node_that_is_taken_into_use", 1) else { return };
    scene.testbed.guard = "strict";
    for args in [
        &["doctor"][..],
        &["run", "k", "--wait", "0s", "--", "true"],
        &["run", "k", "--wait", "0s", "--json", "--", "true"],
        &["status", "k"],
        &["doctor", "--notes"],
        &["doctor", "--json"],
        &["init", "--fresh", "--yes"],
        &["doctor"],
        &["run", "k", "--wait", "0s", "--status-fd", "1", "--", "true"],
        &["run", "k", "--wait", "0s", "--max-ttl", "20s", "--", "true"],
        &["run", "k", "--wait", "0s", "-n", "b=redis://127.0.0.1:1", "--", "true"],
        &["init", "--reconfigure"],
        &["doctor", "--acl", "locker"],
        &["doctor", "--systemd"],
    ] {
        scene.quorlock(args);
    }
    scene.say("it loses its data");
    scene.server(0, &["FLUSHALL"]);
    scene.quorlock(&["run", "k", "--wait", "0s", "--", "true"]);
    scene.compare(&expect_file!["outside/guard.txt"]);
}

#[test]
fn nodes_that_get_other_settings() {
    let Some(mut scene) = Scene::new("nodes_that_get_other_settings", 3) else { return };
    (scene.testbed.guard, scene.node_timeout) = ("strict", "250ms");
    scene.quorlock(&["init", "--fresh", "--yes", "--max-ttl", "1s"]);
    scene.quorlock(&["init", "--reconfigure", "--yes", "--max-ttl", "2s"]);
    scene.quorlock(&["run", "k", "--max-ttl", "2s", "--", "echo", "ran"]);
    scene.compare(&expect_file!["outside/reconfigure.txt"]);
}

#[test]
fn what_a_server_is_asked() {
    let Some(mut scene) = Scene::new("what_a_server_is_asked", 1) else { return };
    scene.wire("a lock", &["run", "k", "--", "true"]);
    let extended = ["run", "k", "--ttl", "3s", "--node-timeout", "500ms", "--", "sleep", "1.2"];
    scene.wire("a lock that is extended once", &extended);
    scene.wire("with a fence, for the first time", &["run", "f", "--fenced", "--", "true"]);
    scene.wire("and again", &["run", "f", "--fenced", "--", "true"]);
    scene.wire("a look", &["status", "k"]);
    scene.server(0, &["SET", "k", "other", "PX", "60000"]);
    scene.wire("a lock that others hold", &["run", "k", "--wait", "0s", "--", "true"]);
    scene.server(0, &["FLUSHALL"]);
    scene.testbed.guard = "strict";
    scene.wire("is new", &["run", "k", "--wait", "0s", "--", "true"]);
    scene.wire("taken into use", &["init", "--fresh", "--yes"]);
    scene.wire("a lock, with the guard", &["run", "k", "--", "true"]);
    scene.wire("with a fence", &["run", "f", "--fenced", "--", "true"]);
    scene.wire("a look", &["status", "k"]);
    scene.wire("an examination", &["doctor"]);
    scene.compare(&expect_file!["outside/wire.txt"]);
}
