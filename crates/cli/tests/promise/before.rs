//! Dead before.

use std::fs;
use std::io::PipeWriter;
use std::process::{Output, Stdio};

use quorlock_servers::{ServerOptions, find_or_skip, not_for};
use rustix::process::{Signal, kill_process};

use crate::common::{Running, Testbed, eventually, stderr, unix_ms};
use crate::{
    IN_ANOTHER_GROUP, PLAIN, TTL, events, first, first_by, guardian_of, lost_because,
    lost_because_of, no_node_answers_in_time, second, testbed, they_do_not_overlap, times,
    written_within_the_validity,
};

#[test]
fn no_extension_in_time() {
    for command in [PLAIN, IN_ANOTHER_GROUP] {
        let Some(testbed) = testbed("no_extension_in_time") else { return };
        let (first, second) = (first(&testbed, TTL, command), second(&testbed));
        no_node_answers_in_time(&testbed, first, second);
    }
}

/// The nodes answer again when the commands have been asked to end, and the locks live on: what is told is why
/// the commands were asked, and `--min-hold` holds.
#[test]
fn an_extension_after_sigterm_does_not_change_the_cause() {
    let test = "an_extension_after_sigterm_does_not_change_the_cause";
    let Some(testbed) = Testbed::sized(test, 3, ServerOptions::default()) else { return };
    let stays = "exec 2>/dev/null
        trap 'echo > asked-$QUORLOCK_KEY; while [ ! -e go ]; do sleep 0.01; done; exit 0' TERM
        echo > up-$QUORLOCK_KEY; while :; do sleep 0.01; done";
    // Between SIGTERM and SIGKILL there are more than four seconds, for the nodes and for a busy machine.
    let options = ["--ttl", "18s", "--kill-after", "5500ms", "--json"];
    let start = |key: &'static str, min_hold: &[&str]| {
        let command = ["--", "sh", "-c", stays];
        let mut run = testbed.quorlock(&[&["run", key], &options[..], min_hold, &command].concat());
        let told = fs::File::create(testbed.path(key)).unwrap();
        let running = Running(run.stdout(Stdio::null()).stderr(told).spawn().unwrap());
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
        let status = eventually("quorlock ends", || keeper.0.try_wait().unwrap());
        let stderr = fs::read(testbed.path(key)).unwrap();
        lost_because(&Output { status, stdout: Vec::new(), stderr }, "expired");
    }
    assert_eq!(testbed.holders_of("plain"), 0, "given back");
    assert_eq!(testbed.holders_of("long"), 3, "left to expire");
}

#[test]
fn the_longest_hold_is_over() {
    for command in [PLAIN, IN_ANOTHER_GROUP] {
        let Some(testbed) = testbed("the_longest_hold_is_over") else { return };
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
        let Some(testbed) = testbed("the_guardian_is_killed") else { return };
        let (first, second) = (first(&testbed, TTL, command), second(&testbed));
        kill_process(guardian_of(&first), Signal::KILL).unwrap();
        let output = first.end();
        assert_eq!(output.status.code(), Some(70), "{}", stderr(&output));
        assert!(events(&output).iter().any(|event| event["event"] == "unguarded"));
        they_do_not_overlap(&testbed, second);
    }
}

#[test]
fn the_guardian_is_stopped() {
    for command in [PLAIN, IN_ANOTHER_GROUP] {
        let Some(testbed) = testbed("the_guardian_is_stopped") else { return };
        let (first, second) = (first(&testbed, TTL, command), second(&testbed));
        kill_process(guardian_of(&first), Signal::STOP).unwrap();
        no_node_answers_in_time(&testbed, first, second);
    }
}

#[test]
fn the_keeper_is_stopped() {
    for command in [PLAIN, IN_ANOTHER_GROUP] {
        let Some(testbed) = testbed("the_keeper_is_stopped") else { return };
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
        let Some(testbed) = testbed("the_keeper_is_killed") else { return };
        let (first, second) = (first(&testbed, TTL, command), second(&testbed));
        first.signal(Signal::KILL);
        they_do_not_overlap(&testbed, second);
        drop(first);
    }
}

/// Names the program whose wall clock this test can step, by the nanoseconds in a file.
const STEPPED: &str = "QUORLOCK_STEPPED";

