//! `quorlock-chaos`: runs the shipped library on real servers while it injects faults.
//!
//! ```text
//!   plan ──► nemesis ──► processes: stopped, killed     (workers)
//!  (a seed)     │    ──► connections: a proxy for each process and node
//!               │    ──► servers: stopped, killed, emptied, replaced, their clocks moved
//!   workers ── what they hold and write ──► ledger ──► oracles
//! ```

mod act;
mod args;
mod clock;
mod commands;
mod holds;
mod ledger;
mod nemesis;
mod numbers;
mod oracles;
mod plan;
mod protocol;
mod round;
mod sentinel;
mod servers;
mod shim;
mod totals;
mod worker;
mod workers;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser as _;
use quorlock_servers::{ServerBinary, find_named};
use quorlock_sim::time::SECOND;
use signal_hook::consts::TERM_SIGNALS;

use crate::args::{Args, Command, RoundKind};
use crate::clock::{now, seconds};
use crate::commands::writer;
use crate::ledger::{CALLS, Findings, GRANTED, LOST, OPERATIONS};
use crate::plan::{RoundPlan, SEEDS_FOR_ALL};
use crate::protocol::Operation;
use crate::round::Interrupt;
use crate::shim::Shim;
use crate::totals::{Outcome, Totals};

fn main() -> ExitCode {
    // The scripts that hold locks in command rounds start this program as a writer, with a hidden first argument.
    let mut words = std::env::args().skip(1);
    let first = words.next();
    if let Some(first) = first.filter(|first| writer::FIRST_ARGUMENTS.contains(&&**first)) {
        return match writer::main(&first, &words.collect::<Vec<_>>()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                eprintln!("quorlock-chaos: {why}");
                ExitCode::from(2)
            }
        };
    }
    let args = Args::parse();
    let result = match &args.command {
        Some(Command::Worker { job }) => worker::main(job).map(|()| ExitCode::SUCCESS),
        Some(Command::Sentinel(args)) => sentinel::main(args),
        Some(Command::SentinelWorker(job)) => sentinel::work(job).map(|()| ExitCode::SUCCESS),
        None => chaos(&args),
    };
    result.unwrap_or_else(|why| {
        eprintln!("quorlock-chaos: {why}");
        ExitCode::from(2)
    })
}

