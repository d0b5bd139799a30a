//! `quorlock-chaos`: runs the shipped library and command line on real servers while it injects faults.
//!
//! ```text
//!   plan ──► nemesis ──► processes: stopped, killed     (workers)
//!  (a seed)     │    ──► connections: a proxy for each process and node
//!               │    ──► servers: stopped, killed, emptied, replaced, their clocks moved
//!   workers ── what they hold and write ──► ledger ──► oracles
//! ```

mod args;
mod clock;
mod commands;
mod faults;
mod holds;
mod ledger;
mod leftover_keys;
mod nemesis;
mod oracles;
mod plan;
mod protocol;
mod report;
mod round;
mod sentinel;
mod server_clock;
mod servers;
mod shared_numbers;
mod totals;
mod worker;
mod workers;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser as _;
use quorlock_servers::find_named;
use quorlock_sim::time::SECOND;
use signal_hook::consts::TERM_SIGNALS;

use crate::args::{Args, Command, RoundKind};
use crate::clock::{now, seconds};
use crate::commands::writer;
use crate::oracles::{LOST_UPDATES, OVERLAPS};
use crate::plan::{Abilities, RoundPlan, SEEDS_FOR_ALL};
use crate::protocol::Operation;
use crate::round::Programs;
use crate::server_clock::Shim;
use crate::totals::{CALLS, GRANTED, OPERATIONS, Totals, WRONG};

fn main() -> ExitCode {
    main_of_command().unwrap_or_else(|why| {
        eprintln!("quorlock-chaos: {why}");
        ExitCode::from(2)
    })
}

fn main_of_command() -> Result<ExitCode, String> {
    // The scripts that hold locks in command rounds start this program as a writer, with a hidden first argument.
    let mut words = std::env::args().skip(1);
    let first = words.next().filter(|first| writer::FIRST_ARGUMENTS.contains(&&**first));
    if let Some(first) = first {
        return writer::main(&first, &words.collect::<Vec<_>>()).map(|()| ExitCode::SUCCESS);
    }
    let args = Args::parse();
    match &args.command {
        Some(Command::Worker { job }) => worker::main(job).map(|()| ExitCode::SUCCESS),
        Some(Command::Sentinel(args)) => sentinel::main(args),
        None => chaos(&args),
    }
}

/// The text of an error.
fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn chaos(args: &Args) -> Result<ExitCode, String> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    let server = find_named(args.server.as_deref(), workspace)?;
    let interrupt = interrupt().map_err(|error| format!("signals: {error}"))?;
    let seed = args.base();
    println!("chaos against {server}, seed {seed}");
    let (can, quorlock) = (Abilities::default(), PathBuf::new());
    let mut programs = Programs { server, shim: None, quorlock, can, interrupt };
    if args.negative {
        return negative(args, seed, &programs);
    }
    match Shim::build(&programs.server) {
        Ok(shim) => programs.shim = Some(shim),
        Err(why) => println!("servers' clocks are not moved in this run: {why}"),
    }
    let all = vec![RoundKind::Library, RoundKind::Commands, RoundKind::Replicas];
    let kinds = args.only.map_or(all, |kind| vec![kind]);
    if kinds.contains(&RoundKind::Commands) {
        programs.quorlock = find_quorlock(args)?;
    }
    programs.can = Abilities {
        clocks: programs.shim.is_some(),
        steps: cfg!(quorlock_stepped_clock),
        leases: commands::has_leases(&programs.quorlock),
    };
    rounds(args, seed, &kinds, &programs)
}

/// The exit code after an interruption: the code that a shell reports after Ctrl-C.
const INTERRUPTED: u8 = 130;

/// Sets up the signals. The first signal ends the round and prints the results so far. The second signal ends the
/// program at once, and with it every process that the program started.
fn interrupt() -> std::io::Result<Arc<AtomicBool>> {
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
    kinds: &[RoundKind],
    programs: &Programs,
) -> Result<ExitCode, String> {
    let start = now();
    let end = start + (args.minutes * 60.0 * SECOND as f64) as i64;
    let mut all = vec![Totals::default(); kinds.len()];
    let mut longest_round = 0;
    'all: for seed in (0..=u64::MAX - first).map(|round| first + round) {
        for (kind, totals) in kinds.iter().zip(&mut all) {
            if args.only.is_none() && !kind.is_of(seed) {
                continue;
            }
            let began = now();
            let plan = RoundPlan::draw(*kind, seed, programs.can);
            totals.add(&run(&plan, args, programs)?);
            longest_round = longest_round.max(now() - began);
            let is_over = args.stop_at_first && totals.violations > 0;
            if is_over || programs.interrupt.load(Ordering::Relaxed) {
                break 'all;
            }
        }
        // The next seed starts only if its rounds can end in time, even if each takes as long as the longest so far.
        if now() + longest_round * kinds.len() as i64 > end {
            break;
        }
    }
    let mut failed = false;
    for (kind, totals) in kinds.iter().zip(&all) {
        println!("\n{}: {totals}", kind.name());
        let (needed, enough) = needed(*kind, programs.can);
        let missing = totals.missing(&needed, enough);
        if !missing.is_empty() {
            println!("NEVER CAME ABOUT: {}", missing.join(", "));
        }
        failed |= totals.violations > 0 || !missing.is_empty();
        failed |= *kind == RoundKind::Library && !are_shares_enough(totals);
    }
    let server = &programs.server;
    println!("{} in all, against {} {}", seconds(now() - start), server.flavor, server.version);
    let counts = kinds.iter().zip(&all).map(|(kind, it)| format!("{} {}", it.rounds, kind.name()));
    println!("rounds: {}; first seed {first}", counts.collect::<Vec<_>>().join(", "));
    println!("totals: {}", serde_json::to_string(&all).map_err(said)?);
    Ok(match failed {
        true => ExitCode::FAILURE,
        // An interrupted run did not pass, so its exit code is not 0.
        false if programs.interrupt.load(Ordering::Relaxed) => ExitCode::from(INTERRUPTED),
        false => ExitCode::SUCCESS,
    })
}

