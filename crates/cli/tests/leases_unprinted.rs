//! `quorlock acquire` and `extend` whose lease does not reach the script.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::io::{PipeReader, Write as _};
use std::process::{Output, Stdio};

use common::leases::{acquire, await_end_of, is_free, script, servers};
use common::{Running, Testbed, code, json_lines, stderr, stdout};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::Signal;

/// Starts `quorlock acquire k` with a full pipe as its standard output, and waits until the lock is reported on
/// standard error.
fn start_blocked(testbed: &Testbed, options: &[&str]) -> (Running, PipeReader, i32) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
    while writer.write(&[b' '; 4096]).is_ok() {}
    fcntl_setfl(&writer, OFlags::empty()).unwrap();
    let mut command = testbed.quorlock(&[&["acquire", "k", "--json"], options].concat());
    let child = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    // `command` has a copy of the pipe's writing end, which would keep the pipe open.
    drop(command);
    let running = Running::of(child);
    let acquired = json_lines(&running.await_line("\"acquired\"")).remove(0);
    let keeper = acquired["keeper_pid"].as_i64().unwrap_or_default();
    (running, reader, i32::try_from(keeper).unwrap())
}

/// Options with which a keeper extends the lock for as long as this test process lives.
fn kept() -> [String; 4] {
    ["--hold-by", &std::process::id().to_string(), "--on-lost", "none"].map(str::to_owned)
}

#[test]
fn a_keeper_releases_the_lock_if_acquire_ends_before_it_has_printed_the_lease() {
    let Some(testbed) = servers(3) else { return };
    let kept = kept();
    let kept = kept.each_ref().map(String::as_str);
    for (signal, expected) in [(Signal::KILL, None), (Signal::TERM, Some(143))] {
        let (blocked, _reader, keeper) = start_blocked(&testbed, &kept);
        assert!(testbed.holders_of("k") >= 2);
        blocked.signal(signal);
        assert_eq!(blocked.end().status.code(), expected);
        await_end_of(keeper);
        assert!(is_free(&testbed, "k"), "before the end of the ttl of 10 s");
    }
}

#[test]
fn a_lock_without_a_keeper_that_ends_before_its_lease_is_printed_is_reported_as_lost() {
    let Some(testbed) = servers(3) else { return };
    let (blocked, _reader, _) = start_blocked(&testbed, &["--ttl", "1s"]);
    let output = blocked.end();
    code(&output, 79);
    assert!(stderr(&output).contains("the time of the lock was up"), "{}", stderr(&output));
    assert!(is_free(&testbed, "k"));
}

#[test]
fn signals_that_end_nothing_do_not_keep_a_keeper_from_starting() {
    let Some(testbed) = servers(3) else { return };
    let kept = kept();
    let options = kept.each_ref().map(String::as_str);
    let mut starting = testbed.start(&[&["acquire", "k"][..], &options].concat());
    while starting.is_running() {
        starting.signal(Signal::WINCH);
    }
    let output = starting.end();
    code(&output, 0);
    code(&testbed.output(&["release", stdout(&output).trim_end()]), 0);
}

/// The script cannot read the new lease, so the exit code is not 0 although the lock was extended.
#[test]
fn an_extension_whose_lease_cannot_be_printed_is_an_error_that_names_the_earlier_lease() {
    let Some(testbed) = servers(3) else { return };
    let lease = acquire(&testbed, &[]);
    let extend = format!("quorlock extend '{lease}'");
    let is_extended = |output: &Output| {
        code(output, 70);
        let said = stderr(output);
        assert!(said.contains("the lock is extended, and the earlier lease can still"), "{said}");
    };
    for to in [">&-", "> /dev/full"] {
        let output = script(&testbed, "sh", &format!("{extend} {to}")).output().unwrap();
        is_extended(&output);
        let json = script(&testbed, "sh", &format!("{extend} --json {to}")).output().unwrap();
        is_extended(&json);
        let event = json_lines(&stderr(&json)).pop().unwrap();
        assert_eq!(event["event"], "extended", "{event}");
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut unread = script(&testbed, "sh", &extend);
    let unread = unread.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    is_extended(&unread.wait_with_output().unwrap());
    code(&testbed.output(&["release", &lease]), 0);
    assert!(is_free(&testbed, "k"));
}
