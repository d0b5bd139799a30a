//! `quorlock run` on five real servers: holding, waiting, refusing, losing.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use common::{Running, Testbed, boot, eventually, group_gone_at_ms, stderr, stdout, unix_ms};
use quorlock_servers::{Reply, ServerOptions, find_or_skip, not_for};
use rustix::process::Signal;

#[test]
fn two_runs_of_the_same_key_never_overlap() {
    let Some(testbed) = Testbed::new("two_runs_of_the_same_key_never_overlap") else { return };
    let script = "echo in >> log; sleep 0.05; echo out >> log";
    let runs: Vec<Running> = (0..6)
        .map(|_| Running::start(&mut testbed.quorlock(&["run", "k", "--", "sh", "-c", script])))
        .collect();
    for run in runs {
        let output = run.end();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
    assert_eq!(fs::read_to_string(testbed.path("log")).unwrap(), "in\nout\n".repeat(6));
    assert_eq!(testbed.holders_of("k"), 0);
}

#[test]
fn two_dead_nodes_of_five_are_no_reason_not_to_run() {
    let Some(testbed) = Testbed::new("two_dead_nodes_of_five_are_no_reason_not_to_run") else {
        return;
    };
    testbed.nodes[0].kill().unwrap();
    testbed.nodes[3].kill().unwrap();
    let output =
        testbed.quorlock(&["run", "k", "--wait", "0s", "--", "echo", "ran"]).output().unwrap();
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), "ran\n"));
}

#[test]
fn three_dead_nodes_of_five_are_named_with_their_reason_within_the_wait() {
    let name = "three_dead_nodes_of_five_are_named_with_their_reason_within_the_wait";
    let Some(testbed) = Testbed::new(name) else { return };
    for node in &testbed.nodes[..3] {
        node.kill().unwrap();
    }
    let start = boot();
    let output = testbed.quorlock(&["run", "k", "--wait", "1s", "--", "true"]).output().unwrap();
    let waited = boot() - start;
    assert_eq!(output.status.code(), Some(69));
    // It would be a minute without it.
    assert!(waited >= Duration::from_secs(1) && waited < Duration::from_secs(30), "{waited:?}");
    let said = stderr(&output);
    assert!(said.contains("nodes a, b, c failed: unreachable: "), "{said}");
    assert!(said.contains("no quorum, 3 of 5 nodes must grant"), "{said}");
    assert_eq!(testbed.holders_of("k"), 0);
}

#[test]
fn a_held_lock_is_refused_with_its_holders_name() {
    let Some(testbed) = Testbed::new("a_held_lock_is_refused_with_its_holders_name") else {
        return;
    };
    let holder = ["run", "k", "--label", "nightly", "--", "sh", "-c", "echo > up; sleep 60"];
    let holder = Running::start(&mut testbed.quorlock(&holder));
    testbed.await_file("up");
    let refused = |args: &[&str]| {
        let args = [&["run", "k", "--wait", "0s"], args, &["--", "echo", "ran"]].concat();
        let output = testbed.quorlock(&args).output().unwrap();
        assert_eq!(stdout(&output), "", "the command must not run");
        (output.status.code().unwrap(), stderr(&output))
    };
    let (code, said) = refused(&[]);
    assert_eq!(code, 75);
    assert!(said.contains(&format!(":{} nightly, ", holder.0.id())), "{said}");
    assert_eq!(refused(&["-E", "3"]).0, 3);
    assert_eq!(refused(&["--if-held", "skip"]), (0, String::new()));
    holder.signal(Signal::TERM);
    assert_eq!(holder.end().status.code(), Some(143));
}

