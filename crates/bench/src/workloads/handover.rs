//! Processes contend for one lock: the time from a release call to the next grant, and the fairness of the shares.

use std::thread;
use std::time::Duration;

use quorlock_servers::Server;

use super::{Bench, ping, progress};
use crate::clock::{self, micros};
use crate::handover_stats::{HandoverStats, Turn, jain};
use crate::report::Cell;
use crate::rivals;
use crate::testbed::{self, Commands};
use crate::worker::{Job, Task};
use crate::workers::Workers;

pub(crate) const NAME: &str = "handover";
pub(crate) const FAIRNESS: &str = "fairness";

/// The time for which a process holds the lock.
pub(crate) const HOLD: Duration = Duration::from_millis(5);

/// One measurement: processes that contend for one lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contention<'a> {
    pub(crate) subject: &'a str,
    pub(crate) nodes: usize,
    pub(crate) processes: usize,
    pub(crate) time: Duration,
    /// The number of nodes that are stopped (SIGSTOP) in the middle of the measurement and do not answer until its end.
    pub(crate) frozen: usize,
}

/// Runs each contention once per round, and `ping` at the start of each round.
pub(crate) fn run(bench: &mut Bench, contentions: &[Contention<'_>]) {
    for round in 1..=bench.rounds {
        progress(&format!("{NAME}, round {round}"));
        ping::round(bench);
        contentions.iter().for_each(|contention| once(bench, *contention));
    }
}

pub(crate) fn once(bench: &mut Bench, contention: Contention<'_>) {
    if let Err(why) = measure(bench, contention) {
        bench.figures.not_run(contention.subject, NAME, why);
    }
}

fn measure(bench: &mut Bench, contention: Contention<'_>) -> Result<(), String> {
    let Contention { subject, nodes, processes, time, frozen } = contention;
    let servers = &bench.testbed[..nodes];
    let job = Job {
        subject: subject.to_owned(),
        urls: testbed::urls(servers),
        flavor: bench.flavor,
        task: Task::Contend {
            // Each run has its own key, because a process that was killed in an earlier round may have left its lock.
            key: format!("bench:{NAME}:{}", clock::nanos(clock::now())),
            hold_us: u64::try_from(HOLD.as_micros()).unwrap_or(u64::MAX),
        },
    };
    let workers = workers(&job, servers, processes)?;
    let before = Commands::read(servers)?;
    let turns: Vec<Vec<Turn>> = thread::scope(|scope| {
        let freeze = scope.spawn(|| {
            if frozen == 0 {
                return Ok(());
            }
            thread::sleep(time / 2);
            servers[..frozen].iter().try_for_each(Server::pause)
        });
        let turns = workers.work(time);
        let froze = freeze.join().map_err(|_| "the freezer panicked".to_owned())?;
        servers[..frozen].iter().try_for_each(Server::resume).map_err(|error| error.to_string())?;
        froze.map_err(|error| error.to_string())?;
        turns
    })?;
    let sent = Commands::read(servers)?.since(&before).sent();
    let handover_stats = HandoverStats::new(&turns)?;

    let cell = Cell::new(NAME, subject, nodes, processes);
    let fair = Cell { workload: FAIRNESS, ..cell };
    let figures = &mut bench.figures;
    if handover_stats.handovers.is_empty() {
        // One process made all acquisitions, so there is no hand-over to measure. The fairness figures show this.
        figures.not_run(
            subject,
            NAME,
            "in a round the lock never went from one process to another: starvation",
        );
    } else {
        let at = |quantile| micros(handover_stats.handovers.value_at_quantile(quantile));
        figures.add(cell, "p50_us", at(0.5));
        figures.add(cell, "p99_us", at(0.99));
    }
    let acquisitions = handover_stats.acquisitions as f64;
    figures.add(cell, "acquisitions_per_s", acquisitions / time.as_secs_f64());
    figures.add(fair, "jain", jain(&handover_stats.shares));
    let least = handover_stats.shares.iter().min().copied().unwrap_or(0) as f64;
    figures.add(fair, "least_share", least * processes as f64 / acquisitions);
    let worst = micros(handover_stats.waits.value_at_quantile(0.999));
    figures.add(
        fair,
        "p999_over_mean_wait",
        worst / micros(1).max(handover_stats.waits.mean() / 1000.0),
    );
    let per_node = sent as f64 / acquisitions / nodes as f64;
    figures.add(fair, "commands_per_acquisition_and_node", per_node);
    figures.add(fair, "wakeups_per_acquisition", handover_stats.wakeups as f64 / acquisitions);
    Ok(())
}

/// Starts the worker processes. If the subject is a library of another language, they run that library's program.
fn workers(job: &Job, servers: &[Server], processes: usize) -> Result<Workers, String> {
    if let (Ok(rival), Task::Contend { key, .. }) = (rivals::find(&job.subject), &job.task) {
        let rival = rival.on(servers)?;
        return Workers::of(|| rival.worker(key, HOLD), processes);
    }
    Workers::start(job, processes)
}