#[test]
fn the_wall_clock_steps() {
    let name = "the_wall_clock_steps";
    let Some(program) = std::env::var_os(STEPPED) else {
        let why =
            format!("{STEPPED} names no program: cargo xtask stepped builds one, and runs it");
        return not_for(&find_or_skip(name).unwrap(), name, &why);
    };
    for command in [PLAIN, IN_ANOTHER_GROUP] {
        let Some(testbed) = testbed(name) else { return };
        let first = first_by(&testbed, Some(&program), &["--ttl", TTL], command);
        let second = second(&testbed);
        let step = |seconds: i64| {
            fs::write(testbed.path("new"), (seconds * 1_000_000_000).to_string()).unwrap();
            fs::rename(testbed.path("new"), testbed.path("clock")).unwrap();
        };
        // Back: nothing changes, and the lock is extended.
        step(-60);
        let since = unix_ms();
        eventually("two ttls have passed", || (unix_ms() > since + 8000).then_some(()));
        fs::remove_file(testbed.path("up")).unwrap();
        testbed.await_file("up");
        // And ahead again, to where it was: the votes were asked for a minute ago by that clock.
        step(0);
        they_do_not_overlap(&testbed, second);
        let output = first.end();
        lost_because(&output, "clock_jumped");
        assert!(stderr(&output).contains("the wall clock moved ahead"), "{}", stderr(&output));
    }
}

/// Fewer votes have vanished than a holder of all three survives, but it is a holder of two: the third
/// vote has run out. What is left must not be given back before the command is dead.
#[test]
fn a_key_is_deleted_where_another_node_is_silent() {
    let Some(testbed) = testbed("a_key_is_deleted_where_another_node_is_silent") else { return };
    let (first, second) = (first(&testbed, TTL, PLAIN), second(&testbed));
    testbed.nodes[2].pause().unwrap();
    let silent_since = unix_ms();
    eventually("its vote runs out", || (unix_ms() > silent_since + 4100).then_some(()));
    testbed.nodes[0].command(&["DEL", "k"]).unwrap();
    they_do_not_overlap(&testbed, second);
    // The next holder may have put a key of its own there already.
    lost_because_of(&first.end(), &["key_gone", "key_overwritten"]);
}

#[test]
fn nobody_reads_what_is_told() {
    let Some(testbed) = testbed("nobody_reads_what_is_told") else { return };
    let tells_on_stdout = ["--status-fd", "1"];
    let tells_on_stderr = ["--json"];
    for options in [&tells_on_stdout[..], &tells_on_stderr] {
        let run = |ttl: &str, script: &str| {
            let mut command =
                testbed.quorlock(&[&["run", "k", "--ttl", ttl], options, &["--"]].concat());
            // The command must not block there itself.
            command.args(["sh", "-c", &format!("exec >/dev/null 2>&1; {script}")]);
            let (reader, writer) = full_pipe();
            let mut silent = command.stdin(std::process::Stdio::null());
            silent = match options[0] {
                "--json" => silent.stdout(std::process::Stdio::null()).stderr(writer),
                _ => silent.stdout(writer).stderr(std::process::Stdio::null()),
            };
            (reader, Running(silent.spawn().unwrap()))
        };
        let (_reader, mut healthy) = run("900ms", "sleep 3; exit 5");
        let code = eventually("it ends", || healthy.0.try_wait().unwrap());
        assert_eq!(code.code(), Some(5), "three ttls later, it has ended by itself");
        let (_reader, mut ended) = run("900ms", "echo > heard-from; exec sleep 60");
        testbed.await_file("heard-from");
        fs::remove_file(testbed.path("heard-from")).unwrap();
        ended.signal(Signal::TERM);
        let code = eventually("it ends", || ended.0.try_wait().unwrap());
        assert_eq!(code.code(), Some(143), "a signal is heard");
        assert_eq!(testbed.holders_of("k"), 0);
        let (_reader, mut expired) = run(TTL, PLAIN);
        testbed.await_file("up");
        testbed.nodes[..2].iter().for_each(|node| node.pause().unwrap());
        let until = unix_ms() + 4000;
        let code = eventually("it ends", || expired.0.try_wait().unwrap());
        assert_eq!(code.code(), Some(79), "it has lost its lock");
        let last = times(&testbed, "first").last().unwrap() / 1_000_000;
        assert!(last <= until, "what was confirmed has run out {} ms ago", last - until);
        testbed.nodes[..2].iter().for_each(|node| node.resume().unwrap());
        they_do_not_overlap(&testbed, second(&testbed));
        ["up", "first"].iter().for_each(|file| fs::remove_file(testbed.path(file)).unwrap());
    }
}

/// A pipe with no room left, and who could read it.
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
