//! Many runs, and their results.

use std::panic;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use quorlock_sim::{Count, Counts, Violation, run, shrink};

use crate::args::Args;

/// If at least this number of seeds runs, counted from seed 0, every counted event must have happened. Other seeds may
/// miss a rare event by chance.
const ENOUGH: u64 = 5_000;

/// The program fails if more than one in this number of attempts after a push is hasty; see `is_hasty`.
const HASTY_SHARE: u64 = 4;

#[derive(Default)]
struct Findings {
    counts: Counts,
    runs: u64,
    failure: Option<(u64, Violation)>,
}

pub(crate) fn many(args: &Args) -> ExitCode {
    let from = args.base();
    let to = from.saturating_add(args.seeds);
    let drawn = if args.fresh { ", a base drawn from the time" } else { "" };
    println!("seeds {from} to {}{drawn}", to.saturating_sub(1));
    let (next, findings) = (AtomicU64::new(from), Mutex::new(Findings::default()));
    thread::scope(|scope| {
        for _ in 0..args.jobs {
            scope.spawn(|| work(args, &next, to, &findings));
        }
    });
    let findings = findings.into_inner().unwrap_or_else(PoisonError::into_inner);
    let hasty = args.only.is_none() && is_hasty(&findings.counts);
    if args.brief {
        return match findings.failure {
            None if hasty => {
                println!("seed {} breaks waking", to - 1);
                println!("{REPLAY} --from {from} --seeds {}", args.seeds);
                ExitCode::FAILURE
            }
            None => ExitCode::SUCCESS,
            Some((seed, Violation { invariant, .. })) => {
                println!("seed {seed} breaks {invariant}\n{REPLAY} --seed {seed}");
                ExitCode::FAILURE
            }
        };
    }
    print!("\n{}\n", findings.counts);
    if let Some((seed, violation)) = findings.failure {
        println!("seed {seed}: {violation}\n");
        if violation.invariant == NO_PANIC {
            println!("to run it again: {REPLAY} --seed {seed}");
            return ExitCode::FAILURE;
        }
        return explain(args, seed);
    }
    if hasty {
        println!("waking: too many attempts begin before pushes of other nodes can arrive");
        println!("{REPLAY} --from {from} --seeds {}", args.seeds);
        return ExitCode::FAILURE;
    }
    if from == 0 && args.seeds >= ENOUGH {
        let never: Vec<&str> = findings.counts.never().collect();
        if !never.is_empty() {
            println!("{} runs, and this never happened: {}", findings.runs, never.join(", "));
            return ExitCode::FAILURE;
        }
    }
    println!("{} runs, and every invariant held", findings.runs);
    ExitCode::SUCCESS
}

/// Whether too many waiting calls retry at the first push, instead of waiting one round trip for the pushes of other
/// nodes (docs/algorithm.md, Waiting). A few calls may do so, because their retry delay has passed. So only the share in
/// all runs together counts.
fn is_hasty(counts: &Counts) -> bool {
    counts.of(Count::AfterPush) >= 1_000
        && counts.of(Count::Hasty) * HASTY_SHARE > counts.of(Count::AfterPush)
}

/// Runs one seed after another until all have run or one has failed.
fn work(args: &Args, next: &AtomicU64, to: u64, findings: &Mutex<Findings>) {
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= to {
            return;
        }
        let outcome = panic::catch_unwind(|| run(&args.plan(seed), false));
        let mut findings = findings.lock().unwrap_or_else(PoisonError::into_inner);
        findings.runs += 1;
        let violation = match outcome {
            Ok(outcome) => {
                findings.counts.merge(&outcome.counts);
                outcome.violation
            }
            // The panic message is already on standard error.
            Err(_) => Some(Violation { invariant: NO_PANIC, what: "see above".to_owned(), at: 0 }),
        };
        if let Some(violation) = violation {
            if findings.failure.as_ref().is_none_or(|(other, _)| seed < *other) {
                findings.failure = Some((seed, violation));
            }
            next.store(to, Ordering::Relaxed);
            return;
        }
    }
}

pub(crate) fn replay(args: &Args, seed: u64) -> ExitCode {
    let plan = args.plan(seed);
    let outcome = run(&plan, true);
    println!("seed {seed}: {plan:#?}\n");
    outcome.trace.iter().for_each(|line| println!("{line}"));
    println!();
    match outcome.violation {
        None => {
            println!("seed {seed}: every invariant held");
            ExitCode::SUCCESS
        }
        Some(violation) => {
            println!("seed {seed}: {violation}");
            ExitCode::FAILURE
        }
    }
}

/// The name of the invariant that a panic violates.
const NO_PANIC: &str = "no panic";

const REPLAY: &str = "cargo run --release -p quorlock-sim --";

const LAST_LINES: usize = 60;

fn explain(args: &Args, seed: u64) -> ExitCode {
    let plan = shrink(&args.plan(seed));
    let outcome = run(&plan, true);
    println!(
        "with {} nodes, {} of them needed, {} clients; faults: {:?}, {:?}; outside: {:?}",
        plan.servers.quorum.nodes(),
        plan.servers.quorum.needed(),
        plan.load.clients,
        plan.faults.kinds,
        plan.later,
        plan.outside
    );
    let skipped = outcome.trace.len().saturating_sub(LAST_LINES);
    println!("… {skipped} lines before\n");
    outcome.trace[skipped..].iter().for_each(|line| println!("{line}"));
    println!("\nto see all of it: {REPLAY} --seed {seed}");
    ExitCode::FAILURE
}
