//! `cargo xtask try`: builds the command `quorlock`, starts three servers, and runs the commands that a newcomer would
//! type, each printed before it runs.

#![expect(clippy::disallowed_methods, reason = "the duration of a step is not part of a lock")]

use std::env;
use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader};
use std::path::{self, Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use quorlock_servers::{Listen, Nodes, Server, ServerBinary, ServerOptions, spawn};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag::register_usize;
use signal_hook::low_level::emulate_default_handler;

use crate::special_build::{UNOPTIMIZED, executables, named};
use crate::{Outcome, cargo};

/// Timeout of a step. The longest one waits until a lock with a ttl of 3 s has ended.
const STEP_LIMIT: Duration = Duration::from_secs(30);

/// The time between two checks for a signal.
const SIGNAL_CHECK: Duration = Duration::from_millis(50);

/// Build arguments. The small test `proxy` is built too, because cargo then chooses the same features of dependencies
/// as for all tests, so `cargo xtask test` does not compile the dependencies again.
const PROGRAM: [&str; 5] = ["--workspace", "--bin", "quorlock", "--test", "proxy"];

/// Runs every step. With `--program PATH`, that `quorlock` is tried, and nothing is built. On Ctrl-C the servers are
/// stopped and their files removed, before the signal ends this process.
pub(crate) fn run(workspace: &Path, server: &ServerBinary, args: &[OsString]) -> Outcome {
    let program = match args {
        [] => build(workspace)?,
        [option, program] if option == "--program" => {
            path::absolute(program).map_err(|error| format!("--program: {error}"))?
        }
        _ => return Err("the only option is --program PATH".to_owned()),
    };
    let signal = Arc::new(AtomicUsize::new(0));
    let caught = [SIGHUP, SIGINT, SIGTERM].into_iter().try_for_each(|number| {
        let value = usize::try_from(number).map_err(io::Error::other)?;
        register_usize(number, signal.clone(), value).map(drop)
    });
    caught.map_err(|error| format!("cannot catch signals: {error}"))?;
    let played = Session::start(server, &program, signal.clone()).and_then(|mut session| {
        play(&mut session)?;
        Ok(true)
    });
    if let Ok(number @ 1..) = i32::try_from(signal.load(Ordering::Relaxed)) {
        emulate_default_handler(number).map_err(|error| error.to_string())?;
    }
    if played.is_ok() {
        println!("\n{}", end(server));
    }
    played
}

fn build(workspace: &Path) -> Result<PathBuf, String> {
    println!("$ cargo build --bin quorlock");
    let mut cargo = cargo(workspace);
    cargo.arg("build").args(UNOPTIMIZED).args(PROGRAM);
    let (succeeded, programs) = executables(&mut cargo)?;
    if succeeded { named(&programs, "quorlock") } else { Err("it could not be built".to_owned()) }
}

/// The story. Each step names a text that its output must contain.
fn play(session: &mut Session) -> Result<(), String> {
    note("New servers vote half a minute after their first use. This takes them into use at once.");
    session.run("quorlock init --fresh --yes", "a quorum needs 2")?;
    note("A command runs under the lock \"hi\".");
    session.run("quorlock run hi -- echo hi", "hi")?;
    note("A longer command runs in the background. `status` asks each server who holds the lock.");
    let job = "quorlock run hi --ttl 3s -- sh -c 'echo at work; sleep 60'";
    let holder = session.start_in_background(job, "at work")?;
    session.run("quorlock status hi", "HELD by")?;
    note("Another client does not get the lock.");
    session.run("quorlock run hi --wait 0s -- echo never; echo exit code $?", "exit code 75")?;
    note("A server dies. The other two are a majority, so the lock stays held.");
    let pid = session.nodes.get(1).and_then(Server::pid).ok_or("server b does not run")?;
    session.run(&format!("kill -9 {pid}"), "2 of 3 nodes confirm")?;
    session.run("quorlock status hi", "on 2 of 3 nodes")?;
    note(
        "The holder dies too, without a release. Its lock ends by itself, at most 3 s later (--ttl).",
    );
    session.run(&format!("kill -9 {holder}"), "")?;
    session.run("quorlock run hi -- echo hi again; echo exit code $?", "exit code 0")?;
    note("A store that refuses smaller fencing tokens is safe from a holder that wakes up late.");
    let fenced = "quorlock run bill --fenced -- sh -c 'echo fencing token $QUORLOCK_FENCE'";
    session.run(fenced, "fencing token ")?;
    session.run(fenced, "fencing token ")
}

fn note(text: &str) {
    println!("\n# {text}");
}

/// The lines with which to go on: those of the quick start, with the server that was tried.
fn end(server: &ServerBinary) -> String {
    let readme = include_str!("../../README.md");
    let quick_start = readme.split("\n```sh\n").nth(1).and_then(|rest| rest.split("```").next());
    let quick_start = quick_start.unwrap_or_default();
    let quick_start = quick_start.replace("redis-server", &server.path.display().to_string());
    format!(
        "All steps went well. The servers are stopped, and their files are removed.\n\
         To start for yourself (README.md explains it, docs/first-lock.md goes on from there):\n\n\
         cargo install --locked --path crates/cli\n{quick_start}\n\
         To run every test: cargo xtask test"
    )
}

/// The servers, the running commands, and their output. Dropping it ends all of them.
struct Session {
    jobs: Vec<Child>,
    nodes: Nodes,
    path: OsString,
    sender: Sender<Event>,
    events: Receiver<Event>,
    /// The number of the signal that has arrived, or 0.
    signal: Arc<AtomicUsize>,
}

enum Event {
    Line(String),
    /// The job with this index has ended, and its descendants too.
    Ended(usize),
}

impl Session {
    fn start(
        server: &ServerBinary,
        program: &Path,
        signal: Arc<AtomicUsize>,
    ) -> Result<Self, String> {
        let folder = program.parent().unwrap_or(Path::new("/"));
        println!("$ export PATH={}:$PATH\n", folder.display());
        let others = env::var_os("PATH").unwrap_or_default();
        let path =
            env::join_paths([folder.to_owned()].into_iter().chain(env::split_paths(&others)))
                .map_err(|error| format!("{}: {error}", folder.display()))?;
        let options = ServerOptions { listen: Listen::Tcp, ..ServerOptions::default() };
        let nodes = Nodes::start(server, 3, options).map_err(|error| error.to_string())?;
        println!("# Three servers that do not know each other ({server}).");
        for node in &nodes {
            let (path, address) = (server.path.display(), node.address());
            let port = address.rsplit(':').next().unwrap_or_default();
            println!("$ {path} --port {port} --bind 127.0.0.1 --save '' &");
        }
        let (sender, events) = mpsc::channel();
        let session = Self { jobs: Vec::new(), nodes, path, sender, events, signal };
        println!("$ export QUORLOCK_NODES={}", session.list());
        Ok(session)
    }

    /// The value of `QUORLOCK_NODES`.
    fn list(&self) -> String {
        let names = ["a", "b", "c"].iter().zip(self.nodes.urls());
        names.map(|(name, url)| format!("{name}={url}")).collect::<Vec<_>>().join(",")
    }

    /// Runs a command of the shell to its end, and until some output contains `wanted`.
    fn run(&mut self, line: &str, wanted: &str) -> Result<(), String> {
        println!("$ {line}");
        let job = self.spawn(line).map_err(|error| format!("{line}: {error}"))?;
        self.print_until(line, Some(job), wanted)
    }

    /// Starts a program and returns its process id, as soon as some output contains `wanted`.
    fn start_in_background(&mut self, line: &str, wanted: &str) -> Result<u32, String> {
        println!("$ {line} &");
        let job =
            self.spawn(&format!("exec {line}")).map_err(|error| format!("{line}: {error}"))?;
        self.print_until(line, None, wanted)?;
        Ok(self.jobs[job].id())
    }

    /// The output comes through a pipe, so a program behaves the same with and without a terminal.
    fn spawn(&mut self, line: &str) -> io::Result<usize> {
        let (output, writer) = io::pipe()?;
        let errors = writer.try_clone()?;
        let own = env::vars_os().map(|(name, _)| name);
        let own = own.filter(|name| name.to_string_lossy().starts_with("QUORLOCK_"));
        self.jobs.push(spawn(Path::new("sh"), |command| {
            own.for_each(|name| {
                command.env_remove(name);
            });
            command.env("PATH", &self.path).env("QUORLOCK_NODES", self.list());
            // The file of the user's own deployment must not count here.
            command.env("QUORLOCK_CONFIG", "/dev/null");
            command.args(["-c", line]).stdin(Stdio::null()).stdout(writer).stderr(errors);
        })?);
        let job = self.jobs.len() - 1;
        let sender = self.sender.clone();
        thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                let _ = sender.send(Event::Line(String::from_utf8_lossy(&line).into_owned()));
            }
            let _ = sender.send(Event::Ended(job));
        });
        Ok(job)
    }

    fn print_until(&self, line: &str, job: Option<usize>, wanted: &str) -> Result<(), String> {
        let began = Instant::now();
        let (mut ended, mut seen) = (job.is_none(), wanted.is_empty());
        while !(ended && seen) {
            match self.events.recv_timeout(SIGNAL_CHECK) {
                Ok(Event::Line(text)) => {
                    println!("{text}");
                    seen |= text.contains(wanted);
                }
                Ok(Event::Ended(number)) => ended |= job == Some(number),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err("all output ended".to_owned()),
            }
            if self.signal.load(Ordering::Relaxed) != 0 {
                return Err("stopped by a signal".to_owned());
            }
            if began.elapsed() > STEP_LIMIT {
                let limit = STEP_LIMIT.as_secs();
                return Err(format!("{line}: no end with {wanted:?} within {limit} s"));
            }
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for job in &mut self.jobs {
            // A job that has ended cannot be killed, and `drop` cannot return an error.
            let _ = job.kill();
            let _ = job.wait();
        }
    }
}
