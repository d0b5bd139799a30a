//! What the tests of the command line share: five servers, and the binary as a user would call it.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use quorlock_servers::{Nodes, Reply, ServerOptions, find_or_skip};
use rustix::process::{Pid, Signal, kill_process, test_kill_process_group};
use rustix::time::{ClockId, clock_gettime};

/// Longer than anything here takes unless it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Some servers, mostly five, and a folder for what commands write.
pub(crate) struct Testbed {
    pub(crate) nodes: Nodes,
    pub(crate) folder: tempfile::TempDir,
    /// The restart guard of all its clients: off, for the servers are new.
    pub(crate) guard: &'static str,
    /// A file with further settings, in the folder.
    pub(crate) config: Option<&'static str>,
}

impl Testbed {
    /// `None`: there is no server here, and that has been said.
    pub(crate) fn new(test: &str) -> Option<Self> {
        Self::with(test, ServerOptions::default())
    }

    pub(crate) fn with(test: &str, options: ServerOptions) -> Option<Self> {
        Self::sized(test, 5, options)
    }

    pub(crate) fn sized(test: &str, count: usize, options: ServerOptions) -> Option<Self> {
        let binary = find_or_skip(test)?;
        let nodes = Nodes::start(&binary, count, options).expect("servers start");
        Some(Self::of(nodes))
    }

    pub(crate) fn of(nodes: Nodes) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self { nodes, folder, guard: "off", config: None }
    }

    /// `quorlock` with the nodes in its environment, and nothing else of ours.
    pub(crate) fn quorlock(&self, args: &[&str]) -> Command {
        let mut command = quorlock(args);
        let names = ["a", "b", "c", "d", "e"].iter().zip(self.nodes.urls());
        let nodes: Vec<String> = names.map(|(name, url)| format!("{name}={url}")).collect();
        command.env("QUORLOCK_NODES", nodes.join(",")).current_dir(self.folder.path());
        command.env("QUORLOCK_RESTART_GUARD", self.guard);
        command.envs(self.config.map(|file| ("QUORLOCK_CONFIG", file)));
        command
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Waits until a command has written this file, and returns what is in it.
    pub(crate) fn await_file(&self, name: &str) -> String {
        let path = self.path(name);
        let written =
            |path: &Path| std::fs::read_to_string(path).ok().filter(|text| text.ends_with('\n'));
        eventually(&format!("{name} is written"), || written(&path))
    }

    /// On how many nodes the key exists.
    pub(crate) fn holders_of(&self, key: &str) -> usize {
        let exists = |server: &&quorlock_servers::Server| {
            server.command(&["EXISTS", key]).is_ok_and(|reply| reply == Reply::Int(1))
        };
        self.nodes.iter().filter(exists).count()
    }
}

/// `quorlock` without any of its variables, but for the restart guard, which is off.
pub(crate) fn quorlock(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quorlock"));
    for (name, _) in std::env::vars_os() {
        // In a build with mistakes that can be put back, this one names one of them.
        let names_a_mistake = cfg!(quorlock_mutants) && name == "QUORLOCK_MUTANT";
        if name.to_string_lossy().starts_with("QUORLOCK_") && !names_a_mistake {
            command.env_remove(name);
        }
    }
    command.env("XDG_CONFIG_HOME", "/no/such/folder");
    // The servers are new, and tests do not wait until they vote; those about that say so.
    command.env("QUORLOCK_RESTART_GUARD", "off");
    command.args(args).stdin(Stdio::null());
    command
}

/// A child that is killed if the test ends before it does.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Self(child.expect("quorlock starts"))
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it runs");
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Output {
        eventually("quorlock ends", || self.0.try_wait().expect("a child of ours"));
        let mut output = Output {
            status: self.0.wait().expect("it has ended"),
            stdout: Vec::new(),
            stderr: Vec::new(),
        };
        let read = |from: &mut dyn std::io::Read, to| from.read_to_end(to).expect("a pipe");
        read(self.0.stdout.as_mut().expect("piped"), &mut output.stdout);
        read(self.0.stderr.as_mut().expect("piped"), &mut output.stderr);
        output
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A stopped process dies of SIGKILL as well; one that has ended does not mind.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until `look` sees something.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = boot();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(boot() - start < PATIENCE, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// When the last process of the group was gone, in Unix milliseconds.
pub(crate) fn group_gone_at_ms(group: i32) -> u64 {
    let group = Pid::from_raw(group).expect("a process id");
    eventually("the group is gone", || test_kill_process_group(group).err());
    unix_ms()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

pub(crate) fn unix_ms() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}
