//! The guardian (the parent of the command) or the keeper (the holder of the lock) is stopped or killed.

use std::io::Write as _;
use std::time::Duration;
use std::{fs, thread};

use rustix::process::{Pid, Signal};

use crate::run::Run;
use crate::src::guardian::clock::boot_ns;
use crate::src::guardian::procfs;
use crate::{ENDED, LONG, LOOK_AGAIN, MS, gate, kill, name, shell, wait_for};

pub(crate) fn the_command_ends_before_its_deadline_if_the_keeper_is_killed() {
    let mut run = Run::with(LONG, &["sh", "-c", "sleep 60; true"]);
    run.process_tree_of(2);
    run.signal(Signal::KILL);
    let killed_at = boot_ns();
    let gone_at = run.when_nobody_is_left();
    assert!(gone_at < killed_at + ENDED, "{}", gone_at - killed_at);
}

/// The guardian is killed after it has sent SIGTERM at the deadline. The deadline must be reported as the cause.
pub(crate) fn a_guardian_reports_the_deadline_before_it_dies() {
    let script = "trap 'echo term' TERM; echo up; while :; do sleep 0.01; done";
    let mut run = Run::with(&["--term", "3000", "--kill", "60000"], &["sh", "-c", script]);
    run.wait_output("up");
    let guardian = run.guardian();
    run.wait_output("term");
    kill(guardian, Signal::KILL);
    assert_eq!(run.code(), 79, "{}", run.log());
    assert_eq!(run.event("killed").words[0], "kill");
    run.nobody_is_left();
}

pub(crate) fn the_command_ends_if_guardian_and_keeper_are_killed() {
    let mut run = Run::with(LONG, &["sleep", "60"]);
    run.process_tree_of(1);
    // The keeper is stopped, so only the kernel can kill the command.
    run.signal(Signal::STOP);
    kill(run.guardian(), Signal::KILL);
    run.when_nobody_but_the_keeper_is_left();
    run.signal(Signal::KILL);
    run.when_nobody_is_left();
}

/// A shell may start processes before it executes `quorlock`. These do not belong to the command.
pub(crate) fn the_keeper_does_not_kill_earlier_children_of_its_process() {
    let mut run = Run::new();
    let mine = run.path("mine");
    run.wrapper = shell(&format!("sleep 60 & echo $! > {}; exec \"$@\"", mine.display()));
    run.start(LONG, &["sh", "-c", "sleep 60; true"]);
    run.process_tree_of(2);
    kill(run.guardian(), Signal::KILL);
    assert_eq!(run.code(), 70);
    run.nobody_is_left();
    let mine: i32 = fs::read_to_string(mine).expect("a file").trim().parse().expect("a number");
    assert!(procfs::process(mine).is_some_and(|process| process.alive));
}

/// The command forks while the keeper kills it, so a single round of SIGKILL is not enough. The keeper sends further
/// rounds before it gives up on the stopped guardian.
pub(crate) fn processes_that_fork_do_not_outlive_a_stopped_guardian() {
    // The command runs first with one process group for all children, then with one group for each child.
    let forks = "while :; do sleep 60 & sleep 0.01; done";
    for shell in ["sh -c", "bash -m -c"] {
        let one = format!("timeout 60 {shell} '{forks}' 2>/dev/null &");
        let script = format!("for _ in 1 2 3 4 5 6 7 8; do {one} done; wait; true");
        // On a busy machine the keeper may give up on the guardian too early, so the test has three tries.
        let is_in_time = (0..3).any(|_| is_done_before_a_stopped_guardian_is(&script));
        assert!(is_in_time, "{shell}");
    }
}

fn is_done_before_a_stopped_guardian_is(script: &str) -> bool {
    let soon = ["--term", "700", "--kill", "1000"];
    let mut run = Run::with(&soon, &["sh", "-c", script]);
    run.event("started");
    let guardian = run.guardian();
    let guards = || run.marked().iter().any(|process| process.pid == guardian);
    kill(guardian, Signal::STOP);
    wait_for("the command's end", || run.marked().len() <= usize::from(guards()));
    // If the guardian still lives here, the keeper alone has killed all processes. Otherwise the keeper had given up on
    // the guardian, and the last processes died with the guardian.
    thread::sleep(50 * LOOK_AGAIN);
    let is_done = guards();
    assert_eq!(run.code(), 79, "{}", run.log());
    run.nobody_is_left();
    is_done
}

/// For a while the guardian can open no file, so it cannot see processes. It must not report the command's end then.
pub(crate) fn a_guardian_without_proc_does_not_report_the_end() {
    use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
    let stays = "trap \"\" TERM; while :; do sleep 0.01; done";
    let script = format!("timeout 60 sh -c '{stays}' & read _ < \"$GO\"; exit 0");
    let (_directory, mut gate, set) = gate();
    let mut run = Run::with(&[LONG, &["--set", &set]].concat(), &["sh", "-c", &script]);
    run.event("started");
    let is_there = |name_of: &str| run.marked().iter().any(|process| name(process.pid) == name_of);
    wait_for("what stays", || is_there("timeout"));
    let guardian = Pid::from_raw(run.guardian());
    let few = Rlimit { current: Some(3), ..getrlimit(Resource::Nofile) };
    let before = prlimit(guardian, Resource::Nofile, few).expect("our child's child");
    gate.write_all(b"\n").expect("a pipe");
    // The guardian sends SIGTERM right after the end of the command's own process, and SIGKILL a second later.
    thread::sleep(Duration::from_millis(1500));
    assert!(is_there("timeout"), "the guardian does not know its group");
    assert!(!run.log().contains("exited"), "{}", run.log());
    prlimit(guardian, Resource::Nofile, before).expect("our child's child");
    assert_eq!(run.code(), 0);
    run.nobody_is_left();
}

