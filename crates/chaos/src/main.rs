//! `quorlock-chaos`: the library as it is shipped, against real servers, while everything breaks.
//!
//! ```text
//!   plan ──► nemesis ──► processes: stopped, killed     (crew)
//!  (a seed)     │    ──► connections: a proxy for each process and node
//!               │    ──► servers: stopped, killed, emptied, replaced, their clocks moved
//!   workers ── what they hold and write ──► ledger ──► oracles
//!   servers ── MONITOR ── what they did ──► votes  ──►
//! ```

mod act;
mod args;
mod clock;
mod commands;
mod ledger;
mod monitor;
mod nemesis;
mod oracles;
mod outcome;
mod plan;
mod protocol;
mod round;
mod servers;
mod shim;
mod summary;
mod votes;
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

use crate::args::{Args, Command, Sort};
use crate::clock::now;
use crate::commands::Done;
use crate::commands::writer;
use crate::ledger::{Account, seconds};
use crate::outcome::Outcome;
use crate::plan::RoundPlan;
use crate::round::Interrupt;
use crate::shim::Shim;
use crate::summary::Summary;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let first = words.next();
    if let Some(sort) = first.filter(|first| writer::SORTS.contains(&&**first)) {
        return match writer::main(&sort, &words.collect::<Vec<_>>()) {
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
    (binary, shim): (&ServerBinary, Option<&Shim>),
    interrupt: &Interrupt,
) -> Result<ExitCode, String> {
    let start = now();
    let end = start + (args.minutes * 60.0 * SECOND as f64) as i64;
    let sorts = args.only.map_or(vec![Sort::Library, Sort::Commands], |sort| vec![sort]);
    let quorlock = if sorts.contains(&Sort::Commands) { quorlock(args)? } else { PathBuf::new() };
    let mut summary = Summary::new(shim.is_some());
    let mut commands = commands::summary::Summary::new(cfg!(quorlock_stepped_clock));
    let mut longest = 0;
    'all: for seed in (0..=u64::MAX - first).map(|round| first + round) {
        for sort in &sorts {
            let began = now();
            match sort {
                Sort::Library => {
                    let plan = RoundPlan::draw(seed, shim.is_some());
                    announce(&plan);
                    let outcome = round::run(&plan, binary, shim, interrupt)?;
                    tell(args, &plan, &outcome);
                    summary.add(seed, &outcome);
                }
                Sort::Commands => {
                    let plan = RoundPlan::commands(seed, shim.is_some());
                    announce_commands(&plan);
                    let done = commands::run(&plan, (binary, shim), &quorlock, interrupt)?;
                    tell_commands(args, &plan, &done);
                    commands.add(seed, &done);
                }
            }
            longest = longest.max(now() - began);
            let is_over =
                args.stop_at_first && (summary.has_violations() || commands.has_violations());
            if is_over || interrupt.load(Ordering::Relaxed) {
                break 'all;
            }
        }
        if now() + longest * sorts.len() as i64 > end {
            break;
        }
    }
    let sums = [summary.to_string(), commands.to_string()];
    for (sort, sum) in [Sort::Library, Sort::Commands].iter().zip(sums) {
        if sorts.contains(sort) {
            println!("\n{sum}");
        }
    }
    println!("{} in all, against {} {}", seconds(now() - start), binary.flavor, binary.version);
    // For a program that runs this and counts.
    println!(
        "rounds: {} library, {} commands; first seed {first}",
        summary.rounds(),
        commands.rounds()
    );
    let failed = sorts.contains(&Sort::Library) && summary.has_failed()
        || sorts.contains(&Sort::Commands) && commands.has_failed();
    Ok(match failed {
        true => ExitCode::FAILURE,
        // Nobody is to take what was broken off for what was passed.
        false if interrupt.load(Ordering::Relaxed) => ExitCode::from(INTERRUPTED),
        false => ExitCode::SUCCESS,
    })
}

