//! A machine is a set of lanes with a common wall clock. A lane runs one `quorlock run` or script after the other.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread;

use quorlock_servers::spawn;
use quorlock_sim::Random;
use quorlock_sim::time::{MS, SECOND, Time};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::checks::{Run, misfit};
use super::writer::CommandKind;
use super::{KEYS, TTL};
use crate::clock::{nanos, now, wait_for};
use crate::faults::Kind;
use crate::ledger::{Shared, lock};
use crate::totals::{CALLS, GRANTED, LOST};

/// Phases of a round. `CHAOS`: faults are injected. `CALM`: no faults, short commands. `OVER`: no new command starts.
pub(crate) const CHAOS: u8 = 0;
pub(crate) const CALM: u8 = 1;
pub(crate) const OVER: u8 = 2;

/// The longest time for a run, from the wait for the lock to its release, on a busy machine with stopped processes.
const PATIENCE: Time = 60 * SECOND;

/// The longest time for which the run's events are read after its end. If the pipe is still open then, a process that
/// is not part of the run holds it.
const EVENTS: Time = 2 * SECOND;

/// State that the lanes share with the thread that injects faults.
pub(crate) struct Lanes {
    pub(crate) quorlock: PathBuf,
    /// The path of this program. The command of a run is a script that starts this program as the writer.
    pub(crate) writer: PathBuf,
    /// Whether this `quorlock` has the commands `acquire`, `extend` and `release`.
    pub(crate) has_leases: bool,
    pub(crate) home: TempDir,
    /// The nodes as each machine reaches them.
    pub(crate) machines: Vec<String>,
    pub(crate) ledger: Shared,
    pub(crate) phase: AtomicU8,
}

struct Ended {
    /// The exit status of `quorlock run` or of the script; `None` if it did not end in time and had to be killed.
    status: Option<ExitStatus>,
    is_heard: bool,
    errors: String,
}

impl Lanes {
    /// The file into which the holders of a key write.
    pub(crate) fn file(&self, key: usize) -> PathBuf {
        self.home.path().join(KEYS[key])
    }

    /// The file with the offset of a machine's wall clock. Only a special build of `quorlock` reads it.
    pub(crate) fn clock(&self, machine: usize) -> PathBuf {
        self.home.path().join(format!("clock-{machine}"))
    }

    pub(crate) fn lease_file(&self, id: usize) -> PathBuf {
        self.home.path().join(format!("{id}.lease"))
    }

    pub(crate) fn note(&self, what: String) {
        lock(&self.ledger).note(now(), what);
    }

    pub(crate) fn violated(&self, what: String) {
        lock(&self.ledger).violated(now(), what);
    }

    fn is(&self, phase: u8) -> bool {
        self.phase.load(Ordering::Relaxed) == phase
    }

    /// Does the work of one lane until the end of the round.
    pub(crate) fn work(self: &Arc<Self>, machine: usize, seed: u64, lane: usize) {
        let mut random = Random::new(seed, 100 + lane as u64);
        while !self.is(OVER) {
            self.one(machine, &mut random);
            thread::sleep(nanos(random.between(0, 30 * MS)));
        }
    }

    fn one(self: &Arc<Self>, machine: usize, random: &mut Random) {
        let is_chaos = self.is(CHAOS);
        let key = random.index(KEYS.len());
        let kind = match self.has_leases && random.percent(40) {
            true => CommandKind::SCRIPT,
            false => random.pick(&CommandKind::OF_RUN),
        };
        let writes = match is_chaos && random.percent(60) {
            true => random.between(TTL, 2 * TTL),
            false => random.between(50 * MS, 400 * MS),
        };
        let is_stalled = is_chaos && kind != CommandKind::SCRIPT && random.percent(12);
        let fault = is_stalled.then_some(Kind::STALL_READER);
        let run = Run { machine, key, kind, writes, fault, is_stalled, ..Run::default() };
        let id = {
            let mut ledger = lock(&self.ledger);
            ledger.runs.push(run.clone());
            ledger.runs.len() - 1
        };
        let name = format!("run {id} of {} ({})", KEYS[key], kind.name());
        let Ended { status, is_heard, errors } = match self.run(id, &run) {
            Ok(ended) => ended,
            Err(error) => return self.violated(format!("{name} could not be started: {error}")),
        };
        let Some(status) = status else { return self.violated(format!("{name} did not end")) };
        let misfit = {
            let run = &mut lock(&self.ledger).runs[id];
            run.code = status.code();
            run.is_heard = is_heard;
            run.is_keeper_late = errors.contains("the keeper does not start: it does not answer");
            misfit(run)
        };
        self.note(format!("{name}: ended with {status}"));
        if let Some(misfit) = misfit {
            self.violated(format!("{name}: {misfit}; it says {:?}", errors.trim()));
        }
    }