pub(crate) fn a_guardian_that_continues_late_applies_the_newest_deadlines() {
    // A busy machine may extend too late. The keeper then rightly kills the command, so the test has three tries.
    assert!((0..3).any(|_| a_late_guardian_applies_the_newest_deadlines()));
}

/// While the guardian is stopped, the lock is extended and another process kills the command. The lock is still valid
/// then, so the exit code must be that of the command's signal, not that of a lost lock.
fn a_late_guardian_applies_the_newest_deadlines() -> bool {
    let lease = ["--term", "3000", "--kill", "3300"];
    let renewed = ["--renew-every", "100", "--renew-times", "600"];
    let mut run = Run::with(&[&lease[..], &renewed].concat(), &["sh", "-c", "sleep 60; true"]);
    let process_tree = run.process_tree_of(2);
    let guardian = run.guardian();
    kill(guardian, Signal::STOP);
    let (_, kill_at) = run.deadlines();
    wait_for("the last deadline that the guardian knows", || boot_ns() > kill_at + 200 * MS);
    kill(process_tree[0].pid, Signal::KILL);
    kill(guardian, Signal::CONT);
    let code = run.code();
    run.nobody_is_left();
    if code == 79 {
        return false;
    }
    assert_eq!(code, 128 + 9, "{}", run.log());
    assert_eq!(run.event("signaled").words[0], "9");
    true
}

/// The keeper kills the command while the guardian is stopped. A later extension of the lock must not hide this.
pub(crate) fn a_kill_by_the_keeper_is_reported_although_the_lock_was_extended() {
    // These times are long enough for a busy machine to start the command and to stop the guardian.
    let lease = ["--term", "8000", "--kill", "8000"];
    let renewed = ["--renew-every", "9000", "--renew-times", "1"];
    let mut run = Run::with(&[&lease[..], &renewed].concat(), &["sh", "-c", "sleep 60; true"]);
    let process_tree = run.process_tree_of(2);
    let guardian = run.guardian();
    kill(guardian, Signal::STOP);
    let is_dead = |pid| !procfs::process(pid).is_some_and(|process| process.alive);
    wait_for("the command's death", || process_tree.iter().all(|process| is_dead(process.pid)));
    run.events("deadlines", 2);
    kill(guardian, Signal::CONT);
    assert_eq!(run.code(), 79);
    assert_eq!(run.event("killed").words[0], "kill");
    run.nobody_is_left();
}

pub(crate) fn the_guardian_has_a_name_of_its_own_and_ignores_signals() {
    let script = "echo up; read _ < \"$GO\"; exit 5";
    let (_directory, mut gate, set) = gate();
    let mut run = Run::with(&[LONG, &["--set", &set]].concat(), &["sh", "-c", script]);
    run.wait_output("up");
    let guardian = run.guardian();
    let name = |file| fs::read(format!("/proc/{guardian}/{file}")).expect("it is there");
    assert_eq!(name("comm"), b"lock-guardian\n");
    assert!(name("cmdline").starts_with(b"lock-guardian\0"));
    for signal in [
        Signal::TERM,
        Signal::INT,
        Signal::HUP,
        Signal::QUIT,
        Signal::TSTP,
        Signal::TTIN,
        Signal::USR1,
        Signal::PIPE,
        Signal::ALARM,
    ] {
        kill(guardian, signal);
    }
    gate.write_all(b"\n").expect("a pipe");
    assert_eq!(run.code(), 5);
}

pub(crate) fn a_lost_lock_ends_the_command_before_its_deadline() {
    let mut run = Run::with(&[LONG, &["--terminate", "60000"]].concat(), &["sleep", "60"]);
    assert_eq!(run.code(), 79);
    assert_eq!(run.event("killed").words[0], "term");
    let mut run = Run::new();
    // The wrapper sets the trap, because SIGTERM could arrive before the command sets one.
    run.wrapper = shell("trap '' TERM; exec \"$@\"");
    run.start(&[LONG, &["--terminate", "300"]].concat(), &["sh", "-c", "sleep 60; true"]);
    let started_at = run.event("started").at;
    assert_eq!(run.code(), 79);
    let gone_after = run.event("killed").at - started_at;
    assert!((300 * MS..ENDED).contains(&gone_after), "{gone_after}");
    run.nobody_is_left();
}

pub(crate) fn a_dropped_child_ends() {
    let run = Run::with(&[LONG, &["--drop", "yes"]].concat(), &["sleep", "60"]);
    run.event("dropped");
    run.when_nobody_but_the_keeper_is_left();
}
