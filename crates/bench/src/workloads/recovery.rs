//! What a restarted node costs. The paper leaves two ways, to write every command to the disk before
//! it is answered, or to keep a node that was restarted out for as long as the longest ttl; and a
//! third is none, which is unsafe. Measured are the price of each while all is well, and how long
//! there is no lock to be had after nodes were killed.

mod fsync;

use super::Bench;
use crate::report::{Cell, Figures};

/// The name of all three together.
pub(crate) const NAME: &str = "recovery";

/// What they are measured on.
const NODES: usize = 5;

/// All of it.
pub(crate) fn run(bench: &mut Bench) {
    fsync::run(bench);
}

/// The pairs per second of each of the subjects, as multiples of the first one's in the same round.
fn ratios(figures: &mut Figures, workload: &str, subjects: &[&str], lockers: usize) {
    let concurrency = lockers as u64;
    let cell = |subject| Cell { workload, subject, nodes: NODES, concurrency };
    let rates = |figures: &Figures, subject| {
        let row = figures.row(cell(subject), "pairs_per_s");
        row.map_or_else(Vec::new, |row| row.values.clone())
    };
    let base = rates(figures, subjects[0]);
    for subject in &subjects[1..] {
        for (rate, base) in rates(figures, subject).iter().zip(&base) {
            figures.add(cell(subject), "rate_ratio", rate / base);
        }
    }
}
