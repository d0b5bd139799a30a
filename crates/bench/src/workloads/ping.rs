//! The round trip of a `PING`, the reference for all other times.
//!
//! The workload measures it twice: back to back, and with a pause that equals the hold time before a hand-over. Client
//! and server sleep during the pause. Without the pause, the kernel sometimes places both on one core and sometimes
//! not, so the figure jumps between two values. Targets are multiples of the figure with the pause.

use std::time::Duration;

use super::handover::HOLD;
use super::{Bench, progress};
use crate::report::Cell;
use crate::subjects::raw::Ping;

pub(crate) const NAME: &str = "ping";

/// The row for back-to-back pings.
pub(crate) const CELL: Cell<'_> = Cell::new(NAME, "raw", 1, 1);

pub(crate) const PAUSED: Cell<'_> = Cell { subject: "raw-paused", ..CELL };

/// Measures both variants once: pings back to back, and pings with a pause.
pub(crate) fn round(bench: &mut Bench) {
    if let Err(why) = measure(bench) {
        bench.figures.not_run("raw", NAME, why);
    }
}

fn measure(bench: &mut Bench) -> Result<(), String> {
    let mut ping = Ping::new(&bench.testbed[..1])?;
    ping.measure(bench.warm_up(), Duration::ZERO)?;
    let sample = ping.measure(bench.sample / 2, Duration::ZERO)?;
    bench.figures.add(CELL, "p50_us", sample.p50_us);
    let sample = ping.measure(bench.sample.max(10 * HOLD), HOLD)?;
    bench.figures.add(PAUSED, "p50_us", sample.p50_us);
    Ok(())
}

/// Runs all rounds. Used if the workload `handover`, which measures a ping in each round, does not run.
pub(crate) fn run(bench: &mut Bench) {
    progress(NAME);
    for _ in 0..bench.rounds {
        round(bench);
    }
}
