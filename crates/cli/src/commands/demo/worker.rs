//! A worker: takes the lock, changes a number in a file that has no other protection, gives the lock back, and reports
//! the times.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, BufRead as _, Write as _};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use quorlock::blocking::{Client, Guard};
use quorlock::{AcquireError, ClientBuilder, LockOptions};
use serde::{Deserialize, Serialize};

use super::{KEY, WAIT, nodes};
use crate::guardian::clock::boot_ns;

/// Number of workers of a worker process.
pub(super) const EACH: usize = 3;

/// Time between reading and writing the file, in milliseconds.
const WORK_MS: RangeInclusive<u64> = 1..=10;

/// Pause between two locks, in milliseconds.
const REST_MS: RangeInclusive<u64> = 1..=4;

/// The line that asks a worker process to finish its current work and end. If its input closes without this line, the
/// demo has died, and the process ends at once.
pub(super) const STOP: &str = "stop";

/// The result of one call for the lock. All times are nanoseconds of the boot clock, which all processes of a machine
/// share.
#[derive(Serialize, Deserialize)]
pub(super) enum Report {
    Held(Hold),
    Refused(Refusal),
}

#[derive(Serialize, Deserialize)]
pub(super) struct Refusal {
    pub(super) at_ns: u64,
    /// Whether others held the lock during the whole call. If not, too few nodes answered.
    pub(super) contended: bool,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Hold {
    pub(super) worker: usize,
    pub(super) asked_ns: u64,
    pub(super) acquired_ns: u64,
    /// Beginning of the release, or the end of the validity if that came first.
    pub(super) ended_ns: u64,
    /// Number of votes at the end.
    pub(super) votes: usize,
    /// The number that was written; `None` if the lock was no longer valid.
    pub(super) wrote: Option<u64>,
}

pub(super) struct Worker {
    number: usize,
    owner: String,
    counter: PathBuf,
    client: Client,
}

impl Worker {
    /// Each worker has its own client. Workers with a common client would wait in its queue and not contend on the
    /// nodes.
    pub(super) fn new(
        number: usize,
        counter: PathBuf,
        nodes: ClientBuilder,
    ) -> Result<Self, String> {
        let client = nodes.blocking().build().map_err(|error| error.to_string())?;
        let owner = format!("w{number:02}, pid {}", process::id());
        Ok(Self { number, owner, counter, client })
    }

    /// Works until `stop` is set, or until `report` returns false because the receiver is gone.
    ///
    /// # Errors
    /// A failure other than contention and nodes that are down.
    pub(super) fn work(
        &self,
        stop: &AtomicBool,
        report: impl Fn(Report) -> bool,
    ) -> Result<(), String> {
        while !stop.load(Ordering::Relaxed) {
            if !report(self.acquire_once()?) {
                break;
            }
            sleep_ms(REST_MS);
        }
        Ok(())
    }

    fn acquire_once(&self) -> Result<Report, String> {
        let asked_ns = boot_ns();
        let options = LockOptions::new().wait(WAIT).owner(&*self.owner);
        match self.client.acquire(KEY).options(options).call() {
            Ok(guard) => self.hold(guard, asked_ns).map(Report::Held),
            Err(error @ (AcquireError::Closed { .. } | AcquireError::Invalid(_))) => {
                Err(error.to_string())
            }
            Err(error) => {
                let (at_ns, contended) = (boot_ns(), error.is_contended());
                Ok(Report::Refused(Refusal { at_ns, contended }))
            }
        }
    }

