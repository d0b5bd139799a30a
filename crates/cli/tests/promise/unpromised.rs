//! The rows of the table in docs/cli.md that promise nothing.

use std::fs;
use std::time::Duration;

use rustix::process::{Signal, kill_process};

use crate::common::{Running, code, eventually, json_lines, not_for, stderr, through};
use crate::{
    IN_ANOTHER_GROUP, TTL, escaped, first, guardian_of, lost_because, second, testbed, times,
};

/// Guardian and keeper, the two processes of `quorlock run`, are both stopped. The first one that continues ends the
/// command.
#[test]
fn guardian_and_keeper_are_stopped() {
    let Some(testbed) = testbed() else { return };
    let (first, second) = (first(&testbed, TTL, IN_ANOTHER_GROUP), second(&testbed));
    let guardian = guardian_of(&first);
    kill_process(guardian, Signal::STOP).unwrap();
    first.signal(Signal::STOP);
    code(&second.end(), 0);
    kill_process(guardian, Signal::CONT).unwrap();
    let written = eventually("the command is dead", || {
        let written = times(&testbed, "first").len();
        std::thread::sleep(Duration::from_millis(100));
        (times(&testbed, "first").len() == written).then_some(written)
    });
    first.signal(Signal::CONT);
    lost_because(&first.end(), "stopped");
    assert_eq!(times(&testbed, "first").len(), written);
}

/// When both processes are dead, the kernel kills the command's own process, but not that process's children.
#[test]
fn guardian_and_keeper_are_killed() {
    let Some(testbed) = testbed() else { return };
    let command = "echo $$ > leader; sh writer & echo $! > orphan; wait";
    let first = first(&testbed, TTL, command);
    let guardian = guardian_of(&first);
    let (leader, orphan) = (escaped(&testbed, "leader"), escaped(&testbed, "orphan"));
    first.signal(Signal::STOP);
    kill_process(guardian, Signal::KILL).unwrap();
    first.signal(Signal::KILL);
    eventually("the command's own process is dead", || kill_process(leader.0, Signal::CONT).err());
    assert_eq!(kill_process(orphan.0, Signal::KILL), Ok(()), "the child lives on");
}

/// A process in another session counts as a daemon, which may outlive the command.
#[test]
fn a_descendant_has_left_the_session() {
    let Some(testbed) = testbed() else { return };
    let daemon = "setsid sh -c 'echo $$ > daemon; exec sh writer' & exec sleep 60";
    let first = first(&testbed, TTL, daemon);
    let daemon = escaped(&testbed, "daemon");
    testbed.nodes[0].pause().unwrap();
    testbed.nodes[1].pause().unwrap();
    lost_because(&first.end(), "expired");
    assert_eq!(kill_process(daemon.0, Signal::KILL), Ok(()), "the process lives on");
}

/// `quorlock` cannot kill a process of another user, so the lock stays held until that process ends.
#[test]
fn a_descendant_belongs_to_another_user() {
    let Some(testbed) = testbed() else { return };
    // The process must not hold the standard error of the test open, because the test reads that to its end.
    let unkillable = "setpriv --reuid 65534 --clear-groups sleep 60 >&- 2>&- & echo $! > up; wait";
    let start = |ttl| {
        // `quorlock` runs as root, but without the capability to kill processes of other users.
        let args = ["run", "k", "--ttl", ttl, "--json", "--", "sh", "-c", unkillable];
        let outer = ["setpriv", "--bounding-set", "-kill", "--inh-caps", "-kill"];
        Running::start(&mut through(&outer, &testbed.quorlock(&args)))
    };
    if !rustix::process::geteuid().is_root() {
        return not_for("only root has another user at hand");
    }
    let first = start("900ms");
    let other = escaped(&testbed, "up");
    eventually("the process belongs to another user", || {
        let status =
            fs::read_to_string(format!("/proc/{}/status", other.0.as_raw_nonzero())).ok()?;
        status.contains("Uid:\t65534").then_some(())
    });
    kill_process(guardian_of(&first), Signal::KILL).unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(testbed.holders_of("k"), 3, "held and extended");
    kill_process(other.0, Signal::KILL).unwrap();
    let output = first.end();
    code(&output, 70);
    let said = stderr(&output);
    assert!(json_lines(&said).iter().any(|event| event["event"] == "stubborn"), "{said}");
    assert_eq!(testbed.holders_of("k"), 0);

    // After a loss, `quorlock` does not wait for the other user's process, and does not release the lock.
    fs::remove_file(testbed.path("up")).unwrap();
    let first = start("900ms");
    let other = escaped(&testbed, "up");
    testbed.on(0..2, &["DEL", "k"]);
    let output = first.end();
    lost_because(&output, "key_gone");
    assert!(!json_lines(&stderr(&output)).iter().any(|event| event["event"] == "released"));
    assert_eq!(kill_process(other.0, Signal::KILL), Ok(()), "the process lives on");
}
