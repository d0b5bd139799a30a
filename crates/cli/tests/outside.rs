//! Messages, exit codes, events, JSON and the commands that the server receives, compared with the files in `outside/`.
//!
//! Tokens, times, process ids and addresses differ from run to run, so a placeholder replaces each.
//! `UPDATE_EXPECT=1 cargo test -p quorlock-cli --test outside` records the files again, and the message of that commit
//! explains each difference. The texts of servers differ, so the files are for one version of Redis.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::fmt::Write as _;
use std::process::{Command, Output};

use common::{PATIENCE, Running, Testbed, boot, command, info, not_for, server, stderr, stdout};
use expect_test::{ExpectFile, expect_file};
use quorlock::admin::{BESIDE, RIGHTS};
use quorlock_servers::resp::RespConnection;
use quorlock_servers::{Flavor, Reply};
use regex_lite::Regex;
use rustix::process::Signal;

/// The server version with which the files were recorded.
const RECORDED: (Flavor, &str) = (Flavor::Redis, "7.0.");

/// Commands that run one after the other on real servers, and the record of their output and of what a server receives.
struct Scene {
    testbed: Testbed,
    node_timeout: &'static str,
    record: String,
}

/// A command that writes the file `up` and ends when the file `go` exists.
const UNTIL_GO: &str = "echo > up; while [ ! -e go ]; do sleep 0.02; done";

/// An event while `quorlock` runs.
#[derive(Clone, Copy)]
enum Meanwhile {
    /// The command [`UNTIL_GO`] ends.
    Go,
    /// `quorlock` reports that it waits, and then another client deletes the key `k`.
    Delete,
}

/// The test sends this command to mark the end of a recorded run.
const THE_END: &str = r#""ECHO" "the end""#;

/// The commands that the client sends when a connection is opened.
const GREETING: &str = r#"(?m)^ +"HELLO"[^\n]*\n( +"(PING|CLIENT|COMMAND|SCRIPT|EVAL" "-- Returns the numbers of the calls[^"]*|EVALSHA" "0{40})"[^\n]*\n)*"#;

/// All greetings are the same, so this function keeps only the first one in full and shortens the others.
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
    // The test itself sends an `ECHO`. Any other command must be in one of the two lists that `doctor` and tests check.
    let is_listed = name == "ECHO" || RIGHTS.iter().any(|(.., call)| call[0] == name);
    assert!(is_listed || BESIDE.contains(&name), "no check looks for the command {name}");
    let by = if by.ends_with(" lua") { "  by the script: " } else { "  " };
    writeln!(commands, "{by}{command}").unwrap();
    line
}

impl Scene {
    /// `None`: this machine lacks the version with which the files were recorded, so the test is reported as skipped.
    fn new(nodes: usize) -> Option<Self> {
        let binary = server()?;
        let (flavor, version) = RECORDED;
        if binary.flavor != flavor || !binary.version.to_string().starts_with(version) {
            not_for("the files were recorded with Redis 7.0");
            return None;
        }
        let testbed = Testbed::sized(nodes)?;
        // The node timeout is longer than any answer takes on a busy machine.
        Some(Self { testbed, node_timeout: "2s", record: String::new() })
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.testbed.quorlock(args);
        command.env("QUORLOCK_NODE_TIMEOUT", self.node_timeout);
        command
    }

    /// Runs `quorlock` to its end and records it.
    fn quorlock(&mut self, args: &[&str]) {
        self.quorlock_with(&[], args);
    }

    /// Records a run with these environment variables.
    fn quorlock_with(&mut self, variables: &[(&str, &str)], args: &[&str]) {
        let output = self.command(args).envs(variables.iter().copied()).output().unwrap();
        let set: String =
            variables.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        self.note_as(&format!("{set}quorlock"), args, &output);
    }

    /// Starts `quorlock` and waits until its command has written the file `up`.
    fn start(&self, args: &[&str]) -> Running {
        let running = self.begin(args);
        self.testbed.await_file("up");
        std::fs::remove_file(self.testbed.path("up")).unwrap();
        running
    }

