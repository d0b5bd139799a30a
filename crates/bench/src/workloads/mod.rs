//! The workloads. Each runs in rounds, and each round measures every subject once, so that a disturbance of the machine
//! affects all subjects.

pub(crate) mod contended;
pub(crate) mod frozen;
pub(crate) mod handover;
pub(crate) mod held;
pub(crate) mod kinds;
pub(crate) mod leases;
pub(crate) mod open_loop;
pub(crate) mod pairs;
pub(crate) mod ping;
pub(crate) mod recovery;
pub(crate) mod woken;

use std::thread;
use std::time::Duration;

use quorlock_servers::{Nodes, ServerBinary};

use crate::report::Figures;
use crate::subjects::{self, Flavor, Subject};

/// A run of the benchmark: its settings, its servers and the figures so far.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) binary: ServerBinary,
    pub(crate) testbed: Nodes,
    pub(crate) rounds: usize,
    /// The length of one measurement.
    pub(crate) sample: Duration,
    pub(crate) flavor: Flavor,
    pub(crate) figures: Figures,
}

impl Bench {
    /// Creates the named subjects. Reports the subjects that do not support this number of nodes.
    pub(crate) fn subjects(
        &mut self,
        workload: &str,
        names: &[&str],
        nodes: usize,
    ) -> Vec<Box<dyn Subject>> {
        let mut subjects = Vec::new();
        for name in names {
            match subjects::make(name, &self.testbed[..nodes], self.flavor) {
                Ok(subject) => subjects.push(subject),
                Err(why) => self.figures.not_run(name, workload, why),
            }
        }
        subjects
    }

    /// Measures each subject in every round. A subject that fails is not measured again.
    pub(crate) fn interleave(
        &mut self,
        workload: &str,
        mut subjects: Vec<Box<dyn Subject>>,
        mut turn: impl FnMut(&mut Self, &mut dyn Subject) -> Result<(), String>,
    ) {
        for _ in 0..self.rounds {
            subjects.retain_mut(|subject| {
                let result = turn(self, &mut **subject);
                if let Err(why) = &result {
                    self.figures.not_run(subject.name(), workload, why);
                }
                // Requests of this subject that are still in flight must not overlap with the next measurement.
                thread::sleep(Duration::from_millis(20));
                result.is_ok()
            });
            // Rotates the order, so that no subject is always the first or always follows the same one.
            if !subjects.is_empty() {
                subjects.rotate_left(1);
            }
        }
    }

    /// The time before a measurement in which connections open and caches warm up.
    pub(crate) fn warm_up(&self) -> Duration {
        (self.sample / 5).max(Duration::from_millis(20))
    }
}

/// Prints the current step on standard error.
pub(crate) fn progress(what: &str) {
    eprintln!("quorlock-bench: {what}");
}
