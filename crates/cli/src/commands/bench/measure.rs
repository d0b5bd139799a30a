//! The measurements of `quorlock bench`.
//!
//! Measurements do only what a program that uses quorlock would do: they lock keys of their own, give these back, and
//! ask nodes which client holds a key. They reset no counter and touch no other key.

use std::future::Future;
use std::time::Duration;

use quorlock::{AcquireError, Client, LockOptions, NodeOutcome};
use serde::Serialize;
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use crate::commands::percentile;
use crate::guardian::clock::real_ns;
use crate::options::Refused;

/// Numbers of concurrent lockers. Each is measured separately.
pub(super) const LOCKERS: [usize; 3] = [1, 8, 64];

/// Time for which each of two contending clients holds the lock.
const HOLD: Duration = Duration::from_millis(5);

/// The longest wait for the first lock. It is short because the nodes should be running.
const FIRST: Duration = Duration::from_secs(3);

const SHUTDOWN: Duration = Duration::from_secs(2);

/// The result, as the JSON shows it.
#[derive(Serialize)]
pub(super) struct Measured {
    /// The prefix of all keys that were locked. The key prefix of the client's settings stands before it.
    keys: String,
    pub(super) nodes: Vec<RoundTrip>,
    pub(super) pairs: Vec<Pairs>,
    pub(super) handover: Handover,
}

/// The round trips to a node, measured before the lockers start.
#[derive(Serialize)]
pub(super) struct RoundTrip {
    pub(super) node: String,
    #[serde(flatten)]
    pub(super) latency: Latency,
    pub(super) failed: u64,
}

/// Measurement of concurrent lockers. Each one acquires and releases its own key in a loop.
#[derive(Serialize)]
pub(super) struct Pairs {
    pub(super) lockers: usize,
    pub(super) pairs_per_s: f64,
    #[serde(flatten)]
    pub(super) latency: Latency,
    /// Number of locks that were not granted, or were lost.
    pub(super) failed: u64,
}

/// Time from one client's call to release until the other client has the lock.
#[derive(Serialize)]
pub(super) struct Handover {
    pub(super) count: usize,
    #[serde(flatten)]
    pub(super) latency: Latency,
}

/// Microseconds; `None` if nothing was measured.
#[derive(Default, Serialize)]
pub(super) struct Latency {
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
}

impl Latency {
    fn of(mut latencies: Vec<Duration>) -> Self {
        latencies.sort_unstable();
        let at = |percent| Some(percentile(&latencies, percent)?.as_nanos() as f64 / 1e3);
        Self { p50_us: at(50), p99_us: at(99) }
    }
}

pub(super) enum Failed {
    /// No client was built, or the machine or the measurement has a fault.
    Refused(Refused),
    /// The first lock was not granted.
    Nodes(AcquireError),
}

impl Failed {
    fn internal(why: String) -> Self {
        Self::Refused(Refused::internal(why))
    }
}

/// Measures the nodes for about `time`, with two clients on a runtime of its own, and releases all keys. A key whose
/// release fails expires after its ttl.
pub(super) fn measure(
    build: impl Fn() -> Result<Client, Refused>,
    time: Duration,
) -> Result<Measured, Failed> {
    let runtime = Builder::new_multi_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| Failed::internal(format!("no tokio runtime: {error}")))?;
    let build = || {
        let _inside = runtime.enter();
        build().map_err(Failed::Refused)
    };
    let (first, second) = (build()?, build()?);
    runtime.block_on(async {
        let measured = all(&first, &second, time).await;
        for client in [&first, &second] {
            let _ = client.shutdown(SHUTDOWN).await;
        }
        measured
    })
}

async fn all(first: &Client, second: &Client, time: Duration) -> Result<Measured, Failed> {
    let keys = format!("quorlock-bench:{}-{}:", std::process::id(), real_ns());
    // The first lock of a client also connects it. The measurements are about connected clients.
    for client in [first, second] {
        let first = client.acquire(format!("{keys}first")).options(LockOptions::new().wait(FIRST));
        let guard = first.await.map_err(Failed::Nodes)?;
        let _ = guard.release().await;
    }
    let nodes = round_trips(first, &keys, time / 10).await?;
    let mut pairs = Vec::new();
    for lockers in LOCKERS {
        pairs.push(pairs_of(first, &keys, lockers, time / 4).await?);
    }
    let handover = handover([first, second], &keys, time * 3 / 20).await?;
    Ok(Measured { keys, nodes, pairs, handover })
}

