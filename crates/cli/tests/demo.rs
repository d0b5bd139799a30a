//! `quorlock demo` as a stranger runs it: on real servers, in memory, stopped in the middle.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use common::{Running, eventually, quorlock, stderr, stdout};
use quorlock_servers::{SERVER_VARIABLE, find_or_skip};
use rustix::process::Signal;

/// The demo's temporary files go here, so that what it leaves behind can be found.
struct Room(tempfile::TempDir);

impl Room {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    fn demo(&self, args: &[&str]) -> Command {
        let mut command = quorlock(&["demo"]);
        command.args(args).env("TMPDIR", self.0.path());
        command
    }

    /// The demo on real servers, if there is one.
    fn demo_on_servers(&self, test: &str, args: &[&str]) -> Option<Command> {
        let mut command = self.demo(args);
        command.env(SERVER_VARIABLE, find_or_skip(test)?.path);
        Some(command)
    }

    /// Processes that work in this folder or were told of it, each with its state.
    fn processes(&self) -> Vec<(String, char)> {
        let folder = self.0.path().to_str().expect("a name of ours");
        let of = |process: &Path| {
            let read = |name: &str| fs::read(process.join(name)).unwrap_or_default();
            let work = fs::read_link(process.join("cwd")).unwrap_or_default();
            let (told, environment) = (read("cmdline"), read("environ"));
            let here = work.starts_with(folder)
                || [&told, &environment].iter().any(|it| contains(it, folder.as_bytes()));
            let stat = String::from_utf8_lossy(&read("stat")).into_owned();
            let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
            here.then(|| (String::from_utf8_lossy(&told).replace('\0', " "), state.unwrap_or('?')))
        };
        let processes = fs::read_dir("/proc").expect("a list of processes").flatten();
        processes.filter_map(|process| of(&process.path())).collect()
    }

    fn assert_nothing_is_left(&self) {
        let files: Vec<_> = fs::read_dir(self.0.path()).expect("it is there").flatten().collect();
        assert!(files.is_empty(), "left: {files:?}");
        // A process that was killed may take a moment to be gone.
        eventually("no process is left", || self.processes().is_empty().then_some(()));
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

fn assert_clean_verdict(output: &Output) {
    let said = stdout(output);
    assert_eq!(output.status.code(), Some(0), "{said}{}", stderr(output));
    let verdict = said.lines().last().unwrap_or_default();
    assert!(verdict.starts_with("VERDICT: "), "{said}");
    assert!(verdict.contains(" acquisitions, 0 overlaps, 0 lost updates"), "{said}");
    assert!(!said.contains("WRONG"), "{said}");
    let in_one_line: Vec<&str> = said.split_whitespace().filter(|word| *word != "|").collect();
    let in_one_line = in_one_line.join(" ");
    assert!(in_one_line.contains("no quorum, 3 of 5 nodes must grant"), "{said}");
    let failed = |node: &&&str| in_one_line.contains(&format!("node {node} failed: unreachable"));
    assert!(["c", "d", "e"].iter().all(|node| failed(&node)), "{said}");
    // Before the story begins there are paths, as long as they are.
    let mut story = said.lines().skip_while(|line| !line.starts_with(" 0.0s"));
    assert!(story.all(|line| line.chars().count() <= 80), "{said}");
    assert!(!said.contains('\x1b'), "no escape sequences where there is no terminal: {said}");
    assert_eq!(stderr(output), "");
}

#[test]
fn on_five_servers_the_verdict_is_clean_and_nothing_is_left() {
    let room = Room::new();
    let Some(mut demo) = room.demo_on_servers("demo on five servers", &[]) else { return };
    let output = Running::start(&mut demo).end();
    assert_clean_verdict(&output);
    assert!(stdout(&output).contains("12, in 4 processes"), "{}", stdout(&output));
    room.assert_nothing_is_left();
}

#[test]
fn in_memory_the_verdict_is_clean_and_says_so() {
    let room = Room::new();
    let output = Running::start(&mut room.demo(&["--memory"])).end();
    assert_clean_verdict(&output);
    let said = stdout(&output);
    assert!(said.contains("in memory, not real servers") && said.contains("--memory"), "{said}");
    assert!(said.ends_with("(nodes in memory)\n"), "{said}");
    room.assert_nothing_is_left();
}

#[test]
fn without_a_server_it_runs_in_memory_and_says_what_helps() {
    let room = Room::new();
    let mut demo = room.demo(&[]);
    demo.env("PATH", "").env_remove("CARGO_MANIFEST_DIR").current_dir(room.0.path());
    let demo = Running::start(&mut demo);
    thread::sleep(Duration::from_secs(1));
    demo.signal(Signal::TERM);
    let output = demo.end();
    assert_eq!(output.status.code(), Some(143));
    let said = stdout(&output);
    for help in ["not real servers", "no Redis or Valkey server found", "apt install"] {
        assert!(said.contains(help), "{said}");
    }
    room.assert_nothing_is_left();
}

#[test]
fn ctrl_c_while_a_server_is_frozen_leaves_nothing() {
    let room = Room::new();
    let Some(mut demo) = room.demo_on_servers("demo and Ctrl-C", &["--tcp"]) else { return };
    let demo = Running::start(&mut demo);
    eventually("a server is frozen", || room.processes().iter().find(|it| it.1 == 'T').cloned());
    demo.signal(Signal::INT);
    let output = demo.end();
    assert_eq!(output.status.code(), Some(130), "{}", stdout(&output));
    assert!(stdout(&output).contains("127.0.0.1:{"), "{}", stdout(&output));
    assert!(stderr(&output).contains("stopped by signal 2"), "{}", stderr(&output));
    room.assert_nothing_is_left();
}

#[test]
fn workers_end_with_a_demo_that_is_killed() {
    let room = Room::new();
    let Some(mut demo) = room.demo_on_servers("demo and kill -9", &[]) else { return };
    let demo = Running::start(&mut demo);
    let workers = || {
        let all = room.processes().into_iter();
        all.filter(|(told, _)| told.contains("__demo-worker")).count()
    };
    eventually("all worker processes run", || (workers() == 4).then_some(()));
    demo.signal(Signal::KILL);
    demo.end();
    eventually("no worker is left", || (workers() == 0).then_some(()));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let room = Room::new();
    let both = room.demo(&["--memory", "--tcp"]).output().expect("it runs");
    assert_eq!(both.status.code(), Some(64), "{}", stderr(&both));
    let unusable = room.demo(&[]).env(SERVER_VARIABLE, "/nonexistent").output().expect("it runs");
    assert_eq!(unusable.status.code(), Some(78), "{}", stderr(&unusable));
    assert!(stderr(&unusable).contains("QUORLOCK_SERVER=/nonexistent"), "{}", stderr(&unusable));
    room.assert_nothing_is_left();
}

#[test]
fn a_server_that_does_not_start_is_blamed() {
    let room = Room::new();
    // Says what it is, and ends when it is to serve.
    let server = room.0.path().join("redis-server");
    let script = "#!/bin/sh\n[ \"$1\" = --version ] && echo 'Redis server v=7.0.0 x' && exit\n\
                  echo 'out of order'; exit 1\n";
    fs::write(&server, script).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&server, mode).expect("executable");
    let output = room.demo(&[]).env(SERVER_VARIABLE, &server).output().expect("it runs");
    assert_eq!(output.status.code(), Some(69), "{}", stderr(&output));
    assert!(stderr(&output).contains("out of order"), "{}", stderr(&output));
    fs::remove_file(server).expect("it is there");
    room.assert_nothing_is_left();
}
