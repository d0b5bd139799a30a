//! The time from a release by another library to the grant for a waiting quorlock call. The other library sends a plain
//! `SET` and a plain `DEL` to every node, like `redis-cli`. Only the servers' pushes notify the waiting call.

use std::thread;
use std::time::Duration;

use super::handover::HOLD;
use super::{Bench, progress};
use crate::clock;
use crate::report::Cell;
use crate::sample::{Latencies, Started};
use crate::subjects::quorlock;
use crate::subjects::raw::{Ping, Stranger};
use ::quorlock::LockOptions;

pub(crate) const NAME: &str = "woken";

/// The subject that measures `PING` to one node after a pause of `HOLD`, as a comparison.
pub(crate) const PING: &str = "ping";

/// The subject that measures `PING` to all nodes until a majority has answered: the round trip of an attempt.
pub(crate) const ROUND_TRIP: &str = "round trip";

const TIMES: usize = 60;

/// Measures how fast one waiting call is woken, for each of these numbers of nodes.
pub(crate) fn run(bench: &mut Bench, nodes: &[usize]) {
    for round in 1..=bench.rounds {
        progress(&format!("{NAME}, round {round}"));
        for &nodes in nodes {
            if let Err(why) = measure(bench, nodes) {
                bench.figures.not_run("quorlock", NAME, why);
            }
        }
    }
}

fn measure(bench: &mut Bench, nodes: usize) -> Result<(), String> {
    let servers = &bench.testbed[..nodes];
    let beside = |servers| Ping::new(servers)?.measure(HOLD * TIMES as u32, HOLD);
    let (ping, round_trip) = (beside(&servers[..1])?, beside(servers)?);
    let mut stranger = Stranger::new(servers)?;
    let subject = quorlock::new(servers, bench.flavor)?;
    let mut latencies = Latencies::default();
    let started = Started::now();
    for _ in 0..TIMES {
        stranger.acquire()?;
        let client = subject.locker.clone();
        let waiter = subject.runtime.spawn(async move {
            let guard = client
                .acquire(Stranger::KEY)
                .options(LockOptions::new().wait(Duration::from_secs(10)))
                .await;
            let at = clock::now();
            let guard = guard.map_err(|error| error.to_string())?;
            quorlock::went_well(Stranger::KEY, guard.release().await.outcome)?;
            Ok::<_, String>(at)
        });
        // During this sleep, the waiting call is refused and subscribes to changes of the key.
        thread::sleep(HOLD);
        let given_back = clock::now();
        stranger.release()?;
        let had = subject.runtime.block_on(waiter).map_err(|error| error.to_string())??;
        latencies.record(had.saturating_sub(given_back));
    }
    let sample = started.end(&latencies)?;
    let cell = |subject| Cell::new(NAME, subject, servers.len(), 1);
    bench.figures.add(cell(PING), "p50_us", ping.p50_us);
    bench.figures.add(cell(ROUND_TRIP), "p50_us", round_trip.p50_us);
    bench.figures.add(cell("quorlock"), "p50_us", sample.p50_us);
    bench.figures.add(cell("quorlock"), "p99_us", sample.p99_us);
    Ok(())
}
