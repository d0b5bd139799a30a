//! The tables of `docs/interop.md`, and the JSON file with the results in them.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::libraries::{LIBRARIES, Library};
use super::share::{Form, Share, Turns};
use super::tests::Cell;
use crate::generated::{self, Rows};

const PAGE: &str = "docs/interop.md";
const JSON: &str = "target/interop.json";
const BEGIN: &str = "<!-- written by cargo xtask interop -->\n";
const END: &str = "<!-- end -->\n";

/// The names of the tests.
const EXCLUSION: [&str; 12] =
    ["1", "2", "3a", "3b", "4", "5", "6", "7", "8", "shared", "several", "take"];

/// The results of one library.
pub(crate) fn row(version: &str, cells: &[Cell], shares: &[(Form, Share)]) -> Value {
    let cell = |(name, cell): &Cell| {
        let (Ok(remark) | Err(remark)) = cell;
        ((*name).to_owned(), json!({ "exact": cell.is_ok(), "remark": remark.trim() }))
    };
    let side = |turns: Turns| json!({ "grants": turns.grants, "longest_wait_s": turns.longest_wait.as_secs_f64() });
    let share = |(form, share): &(Form, Share)| {
        let sides = json!({ "library": side(share.library), "quorlock": side(share.quorlock) });
        (format!("{form:?}").to_lowercase(), sides)
    };
    let (tests, shares): (Rows, Rows) =
        (cells.iter().map(cell).collect(), shares.iter().map(share).collect());
    json!({ "version": version, "tests": tests, "shares": shares })
}

/// The row of a library that did not run.
pub(crate) fn not_run(why: &str) -> Value {
    json!({ "not_run": why.trim() })
}

/// The tests that failed, each with the reason. If the library did not run, the only entry gives the reason for that.
pub(crate) fn inexact(row: &Value) -> Vec<String> {
    let tests = row["tests"].as_object().into_iter().flatten();
    let inexact = tests.filter(|(_, test)| test["exact"] != true);
    let inexact = inexact.map(|(name, test)| format!("{name}: {}", test["remark"]));
    inexact.chain(row["not_run"].as_str().map(str::to_owned)).collect()
}

/// Returns whether a test passed (`exact`), and its remark or the reason of its failure.
fn cell<'a>(row: &'a Value, name: &str) -> (bool, &'a str) {
    let test = &row["tests"][name];
    (test["exact"] == true, test["remark"].as_str().unwrap_or("not run"))
}

/// The line of a library in the first table.
pub(crate) fn exclusion(library: &Library, row: &Value) -> String {
    let Library { name, language, prefix, value, .. } = library;
    let mut cells = vec!["exact".to_owned()];
    cells.extend(EXCLUSION.iter().filter_map(|name| match cell(row, name) {
        (true, "WRONGTYPE") => Some(format!("{name} by an error")),
        (true, _) => None,
        (false, why) => Some(format!("**but {name}: {}**", why.replace(['|', '\n'], " "))),
    }));
    let version = row["version"].as_str().unwrap_or_default();
    format!("| {name} {version}, {language} | `{prefix}K` | {value} | {} |\n", cells.join(", "))
}

/// The line of a library in the second table.
fn times(library: &Library, row: &Value) -> String {
    let share = |form: &str| {
        let share = &row["shares"][form];
        if share.is_null() {
            return "– | –".to_owned();
        }
        let wait = share["library"]["longest_wait_s"].as_f64().unwrap_or_default();
        let (theirs, ours) = (&share["library"]["grants"], &share["quorlock"]["grants"]);
        format!("{theirs} : {ours} | {wait:.1}")
    };
    let remarks = ["3a", "3b", "5", "6"].map(|name| cell(row, name).1).join(" | ");
    format!("| {} | {remarks} | {} | {} |\n", library.name, share("library"), share("command"))
}

/// The libraries that ran, each with its row.
fn measured(rows: &Rows) -> impl Iterator<Item = (&Library, &Value)> + Clone {
    let row = |library: &Library| rows.get(library.name).filter(|row| row["not_run"].is_null());
    LIBRARIES.iter().filter_map(move |library| Some((library, row(library)?)))
}

/// Both tables, and a line for each library that did not run.
pub(crate) fn tables(rows: &Rows) -> String {
    let ruler = |columns: usize| format!("|{}\n", "---|".repeat(columns));
    let found = measured(rows);
    let mut text = "| library | key of K | value | tests |\n".to_owned() + &ruler(4);
    text.extend(found.clone().map(|(library, row)| exclusion(library, row)));
    text += "\n| library | 3a ms | 3b ms | 5 ms | 6 ms | beside three processes with the library \
             | its longest wait s | beside three loops of `quorlock run` | its longest wait s |\n";
    text += &ruler(9);
    text.extend(found.map(|(library, row)| times(library, row)));
    text.extend(LIBRARIES.iter().filter_map(|Library { name, .. }| {
        let why = rows.get(*name)?["not_run"].as_str()?;
        Some(format!("\n- {name}: not run: {why}\n"))
    }));
    text
}

/// Adds the results to the JSON file, which keeps earlier results of other libraries, and writes the page from it.
///
/// # Errors
/// A message for the user.
pub(crate) fn write(workspace: &Path, rows: Rows) -> Result<(), String> {
    let mut all = generated::rows_in(workspace, JSON);
    all.extend(rows);
    generated::keep_rows(workspace, JSON, &all)?;
    generated::replace(workspace, PAGE, [BEGIN, END], &tables(&all))
}

/// Returns the lines of the first table that the page does not have.
///
/// # Errors
/// If the page cannot be read.
pub(crate) fn differing(workspace: &Path, rows: &Rows) -> Result<Vec<String>, String> {
    let page = fs::read_to_string(workspace.join(PAGE)).map_err(|error| error.to_string())?;
    let lines = measured(rows).map(|(library, row)| exclusion(library, row));
    Ok(lines.filter(|line| !page.contains(line.as_str())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_the_tests_that_are_not_simply_exact() {
        let cells = EXCLUSION.map(|name| match name {
            "7" => (name, Err("lost | keys".to_owned())),
            "shared" => (name, Ok("WRONGTYPE".to_owned())),
            _ => (name, Ok(String::new())),
        });
        let line = exclusion(&LIBRARIES[0], &row("1.0", &cells, &[]));
        assert!(
            line.ends_with("| exact, **but 7: lost   keys**, shared by an error |\n"),
            "{line}"
        );
    }
}
