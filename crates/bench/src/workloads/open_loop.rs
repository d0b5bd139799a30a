//! Latency under load: pairs begin when they are due, not when the last one is done.

use super::{Bench, progress};
use crate::report::Cell;
use crate::subjects::Subject;

pub(crate) const NAME: &str = "open_loop";

/// Measures this rate of pairs per second on this number of nodes.
pub(crate) fn run(bench: &mut Bench, names: &[&str], nodes: usize, rate: u64) {
    progress(&format!("{NAME}, N={nodes}, {rate} pairs/s: {}", names.join(", ")));
    let subjects = bench.subjects(NAME, names, nodes);
    bench.interleave(NAME, subjects, |bench, subject| turn(bench, subject, nodes, rate));
}

fn turn(
    bench: &mut Bench,
    subject: &mut dyn Subject,
    nodes: usize,
    rate: u64,
) -> Result<(), String> {
    subject.open_loop(rate, bench.warm_up())?;
    let sample = subject.open_loop(rate, bench.sample)?;
    // Half as long again for the last ones to be done: whoever needs it, falls behind for good.
    if sample.elapsed > bench.sample * 3 / 2 {
        return Err(format!("it cannot keep up with {rate} pairs/s"));
    }
    let cell = Cell { workload: NAME, subject: subject.name(), nodes, concurrency: rate };
    bench.figures.add(cell, "p50_us", sample.p50_us);
    bench.figures.add(cell, "p99_us", sample.p99_us);
    bench.figures.add(cell, "p999_us", sample.p999_us);
    Ok(())
}
