//! Many locks held at once: the cost of their extensions, and the number of late extensions.

use std::time::Duration;

use quorlock::{Client, Guard};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::clock;

/// Interval at which the process checks how much of the ttl each lock has left.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Maximum number of acquires in flight.
const AT_A_TIME: usize = 64;

/// The figures of a process that held many locks.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct HeldFigures {
    /// CPU time as a fraction of one core, measured while the process only extended its locks.
    pub(crate) cpu_fraction: f64,
    /// Locks that were lost, or once had less than half of their ttl left. An automatic extension is due after a third
    /// of the ttl, so such an extension was late by more than a sixth of the ttl.
    pub(crate) missed: usize,
    /// Resident memory in bytes per lock.
    pub(crate) bytes_per_lock: f64,
}

/// Acquires `locks` locks, calls `await_go`, and holds the locks until the end time that `await_go` returns.
///
/// # Errors
/// If an acquire fails.
pub(crate) async fn measure(
    client: Client,
    locks: usize,
    ttl: Duration,
    await_go: impl Fn() -> Result<Duration, String>,
) -> Result<HeldFigures, String> {
    // Acquires some locks first, so that the memory for connections and callers is allocated before the measurement.
    drop(acquire(&client, "warm", 4 * AT_A_TIME).await?);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let before = memory()?;
    let guards = acquire(&client, "held", locks).await?;
    let bytes_per_lock = (memory()?.saturating_sub(before)) as f64 / locks as f64;

    let end = await_go()?;
    let mut late = vec![false; guards.len()];
    let (mut looking, begin, cpu) = (Duration::ZERO, clock::now(), clock::cpu());
    while clock::now() < end {
        tokio::time::sleep(LOOK_EVERY).await;
        let look = clock::cpu();
        for (guard, late) in guards.iter().zip(&mut late) {
            *late |= guard.remaining() < ttl / 2;
        }
        looking += clock::cpu() - look;
    }
    let spent = (clock::cpu() - cpu).saturating_sub(looking);
    let cpu_fraction = spent.as_secs_f64() / (clock::now() - begin).as_secs_f64();
    let missed = late.iter().filter(|late| **late).count();
    Ok(HeldFigures { cpu_fraction, missed, bytes_per_lock })
}

async fn acquire(client: &Client, name: &str, locks: usize) -> Result<Vec<Guard>, String> {
    let mut guards = Vec::with_capacity(locks);
    let mut under_way = JoinSet::new();
    for lock in 0..locks {
        if under_way.len() == AT_A_TIME {
            guards.extend(next(&mut under_way).await?);
        }
        let acquire = client.acquire(format!("bench/{name}/{lock}"));
        under_way.spawn(async move { acquire.await.map_err(|error| error.to_string()) });
    }
    while let Some(guard) = next(&mut under_way).await? {
        guards.push(guard);
    }
    Ok(guards)
}

async fn next(under_way: &mut JoinSet<Result<Guard, String>>) -> Result<Option<Guard>, String> {
    let Some(result) = under_way.join_next().await else { return Ok(None) };
    result.map_err(|panic| panic.to_string())?.map(Some)
}

/// Resident memory of this process in bytes.
fn memory() -> Result<u64, String> {
    let status = std::fs::read_to_string("/proc/self/status");
    let status = status.map_err(|error| format!("/proc/self/status: {error}"))?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = resident.and_then(|text| text.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| "/proc/self/status has no VmRSS".to_owned())
}
