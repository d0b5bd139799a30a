//! A worker process that contends for a lock or holds many locks.
//!
//! The worker gets its job as an argument, prints `ready`, and waits for `go END` on standard input. It works until
//! END, in nanoseconds of the monotonic clock. Then it prints its results as lines of JSON. If its input ends, the
//! benchmark has ended, and the worker exits.

use std::io::{self, BufRead as _, Write as _};
use std::time::Duration;

use quorlock::{Client, LockOptions};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use crate::clock::{self, nanos};
use crate::handover_stats::Turn;
use crate::held;
use crate::subjects::closed_loop::Locker;
use crate::subjects::quorlock::builder;
use crate::subjects::{Flavor, TTL};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) subject: String,
    pub(crate) urls: Vec<String>,
    pub(crate) flavor: Flavor,
    pub(crate) task: Task,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Acquires `key` repeatedly and holds it for `hold_us` each time.
    Contend { key: String, hold_us: u64 },
    /// Acquires `locks` locks and holds them until the END that `go` names.
    Hold { locks: usize, ttl_ms: u64 },
}

/// Runs the job.
///
/// # Errors
/// If the job is invalid or fails.
pub(crate) fn main(job: &str) -> Result<(), String> {
    let job: Job = serde_json::from_str(job)
        .map_err(|_| "a worker is started by the benchmark itself, not by hand".to_owned())?;
    let runtime = job.flavor.runtime()?;
    match (&job.task, job.subject.as_str()) {
        (Task::Contend { key, hold_us }, "quorlock") => {
            let locker = client(&runtime, &job.urls, TTL)?;
            contend(&runtime, locker, key, Duration::from_micros(*hold_us))
        }
        (Task::Contend { key, hold_us }, "rslock") => {
            let locker = rslock::LockManager::new(job.urls.clone());
            contend(&runtime, locker, key, Duration::from_micros(*hold_us))
        }
        (Task::Hold { locks, ttl_ms }, "quorlock") => {
            let ttl = Duration::from_millis(*ttl_ms);
            let client = client(&runtime, &job.urls, ttl)?;
            let figures = runtime.block_on(async {
                let task = held::measure(client, *locks, ttl, await_go);
                tokio::spawn(task).await.map_err(|panic| panic.to_string())?
            })?;
            tell(&[figures])
        }
        (_, other) => Err(format!("no worker for {other:?}")),
    }
}

fn client(runtime: &Runtime, urls: &[String], ttl: Duration) -> Result<Client, String> {
    let _inside = runtime.enter();
    builder(urls.to_vec())
        .options(LockOptions::new().ttl(ttl).wait_forever())
        .build()
        .map_err(|error| error.to_string())
}

fn contend<C: Locker>(
    runtime: &Runtime,
    locker: C,
    key: &str,
    hold: Duration,
) -> Result<(), String> {
    let (key, own_key) = (key.to_owned(), format!("{key}:{}", std::process::id()));
    let turns = runtime.block_on(async move {
        let work = async move {
            // This pair opens the connections, so that the first turn does not include their opening.
            locker.pair(&own_key).await?;
            let end = await_go()?;
            let mut turns = Vec::new();
            while clock::now() < end {
                turns.push(turn(&locker, &key, hold, end).await?);
            }
            Ok::<_, String>(turns)
        };
        tokio::spawn(work).await.map_err(|panic| panic.to_string())?
    })?;
    tell(&turns)
}

async fn turn<C: Locker>(
    locker: &C,
    key: &str,
    hold: Duration,
    end: Duration,
) -> Result<Turn, String> {
    let asked = clock::now();
    let left = end.saturating_sub(asked);
    let Ok(guard) = tokio::time::timeout(left, locker.acquire(key)).await else {
        return Ok(Turn(nanos(asked), None, None));
    };
    let guard = guard?;
    let acquired = clock::now();
    tokio::time::sleep(hold).await;
    let released = clock::now();
    // The outcome does not matter: an overlap of two holders shows in the recorded times.
    let _ = C::release(guard).await;
    Ok(Turn(nanos(asked), Some(nanos(acquired)), Some(nanos(released))))
}

/// Prints `ready` and waits for `go END`. Returns END, the time at which the worker must stop.
///
/// # Errors
/// If the input ends before `go`.
fn await_go() -> Result<Duration, String> {
    let mut out = io::stdout().lock();
    let gone = |error: io::Error| format!("the benchmark is gone: {error}");
    writeln!(out, "ready").and_then(|()| out.flush()).map_err(gone)?;
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).map_err(gone)?;
    let end = line.trim().strip_prefix("go ").and_then(|end| end.parse().ok());
    let end = end.ok_or_else(|| "the benchmark is gone".to_owned())?;
    // If the input ends while the process works, this thread ends the process.
    std::thread::spawn(|| {
        let rest = io::stdin().lock().read_line(&mut String::new());
        if !matches!(rest, Ok(read) if read > 0) {
            std::process::exit(1);
        }
    });
    Ok(Duration::from_nanos(end))
}

fn tell<T: Serialize>(lines: &[T]) -> Result<(), String> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let write = |line: &T| {
        let line = serde_json::to_string(line).map_err(io::Error::from)?;
        writeln!(out, "{line}")
    };
    let result = lines.iter().try_for_each(write);
    result.and_then(|()| out.flush()).map_err(|error| format!("cannot tell: {error}"))
}
