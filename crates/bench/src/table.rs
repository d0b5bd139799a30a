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
    let rows = report.results.iter().map(cells);
    line(columns(head, rows.collect(), &[2, 3, 5]));
    if !report.not_run.is_empty() {
        for missing in &report.not_run {
            line(format!("{}  {}  not run: {}", missing.workload, missing.subject, missing.why));
        }
        line(String::new());
    }
    if !report.targets.is_empty() {
        line(columns(
            ["TARGET", "GOAL", "VALUE", ""],
            report.targets.iter().map(target).collect(),
            &[2],
        ));
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

/// Lines of columns; those in `right` end where the others begin.
pub(crate) fn columns<const N: usize>(
    head: [&str; N],
    rows: Vec<[String; N]>,
    right: &[usize],
) -> String {
    let mut table = vec![head.map(str::to_owned)];
    table.extend(rows);
    let width =
        |column: usize| table.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut text = String::new();
    for row in &table {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if right.contains(&column) {
                format!("{cell:>width$}")
            } else {
                format!("{cell:width$}")
            }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
