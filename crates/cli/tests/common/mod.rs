//! Helpers for the tests of the command line: real servers, and `quorlock` as a user calls it.

#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod hostile;
pub(crate) mod leases;

use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use quorlock_servers::{Nodes, Reply, Server, ServerBinary, ServerOptions, find_or_skip};
use rustix::process::{Pid, Signal, kill_process, test_kill_process_group};
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

/// A step that takes longer than this counts as hanging, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Real servers, and a folder for the files that commands write.
pub(crate) struct Testbed {
    pub(crate) nodes: Nodes,
    pub(crate) folder: tempfile::TempDir,
    /// The restart guard of every call. The default is `off`, because under the guard new servers do not vote at first.
    pub(crate) guard: &'static str,
    /// The configuration file of every call, in `folder`; `None`: no file.
    pub(crate) config: Option<&'static str>,
}

pub(crate) fn test_name() -> String {
    thread::current().name().unwrap_or("a test").to_owned()
}

/// A server program. `None`: this machine has none, and the test is reported as skipped.
pub(crate) fn server() -> Option<ServerBinary> {
    find_or_skip(&test_name())
}

/// Reports that this machine or this version of the server cannot run the test.
pub(crate) fn not_for(why: &str) {
    let binary = server().expect("the test has started servers");
    quorlock_servers::not_for(&binary, &test_name(), why);
}

impl Testbed {
    /// Five servers. `None`: this machine has no server program, and the test is reported as skipped.
    pub(crate) fn new() -> Option<Self> {
        Self::sized(5)
    }

    pub(crate) fn sized(count: usize) -> Option<Self> {
        Self::with(count, ServerOptions::default())
    }

    pub(crate) fn with(count: usize, options: ServerOptions) -> Option<Self> {
        let nodes = Nodes::start(&server()?, count, options);
        Some(Self::of(nodes.expect("servers start")))
    }

    pub(crate) fn of(nodes: Nodes) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self { nodes, folder, guard: "off", config: None }
    }

    /// `quorlock` with the nodes in its environment.
    pub(crate) fn quorlock(&self, args: &[&str]) -> Command {
        let mut command = quorlock(args);
        command.env("QUORLOCK_NODES", self.named(0..self.nodes.len()));
        command.env("QUORLOCK_RESTART_GUARD", self.guard).current_dir(self.folder.path());
        command.envs(self.config.map(|file| ("QUORLOCK_CONFIG", file)));
        command
    }

    /// The value of `QUORLOCK_NODES` for some of the nodes.
    pub(crate) fn named(&self, places: Range<usize>) -> String {
        let names = ["a", "b", "c", "d", "e"].iter().zip(self.nodes.urls());
        let nodes = names.map(|(name, url)| format!("{name}={url}"));
        nodes.skip(places.start).take(places.len()).collect::<Vec<_>>().join(",")
    }

    pub(crate) fn output(&self, args: &[&str]) -> Output {
        self.quorlock(args).output().expect("quorlock starts")
    }

    pub(crate) fn start(&self, args: &[&str]) -> Running {
        Running::start(&mut self.quorlock(args))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Waits until a command has written a line to this file. Returns the file's content.
    pub(crate) fn await_file(&self, name: &str) -> String {
        let path = self.path(name);
        let written =
            |path: &Path| std::fs::read_to_string(path).ok().filter(|text| text.ends_with('\n'));
        eventually(&format!("{name} is written"), || written(&path))
    }

    /// Sends a command to some of the servers.
    pub(crate) fn on(&self, places: Range<usize>, words: &[&str]) {
        self.nodes[places].iter().for_each(|node| drop(command(node, words)));
    }

    pub(crate) fn on_all(&self, words: &[&str]) {
        self.on(0..self.nodes.len(), words);
    }

    pub(crate) fn holders_of(&self, key: &str) -> usize {
        let has_key = |server: &&Server| {
            server.command(&["EXISTS", key]).is_ok_and(|reply| reply == Reply::Int(1))
        };
        self.nodes.iter().filter(has_key).count()
    }
}

/// Sends a command that must succeed.
pub(crate) fn command(server: &Server, words: &[&str]) -> Reply {
    let reply = server.command(words).expect("the server answers");
    assert!(!matches!(reply, Reply::Error(_)), "{words:?}: {reply:?}");
    reply
}

