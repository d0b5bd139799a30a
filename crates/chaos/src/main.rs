//! `quorlock-chaos`: the library as it is shipped, against real servers, while everything breaks.
//!
//! ```text
//!   plan ──► nemesis ──► processes: stopped, killed     (crew)
//!  (a seed)     │    ──► connections: a proxy for each process and node
//!               │    ──► servers: stopped, killed, started again when that is allowed
//!   workers ── what they hold and write ──► ledger ──► oracles
//! ```

mod args;
mod clock;
mod crew;
mod ledger;
mod nemesis;
mod oracles;
mod plan;
mod round;
mod summary;
mod talk;
mod worker;

use std::fs;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser as _;
use quorlock_servers::{ServerBinary, find_named};
use quorlock_sim::time::SECOND;
use signal_hook::consts::TERM_SIGNALS;

use crate::args::{Args, Command};
use crate::clock::now;
use crate::ledger::seconds;
use crate::plan::Plan;
use crate::round::{Interrupt, Outcome};
use crate::summary::Summary;

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match &args.command {
        Some(Command::Worker { job }) => worker::main(job).map(|()| ExitCode::SUCCESS),
        None => chaos(&args),
    };
    result.unwrap_or_else(|why| {
        eprintln!("quorlock-chaos: {why}");
        ExitCode::from(2)
    })
}

fn chaos(args: &Args) -> Result<ExitCode, String> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    let binary = find_named(args.server.as_deref(), workspace)?;
    let interrupt = interrupt().map_err(|error| format!("signals: {error}"))?;
    // Small, so that it can be typed.
    let seed = args.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish() % 1_000_000);
    println!("chaos against {binary}, seed {seed}");
    if args.negative {
        negative(args, seed, &binary, &interrupt)
    } else {
        rounds(args, seed, &binary, &interrupt)
    }
}

/// How a shell names the end by Ctrl-C.
const INTERRUPTED: u8 = 130;

/// The first signal ends the round and tells what there is; the second ends the program at once, and
/// all that it started with it.
fn interrupt() -> std::io::Result<Interrupt> {
    let interrupt = Arc::new(AtomicBool::new(false));
    for signal in TERM_SIGNALS {
        signal_hook::flag::register_conditional_shutdown(
            *signal,
            INTERRUPTED.into(),
            interrupt.clone(),
        )?;
        signal_hook::flag::register(*signal, interrupt.clone())?;
    }
    Ok(interrupt)
}

fn rounds(
    args: &Args,
    first: u64,
    binary: &ServerBinary,
    interrupt: &Interrupt,
) -> Result<ExitCode, String> {
    let start = now();
    let end = start + (args.minutes * 60.0 * SECOND as f64) as i64;
    let mut summary = Summary::default();
    let mut longest = 0;
    for seed in (0..=u64::MAX - first).map(|round| first + round) {
        let plan = Plan::draw(seed);
        announce(&plan);
        let began = now();
        let outcome = round::run(&plan, binary, interrupt)?;
        longest = longest.max(now() - began);
        tell(args, &plan, &outcome);
        summary.add(seed, &outcome);
        if interrupt.load(Ordering::Relaxed) || now() + longest > end {
            break;
        }
    }
    println!(
        "\n{summary}, {} in all, against {} {}",
        seconds(now() - start),
        binary.flavor,
        binary.version
    );
    Ok(match summary.has_failed() {
        true => ExitCode::FAILURE,
        // Nobody is to take what was broken off for what was passed.
        false if interrupt.load(Ordering::Relaxed) => ExitCode::from(INTERRUPTED),
        false => ExitCode::SUCCESS,
    })
}

fn negative(
    args: &Args,
    seed: u64,
    binary: &ServerBinary,
    interrupt: &Interrupt,
) -> Result<ExitCode, String> {
    let plan = Plan::negative(seed);
    announce(&plan);
    let outcome = round::run(&plan, binary, interrupt)?;
    tell(args, &plan, &outcome);
    let mut summary = Summary::default();
    summary.add(seed, &outcome);
    let (overlaps, lost) = (summary.overlaps(), outcome.witness.lost());
    println!();
    if overlaps > 0 {
        println!(
            "as it must be: nodes that forget what they granted let two hold one lock. Seen \
             {overlaps} times; {lost} updates were lost by it"
        );
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "NOT SEEN: two holders at the same time. Either nodes did not forget, or nobody looks"
    );
    Ok(ExitCode::FAILURE)
}

fn announce(plan: &Plan) {
    let kinds: Vec<_> = plan.kinds.iter().map(|kind| kind.name()).collect();
    let Plan { seed, nodes, max_ttl, exact, .. } = plan;
    let exact = if *exact { ", no margin" } else { "" };
    println!(
        "\nseed {seed}: {nodes} nodes, ttl up to {}{exact}; {}",
        seconds(*max_ttl),
        kinds.join(", ")
    );
}

/// What came of a round, and how it can be repeated if it should not have.
fn tell(args: &Args, plan: &Plan, outcome: &Outcome) {
    if args.story {
        outcome.story.iter().for_each(|line| println!("{line}"));
    }
    let healed = match outcome.healed {
        Some(after) if !outcome.interrupted => format!("healed within {}", seconds(after)),
        _ => "not healed".to_owned(),
    };
    println!(
        "  {} faults, {} grants, {} losses; {} overlaps, {} lost updates, {} keys left, {healed}",
        outcome.injected.values().sum::<u64>(),
        outcome.tally.granted,
        outcome.tally.lost.values().sum::<u64>(),
        outcome.overlaps,
        outcome.witness.lost(),
        outcome.keys.wrong().count(),
    );
    if outcome.violations.is_empty() {
        return;
    }
    if !args.story {
        println!("  around the first violation (p1c: the third caller of process 1):");
        outcome.extract.iter().for_each(|line| println!("{line}"));
    }
    let count = outcome.violations.len();
    let again = if args.negative { "--negative" } else { "--minutes 0.1" };
    println!(
        "  {count} violations; the same schedule again: cargo xtask chaos --seed {} {again}",
        plan.seed
    );
    match keep(plan, outcome) {
        Ok(path) => println!("  the whole story is in {}", path.display()),
        Err(error) => eprintln!("quorlock-chaos: the story could not be written: {error}"),
    }
}

fn keep(plan: &Plan, outcome: &Outcome) -> std::io::Result<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = manifest.ancestors().nth(2).unwrap_or(manifest).join("target/chaos");
    fs::create_dir_all(&folder)?;
    let file = folder.join(format!("seed-{}.txt", plan.seed));
    fs::write(&file, outcome.story.join("\n") + "\n")?;
    Ok(file)
}
