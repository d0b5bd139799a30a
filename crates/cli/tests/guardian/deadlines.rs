//! The ways in which a command ends, and the deadlines by which the guardian ends it.

use std::path::PathBuf;

use crate::run::Run;

pub(crate) fn a_command_does_not_start_after_its_deadline() {
    let mut run = Run::with(&["--term", "0", "--kill", "5000"], &["sh", "-c", "echo ran"]);
    assert_eq!(run.code(), 79);
    assert!(run.event("error").words.concat().contains("timewasup"));
    assert_eq!(run.output(), "");
    run.nobody_is_left();
}

pub(crate) fn a_command_that_obeys_sigterm_is_not_killed() {
    let script = "trap 'echo cleaned; exit 0' TERM; echo up; while :; do sleep 0.01; done";
    let mut run = Run::with(&["--term", "1500", "--kill", "20000"], &["sh", "-c", script]);
    assert_eq!(run.code(), 79);
    assert_eq!(run.output(), "up\ncleaned\n");
    let killed = run.event("killed");
    assert_eq!(killed.words[0], "term");
    let (term_at, kill_at) = run.deadlines();
    assert!((term_at..kill_at).contains(&killed.at), "between both deadlines");
    run.nobody_is_left();
}

pub(crate) fn a_stopped_command_ends_at_the_deadline() {
    let script =
        "trap 'echo woken; exit' TERM; echo up; kill -STOP $$; while :; do sleep 0.01; done";
    // The keeper runs first without a shell, and then as a job of a shell without a terminal. The keeper must not stop
    // together with its command, because that shell could not continue the keeper.
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
