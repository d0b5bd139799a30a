//! The messages and events of a `quorlock run` that waits, and `--if-held wait`.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::fs;
use std::process::Output;
use std::thread;
use std::time::Duration;

use common::{Running, Testbed, boot, code, eventually, json_lines, stderr, stdout};
use rustix::process::Signal;

/// Part of the message of a call with `--if-held wait`, once the call knows the holder.
const AWAITS_HOLDER: &str = "is held by";

/// Starts a holder with a command that ends when the file `go` exists, and waits until the command runs.
fn holder(testbed: &Testbed, args: &[&str]) -> Running {
    let script = "echo > up; until [ -e go ]; do sleep 0.02; done";
    let args = [&["run", "k", "--label", "first"], args, &["--", "sh", "-c", script]].concat();
    let holder = testbed.start(&args);
    testbed.await_file("up");
    holder
}

fn go(testbed: &Testbed) {
    fs::write(testbed.path("go"), "").unwrap();
}

/// Asserts that `quorlock` succeeded without running the command.
fn nothing_ran(output: &Output) {
    code(output, 0);
    assert_eq!(stdout(output), "");
}

#[test]
fn one_message_names_the_holder_and_one_the_end_of_the_wait() {
    let Some(testbed) = Testbed::new() else { return };
    let holder = holder(&testbed, &[]);
    let second = testbed.start(&["run", "k", "--", "true"]);
    second.await_line("waiting");
    go(&testbed);
    let output = second.end();
    code(&output, 0);
    code(&holder.end(), 0);
    let said = stderr(&output);
    let lines: Vec<&str> = said.lines().collect();
    let [waits, acquired] = lines[..] else { panic!("two lines: {said}") };
    assert!(waits.starts_with("quorlock: waiting for 5"), "{said}");
    assert!(waits.contains(" first, since ") && !waits.contains("unless extended"), "{said}");
    assert!(acquired.starts_with("quorlock: acquired \"k\" after "), "{said}");
}

#[test]
fn a_message_says_when_the_reason_for_the_wait_changes() {
    let Some(testbed) = Testbed::sized(3) else { return };
    testbed.on_all(&["SET", "k", "x", "PX", "60000"]);
    let run = testbed.start(&["run", "k", "--wait", "8s", "--status-fd", "1", "--", "true"]);
    run.await_line("waiting for ");
    testbed.nodes[..2].iter().for_each(|node| node.kill().unwrap());
    run.await_line(": no quorum; node");
    let output = run.end();
    code(&output, 69);
    let events = json_lines(&stdout(&output)).into_iter();
    let contended: Vec<_> = events.map(|event| event["contended"].clone()).collect();
    assert_eq!(contended, [true, false, false], "{}", stderr(&output));
}

#[test]
fn a_message_names_the_nodes_that_are_down_and_the_node_in_quarantine() {
    let Some(mut testbed) = Testbed::sized(3) else { return };
    testbed.guard = "strict";
    testbed.nodes[..2].iter().for_each(|node| node.kill().unwrap());
    let output = testbed.output(&["run", "k", "--wait", "2s", "--", "true"]);
    let said = stderr(&output);
    let waits = said.lines().next().unwrap();
    let (_, why) = waits.split_once(" more for \"k\": ").unwrap_or_else(|| panic!("{said}"));
    assert!(why.starts_with("votes count in ") && why.contains(" s: node c ("), "{said}");
    assert!(why.contains("; nodes a, b"), "{said}");
}

#[test]
fn a_skipped_run_prints_no_message_about_its_wait() {
    let Some(testbed) = Testbed::new() else { return };
    let _holder = holder(&testbed, &[]);
    let args = ["run", "k", "--if-held", "skip", "--wait", "600ms", "--", "echo", "ran"];
    let output = testbed.output(&args);
    nothing_ran(&output);
    assert_eq!(stderr(&output), "");
}

#[test]
fn a_waiting_event_names_the_key_that_is_held() {
    let Some(testbed) = Testbed::new() else { return };
    let _holder = holder(&testbed, &[]);
    let args = ["run", "a", "--also", "k", "--wait", "600ms", "--status-fd", "1", "--", "true"];
    let events = json_lines(&stdout(&testbed.output(&args)));
    let waiting = events.iter().find(|event| event["event"] == "waiting").unwrap();
    assert_eq!((&waiting["key"], &waiting["also"]), (&"a".into(), &serde_json::json!(["k"])));
    let why = waiting["why"].as_str().unwrap();
    assert!(why.contains("\"k\" held by ") && !why.contains("\"a\""), "{why}");
    assert!(waiting["rest_ms"].as_u64().unwrap() <= 600, "{waiting}");
}

