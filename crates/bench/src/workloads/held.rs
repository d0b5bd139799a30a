//! One process holds ten thousand locks and extends each every three seconds.

use std::time::Duration;

use super::{Bench, progress};
use crate::held::HeldFigures;
use crate::report::Cell;
use crate::testbed;
use crate::worker::{Job, Task};
use crate::workers::Workers;

pub(crate) const NAME: &str = "held";

/// The ttl of each lock. The client extends a lock after a third of its ttl, so every three seconds.
const TTL_MS: u64 = 9_000;

/// Measures a separate process that only holds locks, so its CPU time and memory are the cost of the locks.
pub(crate) fn run(bench: &mut Bench, nodes: usize, locks: usize, time: Duration, rounds: usize) {
    for round in 1..=rounds {
        progress(&format!("{NAME}, N={nodes}, {locks} locks, round {round}"));
        match measure(bench, nodes, locks, time) {
            Ok(figures) => {
                let cell = Cell::new(NAME, "quorlock", nodes, locks);
                bench.figures.add(cell, "cpu_fraction_of_a_core", figures.cpu_fraction);
                bench.figures.add(cell, "missed_extensions", figures.missed as f64);
                bench.figures.add(cell, "bytes_per_lock", figures.bytes_per_lock);
            }
            Err(why) => return bench.figures.not_run("quorlock", NAME, why),
        }
    }
}

fn measure(
    bench: &Bench,
    nodes: usize,
    locks: usize,
    time: Duration,
) -> Result<HeldFigures, String> {
    let job = Job {
        subject: "quorlock".to_owned(),
        urls: testbed::urls(&bench.testbed[..nodes]),
        flavor: bench.flavor,
        task: Task::Hold { locks, ttl_ms: TTL_MS },
    };
    let told: Vec<Vec<HeldFigures>> = Workers::start(&job, 1)?.work(time)?;
    told.into_iter().flatten().next().ok_or_else(|| "it told nothing".to_owned())
}
