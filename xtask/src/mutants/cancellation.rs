//! Runs the cancellation sweep (the test that cancels futures at every point) with each mutant of the shipped code.

use std::path::Path;
use std::process::Command;

use quorlock_servers::REQUIRE_VARIABLE;

use super::{TIME_OUT, UNMUTATED, in_time, shipped};
use crate::program;
use crate::special_build::{MUTANTS, named};

/// A test with real servers must catch this mutant, because the sweep has no connections.
const VOUCHED: &str = "answers that are vouched for";
const VOUCHED_TEST: [&str; 2] = ["--exact", "data::a_flush_is_noticed"];

pub(super) struct Row {
    mutant: String,
    layer: String,
    /// Whether the sweep must catch the mutant.
    is_expected: bool,
    /// Whether the sweep fails. `None`: it hangs.
    is_caught: Option<bool>,
}

/// Builds the sweep, checks that it passes, and runs it with each mutant that it must catch. With `all` it also runs
/// with the other mutants, some of which make it hang.
pub(super) fn examine(workspace: &Path, all: bool) -> Result<Vec<Row>, String> {
    // Builds the whole workspace. For one package, cargo would compile its dependencies again with other features.
    let build = ["test", "--workspace", "--test", "cancellation", "--test", "restart", "--no-run"];
    let programs = MUTANTS.build(workspace, &build)?;
    let (sweep, restart) = (named(&programs, "cancellation")?, named(&programs, "restart")?);
    let unmutated = in_time(&mut Command::new(&sweep), UNMUTATED)?;
    if !unmutated.is_success() {
        let said = unmutated.output;
        return Err(format!("the cancellation sweep fails without any mistake:\n{said}"));
    }
    println!("no mistake: the cancellation sweep passes");
    let mut rows = Vec::new();
    for (mutant, layer, is_expected) in shipped(&sweep)? {
        let is_vouched = mutant == VOUCHED;
        let is_expected = is_vouched || is_expected;
        if !is_expected && !all {
            continue;
        }
        eprintln!("xtask: {mutant}");
        let run = &mut Command::new(if is_vouched { &restart } else { &sweep });
        if is_vouched {
            run.args(VOUCHED_TEST).env(REQUIRE_VARIABLE, "1");
            run.current_dir(workspace.join("crates/quorlock"));
            if !in_time(run, UNMUTATED)?.is_success() {
                return Err(format!("{} fails without any mistake", VOUCHED_TEST[1]));
            }
        }
        let ended = program::run(run.env("QUORLOCK_MUTANT", &mutant), TIME_OUT)?;
        let is_caught = ended.status.map(|status| !status.success());
        rows.push(Row { mutant, layer, is_expected, is_caught });
    }
    Ok(rows)
}

/// Prints the table. Returns whether the sweep caught all expected mutants.
pub(super) fn report(rows: &[Row]) -> bool {
    println!("\n| mistake in the shipped code | made in | caught |\n|---|---|---|");
    for Row { mutant, layer, is_expected, is_caught } in rows {
        let caught = match (is_caught, is_expected) {
            (Some(true), _) => "caught",
            (_, true) => "**not caught**",
            (Some(false), false) => "–",
            (None, false) => "does not end",
        };
        println!("| {mutant} | {layer} | {caught} |");
    }
    let missed = rows.iter().filter(|row| row.is_expected && row.is_caught != Some(true)).count();
    println!("\nxtask: {} mistakes in the shipped code, {missed} not caught", rows.len());
    missed == 0
}