    fn begin(&self, args: &[&str]) -> Running {
        Running::start(&mut self.command(args))
    }

    /// Lets the command [`UNTIL_GO`] end.
    fn go(&self) {
        std::fs::write(self.testbed.path("go"), "").unwrap();
    }

    /// Records a run with this configuration file.
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
        writeln!(self.record, "$ {command} {}", args.join(" ")).unwrap();
        stdout(output).lines().for_each(|line| writeln!(self.record, "{line}").unwrap());
        stderr(output).lines().for_each(|line| writeln!(self.record, "! {line}").unwrap());
        writeln!(self.record, "= {code}\n").unwrap();
    }

    fn say(&mut self, what: &str) {
        writeln!(self.record, "# {what}\n").unwrap();
    }

    /// Records a run, and the commands that the first server receives.
    fn wire(&mut self, what: &str, args: &[&str]) {
        self.wire_until(what, args, None);
    }

    /// Records a run during which one event happens, after the server has received a command that contains the text.
    fn wire_until(&mut self, what: &str, args: &[&str], text: Option<(&str, Meanwhile)>) {
        let mut monitor = self.testbed.nodes[0].connect().unwrap();
        assert_eq!(monitor.command(&["MONITOR"]).unwrap(), Reply::Simple("OK".to_owned()));
        self.say(what);
        let start = boot();
        let running = self.begin(args);
        let mut commands = String::new();
        if let Some((text, meanwhile)) = text {
            while !note_command(&mut monitor, &mut commands).contains(text) {
                assert!(boot() - start < PATIENCE, "no {text} in\n{commands}");
            }
            match meanwhile {
                Meanwhile::Go => self.go(),
                Meanwhile::Delete => {
                    running.await_line("waiting");
                    self.testbed.on(0..1, &["DEL", "k"]);
                }
            }
        }
        let output = running.end();
        let _ = std::fs::remove_file(self.testbed.path("go"));
        self.note(args, &output);
        self.testbed.on(0..1, &["ECHO", "the end"]);
        while !note_command(&mut monitor, &mut commands).contains(THE_END) {}
        commands = commands.replace(&format!("  {THE_END}\n"), "");
        self.record.push_str(&commands);
        self.record.push('\n');
    }

    fn compare(self, recorded: &ExpectFile) {
        recorded.assert_eq(&greeted_once(&self.recorded()));
    }

    /// The record, with placeholders.
    fn recorded(self) -> String {
        let folder = self.testbed.folder.path().display().to_string();
        let mut record = self.record.replace(&folder, "FOLDER");
        for (server, name) in self.testbed.nodes.iter().zip(["a", "b", "c", "d", "e"]) {
            record = record.replace(&server.address(), &format!("ADDRESS_{name}"));
        }
        for (pattern, kind) in KINDS {
            record = Regex::new(pattern).unwrap().replace_all(&record, *kind).into_owned();
        }
        record
    }
}

