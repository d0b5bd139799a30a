//! The round trip of a `PING`, without which no other time means anything.
//!
//! Twice: one after the other, and with the pause that a hand-over has before it, the lock being held
//! for so long. After a pause everybody has gone to sleep. Without, the system sometimes puts client
//! and server on one core and sometimes not, and the figure jumps between two values; so the targets
//! are multiples of the other.

use std::time::Duration;

use super::handover::HOLD;
use super::{Bench, progress};
use crate::report::Cell;
use crate::subjects::raw::Ping;

pub(crate) const NAME: &str = "ping";

/// A ping after the other.
pub(crate) const CELL: Cell<'_> = Cell { workload: NAME, subject: "raw", nodes: 1, concurrency: 1 };

/// With the pause.
pub(crate) const PAUSED: Cell<'_> = Cell { subject: "raw-paused", ..CELL };

/// One round of both.
pub(crate) fn round(bench: &mut Bench) {
    if let Err(why) = measure(bench) {
        bench.figures.not_run("raw", NAME, why);
    }
}

fn measure(bench: &mut Bench) -> Result<(), String> {
    let mut ping = Ping::new(bench.testbed.first(1))?;
    ping.measure(bench.warm_up(), Duration::ZERO)?;
    let sample = ping.measure(bench.sample / 2, Duration::ZERO)?;
    bench.figures.add(CELL, "p50_us", sample.p50_us);
    let sample = ping.measure(bench.sample.max(10 * HOLD), HOLD)?;
    bench.figures.add(PAUSED, "p50_us", sample.p50_us);
    Ok(())
}

/// All rounds, where nothing else is measured beside.
pub(crate) fn run(bench: &mut Bench) {
    progress(NAME);
    for _ in 0..bench.rounds {
        round(bench);
    }
}
