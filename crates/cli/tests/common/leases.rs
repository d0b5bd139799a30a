//! Helpers for the tests of `quorlock acquire`, `extend` and `release`.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

use std::fs;
use std::path::Path;
use std::process::Command;

use quorlock_servers::Reply;
use rustix::process::{Pid, test_kill_process};
use serde_json::Value;

use super::{Testbed, code, eventually, json_lines, stdout, through};

/// Servers, and a configuration file with a node timeout for a busy machine. The keeper of `--hold-by` also reads it.
pub(crate) fn servers(count: usize) -> Option<Testbed> {
    let mut testbed = Testbed::sized(count)?;
    testbed.config = Some("config.toml");
    fs::write(testbed.path("config.toml"), "node-timeout = \"250ms\"\n").unwrap();
    Some(testbed)
}

/// A script that runs `quorlock` by its name, in the folder of the test.
pub(crate) fn script(testbed: &Testbed, shell: &str, text: &str) -> Command {
    let mut command = through(&[shell, "-c", text], &testbed.quorlock(&[]));
    let folder = Path::new(env!("CARGO_BIN_EXE_quorlock")).parent().unwrap();
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", folder.display()));
    // fish writes files into this folder.
    command.env("XDG_CONFIG_HOME", testbed.folder.path());
    command
}

/// Acquires the lock `k` with these options, and returns its lease.
pub(crate) fn acquire(testbed: &Testbed, options: &[&str]) -> String {
    let output = testbed.output(&[&["acquire", "k", "--ttl", "5s"], options].concat());
    code(&output, 0);
    let text = stdout(&output);
    let lease = text.strip_suffix('\n').unwrap();
    assert!(!lease.contains(char::is_whitespace) && lease.is_ascii(), "{lease}");
    lease.to_owned()
}

pub(crate) fn acquire_json(testbed: &Testbed, args: &[&str]) -> Value {
    let output = testbed.output(&[&["acquire"], args, &["--json"]].concat());
    code(&output, 0);
    json_lines(&stdout(&output)).remove(0)
}

pub(crate) fn is_free(testbed: &Testbed, key: &str) -> bool {
    testbed.holders_of(key) == 0
}

pub(crate) fn quorum_holds(testbed: &Testbed, key: &str) -> bool {
    testbed.holders_of(key) >= 3
}

/// Asserts that no node receives a command about a key whose name ends with `k` while `run` runs.
pub(crate) fn nothing_is_sent(testbed: &Testbed, run: impl FnOnce()) {
    let mut monitors: Vec<_> = testbed.nodes.iter().map(|node| node.connect().unwrap()).collect();
    for monitor in &mut monitors {
        assert_eq!(monitor.command(&["MONITOR"]).unwrap(), Reply::Simple("OK".to_owned()));
    }
    run();
    testbed.on_all(&["ECHO", "the end"]);
    for monitor in &mut monitors {
        loop {
            let Reply::Simple(line) = monitor.reply().unwrap() else { panic!("lines") };
            if line.ends_with(r#""ECHO" "the end""#) {
                break;
            }
            assert!(!line.contains(r#"k""#) || line.contains(r#" "CLIENT" "#), "{line}");
        }
    }
}

pub(crate) fn await_free(testbed: &Testbed, key: &str) {
    eventually("the lock is free", || is_free(testbed, key).then_some(()));
}

/// Waits until no process has this number. An unreaped process counts as ended.
pub(crate) fn await_end_of(pid: i32) {
    let is_dead = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let gone = test_kill_process(Pid::from_raw(pid).unwrap()).is_err();
        (gone || stat.contains(") Z ")).then_some(())
    };
    eventually("the process ends", is_dead);
}