#[test]
fn a_foreign_holder_is_respected_and_left_alone() {
    let Some(testbed) = Testbed::new("a_foreign_holder_is_respected_and_left_alone") else {
        return;
    };
    for node in &testbed.nodes[..3] {
        let set = node.command(&["SET", "k", "some\nother", "NX", "PX", "60000"]).unwrap();
        assert_eq!(set, Reply::Simple("OK".into()));
    }
    let output = testbed.quorlock(&["run", "k", "--wait", "300ms", "--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(75));
    assert!(stderr(&output).contains(r#"foreign value "some\no…""#), "{}", stderr(&output));
    assert_eq!(testbed.holders_of("k"), 3, "theirs stay, ours are gone");
}

#[test]
fn a_wrong_password_is_told_at_once() {
    let options = ServerOptions { password: Some("right".into()), ..ServerOptions::default() };
    let Some(testbed) = Testbed::with("a_wrong_password_is_told_at_once", options) else { return };
    let urls = testbed.nodes.iter().map(|node| format!("redis+unix://{}", node.address()));
    let urls: Vec<String> = urls.collect();
    let run = |password: &str| {
        let mut command = common::quorlock(&["run", "k", "--wait", "1h", "--", "true"]);
        command.env("QUORLOCK_NODES", urls.join(",")).env("QUORLOCK_PASSWORD", password);
        command.output().unwrap()
    };
    let output = run("wrong-secret");
    assert_eq!(output.status.code(), Some(77), "{}", stderr(&output));
    assert!(stderr(&output).contains("not authenticated"), "{}", stderr(&output));
    assert!(!stderr(&output).contains("wrong-secret"));
    assert_eq!(run("").status.code(), Some(77));
    assert_eq!(run("right").status.code(), Some(0));
}

#[test]
fn the_commands_own_end_is_passed_on() {
    let Some(testbed) = Testbed::new("the_commands_own_end_is_passed_on") else { return };
    for (command, code) in [
        (&["sh", "-c", "exit 7"][..], 7),
        (&["sh", "-c", "kill -USR1 $$"], 128 + 10),
        (&["/no/such/program"], 127),
        (&["/dev/null"], 126),
    ] {
        let output = testbed.quorlock(&[&["run", "k", "--"], command].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{command:?}: {}", stderr(&output));
        assert_eq!(testbed.holders_of("k"), 0);
    }
}

#[test]
fn the_command_learns_of_the_lock_but_not_of_the_nodes() {
    let Some(testbed) = Testbed::new("the_command_learns_of_the_lock_but_not_of_the_nodes") else {
        return;
    };
    let run = |args: &[&str]| {
        let args = [&["run", "k"], args, &["--", "env"]].concat();
        stdout(&testbed.quorlock(&args).env("QUORLOCK_PASSWORD", "x").output().unwrap())
    };
    let env = run(&[]);
    assert!(env.contains("QUORLOCK_KEY=k\n") && env.contains("QUORLOCK_TOKEN="), "{env}");
    assert!(env.contains("QUORLOCK_VALID_UNTIL_MS="), "{env}");
    assert!(!env.contains("QUORLOCK_NODES") && !env.contains("QUORLOCK_PASSWORD"), "{env}");
    assert!(run(&["--pass-nodes"]).contains("QUORLOCK_NODES=a="));
}

/// Runs a command that tells its group and its validity, freezes a majority before the first
/// extension, and checks that the group is gone before that validity ends.
fn command_ends_before_the_lock(testbed: &Testbed, script: &str) {
    let script = format!("echo $$ $QUORLOCK_VALID_UNTIL_MS > up; {script}");
    let args = ["run", "k", "--ttl", TTL, "--", "sh", "-c", &script];
    let run = Running::start(&mut testbed.quorlock(&args));
    let told = testbed.await_file("up");
    for node in &testbed.nodes[..3] {
        node.pause().unwrap();
    }
    assert_gone_in_time(&told, unix_ms());
    let output = run.end();
    assert_eq!(output.status.code(), Some(79), "{}", stderr(&output));
    assert!(stderr(&output).contains("lost the lock \"k\""), "{}", stderr(&output));
}

/// SIGKILL is due 250 ms before the end: for so long may a busy machine keep the guardian waiting.
const TTL: &str = "5s";
const TTL_MS: u64 = 5000;

/// Checks that the group is gone before the end of the validity of a lock of five seconds, if
/// nothing was extended after `silent_ms`. On a slow machine an extension may have come before.
fn assert_gone_in_time(told: &str, silent_ms: u64) {
    let (group, valid_until_ms) = parse(told);
    let before_the_first_extension = silent_ms + 2 * TTL_MS / 3 < valid_until_ms;
    let end_ms = if before_the_first_extension { valid_until_ms } else { silent_ms + TTL_MS };
    let gone_at_ms = group_gone_at_ms(group);
    assert!(gone_at_ms <= end_ms, "{} ms late", gone_at_ms - end_ms);
}

fn parse(told: &str) -> (i32, u64) {
    let (group, until) = told.trim().split_once(' ').expect("two numbers");
    (group.parse().unwrap(), until.parse().unwrap())
}

#[test]
fn a_command_is_gone_before_its_lock_is() {
    let Some(testbed) = Testbed::new("a_command_is_gone_before_its_lock_is") else { return };
    command_ends_before_the_lock(&testbed, "sleep 60; true");
}

#[test]
fn a_command_that_ignores_sigterm_is_gone_before_its_lock_is() {
    let name = "a_command_that_ignores_sigterm_is_gone_before_its_lock_is";
    let Some(testbed) = Testbed::new(name) else { return };
    command_ends_before_the_lock(&testbed, "trap '' TERM; sleep 60 & while :; do sleep 1; done");
}

#[test]
fn a_command_is_gone_before_its_lock_is_if_quorlock_is_stopped() {
    let name = "a_command_is_gone_before_its_lock_is_if_quorlock_is_stopped";
    let Some(testbed) = Testbed::new(name) else { return };
    let script = "echo $$ $QUORLOCK_VALID_UNTIL_MS > up; sleep 60; true";
    let args = ["run", "k", "--ttl", TTL, "--", "sh", "-c", script];
    let run = Running::start(&mut testbed.quorlock(&args));
    let told = testbed.await_file("up");
    run.signal(Signal::STOP);
    assert_gone_in_time(&told, unix_ms());
    run.signal(Signal::CONT);
    assert_eq!(run.end().status.code(), Some(79));
}

/// In a container session and process group can be those of a process outside, whose number is 0.
#[test]
fn in_a_container_the_command_ends_with_its_lock_too() {
    let name = "in_a_container_the_command_ends_with_its_lock_too";
    ends_in_a_container(name, &["--pid", "--fork", "--mount-proc"]);
}

/// There the numbers in the process table are not those that the container knows.
#[test]
fn in_a_container_that_sees_the_machines_processes_it_does_too() {
    let name = "in_a_container_that_sees_the_machines_processes_it_does_too";
    ends_in_a_container(name, &["--pid", "--fork"]);
}

fn ends_in_a_container(name: &str, of_its_own: &[&str]) {
    let Some(testbed) = Testbed::new(name) else { return };
    let contained = |args: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user"]).args(of_its_own).args(args);
        let ours = testbed.quorlock(&[]);
        command.envs(ours.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.current_dir(testbed.folder.path());
        command
    };
    if !contained(&["true"]).status().is_ok_and(|status| status.success()) {
        return not_for(&find_or_skip(name).unwrap(), name, "a container cannot be made here");
    }
    let quorlock = env!("CARGO_BIN_EXE_quorlock");
    let stubborn = "trap '' TERM; echo up > up; sleep 60 & while :; do sleep 1; done";
    let args = [quorlock, "run", "k", "--ttl", "1s", "--", "sh", "-c", stubborn];
    let run = Running::start(&mut contained(&args));
    testbed.await_file("up");
    for node in &testbed.nodes[..3] {
        node.pause().unwrap();
    }
    let output = run.end();
    assert_eq!(output.status.code(), Some(79), "{}", stderr(&output));
    assert!(stderr(&output).contains("lost the lock \"k\""), "{}", stderr(&output));
}

#[test]
fn a_killed_quorlock_takes_its_command_along_and_its_lock_ends_with_the_ttl() {
    let name = "a_killed_quorlock_takes_its_command_along_and_its_lock_ends_with_the_ttl";
    let Some(testbed) = Testbed::new(name) else { return };
    let script = "echo $$ $QUORLOCK_VALID_UNTIL_MS > up; sleep 60; true";
    let args = ["run", "k", "--ttl", "2s", "--", "sh", "-c", script];
    let run = Running::start(&mut testbed.quorlock(&args));
    let told = testbed.await_file("up");
    run.signal(Signal::KILL);
    let (group, valid_until_ms) = parse(&told);
    assert!(group_gone_at_ms(group) <= valid_until_ms);
    let mut rests = vec![i64::MAX; testbed.nodes.len()];
    eventually("the lock is free", || {
        for (node, rest) in testbed.nodes.iter().zip(&mut rests) {
            let Reply::Int(now) = node.command(&["PTTL", "k"]).unwrap() else { panic!() };
            assert!(now <= *rest, "somebody extends it");
            *rest = now;
        }
        rests.iter().all(|rest| *rest < 0).then_some(())
    });
}

#[test]
fn a_lock_whose_keys_are_deleted_ends_its_command() {
    let Some(testbed) = Testbed::new("a_lock_whose_keys_are_deleted_ends_its_command") else {
        return;
    };
    let args = ["run", "k", "--ttl", "1500ms", "--", "sh", "-c", "echo $$ > up; sleep 60; true"];
    let run = Running::start(&mut testbed.quorlock(&args));
    testbed.await_file("up");
    for node in &testbed.nodes[..3] {
        node.command(&["DEL", "k"]).unwrap();
    }
    let output = run.end();
    assert_eq!(output.status.code(), Some(79));
    assert!(stderr(&output).contains("too few nodes still have its key"), "{}", stderr(&output));
    assert_eq!(testbed.holders_of("k"), 0);
}

#[test]
fn the_longest_hold_ends_the_command() {
    let Some(testbed) = Testbed::new("the_longest_hold_ends_the_command") else { return };
    let args = ["run", "k", "--ttl", "1s", "--max-hold", "1500ms", "--", "sleep", "60"];
    let output = testbed.quorlock(&args).output().unwrap();
    assert_eq!(output.status.code(), Some(79));
    assert!(stderr(&output).contains("as long as --max-hold allows"), "{}", stderr(&output));
}

#[test]
fn an_interrupted_wait_ends_at_once_and_leaves_nothing() {
    let Some(testbed) = Testbed::new("an_interrupted_wait_ends_at_once_and_leaves_nothing") else {
        return;
    };
    // Held on two nodes only: three keys are ours for a moment, again and again.
    for node in &testbed.nodes[..3] {
        node.command(&["SET", "k", "other", "PX", "60000"]).unwrap();
    }
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut command = testbed.quorlock(&["run", "k", "--wait", "forever", "--", "true"]);
        let mut run = Running::start(&mut command);
        let mut line = String::new();
        let mut said = std::io::BufReader::new(run.0.stderr.take().unwrap());
        std::io::BufRead::read_line(&mut said, &mut line).unwrap();
        assert!(line.contains("waiting for ever"), "{line}");
        run.signal(signal);
        let status = eventually("quorlock ends", || run.0.try_wait().unwrap());
        // Of SIGINT it dies, so that a shell's loop around it ends; a shell sees 130.
        let shown = status.code().or(status.signal().map(|signal| 128 + signal));
        assert_eq!((shown, status.signal().is_some()), (Some(code), signal == Signal::INT));
        assert_eq!(testbed.holders_of("k"), 3, "only theirs");
    }
}

#[test]
fn a_short_command_can_hold_for_longer() {
    let Some(testbed) = Testbed::new("a_short_command_can_hold_for_longer") else { return };
    let args = ["run", "k", "--ttl", "1s", "--min-hold", "2s", "--", "sh", "-c", "exit 4"];
    let start = boot();
    let output = testbed.quorlock(&args).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(testbed.holders_of("k"), 5, "left, not released");
    eventually("the lock is free", || (testbed.holders_of("k") == 0).then_some(()));
    let held = boot() - start;
    assert!(held >= Duration::from_secs(2), "{held:?}");
}

/// The pipe is there, and nobody has it open any more: it is not waited for.
#[test]
fn a_pipe_for_events_that_has_lost_its_reader_is_no_hindrance() {
    let name = "a_pipe_for_events_that_has_lost_its_reader_is_no_hindrance";
    let Some(testbed) = Testbed::new(name) else { return };
    let script = r#"mkfifo p; sleep 60 < p & exec 3> p; kill $!; wait $!
        exec "$Q" run k --status-fd 3 -- sh -c 'exit 5'"#;
    let ours = testbed.quorlock(&[]);
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).env("Q", ours.get_program()).current_dir(testbed.folder.path());
    shell.envs(ours.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = Running::start(&mut shell).end();
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    // A socket is no pipe, and is refused: standard error is one here, and the third descriptor as well.
    let (_ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut shell = Command::new("sh");
    shell
        .args(["-c", r#"exec "$Q" run k --status-fd 3 -- true 3>&1"#])
        .env("Q", ours.get_program());
    shell.envs(ours.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.stdout(std::process::Stdio::from(std::os::fd::OwnedFd::from(theirs)));
    assert_eq!(shell.output().unwrap().status.code(), Some(64));
}

#[test]
fn events_tell_things_apart() {
    let Some(testbed) = Testbed::new("events_tell_things_apart") else { return };
    let script = r#""$Q" run k --ttl 3s --status-fd 3 -- sh -c 'sleep 1.5; exit 75' 3>events"#;
    let mut shell = std::process::Command::new("sh");
    let env = testbed.quorlock(&[]);
    shell.args(["-c", script]).env("Q", env!("CARGO_BIN_EXE_quorlock"));
    shell.envs(env.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let status = shell.current_dir(testbed.folder.path()).status();
    assert_eq!(status.unwrap().code(), Some(75));
    let events = fs::read_to_string(testbed.path("events")).unwrap();
    let events: Vec<serde_json::Value> =
        events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names.first(), Some(&"acquired"));
    assert!(names.contains(&"extended"), "{names:?}");
    assert_eq!(names.last(), Some(&"released"));
    assert_eq!(events.last().unwrap()["outcome"], "released");
    assert!(events[0]["valid_for_ms"].as_u64().unwrap() <= 3000);
}

/// The line comes with the first attempt that failed, so that it is there however short the wait is; and who has the
/// keys of fewer nodes than a quorum is not called the holder.
#[test]
fn a_wait_is_told_at_once_and_names_a_holder_only_with_a_quorum() {
    let name = "a_wait_is_told_at_once_and_names_a_holder_only_with_a_quorum";
    let Some(testbed) = Testbed::new(name) else { return };
    let waiting_with = |values: [&str; 5]| {
        for (node, value) in testbed.nodes.iter().zip(values) {
            node.command(&["SET", "k", value]).unwrap();
        }
        // An attempt is over after a node timeout, far below half of the wait.
        let args = ["run", "k", "--wait", "400ms", "--ttl", "2s", "--", "true"];
        let output = testbed.quorlock(&args).output().unwrap();
        assert_eq!(output.status.code(), Some(75));
        let lines = stderr(&output);
        let line = lines.lines().find(|line| line.contains("waiting for"));
        line.unwrap_or_else(|| panic!("no line tells of the wait: {lines}")).to_owned()
    };
    let split = waiting_with(["x", "x", "y", "y", "z"]);
    assert!(split.ends_with("others hold it or want it"), "{split}");
    let held = waiting_with(["x"; 5]);
    assert!(held.contains("held by the foreign value \"x\""), "{held}");
}
