//! The twelve workers, each a thread with a client of its own.
//!
//! A worker takes the lock, changes a number in a file that has no other protection, releases the lock, and reports
//! the times.

use std::fs::{self, OpenOptions};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use quorlock::blocking::{Client, Guard};
use quorlock::{AcquireError, ClientBuilder, LockOptions};
use tokio::sync::mpsc::UnboundedSender;

use super::stage::Event;
use super::{KEY, WAIT};
use crate::guardian::clock::boot_ns;
use crate::output::nanos;

pub(super) const WORKERS: usize = 12;

/// The longest time between reading and writing the file, in milliseconds.
const WORK_MS: u64 = 10;

/// The longest pause between two locks, in milliseconds.
const REST_MS: u64 = 4;

/// A report of a worker. Times are nanoseconds of the boot clock.
pub(super) enum Report {
    Held(Hold),
    /// The end of a call that did not get the lock.
    Refused {
        at_ns: u64,
    },
    Failed(String),
    /// The last report: the worker has ended.
    Done,
}

#[derive(Default)]
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

/// Starts a worker. It works until `stop` is set, or until no receiver of its reports is left.
pub(super) fn start(
    number: usize,
    counter: &Path,
    nodes: ClientBuilder,
    stop: &Arc<AtomicBool>,
    events: &UnboundedSender<Event>,
) -> io::Result<()> {
    let (counter, stop, events) = (counter.to_owned(), stop.clone(), events.clone());
    let report = move |report| events.send(Event::Report(report)).is_ok();
    let work = move || {
        let worked = || -> Result<(), String> {
            let worker = Worker::new(number, counter, nodes)?;
            while !stop.load(Ordering::Relaxed) && report(worker.acquire_once()?) {
                sleep_up_to(REST_MS);
            }
            Ok(())
        };
        report(worked().map_or_else(Report::Failed, |()| Report::Done));
    };
    thread::Builder::new().spawn(work).map(drop)
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
        let owner = format!("worker {}", self.number);
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
