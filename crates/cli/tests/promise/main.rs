//! The table in docs/cli.md, "Dead before the lock is another's", row by row, on three real servers.
//!
//! The command writes the time again and again; the next holder is another `quorlock run`, whose command
//! writes the time once. What is asserted is what the table says: no write of the first comes after that of
//! the second; or none comes later than so long after the cause; or, where nothing is promised, what
//! happens instead.

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

use common::{Running, Testbed, eventually, stderr};
use quorlock_servers::ServerOptions;
use rustix::process::{Pid, Signal, kill_process};

/// The first command, in the two forms that differ: in the command's own process group, and in one that it
/// makes. Both ignore SIGTERM.
const PLAIN: &str = "exec sh writer";
const IN_ANOTHER_GROUP: &str = "timeout 60 sh writer; true";

/// SIGTERM is due 800 ms before the end and SIGKILL 200 ms: for so long may a busy machine keep guardian and
/// keeper waiting for a processor.
const TTL: &str = "4s";

/// A process of the command that outlives its test is killed all the same.
struct Escaped(Pid);

impl Drop for Escaped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

fn escaped(testbed: &Testbed, file: &str) -> Escaped {
    Escaped(Pid::from_raw(testbed.await_file(file).trim().parse().unwrap()).unwrap())
}

fn testbed(test: &str) -> Option<Testbed> {
    let testbed = Testbed::sized(test, 3, ServerOptions::default())?;
    // One that escapes ends with the test's folder.
    let writer = "trap '' TERM; while date +%s%N >> first && echo > up; do sleep 0.01; done";
    fs::write(testbed.path("writer"), writer).unwrap();
    Some(testbed)
}

/// The first holder, once its command writes.
fn first(testbed: &Testbed, ttl: &str, command: &str) -> Running {
    first_by(testbed, None, &["--ttl", ttl], command)
}

/// The same, by another program than ours if there is one, with these options.
fn first_by(
    testbed: &Testbed,
    program: Option<&OsStr>,
    options: &[&str],
    command: &str,
) -> Running {
    // One that escapes does not hold our pipes open.
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

/// The next holder, which waits.
fn second(testbed: &Testbed) -> Running {
    let script = "date +%s%N > second";
    Running::start(&mut testbed.quorlock(&["run", "k", "--wait", "25s", "--", "sh", "-c", script]))
}

fn times(testbed: &Testbed, file: &str) -> Vec<u64> {
    let text = fs::read_to_string(testbed.path(file)).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// Waits until the second has had the lock, and checks that nothing was written by the first after that.
fn they_do_not_overlap(testbed: &Testbed, second: Running) {
    let output = second.end();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let last = *times(testbed, "first").last().unwrap();
    let next = times(testbed, "second")[0];
    assert!(last < next, "written {} ms after the next holder began", (last - next) / 1_000_000);
    let written = times(testbed, "first").len();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(times(testbed, "first").len(), written, "and none comes later");
}

/// No write after the validity that was told last.
fn written_within_the_validity(testbed: &Testbed, first: &Output) {
    let until = events(first).iter().rev().find_map(|event| event["valid_until_unix_ms"].as_u64());
    let last = times(testbed, "first").last().unwrap() / 1_000_000;
    assert!(last <= until.unwrap(), "{} ms late", last - until.unwrap());
}

fn events(output: &Output) -> Vec<serde_json::Value> {
    stderr(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Two of three nodes stand still until the first lock has run out; nothing is written late.
fn no_node_answers_in_time(testbed: &Testbed, first: Running, second: Running) {
    testbed.nodes[..2].iter().for_each(|node| node.pause().unwrap());
    let output = first.end();
    lost_because(&output, "expired");
    written_within_the_validity(testbed, &output);
    testbed.nodes[..2].iter().for_each(|node| node.resume().unwrap());
    they_do_not_overlap(testbed, second);
}

/// It lost the lock, and says why.
fn lost_because(output: &Output, cause: &str) {
    lost_because_of(output, &[cause]);
}

fn lost_because_of(output: &Output, causes: &[&str]) {
    assert_eq!(output.status.code(), Some(79), "{}", stderr(output));
    let lost = events(output).into_iter().find(|event| event["event"] == "lost");
    let cause = &lost.expect("it says so")["cause"];
    assert!(causes.iter().any(|expected| cause == expected), "{}", stderr(output));
}

fn guardian_of(keeper: &Running) -> Pid {
    let parent = keeper.pid().as_raw_nonzero().get().to_string();
    let is_its = |stat: &str| {
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
        let (pid, _) = stats.into_iter().find(|(_, stat)| is_its(stat))?;
        Pid::from_raw(pid)
    })
}
