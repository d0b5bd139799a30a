//! `quorlock run` on five real servers. [`promise`](promise/main.rs) tests the end of a command whose lock ends.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use common::{
    Running, Testbed, boot, code, eventually, json_lines, not_for, quorlock, stderr, stdout,
    through,
};
use quorlock_servers::ServerOptions;
use rustix::process::Signal;

#[test]
fn two_runs_of_the_same_key_never_overlap() {
    let Some(testbed) = Testbed::new() else { return };
    let script = "echo in >> log; sleep 0.05; echo out >> log";
    let run = |_| testbed.start(&["run", "k", "--", "sh", "-c", script]);
    (0..6).map(run).collect::<Vec<_>>().into_iter().for_each(|run| code(&run.end(), 0));
    assert_eq!(fs::read_to_string(testbed.path("log")).unwrap(), "in\nout\n".repeat(6));
    assert_eq!(testbed.holders_of("k"), 0);
}

#[test]
fn three_dead_nodes_of_five_are_named_when_the_wait_ends() {
    let Some(testbed) = Testbed::new() else { return };
    testbed.nodes[..3].iter().for_each(|node| node.kill().unwrap());
    let start = boot();
    let output = testbed.output(&["run", "k", "--wait", "1s", "--", "true"]);
    let waited = boot() - start;
    code(&output, 69);
    // The call ends after its own wait of 1 s, well before the default wait of a minute.
    assert!(waited >= Duration::from_secs(1) && waited < Duration::from_secs(30), "{waited:?}");
    let said = stderr(&output);
    assert!(said.contains("nodes a, b, c failed: unreachable: "), "{said}");
    assert!(said.contains("no quorum, 3 of 5 nodes must grant"), "{said}");
    assert_eq!(testbed.holders_of("k"), 0);
}

#[test]
fn a_wrong_password_ends_the_call_without_a_wait() {
    let options = ServerOptions { password: Some("right".into()), ..ServerOptions::default() };
    let Some(testbed) = Testbed::with(5, options) else { return };
    let urls = testbed.nodes.iter().map(|node| format!("redis+unix://{}", node.address()));
    let urls: Vec<String> = urls.collect();
    let run = |password: &str| {
        let mut command = quorlock(&["run", "k", "--wait", "1h", "--", "true"]);
        command.env("QUORLOCK_NODES", urls.join(",")).env("QUORLOCK_PASSWORD", password);
        command.output().unwrap()
    };
    let output = run("wrong-secret");
    code(&output, 77);
    assert!(stderr(&output).contains("not authenticated"), "{}", stderr(&output));
    assert!(!stderr(&output).contains("wrong-secret"));
    code(&run(""), 77);
    code(&run("right"), 0);
}

/// In a PID namespace, session and group may belong to a process outside and then have the id 0. The command must still
/// end with its lock.
#[test]
fn in_a_container_the_command_ends_with_its_lock() {
    ends_in_a_container(&["--pid", "--fork", "--mount-proc"]);
}

/// The host's `/proc` shows other process ids than the container. The command must still end with its lock.
#[test]
fn in_a_container_with_the_hosts_proc_the_command_ends_with_its_lock() {
    ends_in_a_container(&["--pid", "--fork"]);
}

fn ends_in_a_container(namespaces: &[&str]) {
    let Some(testbed) = Testbed::new() else { return };
    let outer = [&["unshare", "--user", "--map-root-user"], namespaces].concat();
    if !through(&outer, &quorlock(&["--version"])).output().unwrap().status.success() {
        return not_for("a container cannot be made here");
    }
    let stubborn = "trap '' TERM; echo up > up; sleep 60 & while :; do sleep 1; done";
    let run = testbed.quorlock(&["run", "k", "--ttl", "1s", "--", "sh", "-c", stubborn]);
    let run = Running::start(&mut through(&outer, &run));
    testbed.await_file("up");
    testbed.nodes[..3].iter().for_each(|node| node.pause().unwrap());
    let output = run.end();
    code(&output, 79);
    assert!(stderr(&output).contains("lost the lock \"k\""), "{}", stderr(&output));
}

#[test]
fn a_signal_ends_a_wait_and_no_key_stays() {
    let Some(testbed) = Testbed::new() else { return };
    // Another client has three of five nodes. The waiting call may set the key on the other two, and must delete it.
    testbed.on(0..3, &["SET", "k", "other", "PX", "60000"]);
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let run = testbed.start(&["run", "k", "--wait", "forever", "--", "true"]);
        run.await_line("waiting for ever");
        run.signal(signal);
        let status = run.end().status;
        // SIGINT kills `quorlock`, so that a shell loop around it ends. A shell reports the code 130.
        let shown = status.code().or(status.signal().map(|signal| 128 + signal));
        assert_eq!((shown, status.signal().is_some()), (Some(code), signal == Signal::INT));
        assert_eq!(testbed.holders_of("k"), 3, "only the other client's keys");
    }
}

#[test]
fn min_hold_keeps_the_lock_after_a_short_command() {
    let Some(testbed) = Testbed::new() else { return };
    // The ttl may be shorter or longer than the time for which the lock must be held.
    for (ttl, least) in [("1s", 1900), ("3s", 2500)] {
        let start = boot();
        let args = ["run", "k", "--ttl", ttl, "--min-hold", "2s", "--status-fd", "1"];
        let output = testbed.output(&[&args[..], &["--", "sh", "-c", "exit 4"]].concat());
        code(&output, 4);
        let left = json_lines(&stdout(&output)).pop().unwrap();
        let [rest, most] = ["rest_ms", "rest_max_ms"].map(|name| left[name].as_u64().unwrap());
        assert!(rest >= least && (rest..=3000).contains(&most), "{left}");
        assert_eq!(testbed.holders_of("k"), 5, "the lock is left to expire");
        eventually("the lock is free", || (testbed.holders_of("k") == 0).then_some(()));
        let held = boot() - start;
        assert!(held >= Duration::from_millis(rest), "{held:?}: {left}");
    }
}

#[test]
fn a_command_that_waits_for_the_lock_around_it_is_told_so() {
    let Some(testbed) = Testbed::new() else { return };
    let inner = [env!("CARGO_BIN_EXE_quorlock"), "run", "k", "--wait", "0s", "--", "true"];
    let output = testbed.output(&[&["run", "k", "--pass-nodes", "--"], &inner[..]].concat());
    code(&output, 75);
    let said = stderr(&output);
    assert!(said.contains("a quorlock run around this command has taken the lock"), "{said}");
}

#[test]
fn a_pipe_for_events_without_a_reader_does_not_stop_the_command() {
    let Some(testbed) = Testbed::new() else { return };
    let run = testbed.quorlock(&["run", "k", "--status-fd", "3", "--", "sh", "-c", "exit 5"]);
    let script = "mkfifo p; sleep 60 < p & exec 3> p; kill $!; wait $!; exec \"$0\" \"$@\"";
    code(&through(&["sh", "-c", script], &run).output().unwrap(), 5);
    // A socket is refused because a write to it could block.
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let mut shell = through(&["sh", "-c", "exec \"$0\" \"$@\" 3>&1"], &run);
    code(&shell.stdout(OwnedFd::from(theirs)).output().unwrap(), 64);
}
