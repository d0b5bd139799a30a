//! Deaths of quorlock's own.

use std::io::Write as _;
use std::time::Duration;
use std::{fs, thread};

use rustix::process::{Pid, Signal};

use crate::run::Run;
use crate::src::guardian::clock::boot_ns;
use crate::src::guardian::procfs;
use crate::{ENDED, LONG, LOOK_AGAIN, MS, gate, kill, name, shell, wait_for};

pub(crate) fn a_stopped_keeper_is_no_reprieve() {
    let options =
        ["--term", "2000", "--kill", "2300", "--renew-every", "20", "--renew-times", "999"];
    let script = "trap '' TERM; echo up; sleep 60; true";
    let mut run = Run::with(&options, &["sh", "-c", script]);
    run.process_tree_of(2);
    run.signal(Signal::STOP);
    let gone_at = run.when_nobody_but_the_keeper_is_left();
    let (_, kill_at) = run.deadlines();
    // The last that were written may not have been sent.
    assert!((kill_at - 100 * MS..kill_at + ENDED).contains(&gone_at));
    run.signal(Signal::CONT);
    assert_eq!(run.code(), 79);
    assert_eq!(run.event("killed").words[0], "kill");
}

pub(crate) fn a_killed_keeper_ends_the_command_at_once() {
    let mut run = Run::with(LONG, &["sh", "-c", "sleep 60; true"]);
    run.process_tree_of(2);
    run.signal(Signal::KILL);
    let killed_at = boot_ns();
    let gone_at = run.when_nobody_is_left();
    assert!(gone_at < killed_at + ENDED, "{}", gone_at - killed_at);
}

pub(crate) fn a_killed_keepers_stubborn_command_lives_to_the_deadline_only() {
    let options = ["--term", "2000", "--kill", "2300"];
    let mut run = Run::with(&options, &["sh", "-c", "trap '' TERM; echo up; sleep 60; true"]);
    run.process_tree_of(2);
    run.signal(Signal::KILL);
    let gone_at = run.when_nobody_is_left();
    let (_, kill_at) = run.deadlines();
    assert!((kill_at..kill_at + ENDED).contains(&gone_at));
}

pub(crate) fn a_killed_guardian_takes_the_command_along() {
    let mut run =
        Run::with(LONG, &["sh", "-c", "trap '' TERM; echo up; sleep 60 & sleep 60; true"]);
    run.process_tree_of(3);
    kill(run.guardian(), Signal::KILL);
    let killed_at = boot_ns();
    let gone_at = run.when_nobody_is_left();
    assert!(gone_at < killed_at + ENDED);
    assert_eq!(run.code(), 70);
    assert!(run.event("unguarded").at < killed_at + ENDED);
}