/// Patterns of texts that differ from run to run, and their placeholders.
const KINDS: &[(&str, &str)] = &[
    (r"(TOKEN=|run_id=|doctor:)[0-9a-f]{40}", "${1}ID"),
    (r#"("(?:mine|quorlock:take:k)") "[0-9a-f]{40}""#, "$1 \"NONCE\""),
    (r"quorlock1:[0-9A-Za-z=,%._:@/-]+", "LEASE"),
    (r"at [0-9-]{10}T[0-9:]{8}Z", "at CLOCK"),
    (r"[0-9a-f]{40} @[0-9]{13} [^ ]+:[0-9]+ ", "ID @SINCE HOST:PID "),
    (r"[0-9a-f]{40} @[0-9]{13}-[0-9]+ [^ ]+:[0-9]+ ", "ID @SINCE-AGE HOST:PID "),
    (r"[0-9a-f]{40} [^ ]+:[0-9]+ ", "ID HOST:PID "),
    (r"since [0-9]{2}:[0-9]{2}:[0-9]{2}Z \([^)]*\)", "since CLOCK"),
    (r"[A-Za-z0-9.-]+:[0-9]+ (nightly|true|sh|acquire)", "HOST:PID $1"),
    // The record contains only the first line of a script, because the whole text is in the library's sources.
    (r#""(-- [^\\"]*)\\n(?:[^"\\]|\\.)*""#, "\"$1…\""),
    (r#""([a-z_]+_(?:ms|us|s))":-?[0-9]+"#, "\"$1\":N"),
    (r"\b[0-9]{13,16}\b", "N"),
    (r"clock [^ ]+ms", "clock TIME"),
    // Nodes beyond the quorum may answer later, so the number of votes differs.
    (r#""votes":[2-9]"#, r#""votes":N"#),
    (r"[0-9]+\.[0-9]+(?:ms|µs|s)", "TIME"),
    (r"[0-9]+(?:ms|s) (more|left|unless)", "TIME $1"),
    (r"after [0-9]+ms", "after TIME"),
    (r"[0-9]+ min\b", "N min"),
    (r"up [0-9]+s", "up TIME"),
    (r"[0-9]+ s\b", "N s"),
    (r"  +", "  "),
];

fn processed_commands(scene: &Scene) -> u64 {
    let count = info(&scene.testbed.nodes[0], "stats", "total_commands_processed:");
    count.unwrap().parse().unwrap()
}

#[test]
fn invalid_arguments_are_refused_before_a_command_is_sent() {
    let Some(mut scene) = Scene::new(1) else { return };
    let before = processed_commands(&scene);
    for line in [
        "run",
        "run k",
        "run k --ttl soon -- true",
        "run k --ttl 31 -- true",
        "run k --ttl 0s -- true",
        "run k --ttl 1ms -- true",
        "run k --ttl 31s -- true",
        "run k --ttl 1h -- true",
        "run k --max-ttl 0s -- true",
        "run k --max-ttl 999999999s -- true",
        "status k --max-ttl 0s",
        "run k --quorum 2 -- true",
        "run k -n redis://a -n redis://b -n redis://c --quorum 1 -- true",
        "run k --wait -1s -- true",
        "run k --wait soon -- true",
        "run k -n http://x -- true",
        "run k -n redis://:secret@x#y -- true",
        "run k -n redis://:secret@x:y -- true",
        "run k -n redis+sentinel://x,y/z?replicas=1 -- true",
        "run k -n a=redis://x -n a=redis://y -- true",
        "run k -n redis://x -n redis://X:6379 -- true",
        "run k --node-timeout 9s -- true",
        "run k --durable z -- true",
        "run k --kill-after 5s -- true",
        "run k --max-hold 5s -- true",
        "run k --min-hold 2h --max-hold 1h -- true",
        "run k --config missing.toml -- true",
        "run k --status-fd 77 -- true",
        "run quorlock:x -- true",
        "run --key-prefix quorlock: k -- true",
        "run --key-prefix quor lock:x -- true",
        "status app:quorlock:node",
        "status",
        "init",
        "init --fresh --yes --old-node redis://a",
        "nonsense",
    ] {
        scene.quorlock(&line.split(' ').collect::<Vec<_>>());
    }
    scene.quorlock(&["run", "", "--", "true"]);
    scene.quorlock(&["status", ""]);
    for variable in [
        ("QUORLOCK_MAX_TTL", "1ms"),
        ("QUORLOCK_TTL", "31"),
        ("QUORLOCK_TTL", "31s"),
        ("QUORLOCK_NODES", ""),
        ("QUORLOCK_NODES", "redis://a,redis://a"),
        ("QUORLOCK_NODES", "non sense"),
    ] {
        scene.quorlock_with(&[variable], &["run", "k", "--", "true"]);
    }
    // The one additional command is the `INFO` of this check.
    assert_eq!(processed_commands(&scene), before + 1, "a command was sent");
    scene.compare(&expect_file!["outside/refused.txt"]);
}

#[test]
fn help_texts() {
    let Some(mut scene) = Scene::new(1) else { return };
    scene.quorlock(&["--help"]);
    for verb in [
        "run",
        "acquire",
        "extend",
        "release",
        "query",
        "status",
        "init",
        "doctor",
        "bench",
        "demo",
        "completions",
        "man",
    ] {
        scene.quorlock(&[verb, "--help"]);
    }
    scene.compare(&expect_file!["outside/help.txt"]);
}

#[test]
fn commands_and_how_they_end() {
    let Some(mut scene) = Scene::new(1) else { return };
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

/// The scene has one node: with three, the first two answers decide, and their order differs from run to run.
#[test]
fn held_by_another() {
    let Some(mut scene) = Scene::new(1) else { return };
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
    scene.testbed.on(0..1, &["DEL", "k"]);
    scene.note(&args, &holder.end());
    for (what, command) in [
        ("a key that no quorlock wrote", &["SET", "k", "some\nother", "PX", "60000"][..]),
        ("one that does not expire", &["SET", "k", "other"]),
        ("one that is no string", &["HSET", "k", "f", "v"]),
    ] {
        scene.say(what);
        scene.testbed.on(0..1, &["DEL", "k"]);
        scene.testbed.on(0..1, command);
        look(&mut scene);
    }
    scene.compare(&expect_file!["outside/held.txt"]);
}

#[test]
fn a_lock_without_a_holder_of_a_quorum() {
    let Some(mut scene) = Scene::new(3) else { return };
    for (node, value) in ["x", "y", "z"].iter().enumerate() {
        drop(command(&scene.testbed.nodes[node], &["SET", "k", value, "PX", "60000"]));
    }
    scene.quorlock(&["status", "k"]);
    scene.quorlock(&["status", "k", "--json"]);
    scene.compare(&expect_file!["outside/split.txt"]);
}

#[test]
fn nodes_that_are_down() {
    let Some(mut scene) = Scene::new(3) else { return };
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
    let Some(mut scene) = Scene::new(1) else { return };
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
    scene.testbed.on(0..1, &["FLUSHALL"]);
    scene.quorlock(&["run", "k", "--wait", "0s", "--", "true"]);
    scene.compare(&expect_file!["outside/guard.txt"]);
}

#[test]
fn nodes_that_get_other_settings() {
    let Some(mut scene) = Scene::new(3) else { return };
    (scene.testbed.guard, scene.node_timeout) = ("strict", "250ms");
    scene.quorlock(&["init", "--fresh", "--yes", "--max-ttl", "1s"]);
    scene.quorlock(&["init", "--reconfigure", "--yes", "--max-ttl", "2s"]);
    scene.quorlock(&["run", "k", "--max-ttl", "2s", "--", "echo", "ran"]);
    scene.compare(&expect_file!["outside/reconfigure.txt"]);
}

#[test]
fn doctor_on_three_nodes() {
    let Some(mut scene) = Scene::new(3) else { return };
    scene.testbed.guard = "strict";
    scene.quorlock(&["init", "--fresh", "--yes", "--quiet"]);
    for args in [&["doctor"][..], &["doctor", "--quiet"], &["doctor", "--notes"]] {
        scene.quorlock(args);
    }
    scene.say("a node has a memory limit");
    scene.testbed.on(0..1, &["CONFIG", "SET", "maxmemory", "100mb"]);
    scene.quorlock(&["doctor"]);
    scene.say("and deletes keys when it is full; another one lost its data; the user of the third may not do everything");
    scene.testbed.on(0..1, &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    scene.testbed.on(1..2, &["FLUSHALL"]);
    scene.testbed.on(2..3, &["ACL", "SETUSER", "default", "-eval", "-getrange"]);
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
    let Some(mut scene) = Scene::new(3) else { return };
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
    let Some(mut scene) = Scene::new(1) else { return };
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
fn leases_and_values() {
    let Some(mut scene) = Scene::new(1) else { return };
    for line in [
        "acquire k --lease-file x",
        "acquire k --wait 0s",
        "acquire k --wait 0s --json",
        "extend --lease-file x",
        "extend --lease-file x --json",
        "release --lease-file x",
        "acquire k --fenced",
        "release k",
        "release -",
        "extend k",
        "extend --lease-file x",
        "release",
        "release k --lease-file x",
        "acquire k --value v --shared",
        "acquire k --value v --fenced --json",
        "acquire k --value v --also l",
        "acquire k --shared --fenced",
        "acquire k --hold-by 2147483647",
        "acquire k --hold-by x",
        "acquire k --on-lost none",
        "acquire k --hold-by 1 --on-lost x",
        "acquire k --shared true",
        "acquire",
        "query v",
        "query v --json",
        "acquire v --value mine --quiet",
        "acquire v --value mine --wait 0s",
        "query v",
        "query v --json",
        "extend v --value mine",
        "extend v --value other",
        "release v --value other",
        "release v --value mine --json",
        "release v --value mine",
        "extend v --value mine --json",
    ] {
        scene.quorlock(&line.split(' ').collect::<Vec<_>>());
    }
    scene.compare(&expect_file!["outside/leases.txt"]);
}

#[test]
fn the_wire_of_leases_and_values() {
    let Some(mut scene) = Scene::new(1) else { return };
    let file = ["--lease-file", "x"];
    for kind in [&[][..], &["--fenced"], &["--shared"], &["--value", "mine"]] {
        let acquire = [&["acquire", "k", "--quiet"], &file[..], kind].concat();
        scene.wire("a lock for a script", &acquire);
        scene.wire("it is extended", &["extend", "--quiet", file[0], file[1]]);
        scene.wire("and released", &["release", file[0], file[1]]);
    }
    for verb in ["acquire", "extend", "release"] {
        scene.wire("by its value alone", &[verb, "k", "--value", "mine", "--quiet"]);
    }
    scene.wire("a look", &["query", "k"]);
    scene.compare(&expect_file!["outside/wire_leases.txt"]);
}

#[test]
fn holding_for_a_while_and_waiting() {
    let Some(mut scene) = Scene::new(1) else { return };
    let left = ["run", "n", "--min-hold", "1h", "--status-fd", "1", "--", "sh", "-c", "exit 3"];
    let holder = scene.begin(&left);
    holder.await_line("left");
    holder.signal(Signal::TERM);
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
    .map(|args| (scene.begin(&args), args));
    for (waiting, args) in waits {
        scene.note(&args, &waiting.end());
    }
    scene.say("a signal ends the wait");
    let waits = ["run", "k", "--", "echo", "ran"];
    let waiting = scene.begin(&waits);
    waiting.await_line("waiting");
    waiting.signal(Signal::TERM);
    scene.note(&waits, &waiting.end());
    scene.go();
    running.end();
    scene.say("the holder ends");
    for options in [&["--"][..], &["--json", "--"], &["--wait", "forever", "--"]] {
        std::fs::remove_file(scene.testbed.path("go")).unwrap();
        let running = scene.start(&holder);
        let waits = [&["run", "k"], options, &["echo", "ran"]].concat();
        let waiting = scene.begin(&waits);
        waiting.await_line("waiting");
        scene.go();
        scene.note(&waits, &waiting.end());
        running.end();
    }
    scene.compare(&expect_file!["outside/waiting.txt"]);
}

#[test]
fn a_quorum_that_is_lost() {
    let Some(mut scene) = Scene::new(3) else { return };
    scene.node_timeout = "500ms";
    let args = |key: &'static str, option: &'static str| {
        ["run", key, "--ttl", "2s", option, "--", "sh", "-c", "echo > up; exec sleep 60"]
    };
    let text = scene.start(&args("k", "--kill-after=400ms"));
    let json = scene.start(&args("l", "--json"));
    scene.say("two of three nodes are killed");
    scene.testbed.nodes[0].kill().unwrap();
    scene.testbed.nodes[2].kill().unwrap();
    scene.note(&args("k", "--kill-after=400ms"), &text.end());
    scene.note(&["run", "l", "--ttl", "2s", "--json", "--", "…"], &json.end());
    // On a slow machine the holder extends the lock before the nodes are killed, so these events are left out.
    let extended = |line: &&str| line.contains(r#""event":"extended""#);
    scene.record = scene
        .record
        .lines()
        .filter(|line| !extended(line))
        .map(|line| format!("{line}\n"))
        .collect();
    scene.compare(&expect_file!["outside/lost.txt"]);
}

#[test]
fn variables_and_the_file() {
    let Some(mut scene) = Scene::new(1) else { return };
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
        ("QUORLOCK_TTL", "1ms"),
        ("QUORLOCK_HELD_EXIT_CODE", "300"),
        ("QUORLOCK_DURABLE", "z"),
        ("QUORLOCK_KEY_PREFIX", "quorlock:"),
        ("QUORLOCK_NODE_TIMEOUT", "9s"),
        ("QUORLOCK_PASSWORD_FILE", "/no/such"),
        ("QUORLOCK_TLS_CERT", "/no/such"),
    ] {
        scene.quorlock_with(&[variable], &["run", "k", "--wait", "0s", "--", "echo", "ran"]);
    }
    // A wrong value is refused even in commands that do not use it.
    for args in [&["ls"][..], &["doctor"], &["status", "k"]] {
        scene.quorlock_with(&[("QUORLOCK_SHARED", "maybe")], args);
        scene.quorlock_with(&[("QUORLOCK_TTL", "banana")], args);
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
        "password = \"secret\"",
        "ttl = \"1ms\"",
        "ttl = \"1",
        "tls-server-name = \"x\"",
        "nodes = []",
        "quorum = \"x\"",
        "quorum = [1, 2]",
        "max-hold = \"0s\"",
        "max-ttl = \"25h\"",
        "shared = true",
        "fenced = \"maybe\"",
        "max-hold = \"1s\"\n[more]",
    ] {
        scene.configured(file, &run);
    }
    scene.compare(&expect_file!["outside/settings.txt"]);
}

#[test]
fn the_wire_of_each_kind_of_lock() {
    // Each pair has the options of a kind of lock, and a part of the command that extends such a lock.
    let kinds = [
        (&["--fenced"][..], r#""PEXPIRE" "k" "3000""#),
        (&["--shared"], r#""ZREMRANGEBYSCORE" "k""#),
        (&["--also", "l"], r#""PEXPIRE" "k" "3000""#),
        (&["--also", "l", "--fenced"], r#""PEXPIRE" "k" "3000""#),
    ];
    let Some(scenes) = (0..kinds.len()).map(|_| Scene::new(1)).collect::<Option<Vec<_>>>() else {
        return;
    };
    // The scenes run at the same time, because each one waits for its extension.
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
fn the_wire_of_a_waiting_call() {
    let Some(mut scene) = Scene::new(1) else { return };
    let waits = (r#""CLIENT" "CACHING""#, Meanwhile::Delete);
    for (what, args) in [
        ("another client's key is deleted", &["run", "k", "--", "true"][..]),
        ("and a reader waits", &["run", "k", "--shared", "--", "true"]),
        ("and a call for two keys waits", &["run", "k", "--also", "l", "--", "true"]),
    ] {
        scene.testbed.on(0..1, &["SET", "k", "other", "PX", "60000"]);
        scene.wire_until(what, args, Some(waits));
    }
    scene.compare(&expect_file!["outside/wire_waiting.txt"]);
}

#[test]
fn the_wire_of_each_command() {
    let Some(mut scene) = Scene::new(1) else { return };
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
    scene.testbed.on(0..1, &["SET", "k", "other", "PX", "60000"]);
    scene.wire("a lock that others hold", &["run", "k", "--wait", "0s", "--", "true"]);
    scene.testbed.on(0..1, &["FLUSHALL"]);
    scene.testbed.guard = "strict";
    scene.wire("is new", &["run", "k", "--wait", "0s", "--", "true"]);
    scene.wire("taken into use", &["init", "--fresh", "--yes"]);
    scene.wire("a lock, with the guard", &["run", "k", "--", "true"]);
    scene.wire("with a fence", &["run", "f", "--fenced", "--", "true"]);
    scene.wire("a look", &["status", "k"]);
    scene.wire("an examination", &["doctor"]);
    scene.compare(&expect_file!["outside/wire.txt"]);
}
