//! Messages, exit codes, events, JSON and the commands that servers get, as the files in `outside/` record them.
//!
//! Tokens, times, process ids and places differ from run to run; their kind replaces them. `UPDATE_EXPECT=1
//! cargo test -p quorlock-cli --test outside` records again; the commit message explains the difference.
//! Servers differ in their commands and messages, so one version stands for all.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use common::{PATIENCE, Running, Testbed, boot, eventually, stderr, stdout};
use expect_test::{ExpectFile, expect_file};
use quorlock::admin::{BESIDE, RIGHTS};
use quorlock_servers::resp::RespConnection;
use quorlock_servers::{Flavor, Reply, ServerOptions, find_or_skip, not_for};
use regex_lite::Regex;
use rustix::process::Signal;

/// The server that was recorded.
const RECORDED: (Flavor, &str) = (Flavor::Redis, "7.0.");

/// A script, and what is seen of it.
struct Scene {
    testbed: Testbed,
    node_timeout: &'static str,
    seen: String,
}

/// A command that says that it runs, and ends when the file `go` exists.
const UNTIL_GO: &str = "echo > up; while [ ! -e go ]; do sleep 0.02; done";

/// A command that writes to files.
struct Writes {
    running: Running,
    files: [PathBuf; 2],
}

impl Writes {
    fn until_it_says(&self, text: &str) {
        let says = |file| std::fs::read_to_string(file).unwrap().contains(text);
        eventually(text, || self.files.iter().any(says).then_some(()));
    }

    fn end(mut self) -> Output {
        let status = eventually("quorlock ends", || self.running.0.try_wait().unwrap());
        let [stdout, stderr] = self.files.map(|file| std::fs::read(file).unwrap());
        Output { status, stdout, stderr }
    }
}

/// A thing that happens while quorlock runs.
#[derive(Clone, Copy)]
enum Meanwhile {
    Go,
    Delete,
}

/// MONITOR's last line of a scene.
const THE_END: &str = r#""ECHO" "the end""#;

/// The commands at the beginning of a connection.
const GREETING: &str = r#"(?m)^ +"HELLO"[^\n]*\n( +"(PING|CLIENT|COMMAND|SCRIPT|EVAL" "-- Answers which[^"]*|EVALSHA" "0{40})"[^\n]*\n)*"#;

/// The record with the beginning of a connection in full once, because it is the same each time.
fn greeted_once(seen: &str) -> String {
    let Some(greeting) = Regex::new(GREETING).unwrap().find(seen) else { return seen.to_owned() };
    let (first, rest) = seen.split_at(greeting.end());
    first.to_owned() + &rest.replace(greeting.as_str(), "  (greeting)\n")
}

