//! The rows "before" of the table in docs/cli.md: the command is dead before the next holder begins.

use std::fs;
use std::io::PipeWriter;
use std::process::{Output, Stdio};

use rustix::process::{Signal, kill_process};

use crate::common::{Running, Testbed, code, eventually, json_lines, not_for, stderr, unix_ms};
use crate::{
    IN_ANOTHER_GROUP, PLAIN, TTL, first, first_by, guardian_of, lost_because, lost_because_of,
    no_node_answers_in_time, second, testbed, they_do_not_overlap, times,
    written_within_the_validity,
};

#[test]
fn no_extension_in_time() {
    for command in [PLAIN, IN_ANOTHER_GROUP] {
        let Some(testbed) = testbed() else { return };
        let (first, second) = (first(&testbed, TTL, command), second(&testbed));
        no_node_answers_in_time(&testbed, first, second);
    }
}

/// After SIGTERM the nodes answer again, so the locks are extended. The event still reports the cause of SIGTERM, and
/// `--min-hold` still applies.
#[test]
fn an_extension_after_sigterm_does_not_change_the_cause() {
    let Some(testbed) = Testbed::sized(3) else { return };
    let stays = "exec 2>/dev/null
        trap 'echo > asked-$QUORLOCK_KEY; while [ ! -e go ]; do sleep 0.01; done; exit 0' TERM
        echo > up-$QUORLOCK_KEY; while :; do sleep 0.01; done";
    // More than four seconds are between SIGTERM and SIGKILL, so a busy machine has time for an extension.
    let options = ["--ttl", "18s", "--kill-after", "5500ms", "--json"];
    let start = |key: &'static str, min_hold: &[&str]| {
        let command = ["--", "sh", "-c", stays];
        let mut run = testbed.quorlock(&[&["run", key], &options[..], min_hold, &command].concat());
        let told = fs::File::create(testbed.path(key)).unwrap();
        let running = Running::of(run.stdout(Stdio::null()).stderr(told).spawn().unwrap());
        testbed.await_file(&format!("up-{key}"));
        (key, running)
    };
    let keepers = [start("plain", &[]), start("long", &["--min-hold", "25s"])];
    let extensions = |key: &str| {
        let told = fs::read_to_string(testbed.path(key)).unwrap();
        told.matches(r#""event":"extended""#).count()
    };
    testbed.nodes[..2].iter().for_each(|node| node.pause().unwrap());
    let before = keepers.each_ref().map(|(key, _)| {
        testbed.await_file(&format!("asked-{key}"));
        extensions(key)
    });
    testbed.nodes[..2].iter().for_each(|node| node.resume().unwrap());
    for ((key, _), before) in keepers.iter().zip(before) {
        eventually("the lock is extended", || (extensions(key) > before).then_some(()));
    }
    fs::write(testbed.path("go"), "").unwrap();
    for (key, mut keeper) in keepers {
        let status = eventually("quorlock ends", || keeper.child.try_wait().unwrap());
        let stderr = fs::read(testbed.path(key)).unwrap();
        lost_because(&Output { status, stdout: Vec::new(), stderr }, "expired");
    }
    assert_eq!(testbed.holders_of("plain"), 0, "released");
    assert_eq!(testbed.holders_of("long"), 3, "left to expire");
}

#[test]
fn the_longest_hold_is_over() {
    for command in [PLAIN, IN_ANOTHER_GROUP] {
        let Some(testbed) = testbed() else { return };
        let first = first_by(&testbed, None, &["--ttl", TTL, "--max-hold", "5s"], command);
        let second = second(&testbed);
        let output = first.end();
        lost_because(&output, "hold_limit");
        written_within_the_validity(&testbed, &output);
        they_do_not_overlap(&testbed, second);
    }
}

#[test]
fn the_guardian_is_killed() {
    for command in [PLAIN, IN_ANOTHER_GROUP] {
        let Some(testbed) = testbed() else { return };
        let (first, second) = (first(&testbed, TTL, command), second(&testbed));
        kill_process(guardian_of(&first), Signal::KILL).unwrap();
        let output = first.end();
        code(&output, 70);
        assert!(json_lines(&stderr(&output)).iter().any(|event| event["event"] == "unguarded"));
        they_do_not_overlap(&testbed, second);
    }
}

#[test]
fn the_guardian_is_stopped() {
    for command in [PLAIN, IN_ANOTHER_GROUP] {
        let Some(testbed) = testbed() else { return };
        let (first, second) = (first(&testbed, TTL, command), second(&testbed));
        kill_process(guardian_of(&first), Signal::STOP).unwrap();
        no_node_answers_in_time(&testbed, first, second);
    }
}

#[test]
fn the_keeper_is_stopped() {
    for command in [PLAIN, IN_ANOTHER_GROUP] {
        let Some(testbed) = testbed() else { return };
        let (first, second) = (first(&testbed, TTL, command), second(&testbed));
        first.signal(Signal::STOP);
        they_do_not_overlap(&testbed, second);
        first.signal(Signal::CONT);
        lost_because(&first.end(), "stopped");
    }
}