/// The lock's time is up, and the command knows: that the guardian dies as well is not why the command ended.
pub(crate) fn a_guardian_that_dies_at_the_deadline_has_told_why() {
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

pub(crate) fn a_killed_guardian_takes_the_command_along_without_a_keeper() {
    let mut run = Run::with(LONG, &["sleep", "60"]);
    run.process_tree_of(1);
    // Stopped, it can do as little as a dead one.
    run.signal(Signal::STOP);
    kill(run.guardian(), Signal::KILL);
    run.when_nobody_but_the_keeper_is_left();
    run.signal(Signal::KILL);
    run.when_nobody_is_left();
}

pub(crate) fn a_killed_guardian_takes_descendants_in_other_groups_along() {
    let in_groups = "trap '' TERM; timeout 60 sh -c 'sleep 60; true'; sleep 60";
    let mut run = Run::with(LONG, &["sh", "-c", in_groups]);
    let is_there = |processes: Vec<procfs::Process>| {
        processes.iter().filter(|process| name(process.pid) == "sleep").count() == 1
    };
    run.event("started");
    wait_for("the command's family", || is_there(run.marked()));
    kill(run.guardian(), Signal::KILL);
    run.when_nobody_but_the_keeper_is_left();
    assert_eq!(run.code(), 70);
}

/// What a shell started before it became quorlock is none of the command's.
pub(crate) fn a_take_over_leaves_those_alone_who_were_there_before() {
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

pub(crate) fn a_stopped_guardian_is_replaced_at_the_deadline() {
    for script in ["sleep 60; true", "timeout 60 sleep 60"] {
        is_replaced_at_the_deadline(script);
    }
}

fn is_replaced_at_the_deadline(script: &str) {
    // Long enough that the guardian is stopped before, also on a machine with a lot to do.
    let deadlines = ["--term", "5000", "--kill", "5300"];
    let mut run = Run::with(&deadlines, &["sh", "-c", &format!("{script}; true")]);
    let process_tree = run.process_tree_of(if script.contains("timeout") { 3 } else { 2 });
    kill(run.guardian(), Signal::STOP);
    let is_dead = |pid| !procfs::process(pid).is_some_and(|process| process.alive);
    wait_for("the command's death", || process_tree.iter().all(|process| is_dead(process.pid)));
    let (_, kill_at) = run.deadlines();
    assert!((kill_at..kill_at + ENDED).contains(&boot_ns()));
    assert_eq!(run.code(), 79);
    assert_eq!(run.event("killed").words[0], "kill");
    run.nobody_is_left();
}

/// It forks while it is being killed, so one SIGKILL for all who are seen is not enough: the keeper, in the place
/// of a stopped guardian, sends more, and does not first wait for as long as it has patience.
pub(crate) fn what_forks_in_another_group_does_not_outlive_a_stopped_guardian() {
    // All in one group, which is killed as a whole; and each in one of its own.
    let forks = "while :; do sleep 60 & sleep 0.01; done";
    for shell in ["sh -c", "bash -m -c"] {
        let one = format!("timeout 60 {shell} '{forks}' 2>/dev/null &");
        let script = format!("for _ in 1 2 3 4 5 6 7 8; do {one} done; wait; true");
        // A machine that stands still for longer than the keeper has patience shows nothing.
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
    // Those who were left until then have died with the guardian.
    thread::sleep(50 * LOOK_AGAIN);
    let is_done = guards();
    assert_eq!(run.code(), 79, "{}", run.log());
    run.nobody_is_left();
    is_done
}

/// What cannot be looked at has not ended: the guardian can open no file for a while.
pub(crate) fn who_cannot_look_does_not_say_that_nobody_is_left() {
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
    // It is asked to end a moment after the command's own process has; a second later it is killed.
    thread::sleep(Duration::from_millis(1500));
    assert!(is_there("timeout"), "its group is not known to be");
    assert!(!run.log().contains("exited"), "{}", run.log());
    prlimit(guardian, Resource::Nofile, before).expect("our child's child");
    assert_eq!(run.code(), 0);
    run.nobody_is_left();
}

pub(crate) fn a_guardian_that_wakes_up_late_goes_by_the_newest_deadlines() {
    // On a machine that stands still for longer than the lease, the keeper kills the command with good reason.
    assert!((0..3).any(|_| a_late_guardian_goes_by_the_newest_deadlines()));
}

/// Meanwhile the lock was extended, and then somebody killed the command: that is its own end.
fn a_late_guardian_goes_by_the_newest_deadlines() -> bool {
    let lease = ["--term", "3000", "--kill", "3300"];
    let renewed = ["--renew-every", "100", "--renew-times", "600"];
    let mut run = Run::with(&[&lease[..], &renewed].concat(), &["sh", "-c", "sleep 60; true"]);
    let process_tree = run.process_tree_of(2);
    let guardian = run.guardian();
    kill(guardian, Signal::STOP);
    let (_, kill_at) = run.deadlines();
    wait_for("the last deadline that it knows", || boot_ns() > kill_at + 200 * MS);
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

/// The keeper killed the command while the guardian stood still; an extension came too late for the command.
pub(crate) fn a_kill_in_a_stopped_guardians_place_is_told_although_the_lock_lives_on() {
    // Long enough that the command has started and the guardian is stopped, also on a machine with a lot to do.
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

pub(crate) fn the_guardian_goes_by_another_name_and_hears_no_signal() {
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

pub(crate) fn a_proof_of_loss_ends_the_command_before_its_deadline() {
    let mut run = Run::with(&[LONG, &["--terminate", "60000"]].concat(), &["sleep", "60"]);
    assert_eq!(run.code(), 79);
    assert_eq!(run.event("killed").words[0], "term");
    let mut run = Run::new();
    // Ignored from the start, or the SIGTERM would come before the trap.
    run.wrapper = shell("trap '' TERM; exec \"$@\"");
    run.start(&[LONG, &["--terminate", "300"]].concat(), &["sh", "-c", "sleep 60; true"]);
    let started_at = run.event("started").at;
    assert_eq!(run.code(), 79);
    let gone_after = run.event("killed").at - started_at;
    assert!((300 * MS..ENDED).contains(&gone_after), "{gone_after}");
    run.nobody_is_left();
}

pub(crate) fn a_dropped_child_is_ended() {
    let run = Run::with(&[LONG, &["--drop", "yes"]].concat(), &["sleep", "60"]);
    run.event("dropped");
    run.when_nobody_but_the_keeper_is_left();
}
