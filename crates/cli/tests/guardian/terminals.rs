//! Commands on a terminal.

use std::fs;
use std::io::Write as _;

use rustix::process::Signal;

use crate::src::guardian::procfs;
use crate::tty::Tty;
use crate::{ENDED, LONG, SHORT, gate, kill};

pub(crate) fn a_command_reads_from_the_terminal() {
    let mut tty = Tty::new(&["sh", "-c", "read x; echo got:$x"], LONG, "KEEPER");
    tty.run.event("started");
    tty.types("hello\n");
    tty.shows("got:hello");
    assert_eq!(tty.run.logged_code(), 0);
    assert!(!tty.run.log().contains("stopped"), "the command had the terminal from the start");
}

/// The first output of a command. A temporary folder, whose name is also on the screen, cannot contain this text.
const UP: &str = "is-up";

pub(crate) fn control_c_reaches_the_command_once() {
    let script =
        "trap 'echo int' INT; trap 'exit 9' QUIT; echo is-up; while :; do sleep 0.01; done";
    let mut tty = Tty::new(&["sh", "-c", script], LONG, "KEEPER");
    tty.shows(UP);
    tty.types("\x03");
    tty.shows("int");
    tty.types("\x1c");
    assert_eq!(tty.run.logged_code(), 9);
    assert_eq!(tty.screen().matches("int\n").count(), 1);
    assert!(!tty.run.log().contains("signal "), "the keeper received no signal");
    let mut tty = Tty::new(&["sleep", "60"], LONG, "KEEPER");
    tty.run.process_tree_of(1);
    tty.types("\x03");
    assert_eq!(tty.run.logged_code(), 128 + 2);
}

pub(crate) fn the_terminal_comes_back_after_a_kill() {
    let mut tty = Tty::new(
        &["sh", "-c", "trap '' TERM; sleep 60; true"],
        SHORT,
        "KEEPER; read y; echo back:$y",
    );
    assert_eq!(tty.run.logged_code(), 79);
    tty.types("home\n");
    tty.shows("back:home");
}

pub(crate) fn the_terminal_comes_back_after_the_guardians_death() {
    let mut tty = Tty::new(&["sh", "-c", "sleep 60; true"], LONG, "KEEPER; read y; echo back:$y");
    tty.run.process_tree_of(2);
    kill(tty.run.guardian(), Signal::KILL);
    assert_eq!(tty.run.logged_code(), 70);
    tty.types("home\n");
    tty.shows("back:home");
}

pub(crate) fn the_terminals_modes_come_back_after_a_kill() {
    let script = "trap '' TERM; stty -echo; echo is-up; sleep 60; true";
    let tty = Tty::new(&["sh", "-c", script], SHORT, "KEEPER; stty -a");
    assert_eq!(tty.run.logged_code(), 79);
    tty.shows(" echo ");
}

pub(crate) fn control_z_without_a_shell_is_undone() {
    let script = "echo is-up; while read x; do echo got:$x; done";
    let mut tty = Tty::new(&["sh", "-c", script], LONG, "exec KEEPER");
    tty.shows(UP);
    tty.types("\x1a");
    tty.run.event("continued");
    tty.types("more\n");
    tty.shows("got:more");
    tty.types("\x04");
    assert_eq!(tty.run.logged_code(), 0);
}

pub(crate) fn control_z_and_fg() {
    let script = "echo is-up; while read x; do echo got:$x; done; exit 8";
    let mut tty = Tty::interactive(&["sh", "-c", script], LONG, "KEEPER");
    for round in 1..=2 {
        tty.run.event("started");
        tty.types("\x1a");
        tty.shows_times("Stopped", round);
        tty.types("fg\n");
        tty.run.events("continued", round);
        tty.types(&format!("line{round}\n"));
        tty.shows(&format!("got:line{round}"));
    }
    tty.types("\x04");
    assert_eq!(tty.run.logged_code(), 8);
    tty.types("echo status:$?\n");
    tty.shows("status:8");
}

pub(crate) fn after_control_z_and_fg_control_c_reaches_the_command() {
    let mut tty = Tty::interactive(&["sleep", "60"], LONG, "KEEPER");
    tty.run.process_tree_of(1);
    tty.types("\x1a");
    tty.shows("Stopped");
    tty.types("fg\n");
    tty.run.event("continued");
    tty.types("\x03");
    assert_eq!(tty.run.logged_code(), 128 + 2);
    assert!(
        !tty.run.log().contains("signal 2"),
        "the command had the terminal before it continued"
    );
}