/// Reads one line of MONITOR, adds its command to `commands`, and returns the line.
fn note_command(monitor: &mut RespConnection, commands: &mut String) -> String {
    let Reply::Simple(line) = monitor.reply().unwrap() else { panic!("MONITOR sends lines") };
    let (by, command) = line.split_once("] ").unwrap();
    let name = command.split('"').nth(1).unwrap();
    // The test itself sends an `ECHO`.
    let is_listed = name == "ECHO" || RIGHTS.iter().any(|(.., call)| call[0] == name);
    assert!(is_listed || BESIDE.contains(&name), "nothing examines whether a node has {name}");
    let by = if by.ends_with(" lua") { "  by the script: " } else { "  " };
    writeln!(commands, "{by}{command}").unwrap();
    line
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
        self.quorlock_with(&[], args);
    }

    /// The same with these variables.
    fn quorlock_with(&mut self, variables: &[(&str, &str)], args: &[&str]) {
        let output = self.command(args).envs(variables.iter().copied()).output().unwrap();
        let set: String =
            variables.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        self.note_as(&format!("{set}quorlock"), args, &output);
    }

    /// Starts it and waits for the file `up`.
    fn start(&self, args: &[&str]) -> Running {
        let running = Running::start(&mut self.command(args));
        self.await_up();
        running
    }

    /// Starts it with files in place of pipes, so that it can be read while it runs.
    fn writes(&self, args: &[&str]) -> Writes {
        let files = ["stdout", "stderr"].map(|name| self.testbed.path(name));
        let [stdout, stderr] =
            [0, 1].map(|file: usize| std::fs::File::create(&files[file]).unwrap());
        let child = self.command(args).stdout(stdout).stderr(stderr).spawn();
        Writes { running: Running(child.unwrap()), files }
    }

    /// Waits for the file `up`, which a command or an event writes, and removes it.
    fn await_up(&self) {
        self.testbed.await_file("up");
        std::fs::remove_file(self.testbed.path("up")).unwrap();
    }

    /// Lets the command [`UNTIL_GO`] end.
    fn go(&self) {
        std::fs::write(self.testbed.path("go"), "").unwrap();
    }

    /// Writes a file and runs with it as the configuration.
    fn configured(&mut self, file: &str, args: &[&str]) {
        self.say(&format!("config.toml: {file}"));
        std::fs::write(self.testbed.path("config.toml"), file).unwrap();
        self.quorlock(args);
    }

    fn note(&mut self, args: &[&str], output: &Output) {
        self.note_as("quorlock", args, output);
    }

    fn note_as(&mut self, command: &str, args: &[&str], output: &Output) {
        let code = output.status.code().map_or("a signal".to_owned(), |code| code.to_string());
        writeln!(self.seen, "$ {command} {}", args.join(" ")).unwrap();
        stdout(output).lines().for_each(|line| writeln!(self.seen, "{line}").unwrap());
        stderr(output).lines().for_each(|line| writeln!(self.seen, "! {line}").unwrap());
        writeln!(self.seen, "= {code}\n").unwrap();
    }

    /// Says in the record what happens.
    fn say(&mut self, what: &str) {
        writeln!(self.seen, "# {what}\n").unwrap();
    }

    /// Runs it, and notes the commands that the first server gets.
    fn wire(&mut self, what: &str, args: &[&str]) {
        self.wire_until(what, args, None);
    }

    /// The same, and one thing happens meanwhile: when the server has got a command that contains `text`, [`UNTIL_GO`]
    /// ends, or, when quorlock has said that it waits, another client deletes the key `k`.
    fn wire_until(&mut self, what: &str, args: &[&str], text: Option<(&str, Meanwhile)>) {
        let mut monitor = self.testbed.nodes[0].connect().unwrap();
        assert_eq!(monitor.command(&["MONITOR"]).unwrap(), Reply::Simple("OK".to_owned()));
        self.say(what);
        let start = boot();
        let running = self.writes(args);
        let mut commands = String::new();
        if let Some((text, meanwhile)) = text {
            while !note_command(&mut monitor, &mut commands).contains(text) {
                assert!(boot() - start < PATIENCE, "in vain: {text} in\n{commands}");
            }
            match meanwhile {
                Meanwhile::Go => self.go(),
                Meanwhile::Delete => {
                    running.until_it_says("waiting");
                    self.server(0, &["DEL", "k"]);
                }
            }
        }
        let output = running.end();
        let _ = std::fs::remove_file(self.testbed.path("go"));
        self.note(args, &output);
        self.server(0, &["ECHO", "the end"]);
        while !note_command(&mut monitor, &mut commands).contains(THE_END) {}
        commands = commands.replace(&format!("  {THE_END}\n"), "");
        self.seen.push_str(&commands);
        self.seen.push('\n');
    }

    /// What somebody else does to a node.
    fn server(&self, node: usize, command: &[&str]) {
        let reply = self.testbed.nodes[node].command(command).unwrap();
        assert!(!matches!(reply, Reply::Error(_)), "{reply:?}");
    }

    fn compare(self, recorded: &ExpectFile) {
        recorded.assert_eq(&greeted_once(&self.recorded()));
    }

    /// The record, without what differs from run to run.
    fn recorded(self) -> String {
        let folder = self.testbed.folder.path().display().to_string();
        let mut seen = self.seen.replace(&folder, "FOLDER");
        for (server, name) in self.testbed.nodes.iter().zip(["a", "b", "c", "d", "e"]) {
            seen = seen.replace(&server.address(), &format!("ADDRESS_{name}"));
        }
        for (pattern, kind) in KINDS {
            seen = Regex::new(pattern).unwrap().replace_all(&seen, *kind).into_owned();
        }
        seen
    }
}

