//! The parts of documents that a command writes.

use std::fs;
use std::path::Path;

/// Replaces the text between two lines of a document. A run without some of the rows that the document has, for example
/// in a fresh clone with one row selected, leaves the document as it is and says so.
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
    let Some((before, old, after)) = parts(&page, begin, end) else {
        return Err(format!("{document} lacks the line {begin:?} or {end:?}"));
    };
    if rows(text) < rows(old) {
        println!("xtask: {document} stays as it is: this run knows fewer rows; run it for all");
        return Ok(());
    }
    fs::write(&path, [before, begin, text, end, after].concat()).map_err(failed)
}

fn parts<'a>(page: &'a str, begin: &str, end: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let (before, rest) = page.split_once(begin)?;
    let (old, after) = rest.split_once(end)?;
    Some((before, old, after))
}

fn rows(text: &str) -> usize {
    text.lines().filter(|line| line.starts_with('|')).count()
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