#[test]
fn the_keeper_is_killed() {
    for command in [PLAIN, IN_ANOTHER_GROUP] {
        let Some(testbed) = testbed() else { return };
        let (first, second) = (first(&testbed, TTL, command), second(&testbed));
        first.signal(Signal::KILL);
        they_do_not_overlap(&testbed, second);
        drop(first);
    }
}

/// This variable has the path of a `quorlock` that adds the nanoseconds in a file to its wall clock.
const STEPPED: &str = "QUORLOCK_STEPPED";

#[test]
fn the_wall_clock_steps() {
    let Some(program) = std::env::var_os(STEPPED) else {
        let why =
            format!("{STEPPED} names no program: cargo xtask stepped builds one, and runs it");
        return not_for(&why);
    };
    for command in [PLAIN, IN_ANOTHER_GROUP] {
        let Some(testbed) = testbed() else { return };
        let first = first_by(&testbed, Some(&program), &["--ttl", TTL], command);
        let second = second(&testbed);
        let step = |seconds: i64| {
            fs::write(testbed.path("new"), (seconds * 1_000_000_000).to_string()).unwrap();
            fs::rename(testbed.path("new"), testbed.path("clock")).unwrap();
        };
        // A wall clock that jumps back changes nothing, and the lock is extended.
        step(-60);
        let since = unix_ms();
        eventually("two ttls have passed", || (unix_ms() > since + 8000).then_some(()));
        fs::remove_file(testbed.path("up")).unwrap();
        testbed.await_file("up");
        // The clock jumps ahead to the true time. By this clock, the last extension is a minute old.
        step(0);
        they_do_not_overlap(&testbed, second);
        let output = first.end();
        lost_because(&output, "clock_jumped");
        assert!(stderr(&output).contains("the wall clock moved ahead"), "{}", stderr(&output));
    }
}

/// The vote of one silent node of three has expired, and a second node loses its key, which ends the lock. The vote of
/// the third node must not be released before the command is dead.
#[test]
fn a_key_is_deleted_where_another_node_is_silent() {
    let Some(testbed) = testbed() else { return };
    let (first, second) = (first(&testbed, TTL, PLAIN), second(&testbed));
    testbed.nodes[2].pause().unwrap();
    let silent_since = unix_ms();
    eventually("the vote expires", || (unix_ms() > silent_since + 4100).then_some(()));
    testbed.nodes[0].command(&["DEL", "k"]).unwrap();
    they_do_not_overlap(&testbed, second);
    // If the next holder is fast, the first one finds its key overwritten instead of gone.
    lost_because_of(&first.end(), &["key_gone", "key_overwritten"]);
}

#[test]
fn no_process_reads_the_messages_or_events() {
    let Some(testbed) = testbed() else { return };
    let tells_on_stdout = ["--status-fd", "1"];
    let tells_on_stderr = ["--json"];
    for options in [&tells_on_stdout[..], &tells_on_stderr] {
        let run = |ttl: &str, script: &str| {
            let mut command =
                testbed.quorlock(&[&["run", "k", "--ttl", ttl], options, &["--"]].concat());
            // The command itself must not block on the pipe.
            command.args(["sh", "-c", &format!("exec >/dev/null 2>&1; {script}")]);
            let (reader, writer) = full_pipe();
            let mut silent = command.stdin(std::process::Stdio::null());
            silent = match options[0] {
                "--json" => silent.stdout(std::process::Stdio::null()).stderr(writer),
                _ => silent.stdout(writer).stderr(std::process::Stdio::null()),
            };
            (reader, Running::of(silent.spawn().unwrap()))
        };
        let (_reader, healthy) = run("900ms", "sleep 3; exit 5");
        code(&healthy.end(), 5);
        let (_reader, ended) = run("900ms", "echo > heard-from; exec sleep 60");
        testbed.await_file("heard-from");
        fs::remove_file(testbed.path("heard-from")).unwrap();
        ended.signal(Signal::TERM);
        code(&ended.end(), 143);
        assert_eq!(testbed.holders_of("k"), 0);
        let (_reader, expired) = run(TTL, PLAIN);
        testbed.await_file("up");
        testbed.nodes[..2].iter().for_each(|node| node.pause().unwrap());
        let until = unix_ms() + 4000;
        code(&expired.end(), 79);
        let last = times(&testbed, "first").last().unwrap() / 1_000_000;
        assert!(last <= until, "the lock expired {} ms before the last write", last - until);
        testbed.nodes[..2].iter().for_each(|node| node.resume().unwrap());
        they_do_not_overlap(&testbed, second(&testbed));
        ["up", "first"].iter().for_each(|file| fs::remove_file(testbed.path(file)).unwrap());
    }
}

fn full_pipe() -> (std::io::PipeReader, PipeWriter) {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    let (reader, writer) = std::io::pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while rustix::io::write(&writer, &[b'\n'; 4096]).is_ok() {}
    while rustix::io::write(&writer, b"\n").is_ok() {}
    fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}