/// Runs a round and prints its result.
fn run(plan: &RoundPlan, args: &Args, programs: &Programs) -> Result<Totals, String> {
    report::announce(plan);
    let outcome = round::run(plan, programs)?;
    report::tell(plan, &outcome, args.journal);
    Ok(outcome.totals)
}

/// The number of rounds with commands after which every kind of command and every fault must have happened.
const ENOUGH: u64 = 4;

/// The counts that must not be zero, and the number of rounds after which they must not.
fn needed(kind: RoundKind, can: Abilities) -> (Vec<(&'static str, &'static str)>, u64) {
    match kind {
        RoundKind::Library => (oracles::needed(can.clocks), SEEDS_FOR_ALL),
        RoundKind::Commands => (commands::needed(can), ENOUGH),
        RoundKind::Replicas => (oracles::needed_with_replicas(), SEEDS_FOR_ALL),
        RoundKind::Sentinel => (Vec::new(), 1),
    }
}

/// The smallest share, in percent, that each frequent operation must have among all operations.
const SHARE_MIN: f64 = 5.0;

/// Prints the share of each operation. Returns false if an operation has too small a share after enough rounds.
fn are_shares_enough(library: &Totals) -> bool {
    let all = library.sum(OPERATIONS).max(1) as f64;
    let mut is_enough = true;
    for operation in Operation::ALL {
        let share = 100.0 * library.get(OPERATIONS, operation.name()) as f64 / all;
        let is_rare = operation.is_frequent() && share < SHARE_MIN;
        is_enough &= !is_rare || library.rounds < SEEDS_FOR_ALL;
        let note = if is_rare { ": TOO RARE" } else { "" };
        println!("  {share:5.1} % of the operations: {}{note}", operation.name());
    }
    is_enough
}

fn find_quorlock(args: &Args) -> Result<PathBuf, String> {
    let beside = || {
        let program = std::env::current_exe().ok()?;
        Some(program.with_file_name("quorlock"))
    };
    let path = args.quorlock.clone().or_else(beside).unwrap_or_default();
    match path.is_file() {
        true => path.canonicalize().map_err(|error| format!("{}: {error}", path.display())),
        false => Err(format!(
            "there is no {}: cargo xtask chaos builds it, --quorlock names another, and --only library \
             needs none",
            path.display()
        )),
    }
}

/// The largest number of rounds without the restart guard in [`negative`], which stops at the first lock with
/// two holders.
const ATTEMPTS: u32 = 10;

/// Runs the same faults without and with the restart guard: a majority of the nodes loses its data, again and
/// again. Without the restart guard, a lock must get two holders. With the restart guard, no lock may.
fn negative(args: &Args, seed: u64, programs: &Programs) -> Result<ExitCode, String> {
    let round = |guarded| run(&RoundPlan::negative(seed, guarded), args, programs);
    let mut without = round(false)?;
    // A lock gets two holders only if a client asks for it while another client holds it. That is rare on a busy
    // machine, so the round is repeated until it happens.
    for attempt in 2..=ATTEMPTS {
        if without.get(WRONG, OVERLAPS) > 0 || without.interrupted > 0 {
            break;
        }
        println!("  no lock had two holders: once more, {attempt} of {ATTEMPTS}");
        without = round(false)?;
    }
    if without.interrupted > 0 {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let [overlaps, lost] = [OVERLAPS, LOST_UPDATES].map(|name| without.get(WRONG, name));
    if overlaps == 0 {
        println!(
            "\nFAILED: no lock was seen to have two holders, although the restart guard was off. Either the nodes \
             did not lose their data, or chaos does not notice two holders"
        );
        return Ok(ExitCode::FAILURE);
    }
    let with = round(true)?;
    if with.interrupted > 0 {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    println!(
        "\nas expected without the restart guard: nodes lost their data, and {overlaps} times a lock had two \
         holders; {lost} updates were lost by that"
    );
    if with.violations > 0 {
        println!(
            "\nFAILED with the restart guard: {} violations under the same faults",
            with.violations
        );
        return Ok(ExitCode::FAILURE);
    }
    println!(
        "as expected with the restart guard: no violation under the same faults; {} locks were granted",
        with.get(CALLS, GRANTED)
    );
    Ok(ExitCode::SUCCESS)
}
