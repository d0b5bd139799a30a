//! Many callers in one process contend for one key. For comparison, the workload also measures one caller alone.

use super::{Bench, progress};
use crate::report::Cell;

pub(crate) const NAME: &str = "contended_in_process";

/// Measures a number of contenders, and one caller alone.
pub(crate) fn run(bench: &mut Bench, nodes: usize, contenders: usize) {
    progress(&format!("{NAME}, N={nodes}: 1 and {contenders}"));
    let subjects = bench.subjects(NAME, &["quorlock"], nodes);
    bench.interleave(NAME, subjects, |bench, subject| {
        for lockers in [1, contenders] {
            subject.contended(lockers, bench.warm_up())?;
            let sample = subject.contended(lockers, bench.sample)?;
            let cell = Cell::new(NAME, subject.name(), nodes, lockers);
            bench.figures.add(cell, "pairs_per_s", sample.rate());
        }
        Ok(())
    });
}
