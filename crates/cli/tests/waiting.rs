//! What `quorlock run` says of a wait, and `--if-held wait`.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::process::Output;
use std::time::Duration;

use common::{Running, Testbed, boot, eventually, stderr, stdout};
use rustix::process::Signal;

const SECOND: Duration = Duration::from_secs(1);

/// A holder that runs until the file `go` is there.
fn holder(testbed: &Testbed, args: &[&str]) -> Running {
    let script = "echo > up; until [ -e go ]; do sleep 0.02; done";
    let args = [&["run", "k", "--label", "first"], args, &["--", "sh", "-c", script]].concat();
    let holder = Running::start(&mut testbed.quorlock(&args));
    testbed.await_file("up");
    holder
}

fn go(testbed: &Testbed) {
    std::fs::write(testbed.path("go"), "").unwrap();
}

fn events(output: &Output) -> Vec<serde_json::Value> {
    stdout(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_end_of_a_wait_is_told_and_who_held_the_lock_since_when() {
    let name = "the_end_of_a_wait_is_told_and_who_held_the_lock_since_when";
    let Some(testbed) = Testbed::new(name) else { return };
    let holder = holder(&testbed, &[]);
    let second = Running::start(&mut testbed.quorlock(&["run", "k", "--", "true"]));
    std::thread::sleep(SECOND);
    go(&testbed);
    let output = second.end();
    let said = stderr(&output);
    let lines: Vec<&str> = said.lines().collect();
    let [waits, acquired] = lines[..] else { panic!("two lines: {said}") };
    assert!(waits.starts_with("quorlock: waiting for 59."), "{said}");
    assert!(waits.contains(" first, since ") && !waits.contains("unless extended"), "{said}");
    assert!(acquired.starts_with("quorlock: acquired \"k\" after "), "{said}");
    assert_eq!((output.status.code(), holder.end().status.code()), (Some(0), Some(0)));
}

/// Nodes that vote at once by now are not waited for.
#[test]
fn a_wait_that_is_none_is_not_told() {
    let name = "a_wait_that_is_none_is_not_told";
    let Some(mut testbed) = Testbed::sized(name, 3, quorlock_servers::ServerOptions::default())
    else {
        return;
    };
    testbed.guard = "strict";
    let run = |args: &[&str]| {
        let args = [&["run", "k", "--max-ttl", "500ms"], args, &["--", "true"]].concat();
        testbed.quorlock(&args).output().unwrap()
    };
    assert_eq!(run(&["--wait", "0s"]).status.code(), Some(69), "they are new");
    // Their quarantine is the longest ttl, a hundredth of it and two seconds; they tell their uptime in whole seconds.
    std::thread::sleep(Duration::from_secs(4));
    let output = run(&["--wait", "10s"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(!stderr(&output).contains("votes count"), "{}", stderr(&output));
}

/// Two nodes are down and the third is new: the line names all three, the time first.
#[test]
fn a_line_names_the_nodes_that_are_down_and_the_one_that_must_wait() {
    let name = "a_line_names_the_nodes_that_are_down_and_the_one_that_must_wait";
    let Some(mut testbed) = Testbed::sized(name, 3, quorlock_servers::ServerOptions::default())
    else {
        return;
    };
    testbed.guard = "strict";
    testbed.nodes[..2].iter().for_each(|node| node.kill().unwrap());
    let output = testbed.quorlock(&["run", "k", "--wait", "2s", "--", "true"]).output().unwrap();
    let said = stderr(&output);
    let waits = said.lines().next().unwrap();
    let (_, why) = waits.split_once(" more for \"k\": ").unwrap_or_else(|| panic!("{said}"));
    assert!(why.starts_with("votes count in ") && why.contains(" s: node c ("), "{said}");
    assert!(why.contains("; nodes a, b"), "{said}");
}

#[test]
fn a_skipped_run_says_nothing_of_its_wait() {
    let Some(testbed) = Testbed::new("a_skipped_run_says_nothing_of_its_wait") else { return };
    let _holder = holder(&testbed, &[]);
    let args = ["run", "k", "--if-held", "skip", "--wait", "600ms", "--", "echo", "ran"];
    let output = testbed.quorlock(&args).output().unwrap();
    let said = (stdout(&output), stderr(&output));
    assert_eq!((output.status.code(), said), (Some(0), (String::new(), String::new())));
}

#[test]
fn a_waiting_event_has_the_facts_and_names_the_key_that_is_held() {
    let name = "a_waiting_event_has_the_facts_and_names_the_key_that_is_held";
    let Some(testbed) = Testbed::new(name) else { return };
    let _holder = holder(&testbed, &[]);
    let args = ["run", "a", "--also", "k", "--wait", "600ms", "--status-fd", "1", "--", "true"];
    let output = testbed.quorlock(&args).output().unwrap();
    let events = events(&output);
    let waiting = events.iter().find(|event| event["event"] == "waiting").unwrap();
    assert_eq!((&waiting["key"], &waiting["also"]), (&"a".into(), &serde_json::json!(["k"])));
    let why = waiting["why"].as_str().unwrap();
    assert!(why.contains("\"k\" held by ") && !why.contains("\"a\""), "{why}");
    assert!(waiting["rest_ms"].as_u64().unwrap() <= 600, "{waiting}");
}

#[test]
fn with_if_held_wait_the_second_of_two_starts_when_the_first_is_done_and_runs_nothing() {
    let name = "with_if_held_wait_the_second_of_two_starts_when_the_first_is_done_and_runs_nothing";
    let Some(testbed) = Testbed::new(name) else { return };
    // Alone, it runs as any other.
    let run = ["run", "k", "--if-held", "wait", "--", "sh", "-c", "echo ran; echo >> runs"];
    let alone = testbed.quorlock(&run).output().unwrap();
    assert_eq!((alone.status.code(), stdout(&alone).as_str()), (Some(0), "ran\n"));

    let first = holder(&testbed, &[]);
    let mut second = Running::start(&mut testbed.quorlock(&run));
    std::thread::sleep(SECOND / 2);
    assert!(second.0.try_wait().unwrap().is_none(), "the first one is not done");
    go(&testbed);
    let output = second.end();
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), ""));
    assert!(stderr(&output).contains("that has ended, and nothing was run"), "{}", stderr(&output));
    assert_eq!(first.end().status.code(), Some(0));
    assert_eq!(std::fs::read_to_string(testbed.path("runs")).unwrap(), "\n", "once, alone");
    assert_eq!(testbed.holders_of("k"), 0);
}

/// The values seen at the first refusal count: a holder that comes after them is not waited for.
#[test]
fn a_later_holder_is_not_waited_for_and_an_earlier_one_no_longer_than_the_wait() {
    let name = "a_later_holder_is_not_waited_for_and_an_earlier_one_no_longer_than_the_wait";
    let Some(testbed) = Testbed::new(name) else { return };
    let set = |value: &str| {
        for node in testbed.nodes.iter() {
            node.command(&["SET", "k", value, "PX", "60000"]).unwrap();
        }
    };
    set("x");
    let args = ["run", "k", "--if-held", "wait", "--wait", "1s", "--", "echo", "ran"];
    let began = boot();
    let refused = testbed.quorlock(&args).output().unwrap();
    assert_eq!((refused.status.code(), stdout(&refused).as_str()), (Some(75), ""));
    assert!(
        boot() - began >= SECOND && stderr(&refused).contains("still is after"),
        "{}",
        stderr(&refused)
    );
    let own = testbed
        .quorlock(&[&args[..4], &["-E", "3", "--wait", "300ms", "--", "true"]].concat())
        .output()
        .unwrap();
    assert_eq!(own.status.code(), Some(3));

    let waits = |args: &[&str]| {
        let args = [&["run", "k", "--if-held", "wait", "--status-fd", "1"], args, &["--", "true"]]
            .concat();
        Running::start(testbed.quorlock(&args).env("QUORLOCK_WAIT", "20s"))
    };
    let run = waits(&[]);
    std::thread::sleep(SECOND / 2);
    set("y");
    let output = run.end();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(events(&output).last().unwrap()["event"], "holder_ended");

    // Nodes that do not answer may still have the value.
    let mut run = waits(&[]);
    std::thread::sleep(SECOND / 2);
    testbed.nodes[..3].iter().for_each(|node| node.pause().unwrap());
    testbed.nodes[3..].iter().for_each(|node| drop(node.command(&["DEL", "k"]).unwrap()));
    std::thread::sleep(SECOND / 2);
    assert!(run.0.try_wait().unwrap().is_none());
    testbed.nodes[..3].iter().for_each(|node| node.resume().unwrap());
    testbed.nodes[..1].iter().for_each(|node| drop(node.command(&["DEL", "k"]).unwrap()));
    assert_eq!(run.end().status.code(), Some(0));

    // A signal ends it.
    set("z");
    let run = waits(&[]);
    std::thread::sleep(SECOND / 2);
    run.signal(Signal::TERM);
    assert_eq!(run.end().status.code(), Some(143));
}

#[test]
fn readers_that_held_the_lock_are_waited_for_and_later_ones_are_not() {
    let name = "readers_that_held_the_lock_are_waited_for_and_later_ones_are_not";
    let Some(testbed) = Testbed::new(name) else { return };
    let first = holder(&testbed, &["--shared"]);
    let args = ["run", "b", "--also", "k", "--if-held", "wait", "--", "echo", "ran"];
    let mut writer = Running::start(&mut testbed.quorlock(&args));
    std::thread::sleep(SECOND);
    assert!(writer.0.try_wait().unwrap().is_none());
    // A reader reads beside the other one; the intent of the writer that gave up is withdrawn.
    let later =
        ["run", "k", "--shared", "--if-held", "wait", "--", "sh", "-c", "echo > late; sleep 60"];
    let later = Running::start(&mut testbed.quorlock(&later));
    testbed.await_file("late");
    go(&testbed);
    let output = writer.end();
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), ""));
    assert_eq!(first.end().status.code(), Some(0));
    drop(later);
}

/// Replicas that start at the same moment: one runs, and the others end after it, whoever got the votes first.
#[test]
fn of_many_that_start_at_once_at_least_one_runs_and_all_end_well() {
    let name = "of_many_that_start_at_once_at_least_one_runs_and_all_end_well";
    let Some(testbed) = Testbed::new(name) else { return };
    let script = "echo >> began; sleep 0.3; echo >> done";
    let args = ["run", "k", "--if-held", "wait", "--", "sh", "-c", script];
    let runs: Vec<Running> = (0..5).map(|_| Running::start(&mut testbed.quorlock(&args))).collect();
    for run in runs {
        let output = run.end();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(testbed.path("done").exists(), "none ends before the first has done it");
    }
    let [began, done] =
        ["began", "done"].map(|file| std::fs::read_to_string(testbed.path(file)).unwrap());
    assert_eq!(began, done);
    eventually("no key is left", || (testbed.holders_of("k") == 0).then_some(()));
}
