//! `quorlock demo` as a user runs it: on real servers, with nodes in memory, and stopped in the middle.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use common::{Running, code, eventually, quorlock, server, stderr, stdout};
use quorlock_servers::SERVER_VARIABLE;
use rustix::process::Signal;

/// Exit codes of the demo, as in docs/cli.md.
const UNAVAILABLE: i32 = 69;
const CONFIG: i32 = 78;
/// After a signal, the exit code is 128 plus the signal's number.
const ENDED_BY_INT: i32 = 128 + 2;

/// How many worker processes the demo starts. Each has three workers.
const WORKER_PROCESSES: usize = 4;

/// The first line of the running demo begins with this time. Lines before it describe the demo.
const STORY_BEGINS: &str = " 0.0s";

/// A folder of its own for each test. The demo puts its temporary files there, so the test can find what the demo
/// leaves behind.
struct Room(tempfile::TempDir);

impl Room {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    fn demo(&self) -> Command {
        let mut command = quorlock(&["demo"]);
        command.env("TMPDIR", self.0.path());
        command
    }

    /// The demo on real servers. `None`: no server was found, and the test is skipped.
    fn demo_on_servers(&self) -> Option<Command> {
        let mut command = self.demo();
        command.env(SERVER_VARIABLE, server()?.path);
        Some(command)
    }

    /// The demo's processes, each with its command line and its state. A process belongs to the demo if this folder is
    /// its working directory, or occurs in its command line or environment.
    fn processes(&self) -> Vec<(String, char)> {
        let folder = self.0.path().to_str().expect("the path is UTF-8");
        let of = |process: &Path| {
            let read = |name: &str| fs::read(process.join(name)).unwrap_or_default();
            let working_directory = fs::read_link(process.join("cwd")).unwrap_or_default();
            let (command_line, environment) = (read("cmdline"), read("environ"));
            let is_the_demos = working_directory.starts_with(folder)
                || [&command_line, &environment].iter().any(|it| contains(it, folder.as_bytes()));
            let stat = String::from_utf8_lossy(&read("stat")).into_owned();
            let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
            let command_line = String::from_utf8_lossy(&command_line).replace('\0', " ");
            is_the_demos.then_some((command_line, state.unwrap_or('?')))
        };
        let processes = fs::read_dir("/proc").expect("a list of processes").flatten();
        processes.filter_map(|process| of(&process.path())).collect()
    }

    fn assert_nothing_is_left(&self) {
        let files: Vec<_> = fs::read_dir(self.0.path()).expect("it is there").flatten().collect();
        assert!(files.is_empty(), "left: {files:?}");
        // A killed process may still be listed for a moment.
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
    assert!(verdict.contains(" acquisitions, 0 overlaps, "), "{said}");
    // A late write may lose an update: a loaded machine may pause a worker between its check of the lock and its write.
    let was_paused = said.contains("writes that ended after their lock");
    assert!(verdict.contains(" 0 lost updates") || was_paused, "{said}");
    assert!(!said.contains("WRONG"), "{said}");
    // The demo breaks the error message into lines and puts a bar before each line. The test reverts both.
    let words: Vec<&str> = said.split_whitespace().filter(|word| *word != "|").collect();
    let in_one_line = words.join(" ");
    assert!(in_one_line.contains("no quorum, 3 of 5 nodes must grant"), "{said}");
    assert!(in_one_line.contains("nodes c, d, e failed: unreachable"), "{said}");
    // The lines before the story contain paths, which may be longer than 80 characters.
    let mut story = said.lines().skip_while(|line| !line.starts_with(STORY_BEGINS));
    assert!(story.all(|line| line.chars().count() <= 80), "{said}");
    assert!(!said.contains('\x1b'), "no escape sequences where there is no terminal: {said}");
    assert_eq!(stderr(output), "");
}

#[test]
fn on_five_servers_the_verdict_is_clean_and_nothing_is_left() {
    let room = Room::new();
    let Some(mut demo) = room.demo_on_servers() else { return };
    let output = Running::start(&mut demo).end();
    assert_clean_verdict(&output);
    let workers = format!("12, in {WORKER_PROCESSES} processes");
    assert!(stdout(&output).contains(&workers), "{}", stdout(&output));
    room.assert_nothing_is_left();
}

#[test]
fn without_a_server_it_runs_in_memory_and_says_what_helps() {
    let room = Room::new();
    let mut demo = room.demo();
    // The demo looks for a server on PATH, and in target/servers above CARGO_MANIFEST_DIR and the working directory.
    demo.env("PATH", "").env_remove("CARGO_MANIFEST_DIR").current_dir(room.0.path());
    let output = Running::start(&mut demo).end();
    assert_clean_verdict(&output);
    let said = stdout(&output);
    for help in ["in memory, not real servers", "no Redis or Valkey server found", "apt install"] {
        assert!(said.contains(help), "{said}");
    }
    assert!(said.ends_with("(nodes in memory)\n"), "{said}");
    room.assert_nothing_is_left();
}

#[test]
fn ctrl_c_while_a_server_is_frozen_leaves_nothing() {
    let room = Room::new();
    let Some(mut demo) = room.demo_on_servers() else { return };
    let demo = Running::start(&mut demo);
    // State T: stopped by a signal.
    eventually("a server is frozen", || room.processes().iter().find(|it| it.1 == 'T').cloned());
    demo.signal(Signal::INT);
    let output = demo.end();
    code(&output, ENDED_BY_INT);
    assert!(stderr(&output).contains("stopped by signal 2"), "{}", stderr(&output));
    room.assert_nothing_is_left();
}

#[test]
fn workers_end_if_the_demo_is_killed() {
    let room = Room::new();
    let Some(mut demo) = room.demo_on_servers() else { return };
    let demo = Running::start(&mut demo);
    let workers = || {
        let all = room.processes().into_iter();
        all.filter(|(command_line, _)| command_line.contains("__demo-worker")).count()
    };
    eventually("all worker processes run", || (workers() == WORKER_PROCESSES).then_some(()));
    demo.signal(Signal::KILL);
    demo.end();
    // Only the workers are asserted. A demo that is killed deletes no files, and its servers end with it only if the
    // machine has a `setpriv` that can arrange this.
    eventually("no worker is left", || (workers() == 0).then_some(()));
}

#[test]
fn an_unusable_server_is_refused() {
    let room = Room::new();
    let unusable = room.demo().env(SERVER_VARIABLE, "/nonexistent").output().expect("it runs");
    code(&unusable, CONFIG);
    assert!(stderr(&unusable).contains("QUORLOCK_SERVER=/nonexistent"), "{}", stderr(&unusable));
    room.assert_nothing_is_left();
}

#[test]
fn if_a_server_does_not_start_its_output_is_shown() {
    let room = Room::new();
    // A false server: it answers `--version` as a real one does, and fails if it is started.
    let server = room.0.path().join("redis-server");
    let script = "#!/bin/sh\n[ \"$1\" = --version ] && echo 'Redis server v=7.0.0 x' && exit\n\
                  echo 'out of order'; exit 1\n";
    fs::write(&server, script).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&server, mode).expect("executable");
    let output = room.demo().env(SERVER_VARIABLE, &server).output().expect("it runs");
    code(&output, UNAVAILABLE);
    assert!(stderr(&output).contains("out of order"), "{}", stderr(&output));
    fs::remove_file(server).expect("it is there");
    room.assert_nothing_is_left();
}
