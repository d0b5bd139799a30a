//! The worker processes, from the parent's side: starting, stopping, killing.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use quorlock_servers::spawn;
use quorlock_sim::time::Time;
use rustix::process::{Pid, Signal, kill_process};

use crate::clock::now;
use crate::ledger::Ledger;
use crate::protocol::{ControllerMessage, Job};

pub(crate) const WORKER: &str = "worker";

pub(crate) type Shared = Arc<Mutex<Ledger>>;

/// Locks the ledger, even if another thread panicked while it held the lock.
pub(crate) fn lock(ledger: &Shared) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct Workers {
    ledger: Shared,
    jobs: Vec<Job>,
    processes: Vec<Option<Process>>,
    generations: Vec<u32>,
}

struct Process {
    child: Child,
    orders: Arc<Mutex<ChildStdin>>,
    reader: Option<JoinHandle<()>>,
}

impl Workers {
    pub(crate) fn start(jobs: Vec<Job>, ledger: &Shared) -> Result<Self, String> {
        let count = jobs.len();
        let processes = (0..count).map(|_| None).collect();
        let mut workers =
            Self { ledger: ledger.clone(), jobs, processes, generations: vec![0; count] };
        for place in 0..count {
            workers.launch(place)?;
        }
        Ok(workers)
    }

    fn launch(&mut self, place: usize) -> Result<(), String> {
        let mut job = self.jobs[place].clone();
        job.seed = job.seed.wrapping_add(u64::from(self.generations[place]) << 32);
        let process = Process::start(&job, place, self.generations[place], &self.ledger)?;
        self.processes[place] = Some(process);
        Ok(())
    }

    /// Starts a successor of a killed worker. Does nothing if the worker is running.
    pub(crate) fn start_again(&mut self, place: usize) -> Result<(), String> {
        if self.processes.get(place).is_none_or(Option::is_some) {
            return Ok(());
        }
        self.generations[place] += 1;
        self.launch(place)
    }

    /// Stops a worker (SIGSTOP). Returns the number of locks that it holds.
    pub(crate) fn stop(&mut self, place: usize) -> Result<usize, String> {
        self.signal(place, Signal::STOP)?;
        Ok(lock(&self.ledger).held_in(place, now()))
    }

    pub(crate) fn go_on(&mut self, place: usize) -> Result<(), String> {
        self.signal(place, Signal::CONT)
    }

    fn signal(&mut self, place: usize, signal: Signal) -> Result<(), String> {
        let Some(Some(process)) = self.processes.get_mut(place) else { return Ok(()) };
        if let Ok(Some(status)) = process.child.try_wait() {
            // The worker panicked, and printed the reason.
            self.processes[place] = None;
            let what = format!("process p{place} has ended by itself: {status}");
            lock(&self.ledger).violated(now(), what);
            return Ok(());
        }
        let sent = kill_process(Pid::from_child(&process.child), signal);
        sent.map_err(|error| format!("process p{place}: {error}"))
    }

    /// Kills a worker. Returns the number of locks that it held.
    pub(crate) fn kill(&mut self, place: usize) -> Result<usize, String> {
        let alive_at = now();
        self.signal(place, Signal::KILL)?;
        // Dropping the process waits until the reader thread has read all of the worker's messages.
        drop(self.processes[place].take());
        let mut ledger = lock(&self.ledger);
        let held = ledger.held_in(place, alive_at);
        ledger.killed(place, alive_at);
        Ok(held)
    }

    pub(crate) fn send(&self, message: &ControllerMessage) {
        for process in self.processes.iter().flatten() {
            // Errors are ignored. A worker that misses a message does not end in time, and `ended` reports it.
            let _ = send(&process.orders, message);
        }
    }

    /// Waits until all workers have ended. Returns the workers that did not end in time, or ended with an error.
    pub(crate) fn ended(&mut self, deadline: Time) -> Vec<String> {
        let mut wrong = Vec::new();
        for (place, process) in self.processes.iter_mut().enumerate() {
            let Some(process) = process else { continue };
            let end = loop {
                match process.child.try_wait() {
                    Ok(Some(status)) if status.success() => break None,
                    Ok(Some(status)) => break Some(format!("ended with {status}")),
                    Err(error) => break Some(error.to_string()),
                    Ok(None) if now() >= deadline => break Some("did not end".to_owned()),
                    Ok(None) => thread::sleep(Duration::from_millis(5)),
                }
            };
            wrong.extend(end.map(|end| format!("process p{place} {end}")));
        }
        self.processes.iter_mut().for_each(|process| drop(process.take()));
        wrong
    }
}

impl Process {
    fn start(job: &Job, place: usize, generation: u32, ledger: &Shared) -> Result<Self, String> {
        let failed = |what: &dyn std::fmt::Display| format!("process p{place}: {what}");
        let program = std::env::current_exe().map_err(|error| failed(&error))?;
        let job = serde_json::to_string(job).map_err(|error| failed(&error))?;
        let child = spawn(&program, |command| {
            command.args([WORKER, &job]).stdin(Stdio::piped()).stdout(Stdio::piped());
        });
        let mut child = child.map_err(|error| failed(&error))?;
        let (Some(orders), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed(&"it has no pipes"));
        };
        let orders = Arc::new(Mutex::new(orders));
        let (ledger, its) = (ledger.clone(), orders.clone());
        let reader = thread::spawn(move || read(output, &its, (place, generation), &ledger));
        Ok(Self { child, orders, reader: Some(reader) })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Errors are ignored, because the process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.reader.take().map(JoinHandle::join);
    }
}

fn read(output: ChildStdout, orders: &Mutex<ChildStdin>, id: (usize, u32), ledger: &Shared) {
    for line in BufReader::new(output).lines() {
        // Even a killed worker sends only whole lines (see `say`). The return closes the pipe, which ends the worker.
        let said = line.ok().and_then(|line| serde_json::from_str(&line).ok());
        let Some(said) = said else { return };
        let reply = lock(ledger).said(id.0, id.1, said);
        if let Some(message) = reply {
            let _ = send(orders, &message);
        }
    }
}

fn send(orders: &Mutex<ChildStdin>, message: &ControllerMessage) -> std::io::Result<()> {
    let line = serde_json::to_string(message)? + "\n";
    orders.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes())
}
