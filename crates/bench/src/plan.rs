//! Selects the workloads, their duration and their order.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::machine;
use crate::report::{Cell, Figures, Report, Servers};
use crate::rivals::RIVALS;
use crate::subjects::{self, Flavor, OURS};
use crate::targets;
use crate::testbed;
use crate::workloads::handover::Contention;
use crate::workloads::{
    Bench, contended, frozen, handover, held, kinds, leases, open_loop, pairs, ping, recovery,
    woken,
};

/// The extent of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The most important figures, in less than a minute.
    Quick,
    /// All figures that have targets, in less than ten minutes.
    Targets,
    /// The figures of `Targets`, and how the cost grows with the numbers of nodes and lockers. Without a time limit.
    Full,
}

/// The settings from the command line.
#[derive(Clone, Debug)]
pub(crate) struct BenchPlan {
    pub(crate) scope: Scope,
    pub(crate) server: Option<String>,
    pub(crate) rounds: usize,
    pub(crate) sample: Duration,
    pub(crate) flavor: Flavor,
    /// The names of the selected workloads. Empty: all workloads that the scope includes.
    pub(crate) only: Vec<String>,
    /// Whether the run also measures lock libraries of other languages.
    pub(crate) rivals: bool,
}

impl BenchPlan {
    fn wants(&self, workload: &str) -> bool {
        // These workloads take minutes and compare quorlock with no other library, so they run only on request.
        let is_extra = [recovery::NAME, kinds::NAME, leases::NAME].contains(&workload)
            && self.scope != Scope::Full;
        match self.only.is_empty() {
            true => !is_extra,
            false => self.only.iter().any(|only| only == workload),
        }
    }
}

/// All workloads, as `--only` names them.
pub(crate) const WORKLOADS: [&str; 12] = [
    pairs::NAME,
    ping::NAME,
    open_loop::NAME,
    woken::NAME,
    handover::NAME,
    handover::FAIRNESS,
    contended::NAME,
    frozen::NAME,
    held::NAME,
    kinds::NAME,
    leases::NAME,
    recovery::NAME,
];

/// The subjects of `open_loop`, and of `pairs` in a quick run.
const MAIN: [&str; 3] = ["quorlock", "raw", "rslock"];

/// Runs the selected workloads.
///
/// # Errors
/// If there are no servers. The report contains all other errors.
pub(crate) fn run(plan: &BenchPlan) -> Result<Report, String> {
    let binary = testbed::server(plan.server.as_deref())?;
    let count = if plan.scope == Scope::Full { 7 } else { 5 };
    let testbed = testbed::start(&binary, count, &[])?;
    let BenchPlan { rounds, sample, flavor, .. } = *plan;
    let mut bench = Bench { binary, testbed, rounds, sample, flavor, figures: Figures::default() };
    match plan.scope {
        Scope::Quick => quick(&mut bench, plan),
        Scope::Targets | Scope::Full => all(&mut bench, plan),
    }
    Ok(report(bench, plan, count))
}

fn quick(bench: &mut Bench, plan: &BenchPlan) {
    pairs::run(bench, &MAIN, 5, 64);
    pairs::run(bench, &MAIN, 5, 1);
    let time = 2 * plan.sample;
    let contention = Contention { subject: "quorlock", nodes: 5, processes: 2, time, frozen: 0 };
    handover::run(bench, &[contention]);
}

fn all(bench: &mut Bench, plan: &BenchPlan) {
    let wanted = |name: &str| plan.wants(name);
    let every: Vec<&str> = OURS.into_iter().chain(RIVALS.map(|rival| rival.name)).collect();
    if wanted(ping::NAME) && !wanted(handover::NAME) {
        ping::run(bench);
    }
    if wanted(pairs::NAME) {
        let (nodes, lockers): (&[usize], &[usize]) = match plan.scope {
            Scope::Full => (&[1, 3, 5, 7], &[1, 8, 64, 512]),
            _ => (&[1, 5], &[1, 64]),
        };
        for &nodes in nodes {
            for &lockers in lockers {
                // Programs of other languages start slowly, so only `--full` measures them with other than 64 lockers.
                let others = plan.rivals && (plan.scope == Scope::Full || lockers == 64);
                pairs::run(bench, if others { &every[..] } else { &OURS }, nodes, lockers);
            }
        }
    }
    if wanted(open_loop::NAME) {
        // All subjects get the same rate, a part of the throughput of `raw` (plain sockets), which depends on the
        // machine alone, not on quorlock.
        let raw = Cell::new(pairs::NAME, "raw", 5, 64);
        if bench.figures.median(raw, "pairs_per_s").is_none() {
            pairs::run(bench, &["raw"], 5, 64);
        }
        if let Some(most) = bench.figures.median(raw, "pairs_per_s") {
            for percent in [10.0, 50.0] {
                let rate = (most * percent / 10_000.0).round().max(1.0) as usize * 100;
                open_loop::run(bench, &MAIN, 5, rate);
            }
        }
    }
    if wanted(woken::NAME) {
        woken::run(bench, &[1, 5]);
    }
    contention(bench, plan);
    if wanted(contended::NAME) {
        contended::run(bench, 5, 64);
    }
    if wanted(frozen::NAME) {
        frozen::run(bench, &["quorlock", "rslock"]);
    }
    if wanted(held::NAME) {
        // By default, 15 samples last for four extensions of each lock. Two rounds suffice: there is no other subject.
        held::run(bench, 5, 10_000, 15 * plan.sample, plan.rounds.min(2));
    }
    if wanted(kinds::NAME) {
        kinds::run(bench);
    }
    if wanted(leases::NAME) {
        leases::run(bench);
    }
    if wanted(recovery::NAME) {
        recovery::run(bench);
    }
}