/// The number of calls of a command since the server started.
pub(crate) fn calls(server: &Server, of: &str) -> u64 {
    let line = info(server, "commandstats", &format!("cmdstat_{of}:calls="));
    let calls = line.as_deref().and_then(|line| line.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

/// The rest of the `INFO` line that starts with `beginning`. `None`: `INFO` has no such line.
pub(crate) fn info(server: &Server, section: &str, beginning: &str) -> Option<String> {
    let Reply::Bulk(Some(info)) = command(server, &["INFO", section]) else {
        panic!("INFO answers with a text")
    };
    let info = String::from_utf8(info).expect("INFO answers with text");
    info.lines().find_map(|line| line.strip_prefix(beginning).map(|rest| rest.trim().to_owned()))
}

pub(crate) fn get(server: &Server, key: &str) -> Option<String> {
    match command(server, &["GET", key]) {
        Reply::Bulk(text) => text.map(|text| String::from_utf8(text).expect("text")),
        reply => panic!("{reply:?}"),
    }
}

/// The value that a client stores at a lock's key.
pub(crate) fn value(token: u8, owner: &str) -> String {
    format!("{} {owner}", format!("{token:02x}").repeat(20))
}

/// `quorlock` without the variables of this process whose names begin with `QUORLOCK_`, and without the restart guard.
pub(crate) fn quorlock(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quorlock"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("QUORLOCK_") {
            command.env_remove(name);
        }
    }
    command.env("XDG_CONFIG_HOME", "/no/such/folder");
    // Under the restart guard, new servers do not vote at first, and most tests do not wait until they do.
    command.env("QUORLOCK_RESTART_GUARD", "off");
    command.args(args).stdin(Stdio::null());
    command
}

/// `outer` with the words of `inner` as its last arguments, and with the environment and the folder of `inner`.
pub(crate) fn through(outer: &[&str], inner: &Command) -> Command {
    let mut command = Command::new(outer[0]);
    command.args(&outer[1..]).arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stdin(Stdio::null());
    command.current_dir(inner.get_current_dir().unwrap_or(Path::new("/")));
    command
}

/// Pastes a command line into a shell that finds `quorlock`. `environment` sets the variables of the shell.
pub(crate) fn paste(line: &str, environment: impl FnOnce(&mut Command)) -> Output {
    let program = quorlock(&[]);
    let folder = Path::new(program.get_program()).parent().expect("a folder").display();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = through(&["sh", "-c", line], &program);
    shell.env("PATH", format!("{folder}:{path}"));
    environment(&mut shell);
    shell.output().expect("the shell starts")
}

/// A child process. Dropping it kills it.
pub(crate) struct Running {
    pub(crate) child: Child,
    /// The bytes read so far from standard output and standard error. A stream that is not a pipe stays empty.
    said: [Arc<Mutex<Vec<u8>>>; 2],
    readers: Vec<JoinHandle<()>>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Self::of(child.expect("the program starts"))
    }

    pub(crate) fn of(child: Child) -> Self {
        let mut running = Self { said: Default::default(), readers: Vec::new(), child };
        let stdout = running.child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
        let stderr = running.child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
        for (pipe, said) in [stdout, stderr].into_iter().zip(&running.said) {
            let Some(mut pipe) = pipe else { continue };
            let said = Arc::clone(said);
            running.readers.push(thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(count @ 1..) = pipe.read(&mut bytes) {
                    said.lock().expect("no panic").extend(&bytes[..count]);
                }
            }));
        }
        running
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the process runs");
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("the process is a child").is_none()
    }

    /// Waits for a line that contains this text, on standard output or standard error.
    pub(crate) fn await_line(&self, text: &str) -> String {
        eventually(text, || {
            let said = self.said.iter().map(|said| said.lock().expect("no panic").clone());
            said.into_iter().find_map(|said| {
                let said = String::from_utf8_lossy(&said).into_owned();
                let mut lines = said.split_inclusive('\n').filter(|line| line.ends_with('\n'));
                lines.find(|line| line.contains(text)).map(str::to_owned)
            })
        })
    }

    /// The number of times that the process has printed this text.
    pub(crate) fn count(&self, text: &str) -> usize {
        let said = self.said.iter().map(|said| said.lock().expect("no panic").clone());
        said.map(|said| String::from_utf8_lossy(&said).matches(text).count()).sum()
    }

    pub(crate) fn end(mut self) -> Output {
        eventually("the process ends", || (!self.is_running()).then_some(()));
        let status = self.child.wait().expect("the process has ended");
        self.readers.drain(..).for_each(|reader| reader.join().expect("no panic"));
        let [stdout, stderr] =
            self.said.each_ref().map(|said| said.lock().expect("no panic").clone());
        Output { status, stdout, stderr }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // SIGKILL also ends a process that is stopped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Calls `look` repeatedly until it returns a value.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = boot();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(boot() - start < PATIENCE, "this does not happen: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn await_end_of_group(group: i32) {
    let group = Pid::from_raw(group).expect("a process id");
    eventually("the group is gone", || test_kill_process_group(group).err());
}

pub(crate) fn code(output: &Output, expected: i32) {
    assert_eq!(output.status.code(), Some(expected), "{}{}", stdout(output), stderr(output));
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn json_lines(lines: &str) -> Vec<Value> {
    lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

pub(crate) fn boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

pub(crate) fn unix_ms() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}