/// What differs from run to run, and what stands for it.
const KINDS: &[(&str, &str)] = &[
    (r"(TOKEN=|run_id=|doctor:)[0-9a-f]{40}", "${1}ID"),
    (r"[0-9a-f]{40} @[0-9]{13} [^ ]+:[0-9]+ ", "ID @SINCE HOST:PID "),
    (r"[0-9a-f]{40} [^ ]+:[0-9]+ ", "ID HOST:PID "),
    (r"since [0-9]{2}:[0-9]{2}:[0-9]{2}Z \([^)]*\)", "since CLOCK"),
    (r"[A-Za-z0-9.-]+:[0-9]+ (nightly|true|sh)", "HOST:PID $1"),
    // The scripts are in the library's sources.
    (r#""(-- [^\\"]*)\\n(?:[^"\\]|\\.)*""#, "\"$1…\""),
    (r#""([a-z_]+_(?:ms|us|s))":-?[0-9]+"#, "\"$1\":N"),
    (r"\b[0-9]{13,16}\b", "N"),
    (r"clock [^ ]+ms", "clock TIME"),
    // Of several nodes, some answer after the quorum.
    (r#""votes":[2-9]"#, r#""votes":N"#),
    (r"[0-9]+\.[0-9]+(?:ms|µs|s)", "TIME"),
    (r"[0-9]+(?:ms|s) (more|left|unless)", "TIME $1"),
    (r"after [0-9]+ms", "after TIME"),
    (r"[0-9]+ min\b", "N min"),
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
    let times = ["run", "k", "--ttl", "3s", "--node-timeout", "500ms"];
    let args =
        [&times[..], &["--label", "nightly", "--", "sh", "-c", "echo > up; sleep 60"]].concat();
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
fn doctor_on_three_nodes() {
    let Some(mut scene) = Scene::new("doctor_on_three_nodes", 3) else { return };
    scene.testbed.guard = "strict";
    scene.quorlock(&["init", "--fresh", "--yes", "--quiet"]);
    for args in [&["doctor"][..], &["doctor", "--quiet"], &["doctor", "--notes"]] {
        scene.quorlock(args);
    }
    scene.say("a node has a memory limit");
    scene.server(0, &["CONFIG", "SET", "maxmemory", "100mb"]);
    scene.quorlock(&["doctor"]);
    scene.say("and deletes keys when it is full; another one lost its data; the user of the third may not do everything");
    scene.server(0, &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    scene.server(1, &["FLUSHALL"]);
    scene.server(2, &["ACL", "SETUSER", "default", "-eval", "-getrange"]);
    for args in [
        &["doctor"][..],
        &["doctor", "--quiet"],
        &["doctor", "--json"],
        &["status", "k"],
        &["run", "k", "--wait", "0s", "--", "true"],
        &["run", "k", "--wait", "0s", "--json", "--", "true"],
        &["init", "--fresh", "--yes"],
    ] {
        scene.quorlock(args);
    }
    scene.compare(&expect_file!["outside/doctor.txt"]);
}

#[test]
fn init_and_its_questions() {
    let Some(mut scene) = Scene::new("init_and_its_questions", 3) else { return };
    scene.testbed.guard = "strict";
    for args in [
        &["init", "--fresh"][..],
        &["init", "--fresh", "--yes"],
        &["init", "--fresh", "--yes", "--json"],
        &["init", "--fresh", "--yes", "--quiet"],
        &["init", "--fresh", "--max-ttl", "20s"],
        &["init", "--fresh", "--max-ttl", "20s", "--yes"],
        &["init", "--fresh", "--quorum", "3", "--yes"],
        &["init", "--fresh", "--quorum", "3", "--yes", "--force"],
        &["doctor"],
    ] {
        scene.quorlock(args);
    }
    scene.say("a lock is held");
    let held = ["run", "held", "--quorum", "3", "--label", "nightly", "--", "sh", "-c", UNTIL_GO];
    let running = scene.start(&held);
    scene.quorlock(&["init", "--fresh", "--quorum", "3", "--yes"]);
    scene.quorlock(&["init", "--fresh", "--quorum", "3", "--yes", "--force"]);
    scene.go();
    scene.note(&held, &running.end());
    scene.compare(&expect_file!["outside/init.txt"]);
}

#[test]
fn readers_and_several_keys() {
    let Some(mut scene) = Scene::new("readers_and_several_keys", 1) else { return };
    for args in [
        &["run", "k", "--shared", "--fenced", "--", "true"][..],
        &["run", "k", "--also", "k", "--", "true"],
        &["run", "k", "--also", "l", "--fenced", "--json", "--", "true"],
        &["run", "k", "--shared", "--also", "l", "--json", "--", "true"],
    ] {
        scene.quorlock(args);
    }
    scene.say("a reader holds k and l");
    let reader =
        ["run", "k", "--shared", "--also", "l", "--label", "nightly", "--", "sh", "-c", UNTIL_GO];
    let running = scene.start(&reader);
    for args in [
        &["status", "k"][..],
        &["status", "l", "--json"],
        &["run", "l", "--shared", "--", "echo", "ran"],
        &["run", "l", "--wait", "0s", "--", "true"],
        &["run", "m", "--also", "l", "--wait", "0s", "--json", "--", "true"],
    ] {
        scene.quorlock(args);
    }
    scene.go();
    scene.note(&reader, &running.end());
    scene.compare(&expect_file!["outside/readers.txt"]);
}

#[test]
fn holding_for_a_while_and_waiting() {
    let Some(mut scene) = Scene::new("holding_for_a_while_and_waiting", 1) else { return };
    let left = ["run", "n", "--min-hold", "1h", "--status-fd", "1", "--", "sh", "-c", "exit 3"];
    let holder = scene.writes(&left);
    holder.until_it_says("left");
    holder.running.signal(Signal::TERM);
    scene.note(&left, &holder.end());
    scene.quorlock(&["run", "n", "--wait", "0s", "--if-held", "skip", "--json", "--", "true"]);

    scene.say("another holds k");
    let holder = ["run", "k", "--label", "nightly", "--", "sh", "-c", UNTIL_GO];
    let running = scene.start(&holder);
    let waits = [
        &["--"][..],
        &["--json", "--"],
        &["--quiet", "--"],
        &["--if-held", "skip", "--"],
        &["--if-held", "skip", "--json", "--"],
    ]
    .map(|options| [&["run", "k", "--wait", "500ms"], options, &["true"]].concat())
    .map(|args| (Running::start(&mut scene.command(&args)), args));
    for (waiting, args) in waits {
        scene.note(&args, &waiting.end());
    }
    scene.say("a signal ends the wait");
    let waits = ["run", "k", "--", "echo", "ran"];
    let waiting = scene.writes(&waits);
    waiting.until_it_says("waiting");
    waiting.running.signal(Signal::TERM);
    scene.note(&waits, &waiting.end());
    scene.go();
    running.end();
    scene.say("the holder ends");
    for options in [&["--"][..], &["--json", "--"], &["--wait", "forever", "--"]] {
        std::fs::remove_file(scene.testbed.path("go")).unwrap();
        let running = scene.start(&holder);
        let waits = [&["run", "k"], options, &["echo", "ran"]].concat();
        let waiting = scene.writes(&waits);
        waiting.until_it_says("waiting");
        scene.go();
        scene.note(&waits, &waiting.end());
        running.end();
    }
    scene.compare(&expect_file!["outside/waiting.txt"]);
}

#[test]
fn a_quorum_that_is_lost() {
    let Some(mut scene) = Scene::new("a_quorum_that_is_lost", 3) else { return };
    scene.node_timeout = "500ms";
    let args = |output: &'static str| {
        ["run", "k", "--ttl", "2s", output, "--", "sh", "-c", "echo > up; exec sleep 60"]
    };
    let text = scene.start(&args("--kill-after=400ms"));
    let json = scene.start(&[
        "run",
        "l",
        "--ttl",
        "2s",
        "--json",
        "--",
        "sh",
        "-c",
        "echo > up; exec sleep 60",
    ]);
    scene.say("two of three nodes are killed");
    scene.testbed.nodes[0].kill().unwrap();
    scene.testbed.nodes[2].kill().unwrap();
    scene.note(&args("--kill-after=400ms"), &text.end());
    scene.note(&["run", "l", "--ttl", "2s", "--json", "--", "…"], &json.end());
    // On a slow machine an extension comes before the nodes are killed.
    let extended = |line: &&str| line.contains(r#""event":"extended""#);
    scene.seen =
        scene.seen.lines().filter(|line| !extended(line)).map(|line| format!("{line}\n")).collect();
    scene.compare(&expect_file!["outside/lost.txt"]);
}

#[test]
fn variables_and_the_file() {
    let Some(mut scene) = Scene::new("variables_and_the_file", 1) else { return };
    let environment = ["run", "k", "--", "sh", "-c", "env | grep ^QUORLOCK_ | sort"];
    let mut all = vec![
        ("QUORLOCK_TTL", "9s"),
        ("QUORLOCK_WAIT", "5s"),
        ("QUORLOCK_LABEL", "nightly"),
        ("QUORLOCK_MAX_TTL", "20s"),
        ("QUORLOCK_KEY_PREFIX", "p:"),
        ("QUORLOCK_USERNAME", "default"),
        ("QUORLOCK_PASSWORD", "secret"),
        ("QUORLOCK_FENCED", "true"),
        ("QUORLOCK_IF_HELD", "skip"),
        ("QUORLOCK_HELD_EXIT_CODE", "3"),
        ("QUORLOCK_MAX_HOLD", "1h"),
        ("QUORLOCK_KILL_AFTER", "2s"),
        ("QUORLOCK_QUIET", "no"),
        ("QUORLOCK_NOSUCH", "x"),
    ];
    scene.quorlock_with(&all, &environment);
    all.push(("QUORLOCK_PASS_NODES", "1"));
    scene.quorlock_with(&all, &environment);
    for variable in [
        ("QUORLOCK_SHARED", "maybe"),
        ("QUORLOCK_SHARED", "1"),
        ("QUORLOCK_SHARED", "no"),
        ("QUORLOCK_SHARED", ""),
        ("QUORLOCK_TTL", "soon"),
        ("QUORLOCK_WAIT", "5"),
        ("QUORLOCK_QUORUM", "2"),
        ("QUORLOCK_IF_HELD", "never"),
        ("QUORLOCK_STATUS_FD", "77"),
        ("QUORLOCK_NODES", "redis://h:1,,x"),
        ("QUORLOCK_RESTART_GUARD", "some"),
        ("QUORLOCK_CONFIG", "missing.toml"),
    ] {
        scene.quorlock_with(&[variable], &["run", "k", "--wait", "0s", "--", "echo", "ran"]);
    }
    let run = ["run", "k", "--wait", "0s", "--config", "config.toml", "--", "echo", "ran"];
    for file in [
        "ttl = \"5s\"",
        "ttl = 10",
        "ttl = \"soon\"",
        "min-hold = \"0s\"",
        "min-holt = \"1s\"",
        "nodes = [\"redis://:secret@x#y\"]",
        "quorum = 2",
        "ttl = [",
    ] {
        scene.configured(file, &run);
    }
    scene.compare(&expect_file!["outside/settings.txt"]);
}

/// How a lock is taken, extended once and given back, of each kind.
#[test]
fn what_a_server_is_asked_for_each_kind() {
    let name = "what_a_server_is_asked_for_each_kind";
    // With a command of its extension.
    let kinds = [
        (&["--fenced"][..], r#""PEXPIRE" "k" "3000""#),
        (&["--shared"], r#""ZREMRANGEBYSCORE" "k""#),
        (&["--also", "l"], r#""PEXPIRE" "k" "3000""#),
        (&["--also", "l", "--fenced"], r#""PEXPIRE" "k" "3000""#),
    ];
    let Some(scenes) = (0..kinds.len()).map(|_| Scene::new(name, 1)).collect::<Option<Vec<_>>>()
    else {
        return;
    };
    // All at the same time, because each waits for its extension.
    let record = |(mut scene, (kind, extension)): (Scene, (&[&str], &str))| {
        let times = ["run", "k", "--ttl", "3s", "--node-timeout", "500ms"];
        let args = [&times, kind, &["--", "sh", "-c", UNTIL_GO]].concat();
        scene.wire_until("a lock that is extended once", &args, Some((extension, Meanwhile::Go)));
        scene.recorded()
    };
    let seen: String = std::thread::scope(|scope| {
        let recorded = scenes.into_iter().zip(kinds).map(|it| scope.spawn(move || record(it)));
        let recorded: Vec<_> = recorded.collect();
        recorded.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    expect_file!["outside/wire_kinds.txt"].assert_eq(&greeted_once(&seen));
}

#[test]
fn what_a_server_is_asked_by_a_waiting_call() {
    let Some(mut scene) = Scene::new("what_a_server_is_asked_by_a_waiting_call", 1) else { return };
    let waits = (r#""CLIENT" "CACHING""#, Meanwhile::Delete);
    for (what, args) in [
        ("another client's key is deleted", &["run", "k", "--", "true"][..]),
        ("and a reader waits", &["run", "k", "--shared", "--", "true"]),
        ("and a call for two keys waits", &["run", "k", "--also", "l", "--", "true"]),
    ] {
        scene.server(0, &["SET", "k", "other", "PX", "60000"]);
        scene.wire_until(what, args, Some(waits));
    }
    scene.compare(&expect_file!["outside/wire_waiting.txt"]);
}

#[test]
fn what_a_server_is_asked() {
    let Some(mut scene) = Scene::new("what_a_server_is_asked", 1) else { return };
    scene.wire("a lock", &["run", "k", "--", "true"]);
    let extended =
        ["run", "k", "--ttl", "3s", "--node-timeout", "500ms", "--", "sh", "-c", UNTIL_GO];
    scene.wire_until(
        "a lock that is extended once",
        &extended,
        Some((r#""PEXPIRE" "k""#, Meanwhile::Go)),
    );
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
