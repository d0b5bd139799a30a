//! The same on somebody's own nodes: `quorlock bench`.
//!
//! Nothing is done there that a program using quorlock would not do: keys of our own are locked and
//! given back, and nodes are asked who holds one. No counter is reset, no other key is touched.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use quorlock::{AcquireError, Client, NodeOutcome};
use serde::Serialize;
use tokio::sync::watch;

use crate::clock::{self, micros, nanos};
use crate::handover_stats::{HandoverStats, Turn};
use crate::sample::Latencies;
use crate::subjects::Flavor;

/// How many lock at the same time, one after the other of these.
pub const LOCKERS: [usize; 3] = [1, 8, 64];

/// For how long each of two clients has the lock that both want.
pub const HOLD: Duration = Duration::from_millis(5);

/// The shortest time that says anything.
pub const TIME_MIN: Duration = Duration::from_secs(1);

/// How long to try for the first lock. Who measures nodes has them up.
const FIRST: Duration = Duration::from_secs(3);

/// How long one waits for the nodes in the end, so that all is given back.
const SHUTDOWN: Duration = Duration::from_secs(2);

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LiveNodes {
    /// What all keys that were locked begin with, behind the client's own prefix.
    pub keys: String,
    /// Per node, in the client's order.
    pub nodes: Vec<RoundTrip>,
    /// For each of [`LOCKERS`].
    pub pairs: Vec<Pairs>,
    /// Between two clients that want the same lock.
    pub handover: Handover,
}

/// How long a node takes to answer who holds a key, while nothing else is asked of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RoundTrip {
    /// The node's name.
    pub node: String,
    /// The median, in microseconds; none if it never answered.
    pub p50_us: Option<f64>,
    /// What one in a hundred takes, in microseconds.
    pub p99_us: Option<f64>,
    /// How often it did not answer.
    pub failed: u64,
}

/// Lockers that acquire and release, each its own key, one pair after the other.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Pairs {
    /// How many there were.
    pub lockers: usize,
    /// Pairs of acquire and release per second, of all of them together.
    pub pairs_per_s: f64,
    /// How long a pair took, in microseconds: the median.
    pub p50_us: Option<f64>,
    /// What one in a hundred takes.
    pub p99_us: Option<f64>,
    /// How many locks were not granted, or lost.
    pub failed: u64,
}

/// From one client's call to release to the other one's having the lock.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Handover {
    /// How often it went from one to the other.
    pub count: u64,
    /// The median, in microseconds.
    pub p50_us: Option<f64>,
    /// What one in a hundred takes.
    pub p99_us: Option<f64>,
}

/// Why nothing was measured.
#[derive(Debug)]
pub enum LiveNodesError<E> {
    /// The client could not be built.
    Build(E),
    /// The nodes do not grant a first lock.
    Nodes(AcquireError),
    /// The machine, or the benchmark itself.
    Internal(String),
}

/// Loads the nodes for about `time`, at least [`TIME_MIN`], and gives everything back.
///
/// `build` makes a client, as a task on the runtime that it is called on: two are needed.
/// Blocks; all work is done on a runtime of its own.
///
/// # Errors
/// [`LiveNodesError`]; keys that were not given back are gone after their ttl.
///
/// # Panics
/// Inside an async runtime.
pub fn live_nodes<E>(
    build: impl Fn() -> Result<Client, E>,
    time: Duration,
) -> Result<LiveNodes, LiveNodesError<E>> {
    let runtime = Flavor::MultiThread.runtime().map_err(LiveNodesError::Internal)?;
    let (first, second) = {
        let _inside = runtime.enter();
        (build().map_err(LiveNodesError::Build)?, build().map_err(LiveNodesError::Build)?)
    };
    let measure = measure(&first, &second, time.max(TIME_MIN));
    let result = runtime.block_on(async {
        let result = measure.await;
        for client in [&first, &second] {
            // What is owed then expires with its ttl.
            let _ = client.shutdown(SHUTDOWN).await;
        }
        result
    });
    result.map_err(|failed| match failed {
        Failed::Nodes(error) => LiveNodesError::Nodes(error),
        Failed::Internal(why) => LiveNodesError::Internal(why),
    })
}

enum Failed {
    Nodes(AcquireError),
    Internal(String),
}

async fn measure(first: &Client, second: &Client, time: Duration) -> Result<LiveNodes, Failed> {
    let keys = format!("quorlock-bench:{}-{}:", std::process::id(), nanos(clock::wall()));
    // Also connects, so that nothing of that is measured.
    for client in [first, second] {
        let first = client.acquire(format!("{keys}first")).wait(FIRST);
        let guard = first.await.map_err(Failed::Nodes)?;
        let _ = guard.release().await;
    }
    let nodes = round_trips(first, &keys, time / 10).await?;
    let mut pairs = Vec::new();
    for lockers in LOCKERS {
        pairs.push(contended(first, &keys, lockers, time / 4).await?);
    }
    let handover = handover([first, second], &keys, time * 3 / 20).await?;
    Ok(LiveNodes { keys, nodes, pairs, handover })
}