    fn hold(&self, guard: Guard, asked_ns: u64) -> Result<Hold, String> {
        let acquired_ns = boot_ns();
        let mut valid_until = valid_until(&guard);
        let wrote = change(&self.counter, || {
            valid_until = valid_until.max(self::valid_until(&guard));
            guard.is_valid()
        })?;
        let votes = guard.votes();
        let now = boot_ns();
        let ended_ns = if guard.is_valid() { now } else { now.min(valid_until) };
        // If the release fails, the next worker gets the lock later, and its report shows that.
        let _ = guard.release();
        Ok(Hold { worker: self.number, asked_ns, acquired_ns, ended_ns, votes, wrote })
    }
}

/// End of the validity if the lock is not extended; 0 if it is not held.
fn valid_until(guard: &Guard) -> u64 {
    let now = boot_ns();
    match u64::try_from(guard.remaining().as_nanos()) {
        Ok(0) => 0,
        Ok(remaining) => now.saturating_add(remaining),
        Err(_) => u64::MAX,
    }
}

/// Adds one to the number in the file without any protection: reads it, sleeps, and writes it. Two workers that do this
/// at the same time lose an update. Writes only if `may_write` returns true.
fn change(counter: &Path, may_write: impl FnOnce() -> bool) -> Result<Option<u64>, String> {
    let failed = |error: io::Error| format!("{}: {error}", counter.display());
    let text = fs::read_to_string(counter).map_err(failed)?;
    // A half-written number means that another worker writes too. The final number then shows the lost update.
    let next = 1 + text.trim().parse::<u64>().unwrap_or(0);
    sleep_ms(WORK_MS);
    if !may_write() {
        return Ok(None);
    }
    // The file is not created: if the demo has ended early and removed the file, it must stay removed.
    let mut file = OpenOptions::new().write(true).truncate(true).open(counter).map_err(failed)?;
    file.write_all(next.to_string().as_bytes()).map_err(failed)?;
    Ok(Some(next))
}

fn sleep_ms(range: RangeInclusive<u64>) {
    // The standard library seeds its hashers at random, which is good enough here.
    let random = RandomState::new().build_hasher().finish();
    let (least, most) = range.into_inner();
    thread::sleep(Duration::from_millis(least + random % (most - least + 1)));
}

/// A worker process. Its arguments are the number of its first worker, the file, and the nodes.
pub(super) fn process(args: &[OsString]) -> ExitCode {
    let workers = match workers(args) {
        Ok(workers) => workers,
        Err(error) => return failed(&error),
    };
    let stop = Arc::new(AtomicBool::new(false));
    let start = |worker: Worker| {
        let stop = stop.clone();
        thread::spawn(move || {
            if let Err(error) = worker.work(&stop, print) {
                // The other workers of this process would fail as well, and the demo notices the end.
                failed(&error);
                process::exit(1);
            }
        })
    };
    let threads: Vec<_> = workers.into_iter().map(start).collect();
    let mut line = String::new();
    if io::stdin().lock().read_line(&mut line).is_err() || line.trim() != STOP {
        return ExitCode::FAILURE;
    }
    stop.store(true, Ordering::Relaxed);
    let all_well = threads.into_iter().all(|thread| thread.join().is_ok());
    if all_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn workers(args: &[OsString]) -> Result<Vec<Worker>, String> {
    let by_hand = || "started by hand; it is a part of quorlock demo".to_owned();
    let [first, counter, urls @ ..] = args else { return Err(by_hand()) };
    let first = first.to_str().and_then(|first| first.parse::<usize>().ok());
    let first = first.ok_or_else(by_hand)?;
    let urls: Option<Vec<&str>> = urls.iter().map(|url| url.to_str()).collect();
    let urls = urls.ok_or_else(by_hand)?;
    let worker = |number| Worker::new(number, counter.into(), nodes::client_of(&urls));
    (first..first + EACH).map(worker).collect()
}

fn print(report: Report) -> bool {
    let line = serde_json::to_string(&report);
    line.is_ok_and(|line| writeln!(io::stdout().lock(), "{line}").is_ok())
}

fn failed(error: &str) -> ExitCode {
    // A closed standard error cannot be reported anywhere.
    let _ = writeln!(io::stderr(), "quorlock demo, a worker: {error}");
    ExitCode::FAILURE
}
