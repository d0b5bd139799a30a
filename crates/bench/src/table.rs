//! The report as text.

use std::fmt::Write as _;

use crate::report::{Report, Row, Target};

pub(crate) fn report(report: &Report) -> String {
    let mut text = String::new();
    let Report { machine, servers, .. } = report;
    let commit = report.commit.as_deref().unwrap_or("no commit");
    let dirty = if report.dirty { ", changed" } else { "" };
    // Writing to a string cannot fail.
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
    let row = |row: &Row| {
        let Row { workload, subject, nodes, concurrency, metric, median, min, max, .. } = row;
        let (median, spread) = (number(*median), format!("{} – {}", number(*min), number(*max)));
        format!(
            "{workload:20}  {subject:17}  {nodes:>2}  {concurrency:>6}  {metric:33}  {median:>8}  {spread}"
        )
    };
    line("workload, subject, nodes, concurrency, metric, median, spread:".to_owned());
    report.results.iter().map(row).for_each(&mut line);
    line(String::new());
    for missing in &report.not_run {
        line(format!("{}  {}  not run: {}", missing.workload, missing.subject, missing.why));
    }
    for Target { name, goal, value, met } in &report.targets {
        let value = value.map_or_else(|| "not measured".to_owned(), number);
        let verdict = if *met { "met" } else { "MISSED" };
        line(format!("{name:60}  {goal:36}  {value:>12}  {verdict}"));
    }
    text
}

/// Formats a number for a table: without decimals from 100 on, with one decimal from 10 on, else with two.
pub(crate) fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}
