//! `cargo xtask try` as a newcomer runs it: to its end, and stopped by Ctrl-C.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use quorlock_servers::{SERVER_VARIABLE, find_or_skip, skip};
use rustix::process::{Pid, Signal, kill_process};

/// `cargo xtask try` with its temporary files in `folder`. `None`: the test is reported as skipped.
fn start(folder: &Path, test: &str) -> Option<Child> {
    let server = find_or_skip(test)?;
    let xtask = Path::new(env!("CARGO_BIN_EXE_xtask"));
    // A test of the whole workspace builds `quorlock` into the same folder.
    let program = xtask.with_file_name("quorlock");
    if !program.exists() {
        skip(test, "cargo test --workspace builds the program that it needs");
        return None;
    }
    let mut command = Command::new(xtask);
    command.args(["try", "--program"]).arg(program);
    command.env("TMPDIR", folder).env(SERVER_VARIABLE, server.path);
    Some(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap())
}

/// Waits until no process has the folder in its environment, and checks that the folder is empty.
fn assert_nothing_is_left(folder: &Path) {
    let name = folder.as_os_str().as_encoded_bytes();
    let is_used = || {
        fs::read_dir("/proc").unwrap().flatten().any(|process| {
            let environment = fs::read(process.path().join("environ")).unwrap_or_default();
            environment.windows(name.len()).any(|window| window == name)
        })
    };
    for _ in 0..3000 {
        if !is_used() {
            assert_eq!(fs::read_dir(folder).unwrap().count(), 0, "files are left");
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("a process is left after 30 s");
}

#[test]
fn every_step_goes_well_and_nothing_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut tried) = start(folder.path(), "every_step_goes_well") else { return };
    let mut said = String::new();
    tried.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(tried.wait().unwrap().success(), "{said}");
    assert!(!said.contains("\nnever\n"), "a second client got the lock: {said}");
    let tokens = said.lines().filter_map(|line| line.strip_prefix("fencing token "));
    let tokens: Vec<u64> = tokens.map(|token| token.parse().unwrap()).collect();
    assert!(tokens.len() == 2 && tokens[0] < tokens[1], "{said}");
    assert!(said.contains("\ncargo install ") && said.contains("\nfor port in "), "{said}");
    assert_nothing_is_left(folder.path());
}

#[test]
fn ctrl_c_leaves_no_process_and_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut tried) = start(folder.path(), "ctrl_c_leaves_nothing") else { return };
    let mut lines = BufReader::new(tried.stdout.take().unwrap()).lines().map(Result::unwrap);
    let nodes = lines.find(|line| line.contains("QUORLOCK_NODES=")).unwrap();
    assert!(lines.any(|line| line == "at work"));
    kill_process(Pid::from_child(&tried), Signal::INT).unwrap();
    let rest: Vec<String> = lines.collect();
    assert_eq!(tried.wait().unwrap().signal(), Some(Signal::INT.as_raw()), "{rest:?}");
    assert_nothing_is_left(folder.path());
    for address in nodes.split("redis://").skip(1).filter_map(|url| url.split(',').next()) {
        assert!(TcpStream::connect(address).is_err(), "a server is left on {address}");
    }
}
