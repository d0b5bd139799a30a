//! Latency under load: pairs of acquire and release begin on schedule, and do not wait for earlier pairs.

use super::{Bench, progress};
use crate::report::Cell;
use crate::subjects::Subject;

pub(crate) const NAME: &str = "open_loop";

/// Measures `rate` pairs per second.
pub(crate) fn run(bench: &mut Bench, names: &[&str], nodes: usize, rate: usize) {
    progress(&format!("{NAME}, N={nodes}, {rate} pairs/s: {}", names.join(", ")));
    let subjects = bench.subjects(NAME, names, nodes);
    bench.interleave(NAME, subjects, |bench, subject| turn(bench, subject, nodes, rate));
}

fn turn(
    bench: &mut Bench,
    subject: &mut dyn Subject,
    nodes: usize,
    rate: usize,
) -> Result<(), String> {
    subject.open_loop(rate, bench.warm_up())?;
    let sample = subject.open_loop(rate, bench.sample)?;
    // Pairs in flight at the end get 50 % more time. A subject that needs more than this cannot keep up with the rate.
    if sample.elapsed > bench.sample * 3 / 2 {
        return Err(format!("it cannot keep up with {rate} pairs/s"));
    }
    let cell = Cell::new(NAME, subject.name(), nodes, rate);
    bench.figures.add(cell, "p50_us", sample.p50_us);
    bench.figures.add(cell, "p99_us", sample.p99_us);
    bench.figures.add(cell, "p999_us", sample.p999_us);
    Ok(())
}