pub(crate) fn control_z_and_bg() {
    let script = "echo is-up; read _ < \"$GO\"; read x; echo got:$x";
    let (_directory, mut gate, set) = gate();
    let options = [LONG, &["--set", &set]].concat();
    let mut tty = Tty::interactive(&["sh", "-c", script], &options, "KEEPER");
    tty.shows(UP);
    tty.types("\x1a");
    tty.shows("Stopped");
    tty.types("bg\n");
    tty.run.event("continued");
    // The shell is in the foreground, so the kernel stops the command when the command reads from the terminal.
    tty.types("echo shell:$((1+1))\n");
    tty.shows("shell:2");
    gate.write_all(b"\n").expect("a pipe");
    assert_eq!(tty.run.events("stopped", 2)[1].words[0], "21");
    tty.prompts_until("Stopped", 2);
    tty.types("fg\n");
    tty.run.events("continued", 2);
    tty.types("now\n");
    tty.shows("got:now");
    assert_eq!(tty.run.logged_code(), 0);
}

pub(crate) fn the_deadline_applies_to_a_command_stopped_by_control_z() {
    let options = ["--term", "3000", "--kill", "3300"];
    let script = "trap '' TERM; echo is-up; sleep 60; true";
    let mut tty = Tty::interactive(&["sh", "-c", script], &options, "KEEPER");
    tty.shows(UP);
    tty.run.process_tree_of(2);
    tty.types("\x1a");
    tty.shows("Stopped");
    let keeper = procfs::process(tty.run.guardian()).expect("it lives").parent;
    let gone_at = tty.run.when_nobody_but_the_keeper_is_left();
    let (_, kill_at) = tty.run.deadlines();
    assert!((kill_at..kill_at + ENDED).contains(&gone_at));
    // The shell keeps the terminal: the keeper's group is not in the foreground.
    let stat = fs::read_to_string(format!("/proc/{keeper}/stat")).expect("it is stopped");
    let fields: Vec<_> = stat.rsplit(')').next().expect("fields").split(' ').collect();
    let (group, foreground) = (fields[3], fields[6]);
    assert_ne!(group, foreground);
    tty.types("fg\n");
    assert_eq!(tty.run.logged_code(), 79);
    tty.types("echo status:$?\n");
    tty.shows("status:79");
}

pub(crate) fn a_command_in_the_background_stops_when_it_reads() {
    let mut tty = Tty::interactive(&["sh", "-c", "read x; echo got:$x"], LONG, "KEEPER &");
    assert_eq!(tty.run.event("stopped").words[0], "21");
    tty.prompts_until("Stopped", 1);
    tty.types("fg\n");
    tty.run.event("continued");
    tty.types("late\n");
    tty.shows("got:late");
    assert_eq!(tty.run.logged_code(), 0);
}

pub(crate) fn in_a_pipeline_the_command_gets_the_terminal_when_it_asks() {
    let script = "read x < /dev/tty; echo got:$x";
    let mut tty = Tty::interactive(&["sh", "-c", script], LONG, "KEEPER | cat");
    tty.run.event("started");
    tty.types("please\n");
    tty.shows("got:please");
    assert_eq!(tty.run.logged_code(), 0);
    assert!(!tty.run.log().contains("continued"), "the stop was between kernel and guardian");
    tty.types("echo alive:$((1+1))\n");
    tty.shows("alive:2");
}

pub(crate) fn control_z_in_a_pipeline_stops_the_command() {
    let script = "echo is-up; read _ < \"$GO\"; echo done";
    let (_directory, mut gate, set) = gate();
    let options = [LONG, &["--set", &set]].concat();
    let mut tty = Tty::interactive(&["sh", "-c", script], &options, "KEEPER | cat");
    tty.shows(UP);
    tty.types("\x1a");
    tty.run.event("stopped");
    tty.shows("Stopped");
    gate.write_all(b"\n").expect("a pipe");
    tty.types("fg\n");
    tty.shows("\ndone");
    assert_eq!(tty.run.logged_code(), 0);
}
