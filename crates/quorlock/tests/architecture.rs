//! Checks that every link in a document leads to an existing file or heading, and that the lines of code that
//! ARCHITECTURE.md names exist.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

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

/// Collects the Markdown files of the project. Skips folders with files of other projects, such as `target`.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "target" && name != "node_modules" && !name.starts_with('.') {
            pages(&path, found);
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
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
    pages(&root(), &mut found);
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
    let pages = found.len();
    assert!(pages >= 16 && files > 150 && places > 10, "{pages} pages, {files}, {places}");
}
