//! Each row of the table "Dead before the lock is another's" in docs/cli.md, on three real servers.
//!
//! The first command writes the time in a loop. The next holder is another `quorlock run`, and its command writes the
//! time once. Each test asserts what its row states: that the first command writes nothing after the second one, or
//! nothing later than a bound after the cause. If the row promises nothing, the test asserts the actual outcome.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod before;
#[path = "../common/mod.rs"]
mod common;
mod unpromised;
mod within;

use std::ffi::OsStr;
use std::fs;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use common::{Running, Testbed, code, eventually, json_lines, stderr};
use rustix::process::{Pid, Signal, kill_process};

/// The first command is one of these. Each runs the script `writer`, which ignores SIGTERM. `PLAIN` runs it in the
/// command's own process group. `IN_ANOTHER_GROUP` runs it in a new process group, which `timeout` makes.
const PLAIN: &str = "exec sh writer";
const IN_ANOTHER_GROUP: &str = "timeout 60 sh writer; true";

/// With this ttl, SIGKILL is due 200 ms before the end of the lock. So the tests pass even if a busy machine delays
/// guardian and keeper by up to 200 ms.
const TTL: &str = "4s";

/// A process of the command that may outlive `quorlock`. Dropping this value kills the process.
struct Escaped(Pid);

impl Drop for Escaped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

fn escaped(testbed: &Testbed, file: &str) -> Escaped {
    Escaped(Pid::from_raw(testbed.await_file(file).trim().parse().unwrap()).unwrap())
}

fn testbed() -> Option<Testbed> {
    let testbed = Testbed::sized(3)?;
    // A writer that outlives `quorlock` ends when the test deletes its folder, because its next write fails.
    let writer = "trap '' TERM; while date +%s%N >> first && echo > up; do sleep 0.01; done";
    fs::write(testbed.path("writer"), writer).unwrap();
    Some(testbed)
}

/// Starts the first holder and waits until its command writes.
fn first(testbed: &Testbed, ttl: &str, command: &str) -> Running {
    first_by(testbed, None, &["--ttl", ttl], command)
}

/// Starts the first holder with these options. `program` replaces the usual `quorlock`.
fn first_by(
    testbed: &Testbed,
    program: Option<&OsStr>,
    options: &[&str],
    command: &str,
) -> Running {
    // A writer that outlives `quorlock` must not keep the pipes open.
    let command = format!("exec >/dev/null 2>&1; {command}");
    let command = ["--json", "--", "sh", "-c", &command];
    let ours = testbed.quorlock(&[&["run", "k"], options, &command].concat());
    let mut quorlock = Command::new(program.unwrap_or(ours.get_program()));
    quorlock.args(ours.get_args()).stdin(Stdio::null()).current_dir(testbed.folder.path());
    quorlock.env_clear().envs(std::env::vars_os().filter(|(name, _)| name == "PATH"));
    quorlock.envs(ours.get_envs().filter_map(|(name, value)| Some((name, value?))));
    quorlock.env("QUORLOCK_CLOCK_OFFSET_FILE", testbed.path("clock"));
    let first = Running::start(&mut quorlock);
    testbed.await_file("up");
    first
}

/// Starts the next holder, which waits for the lock and then writes the time once.
fn second(testbed: &Testbed) -> Running {
    let script = "date +%s%N > second";
    testbed.start(&["run", "k", "--wait", "25s", "--", "sh", "-c", script])
}

fn times(testbed: &Testbed, file: &str) -> Vec<u64> {
    let text = fs::read_to_string(testbed.path(file)).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// Waits until the second command has ended. Asserts that the first command wrote nothing after the second one began.
fn they_do_not_overlap(testbed: &Testbed, second: Running) {
    let output = second.end();
    code(&output, 0);
    let last = *times(testbed, "first").last().unwrap();
    let next = times(testbed, "second")[0];
    assert!(last < next, "written {} ms after the next holder began", (last - next) / 1_000_000);
    let written = times(testbed, "first").len();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(times(testbed, "first").len(), written, "no later write");
}

/// Asserts that the first command wrote nothing after the end of the validity that the last event reported.
fn written_within_the_validity(testbed: &Testbed, first: &Output) {
    let until = json_lines(&stderr(first))
        .iter()
        .rev()
        .find_map(|event| event["valid_until_unix_ms"].as_u64());
    let last = times(testbed, "first").last().unwrap() / 1_000_000;
    assert!(last <= until.unwrap(), "{} ms late", last - until.unwrap());
}

/// Pauses two of three nodes until the first lock has expired.
fn no_node_answers_in_time(testbed: &Testbed, first: Running, second: Running) {
    testbed.nodes[..2].iter().for_each(|node| node.pause().unwrap());
    let output = first.end();
    lost_because(&output, "expired");
    written_within_the_validity(testbed, &output);
    testbed.nodes[..2].iter().for_each(|node| node.resume().unwrap());
    they_do_not_overlap(testbed, second);
}

fn lost_because(output: &Output, cause: &str) {
    lost_because_of(output, &[cause]);
}

fn lost_because_of(output: &Output, causes: &[&str]) {
    code(output, 79);
    let lost = json_lines(&stderr(output)).into_iter().find(|event| event["event"] == "lost");
    let cause = &lost.expect("an event")["cause"];
    assert!(causes.iter().any(|expected| cause == expected), "{}", stderr(output));
}

fn guardian_of(keeper: &Running) -> Pid {
    let parent = keeper.id().to_string();
    let is_child = |stat: &str| {
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace();
        stat.contains("(lock-guardian)") && fields.nth(1) == Some(&parent)
    };
    eventually("there is a guardian", || {
        let processes = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let stats = processes.filter_map(|pid| {
            Some((pid.parse().ok()?, fs::read_to_string(format!("/proc/{pid}/stat")).ok()?))
        });
        let (pid, _) = stats.into_iter().find(|(_, stat)| is_child(stat))?;
        Pid::from_raw(pid)
    })
}