    /// Runs a command to its end. `id` is the index of the run in the ledger.
    fn run(self: &Arc<Self>, id: usize, run: &Run) -> io::Result<Ended> {
        let (events, its_end) = pipe_with(PipeFlags::CLOEXEC)?;
        if run.is_stalled {
            // Fills the pipe with empty lines, which are no events, so that the run blocks when it writes its first event.
            let size = fcntl_setpipe_size(&its_end, 4096)?;
            rustix::io::write(&its_end, &vec![b'\n'; size])?;
        }
        let errors = self.home.path().join(format!("{id}.err"));
        let child = self.start(id, run, its_end, File::create(&errors)?)?;
        let is_over = Arc::new(AtomicBool::new(!run.is_stalled));
        let reader = {
            let (lanes, is_over) = (self.clone(), is_over.clone());
            thread::spawn(move || {
                wait_for(Time::MAX, || is_over.load(Ordering::Relaxed).then_some(()));
                lanes.read(id, events);
            })
        };
        lock(&self.ledger).runs[id].keeper = Some(Pid::from_child(&child));
        let status = wait(child, now() + PATIENCE);
        {
            let run = &mut lock(&self.ledger).runs[id];
            (run.keeper, run.is_held) = (None, false);
        }
        is_over.store(true, Ordering::Relaxed);
        let is_heard = wait_for(now() + EVENTS, || reader.is_finished().then_some(())).is_some();
        let text = fs::read_to_string(&errors).unwrap_or_default();
        fs::remove_file(errors)?;
        Ok(Ended { status, is_heard, errors: text })
    }

    fn start(&self, id: usize, run: &Run, its_end: OwnedFd, errors: File) -> io::Result<Child> {
        let ttl = format!("{}ms", TTL / MS);
        let script = run.kind.script();
        let program = if run.is_script() { Path::new("sh") } else { &*self.quorlock };
        spawn(program, |command| {
            if run.is_script() {
                command.args(["-c", script]).env("QUORLOCK", &self.quorlock);
                command.env("KEY", KEYS[run.key]).env("LEASE_FILE", self.lease_file(id));
            } else {
                command.args(["run", KEYS[run.key], "--ttl", &ttl, "--max-ttl", &ttl]);
                command.args(["--wait", "4s", "--status-fd", "1", "--", "sh", "-c", script]);
            }
            command.arg(&self.writer).arg(self.file(run.key));
            command.args([id.to_string(), (run.writes / MS).to_string()]);
            command.env("QUORLOCK_NODES", &self.machines[run.machine]);
            command.env("QUORLOCK_CLOCK_OFFSET_FILE", self.clock(run.machine));
            command.stdin(Stdio::null()).stdout(its_end).stderr(errors);
        })
    }

    fn read(&self, id: usize, events: OwnedFd) {
        for line in BufReader::new(File::from(events)).lines() {
            let Ok(line) = line else { return };
            let Ok(event) = serde_json::from_str::<Value>(&line) else { continue };
            let Some(name) = event["event"].as_str() else { continue };
            let with = match name {
                // Skips frequent events that no check uses.
                "waiting" | "extended" | "shortened" => continue,
                "not_acquired" => &event["contended"],
                "released" => &event["outcome"],
                "lost" => &event["cause"],
                _ => &Value::Null,
            };
            self.heard(
                id,
                match with {
                    Value::Null => name.to_owned(),
                    Value::String(text) => format!("{name}:{text}"),
                    other => format!("{name}:{other}"),
                },
            );
        }
    }

    fn heard(&self, id: usize, event: String) {
        let at = now();
        let ledger = &mut *lock(&self.ledger);
        let run = &mut ledger.runs[id];
        let is_acquired = event == "acquired";
        run.is_held = is_acquired && run.keeper.is_some();
        if is_acquired {
            run.acquired = Some(at);
            ledger.clients.granted((run.machine, 0), at);
            ledger.totals.count(CALLS, GRANTED, 1);
        }
        if let Some(cause) = event.strip_prefix("lost:") {
            ledger.totals.count(LOST, cause, 1);
        }
        let what = format!("run {id} of {}: {event}", KEYS[run.key]);
        run.events.push(event);
        ledger.note(at, what);
    }
}

fn wait(mut child: Child, deadline: Time) -> Option<ExitStatus> {
    if let Some(Ok(status)) = wait_for(deadline, || child.try_wait().transpose()) {
        return Some(status);
    }
    // The run must not outlive this function.
    let _ = kill_process(Pid::from_child(&child), Signal::KILL);
    let _ = child.wait();
    None
}
