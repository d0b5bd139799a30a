//! A report read back, and its parts in words: for plots and documents.

use std::fs;
use std::path::Path;

use crate::report::{Report, Row};

/// Reads a report, or says with the path why it cannot be read or is none.
pub(crate) fn read(path: &Path) -> Result<Report, String> {
    let text = fs::read_to_string(path)
        .map_err(|why| format!("{} cannot be read: {why}", path.display()))?;
    serde_json::from_str(&text)
        .map_err(|why| format!("{} is not a report of this benchmark: {why}", path.display()))
}

impl Report {
    /// The subjects' values of one metric, in the order of the report.
    pub(crate) fn values(
        &self,
        workload: &str,
        metric: &str,
        nodes: usize,
        concurrency: u64,
    ) -> Vec<&Row> {
        let wanted = |one: &&Row| {
            one.workload == workload
                && one.metric == metric
                && one.nodes == nodes
                && one.concurrency == concurrency
        };
        self.results.iter().filter(wanted).collect()
    }

    /// Such as `5 × Redis 7.0.15`.
    pub(crate) fn servers_in_words(&self) -> String {
        let named = |servers: &crate::report::Servers| {
            let product = match servers.product.as_str() {
                "redis" => "Redis",
                "valkey" => "Valkey",
                other => other,
            };
            format!("{} × {product} {}", servers.count, servers.version)
        };
        self.servers.iter().map(named).collect::<Vec<_>>().join(", ")
    }

    /// Such as `commit 0123abc`, and whether that is the whole truth.
    pub(crate) fn commit_in_words(&self) -> String {
        let mut words = match &self.commit {
            Some(commit) => format!("commit {commit}"),
            None => "no commit".to_owned(),
        };
        if self.dirty {
            words += " with uncommitted changes";
        }
        words
    }
}

/// A number with as many digits as it deserves: `83 100`, `119`, `5.83`, `0.998`.
pub(crate) fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    let plain = format!("{value:.digits$}");
    let (whole, rest) = plain.split_once('.').unwrap_or((&plain, ""));
    if whole.trim_start_matches('-').len() < 5 {
        return plain;
    }
    // Groups of three, from the right; `rest` is empty because the number is large.
    debug_assert!(rest.is_empty());
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && digit != '-' && (whole.len() - index).is_multiple_of(3) {
            // Does not break at the end of a line.
            grouped.push('\u{a0}');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn numbers_have_the_digits_they_deserve() {
        let shown = [0.9984, 1.125, 5.834, 42.06, 119.4, 1234.4, 83_100.0, 1_234_567.0].map(number);
        let expected =
            ["0.998", "1.12", "5.83", "42.1", "119", "1234", "83\u{a0}100", "1\u{a0}234\u{a0}567"];
        assert_eq!(shown, expected);
        assert_eq!(number(0.0), "0.000");
    }
}
