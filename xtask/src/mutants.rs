//! `cargo xtask mutants`: checks that the simulator catches every mutant (deliberate bug) of the engine, that models
//! with a mutant find two lock holders, and that the sweep (it cancels futures at every point) catches its mutants.

mod cancellation;
mod library;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::Outcome;
use crate::program::{self, Ended};
use crate::special_build::MUTANTS;

/// The simulator must catch each mutant with its seed in `docs/proof.md` or in these ranges. A range runs as a whole,
/// because some mutants show only in statistics over many runs. Without a mutant, the first range must pass.
const SEEDS: [Range<u64>; 2] = [0..2_000, 2_000..20_000];

/// With `--all`, each mutant runs with these seeds until a lock has two holders. Some mutants never cause two holders:
/// they only delay calls or leave keys behind.
const TWO_HOLD_SEEDS: Range<u64> = 0..1_000;

/// Timeout of the sweep with a mutant. A sweep that exceeds it counts as hanging because of the mutant.
const TIME_OUT: Duration = Duration::from_secs(120);

/// Timeout of the simulator with a mutant. Exceeding it is an error, because a busy machine can be the reason.
const MUTATED: Duration = Duration::from_secs(900);

/// Timeout of a run without a mutant.
const UNMUTATED: Duration = Duration::from_secs(1200);

/// The result for a mutant.
struct Row {
    mutant: String,
    layer: String,
    /// The invariant that is expected to catch the mutant.
    expected: String,
    /// The first seed that fails, and the violated invariant; `None` if every seed passes.
    caught: Option<(u64, String)>,
    /// The first seed with two holders of one lock, in runs that check only mutual exclusion; `None` without any.
    two_hold: Option<u64>,
}

/// The options that can be combined. `--tests` is not among them, because it must be the only argument.
const OPTIONS: [&str; 3] = ["--engine", "--sweep", "--all"];

pub(crate) fn run(workspace: &Path, args: &[OsString]) -> Outcome {
    if args == ["--tests"] {
        library::report(&library::examine(workspace)?);
        return Ok(true);
    }
    if let Some(arg) = args.iter().find(|arg| !OPTIONS.iter().any(|option| arg == option)) {
        return Err(format!("mutants takes {} or --tests alone, not {arg:?}", OPTIONS.join(", ")));
    }
    let [engine, sweep, all] = OPTIONS.map(|option| args.iter().any(|arg| arg == option));
    let (engine, sweep) = (engine || !sweep, sweep || !engine);
    let engine = engine.then(|| examine(workspace, all)).transpose()?;
    let swept = sweep.then(|| cancellation::examine(workspace, all)).transpose()?;
    let engine = engine.is_none_or(|(rows, models)| report(&rows, &models));
    let swept = swept.is_none_or(|rows| cancellation::report(&rows));
    Ok(engine && swept)
}

/// Returns the results for the mutants of the engine, and the output of the models with a mutant.
fn examine(workspace: &Path, all: bool) -> Result<(Vec<Row>, Ended), String> {
    let build = ["build", "--release", "--package", "quorlock-sim", "--bins"];
    let program = MUTANTS.program(workspace, &build, "quorlock-sim")?;
    if let Some((seed, invariant)) = first(&program, None, &SEEDS[..1])? {
        return Err(format!("the engine as it is breaks {invariant:?} with seed {seed}"));
    }
    println!("no mistake: {} seeds, and every invariant held", SEEDS[0].end);
    let list = in_time(Command::new(&program).arg("--list-mutants"), UNMUTATED)?.output;
    let known = if all { BTreeMap::new() } else { known_seeds(workspace)? };
    let mut rows = Vec::new();
    for line in list.lines() {
        let [mutant, layer, expected] = line.split('\t').collect::<Vec<_>>()[..] else {
            return Err(format!("the simulator lists {line:?}"));
        };
        // The recorded seed runs first. If it does not catch the mutant, all seeds run.
        let known = known.get(mutant);
        let seeds: Vec<_> = known.map(|seed| *seed..*seed + 1).into_iter().chain(SEEDS).collect();
        let caught = first(&program, Some(mutant), &seeds)?;
        let only = Some("mutual exclusion");
        let two_hold =
            if all { simulate(&program, Some(mutant), only, &TWO_HOLD_SEEDS)? } else { None };
        // A failure for another reason, such as a panic, shows no two holders.
        let two_hold = two_hold.filter(|(_, by)| by == "mutual exclusion").map(|(seed, _)| seed);
        if let (Some(known), Some((seed, _))) = (known, &caught)
            && *known != *seed
        {
            println!(
                "{mutant}: docs/proof.md says after {} seeds, it is after {}",
                known + 1,
                seed + 1
            );
        }
        let [mutant, layer, expected] = [mutant, layer, expected].map(str::to_owned);
        rows.push(Row { mutant, layer, expected, caught, two_hold });
    }
    if rows.is_empty() {
        return Err("the simulator lists no mistakes".to_owned());
    }
    let mut models = Command::new(program.with_file_name("quorlock-models"));
    Ok((rows, in_time(models.arg("--negative"), UNMUTATED)?))
}