#[test]
fn with_if_held_wait_the_second_of_two_runs_nothing_and_ends_after_the_first() {
    let Some(testbed) = Testbed::new() else { return };
    let run = ["run", "k", "--if-held", "wait", "--", "sh", "-c", "echo ran; echo >> runs"];
    assert_eq!(stdout(&testbed.output(&run)), "ran\n", "without a holder, the command runs");

    let first = holder(&testbed, &[]);
    let mut second = testbed.start(&run);
    second.await_line(AWAITS_HOLDER);
    assert!(second.is_running());
    go(&testbed);
    let output = second.end();
    nothing_ran(&output);
    let said = stderr(&output);
    assert!(
        said.contains("was held by") && said.contains("another process did the work"),
        "{said}"
    );
    assert!(
        said.contains("nothing was run here, and whether the work succeeded is not known"),
        "{said}"
    );
    code(&first.end(), 0);
    assert_eq!(fs::read_to_string(testbed.path("runs")).unwrap(), "\n", "the command ran once");
    assert_eq!(testbed.holders_of("k"), 0);
}

/// The call waits only for the holder that it sees at its first refusal.
#[test]
fn a_later_holder_is_not_awaited_and_an_earlier_one_only_until_the_wait_ends() {
    let Some(testbed) = Testbed::new() else { return };
    let set = |value: &str| testbed.on_all(&["SET", "k", value, "PX", "60000"]);
    set("x");
    let began = boot();
    let args = ["run", "k", "--if-held", "wait", "--wait", "1s", "--", "echo", "ran"];
    let refused = testbed.output(&args);
    code(&refused, 75);
    assert_eq!(stdout(&refused), "");
    assert!(boot() - began >= Duration::from_secs(1));
    assert!(stderr(&refused).contains("still is after"), "{}", stderr(&refused));
    code(&testbed.output(&[&args[..4], &["-E", "3", "--wait", "300ms", "--", "true"]].concat()), 3);

    let waits = || {
        let args = ["run", "k", "--if-held", "wait", "--wait", "20s", "--status-fd", "1"];
        let run = testbed.start(&[&args[..], &["--", "true"]].concat());
        run.await_line(AWAITS_HOLDER);
        run
    };
    let run = waits();
    set("y");
    let output = run.end();
    code(&output, 0);
    assert_eq!(json_lines(&stdout(&output)).last().unwrap()["event"], "holder_ended");

    // Nodes that do not answer may still have the holder's value, so the call continues to wait.
    let mut run = waits();
    testbed.nodes[..3].iter().for_each(|node| node.pause().unwrap());
    testbed.on(3..5, &["DEL", "k"]);
    thread::sleep(Duration::from_millis(500));
    assert!(run.is_running());
    testbed.nodes[..3].iter().for_each(|node| node.resume().unwrap());
    testbed.on(0..1, &["DEL", "k"]);
    code(&run.end(), 0);

    set("z");
    let run = waits();
    run.signal(Signal::TERM);
    code(&run.end(), 143);

    let run = testbed.start(&[&args[..4], &["--wait", "3s", "--", "true"]].concat());
    run.await_line(AWAITS_HOLDER);
    testbed.nodes[..3].iter().for_each(|node| node.kill().unwrap());
    let refused = run.end();
    code(&refused, 69);
    assert!(stderr(&refused).contains("its end is not known: no quorum; node"), "{refused:?}");
}

#[test]
fn a_writer_waits_for_the_readers_that_held_the_lock_and_not_for_later_readers() {
    let Some(testbed) = Testbed::new() else { return };
    let first = holder(&testbed, &["--shared"]);
    let args = ["run", "b", "--also", "k", "--if-held", "wait", "--", "echo", "ran"];
    let mut writer = testbed.start(&args);
    writer.await_line(AWAITS_HOLDER);
    assert!(writer.is_running());
    // The writer has withdrawn its intent, which kept new readers out, so another reader gets the lock.
    let later =
        ["run", "k", "--shared", "--if-held", "wait", "--", "sh", "-c", "echo > late; sleep 60"];
    let _later = testbed.start(&later);
    testbed.await_file("late");
    go(&testbed);
    nothing_ran(&writer.end());
    code(&first.end(), 0);
}

/// Five processes of `quorlock run` start at the same moment. At least one of them gets the lock and runs the command.
/// The others wait until the lock is free, and succeed without running the command.
#[test]
fn at_least_one_of_many_replicas_runs_and_all_succeed() {
    let Some(testbed) = Testbed::new() else { return };
    let script = "echo >> began; sleep 0.3; echo >> done";
    let args = ["run", "k", "--if-held", "wait", "--", "sh", "-c", script];
    let runs: Vec<Running> = (0..5).map(|_| testbed.start(&args)).collect();
    for run in runs {
        code(&run.end(), 0);
        assert!(testbed.path("done").exists(), "no call ends before a command is done");
    }
    let [began, done] =
        ["began", "done"].map(|file| fs::read_to_string(testbed.path(file)).unwrap());
    assert_eq!(began, done);
    eventually("no key is left", || (testbed.holders_of("k") == 0).then_some(()));
}
