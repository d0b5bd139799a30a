//! The report: figures, machine and versions. Its JSON is the source of the plots and of the numbers in the documents.

use serde::{Deserialize, Serialize};

use crate::sample::Sample;

/// The results of one run of the benchmark. Documents and plots depend on the names of the fields in the JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) quorlock: String,
    /// The commit, if the benchmark was built in a checkout.
    pub(crate) commit: Option<String>,
    /// Whether the checkout had uncommitted changes.
    pub(crate) dirty: bool,
    /// The date in UTC.
    pub(crate) date: String,
    pub(crate) command: String,
    pub(crate) machine: Machine,
    pub(crate) servers: Vec<Servers>,
    /// Versions of all subjects and of the crates they use.
    pub(crate) versions: std::collections::BTreeMap<String, String>,
    pub(crate) rounds: usize,
    pub(crate) results: Vec<Row>,
    pub(crate) not_run: Vec<NotRun>,
    pub(crate) targets: Vec<Target>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_gib: u64,
    pub(crate) os: String,
    pub(crate) kernel: String,
    /// The file system to which servers with persistence write, such as `ext4 on /dev/sda1`.
    #[serde(default)]
    pub(crate) disk: String,
}

/// A group of servers with the same version.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Servers {
    pub(crate) product: String,
    pub(crate) version: String,
    pub(crate) count: usize,
}

/// A figure, with its value in every round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) workload: String,
    pub(crate) subject: String,
    pub(crate) nodes: usize,
    /// The number of lockers, processes, or pairs per second, depending on the workload.
    pub(crate) concurrency: usize,
    pub(crate) metric: String,
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) values: Vec<f64>,
}

/// A measurement that was not possible.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NotRun {
    pub(crate) subject: String,
    pub(crate) workload: String,
    pub(crate) why: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) goal: String,
    /// The value to compare with the goal. `None` if a figure that the target needs was not measured.
    pub(crate) value: Option<f64>,
    pub(crate) met: bool,
}

/// The subject, workload and settings to which figures belong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell<'a> {
    pub(crate) workload: &'a str,
    pub(crate) subject: &'a str,
    pub(crate) nodes: usize,
    pub(crate) concurrency: usize,
}

impl<'a> Cell<'a> {
    pub(crate) const fn new(
        workload: &'a str,
        subject: &'a str,
        nodes: usize,
        concurrency: usize,
    ) -> Self {
        Self { workload, subject, nodes, concurrency }
    }
}

/// Collects the figures of a run.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) rows: Vec<Row>,
    pub(crate) not_run: Vec<NotRun>,
}

impl Figures {
    /// Adds the value of a figure in one more round.
    pub(crate) fn add(&mut self, cell: Cell<'_>, metric: &str, value: f64) {
        let row = match self.rows.iter_mut().find(|row| row.is(cell, metric)) {
            Some(row) => row,
            None => {
                self.rows.push(Row::new(cell, metric));
                self.rows.last_mut().expect("pushed just now")
            }
        };
        row.values.push(value);
        let mut sorted = row.values.clone();
        sorted.sort_by(f64::total_cmp);
        row.median = median(&sorted);
        (row.min, row.max) = (sorted[0], sorted[sorted.len() - 1]);
    }

    /// Adds the throughput, latency and CPU time of a sample: the figures of one round.
    pub(crate) fn add_pairs(&mut self, cell: Cell<'_>, sample: &Sample) {
        self.add(cell, "pairs_per_s", sample.rate());
        self.add(cell, "p50_us", sample.p50_us);
        self.add(cell, "p99_us", sample.p99_us);
        self.add(cell, "cpu_us_per_pair", sample.cpu_us_per_pair());
    }

    /// Records a measurement that was not possible. A repeated record changes nothing.
    pub(crate) fn not_run(&mut self, subject: &str, workload: &str, why: impl Into<String>) {
        let (subject, workload) = (subject.to_owned(), workload.to_owned());
        let entry = NotRun { subject, workload, why: why.into() };
        if !self.not_run.contains(&entry) {
            self.not_run.push(entry);
        }
    }

    pub(crate) fn median(&self, cell: Cell<'_>, metric: &str) -> Option<f64> {
        self.row(cell, metric).map(|row| row.median)
    }

    pub(crate) fn row(&self, cell: Cell<'_>, metric: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.is(cell, metric))
    }
}

impl Row {
    fn new(cell: Cell<'_>, metric: &str) -> Self {
        Self {
            workload: cell.workload.to_owned(),
            subject: cell.subject.to_owned(),
            nodes: cell.nodes,
            concurrency: cell.concurrency,
            metric: metric.to_owned(),
            median: 0.0,
            min: 0.0,
            max: 0.0,
            values: Vec::new(),
        }
    }

    fn is(&self, cell: Cell<'_>, metric: &str) -> bool {
        self.workload == cell.workload
            && self.subject == cell.subject
            && self.nodes == cell.nodes
            && self.concurrency == cell.concurrency
            && self.metric == metric
    }
}

/// The median of a sorted, non-empty slice.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_become_a_median_and_a_spread() {
        let mut figures = Figures::default();
        let cell = Cell::new("pairs", "raw", 5, 64);
        for value in [3.0, 1.0, 2.0] {
            figures.add(cell, "p50_us", value);
        }
        figures.add(cell, "p99_us", 9.0);
        let row = &figures.rows[0];
        assert_eq!((row.median, row.min, row.max), (2.0, 1.0, 3.0));
        assert_eq!(row.values, [3.0, 1.0, 2.0]);
        figures.add(cell, "p50_us", 4.0);
        assert_eq!(figures.median(cell, "p50_us"), Some(2.5));
        assert_eq!(figures.median(Cell { nodes: 3, ..cell }, "p50_us"), None);
    }
}