async fn round_trips(
    client: &Client,
    keys: &str,
    time: Duration,
) -> Result<Vec<RoundTrip>, Failed> {
    let key = format!("{keys}asked");
    let until = Instant::now() + time;
    let mut nodes: Vec<(String, Vec<Duration>, u64)> = Vec::new();
    while Instant::now() < until {
        let inspection = client.inspect(&key).await;
        let inspection = inspection.map_err(|error| Failed::internal(error.to_string()))?;
        for (index, answer) in inspection.nodes.into_iter().enumerate() {
            if index == nodes.len() {
                nodes.push((answer.node.to_string(), Vec::new(), 0));
            }
            match answer.said {
                NodeOutcome::Seen(_) => nodes[index].1.push(answer.took),
                _ => nodes[index].2 += 1,
            }
        }
    }
    let round_trip =
        |(node, latencies, failed)| RoundTrip { node, latency: Latency::of(latencies), failed };
    Ok(nodes.into_iter().map(round_trip).collect())
}

async fn pairs_of(
    client: &Client,
    keys: &str,
    lockers: usize,
    time: Duration,
) -> Result<Pairs, Failed> {
    let start = Instant::now();
    let until = start + time;
    let locker = |number| {
        let (client, key) = (client.clone(), format!("{keys}{number}"));
        async move {
            let (mut latencies, mut failed) = (Vec::new(), 0);
            let mut now = Instant::now();
            while now < until {
                let is_released = match client.acquire(&key).await {
                    Ok(guard) => guard.release().await.is_released(),
                    Err(_) => false,
                };
                let done = Instant::now();
                if is_released {
                    latencies.push(done - now);
                } else {
                    failed += 1;
                }
                now = done;
            }
            (latencies, failed)
        }
    };
    let (mut latencies, mut failed) = (Vec::new(), 0);
    for (of_one, failed_of_one) in in_tasks((0..lockers).map(locker)).await? {
        latencies.extend(of_one);
        failed += failed_of_one;
    }
    let pairs_per_s = latencies.len() as f64 / start.elapsed().as_secs_f64();
    Ok(Pairs { lockers, pairs_per_s, latency: Latency::of(latencies), failed })
}

async fn handover(clients: [&Client; 2], keys: &str, time: Duration) -> Result<Handover, Failed> {
    let until = Instant::now() + time;
    // The last client that had the lock, and the time of its release (`None` until then). A client asks for the lock
    // again only after the other client has had the lock.
    let last = watch::Sender::new((usize::MAX, None::<Instant>));
    let take_turns = |(me, client): (usize, &Client)| {
        let (client, key, last) = (client.clone(), format!("{keys}shared"), last.clone());
        async move {
            let mut latencies = Vec::new();
            let mut changed = last.subscribe();
            while Instant::now() < until {
                let asked = Instant::now();
                let guard = client.acquire(&key).options(LockOptions::new().wait_forever());
                let Ok(Ok(guard)) = timeout_at(until, guard).await else { continue };
                let acquired = Instant::now();
                let (other, released) = last.send_replace((me, None));
                if let Some(released) = released.filter(|released| other != me && asked < *released)
                {
                    latencies.push(acquired.saturating_duration_since(released));
                }
                sleep(HOLD).await;
                let has_other = last.borrow().0 != me;
                if guard.is_valid() {
                    if has_other {
                        return Err("both clients had the lock at the same time".to_owned());
                    }
                    last.send_replace((me, Some(Instant::now())));
                }
                let _ = guard.release().await;
                let _ = timeout_at(until, changed.wait_for(|(holder, _)| *holder != me)).await;
            }
            Ok(latencies)
        }
    };
    let mut latencies = Vec::new();
    for of_one in in_tasks(clients.into_iter().enumerate().map(take_turns)).await? {
        latencies.extend(of_one.map_err(Failed::internal)?);
    }
    Ok(Handover { count: latencies.len(), latency: Latency::of(latencies) })
}

async fn in_tasks<F>(work: impl Iterator<Item = F>) -> Result<Vec<F::Output>, Failed>
where
    F: Future<Output: Send> + Send + 'static,
{
    let tasks: Vec<_> = work.map(tokio::spawn).collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.map_err(|panic| Failed::internal(panic.to_string()))?);
    }
    Ok(results)
}
