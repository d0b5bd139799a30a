//! Endings and deadlines.

use std::fs;
use std::path::PathBuf;

use crate::run::Run;
use crate::{ENDED, LONG, SHORT};

pub(crate) fn an_exit_code_arrives() {
    for code in [0, 7, 255] {
        let mut run = Run::with(LONG, &["sh", "-c", &format!("exit {code}")]);
        assert_eq!(run.code(), code);
        run.event("exited");
        run.nobody_is_left();
    }
}

pub(crate) fn a_death_by_signal_arrives() {
    let mut run = Run::with(LONG, &["sh", "-c", "kill -USR1 $$"]);
    assert_eq!(run.code(), 128 + 10);
    assert_eq!(run.event("signaled").words[0], "10");
}

pub(crate) fn a_program_that_is_not_there_is_127() {
    for program in ["no-such-program-anywhere", "./no/such/file"] {
        let mut run = Run::with(LONG, &[program]);
        assert_eq!(run.code(), 127);
        assert!(run.event("error").words.concat().contains("commandnotfound"));
        run.nobody_is_left();
    }
}

pub(crate) fn a_program_that_cannot_run_is_126() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("data");
    fs::write(&file, "data").expect("a file");
    for program in [directory.path(), &file] {
        let mut run = Run::with(LONG, &[program.to_str().expect("text")]);
        assert_eq!(run.code(), 126);
        assert!(run.event("error").words.concat().contains("Permission"));
        run.nobody_is_left();
    }
}

pub(crate) fn a_command_that_would_be_late_is_not_started() {
    let mut run = Run::with(&["--term", "0", "--kill", "5000"], &["sh", "-c", "echo ran"]);
    assert_eq!(run.code(), 79);
    assert!(run.event("error").words.concat().contains("timewasup"));
    assert_eq!(run.output(), "");
    run.nobody_is_left();
}

pub(crate) fn a_term_at_the_deadline_is_enough_for_the_obedient() {
    let script = "trap 'echo cleaned; exit 0' TERM; echo up; while :; do sleep 0.01; done";
    let mut run = Run::with(&["--term", "1500", "--kill", "20000"], &["sh", "-c", script]);
    assert_eq!(run.code(), 79);
    assert_eq!(run.output(), "up\ncleaned\n");
    let killed = run.event("killed");
    assert_eq!(killed.words[0], "term");
    let (term_at, kill_at) = run.deadlines();
    assert!((term_at..kill_at).contains(&killed.at), "gone between the two");
    run.nobody_is_left();
}

pub(crate) fn a_family_that_ignores_term_is_gone_at_the_kill_deadline() {
    let script = "trap '' TERM; sleep 60 & sleep 60; true";
    let mut run = Run::with(SHORT, &["sh", "-c", script]);
    run.process_tree_of(3);
    let gone_at = run.when_nobody_is_left();
    let (_, kill_at) = run.deadlines();
    assert!((kill_at..kill_at + ENDED).contains(&gone_at), "{}", gone_at - kill_at);
    assert_eq!(run.code(), 79);
    let killed = run.event("killed");
    assert_eq!(killed.words[0], "kill");
    assert!((kill_at..kill_at + ENDED).contains(&killed.at));
}

pub(crate) fn a_descendant_in_another_group_is_gone_too() {
    // `timeout` makes a group of its own and obeys; what job control does here ignores SIGTERM.
    let obeys = ["sh", "-c", "trap '' TERM; timeout 60 sleep 60; sleep 60"];
    let ignores = ["bash", "-c", "trap '' TERM; set -m; sleep 60 & sleep 60; true"];
    for command in [obeys, ignores] {
        let mut run = Run::with(SHORT, &command);
        let process_tree = run.process_tree_of(3);
        assert_ne!(process_tree[0].group, process_tree[1].group);
        let gone_at = run.when_nobody_is_left();
        let (_, kill_at) = run.deadlines();
        assert!((kill_at..kill_at + ENDED).contains(&gone_at));
        assert_eq!(run.code(), 79);
        assert_eq!(run.event("killed").words[0], "kill");
    }
}

pub(crate) fn extensions_keep_the_command_alive() {
    let lease = ["--term", "2000", "--kill", "2200"];
    let renewed = ["--renew-every", "100", "--renew-times", "40"];
    let mut run = Run::with(&[&lease[..], &renewed].concat(), &["sleep", "3"]);
    assert_eq!(run.code(), 0);
    // And without them the same command does not live so long.
    let mut run = Run::with(&lease, &["sleep", "3"]);
    assert_eq!(run.code(), 79);
}

pub(crate) fn a_stopped_command_is_ended_at_the_deadline() {
    let script =
        "trap 'echo woken; exit' TERM; echo up; kill -STOP $$; while :; do sleep 0.01; done";
    // As a child of nobody in particular, and as the job of a shell without a terminal, which
    // would wait for ever for a quorlock that stopped.
    let job = ["setsid", "-w", "bash", "-c", "set -m; \"$@\"; exit $?", "bash"];
    for wrapper in [&job[..0], &job] {
        let mut run = Run::new();
        run.wrapper = wrapper.iter().map(PathBuf::from).collect();
        run.start(&["--term", "2000", "--kill", "20000"], &["sh", "-c", script]);
        assert_eq!(run.event("stopped").words[0], "19");
        assert_eq!(run.code(), 79);
        assert_eq!(run.output(), "up\nwoken\n");
    }
}
