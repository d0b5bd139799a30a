//! ARCHITECTURE.md shows the way of a lock through the code: what it names is there.

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

#[test]
fn every_file_that_documents_link_to_exists() {
    let mut folders = vec![root(), root().join("docs")];
    folders.extend(fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path()));
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let files = files.map(|entry| entry.unwrap().path());
    let (mut pages, mut links) = (0, 0);
    for page in files.filter(|file| file.extension().is_some_and(|it| it == "md")) {
        pages += 1;
        let text = fs::read_to_string(&page).unwrap();
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        for (target, _) in targets.filter(|(target, _)| !target.contains("://")) {
            // Without a file it is a place on the same page; what rustdoc links to has colons.
            let file = target.split('#').next().unwrap();
            if !file.is_empty() && !file.contains("::") {
                let exists = page.parent().unwrap().join(file).exists();
                assert!(exists, "{target} in {}", page.display());
                links += 1;
            }
        }
    }
    assert!(pages > 10 && links > 100, "{pages} pages with {links} links");
}
