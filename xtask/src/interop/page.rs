//! The tables of `docs/interop.md`, and the JSON behind them.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::libraries::{LIBRARIES, Library};
use super::share::{Form, Share, Turns};
use super::tests::Cell;
use crate::generated;

const PAGE: &str = "docs/interop.md";
const JSON: &str = "target/interop.json";
const BEGIN: &str = "<!-- written by cargo xtask interop -->\n";
const END: &str = "<!-- end -->\n";

/// The columns of the first table.
const EXCLUSION: [&str; 12] =
    ["1", "2", "3a", "3b", "4", "5", "6", "7", "8", "shared", "several", "take"];

/// The results of one library.
pub(crate) fn row(
    library: &Library,
    version: &str,
    cells: &[Cell],
    shares: &[(Form, Share)],
) -> Value {
    let cell = |(name, cell): &Cell| match cell {
        Ok(remark) => json!({ "test": name, "exact": true, "remark": remark }),
        Err(why) => json!({ "test": name, "exact": false, "remark": why.trim() }),
    };
    let share = |(form, share): &(Form, Share)| {
        let side = |turns: Turns| json!({ "grants": turns.grants, "longest_wait_s": turns.longest_wait.as_secs_f64() });
        json!({
            "quorlock_as": format!("{form:?}").to_lowercase(),
            "library": side(share.library),
            "quorlock": side(share.quorlock),
        })
    };
    json!({
        "library": library.name,
        "version": version,
        "tests": cells.iter().map(cell).collect::<Vec<_>>(),
        "shares": shares.iter().map(share).collect::<Vec<_>>(),
    })
}

fn list<'a>(row: &'a Value, name: &str) -> &'a [Value] {
    row[name].as_array().map_or(&[], Vec::as_slice)
}

/// The tests that were not exact, each with the reason.
pub(crate) fn inexact(row: &Value) -> Vec<String> {
    let inexact = list(row, "tests").iter().filter(|test| test["exact"] != true);
    inexact.map(|test| format!("{}: {}", test["test"], test["remark"])).collect()
}

/// Returns whether a test was exact, and its remark.
fn cell<'a>(row: &'a Value, name: &str) -> (bool, &'a str) {
    let test = list(row, "tests").iter().find(|test| test["test"] == name);
    let remark = |test: &'a Value| test["remark"].as_str().unwrap_or_default();
    test.map_or((false, "not run"), |test| (test["exact"] == true, remark(test)))
}

/// The line of a library in the first table.
pub(crate) fn exclusion(library: &Library, row: &Value) -> String {
    let Library { name, language, prefix, value, .. } = library;
    let cells = EXCLUSION.map(|name| match cell(row, name) {
        (true, "WRONGTYPE") => "exact, by an error".to_owned(),
        (true, _) => "exact".to_owned(),
        (false, why) => format!("**{}**", why.replace(['|', '\n'], " ")),
    });
    let version = row["version"].as_str().unwrap_or_default();
    format!("| {name} {version}, {language} | `{prefix}K` | {value} | {} |\n", cells.join(" | "))
}

/// The line of a library in the second table.
fn times(library: &Library, row: &Value) -> String {
    let share = |form: &str| {
        let share = list(row, "shares").iter().find(|share| share["quorlock_as"] == form);
        share.map_or("– | –".to_owned(), |share| {
            let wait = share["library"]["longest_wait_s"].as_f64().unwrap_or_default();
            let (theirs, ours) = (&share["library"]["grants"], &share["quorlock"]["grants"]);
            format!("{theirs} : {ours} | {wait:.1}")
        })
    };
    let remarks = ["3a", "3b", "5", "6"].map(|name| cell(row, name).1).join(" | ");
    format!("| {} | {remarks} | {} | {} |\n", library.name, share("library"), share("command"))
}

/// Both tables, and a line for each library that has no row.
pub(crate) fn tables(rows: &[Value], absent: &[Value]) -> String {
    let ruler = |columns: usize| format!("|{}\n", "---|".repeat(columns));
    let found = LIBRARIES.iter().filter_map(|library| Some((library, find(rows, library)?)));
    let mut text = format!("| library | key of K | value | {} |\n", EXCLUSION.join(" | "));
    text += &ruler(3 + EXCLUSION.len());
    text.extend(found.clone().map(|(library, row)| exclusion(library, row)));
    text += "\n| library | 3a ms | 3b ms | 5 ms | 6 ms | beside three processes with the library \
             | its longest wait s | beside three loops of `quorlock run` | its longest wait s |\n";
    text += &ruler(9);
    text.extend(found.map(|(library, row)| times(library, row)));
    text.extend(absent.iter().map(|one| {
        let word = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
        format!("\n- {}: not run: {}\n", word("library"), word("why"))
    }));
    text
}

fn find<'a>(rows: &'a [Value], library: &Library) -> Option<&'a Value> {
    rows.iter().find(|row| row["library"] == library.name)
}

/// Puts the results into the JSON file, in which the other libraries keep their results, and writes the page from it.
///
/// # Errors
/// A message for the user.
pub(crate) fn write(workspace: &Path, rows: &[Value], absent: &[Value]) -> Result<(), String> {
    let io = |error: std::io::Error| error.to_string();
    let file = workspace.join(JSON);
    let old = fs::read_to_string(&file).ok().and_then(|text| serde_json::from_str(&text).ok());
    let old: Value = old.unwrap_or_default();
    let merge = |name, new: &[Value]| -> Vec<Value> {
        let is_new = |library| [rows, absent].iter().any(|list| find(list, library).is_some());
        let kept = |library| {
            find(new, library).or(find(list(&old, name), library).filter(|_| !is_new(library)))
        };
        LIBRARIES.iter().filter_map(kept).cloned().collect()
    };
    let (rows, absent) = (merge("libraries", rows), merge("not_run", absent));
    let json = json!({ "libraries": rows, "not_run": absent });
    fs::write(&file, format!("{json:#}\n")).map_err(io)?;
    generated::replace(workspace, PAGE, [BEGIN, END], &tables(&rows, &absent))
}

/// Returns the lines of the first table that the page does not have.
///
/// # Errors
/// If the page cannot be read.
pub(crate) fn differing(workspace: &Path, rows: &[Value]) -> Result<Vec<String>, String> {
    let page = fs::read_to_string(workspace.join(PAGE)).map_err(|error| error.to_string())?;
    let lines =
        LIBRARIES.iter().filter_map(|library| Some(exclusion(library, find(rows, library)?)));
    Ok(lines.filter(|line| !page.contains(line.as_str())).collect())
}