fn contention(bench: &mut Bench, plan: &BenchPlan) {
    let sample = plan.sample;
    let wanted = |name: &str| plan.wants(name);
    let of =
        |subject, nodes, processes, time| Contention { subject, nodes, processes, time, frozen: 0 };
    let mut each_round = Vec::new();
    if wanted(handover::NAME) {
        each_round.extend([
            of("quorlock", 1, 2, 3 * sample),
            of("quorlock", 1, 8, 3 * sample),
            of("quorlock", 5, 2, 3 * sample),
            of("rslock", 5, 2, 3 * sample),
        ]);
        if plan.rivals && plan.scope == Scope::Full {
            // With one node, all other libraries can be measured. With five nodes, all except redis-py can.
            let both = [1, 5]
                .map(|nodes| RIVALS.iter().map(move |rival| of(rival.name, nodes, 2, 3 * sample)));
            each_round.extend(both.into_iter().flatten());
        }
    }
    if wanted(handover::NAME) || wanted(handover::FAIRNESS) {
        // By default this measurement takes 20 s, so that there are enough hand-overs for a 99.9th percentile.
        each_round.push(of("quorlock", 5, 8, 25 * sample));
    }
    if !each_round.is_empty() {
        handover::run(bench, &each_round);
    }
    if wanted(handover::FAIRNESS) {
        crate::workloads::progress("fairness, 64 processes, two of five nodes frozen half-way");
        handover::once(bench, Contention { frozen: 2, ..of("quorlock", 5, 64, 25 * sample) });
    }
}

fn report(bench: Bench, plan: &BenchPlan, count: usize) -> Report {
    let (commit, dirty) = machine::commit();
    let targets = match plan.scope {
        Scope::Quick => Vec::new(),
        _ => targets::judge(&bench.figures, |workload| plan.wants(workload)),
    };
    let servers = Servers {
        product: bench.binary.flavor.to_string().to_lowercase(),
        version: bench.binary.version.to_string(),
        count,
    };
    let mut versions = machine::versions();
    if plan.rivals {
        versions.extend(subjects::external_versions());
    }
    Report {
        quorlock: env!("CARGO_PKG_VERSION").to_owned(),
        commit,
        dirty,
        date: machine::date(),
        command: machine::command(),
        machine: machine::machine(),
        servers: vec![servers],
        versions,
        rounds: plan.rounds,
        results: bench.figures.rows,
        not_run: bench.figures.not_run,
        targets,
    }
}

/// Returns the figures of a quick run as one flat JSON object.
pub(crate) fn summary(report: &Report) -> Value {
    let figures = Figures { rows: report.results.clone(), not_run: Vec::new() };
    let of = |subjects: &[&str], concurrency, metric| {
        let mut object = Map::new();
        for subject in subjects {
            let cell = Cell::new(pairs::NAME, subject, 5, concurrency);
            object.insert((*subject).to_owned(), json!(figures.median(cell, metric)));
        }
        Value::Object(object)
    };
    let handover = Cell::new(handover::NAME, "quorlock", 5, 2);
    json!({
        "throughput_n5_c64": of(&MAIN, 64, "pairs_per_s"),
        "p50_us_n5_c1": of(&MAIN, 1, "p50_us"),
        "cpu_us_per_pair_n5_c64": of(&["quorlock", "raw", "rslock"], 64, "cpu_us_per_pair"),
        "handover_p50_us_n5": figures.median(handover, "p50_us"),
        // The targets for hand-overs are multiples of this figure; see targets.rs.
        "ping_p50_us": figures.median(ping::PAUSED, "p50_us"),
        "ping_without_pause_p50_us": figures.median(ping::CELL, "p50_us"),
    })
}
