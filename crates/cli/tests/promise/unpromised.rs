//! Not promised.

use std::fs;
use std::time::Duration;

use quorlock_servers::{find_or_skip, not_for};
use rustix::process::{Signal, kill_process};

use crate::common::{Running, eventually, stderr};
use crate::{
    IN_ANOTHER_GROUP, TTL, escaped, events, first, guardian_of, lost_because, second, testbed,
    times,
};

/// Nobody is left who could do anything; the first who goes on does it at once.
#[test]
fn guardian_and_keeper_are_stopped() {
    let Some(testbed) = testbed("guardian_and_keeper_are_stopped") else { return };
    let (first, second) = (first(&testbed, TTL, IN_ANOTHER_GROUP), second(&testbed));
    let guardian = guardian_of(&first);
    kill_process(guardian, Signal::STOP).unwrap();
    first.signal(Signal::STOP);
    assert_eq!(second.end().status.code(), Some(0), "the lock is another's all the same");
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

/// The kernel kills the command's own process, and nothing else.
#[test]
fn guardian_and_keeper_are_killed() {
    let Some(testbed) = testbed("guardian_and_keeper_are_killed") else { return };
    let command = "echo $$ > leader; sh writer & echo $! > orphan; wait";
    let first = first(&testbed, TTL, command);
    let guardian = guardian_of(&first);
    let (leader, orphan) = (escaped(&testbed, "leader"), escaped(&testbed, "orphan"));
    first.signal(Signal::STOP);
    kill_process(guardian, Signal::KILL).unwrap();
    first.signal(Signal::KILL);
    eventually("the command's own process is dead", || kill_process(leader.0, Signal::CONT).err());
    assert_eq!(kill_process(orphan.0, Signal::KILL), Ok(()), "nobody has ended this one");
}

/// That is how a daemon says that it is to stay.
#[test]
fn a_descendant_has_left_the_session() {
    let Some(testbed) = testbed("a_descendant_has_left_the_session") else { return };
    let daemon = "setsid sh -c 'echo $$ > daemon; exec sh writer' & exec sleep 60";
    let first = first(&testbed, TTL, daemon);
    let daemon = escaped(&testbed, "daemon");
    testbed.nodes[0].pause().unwrap();
    testbed.nodes[1].pause().unwrap();
    lost_because(&first.end(), "expired");
    assert_eq!(kill_process(daemon.0, Signal::KILL), Ok(()), "it lives on");
}

/// Who may not be killed is waited for, while the lock is held; the lock is not given back before.
#[test]
fn a_descendant_belongs_to_another_user() {
    let name = "a_descendant_belongs_to_another_user";
    let Some(testbed) = testbed(name) else { return };
    // Not with our standard error, whose end is waited for.
    let unkillable = "setpriv --reuid 65534 --clear-groups sleep 60 >&- 2>&- & echo $! > up; wait";
    let start = |ttl| {
        // Root without the right to kill others.
        let run =
            testbed.quorlock(&["run", "k", "--ttl", ttl, "--json", "--", "sh", "-c", unkillable]);
        let mut command = std::process::Command::new("setpriv");
        command.args(["--bounding-set", "-kill", "--inh-caps", "-kill"]);
        command.arg(run.get_program()).args(run.get_args());
        command.env_clear().envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("PATH", std::env::var_os("PATH").unwrap()).current_dir(testbed.folder.path());
        Running::start(&mut command)
    };
    if !rustix::process::geteuid().is_root() {
        return not_for(&find_or_skip(name).unwrap(), name, "only root has another user at hand");
    }
    let first = start("900ms");
    let other = escaped(&testbed, "up");
    eventually("it is another user's", || {
        let status =
            fs::read_to_string(format!("/proc/{}/status", other.0.as_raw_nonzero())).ok()?;
        status.contains("Uid:\t65534").then_some(())
    });
    kill_process(guardian_of(&first), Signal::KILL).unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(testbed.holders_of("k"), 3, "held, and extended");
    kill_process(other.0, Signal::KILL).unwrap();
    let output = first.end();
    assert_eq!(output.status.code(), Some(70), "{}", stderr(&output));
    assert!(
        events(&output).iter().any(|event| event["event"] == "stubborn"),
        "{}",
        stderr(&output)
    );
    assert_eq!(testbed.holders_of("k"), 0);

    // If the lock is lost, nothing is to be gained by waiting, and nothing is released.
    fs::remove_file(testbed.path("up")).unwrap();
    let first = start("900ms");
    let other = escaped(&testbed, "up");
    for node in &testbed.nodes[..2] {
        node.command(&["DEL", "k"]).unwrap();
    }
    let output = first.end();
    lost_because(&output, "key_gone");
    assert!(!events(&output).iter().any(|event| event["event"] == "released"));
    assert_eq!(kill_process(other.0, Signal::KILL), Ok(()), "it lives on");
}
