//! Processes that want the same lock: how long it takes from the call that gives it back to the next
//! one's having it, and whether all get their share.

use std::time::Duration;

use clap::ValueEnum as _;
use hdrhistogram::Histogram;
use quorlock_servers::Server;

use super::{Bench, ping, progress};
use crate::clock::micros;
use crate::crew::Crew;
use crate::lab::{self, Commands};
use crate::report::Cell;
#[cfg(feature = "rivals")]
use crate::rivals;
use crate::slice::Latencies;
#[cfg(feature = "rivals")]
use crate::subjects::EXTERNAL;
use crate::worker::{Job, Task, Turn};

pub(crate) const NAME: &str = "handover";
pub(crate) const FAIRNESS: &str = "fairness";

/// For how long each has the lock.
pub(crate) const HOLD: Duration = Duration::from_millis(5);

/// So many processes on so many nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contention<'a> {
    pub(crate) subject: &'a str,
    pub(crate) nodes: usize,
    pub(crate) processes: usize,
    pub(crate) time: Duration,
}

/// Runs each of these once in every round, and a ping beside them.
pub(crate) fn run(bench: &mut Bench, contentions: &[Contention<'_>]) {
    for round in 1..=bench.rounds {
        progress(&format!("{NAME}, round {round}"));
        ping::round(bench);
        contentions.iter().for_each(|contention| once(bench, *contention));
    }
}

/// Runs one of them once.
pub(crate) fn once(bench: &mut Bench, contention: Contention<'_>) {
    if let Err(why) = measure(bench, contention) {
        bench.figures.not_run(contention.subject, NAME, why);
    }
}

fn measure(bench: &mut Bench, contention: Contention<'_>) -> Result<(), String> {
    let Contention { subject, nodes, processes, time } = contention;
    let servers = bench.lab.first(nodes);
    let flavor = bench.flavor.to_possible_value();
    let job = Job {
        subject: subject.to_owned(),
        urls: lab::urls(servers),
        flavor: flavor.map_or_else(String::new, |value| value.get_name().to_owned()),
        task: Task::Contend {
            key: format!("bench:{NAME}:{subject}"),
            hold_us: u64::try_from(HOLD.as_micros()).unwrap_or(u64::MAX),
        },
    };
    let crew = crew(&job, servers, processes)?;
    let before = Commands::read(servers)?;
    let turns: Vec<Vec<Turn>> = crew.work(time)?;
    let sent = Commands::read(servers)?.since(&before).sent();
    let story = Story::new(&turns)?;

    let concurrency = processes as u64;
    let cell = Cell { workload: NAME, subject, nodes, concurrency };
    let fair = Cell { workload: FAIRNESS, ..cell };
    let figures = &mut bench.figures;
    if story.handovers.is_empty() {
        // It was starvation: all acquisitions were one process's. Its share tells.
        figures.not_run(
            subject,
            NAME,
            "in a round the lock never went from one process to another: starvation",
        );
    } else {
        let at = |quantile| micros(story.handovers.value_at_quantile(quantile));
        figures.add(cell, "p50_us", at(0.5));
        figures.add(cell, "p99_us", at(0.99));
    }
    let acquisitions = story.acquisitions as f64;
    figures.add(cell, "acquisitions_per_s", acquisitions / time.as_secs_f64());
    figures.add(fair, "jain", jain(&story.shares));
    let least = story.shares.iter().min().copied().unwrap_or(0) as f64;
    figures.add(fair, "least_share", least * processes as f64 / acquisitions);
    let worst = micros(story.waits.value_at_quantile(0.999));
    figures.add(fair, "p999_over_mean_wait", worst / micros(1).max(story.waits.mean() / 1000.0));
    let per_node = sent as f64 / acquisitions / nodes as f64;
    figures.add(fair, "commands_per_acquisition_and_node", per_node);
    figures.add(fair, "wakeups_per_acquisition", story.wakeups as f64 / acquisitions);
    Ok(())
}

/// The processes: this program, or the subject's own.
fn crew(job: &Job, servers: &[Server], processes: usize) -> Result<Crew, String> {
    #[cfg(feature = "rivals")]
    if let (true, Task::Contend { key, .. }) = (EXTERNAL.contains(&&*job.subject), &job.task) {
        let rival = rivals::find(&job.subject)?.on(servers)?;
        return Crew::of(|| rival.worker(key, HOLD), processes);
    }
    #[cfg(not(feature = "rivals"))]
    let _ = servers;
    Crew::start(job, processes)
}

/// What happened to the lock, all processes taken together.
struct Story {
    acquisitions: u64,
    /// How often each process had it.
    shares: Vec<u64>,
    /// From the call to release to the acquisition by another process that was waiting by then.
    handovers: Histogram<u64>,
    /// From asking to having; also those that the end cut short.
    waits: Histogram<u64>,
    /// For each acquisition, how many times somebody else released the lock while it was waited
    /// for: so often somebody who waits has a reason to ask.
    wakeups: u64,
}

/// One time that the lock was held.
#[derive(Clone, Copy)]
struct Hold {
    process: usize,
    asked: u64,
    acquired: u64,
    released: u64,
}

impl Story {
    /// # Errors
    /// If nobody ever had the lock, or two had it at the same time.
    fn new(turns: &[Vec<Turn>]) -> Result<Self, String> {
        let mut holds = Vec::new();
        let mut waits = Latencies::default();
        let end = turns.iter().flatten().map(|turn| turn.2.unwrap_or(turn.0)).max().unwrap_or(0);
        for (process, turns) in turns.iter().enumerate() {
            for &Turn(asked, acquired, released) in turns {
                let until = acquired.unwrap_or(end).saturating_sub(asked);
                waits.record(Duration::from_nanos(until));
                if let Some((acquired, released)) = acquired.zip(released) {
                    holds.push(Hold { process, asked, acquired, released });
                }
            }
        }
        holds.sort_by_key(|hold| hold.acquired);
        if holds.is_empty() {
            return Err("nobody ever had the lock".to_owned());
        }
        let mut handovers = Latencies::default();
        for pair in holds.windows(2) {
            let (before, after) = (pair[0], pair[1]);
            let Some(gap) = after.acquired.checked_sub(before.released) else {
                return Err(format!(
                    "processes {} and {} had the lock at the same time",
                    before.process, after.process
                ));
            };
            if before.process != after.process && after.asked < before.released {
                handovers.record(Duration::from_nanos(gap));
            }
        }
        let mut shares = vec![0; turns.len()];
        holds.iter().for_each(|hold| shares[hold.process] += 1);
        Ok(Self {
            acquisitions: holds.len() as u64,
            shares,
            handovers: handovers.histogram(),
            waits: waits.histogram(),
            wakeups: holds.iter().map(|hold| wakeups(&holds, *hold)).sum(),
        })
    }
}

/// How often others released the lock while this one waited.
fn wakeups(holds: &[Hold], waiter: Hold) -> u64 {
    // The releases are in order too, since no two hold the lock at once.
    let first = holds.partition_point(|hold| hold.released <= waiter.asked);
    let last = holds.partition_point(|hold| hold.released <= waiter.acquired);
    let others = holds[first..last].iter().filter(|hold| hold.process != waiter.process);
    others.count() as u64
}

/// Jain's index: 1 if all have the same share, 1/n if one has it all.
fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|&share| share as f64).sum();
    let squares: f64 = shares.iter().map(|&share| (share as f64).powi(2)).sum();
    sum * sum / (shares.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(asked: u64, acquired: u64, released: u64) -> Turn {
        Turn(asked, Some(acquired), Some(released))
    }

    #[test]
    fn a_handover_is_from_one_process_to_another_that_waits() {
        let turns = [
            vec![turn(0, 10, 100), turn(101, 110, 200), turn(800, 900, 950)],
            vec![turn(5, 230, 300), Turn(301, None, None)],
        ];
        let story = Story::new(&turns).unwrap();
        assert_eq!(story.acquisitions, 4);
        assert_eq!(story.shares, [3, 1]);
        // From 200 to 230; not from 100 to 110, and not to the one that asked after the release.
        assert_eq!((story.handovers.len(), story.handovers.max()), (1, 30));
        assert_eq!((story.waits.len(), story.waits.max()), (5, 649));
        // The second process waited through two releases, the first through none.
        assert_eq!(story.wakeups, 2);
    }

    #[test]
    fn two_holders_at_once_are_no_result() {
        let turns = [vec![turn(0, 10, 100)], vec![turn(0, 99, 120)]];
        assert!(Story::new(&turns).is_err());
    }

    #[test]
    fn shares_that_are_equal_have_index_one() {
        assert!((jain(&[5, 5, 5, 5]) - 1.0).abs() < 1e-9);
        assert!((jain(&[8, 0, 0, 0]) - 0.25).abs() < 1e-9);
    }
}
