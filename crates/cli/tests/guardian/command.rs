//! Signals, processes that outlive the command, and the inherited environment.

use std::fs;
use std::io::Write as _;

use nix::sys::signal::SigSet;
use rustix::process::Signal;

use crate::run::Run;
use crate::{ENDED, LONG, MARK, MS, gate, kill, shell, wait_for};

pub(crate) fn a_signal_is_passed_on() {
    let script = "trap 'echo usr1' USR1; trap 'echo hup; exit 4' HUP; echo up; \
        while :; do sleep 0.01; done";
    let mut run = Run::with(LONG, &["sh", "-c", script]);
    run.wait_output("up");
    run.signal(Signal::USR1);
    run.wait_output("usr1");
    run.signal(Signal::HUP);
    assert_eq!(run.code(), 4);
    assert_eq!(run.output(), "up\nusr1\nhup\n");
}

pub(crate) fn the_second_term_kills() {
    let script = "trap 'echo term' TERM; echo up; while :; do sleep 0.01; done";
    let mut run = Run::with(LONG, &["sh", "-c", script]);
    run.wait_output("up");
    run.signal(Signal::TERM);
    run.wait_output("term");
    run.signal(Signal::TERM);
    assert_eq!(run.code(), 128 + 9);
    assert_eq!(run.event("signaled").words[0], "9");
    run.nobody_is_left();
}

pub(crate) fn children_of_an_ended_command_get_sigterm() {
    // One child is in the command's group, and one is in another group. Each reports its SIGTERM.
    let child = "trap 'echo asked; exit' TERM; echo up; while :; do sleep 0.01; done";
    let script =
        format!("set -m; sh -c \"{child}\" & set +m; sh -c \"{child}\" & read _ < $GO; exit 3");
    let (_directory, mut gate, set) = gate();
    let mut run = Run::with(&[LONG, &["--set", &set]].concat(), &["bash", "-c", &script]);
    wait_for("the children", || run.output().matches("up\n").count() == 2);
    gate.write_all(b"\n").expect("a pipe");
    assert_eq!(run.code(), 3);
    assert_eq!(run.output(), "up\nup\nasked\nasked\n");
    run.nobody_is_left();
}

pub(crate) fn children_of_an_ended_command_that_ignore_sigterm_are_killed() {
    let in_the_group = ["sh", "-c", "trap '' TERM; sleep 60 & exit 3"];
    let in_another = ["bash", "-c", "trap '' TERM; set -m; sleep 60 & exit 3"];
    for command in [in_the_group, in_another] {
        let mut run = Run::with(LONG, &command);
        assert_eq!(run.code(), 3);
        // The keeper logs the deadlines before it starts the command, so `took` covers the whole command.
        let began = run.event("deadlines").at;
        let took = run.event("exited").at - began;
        assert!((1_000 * MS..ENDED).contains(&took), "{took}");
        run.nobody_is_left();
    }
}

pub(crate) fn a_daemon_may_outlive_the_command() {
    // The daemon writes its process id after it has left the session.
    let script = "mkfifo \"$PIPE\"; setsid sh -c 'echo $$ > \"$PIPE\"; exec sleep 60' & \
        cat \"$PIPE\"; exit 6";
    let directory = tempfile::tempdir().expect("a directory");
    let set = format!("PIPE={}", directory.path().join("pipe").display());
    let mut run = Run::with(&[LONG, &["--set", &set]].concat(), &["sh", "-c", script]);
    assert_eq!(run.code(), 6);
    let daemon: i32 = run.output().trim().parse().expect("a number");
    let left: Vec<_> = run.marked().iter().map(|process| process.pid).collect();
    assert_eq!(left, [daemon]);
    kill(daemon, Signal::KILL);
    run.when_nobody_is_left();
}

pub(crate) fn the_command_has_the_users_descriptors_and_no_others() {
    let list = ["ls", "-l", "/proc/self/fd"];
    let mut run = Run::new();
    let file = run.path("extra");
    fs::write(&file, "").expect("a file");
    run.wrapper = shell(&format!("exec \"$@\" 7<{}", file.display()));
    run.start(LONG, &list);
    assert_eq!(run.code(), 0);
    // The descriptor that `ls` itself opens is left out.
    let descriptors = |text: &str| {
        let arrows = text.lines().filter(|line| line.contains(" -> ") && !line.contains("/proc/"));
        let targets = arrows.map(|line| line.rsplitn(4, ' ').take(3).map(str::to_owned).collect());
        targets.collect::<Vec<Vec<String>>>()
    };
    let guarded = descriptors(&run.output());
    assert_eq!(guarded, descriptors(&run.direct(&list)));
    assert!(guarded.contains(&vec![file.display().to_string(), "->".into(), "7".into()]));
}

pub(crate) fn the_command_has_the_users_signal_settings() {
    let show = ["grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"];
    for wrapper in ["exec \"$@\"", "trap '' HUP USR1; exec \"$@\"", "trap '' CHLD; exec \"$@\""] {
        let mut run = Run::new();
        run.wrapper = shell(wrapper);
        let mut blocked = SigSet::empty();
        blocked.add(nix::sys::signal::Signal::SIGUSR2);
        blocked.thread_block().expect("a mask");
        run.start(LONG, &show);
        let direct = run.direct(&show);
        blocked.thread_unblock().expect("a mask");
        assert_eq!(run.code(), 0);
        assert_eq!(run.output(), direct, "{wrapper}");
        assert!(direct.contains("SigBlk:\t0000000000000800"), "{direct}");
    }
}

pub(crate) fn the_command_has_the_users_environment_and_the_changes() {
    let mut run = Run::new();
    run.environment.extend([("SECRET".into(), "s".into()), ("KEPT".into(), "k".into())]);
    run.start(&[LONG, &["--set", "KEY=v", "--unset", "SECRET"]].concat(), &["env"]);
    assert_eq!(run.code(), 0);
    let sorted = |text: &str| {
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.retain(|line| !line.starts_with("_="));
        lines.sort();
        lines
    };
    let mut expected = sorted(&run.direct(&["env"]));
    expected.retain(|line| line != "SECRET=s");
    expected.extend(["KEY=v".into(), format!("{MARK}={}", run.mark)]);
    expected.sort();
    assert!(expected.contains(&"KEPT=k".to_owned()));
    assert_eq!(sorted(&run.output()), expected);
}

pub(crate) fn the_command_reads_the_users_input() {
    let mut run = Run::new();
    run.pipe_input = true;
    run.start(LONG, &["cat"]);
    run.input().write_all(b"first\nsecond\n").expect("it reads");
    drop(run.input.take());
    assert_eq!(run.code(), 0);
    assert_eq!(run.output(), "first\nsecond\n");
}
