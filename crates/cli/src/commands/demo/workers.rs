//! The twelve workers: three in each of four processes. If the nodes are in memory, the workers are threads of this
//! process, because no other process can reach such nodes.
//!
//! A worker takes the lock, changes a number in a file that has no other protection, gives the lock back, and reports
//! the times.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Child, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use quorlock::blocking::{Client, Guard};
use quorlock::{AcquireError, ClientBuilder, LockOptions};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedSender;

use super::nodes::{FiveNodes, NAMES, settings};
use super::stage::Event;
use super::{KEY, WAIT, WORKER};
use crate::guardian::clock::boot_ns;
use crate::guardian::own_program;
use crate::output::nanos;

/// Number of workers of a group.
pub(super) const EACH: usize = 3;

pub(super) const GROUPS: usize = 4;

pub(super) const WORKERS: usize = GROUPS * EACH;

/// The longest time between reading and writing the file, in milliseconds.
const WORK_MS: u64 = 10;

/// The longest pause between two locks, in milliseconds.
const REST_MS: u64 = 4;

/// A report of a group of workers. Times are nanoseconds of the boot clock, which all processes of a machine share.
#[derive(Serialize, Deserialize)]
pub(super) enum Report {
    Held(Hold),
    /// The end of a call that did not get the lock.
    Refused {
        at_ns: u64,
    },
    Failed(String),
    /// The last report: all workers of the group have ended.
    Done,
}

#[derive(Default, Serialize, Deserialize)]
pub(super) struct Hold {
    pub(super) worker: usize,
    pub(super) asked_ns: u64,
    pub(super) acquired_ns: u64,
    /// Beginning of the release, or the end of the validity if that came first.
    pub(super) ended_ns: u64,
    /// The guard's number of votes just before the release.
    pub(super) votes: usize,
    /// Whether the worker wrote the file. It does not if the lock is no longer valid.
    pub(super) wrote: bool,
    /// Whether the lock ended before the write did, because the machine delayed the worker between the check of the
    /// lock and the end of the write. Only a fencing token can stop such a write.
    pub(super) late: bool,
}

/// The workers. Dropping this ends their processes at once.
pub(super) struct Workers {
    processes: Vec<Child>,
    /// The input pipe of each group of workers. Closing it asks the group to end: its last report is [`Report::Done`].
    pub(super) inputs: Vec<OwnedFd>,
}

impl Workers {
    /// Starts the workers. Their reports become events.
    pub(super) fn start(
        nodes: &FiveNodes,
        counter: &Path,
        events: &UnboundedSender<Event>,
    ) -> io::Result<Self> {
        let mut workers = Self { processes: Vec::new(), inputs: Vec::new() };
        for first in (1..=WORKERS).step_by(EACH) {
            let events = events.clone();
            let report = move |report| events.send(Event::Report(report)).is_ok();
            let input = match nodes {
                FiveNodes::Servers(..) => {
                    let mut process = Command::new(own_program()?)
                        .args([WORKER, &first.to_string()])
                        .arg(counter)
                        .args(nodes.urls())
                        // Ctrl-C must reach only the demo, which ends its workers in order.
                        .process_group(0)
                        .stdin(Stdio::piped())
                        .stdout(Stdio::piped())
                        .spawn()?;
                    let pipes = process.stdin.take().zip(process.stdout.take());
                    workers.processes.push(process);
                    let (input, reports) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;
                    thread::spawn(move || forward(reports, report));
                    OwnedFd::from(input)
                }
                FiveNodes::Memory(..) => {
                    let (reader, input) = io::pipe()?;
                    let (counter, nodes) = (counter.to_owned(), nodes.client(0..NAMES.len()));
                    thread::spawn(move || group(first, counter, &nodes, reader, report));
                    OwnedFd::from(input)
                }
            };
            workers.inputs.push(input);
        }
        Ok(workers)
    }
}

/// Forwards the reports of a process. A process that ends without its last report has failed.
fn forward(reports: ChildStdout, report: impl Fn(Report) -> bool) {
    for line in BufReader::new(reports).lines() {
        let parsed = line.and_then(|line| Ok(serde_json::from_str(&line)?));
        let parsed = parsed.unwrap_or_else(|error| Report::Failed(format!("a report: {error}")));
        let is_last = matches!(parsed, Report::Done | Report::Failed(_));
        if !report(parsed) || is_last {
            return;
        }
    }
    let why = "a worker process ended before its time: what it did is not known";
    report(Report::Failed(why.to_owned()));
}

