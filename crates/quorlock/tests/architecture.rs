//! Checks that every link in a document leads to an existing file or heading, that the lines of code that
//! ARCHITECTURE.md names exist, and that each invariant of docs/algorithm.md has checks that exist.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn architecture() -> String {
    fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap()
}

fn code(cell: &str) -> &str {
    cell.trim().trim_matches('`')
}

#[test]
fn each_step_of_a_lock_is_one_line_of_the_code() {
    let page = architecture();
    let steps: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains(".rs` | `"))
        .filter(|line| line[2..].starts_with(|first: char| first.is_ascii_digit()))
        .map(|line| line.trim_matches('|').split('|').collect())
        .collect();
    assert_eq!(steps.len(), 8, "at most eight: if one is saved, say so here");
    for (place, step) in steps.iter().enumerate() {
        let [number, _, file, line] = step[..] else { panic!("{step:?}") };
        assert_eq!(number.trim(), (place + 1).to_string());
        let source = fs::read_to_string(root().join(code(file))).unwrap();
        let hits = source.lines().filter(|text| text.contains(code(line))).count();
        assert_eq!(hits, 1, "{} in {}", code(line), code(file));
    }
}

/// Collects the files of the project whose names end like this. Skips folders with files of other projects, such as
/// `target`.
fn files(folder: &Path, end: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "target" && name != "node_modules" && !name.starts_with('.') {
            files(&path, end, found);
        } else if name.ends_with(end) {
            found.push(path);
        }
    }
}

/// Each of these files names every command, because a match without `_` makes it do so, or because a test asks each.
#[test]
fn a_new_command_touches_at_most_nine_files() {
    let source = fs::read_to_string(root().join("crates/core/src/command.rs")).unwrap();
    let (_, list) = source.split_once("pub enum Command {\n").unwrap();
    let (list, _) = list.split_once("\n}\n").unwrap();
    let names = list.lines().filter_map(|line| line.strip_prefix("    "));
    let names = names.filter(|line| line.starts_with(|first: char| first.is_ascii_uppercase()));
    let names: Vec<&str> = names.map(|line| line.trim_end_matches([' ', '{', ','])).collect();
    assert!(names.len() > 10 && names.contains(&"Identify"), "{names:?}");
    let mut all = Vec::new();
    files(&root(), ".rs", &mut all);
    all.retain(|path| {
        let text = fs::read_to_string(path).unwrap();
        let is_named = |name: &&str| {
            ["Command", "Self"].iter().any(|of| text.contains(&format!("{of}::{name}")))
        };
        names.iter().all(is_named)
    });
    // A command with a script of its own also needs a line in `redis/scripts.rs`.
    assert!(all.len() <= 9, "{all:#?}");
}

/// The page without its code blocks.
fn prose(page: &Path) -> String {
    let text = fs::read_to_string(page).unwrap();
    text.split("\n```").step_by(2).collect::<Vec<_>>().join("\n")
}

/// The links to places within the project. Links with `::` are left out, because rustdoc resolves them.
fn links(prose: &str) -> Vec<&str> {
    let inline = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let references = prose.lines().filter(|line| line.starts_with('['));
    let references = references.filter_map(|line| line.split_once("]: "));
    let targets = inline.map(|(target, _)| target).chain(references.map(|(_, target)| target));
    targets.filter(|target| !target.contains("::") && !target.contains("://")).collect()
}

/// The anchors that GitHub generates for the page's headings.
fn anchors(prose: &str) -> Vec<String> {
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let titles = headings.map(|line| line.trim_start_matches('#').trim().to_lowercase());
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    titles.map(|title| title.chars().filter(kept).collect::<String>().replace(' ', "-")).collect()
}

#[test]
fn every_place_that_documents_link_to_exists() {
    let mut found = Vec::new();
    files(&root(), ".md", &mut found);
    let (mut files, mut places) = (0, 0);
    for page in &found {
        let text = prose(page);
        for link in links(&text) {
            let (file, place) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.clone(),
                _ => page.parent().unwrap().join(file),
            };
            assert!(target.exists(), "{link} in {}", page.display());
            files += 1;
            if !place.is_empty() {
                let is_there = anchors(&prose(&target)).iter().any(|anchor| anchor == place);
                assert!(is_there, "no place {link} in {}", page.display());
                places += 1;
            }
        }
    }
    let summary = prose(&root().join("docs/SUMMARY.md"));
    for page in found.iter().filter(|page| page.parent() == Some(&root().join("docs"))) {
        let name = page.file_name().unwrap().to_str().unwrap();
        let is_listed = name == "SUMMARY.md" || summary.contains(&format!("]({name})"));
        assert!(is_listed, "docs/SUMMARY.md does not list {name}");
    }
    let pages = found.len();
    assert!(pages >= 16 && files > 150 && places > 10, "{pages} pages, {files}, {places}");
}

#[test]
fn each_invariant_has_checks_that_exist() {
    let read = |file: &str| fs::read_to_string(root().join(file)).unwrap();
    let page = read("docs/algorithm.md");
    let is_number = |cell: &&str| cell.starts_with(['S', 'V']) && cell[1..].parse::<u8>().is_ok();
    let first_cells = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(' ').next());
    let stated: BTreeSet<&str> = first_cells.filter(is_number).collect();
    let mut sources = Vec::new();
    files(&root().join("crates"), ".rs", &mut sources);
    let code: String = sources.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let list = read("crates/sim/src/invariants/evidence.tsv");
    let mut checked = BTreeSet::new();
    for row in list.lines().filter(|line| !line.starts_with('#')) {
        let [number, kind, name] = row.split('\t').collect::<Vec<_>>()[..] else { panic!("{row}") };
        let definition = match kind {
            "test" => format!("fn {name}("),
            "invariant" | "mutant" | "model" | "negative model" => format!("\"{name}\""),
            _ => panic!("{row}"),
        };
        assert!(code.contains(&definition), "no such {kind}: {row}");
        checked.insert(number);
    }
    assert_eq!(stated, checked, "the numbers of the page, and those with checks");
}