fn chaos(args: &Args) -> Result<ExitCode, String> {
    #[cfg(quorlock_mutants)]
    if args.list_mutants {
        quorlock::mutants::all().for_each(|(name, layer, _)| println!("{name}\t{layer}"));
        return Ok(ExitCode::SUCCESS);
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    let binary = find_named(args.server.as_deref(), workspace)?;
    let interrupt = interrupt().map_err(|error| format!("signals: {error}"))?;
    let seed = args.base();
    println!("chaos against {binary}, seed {seed}");
    if args.negative {
        return negative(args, seed, &binary, &interrupt);
    }
    let shim = Shim::build(&binary);
    if let Err(why) = &shim {
        println!("servers' clocks are not moved in this run: {why}");
    }
    rounds(args, seed, (&binary, shim.ok().as_ref()), &interrupt)
}

/// The exit code after an interruption: the code that a shell reports after Ctrl-C.
const INTERRUPTED: u8 = 130;

/// Sets up the signals. The first signal ends the round and prints the results so far. The second signal ends the
/// program at once, and with it every process that the program started.
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
    (binary, shim): (&ServerBinary, Option<&Shim>),
    interrupt: &Interrupt,
) -> Result<ExitCode, String> {
    let start = now();
    let end = start + (args.minutes * 60.0 * SECOND as f64) as i64;
    let kinds = args
        .only
        .map_or(vec![RoundKind::Library, RoundKind::Commands, RoundKind::Replicas], |kind| {
            vec![kind]
        });
    let quorlock = match kinds.contains(&RoundKind::Commands) {
        true => find_quorlock(args)?,
        false => PathBuf::new(),
    };
    let (mut library, mut commands, mut replicas) = <(Totals, Totals, Totals)>::default();
    let mut longest_round = 0;
    'all: for seed in (0..=u64::MAX - first).map(|round| first + round) {
        for kind in kinds.iter().filter(|kind| args.only.is_some() || kind.is_of(seed)) {
            let began = now();
            match kind {
                RoundKind::Library => {
                    let plan = RoundPlan::draw(seed, shim.is_some());
                    announce(&plan);
                    let outcome = round::run(&plan, binary, shim, interrupt)?;
                    tell(args, &plan, &outcome);
                    library.add(&outcome.totals);
                }
                RoundKind::Replicas => {
                    let plan = RoundPlan::replicated(seed);
                    announce(&plan);
                    let outcome = round::run(&plan, binary, None, interrupt)?;
                    tell(args, &plan, &outcome);
                    replicas.add(&outcome.totals);
                }
                RoundKind::Commands => {
                    let plan = RoundPlan::commands(seed, shim.is_some());
                    announce_commands(&plan);
                    let outcome = commands::run(&plan, (binary, shim), &quorlock, interrupt)?;
                    tell_commands(args, &plan, &outcome);
                    commands.add(&outcome.totals);
                }
            }
            longest_round = longest_round.max(now() - began);
            let is_over = args.stop_at_first
                && library.violations + commands.violations + replicas.violations > 0;
            if is_over || interrupt.load(Ordering::Relaxed) {
                break 'all;
            }
        }
        // The next seed starts only if its rounds can end in time, even if each takes as long as the longest so far.
        if now() + longest_round * kinds.len() as i64 > end {
            break;
        }
    }
    let mut failed = false;
    let has_leases = commands::has_leases(&quorlock);
    for (kind, totals, needed, enough) in [
        (RoundKind::Library, &library, round::needed(shim.is_some()), SEEDS_FOR_ALL),
        (
            RoundKind::Commands,
            &commands,
            commands::needed(cfg!(quorlock_stepped_clock), has_leases),
            ENOUGH,
        ),
        (RoundKind::Replicas, &replicas, round::needed_with_replicas(), SEEDS_FOR_ALL),
    ] {
        if kinds.contains(&kind) {
            println!("\n{}: {totals}", kind.name());
            let missing = totals.missing(&needed, enough);
            if !missing.is_empty() {
                println!("NEVER CAME ABOUT: {}", missing.join(", "));
            }
            failed |= totals.violations > 0 || !missing.is_empty();
        }
    }
    if kinds.contains(&RoundKind::Library) {
        failed |= !are_shares_enough(&library);
    }
    println!("{} in all, against {} {}", seconds(now() - start), binary.flavor, binary.version);
    println!(
        "rounds: {} library, {} commands, {} replicas; first seed {first}",
        library.rounds, commands.rounds, replicas.rounds
    );
    let json = serde_json::to_string(&[&library, &commands, &replicas])
        .map_err(|error| error.to_string())?;
    println!("totals: {json}");
    Ok(match failed {
        true => ExitCode::FAILURE,
        // An interrupted run did not pass, so its exit code is not 0.
        false if interrupt.load(Ordering::Relaxed) => ExitCode::from(INTERRUPTED),
        false => ExitCode::SUCCESS,
    })
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

/// The number of rounds with commands after which every kind of command and every fault must have happened.
const ENOUGH: u64 = 4;

/// The largest number of rounds without the restart guard in [`negative`], which stops at the first lock with
/// two holders.
const ATTEMPTS: u32 = 10;