/// Returns the recorded seed of each mutant. The table in `docs/proof.md` counts seeds from one, not from zero.
fn known_seeds(workspace: &Path) -> Result<BTreeMap<String, u64>, String> {
    let page = workspace.join("docs/proof.md");
    let text = fs::read_to_string(&page).map_err(|error| format!("{}: {error}", page.display()))?;
    let row = |line: &str| {
        let [_, mutant, _, _, _, after, ..] =
            line.split('|').map(str::trim).collect::<Vec<_>>()[..]
        else {
            return None;
        };
        Some((mutant.to_owned(), after.replace(' ', "").parse::<u64>().ok()?.checked_sub(1)?))
    };
    Ok(text.lines().filter_map(row).collect())
}

/// A mutant of the shipped code: its name, the place of the mistake, and whether the cancellation sweep must catch it.
type Shipped = (String, String, bool);

/// Returns the mutants that the cancellation sweep lists.
fn shipped(sweep: &Path) -> Result<Vec<Shipped>, String> {
    let mut list = Command::new(sweep);
    list.args(["list_mutants", "--ignored", "--nocapture"]);
    let list = in_time(&mut list, UNMUTATED)?.output;
    let lines = list.lines().filter_map(|line| Some(line.split_once("mutant\t")?.1));
    let mutant = |line: &str| match line.split('\t').collect::<Vec<_>>()[..] {
        [mutant, layer, is_expected] => {
            Ok((mutant.to_owned(), layer.to_owned(), is_expected == "true"))
        }
        _ => Err(format!("the sweep lists {line:?}")),
    };
    let mutants = lines.map(mutant).collect::<Result<Vec<_>, _>>()?;
    if mutants.is_empty() { Err("the sweep lists no mistakes".to_owned()) } else { Ok(mutants) }
}

/// Runs a program. A timeout is an error.
fn in_time(command: &mut Command, time_out: Duration) -> Result<Ended, String> {
    let ended = program::run(command, time_out)?;
    match ended.status {
        Some(_) => Ok(ended),
        None => Err(format!("has not ended within {} s", time_out.as_secs())),
    }
}

/// Returns the first failing seed in several ranges, and the violated invariant.
fn first(
    program: &Path,
    mutant: Option<&str>,
    seeds: &[Range<u64>],
) -> Result<Option<(u64, String)>, String> {
    for some in seeds {
        if let Some(caught) = simulate(program, mutant, None, some)? {
            return Ok(Some(caught));
        }
    }
    Ok(None)
}

/// Runs a range of seeds. Returns the first failing seed, and the violated invariant.
fn simulate(
    program: &Path,
    mutant: Option<&str>,
    only: Option<&str>,
    seeds: &Range<u64>,
) -> Result<Option<(u64, String)>, String> {
    let jobs = std::thread::available_parallelism().map_or(1, |count| count.get().min(256));
    let mut command = Command::new(program);
    let [from, count] = [seeds.start, seeds.end - seeds.start].map(|number| number.to_string());
    command.args(["--brief", "--from", &from, "--seeds", &count, "--jobs", &jobs.to_string()]);
    if let Some(mutant) = mutant {
        command.args(["--mutant", mutant]);
    }
    if let Some(only) = only {
        command.args(["--only", only]);
    }
    let time_out = if mutant.is_some() { MUTATED } else { UNMUTATED };
    let ended = in_time(&mut command, time_out)
        .map_err(|why| format!("with {mutant:?} the simulator: {why}"))?;
    let caught = ended.output.lines().find_map(|line| {
        let (seed, invariant) = line.strip_prefix("seed ")?.split_once(" breaks ")?;
        Some((seed.parse().ok()?, invariant.to_owned()))
    });
    match (ended.is_success(), caught) {
        (true, None) => Ok(None),
        (false, Some(caught)) => Ok(Some(caught)),
        _ => Err(format!(
            "with {mutant:?} the simulator has ended with {:?}\n{}",
            ended.status, ended.errors
        )),
    }
}

/// Prints the table. Returns whether all results are as expected.
fn report(rows: &[Row], models: &Ended) -> bool {
    println!(
        "\n| mistake | made in | expected | caught by | after seeds | two hold one lock after seeds |"
    );
    println!("|---|---|---|---|---|---|");
    for Row { mutant, layer, expected, caught, two_hold } in rows {
        let two = two_hold.map_or("–".to_owned(), |seed| (seed + 1).to_string());
        let (by, after) = match caught {
            Some((seed, invariant)) => (invariant.as_str(), seed + 1),
            None => ("**not caught**", SEEDS[1].end),
        };
        println!("| {mutant} | {layer} | {expected} | {by} | {after} | {two} |");
    }
    let missed = rows.iter().filter(|row| row.caught.is_none()).count();
    let otherwise = |row: &&Row| row.caught.as_ref().is_some_and(|(_, by)| *by != row.expected);
    for Row { mutant, expected, caught, .. } in rows.iter().filter(otherwise) {
        let by = caught.as_ref().map_or("nothing", |(_, by)| by);
        println!("\nxtask: {mutant}: caught by {by:?} first, not by {expected:?} as expected");
    }
    println!("\nnegative models:");
    print!("{}", models.output);
    eprint!("{}", models.errors);
    let count = rows.len();
    let verdict = if models.is_success() { "succeeded" } else { "failed" };
    println!("\nxtask: {count} mistakes, {missed} not caught; models {verdict}");
    missed == 0 && models.is_success()
}