impl Drop for Workers {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // An error means that the process has already ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Lets a group's workers work until the input closes, or until `report` returns false because no receiver is left.
/// The input also closes if the demo is killed.
pub(super) fn group(
    first: usize,
    counter: PathBuf,
    nodes: &ClientBuilder,
    mut input: impl Read,
    report: impl Fn(Report) -> bool + Clone + Send + 'static,
) {
    let stop = Arc::new(AtomicBool::new(false));
    let start = |number| {
        let (stop, report) = (stop.clone(), report.clone());
        let (counter, nodes) = (counter.clone(), nodes.clone());
        thread::spawn(move || {
            let work = || -> Result<(), String> {
                let worker = Worker::new(number, counter, nodes)?;
                while !stop.load(Ordering::Relaxed) && report(worker.acquire_once()?) {
                    sleep_up_to(REST_MS);
                }
                Ok(())
            };
            work().map_err(|why| report(Report::Failed(why)))
        })
    };
    let threads: Vec<_> = (first..first + EACH).map(start).collect();
    // The demo writes nothing to the input, so this returns when the input closes.
    let _ = io::copy(&mut input, &mut io::sink());
    stop.store(true, Ordering::Relaxed);
    let all_well = threads.into_iter().all(|thread| thread.join().is_ok());
    let panicked = || Report::Failed("a worker panicked".to_owned());
    report(if all_well { Report::Done } else { panicked() });
}

struct Worker {
    number: usize,
    counter: PathBuf,
    client: Client,
}

impl Worker {
    /// Each worker has its own client. Workers with a common client would wait in its queue and not contend on the
    /// nodes.
    fn new(number: usize, counter: PathBuf, nodes: ClientBuilder) -> Result<Self, String> {
        let client = nodes.blocking().build().map_err(|error| error.to_string())?;
        Ok(Self { number, counter, client })
    }

    /// # Errors
    /// A failure other than contention and nodes that are down.
    fn acquire_once(&self) -> Result<Report, String> {
        let asked_ns = boot_ns();
        let owner = format!("w{:02}, pid {}", self.number, process::id());
        let options = LockOptions::new().wait(WAIT).owner(owner);
        match self.client.acquire(KEY).options(options).call() {
            Ok(guard) => {
                let held = self.hold(guard, asked_ns).map(Report::Held);
                held.map_err(|error| format!("{}: {error}", self.counter.display()))
            }
            Err(error @ (AcquireError::Closed { .. } | AcquireError::Invalid(_))) => {
                Err(error.to_string())
            }
            Err(_) => Ok(Report::Refused { at_ns: boot_ns() }),
        }
    }

    /// Adds one to the number in the file without any protection: reads it, sleeps, and writes it. Two workers that do
    /// this at the same time lose an update. Writes only if the lock is valid.
    fn hold(&self, guard: Guard, asked_ns: u64) -> io::Result<Hold> {
        let acquired_ns = boot_ns();
        let valid_until = || match (boot_ns(), guard.remaining()) {
            (_, Duration::ZERO) => 0,
            (now, left) => now.saturating_add(nanos(left)),
        };
        let granted_until = valid_until();
        let text = fs::read_to_string(&self.counter)?;
        // A half-written number means that another worker writes too. The final number then shows the lost update.
        let next = 1 + text.trim().parse::<u64>().unwrap_or(0);
        sleep_up_to(WORK_MS);
        // Extensions may have moved the end of the lock since the grant.
        let valid_until = granted_until.max(valid_until());
        let wrote = guard.is_valid();
        if wrote {
            // The file is not created: if the demo has ended early and removed the file, it must stay removed.
            let mut file = OpenOptions::new().write(true).truncate(true).open(&self.counter)?;
            file.write_all(next.to_string().as_bytes())?;
        }
        let (votes, now) = (guard.votes(), boot_ns());
        let late = wrote && !guard.is_valid();
        let ended_ns = if guard.is_valid() { now } else { now.min(valid_until) };
        // If the release fails, the next worker gets the lock later, and its report shows that.
        let _ = guard.release();
        Ok(Hold { worker: self.number, asked_ns, acquired_ns, ended_ns, votes, wrote, late })
    }
}

/// Sleeps for a random time of at least one millisecond.
fn sleep_up_to(most_ms: u64) {
    // The standard library seeds its hashers at random, which is good enough here.
    let random = RandomState::new().build_hasher().finish();
    thread::sleep(Duration::from_millis(1 + random % most_ms));
}

/// A worker process. Its arguments are the number of its first worker, the file, and the nodes.
pub(crate) fn process(args: &[OsString]) -> ExitCode {
    let run = || {
        let [first, counter, urls @ ..] = args else { return None };
        let first = first.to_str()?.parse().ok()?;
        let urls = urls.iter().map(|url| url.to_str()).collect::<Option<Vec<&str>>>()?;
        group(first, counter.into(), &settings().nodes(urls), io::stdin(), print);
        Some(ExitCode::SUCCESS)
    };
    run().unwrap_or(ExitCode::FAILURE)
}

fn print(report: Report) -> bool {
    let line = serde_json::to_string(&report);
    line.is_ok_and(|line| writeln!(io::stdout().lock(), "{line}").is_ok())
}