/// Runs the same faults without and with the restart guard: a majority of the nodes loses its data, again and
/// again. Without the restart guard, a lock must get two holders. With the restart guard, no lock may.
fn negative(
    args: &Args,
    seed: u64,
    binary: &ServerBinary,
    interrupt: &Interrupt,
) -> Result<ExitCode, String> {
    let overlaps = |outcome: &Outcome| outcome.totals.get(round::ORACLES, round::OVERLAPS);
    let round = |guarded| {
        let plan = RoundPlan::negative(seed, guarded);
        announce(&plan);
        let outcome = round::run(&plan, binary, None, interrupt)?;
        tell(args, &plan, &outcome);
        Ok::<_, String>(outcome)
    };
    let mut without = round(false)?;
    // A lock gets two holders only if a client asks for it while another client holds it. That is rare on a busy
    // machine, so the round is repeated until it happens.
    for attempt in 2..=ATTEMPTS {
        if overlaps(&without) > 0 || without.totals.interrupted > 0 {
            break;
        }
        println!("  no lock had two holders: once more, {attempt} of {ATTEMPTS}");
        without = round(false)?;
    }
    if without.totals.interrupted > 0 {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let (overlaps, lost) =
        (overlaps(&without), without.totals.get(round::ORACLES, round::LOST_UPDATES));
    if overlaps == 0 {
        println!(
            "\nFAILED: no lock was seen to have two holders, although the restart guard was off. Either the nodes \
             did not lose their data, or chaos does not notice two holders"
        );
        return Ok(ExitCode::FAILURE);
    }
    let with = round(true)?;
    if with.totals.interrupted > 0 {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    println!(
        "\nas expected without the restart guard: nodes lost their data, and {overlaps} times a lock had two \
         holders; {lost} updates were lost by that"
    );
    if !with.findings.violations.is_empty() {
        println!(
            "\nFAILED with the restart guard: {} violations under the same faults",
            with.findings.violations.len()
        );
        return Ok(ExitCode::FAILURE);
    }
    let granted = with.totals.get(CALLS, GRANTED);
    println!(
        "as expected with the restart guard: no violation under the same faults; {granted} locks were granted"
    );
    Ok(ExitCode::SUCCESS)
}

fn announce(plan: &RoundPlan) {
    let kinds: Vec<_> = plan.kinds.iter().map(|kind| kind.name()).collect();
    let RoundPlan { seed, nodes, quorum, max_ttl, exact, guarded, .. } = plan;
    let exact = if *exact { ", no margin" } else { "" };
    let off = if *guarded { "" } else { ", restart guard off" };
    println!(
        "\nseed {seed}: {quorum} of {nodes} nodes, ttl up to {}{exact}{off}; {}",
        seconds(*max_ttl),
        kinds.join(", ")
    );
    if let Some(why) = plan.outside {
        println!(
            "  mutual exclusion is not promised in this round, because {why}; everything else is promised"
        );
    }
}

fn announce_commands(plan: &RoundPlan) {
    let kinds: Vec<_> = plan.kinds.iter().map(|kind| kind.name()).collect();
    let with = if kinds.is_empty() { "undisturbed nodes".to_owned() } else { kinds.join(", ") };
    println!("\nseed {}, commands: {} of {} nodes; {with}", plan.seed, plan.quorum, plan.nodes);
}

fn tell_commands(args: &Args, plan: &RoundPlan, outcome: &Outcome) {
    let totals = &outcome.totals;
    println!(
        "  {} faults, {} commands; {}; {}",
        totals.sum(round::FAULTS) + totals.sum(commands::STRUCK),
        totals.sum(commands::KINDS),
        nonzero(totals, commands::SEEN),
        healed(totals)
    );
    tell_violations(args, plan.seed, RoundKind::Commands, &outcome.findings);
}

/// Prints the result of a round, and after a violation the command that repeats the round.
fn tell(args: &Args, plan: &RoundPlan, outcome: &Outcome) {
    let totals = &outcome.totals;
    println!(
        "  {} faults, {} grants, {} losses; {}; {}",
        totals.sum(round::FAULTS),
        totals.get(CALLS, GRANTED),
        totals.sum(LOST),
        nonzero(totals, round::ORACLES),
        healed(totals)
    );
    let kind = if plan.replicas() > 0 { RoundKind::Replicas } else { RoundKind::Library };
    tell_violations(args, plan.seed, kind, &outcome.findings);
}

fn nonzero(totals: &Totals, section: &str) -> String {
    let counts = totals.counts.get(section).into_iter().flatten().filter(|(_, count)| **count > 0);
    let counts: Vec<String> = counts.map(|(name, count)| format!("{count} {name}")).collect();
    if counts.is_empty() { "nothing wrong".to_owned() } else { counts.join(", ") }
}

fn healed(totals: &Totals) -> String {
    match totals.healed_within {
        Some(after) => format!("healed within {}", seconds(after)),
        None => "not healed".to_owned(),
    }
}

fn tell_violations(args: &Args, seed: u64, kind: RoundKind, findings: &Findings) {
    let Findings { violations, extract, journal } = findings;
    if args.journal {
        journal.iter().for_each(|line| println!("{line}"));
    }
    let Some(first) = violations.first() else { return };
    // The violation is printed here as well, because the extract of the journal is limited and may not contain it.
    println!("  VIOLATION: {}", first.what);
    if !args.journal {
        println!("  around the first violation (p1c: the third caller of process 1):");
        extract.iter().for_each(|line| println!("{line}"));
    }
    let again = match args.negative {
        true => "--negative".to_owned(),
        false => format!("--only {} --minutes 0.1", kind.name()),
    };
    let count = violations.len();
    println!(
        "  {count} violations; the same schedule again: cargo xtask chaos --seed {seed} {again}"
    );
    match write_journal(seed, kind, journal) {
        Ok(path) => println!("  the whole journal is in {}", path.display()),
        Err(error) => eprintln!("quorlock-chaos: the journal could not be written: {error}"),
    }
}

fn write_journal(seed: u64, kind: RoundKind, journal: &[String]) -> std::io::Result<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = manifest.ancestors().nth(2).unwrap_or(manifest).join("target/chaos");
    fs::create_dir_all(&folder)?;
    let file = folder.join(format!("seed-{seed}-{}.txt", kind.name()));
    fs::write(&file, journal.join("\n") + "\n")?;
    Ok(file)
}
