//! Many runs, and what came of them.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use quorlock_sim::{Counts, Plan, Violation, run, shrink};

use crate::args::Args;

/// From so many seeds on, everything that is counted must have happened.
const ENOUGH: u64 = 5_000;

/// What all threads have found together.
#[derive(Default)]
struct Found {
    counts: Counts,
    runs: u64,
    /// The smallest seed that fails.
    failure: Option<(u64, Violation)>,
}

/// Runs many seeds and prints what happened in them.
pub(crate) fn many(args: &Args) -> ExitCode {
    let (from, to) = (args.from, args.from.saturating_add(args.seeds));
    println!("seeds {from} to {}", to.saturating_sub(1));
    let (next, found) = (AtomicU64::new(from), Mutex::new(Found::default()));
    thread::scope(|scope| {
        for _ in 0..args.jobs {
            scope.spawn(|| work(&next, to, &found));
        }
    });
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    print!("\n{}\n", found.counts);
    if let Some((seed, violation)) = found.failure {
        println!("seed {seed}: {violation}\n");
        return explain(seed);
    }
    if args.seeds >= ENOUGH {
        let never: Vec<&str> = found.counts.never().collect();
        if !never.is_empty() {
            println!("{} runs, and this never happened: {}", found.runs, never.join(", "));
            return ExitCode::FAILURE;
        }
    }
    println!("{} runs, and every invariant held", found.runs);
    ExitCode::SUCCESS
}

/// Takes one seed after the other until there are no more, or one has failed.
fn work(next: &AtomicU64, to: u64, found: &Mutex<Found>) {
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= to {
            return;
        }
        let outcome = run(&Plan::draw(seed), false);
        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
        found.runs += 1;
        found.counts.merge(&outcome.counts);
        if let Some(violation) = outcome.violation {
            if found.failure.as_ref().is_none_or(|(other, _)| seed < *other) {
                found.failure = Some((seed, violation));
            }
            next.store(to, Ordering::Relaxed);
            return;
        }
    }
}

/// Runs one seed and tells everything.
pub(crate) fn replay(seed: u64) -> ExitCode {
    let plan = Plan::draw(seed);
    let outcome = run(&plan, true);
    println!("seed {seed}: {plan:#?}\n");
    outcome.trace.iter().for_each(|line| println!("{line}"));
    match outcome.violation {
        None => {
            println!("\nseed {seed}: every invariant held");
            ExitCode::SUCCESS
        }
        Some(violation) => {
            println!("\nseed {seed}: {violation}");
            ExitCode::FAILURE
        }
    }
}

/// How many lines before the end are shown of a seed that fails.
const LAST_LINES: usize = 60;

/// The end of a failing seed's story, with as few faults as still make it fail.
fn explain(seed: u64) -> ExitCode {
    let plan = shrink(&Plan::draw(seed));
    let outcome = run(&plan, true);
    println!(
        "with {} nodes, {} of them needed, {} clients; faults: {:?}; outside: {:?}",
        plan.quorum.nodes(),
        plan.quorum.needed(),
        plan.clients,
        plan.faults,
        plan.outside
    );
    let skipped = outcome.trace.len().saturating_sub(LAST_LINES);
    println!("… {skipped} lines before\n");
    outcome.trace[skipped..].iter().for_each(|line| println!("{line}"));
    println!("\nto see all of it: cargo run --release -p quorlock-sim -- --seed {seed}");
    ExitCode::FAILURE
}
