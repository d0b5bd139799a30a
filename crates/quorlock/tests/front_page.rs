//! The crate's README, which is its front page, and the page of guarantees.
//!
//! In a package or a checkout, a symbolic link may have become a file that contains only a path. These tests detect
//! that.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

use std::fs;
use std::path::Path;

fn read(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// The text from a heading to the next one.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let heading = format!("\n## {heading}\n");
    let (_, rest) = page.split_once(&heading).unwrap_or_else(|| panic!("no section {heading:?}"));
    rest.split("\n## ").next().unwrap()
}

fn rows(section: &str) -> usize {
    section.lines().filter(|line| line.starts_with('|')).count().saturating_sub(2)
}

#[test]
fn the_front_page_is_the_readme() {
    assert!(read("src/lib.rs").contains("#![doc = include_str!(\"../README.md\")]"));
    assert!(read("src/lib.rs").contains("#[doc = include_str!(\"../GUARANTEES.md\")]"));
}

#[test]
fn the_front_page_says_which_lock_to_use() {
    let page = read("README.md");
    let table = section(&page, "Which lock do I need?");
    assert!(rows(table) >= 5, "{table}");
    for name in ["Client::acquire", "Client::try_acquire", "Acquire::hold", "fenced", "blocking"] {
        assert!(table.contains(name), "{name} is not in the table");
    }
}

#[test]
fn the_front_page_has_examples_that_run() {
    let page = read("README.md");
    let examples: Vec<&str> =
        page.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(examples.len() >= 3, "only {} examples are run", examples.len());
    for example in examples {
        assert!(example.contains("fn main()"), "not a whole program:\n{example}");
        assert!(!example.contains("\n# "), "a line that only rustdoc hides:\n{example}");
    }
}

#[test]
fn the_front_page_says_what_to_do_about_each_error() {
    let page = read("README.md");
    let errors = section(&page, "Errors and what to do");
    // The variants in the declaration of the error type.
    let source = read("src/error/acquire.rs");
    let (_, body) = source.split_once("pub enum AcquireError {").unwrap();
    let body = body.split("\n}\n").next().unwrap();
    let variants = body
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .filter(|line| line.starts_with(|first: char| first.is_ascii_uppercase()))
        .map(|line| line.split(['(', ' ', ',']).next().unwrap());
    let mut count = 0;
    for variant in variants {
        let rows = [format!("| `{variant}` |"), format!("| `{variant} {{ .. }}` |")];
        assert!(rows.iter().any(|row| errors.contains(row)), "{variant} has no row");
        count += 1;
    }
    assert!(count >= 6, "only {count} variants were found");
    for heading in ["Cancel safety", "Testing your code", "The guarantees", "Features"] {
        assert!(section(&page, heading).len() > 100, "{heading}");
    }
}

/// In rustdoc, names link to their documentation. In the file itself, they link to the source.
#[test]
fn each_link_of_the_front_page_works() {
    let page = read("README.md");
    let library = read("src/lib.rs");
    let mut links = 0;
    for line in page.lines().filter(|line| line.starts_with("[`") && line.contains("`]: ")) {
        let (name, file) = line.split_once("]: ").unwrap();
        assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join(file).exists(), "{line}");
        assert!(library.contains(&format!("//! {name}]: ")), "{name}] is not in lib.rs");
        links += 1;
    }
    assert!(links > 10);
    for used in page.split("[`").skip(1).filter_map(|rest| rest.split_once("`]")) {
        let (name, after) = used;
        let is_defined = after.starts_with('(') || page.contains(&format!("\n[`{name}`]: "));
        assert!(is_defined, "[`{name}`] leads nowhere");
    }
}

#[test]
fn the_page_of_guarantees_is_not_a_broken_link() {
    let page = read("GUARANTEES.md");
    assert!(page.len() > 5_000, "only {} bytes", page.len());
    assert!(section(&page, "The promise").contains("is_valid()"));
    assert!(rows(section(&page, "The table")) >= 15);
    // Relative links do not work on docs.rs.
    for link in page.split("](").skip(1) {
        assert!(link.starts_with("https://") || link.starts_with('#'), "{link:.40}");
    }
}
