//! The table in docs/cli.md, "Dead before the lock is another's", row by row, on three real servers.
//!
//! The command writes the time again and again; the next holder is another `quorlock run`, whose command
//! writes the time once. What is asserted is what the table says: no write of the first comes after that of
//! the second; or none comes later than so long after the cause; or, where nothing is promised, what
//! happens instead.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::ffi::OsStr;
use std::fs;
use std::io::PipeWriter;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use common::{Lab, Running, eventually, stderr, unix_ms};
use quorlock_servers::{ServerOptions, find_or_skip, not_for};
use rustix::process::{Pid, Signal, kill_process};

/// The first command, in the two forms that differ: in the command's own process group, and in one that it
/// makes. Both ignore SIGTERM.
const PLAIN: &str = "exec sh writer";
const IN_ANOTHER_GROUP: &str = "timeout 60 sh writer; true";

/// SIGTERM is due 800 ms before the end and SIGKILL 200 ms: for so long may a busy machine keep guardian and
/// keeper waiting for a processor.
const TTL: &str = "4s";

/// A process of the command that outlives its test is killed all the same.
struct Escaped(Pid);

impl Drop for Escaped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

fn escaped(lab: &Lab, file: &str) -> Escaped {
    Escaped(Pid::from_raw(lab.await_file(file).trim().parse().unwrap()).unwrap())
}

fn lab(test: &str) -> Option<Lab> {
    let lab = Lab::sized(test, 3, ServerOptions::default())?;
    // One that escapes ends with the test's folder.
    let writer = "trap '' TERM; while date +%s%N >> first && echo > up; do sleep 0.01; done";
    fs::write(lab.path("writer"), writer).unwrap();
    Some(lab)
}

/// The first holder, once its command writes.
fn first(lab: &Lab, ttl: &str, command: &str) -> Running {
    first_by(lab, None, &["--ttl", ttl], command)
}

/// The same, by another program than ours if there is one, with these options.
fn first_by(lab: &Lab, program: Option<&OsStr>, options: &[&str], command: &str) -> Running {
    // One that escapes does not hold our pipes open.
    let command = format!("exec >/dev/null 2>&1; {command}");
    let command = ["--json", "--", "sh", "-c", &command];
    let ours = lab.quorlock(&[&["run", "k"], options, &command].concat());
    let mut quorlock = Command::new(program.unwrap_or(ours.get_program()));
    quorlock.args(ours.get_args()).stdin(Stdio::null()).current_dir(lab.folder.path());
    quorlock.env_clear().envs(std::env::vars_os().filter(|(name, _)| name == "PATH"));
    quorlock.envs(ours.get_envs().filter_map(|(name, value)| Some((name, value?))));
    quorlock.env("QUORLOCK_CLOCK_OFFSET_FILE", lab.path("clock"));
    let first = Running::start(&mut quorlock);
    lab.await_file("up");
    first
}

/// The next holder, which waits.
fn second(lab: &Lab) -> Running {
    let script = "date +%s%N > second";
    Running::start(&mut lab.quorlock(&["run", "k", "--wait", "25s", "--", "sh", "-c", script]))
}

