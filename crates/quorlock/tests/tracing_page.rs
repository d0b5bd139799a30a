//! docs/tracing.md lists exactly the spans and events of the library, and the figures of `Stats`.

#![expect(clippy::unwrap_used, reason = "a test that fails panics")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = |path: PathBuf| if path.is_dir() { sources(&path) } else { vec![path] };
    entries.flat_map(files).filter(|path| path.extension().is_some_and(|it| it == "rs")).collect()
}

/// Replaces each argument of a format string by `…`, and joins lines that a literal continues.
fn plain(literal: &str) -> String {
    let mut text = String::new();
    let mut parts = literal.split('{');
    text.push_str(parts.next().unwrap());
    for part in parts {
        text.push('…');
        text.push_str(part.split_once('}').unwrap().1);
    }
    text.split("\\\n").map(str::trim_start).collect()
}

/// The level and text of each `tracing` macro in the sources.
fn emitted(kind: &str) -> BTreeSet<(String, String)> {
    let mut emitted = BTreeSet::new();
    for file in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
        let source = fs::read_to_string(&file).unwrap();
        for call in source.split("tracing::").skip(1) {
            let Some((name, rest)) = call.split_once("!(") else { continue };
            let level = match kind {
                "span" => name.strip_suffix("_span"),
                _ => Some(name).filter(|name| !name.ends_with("_span")),
            };
            let levels = ["trace", "debug", "info", "warn", "error"];
            let Some(level) = level.filter(|level| levels.contains(level)) else { continue };
            let (_, literal) = rest.split_once('"').unwrap();
            let literal = literal.split('"').next().unwrap();
            emitted.insert((level.to_uppercase(), plain(literal)));
        }
    }
    assert!(!emitted.is_empty());
    emitted
}

fn page() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tracing.md");
    fs::read_to_string(page).unwrap()
}

/// The rows of the table below a heading.
fn table(page: &str, heading: &str) -> Vec<Vec<String>> {
    let (_, rest) = page.split_once(heading).unwrap_or_else(|| panic!("no table {heading:?}"));
    let cells = |line: &str| {
        let cells = line.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', ""));
        cells.collect()
    };
    rest.lines().skip(2).take_while(|line| line.starts_with('|')).map(cells).collect()
}

#[test]
fn every_span_and_event_is_on_the_page_and_no_other() {
    let page = page();
    let spans = table(&page, "| span (all DEBUG)");
    let spans = spans.into_iter().map(|row| ("DEBUG".to_owned(), row[0].clone()));
    assert_eq!(spans.collect::<BTreeSet<_>>(), emitted("span"));

    let events = table(&page, "| level | event");
    let levels = |row: &Vec<String>| {
        let text = row[1].clone();
        let levels: Vec<_> = row[0].split(", ").map(str::to_owned).collect();
        levels.into_iter().map(move |level| (level, text.clone()))
    };
    assert_eq!(events.iter().flat_map(levels).collect::<BTreeSet<_>>(), emitted("event"));
}

#[test]
fn every_figure_is_on_the_page_and_no_other() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/stats.rs");
    let source = fs::read_to_string(source).unwrap();
    let page = page();
    for name in ["Stats", "NodeStats"] {
        let (_, fields) = source.split_once(&format!("pub struct {name} {{\n")).unwrap();
        let fields = fields.split("\n}").next().unwrap().lines();
        let fields = fields.filter_map(|line| line.trim().strip_prefix("pub ")?.split(':').next());
        let rows = table(&page, &format!("| field of `{name}`"));
        let rows: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
        assert_eq!(rows, fields.collect::<Vec<_>>(), "of {name}");
    }
}
