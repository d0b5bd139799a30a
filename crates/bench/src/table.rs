//! The report for people.

use std::fmt::Write as _;

use crate::report::{Report, Row, Target};

/// All of it.
pub(crate) fn report(report: &Report) -> String {
    let mut text = String::new();
    let Report { machine, servers, .. } = report;
    let commit = report.commit.as_deref().unwrap_or("no commit");
    let dirty = if report.dirty { ", changed" } else { "" };
    // Writing into a string cannot fail.
    let mut line = |line: String| {
        let _ = writeln!(text, "{line}");
    };
    line(format!("quorlock {} ({commit}{dirty}), {}", report.quorlock, report.date));
    line(format!(
        "{}, {} cores, {} GiB, {}, Linux {}",
        machine.cpu, machine.cores, machine.memory_gib, machine.os, machine.kernel
    ));
    for servers in servers {
        let (count, product) = (servers.count, &servers.product);
        line(format!(
            "{count} × {product} {} on the same machine, TCP, no persistence unless a row says so",
            servers.version
        ));
    }
    let versions = report.versions.iter().map(|(name, version)| format!("{name} {version}"));
    line(format!("with {}", versions.collect::<Vec<_>>().join(", ")));
    line(format!("medians of {} rounds, and their spread; {}", report.rounds, report.command));
    line(String::new());
    let head = ["WORKLOAD", "SUBJECT", "NODES", "CONC", "METRIC", "MEDIAN", "SPREAD"];
    columns(Some(head), report.results.iter().map(cells), &[2, 3, 5])
        .into_iter()
        .for_each(&mut line);
    line(String::new());
    if !report.not_run.is_empty() {
        for missing in &report.not_run {
            line(format!("{}  {}  not run: {}", missing.workload, missing.subject, missing.why));
        }
        line(String::new());
    }
    if !report.targets.is_empty() {
        let head = ["TARGET", "GOAL", "VALUE", ""];
        columns(Some(head), report.targets.iter().map(target), &[2])
            .into_iter()
            .for_each(&mut line);
        line(String::new());
    }
    text
}

fn cells(row: &Row) -> [String; 7] {
    [
        row.workload.clone(),
        row.subject.clone(),
        row.nodes.to_string(),
        row.concurrency.to_string(),
        row.metric.clone(),
        number(row.median),
        format!("{} – {}", number(row.min), number(row.max)),
    ]
}

fn target(target: &Target) -> [String; 4] {
    let value = target.value.map_or_else(|| "not measured".to_owned(), number);
    let verdict = if target.met { "met" } else { "MISSED" };
    [target.name.clone(), target.goal.clone(), value, verdict.to_owned()]
}

/// Three digits that mean something.
pub(crate) fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

/// Rows as lines of columns; the columns in `right` end where the others begin.
pub fn columns<const N: usize>(
    head: Option<[&str; N]>,
    rows: impl Iterator<Item = [String; N]>,
    right: &[usize],
) -> Vec<String> {
    let head = head.map(|head| head.map(str::to_owned));
    let rows: Vec<[String; N]> = head.into_iter().chain(rows).collect();
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
            if right.contains(&column) {
                format!("{cell:>width$}")
            } else {
                format!("{cell:width$}")
            }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}
