//! One of five nodes is stopped with SIGSTOP: it accepts requests and does not answer.

use std::thread;
use std::time::Duration;

use super::{Bench, progress};
use crate::report::Cell;
use crate::subjects::Subject;
use crate::testbed;

pub(crate) const NAME: &str = "frozen";

pub(crate) const LOCKERS: usize = 8;

const NODES: usize = 5;

/// Measures the latency with all nodes, and with one frozen node. The first second after the freeze does not count,
/// because clients detect the silent node during this second.
pub(crate) fn run(bench: &mut Bench, names: &[&str]) {
    // This workload has its own servers, so that the frozen node cannot affect the next workload.
    let testbed = match testbed::start(&bench.binary, NODES, &[]) {
        Ok(testbed) => std::mem::replace(&mut bench.testbed, testbed),
        Err(why) => return bench.figures.not_run("quorlock", NAME, why),
    };
    let mut subjects = bench.subjects(NAME, names, NODES);
    for round in 1..=bench.rounds {
        progress(&format!("{NAME}, round {round}: {}", names.join(", ")));
        each(bench, &mut subjects, "healthy_p99_us");
        if let Err(error) = bench.testbed[0].pause() {
            bench.figures.not_run("quorlock", NAME, error.to_string());
            break;
        }
        each(bench, &mut subjects, "frozen_p99_us");
        if let Err(error) = bench.testbed[0].resume() {
            bench.figures.not_run("quorlock", NAME, error.to_string());
            break;
        }
        // Clients use the resumed node again after less than a second. Without this pause, the next warm-up would fail.
        thread::sleep(Duration::from_secs(1));
    }
    drop(subjects);
    bench.testbed = testbed;
}

fn each(bench: &mut Bench, subjects: &mut Vec<Box<dyn Subject>>, metric: &str) {
    subjects.retain_mut(|subject| {
        let result = (|| {
            subject.pairs(LOCKERS, Duration::from_secs(1))?;
            subject.pairs(LOCKERS, 2 * bench.sample)
        })();
        match result {
            Ok(sample) => {
                let subject = subject.name();
                let cell = Cell::new(NAME, subject, NODES, LOCKERS);
                bench.figures.add(cell, metric, sample.p99_us);
                true
            }
            Err(why) => {
                bench.figures.not_run(subject.name(), NAME, why);
                false
            }
        }
    });
}
