//! `quorlock demo` as a user runs it: to its end, and stopped in the middle.

mod common;

use std::fs;
use std::process::{Command, Output};

use common::{Running, code, quorlock, stderr, stdout};
use rustix::process::Signal;

/// After a signal, the exit code is 128 plus the signal's number.
const ENDED_BY_INT: i32 = 128 + 2;

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
        // The demo runs no other program.
        command.env("TMPDIR", self.0.path()).env("PATH", "");
        command
    }

    fn assert_nothing_is_left(&self) {
        let files: Vec<_> = fs::read_dir(self.0.path()).expect("it is there").flatten().collect();
        assert!(files.is_empty(), "left: {files:?}");
    }
}

fn assert_clean_verdict(output: &Output) {
    let said = stdout(output);
    assert_eq!(output.status.code(), Some(0), "{said}{}", stderr(output));
    let (_, story) = said.split_once(STORY_BEGINS).expect(&said);
    let (story, rest) = story.split_once("\nVERDICT: ").expect(&said);
    let verdict = rest.lines().next().unwrap_or_default();
    assert!(verdict.contains(" acquisitions, 0 overlaps, "), "{said}");
    // A late write may lose an update: a loaded machine may pause a worker between its check of the lock and its write.
    let was_paused = said.contains("writes that ended after their lock");
    assert!(verdict.contains(" 0 lost updates") || was_paused, "{said}");
    assert!(said.contains("workers that held it: 12\n"), "{said}");
    assert!(!said.contains("WRONG"), "{said}");
    // The demo breaks the error message into lines and puts a bar before each line. The test reverts both.
    let words: Vec<&str> = said.split_whitespace().filter(|word| *word != "|").collect();
    let in_one_line = words.join(" ");
    assert!(in_one_line.contains("no quorum, 3 of 5 nodes must grant"), "{said}");
    assert!(in_one_line.contains("nodes c, d, e failed: unreachable"), "{said}");
    assert!(story.lines().all(|line| line.chars().count() <= 80), "{said}");
    assert!(!said.contains('\x1b'), "no escape sequences where there is no terminal: {said}");
    assert_eq!(stderr(output), "");
}

#[test]
fn the_verdict_is_clean_and_the_quick_start_follows() {
    let room = Room::new();
    let output = Running::start(&mut room.demo()).end();
    assert_clean_verdict(&output);
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let readme = fs::read_to_string(readme).expect("the README");
    let (_, quick_start) = readme.split_once("\n```sh\n").expect("a quick start");
    let (quick_start, _) = quick_start.split_once("\n```\n").expect("its end");
    let lines: String = quick_start.lines().map(|line| format!("  {line}\n")).collect();
    let said = stdout(&output);
    assert!(said.contains(&format!(":\n\n{lines}\n")), "{said}");
    room.assert_nothing_is_left();
}

#[test]
fn ctrl_c_leaves_nothing() {
    let room = Room::new();
    let demo = Running::start(&mut room.demo());
    demo.await_line(STORY_BEGINS);
    demo.signal(Signal::INT);
    let output = demo.end();
    code(&output, ENDED_BY_INT);
    assert!(stderr(&output).contains("stopped by signal 2"), "{}", stderr(&output));
    room.assert_nothing_is_left();
}
