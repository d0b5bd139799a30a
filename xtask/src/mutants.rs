//! `cargo xtask mutants`: checks that the simulator catches every mutant (deliberate bug) of the engine, and that models
//! with a mutant find two lock holders.

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

/// The simulator must catch each mutant with its seed in `KNOWN` or in these ranges. A range runs as a whole,
/// because some mutants show only in statistics over many runs.
const SEEDS: [Range<u64>; 2] = [0..2_000, 2_000..20_000];

/// The recorded seed of each mutant, and how it was caught.
const KNOWN: &str = "crates/sim/mutants.tsv";

/// Without a mutant, the build with mutants must pass these seeds. The build without mutants passes all of them.
const UNMUTATED_SEEDS: Range<u64> = 0..200;

/// With `--all`, each mutant runs with these seeds until a lock has two holders. Some mutants never cause two holders:
/// they only delay calls or leave keys behind.
const TWO_HOLD_SEEDS: Range<u64> = 0..1_000;

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

/// With `--all`, the recorded seeds are not used, and each mutant also runs until a lock has two holders.
pub(crate) fn run(workspace: &Path, args: &[OsString]) -> Outcome {
    let all = match args {
        [] => false,
        [option] if option == "--all" => true,
        _ => return Err("the only option is --all".to_owned()),
    };
    let (rows, models) = examine(workspace, all)?;
    Ok(report(&rows, &models))
}

/// Returns the results for the mutants of the engine, and the output of the models with a mutant.
fn examine(workspace: &Path, all: bool) -> Result<(Vec<Row>, Ended), String> {
    let build = ["build", "--profile", "proof", "--package", "quorlock-sim", "--bins"];
    let program = MUTANTS.program(workspace, &build, "quorlock-sim")?;
    if let Some((seed, invariant)) = simulate(&program, None, None, &UNMUTATED_SEEDS)? {
        return Err(format!("the engine as it is breaks {invariant:?} with seed {seed}"));
    }
    println!("no mistake: {} seeds, and every invariant held", UNMUTATED_SEEDS.end);
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
            println!("{mutant}: {KNOWN} says after {} seeds, it is after {}", known + 1, seed + 1);
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

/// Returns the recorded seed of each mutant. The file counts seeds from one, not from zero.
fn known_seeds(workspace: &Path) -> Result<BTreeMap<String, u64>, String> {
    let text =
        fs::read_to_string(workspace.join(KNOWN)).map_err(|why| format!("{KNOWN}: {why}"))?;
    let row = |line: &str| {
        let [mutant, _, _, _, after, ..] = line.split('\t').collect::<Vec<_>>()[..] else {
            return None;
        };
        Some((mutant.to_owned(), after.parse::<u64>().ok()?.checked_sub(1)?))
    };
    Ok(text.lines().filter_map(row).collect())
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
    println!("\nmistake\tmade in\texpected\tcaught by\tafter seeds\ttwo hold one lock after seeds");
    for Row { mutant, layer, expected, caught, two_hold } in rows {
        let two = two_hold.map_or("-".to_owned(), |seed| (seed + 1).to_string());
        let (by, after) = match caught {
            Some((seed, invariant)) => (invariant.as_str(), seed + 1),
            None => ("not caught", SEEDS[1].end),
        };
        println!("{mutant}\t{layer}\t{expected}\t{by}\t{after}\t{two}");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_file_has_a_seed() {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let text = fs::read_to_string(workspace.join(KNOWN)).unwrap();
        let rows = text.lines().filter(|line| !line.starts_with('#')).count() - 1;
        let seeds = known_seeds(workspace).unwrap();
        assert_eq!(seeds.len(), rows);
        assert_eq!(seeds["wake at the first push"], 1_999);
    }
}
