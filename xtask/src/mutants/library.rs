//! Mutants (deliberate bugs) in the shipped code: finds the first test of the library that fails with each.

use std::path::{Path, PathBuf};
use std::process::Command;

use quorlock_servers::REQUIRE_VARIABLE;

use super::{Shipped, TIME_OUT, shipped};
use crate::program;
use crate::special_build::{MUTANTS, named};

/// The test binaries of the library, fastest first. The first contains the unit tests. Each name is unique in the
/// workspace, so it identifies a binary.
const TESTS: &[&str] = &[
    "quorlock",
    "order",
    "fences",
    "virtual_time",
    "flood",
    "handing",
    "waiting",
    "cancel",
    "waking",
    "errors",
    "secrets",
    "login",
    "fencing",
    "send",
    "blocking",
    "locking",
    "conformance",
    "faults",
    "restart",
];

pub(super) struct Row {
    mutant: String,
    layer: String,
    /// The test binary, and the first test in it that fails with the mutant; `None` if no test fails.
    by: Option<(String, String)>,
}

/// Builds the tests, checks that they pass, and runs them with each mutant until one fails.
pub(super) fn examine(workspace: &Path) -> Result<Vec<Row>, String> {
    // Builds the whole workspace. For one package, cargo would compile its dependencies again with other features.
    let mut build = vec!["test", "--workspace", "--no-run", "--lib", "--test", "cancellation"];
    build.extend(TESTS[1..].iter().flat_map(|name| ["--test", name]));
    let programs = MUTANTS.build(workspace, &build)?;
    let tests = TESTS.iter().map(|name| Ok((*name, named(&programs, name)?)));
    let tests: Vec<(&str, PathBuf)> = tests.collect::<Result<_, String>>()?;
    let failing = |mutant: Option<&str>| -> Result<Option<(String, String)>, String> {
        for (name, program) in &tests {
            if let Some(test) = failing_test(workspace, program, mutant)? {
                return Ok(Some(((*name).to_owned(), test)));
            }
        }
        Ok(None)
    };
    if let Some((name, test)) = failing(None)? {
        return Err(format!("without any mistake {name} {test} fails"));
    }
    println!("no mistake: {} of the library's tests pass", tests.len());
    let mutants = shipped(&named(&programs, "cancellation")?)?;
    let row = |(mutant, layer, _): Shipped| -> Result<Row, String> {
        eprintln!("xtask: {mutant}");
        let by = failing(Some(&mutant))?;
        Ok(Row { mutant, layer, by })
    };
    mutants.into_iter().filter(|(_, layer, _)| layer != "engine").map(row).collect()
}

/// Runs a test binary. Returns the first failing test.
fn failing_test(
    workspace: &Path,
    program: &Path,
    mutant: Option<&str>,
) -> Result<Option<String>, String> {
    let mut run = Command::new(program);
    run.current_dir(workspace.join("crates/quorlock")).env(REQUIRE_VARIABLE, "1");
    if let Some(mutant) = mutant {
        run.env("QUORLOCK_MUTANT", mutant);
    }
    let ended = program::run(&mut run, TIME_OUT)?;
    let Some(status) = ended.status else {
        return Ok(Some("does not end".to_owned()));
    };
    if status.success() {
        return Ok(None);
    }
    let failed =
        |line: &str| Some(line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.to_owned());
    Ok(Some(ended.output.lines().find_map(failed).unwrap_or_else(|| status.to_string())))
}

/// Prints the table. A mutant without a failing test is no error, because only the sweep or chaos catches some mutants.
pub(super) fn report(rows: &[Row]) {
    println!("\n| mistake in the shipped code | made in | the library's tests |\n|---|---|---|");
    for Row { mutant, layer, by } in rows {
        let by = by.as_ref().map_or("–".to_owned(), |(name, test)| match name == TESTS[0] {
            true => test.clone(),
            false => format!("`{name}.rs` {test}"),
        });
        println!("| {mutant} | {layer} | {by} |");
    }
}
