//! Tests of the program as a process: it detects violations, refuses wrong arguments, and leaves no process behind.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use quorlock_servers::{SERVER_VARIABLE, find_or_skip};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The longest time that a test waits for an event, in units of [`STEP`].
const STEPS: usize = 3000;
const STEP: Duration = Duration::from_millis(20);

/// The working directory of all processes that the program starts. A test finds the processes by this directory.
struct Room(TempDir);

impl Room {
    /// Returns `None` if there is no server. `find_or_skip` has then reported the skipped test.
    fn new(test: &str) -> Option<Self> {
        find_or_skip(test)?;
        Some(Self(tempfile::tempdir().unwrap()))
    }

    fn chaos(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quorlock-chaos"));
        command.args(args).current_dir(self.0.path()).env("TMPDIR", self.0.path());
        command
    }

    fn start(&self, args: &[&str]) -> Child {
        self.chaos(args).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// The states of all processes in this directory, such as `T` for stopped.
    fn processes(&self) -> Vec<char> {
        let of = |process: &Path| {
            let work = fs::read_link(process.join("cwd")).ok()?;
            let stat = fs::read_to_string(process.join("stat")).ok()?;
            let state = stat.rsplit_once(") ")?.1.chars().next()?;
            (work.starts_with(self.0.path()) && state != 'Z').then_some(state)
        };
        let all = fs::read_dir("/proc").unwrap().flatten();
        all.filter_map(|process| of(&process.path())).collect()
    }

    fn until(&self, what: &str, is_so: impl Fn(&[char]) -> bool) {
        for _ in 0..STEPS {
            if is_so(&self.processes()) {
                return;
            }
            thread::sleep(STEP);
        }
        panic!("not in time: {what}");
    }
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The oracles detect violations: if a majority loses its data and clients have no restart guard, a lock gets two
/// holders.
#[test]
fn nodes_that_lose_their_data_make_two_holders() {
    let Some(room) = Room::new("nodes_that_lose_their_data_make_two_holders") else { return };
    let Output { status, stdout, .. } =
        room.chaos(&["--negative", "--seed", "1"]).output().unwrap();
    let said = text(&stdout);
    assert_eq!(status.code(), Some(0), "{said}");
    for words in [
        "VIOLATION: ",
        " both hold ",
        "kill -9, and started at once, empty",
        "seed 1: 3 of 5 nodes, ttl up to 1.500 s, restart guard off",
        "seed 1: 3 of 5 nodes, ttl up to 1.500 s; ",
        "as expected with the restart guard: no violation under the same faults",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    room.until("nothing is left", <[char]>::is_empty);
}

#[test]
fn nonsense_is_refused() {
    for args in [
        &["--minutes", "0"][..],
        &["--minutes", "-1"],
        &["--minutes", "NaN"],
        &["--minutes", "soon"],
        &["--minutes", "1e9"],
        &["--seed", "-1"],
        &["--seed", "abc"],
        &["--seed", "18446744073709551616"],
        &["--negative", "--minutes", "1"],
        &["--server", "/nowhere/redis-server"],
        &["--server", "no-such-server"],
        &["--server", "cat"],
        &["worker"],
        &["worker", "by hand"],
        &["more"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quorlock-chaos"));
        let Output { status, stdout, stderr } = command.args(args).output().unwrap();
        assert_eq!((status.code(), text(&stdout).as_str()), (Some(2), ""), "{args:?}");
        // For a negative number, the message must name the value, and not report an unknown option.
        let negative = args.contains(&"-1");
        assert!(
            text(&stderr).contains(if negative { "invalid value '-1'" } else { " " }),
            "{args:?}"
        );
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_quorlock-chaos"));
    let output = command.env(SERVER_VARIABLE, "/nowhere/redis-server").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("QUORLOCK_SERVER=/nowhere/redis-server"));
}

#[test]
fn ctrl_c_ends_it_with_the_summary_and_leaves_nothing() {
    let Some(room) = Room::new("ctrl_c_ends_it_with_the_summary") else { return };
    // At least seven processes run: the program, three to six servers, and three workers.
    let mut chaos = room.start(&["--only", "library", "--minutes", "60", "--seed", "7"]);
    room.until("all run", |processes| processes.len() >= 7);
    signal(&chaos, Signal::INT);
    let mut said = String::new();
    chaos.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(chaos.wait().unwrap().code(), Some(130), "{said}");
    for words in
        ["and one that was interrupted", "two holders at the same time", "effects of the faults"]
    {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(room.processes().is_empty());
}

/// If the program is killed, its stopped workers die too, although a stopped process cannot notice this itself.
#[test]
fn when_it_is_killed_everything_dies_with_it() {
    let Some(room) = Room::new("when_it_is_killed_everything_dies_with_it") else { return };
    let setpriv = Command::new("setpriv").args(["--pdeathsig", "KILL", "true"]).status();
    if !setpriv.is_ok_and(|status| status.success()) {
        return quorlock_servers::skip("when_it_is_killed_everything_dies_with_it", "no setpriv");
    }
    // The faults of seed 3 stop clients but no node, so a stopped process is a client.
    let mut chaos = room.start(&["--only", "library", "--minutes", "60", "--seed", "3"]);
    let mut lines = BufReader::new(chaos.stdout.take().unwrap()).lines();
    let words = "SIGSTOP a client";
    assert!(lines.any(|line| line.unwrap().contains(words)), "it says what it is about to do");
    room.until("something stands still", |processes| processes.contains(&'T'));
    signal(&chaos, Signal::KILL);
    chaos.wait().unwrap();
    room.until("nothing is left", <[char]>::is_empty);
}
