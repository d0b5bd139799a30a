//! The parts of documents that a command writes, and the JSON files with the results that these parts show.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value};

/// The rows of a table, each under the name of its server or library.
pub(crate) type Rows = Map<String, Value>;

/// The rows of earlier runs. There are none if the file cannot be read.
pub(crate) fn rows_in(workspace: &Path, file: &str) -> Rows {
    let text = fs::read_to_string(workspace.join(file)).ok();
    text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// # Errors
/// If the file cannot be written.
pub(crate) fn keep_rows(workspace: &Path, file: &str, rows: &Rows) -> Result<(), String> {
    let text = serde_json::to_string_pretty(rows).map_err(|why| why.to_string())?;
    fs::write(workspace.join(file), text + "\n").map_err(|why| format!("{file}: {why}"))
}

/// Replaces the text between two lines of a document. If the new text has fewer table rows than the old one, for
/// example in a fresh clone with one row selected, the document stays as it is, and a message says so.
///
/// # Errors
/// If the document cannot be read or written, or lacks one of the lines.
pub(crate) fn replace(
    workspace: &Path,
    document: &str,
    [begin, end]: [&str; 2],
    text: &str,
) -> Result<(), String> {
    let path = workspace.join(document);
    let failed = |error: std::io::Error| format!("{document}: {error}");
    let page = fs::read_to_string(&path).map_err(failed)?;
    let parts = page.split_once(begin).and_then(|(before, rest)| {
        let (old, after) = rest.split_once(end)?;
        Some((before, old, after))
    });
    let Some((before, old, after)) = parts else {
        return Err(format!("{document} lacks the line {begin:?} or {end:?}"));
    };
    let rows = |text: &str| text.lines().filter(|line| line.starts_with('|')).count();
    if rows(text) < rows(old) {
        println!("xtask: {document} stays as it is: this run knows fewer rows; run it for all");
        return Ok(());
    }
    fs::write(&path, [before, begin, text, end, after].concat()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_does_not_lose_rows() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("page.md");
        fs::write(&page, "a\nBEGIN\n| 1 |\n| 2 |\nEND\nb\n").unwrap();
        let replace = |text| {
            replace(folder.path(), "page.md", ["BEGIN\n", "END\n"], text).unwrap();
            fs::read_to_string(&page).unwrap()
        };
        assert!(replace("| 3 |\n").contains("| 1 |\n| 2 |"));
        assert_eq!(replace("| 3 |\n| 4 |\n"), "a\nBEGIN\n| 3 |\n| 4 |\nEND\nb\n");
    }
}
