//! A keeper and its command.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child as Process, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::src::guardian::clock::boot_ns;
use crate::src::guardian::procfs;
use crate::{KEEPER, KEEPER_MARK, MARK, kill, name, wait_for};

pub(crate) struct Run {
    pub(crate) directory: TempDir,
    pub(crate) mark: String,
    pub(crate) wrapper: Vec<PathBuf>,
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) pipe_input: bool,
    pub(crate) input: Option<ChildStdin>,
    pub(crate) keeper: Option<Process>,
}

/// A line of the keeper's log: its time by the boot clock, and its words.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) at: u64,
    pub(crate) words: Vec<String>,
}

impl Event {
    pub(crate) fn number(&self, index: usize) -> u64 {
        self.words[index].parse().expect("a number")
    }
}

impl Run {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mark = format!("{}.{number}", std::process::id());
        let run = Self {
            directory: tempfile::tempdir().expect("a directory"),
            wrapper: Vec::new(),
            environment: vec![(KEEPER_MARK.into(), mark.clone())],
            mark,
            pipe_input: false,
            input: None,
            keeper: None,
        };
        File::create(run.path("log")).expect("a log");
        run
    }

    pub(crate) fn with(options: &[&str], command: &[&str]) -> Self {
        let mut run = Self::new();
        run.start(options, command);
        run
    }

    pub(crate) fn start(&mut self, options: &[&str], command: &[&str]) {
        // The keeper has a session of its own, so that a signal to its process group does not reach the test.
        let mut words: Vec<OsString> = vec!["setsid".into()];
        words.extend(self.wrapper.iter().map(Into::into));
        words.extend(self.words(options, command));
        let out = File::create(self.path("out")).expect("a file");
        let mut keeper = Command::new(&words[0])
            .args(&words[1..])
            .envs(self.environment.iter().cloned())
            .stdin(if self.pipe_input { Stdio::piped() } else { Stdio::null() })
            .stdout(out)
            .stderr(File::create(self.path("err")).expect("a file"))
            .spawn()
            .expect("the keeper starts");
        self.input = keeper.stdin.take();
        self.keeper = Some(keeper);
    }

    /// The keeper's command line.
    pub(crate) fn words(&self, options: &[&str], command: &[&str]) -> Vec<OsString> {
        let program = std::env::current_exe().expect("this program");
        let mut words = vec![program.into(), KEEPER.into(), self.path("log").into()];
        words.extend(options.iter().map(Into::into));
        words.extend(["--set".into(), format!("{MARK}={}", self.mark).into(), "--".into()]);
        words.extend(command.iter().map(Into::into));
        words
    }

    /// The output of the same command when it runs without a guardian.
    pub(crate) fn direct(&self, command: &[&str]) -> String {
        let words: Vec<PathBuf> =
            [self.wrapper.clone(), command.iter().map(PathBuf::from).collect()].concat();
        let out = File::create(self.path("direct")).expect("a file");
        let mut direct = Command::new(&words[0])
            .args(&words[1..])
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(File::options().append(true).open(self.path("err")).expect("a file"))
            .spawn()
            .expect("it starts");
        direct.wait().expect("it ends");
        let text = fs::read_to_string(self.path("direct")).expect("a file");
        // The output may contain the path of its own file. The path is replaced by that of the guarded command's file.
        text.replace("/direct", "/out")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn output(&self) -> String {
        fs::read_to_string(self.path("out")).expect("a file")
    }

    pub(crate) fn wait_output(&self, line: &str) {
        wait_for(line, || self.output().lines().any(|found| found == line));
    }

    pub(crate) fn input(&mut self) -> &mut ChildStdin {
        self.input.as_mut().expect("a pipe")
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).expect("a log")
    }

    /// Waits for at least `count` events of a kind.
    pub(crate) fn events(&self, kind: &str, count: usize) -> Vec<Event> {
        let events = || {
            let log = self.log();
            let complete = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            let events = complete.filter_map(|line| {
                let mut words = line.split_whitespace().map(str::to_owned);
                let at = words.next()?.parse().ok()?;
                (words.next()? == kind).then(|| Event { at, words: words.collect() })
            });
            events.collect::<Vec<_>>()
        };
        wait_for(&format!("{kind} in {}", self.path("log").display()), || events().len() >= count);
        events()
    }

    pub(crate) fn event(&self, kind: &str) -> Event {
        self.events(kind, 1).remove(0)
    }

    pub(crate) fn deadlines(&self) -> (u64, u64) {
        let newest = self.events("deadlines", 1).pop().expect("at least one");
        (newest.number(0), newest.number(1))
    }

    pub(crate) fn code(&mut self) -> i32 {
        let keeper = self.keeper.as_mut().expect("it was started");
        let mut status = None;
        wait_for("the keeper's end", || {
            status = keeper.try_wait().expect("our child");
            status.is_some()
        });
        status.expect("just seen").code().expect("an exit code")
    }

    /// The exit code from the keeper's log. It is there even if the keeper is not a child of this process.
    pub(crate) fn logged_code(&self) -> u64 {
        self.event("exit").number(0)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let keeper = self.keeper.as_ref().expect("it was started");
        kill_process(Pid::from_child(keeper), signal).expect("our child");
    }

    /// Every process with the mark of this test, including the guardian.
    pub(crate) fn marked(&self) -> Vec<procfs::Process> {
        self.bearing(MARK)
    }

    pub(crate) fn bearing(&self, name: &str) -> Vec<procfs::Process> {
        let mark = format!("{name}={}", self.mark);
        let processes = procfs::processes().expect("it can be read").expect("a process table");
        let bears_it = |process: &procfs::Process| {
            let environment = fs::read(format!("/proc/{}/environ", process.pid));
            let environment = environment.unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        };
        processes.into_iter().filter(|process| process.alive && bears_it(process)).collect()
    }

    pub(crate) fn guardian(&self) -> i32 {
        let is_guardian = |process: &procfs::Process| name(process.pid) == "lock-guardian";
        self.marked().into_iter().find(is_guardian).expect("a guardian").pid
    }

    /// Waits until the command has `size` processes. The first one is the leader.
    pub(crate) fn process_tree_of(&self, size: usize) -> Vec<procfs::Process> {
        self.event("started");
        let process_tree = || {
            let mut process_tree = self.marked();
            process_tree.retain(|process| !["lock-guardian", "exe"].contains(&&*name(process.pid)));
            // Between fork and exec a child has the name `sh` too. With two such names the tree is not complete.
            let shells = process_tree.iter().filter(|process| name(process.pid) == "sh").count();
            if shells > 1 { Vec::new() } else { process_tree }
        };
        wait_for("the processes of the command", || process_tree().len() == size);
        process_tree()
    }

    pub(crate) fn nobody_is_left(&self) {
        let left: Vec<_> = self.marked().iter().map(|process| name(process.pid)).collect();
        assert!(left.is_empty(), "left over: {left:?}");
    }

    /// Waits until the command and its guardian have ended. Returns the time at which this was seen.
    pub(crate) fn when_nobody_but_the_keeper_is_left(&self) -> u64 {
        wait_for("the command's end", || self.marked().is_empty());
        boot_ns()
    }

    pub(crate) fn when_nobody_is_left(&mut self) -> u64 {
        let gone_at = self.when_nobody_but_the_keeper_is_left();
        let keeper = self.keeper.as_mut().expect("it was started");
        wait_for("the keeper's end", || keeper.try_wait().expect("our child").is_some());
        gone_at
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(keeper) = &mut self.keeper {
            let _ = keeper.kill();
            let _ = keeper.wait();
        }
        // Kills the remaining processes of a failed test.
        for process in [self.bearing(KEEPER_MARK), self.marked()].concat() {
            kill(process.pid, Signal::KILL);
        }
    }
}
