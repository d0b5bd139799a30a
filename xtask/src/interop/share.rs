//! The shares of grants when quorlock and another library (the two sides) contend for one lock.

#![expect(clippy::disallowed_methods, reason = "the duration of a wait is not part of a lock")]

use std::thread;
use std::time::{Duration, Instant};

use super::process::Process;
use super::site::{Site, TTL_MS, Worker};

const WORKERS: usize = 3;
const HOLD: Duration = Duration::from_millis(5);

/// How quorlock competes with another library for the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    /// Three processes that use the library with its default options.
    Library,
    /// Three loops of `quorlock run`, which remembers nothing between two calls.
    Command,
}

/// The grants and waits of one side.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turns {
    pub(crate) grants: usize,
    /// The longest wait of a worker for a grant. A wait without a grant ends with the measurement.
    pub(crate) longest_wait: Duration,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) library: Turns,
    pub(crate) quorlock: Turns,
}

impl Share {
    /// The percentage of grants that the library got.
    pub(crate) fn percent(&self) -> f64 {
        let all = self.library.grants + self.quorlock.grants;
        100.0 * self.library.grants as f64 / all.max(1) as f64
    }
}

/// Lets three workers of each side contend for one lock.
///
/// # Errors
/// The first error of a worker.
pub(crate) fn measure(site: &Site<'_>, form: Form, time: Duration) -> Result<Share, String> {
    let name = format!("share-{form:?}");
    let start = |one: &dyn Fn() -> Result<Worker, String>| {
        (0..WORKERS).map(|_| one()).collect::<Result<Vec<_>, _>>()
    };
    let libraries = start(&|| site.worker())?;
    let quorlocks = match form {
        Form::Library => start(&|| site.quorlock_worker())?,
        Form::Command => Vec::new(),
    };
    let (name, key) = (name.as_str(), site.key(name.as_str()));
    let key = key.as_str();
    let end = Instant::now() + time;
    thread::scope(|scope| {
        let contend = |name, mut worker: Worker| {
            scope.spawn(move || {
                turns(end, || {
                    if !worker.acquire(name, TTL_MS)? {
                        return Ok(None);
                    }
                    let acquired = Instant::now();
                    thread::sleep(HOLD);
                    worker.release(name).map(|()| Some(acquired))
                })
            })
        };
        let ours: Vec<_> = match form {
            Form::Library => quorlocks.into_iter().map(|worker| contend(key, worker)).collect(),
            Form::Command => (0..WORKERS)
                .map(|_| scope.spawn(move || turns(end, || run_once(site, key))))
                .collect(),
        };
        let theirs: Vec<_> = libraries.into_iter().map(|worker| contend(name, worker)).collect();
        let sum = |side: Vec<thread::ScopedJoinHandle<'_, Result<Turns, String>>>| {
            side.into_iter().try_fold(Turns::default(), |sum, thread| {
                let one = thread.join().map_err(|_| "a thread panicked")??;
                Ok::<_, String>(Turns {
                    grants: sum.grants + one.grants,
                    longest_wait: sum.longest_wait.max(one.longest_wait),
                })
            })
        };
        Ok(Share { quorlock: sum(ours)?, library: sum(theirs)? })
    })
}

/// Repeats `call` until `end`. A call returns the time of its grant, or `None` if the lock was refused.
fn turns(
    end: Instant,
    mut call: impl FnMut() -> Result<Option<Instant>, String>,
) -> Result<Turns, String> {
    let mut turns = Turns::default();
    let mut asked = Instant::now();
    while asked < end {
        let acquired = call()?.filter(|acquired| *acquired < end);
        let until = acquired.unwrap_or_else(|| Instant::now().min(end));
        turns.longest_wait = turns.longest_wait.max(until - asked);
        if acquired.is_some() {
            turns.grants += 1;
        }
        // After a refusal the wait goes on, so `asked` does not change.
        if acquired.is_some() || until == end {
            asked = Instant::now();
        }
    }
    Ok(turns)
}

/// Runs a command of 5 ms under the lock.
fn run_once(site: &Site<'_>, key: &str) -> Result<Option<Instant>, String> {
    let script = format!("echo held; sleep {}", HOLD.as_secs_f64());
    let mut run = Process::start(&site.quorlock(&["run", key, "--", "sh", "-c", &script]))?;
    let acquired = run.line().ok().map(|_| Instant::now());
    match run.finish()?.code() {
        Some(0) => Ok(acquired),
        // The lock was refused, or (69) too few nodes answered in time, as can happen on an overloaded machine.
        Some(75 | 69) => Ok(None),
        _ => Err(run.errors()),
    }
}
