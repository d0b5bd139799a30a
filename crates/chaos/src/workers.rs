//! The worker processes that use the library: starts, stops and kills them, and passes their messages to the ledger.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use quorlock_servers::spawn;
use quorlock_sim::time::{SECOND, Time};
use rustix::process::{Pid, Signal, kill_process};

use crate::clock::{now, wait_for};
use crate::faults::{Act, Change};
use crate::ledger::{Shared, lock};
use crate::nemesis::Nemesis;
use crate::oracles;
use crate::plan::RoundPlan;
use crate::protocol::{CLIENTS, ControllerMessage, Job};
use crate::round::Subject;
use crate::totals::CALLS;

pub(crate) const WORKER: &str = "worker";

/// The longest time until all workers have ended.
const END: Time = 30 * SECOND;

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
    /// Starts a worker for each job. Each client of the first `served` workers must get locks.
    pub(crate) fn start(jobs: Vec<Job>, served: usize, ledger: &Shared) -> Result<Self, String> {
        let count = jobs.len();
        let clients = |process| (0..CLIENTS).map(move |client| (process, client));
        lock(ledger).clients.expected = (0..served).flat_map(clients).collect();
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
    fn start_again(&mut self, place: usize) -> Result<(), String> {
        if self.processes.get(place).is_none_or(Option::is_some) {
            return Ok(());
        }
        self.generations[place] += 1;
        self.launch(place)
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
    fn kill(&mut self, place: usize) -> Result<usize, String> {
        let alive_at = now();
        self.signal(place, Signal::KILL)?;
        // Dropping the process waits until the reader thread has read all of the worker's messages.
        drop(self.processes[place].take());
        let mut ledger = lock(&self.ledger);
        let held = ledger.held_in(place, alive_at);
        ledger.killed(place, alive_at);
        Ok(held)
    }

    fn send(&self, message: &ControllerMessage) {
        for process in self.processes.iter().flatten() {
            // Errors are ignored. A worker that misses a message does not end in time, and `ended` reports it.
            let _ = send(&process.orders, 0, message);
        }
    }

    /// Waits until all workers have ended. Returns the workers that did not end in time, or ended with an error.
    fn ended(&mut self, deadline: Time) -> Vec<String> {
        let mut wrong = Vec::new();
        for (place, process) in self.processes.iter_mut().enumerate() {
            let Some(process) = process else { continue };
            let end = match wait_for(deadline, || process.child.try_wait().transpose()) {
                Some(Ok(status)) if status.success() => continue,
                Some(Ok(status)) => format!("ended with {status}"),
                Some(Err(error)) => error.to_string(),
                None => "did not end".to_owned(),
            };
            wrong.push(format!("process p{place} {end}"));
        }
        self.processes.iter_mut().for_each(|process| drop(process.take()));
        wrong
    }
}

impl Subject for Workers {
    fn strike(&mut self, act: &Act, _due: Time, _nemesis: &Nemesis) -> Result<bool, String> {
        let Act::Client(place, change) = act else { return Ok(false) };
        lock(&self.ledger).note(now(), format!("-- {act}"));
        let (what, held) = match change {
            Change::Start => return self.start_again(*place).map(|()| true),
            Change::Continue => return self.signal(*place, Signal::CONT).map(|()| true),
            Change::Stop => {
                self.signal(*place, Signal::STOP)?;
                let held = lock(&self.ledger).held_in(*place, now());
                ("processes stopped while they held a lock", held)
            }
            Change::Kill => ("processes killed while they held a lock", self.kill(*place)?),
        };
        lock(&self.ledger).totals.count(CALLS, what, u64::from(held > 0));
        Ok(true)
    }

    fn calm(&mut self) -> Result<(), String> {
        for place in 0..self.jobs.len() {
            self.start_again(place)?;
            self.signal(place, Signal::CONT)?;
        }
        self.send(&ControllerMessage::Calm);
        Ok(())
    }

    fn stop(&mut self) -> Result<bool, String> {
        self.send(&ControllerMessage::Stop);
        let unwell = self.ended(now() + END);
        let mut ledger = lock(&self.ledger);
        for what in unwell {
            ledger.violated(now(), what);
        }
        let owed = ledger.clients.owed;
        if owed > 0 {
            let what = format!("{owed} releases were still owed when clients had shut down");
            ledger.violated(now(), what);
        }
        Ok(owed == 0 && ledger.clients.closed >= ledger.clients.expected.len())
    }

    fn judge(&mut self) -> Result<(), String> {
        let alive_at = now();
        // Drops the processes first, so that none of their messages arrives during the evaluation of the ledger.
        self.processes.clear();
        let mut ledger = lock(&self.ledger);
        (0..self.jobs.len()).for_each(|process| ledger.killed(process, alive_at));
        oracles::judge(&mut ledger);
        Ok(())
    }
}

/// The jobs of workers that use the nodes through the proxies of their process.
pub(crate) fn jobs(plan: &RoundPlan, nemesis: &Nemesis) -> Vec<Job> {
    let job = |place| {
        let mut urls = nemesis.urls(place);
        if plan.has_replicas() {
            urls.iter_mut().for_each(|url| url.push_str("?replicas=1"));
        }
        Job::new(plan, place, urls)
    };
    (0..plan.machines()).map(job).collect()
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

fn read(
    output: ChildStdout,
    orders: &Mutex<ChildStdin>,
    (place, generation): (usize, u32),
    ledger: &Shared,
) {
    for line in BufReader::new(output).lines() {
        // Even a killed worker sends only whole lines (see `say`). The return closes the pipe, which ends the worker.
        let said = line.ok().and_then(|line| serde_json::from_str(&line).ok());
        let Some((caller, said)) = said else { return };
        let reply = lock(ledger).said((place, generation, caller), said);
        if let Some(message) = reply {
            let _ = send(orders, caller, &message);
        }
    }
}

fn send(
    orders: &Mutex<ChildStdin>,
    caller: usize,
    message: &ControllerMessage,
) -> std::io::Result<()> {
    let line = serde_json::to_string(&(caller, message))? + "\n";
    orders.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes())
}