fn times(lab: &Lab, file: &str) -> Vec<u64> {
    let text = fs::read_to_string(lab.path(file)).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// Waits until the second has had the lock, and checks that nothing was written by the first after that.
fn they_do_not_overlap(lab: &Lab, second: Running) {
    let output = second.end();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let last = *times(lab, "first").last().unwrap();
    let next = times(lab, "second")[0];
    assert!(last < next, "written {} ms after the next holder began", (last - next) / 1_000_000);
    let written = times(lab, "first").len();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(times(lab, "first").len(), written, "and none comes later");
}

/// No write after the validity that was told last.
fn written_within_the_validity(lab: &Lab, first: &Output) {
    let until = events(first).iter().rev().find_map(|event| event["valid_until_unix_ms"].as_u64());
    let last = times(lab, "first").last().unwrap() / 1_000_000;
    assert!(last <= until.unwrap(), "{} ms late", last - until.unwrap());
}

fn events(output: &Output) -> Vec<serde_json::Value> {
    stderr(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Two of three nodes stand still until the first lock has run out; nothing is written late.
fn no_node_answers_in_time(lab: &Lab, first: Running, second: Running) {
    lab.nodes[..2].iter().for_each(|node| node.pause().unwrap());
    let output = first.end();
    lost_because(&output, "expired");
    written_within_the_validity(lab, &output);
    lab.nodes[..2].iter().for_each(|node| node.resume().unwrap());
    they_do_not_overlap(lab, second);
}

/// It lost the lock, and says why.
fn lost_because(output: &Output, cause: &str) {
    lost_because_of(output, &[cause]);
}

fn lost_because_of(output: &Output, causes: &[&str]) {
    assert_eq!(output.status.code(), Some(79), "{}", stderr(output));
    let lost = events(output).into_iter().find(|event| event["event"] == "lost");
    let cause = &lost.expect("it says so")["cause"];
    assert!(causes.iter().any(|expected| cause == expected), "{}", stderr(output));
}

fn guardian_of(keeper: &Running) -> Pid {
    let parent = keeper.pid().as_raw_nonzero().get().to_string();
    let is_its = |stat: &str| {
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace();
        stat.contains("(lock-guardian)") && fields.nth(1) == Some(&parent)
    };
    eventually("there is a guardian", || {
        let processes = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let stats = processes.filter_map(|pid| {
            Some((pid.parse().ok()?, fs::read_to_string(format!("/proc/{pid}/stat")).ok()?))
        });
        let (pid, _) = stats.into_iter().find(|(_, stat)| is_its(stat))?;
        Pid::from_raw(pid)
    })
}

// ---- dead before ----------------------------------------------------------------------------

#[test]
fn no_extension_in_time() {
    for command in [PLAIN, IN_ANOTHER_GROUP] {
        let Some(lab) = lab("no_extension_in_time") else { return };
        let (first, second) = (first(&lab, TTL, command), second(&lab));
        no_node_answers_in_time(&lab, first, second);
    }
}

/// The nodes answer again when the commands have been asked to end, and the locks live on: what is told is why
/// the commands were asked, and `--min-hold` holds.
#[test]
fn an_extension_after_sigterm_does_not_change_the_cause() {
    let test = "an_extension_after_sigterm_does_not_change_the_cause";
    let Some(lab) = Lab::sized(test, 3, ServerOptions::default()) else { return };
    let stays = "exec 2>/dev/null
        trap 'echo > asked-$QUORLOCK_KEY; while [ ! -e go ]; do sleep 0.01; done; exit 0' TERM
        echo > up-$QUORLOCK_KEY; while :; do sleep 0.01; done";
    // Between SIGTERM and SIGKILL there are more than four seconds, for the nodes and for a busy machine.
    let options = ["--ttl", "18s", "--kill-after", "5500ms", "--json"];
    let start = |key: &'static str, min_hold: &[&str]| {
        let command = ["--", "sh", "-c", stays];
        let mut run = lab.quorlock(&[&["run", key], &options[..], min_hold, &command].concat());
        let told = fs::File::create(lab.path(key)).unwrap();
        let running = Running(run.stdout(Stdio::null()).stderr(told).spawn().unwrap());
        lab.await_file(&format!("up-{key}"));
        (key, running)
    };
    let keepers = [start("plain", &[]), start("long", &["--min-hold", "25s"])];
    let extensions = |key: &str| {
        let told = fs::read_to_string(lab.path(key)).unwrap();
        told.matches(r#""event":"extended""#).count()
    };
    lab.nodes[..2].iter().for_each(|node| node.pause().unwrap());
    let before = keepers.each_ref().map(|(key, _)| {
        lab.await_file(&format!("asked-{key}"));
        extensions(key)
    });
    lab.nodes[..2].iter().for_each(|node| node.resume().unwrap());
    for ((key, _), before) in keepers.iter().zip(before) {
        eventually("the lock is extended", || (extensions(key) > before).then_some(()));
    }
    fs::write(lab.path("go"), "").unwrap();
    for (key, mut keeper) in keepers {
        let status = eventually("quorlock ends", || keeper.0.try_wait().unwrap());
        let stderr = fs::read(lab.path(key)).unwrap();
        lost_because(&Output { status, stdout: Vec::new(), stderr }, "expired");
    }
    assert_eq!(lab.holders_of("plain"), 0, "given back");
    assert_eq!(lab.holders_of("long"), 3, "left to expire");
}

#[test]
fn the_longest_hold_is_over() {
    for command in [PLAIN, IN_ANOTHER_GROUP] {
        let Some(lab) = lab("the_longest_hold_is_over") else { return };
        let first = first_by(&lab, None, &["--ttl", TTL, "--max-hold", "5s"], command);
        let second = second(&lab);
        let output = first.end();
        lost_because(&output, "hold_limit");
        written_within_the_validity(&lab, &output);
        they_do_not_overlap(&lab, second);
    }
}

#[test]
fn the_guardian_is_killed() {
    for command in [PLAIN, IN_ANOTHER_GROUP] {
        let Some(lab) = lab("the_guardian_is_killed") else { return };
        let (first, second) = (first(&lab, TTL, command), second(&lab));
        kill_process(guardian_of(&first), Signal::KILL).unwrap();
        let output = first.end();
        assert_eq!(output.status.code(), Some(70), "{}", stderr(&output));
        assert!(events(&output).iter().any(|event| event["event"] == "unguarded"));
        they_do_not_overlap(&lab, second);
    }
}

#[test]
fn the_guardian_is_stopped() {
    for command in [PLAIN, IN_ANOTHER_GROUP] {
        let Some(lab) = lab("the_guardian_is_stopped") else { return };
        let (first, second) = (first(&lab, TTL, command), second(&lab));
        kill_process(guardian_of(&first), Signal::STOP).unwrap();
        no_node_answers_in_time(&lab, first, second);
    }
}

#[test]
fn the_keeper_is_stopped() {
    for command in [PLAIN, IN_ANOTHER_GROUP] {
        let Some(lab) = lab("the_keeper_is_stopped") else { return };
        let (first, second) = (first(&lab, TTL, command), second(&lab));
        first.signal(Signal::STOP);
        they_do_not_overlap(&lab, second);
        first.signal(Signal::CONT);
        lost_because(&first.end(), "expired");
    }
}

#[test]
fn the_keeper_is_killed() {
    for command in [PLAIN, IN_ANOTHER_GROUP] {
        let Some(lab) = lab("the_keeper_is_killed") else { return };
        let (first, second) = (first(&lab, TTL, command), second(&lab));
        first.signal(Signal::KILL);
        they_do_not_overlap(&lab, second);
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
        let Some(lab) = lab(name) else { return };
        let first = first_by(&lab, Some(&program), &["--ttl", TTL], command);
        let second = second(&lab);
        let step = |seconds: i64| {
            fs::write(lab.path("new"), (seconds * 1_000_000_000).to_string()).unwrap();
            fs::rename(lab.path("new"), lab.path("clock")).unwrap();
        };
        // Back: nothing changes, and the lock is extended.
        step(-60);
        let since = unix_ms();
        eventually("two ttls have passed", || (unix_ms() > since + 8000).then_some(()));
        fs::remove_file(lab.path("up")).unwrap();
        lab.await_file("up");
        // And ahead again, to where it was: the votes were asked for a minute ago by that clock.
        step(0);
        they_do_not_overlap(&lab, second);
        lost_because(&first.end(), "clock_jumped");
    }
}

/// Fewer votes have vanished than a holder of all three survives, but it is a holder of two: the third
/// vote has run out. What is left must not be given back before the command is dead.
#[test]
fn a_key_is_deleted_where_another_node_is_silent() {
    let Some(lab) = lab("a_key_is_deleted_where_another_node_is_silent") else { return };
    let (first, second) = (first(&lab, TTL, PLAIN), second(&lab));
    lab.nodes[2].pause().unwrap();
    let silent_since = unix_ms();
    eventually("its vote runs out", || (unix_ms() > silent_since + 4100).then_some(()));
    lab.nodes[0].command(&["DEL", "k"]).unwrap();
    they_do_not_overlap(&lab, second);
    // The next holder may have put a key of its own there already.
    lost_because_of(&first.end(), &["key_gone", "key_overwritten"]);
}

#[test]
fn nobody_reads_what_is_told() {
    let Some(lab) = lab("nobody_reads_what_is_told") else { return };
    let tells_on_stdout = ["--status-fd", "1"];
    let tells_on_stderr = ["--json"];
    for options in [&tells_on_stdout[..], &tells_on_stderr] {
        let run = |ttl: &str, script: &str| {
            let mut command =
                lab.quorlock(&[&["run", "k", "--ttl", ttl], options, &["--"]].concat());
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
        lab.await_file("heard-from");
        fs::remove_file(lab.path("heard-from")).unwrap();
        ended.signal(Signal::TERM);
        let code = eventually("it ends", || ended.0.try_wait().unwrap());
        assert_eq!(code.code(), Some(143), "a signal is heard");
        assert_eq!(lab.holders_of("k"), 0);
        let (_reader, mut expired) = run(TTL, PLAIN);
        lab.await_file("up");
        lab.nodes[..2].iter().for_each(|node| node.pause().unwrap());
        let until = unix_ms() + 4000;
        let code = eventually("it ends", || expired.0.try_wait().unwrap());
        assert_eq!(code.code(), Some(79), "it has lost its lock");
        let last = times(&lab, "first").last().unwrap() / 1_000_000;
        assert!(last <= until, "what was confirmed has run out {} ms ago", last - until);
        lab.nodes[..2].iter().for_each(|node| node.resume().unwrap());
        they_do_not_overlap(&lab, second(&lab));
        ["up", "first"].iter().for_each(|file| fs::remove_file(lab.path(file)).unwrap());
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

// ---- dead within ----------------------------------------------------------------------------

/// After the next extension, a third of the ttl away, and max(5 % of ttl, 50 ms); beside that a node
/// timeout of at most 50 ms, and what a busy machine takes: far below what the lock had left.
fn dead_soon_after(lab: &Lab, first: Running, at_ms: u64, cause: &str) {
    let output = first.end();
    lost_because(&output, cause);
    let last = times(lab, "first").last().unwrap() / 1_000_000;
    let bound = 6000 / 3 + 300 + 50;
    assert!(last <= at_ms + bound + 1000, "{} ms", last - at_ms);
}

#[test]
fn a_majority_of_the_keys_is_deleted() {
    for command in [PLAIN, IN_ANOTHER_GROUP] {
        let Some(lab) = lab("a_majority_of_the_keys_is_deleted") else { return };
        let first = first(&lab, "6s", command);
        for node in &lab.nodes[..2] {
            node.command(&["DEL", "k"]).unwrap();
        }
        dead_soon_after(&lab, first, unix_ms(), "key_gone");
        assert_eq!(lab.holders_of("k"), 0, "and the third key is given back");
    }
}

#[test]
fn a_majority_of_the_keys_is_overwritten() {
    let Some(lab) = lab("a_majority_of_the_keys_is_overwritten") else { return };
    let first = first(&lab, "6s", PLAIN);
    for node in &lab.nodes[..2] {
        node.command(&["SET", "k", "other", "PX", "60000"]).unwrap();
    }
    dead_soon_after(&lab, first, unix_ms(), "key_overwritten");
    assert_eq!(lab.holders_of("k"), 2, "theirs stay");
}

/// They vote for nobody until the lock has run out.
#[test]
fn the_nodes_lose_their_data() {
    let Some(mut lab) = lab("the_nodes_lose_their_data") else { return };
    lab.guard = "strict";
    let max_ttl = ["--fresh", "--yes", "--max-ttl", TTL];
    let init = lab.quorlock(&[&["init"], &max_ttl[..]].concat()).output().unwrap();
    assert_eq!(init.status.code(), Some(0), "{}", stderr(&init));
    fs::write(lab.path("settings"), format!("max-ttl = \"{TTL}\"\n")).unwrap();
    lab.config = Some("settings");
    let (first, second) = (first(&lab, TTL, IN_ANOTHER_GROUP), second(&lab));
    for node in &lab.nodes[..2] {
        node.command(&["FLUSHALL"]).unwrap();
    }
    let output = first.end();
    lost_because(&output, "expired");
    written_within_the_validity(&lab, &output);
    they_do_not_overlap(&lab, second);
}

// ---- not promised ---------------------------------------------------------------------------

/// Nobody is left who could do anything; the first who goes on does it at once.
#[test]
fn guardian_and_keeper_are_stopped() {
    let Some(lab) = lab("guardian_and_keeper_are_stopped") else { return };
    let (first, second) = (first(&lab, TTL, IN_ANOTHER_GROUP), second(&lab));
    let guardian = guardian_of(&first);
    kill_process(guardian, Signal::STOP).unwrap();
    first.signal(Signal::STOP);
    assert_eq!(second.end().status.code(), Some(0), "the lock is another's all the same");
    kill_process(guardian, Signal::CONT).unwrap();
    let written = eventually("the command is dead", || {
        let written = times(&lab, "first").len();
        std::thread::sleep(Duration::from_millis(100));
        (times(&lab, "first").len() == written).then_some(written)
    });
    first.signal(Signal::CONT);
    lost_because(&first.end(), "expired");
    assert_eq!(times(&lab, "first").len(), written);
}

/// The kernel kills the command's own process, and nothing else.
#[test]
fn guardian_and_keeper_are_killed() {
    let Some(lab) = lab("guardian_and_keeper_are_killed") else { return };
    let command = "echo $$ > leader; sh writer & echo $! > orphan; wait";
    let first = first(&lab, TTL, command);
    let guardian = guardian_of(&first);
    let (leader, orphan) = (escaped(&lab, "leader"), escaped(&lab, "orphan"));
    first.signal(Signal::STOP);
    kill_process(guardian, Signal::KILL).unwrap();
    first.signal(Signal::KILL);
    eventually("the command's own process is dead", || kill_process(leader.0, Signal::CONT).err());
    assert_eq!(kill_process(orphan.0, Signal::KILL), Ok(()), "nobody has ended this one");
}

/// That is how a daemon says that it is to stay.
#[test]
fn a_descendant_has_left_the_session() {
    let Some(lab) = lab("a_descendant_has_left_the_session") else { return };
    let daemon = "setsid sh -c 'echo $$ > daemon; exec sh writer' & exec sleep 60";
    let first = first(&lab, TTL, daemon);
    let daemon = escaped(&lab, "daemon");
    lab.nodes[0].pause().unwrap();
    lab.nodes[1].pause().unwrap();
    lost_because(&first.end(), "expired");
    assert_eq!(kill_process(daemon.0, Signal::KILL), Ok(()), "it lives on");
}

/// Who may not be killed is waited for, while the lock is held; the lock is not given back before.
#[test]
fn a_descendant_belongs_to_another_user() {
    let name = "a_descendant_belongs_to_another_user";
    let Some(lab) = lab(name) else { return };
    // Not with our standard error, whose end is waited for.
    let unkillable = "setpriv --reuid 65534 --clear-groups sleep 60 >&- 2>&- & echo $! > up; wait";
    let start = |ttl| {
        // Root without the right to kill others.
        let run = lab.quorlock(&["run", "k", "--ttl", ttl, "--json", "--", "sh", "-c", unkillable]);
        let mut command = std::process::Command::new("setpriv");
        command.args(["--bounding-set", "-kill", "--inh-caps", "-kill"]);
        command.arg(run.get_program()).args(run.get_args());
        command.env_clear().envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("PATH", std::env::var_os("PATH").unwrap()).current_dir(lab.folder.path());
        Running::start(&mut command)
    };
    if !rustix::process::geteuid().is_root() {
        return not_for(&find_or_skip(name).unwrap(), name, "only root has another user at hand");
    }
    let first = start("900ms");
    let other = escaped(&lab, "up");
    eventually("it is another user's", || {
        let status =
            fs::read_to_string(format!("/proc/{}/status", other.0.as_raw_nonzero())).ok()?;
        status.contains("Uid:\t65534").then_some(())
    });
    kill_process(guardian_of(&first), Signal::KILL).unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(lab.holders_of("k"), 3, "held, and extended");
    kill_process(other.0, Signal::KILL).unwrap();
    let output = first.end();
    assert_eq!(output.status.code(), Some(70), "{}", stderr(&output));
    assert!(
        events(&output).iter().any(|event| event["event"] == "stubborn"),
        "{}",
        stderr(&output)
    );
    assert_eq!(lab.holders_of("k"), 0);

    // If the lock is lost, nothing is to be gained by waiting, and nothing is released.
    fs::remove_file(lab.path("up")).unwrap();
    let first = start("900ms");
    let other = escaped(&lab, "up");
    for node in &lab.nodes[..2] {
        node.command(&["DEL", "k"]).unwrap();
    }
    let output = first.end();
    lost_because(&output, "key_gone");
    assert!(!events(&output).iter().any(|event| event["event"] == "released"));
    assert_eq!(kill_process(other.0, Signal::KILL), Ok(()), "it lives on");
}
