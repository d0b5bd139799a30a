//! Version 0.1.0 and this version on the same nodes, with flushes and restarts: there are never two holders, and nodes
//! that one version has taken into use stay in use for the other. `cargo xtask mixed` builds the old version and passes
//! its path in `QUORLOCK_OLD`. Without this variable the tests are reported as not run.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::{code, command, eventually, not_for, server};
use quorlock_servers::{Listen, Nodes, Reply, Server, ServerOptions};

const OLD: &str = "QUORLOCK_OLD";

/// The command of each holder. If another command has the file lock `held`, `flock` fails and the command writes `two`.
/// The file lock of a dead process is released.
const WORK: &str = "flock --nonblock held sleep 0.02 || echo two >> two";

/// The old program, the nodes, and the folder in which the commands run.
struct Mix {
    old: PathBuf,
    nodes: Nodes,
    database: &'static str,
    folder: tempfile::TempDir,
}

impl Mix {
    fn new(database: &'static str) -> Option<Self> {
        let Some(old) = std::env::var_os(OLD) else {
            server()?;
            not_for(
                "QUORLOCK_OLD names no program: cargo xtask mixed builds and runs version 0.1.0",
            );
            return None;
        };
        let binary = server()?;
        let options = ServerOptions { listen: Listen::Tcp, ..ServerOptions::default() };
        let nodes = Nodes::start(&binary, 3, options).expect("three servers start");
        let folder = tempfile::tempdir().expect("a temporary folder");
        Some(Self { old: old.into(), nodes, database, folder })
    }

    fn command(&self, is_old: bool, args: &[&str]) -> Command {
        let mut command = common::quorlock(&[]);
        if is_old {
            command = Command::new(&self.old);
            command.stdin(Stdio::null());
        }
        let names = ["a", "b", "c"].iter().zip(self.nodes.urls());
        let nodes: Vec<String> =
            names.map(|(name, url)| format!("{name}={url}/{}", self.database)).collect();
        command.env("QUORLOCK_NODES", nodes.join(",")).env("QUORLOCK_RESTART_GUARD", "strict");
        command.env("QUORLOCK_MAX_TTL", "1s").env("QUORLOCK_NODE_TIMEOUT", "250ms");
        command.args(args).current_dir(self.folder.path());
        command
    }

    fn run(&self, is_old: bool, wait: &str) -> Output {
        self.command(is_old, &["run", "k", "--wait", wait, "--", "sh", "-c", WORK])
            .output()
            .unwrap()
    }

    /// One version takes the nodes into use. The other version must then get its lock without a wait.
    fn follows(&self, first_is_old: bool) {
        self.nodes.iter().for_each(|node| drop(command(node, &["FLUSHALL"])));
        code(&self.run(first_is_old, "30s"), 0);
        self.all_are_marked();
        code(&self.run(!first_is_old, "0s"), 0);
    }

    /// Repeats calls until all nodes have a marker: an acquire may return before the last node has answered.
    fn all_are_marked(&self) {
        let is_marked = |node: &Server| {
            let script =
                "redis.call('SELECT', ARGV[1]) return redis.call('EXISTS', 'quorlock:node')";
            let reply = node.command(&["EVAL", script, "0", self.database]);
            reply.is_ok_and(|reply| reply == Reply::Int(1))
        };
        eventually("all nodes are marked", || {
            let _ = self.run(false, "5s");
            self.nodes.iter().all(is_marked).then_some(())
        });
    }

    fn two_held(&self) -> bool {
        self.folder.path().join("two").exists()
    }
}

/// Both versions contend for one lock while nodes lose their data.
fn contend(mix: &Mix) {
    let is_over = AtomicBool::new(false);
    let granted = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let worker = |is_old: bool| {
        while !is_over.load(Ordering::Relaxed) {
            if mix.run(is_old, "2s").status.success() {
                granted[usize::from(is_old)].fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    let both_go_on = |after: &str| {
        let before = granted.each_ref().map(|count| count.load(Ordering::Relaxed));
        eventually(&format!("both versions have the lock again after {after}"), || {
            let now = granted.each_ref().map(|count| count.load(Ordering::Relaxed));
            (now[0] > before[0] && now[1] > before[1]).then_some(())
        });
    };
    std::thread::scope(|scope| {
        for is_old in [false, true, false, true] {
            scope.spawn(move || worker(is_old));
        }
        both_go_on("the beginning");
        let nodes = || mix.nodes.iter();
        nodes().for_each(|node| drop(command(node, &["FLUSHALL"])));
        both_go_on("all were flushed");
        nodes().take(1).for_each(|node| drop(command(node, &["FLUSHALL"])));
        nodes().skip(1).take(1).for_each(|node| node.restart().unwrap());
        both_go_on("one was flushed and one restarted");
        // Deletes the registration of the database, a key in database 0. The clients then write the key again.
        nodes().for_each(|node| drop(command(node, &["FLUSHDB"])));
        both_go_on("the first database was flushed");
        nodes().take(2).for_each(|node| node.restart().unwrap());
        both_go_on("two were restarted");
        is_over.store(true, Ordering::Relaxed);
    });
    let [new, old] = granted.map(AtomicUsize::into_inner);
    println!("granted: {new} times to this version, {old} times to the old one");
    assert!(!mix.two_held(), "two held the lock");
}

#[test]
fn both_versions_exclude_each_other_while_nodes_forget() {
    if let Some(mix) = Mix::new("0") {
        contend(&mix);
    }
}

#[test]
fn both_versions_exclude_each_other_in_another_database() {
    if let Some(mix) = Mix::new("3") {
        contend(&mix);
    }
}

#[test]
fn nodes_that_one_version_took_into_use_vote_for_the_other() {
    let Some(mix) = Mix::new("0") else { return };
    mix.follows(true);
    mix.follows(false);
}
