//! `cargo xtask mutants`: is every mistake that can be switched on caught?

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use crate::cargo;

/// A folder of its own: what is built here makes mistakes, and must not be mixed up with what is
/// shipped.
const TARGET: &str = "target/mutants";

/// How many seeds the engine as it is must pass, and within how many each mistake must be caught.
const SEEDS: u64 = 20_000;

/// What became of one mistake.
struct Row {
    mutant: String,
    layer: String,
    /// The first seed that shows it, and the invariant that does not hold there.
    caught: Option<(u64, String)>,
    /// The first seed in which two hold one lock, looked for by that alone.
    two_hold: Option<u64>,
}

/// Builds, runs and prints the table.
pub(crate) fn run(workspace: &Path) -> ExitCode {
    match examine(workspace) {
        Ok(rows) => report(&rows),
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::from(2)
        }
    }
}

fn examine(workspace: &Path) -> Result<Vec<Row>, String> {
    let program = build(workspace)?;
    if let Some((seed, invariant)) = simulate(&program, None, None)? {
        return Err(format!("the engine as it is breaks {invariant:?} with seed {seed}"));
    }
    println!("no mistake: {SEEDS} seeds, and every invariant held");
    let list = Command::new(&program)
        .arg("--list-mutants")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    let mut rows = Vec::new();
    for (mutant, layer) in list.lines().filter_map(|line| line.split_once('\t')) {
        let caught = simulate(&program, Some(mutant), None)?;
        let two_hold = simulate(&program, Some(mutant), Some("mutual exclusion"))?;
        let two_hold = two_hold.map(|(seed, _)| seed);
        rows.push(Row { mutant: mutant.to_owned(), layer: layer.to_owned(), caught, two_hold });
    }
    if rows.is_empty() {
        return Err("the simulator lists no mistakes".to_owned());
    }
    Ok(rows)
}

fn build(workspace: &Path) -> Result<PathBuf, String> {
    let target = workspace.join(TARGET);
    let built = cargo(workspace)
        .args(["build", "--release", "--package", "quorlock-sim", "--target-dir"])
        .arg(&target)
        .env("RUSTFLAGS", "--cfg quorlock_mutants")
        .status();
    if !built.is_ok_and(|status| status.success()) {
        return Err("the simulator could not be built".to_owned());
    }
    Ok(target.join("release/quorlock-sim"))
}

/// Runs the seeds; returns the first that fails, and what does not hold there.
fn simulate(
    program: &Path,
    mutant: Option<&str>,
    only: Option<&str>,
) -> Result<Option<(u64, String)>, String> {
    let jobs = std::thread::available_parallelism().map_or(1, |count| count.get().min(256));
    let mut command = Command::new(program);
    command.args(["--brief", "--seeds", &SEEDS.to_string(), "--jobs", &jobs.to_string()]);
    if let Some(mutant) = mutant {
        command.args(["--mutant", mutant]);
    }
    if let Some(only) = only {
        command.args(["--only", only]);
    }
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{}: {error}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let caught = said.lines().find_map(|line| {
        let (seed, invariant) = line.strip_prefix("seed ")?.split_once(" breaks ")?;
        Some((seed.parse().ok()?, invariant.to_owned()))
    });
    // A mistake may also make the simulated program panic; then it says on which seed.
    let panicked = || {
        let errors = String::from_utf8_lossy(&output.stderr);
        let told = errors.contains("panicked at");
        told.then(|| (0, "no panic".to_owned()))
    };
    match (output.status.success(), caught.or_else(panicked)) {
        (true, None) => Ok(None),
        (false, Some(caught)) => Ok(Some(caught)),
        _ => Err(format!(
            "with {mutant:?} the simulator has ended with {}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

fn report(rows: &[Row]) -> ExitCode {
    println!("\n| mistake | made in | caught by | after seeds | two hold one lock after seeds |");
    println!("|---|---|---|---|---|");
    for Row { mutant, layer, caught, two_hold } in rows {
        let two = two_hold.map_or("–".to_owned(), |seed| (seed + 1).to_string());
        match caught {
            Some((seed, invariant)) => {
                println!("| {mutant} | {layer} | {invariant} | {} | {two} |", seed + 1);
            }
            None => println!("| {mutant} | {layer} | **not caught** | {SEEDS} | {two} |"),
        }
    }
    let missed = rows.iter().filter(|row| row.caught.is_none()).count();
    println!("\nxtask: {} mistakes, {missed} not caught", rows.len());
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