async fn round_trips(
    client: &Client,
    keys: &str,
    time: Duration,
) -> Result<Vec<RoundTrip>, Failed> {
    let key = format!("{keys}asked");
    let until = clock::now() + time;
    let mut nodes: Vec<(RoundTrip, Latencies)> = Vec::new();
    while clock::now() < until {
        let seen = client.inspect(&key).await;
        let seen = seen.map_err(|error| Failed::Internal(error.to_string()))?;
        nodes.resize_with(seen.nodes.len(), || {
            let node = RoundTrip { node: String::new(), p50_us: None, p99_us: None, failed: 0 };
            (node, Latencies::default())
        });
        for ((node, latencies), answer) in nodes.iter_mut().zip(seen.nodes) {
            node.node = answer.node.to_string();
            match answer.said {
                NodeOutcome::Seen(_) => latencies.record(answer.took),
                _ => node.failed += 1,
            }
        }
    }
    let whole = |(mut node, latencies): (RoundTrip, Latencies)| {
        (node.p50_us, node.p99_us) = quantiles(&latencies);
        node
    };
    Ok(nodes.into_iter().map(whole).collect())
}

async fn contended(
    client: &Client,
    keys: &str,
    lockers: usize,
    time: Duration,
) -> Result<Pairs, Failed> {
    let start = clock::now();
    let until = start + time;
    let lock = |locker| {
        let (client, key) = (client.clone(), format!("{keys}{locker}"));
        async move {
            let (mut latencies, mut failed) = (Latencies::default(), 0);
            let mut now = clock::now();
            while now < until {
                let went_well = match client.acquire(&key).await {
                    Ok(guard) => guard.release().await.is_released(),
                    Err(_) => false,
                };
                let done = clock::now();
                if went_well {
                    latencies.record(done - now);
                } else {
                    failed += 1;
                }
                now = done;
            }
            (latencies, failed)
        }
    };
    let mut all = (Latencies::default(), 0);
    for (latencies, failed) in side_by_side((0..lockers).map(lock)).await? {
        all.0.add(latencies);
        all.1 += failed;
    }
    let (p50_us, p99_us) = quantiles(&all.0);
    let pairs_per_s = all.0.count() as f64 / (clock::now() - start).as_secs_f64();
    Ok(Pairs { lockers, pairs_per_s, p50_us, p99_us, failed: all.1 })
}

async fn handover(clients: [&Client; 2], keys: &str, time: Duration) -> Result<Handover, Failed> {
    let until = clock::now() + time;
    let key: Arc<str> = format!("{keys}shared").into();
    // Who has it, or had it last: nobody asks again before the other one has had it.
    let last = Arc::new(watch::Sender::new(usize::MAX));
    let take_turns = |(me, client): (usize, &Client)| {
        let (client, key, last) = (client.clone(), key.clone(), last.clone());
        async move {
            let mut had_it = last.subscribe();
            let mut turns = Vec::new();
            while clock::now() < until {
                let asked = nanos(clock::now());
                let left = until.saturating_sub(clock::now());
                let guard = client.acquire(&*key).wait_forever();
                let Ok(Ok(guard)) = tokio::time::timeout(left, guard).await else { continue };
                let acquired = nanos(clock::now());
                last.send_replace(me);
                tokio::time::sleep(HOLD).await;
                let valid = guard.is_valid();
                let released = nanos(clock::now());
                let _ = guard.release().await;
                if valid {
                    turns.push(Turn(asked, Some(acquired), Some(released)));
                }
                let left = until.saturating_sub(clock::now());
                // If the other one does not get it in time, that was all.
                let _ = tokio::time::timeout(left, had_it.wait_for(|&last| last != me)).await;
            }
            turns
        }
    };
    let turns = side_by_side(clients.into_iter().enumerate().map(take_turns)).await?;
    if turns.iter().all(Vec::is_empty) {
        return Ok(Handover { count: 0, p50_us: None, p99_us: None });
    }
    let handover_stats = HandoverStats::new(&turns).map_err(Failed::Internal)?;
    let at = |quantile| micros(handover_stats.handovers.value_at_quantile(quantile));
    let count = handover_stats.handovers.len();
    let seen = |value| (count > 0).then_some(value);
    Ok(Handover { count, p50_us: seen(at(0.5)), p99_us: seen(at(0.99)) })
}

/// Each as a task of its own.
async fn side_by_side<F>(work: impl Iterator<Item = F>) -> Result<Vec<F::Output>, Failed>
where
    F: Future<Output: Send> + Send + 'static,
{
    let tasks: Vec<_> = work.map(tokio::spawn).collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.map_err(|panic| Failed::Internal(panic.to_string()))?);
    }
    Ok(results)
}

fn quantiles(latencies: &Latencies) -> (Option<f64>, Option<f64>) {
    if latencies.count() == 0 {
        return (None, None);
    }
    let histogram = latencies.histogram();
    let at = |quantile| Some(micros(histogram.value_at_quantile(quantile)));
    (at(0.5), at(0.99))
}