/// The command line whose locks commands hold.
fn quorlock(args: &Args) -> Result<PathBuf, String> {
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

/// How often it is tried to see two hold one lock.
const ATTEMPTS: u32 = 10;

/// The same faults twice: nobody looks at the nodes, and it must go wrong; all look, and it must not.
fn negative(
    args: &Args,
    seed: u64,
    binary: &ServerBinary,
    interrupt: &Interrupt,
) -> Result<ExitCode, String> {
    let round = |guarded| {
        let plan = RoundPlan::negative(seed, guarded);
        announce(&plan);
        let outcome = round::run(&plan, binary, None, interrupt)?;
        tell(args, &plan, &outcome);
        Ok::<_, String>(outcome)
    };
    let mut without = round(false)?;
    // Somebody must ask while another holds: on a busy machine few do.
    for attempt in 2..=ATTEMPTS {
        if without.exclusion.overlaps > 0 || without.interrupted {
            break;
        }
        println!("  no two have met: once more, {attempt} of {ATTEMPTS}");
        without = round(false)?;
    }
    if without.interrupted {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let (overlaps, lost) = (without.exclusion.overlaps, without.exclusion.witness.lost());
    if overlaps == 0 {
        println!(
            "\nNOT SEEN: two holders at the same time. Either nodes did not forget, or nobody looks"
        );
        return Ok(ExitCode::FAILURE);
    }
    let with = round(true)?;
    if with.interrupted {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    println!(
        "\nas it must be: without the restart guard, nodes that forget what they granted let two hold \
         one lock. Seen {overlaps} times; {lost} updates were lost by it"
    );
    if !with.account.violations.is_empty() {
        println!("BUT ALSO WITH IT something was wrong: {}", with.account.violations.len());
        return Ok(ExitCode::FAILURE);
    }
    let granted = with.tally.granted;
    println!("as it must be: with it, the same did no harm. {granted} locks were granted");
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
        println!("  outside what mutual exclusion is promised for: {why}; all else is");
    }
}

fn announce_commands(plan: &RoundPlan) {
    let kinds: Vec<_> = plan.kinds.iter().map(|kind| kind.name()).collect();
    let with = if kinds.is_empty() { "undisturbed nodes".to_owned() } else { kinds.join(", ") };
    println!("\nseed {}, commands: {} of {} nodes; {with}", plan.seed, plan.quorum, plan.nodes);
}

fn tell_commands(args: &Args, plan: &RoundPlan, done: &Done) {
    if args.journal {
        done.account.journal.iter().for_each(|line| println!("{line}"));
    }
    let healed = match done.healed {
        Some(after) => format!("healed within {}", seconds(after)),
        None => "not healed".to_owned(),
    };
    println!(
        "  {} faults, {} commands, {} locks lost; {} overlaps, {} more where none is promised; {healed}",
        done.injected.values().sum::<u64>() + done.struck.values().sum::<u64>(),
        done.kinds.values().sum::<u64>(),
        done.codes.get(&79).copied().unwrap_or(0),
        done.overlaps,
        done.excused.values().sum::<u64>(),
    );
    tell_violations(args, plan.seed, Sort::Commands, &done.account);
}

/// What came of a round, and how it can be repeated if it should not have.
fn tell(args: &Args, plan: &RoundPlan, outcome: &Outcome) {
    if args.journal {
        outcome.account.journal.iter().for_each(|line| println!("{line}"));
    }
    let healed = match outcome.healed {
        Some(after) if !outcome.interrupted => format!("healed within {}", seconds(after)),
        _ => "not healed".to_owned(),
    };
    let Outcome { faults, tally, exclusion, fences, .. } = outcome;
    println!(
        "  {} faults, {} grants, {} losses; {} overlaps, {} lost updates, {} with fences; {} of {} \
         fences wrong; {} of {} holders short of votes; {} keys left, {healed}",
        faults.injected.values().sum::<u64>(),
        tally.granted,
        tally.lost.values().sum::<u64>(),
        exclusion.overlaps,
        exclusion.witness.lost(),
        fences.store.lost(),
        fences.disordered,
        fences.holders,
        exclusion.votes.short,
        exclusion.votes.judged,
        outcome.keys.wrong().count(),
    );
    tell_violations(args, plan.seed, Sort::Library, &outcome.account);
}

fn tell_violations(args: &Args, seed: u64, sort: Sort, account: &Account) {
    let Account { violations, extract, journal } = account;
    let Some(first) = violations.first() else { return };
    // The extract may leave it out where much was said at that moment.
    println!("  VIOLATION: {}", first.what);
    if !args.journal {
        println!("  around the first violation (p1c: the third caller of process 1):");
        extract.iter().for_each(|line| println!("{line}"));
    }
    let again = match args.negative {
        true => "--negative".to_owned(),
        false => format!("--only {} --minutes 0.1", sort.name()),
    };
    let count = violations.len();
    println!(
        "  {count} violations; the same schedule again: cargo xtask chaos --seed {seed} {again}"
    );
    match keep(seed, sort, journal) {
        Ok(path) => println!("  the whole story is in {}", path.display()),
        Err(error) => eprintln!("quorlock-chaos: the story could not be written: {error}"),
    }
}

fn keep(seed: u64, sort: Sort, journal: &[String]) -> std::io::Result<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = manifest.ancestors().nth(2).unwrap_or(manifest).join("target/chaos");
    fs::create_dir_all(&folder)?;
    let file = folder.join(format!("seed-{seed}-{}.txt", sort.name()));
    fs::write(&file, journal.join("\n") + "\n")?;
    Ok(file)
}
