//! The servers and programs of one library's tests.

use std::path::PathBuf;
use std::process::Command;

use quorlock_servers::{Listen, Nodes, Server, ServerBinary, ServerOptions};

use super::libraries::Library;
use super::process::Process;

/// The ttl in ms, unless a test says otherwise.
pub(crate) const TTL_MS: u64 = 10_000;

/// The two programs of this workspace.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) quorlock: PathBuf,
    pub(crate) bench: PathBuf,
}

pub(crate) struct Site<'a> {
    pub(crate) library: &'a Library,
    programs: &'a Programs,
    pub(crate) nodes: Nodes,
    /// `worker` starts a worker of the library, and `ours` a worker of quorlock.
    worker: Command,
    ours: Command,
}

/// A worker process of a lock library.
pub(crate) struct Worker {
    pub(crate) process: Process,
    /// The version that the library reports.
    pub(crate) version: String,
}

impl<'a> Site<'a> {
    /// Starts empty servers, and runs `quorlock init --fresh` on them, so that all votes count at once.
    ///
    /// # Errors
    /// A message for the user.
    pub(crate) fn start(
        library: &'a Library,
        programs: &'a Programs,
        binary: &ServerBinary,
        mut worker: Command,
    ) -> Result<Self, String> {
        let count = if library.is_single { 1 } else { 5 };
        let options = ServerOptions { listen: Listen::Tcp, ..ServerOptions::default() };
        let nodes = Nodes::start(binary, count, options).map_err(|error| error.to_string())?;
        let addresses = nodes.iter().map(Server::address).collect::<Vec<_>>().join(",");
        let mut ours = Command::new(&programs.bench);
        ours.args(["interop-worker", "quorlock", &addresses]);
        worker.arg(addresses);
        let site = Self { library, programs, nodes, worker, ours };
        let mut init = Process::start(&site.quorlock(&["init", "--fresh", "--yes"]))?;
        if init.finish()?.success() { Ok(site) } else { Err(init.errors()) }
    }

    /// quorlock's name of the lock that the library calls `name`.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.library.prefix)
    }

    /// A call of the program `quorlock`, with options that name all nodes.
    pub(crate) fn quorlock(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.programs.quorlock);
        command.arg(args[0]).args([
            "--config",
            "/dev/null",
            "--node",
            &self.nodes.urls().join(","),
        ]);
        command.args(&args[1..]);
        command
    }

    pub(crate) fn worker(&self) -> Result<Worker, String> {
        Worker::start(&self.worker)
    }

    /// A process that uses the library quorlock.
    pub(crate) fn quorlock_worker(&self) -> Result<Worker, String> {
        Worker::start(&self.ours)
    }
}

impl Worker {
    fn start(command: &Command) -> Result<Self, String> {
        let mut process = Process::start(command)?;
        let line = process.line()?;
        let version = line.strip_prefix("ready ").ok_or_else(|| line.clone())?.to_owned();
        Ok(Self { process, version })
    }

    /// Asks the library once for the lock. Returns whether the library has it.
    ///
    /// # Errors
    /// The library's error, other than a refusal.
    pub(crate) fn acquire(&mut self, name: &str, ttl_ms: u64) -> Result<bool, String> {
        self.process.send(&format!("acquire {name} {ttl_ms}"))?;
        match self.process.line()?.as_str() {
            "held" => Ok(true),
            "refused" => Ok(false),
            other => Err(other.to_owned()),
        }
    }

    /// # Errors
    /// The library's error.
    pub(crate) fn release(&mut self, name: &str) -> Result<(), String> {
        self.process.send(&format!("release {name}"))?;
        match self.process.line()?.as_str() {
            "released" => Ok(()),
            other => Err(other.to_owned()),
        }
    }
}
