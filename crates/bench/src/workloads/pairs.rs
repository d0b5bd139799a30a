//! Lockers acquire and release as fast as they can, each with its own key.

use super::{Bench, progress};
use crate::report::Cell;
use crate::subjects::Subject;
use crate::testbed::Commands;

pub(crate) const NAME: &str = "pairs";

pub(crate) fn run(bench: &mut Bench, names: &[&str], nodes: usize, lockers: usize) {
    progress(&format!("{NAME}, N={nodes}, c={lockers}: {}", names.join(", ")));
    let subjects = bench.subjects(NAME, names, nodes);
    bench.interleave(NAME, subjects, |bench, subject| turn(bench, subject, NAME, nodes, lockers));
}

/// Measures one subject once, with `lockers` lockers.
///
/// # Errors
/// The subject's error.
pub(crate) fn turn(
    bench: &mut Bench,
    subject: &mut dyn Subject,
    workload: &str,
    nodes: usize,
    lockers: usize,
) -> Result<(), String> {
    if !subject.is_external() {
        subject.pairs(lockers, bench.warm_up())?;
    }
    let before = Commands::read(&bench.testbed[..nodes])?;
    let sample = subject.pairs(lockers, bench.sample)?;
    let sent = Commands::read(&bench.testbed[..nodes])?.since(&before).sent();

    let cell = Cell::new(workload, subject.name(), nodes, lockers);
    bench.figures.add_pairs(cell, &sample);
    if !subject.is_external() {
        bench.figures.add(cell, "commands_per_pair", sent as f64 / sample.pairs as f64);
    }
    Ok(())
}
