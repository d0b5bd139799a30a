//! The numbers in documents: written between two comments, from a saved report and nothing else.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::mem::take;
use std::path::Path;

use crate::report::{Report, Row, Target};
use crate::saved::{self, number};
use crate::workloads::kinds;
use crate::workloads::recovery::{self, guard};

/// Between which comments what is written: `<!-- NAME:begin -->` and `<!-- NAME:end -->`.
const ALL: &str = "bench";

/// What has a section of its own, which is called like it: the workloads whose names begin so; and how the names of its
/// targets begin.
const SECTIONS: [(&str, &str); 2] =
    [(recovery::NAME, guard::TARGETS), (kinds::NAME, kinds::TARGETS)];

/// Writes the tables into `page`, and the small table into `readme`. The page links the plots of
/// the folder `plots` beside it. What the report has nothing of is left as it is.
///
/// # Errors
/// A file cannot be read or written, lacks the comments, or the report is not of one
/// commit, unless `any_commit` is given. If so, nothing was written.
pub(crate) fn run(
    report: &Path,
    page: &Path,
    readme: &Path,
    any_commit: bool,
) -> Result<(), String> {
    let report = saved::read(report)?;
    if !any_commit && (report.dirty || report.commit.is_none()) {
        return Err(format!(
            "the report is of {}, but numbers in documents are of one commit: commit, measure \
             again, then write the page (or give --any-commit to see how it would look)",
            report.commit_in_words()
        ));
    }
    let mut report = report;
    let mut page_text = read(page)?;
    let mut changed = Vec::new();
    for (name, targets) in SECTIONS {
        let part = section(&mut report, name, targets);
        if !part.results.is_empty() {
            page_text = within(page, &page_text, name, &whole(&part)?)?;
        }
    }
    if !report.results.is_empty() {
        page_text = within(page, &page_text, ALL, &whole(&report)?)?;
        changed.push((readme, within(readme, &read(readme)?, ALL, &small(&report))?));
    }
    changed.push((page, page_text));
    for (path, text) in changed {
        fs::write(path, text)
            .map_err(|why| format!("{} cannot be written: {why}", path.display()))?;
        println!("{}: written", path.display());
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|why| format!("{} cannot be read: {why}", path.display()))
}

fn within(path: &Path, text: &str, name: &str, content: &str) -> Result<String, String> {
    between(text, name, content).map_err(|why| format!("{}: {why}", path.display()))
}

/// Takes a section out of a report.
fn section(report: &mut Report, name: &str, target: &str) -> Report {
    let mut part = Report { results: vec![], not_run: vec![], targets: vec![], ..report.clone() };
    let is_in = |workload: &str| workload.starts_with(name);
    (part.results, report.results) =
        take(&mut report.results).into_iter().partition(|row| is_in(&row.workload));
    (part.not_run, report.not_run) =
        take(&mut report.not_run).into_iter().partition(|absent| is_in(&absent.workload));
    (part.targets, report.targets) =
        take(&mut report.targets).into_iter().partition(|it| it.name.starts_with(target));
    part
}

/// `text` with `content` in place of what was between the two comments of that name.
fn between(text: &str, name: &str, content: &str) -> Result<String, String> {
    let (begin, end) = (&*format!("<!-- {name}:begin -->"), &*format!("<!-- {name}:end -->"));
    let once = |comment: &str| {
        let mut found = text.match_indices(comment);
        match (found.next(), found.next()) {
            (Some((at, _)), None) => Ok(at),
            (None, _) => Err(format!("it has no line {comment}")),
            (Some(_), Some(_)) => Err(format!("it has {comment} more than once")),
        }
    };
    let (from, to) = (once(begin)? + begin.len(), once(end)?);
    if to < from {
        return Err(format!("it has {end} before {begin}"));
    }
    Ok(format!("{}\n\n{}\n\n{}", &text[..from], content.trim(), &text[to..]))
}

/// What docs/benchmarks.md shows.
fn whole(report: &Report) -> Result<String, String> {
    let mut text = facts(report);
    text += "\n### Targets\n\n";
    text += &targets(&report.targets);
    text += "\n### Results\n\n";
    let _ = writeln!(
        text,
        "Medians of {} rounds; in parentheses the lowest and the highest round.\n",
        report.rounds
    );
    text += &plots(report)?;
    for workload in in_order(report.results.iter().map(|row| row.workload.as_str())) {
        let _ = writeln!(text, "#### `{workload}`\n\n{}", results(report, workload));
    }
    if !report.not_run.is_empty() {
        text += "#### Not run\n\n| subject | workload | why |\n|---|---|---|\n";
        for absent in &report.not_run {
            let (subject, workload) = (cell(&absent.subject), cell(&absent.workload));
            let _ = writeln!(text, "| {subject} | {workload} | {} |", cell(&absent.why));
        }
    }
    Ok(text)
}

fn facts(report: &Report) -> String {
    let machine = &report.machine;
    let versions: Vec<_> =
        report.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let rows = [
        (
            "machine",
            format!("{}, {} cores, {} GiB", machine.cpu, machine.cores, machine.memory_gib),
        ),
        ("system", format!("{}, kernel {}", machine.os, machine.kernel)),
        ("disk", machine.disk.clone()),
        ("servers", report.servers_in_words()),
        ("quorlock", format!("{}, {}", report.quorlock, report.commit_in_words())),
        ("beside it", versions.join(", ")),
        ("date", report.date.clone()),
        ("command", format!("`{}`", report.command)),
    ];
    let mut text = "| | |\n|---|---|\n".to_owned();
    for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = writeln!(text, "| {name} | {} |", cell(value));
    }
    text
}

fn targets(targets: &[Target]) -> String {
    let mut text = "| target | goal | measured | |\n|---|---|---|---|\n".to_owned();
    for target in targets {
        let value = target.value.map_or_else(|| "not measured".to_owned(), number);
        let (name, goal) = (cell(&target.name), cell(&target.goal));
        let _ = writeln!(text, "| {name} | {goal} | {value} | {} |", verdict(target));
    }
    text
}

/// `met`, or `MISSED` and by how much of the goal.
fn verdict(target: &Target) -> String {
    if target.met {
        return "met".to_owned();
    }
    let goal = target.goal.trim_start_matches(['≥', '≤', ' ']);
    let goal = goal.split_whitespace().next().and_then(|goal| goal.parse::<f64>().ok());
    match (target.value, goal) {
        // Of a goal of zero there is no share.
        (Some(value), Some(goal)) if goal != 0.0 => {
            let percent = ((value - goal) / goal * 100.0).abs();
            format!("**MISSED** by {} %", number(percent))
        }
        _ => "**MISSED**".to_owned(),
    }
}

/// One workload: a row per subject, nodes and concurrency, a column per metric.
fn results(report: &Report, workload: &str) -> String {
    let rows: Vec<&Row> = report.results.iter().filter(|row| row.workload == workload).collect();
    let metrics = in_order(rows.iter().map(|row| row.metric.as_str()));
    let subjects = in_order(rows.iter().map(|row| row.subject.as_str()));
    let cases: BTreeSet<_> = rows.iter().map(|row| (row.nodes, row.concurrency)).collect();

    let mut text = format!("| nodes | {} | subject |", unit(workload));
    for metric in &metrics {
        let _ = write!(text, " {} |", words(metric));
    }
    text += "\n|---|---|---|";
    text += &"---|".repeat(metrics.len());
    text.push('\n');
    for (nodes, concurrency) in cases {
        for subject in &subjects {
            let of = |metric: &str| {
                let values = report.values(workload, metric, nodes, concurrency);
                values.into_iter().find(|row| row.subject == *subject)
            };
            if !metrics.iter().any(|metric| of(metric).is_some()) {
                continue;
            }
            let _ = write!(text, "| {nodes} | {concurrency} | {} |", cell(subject));
            for metric in &metrics {
                let value = of(metric).map_or_else(|| "–".to_owned(), with_range);
                let _ = write!(text, " {value} |");
            }
            text.push('\n');
        }
    }
    text
}

fn with_range(row: &Row) -> String {
    let (median, low, high) = (number(row.median), number(row.min), number(row.max));
    if low == high { median } else { format!("{median} ({low}–{high})") }
}

/// What the concurrency of a workload counts.
fn unit(workload: &str) -> &'static str {
    match workload {
        "handover" | "fairness" => "processes",
        "open_loop" => "pairs/s offered",
        "held" => "locks",
        "contended_in_process" => "contenders",
        "recovery_restart" => "killed",
        _ => "lockers",
    }
}

/// `p50_us` as `p50 µs`, others without their underscores.
fn words(metric: &str) -> String {
    match metric {
        "pairs_per_s" => "pairs/s".to_owned(),
        "cpu_us_per_pair" => "CPU µs per pair".to_owned(),
        "p999_us" => "p99.9 µs".to_owned(),
        "p999_over_mean_wait" => "p99.9 of waits / mean".to_owned(),
        "jain" => "Jain index".to_owned(),
        "rate_ratio" => "pairs/s ÷ the first".to_owned(),
        _ => match metric.strip_suffix("_us") {
            Some(metric) => format!("{} µs", metric.replace('_', " ")),
            None => metric.replace('_', " "),
        },
    }
}

/// The small table of the README: those that ran over five nodes, the fastest first.
fn small(report: &Report) -> String {
    let mut rates = report.values("pairs", "pairs_per_s", 5, 64);
    rates.sort_by(|a, b| b.median.total_cmp(&a.median));
    let mut text = "| 5 nodes | pairs/s, 64 lockers | client CPU per pair | p50, 1 locker |\n\
                    |---|---|---|---|\n"
        .to_owned();
    for rate in rates {
        let of = |metric, lockers| {
            let values = report.values("pairs", metric, 5, lockers);
            let row = values.into_iter().find(|row| row.subject == rate.subject);
            row.map_or_else(|| "–".to_owned(), |row| format!("{} µs", number(row.median)))
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} |",
            cell(&rate.subject),
            number(rate.median),
            of("cpu_us_per_pair", 64),
            of("p50_us", 1)
        );
    }
    let _ = write!(
        text,
        "\n{}, {} cores shared by servers and clients, {}, {}.",
        report.machine.cpu,
        report.machine.cores,
        report.servers_in_words(),
        report.date,
    );
    text
}

/// Links to the plots that can be drawn from the report.
fn plots(report: &Report) -> Result<String, String> {
    let mut text = String::new();
    for plot in &crate::plot::PLOTS {
        if plot.draw(report)?.is_some() {
            let _ = writeln!(text, "![{}](plots/{})\n", plot.shows, plot.file);
        }
    }
    Ok(text)
}

/// Every word once, in the order of the report.
fn in_order<'a>(words: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut once = Vec::new();
    for word in words {
        if !once.contains(&word) {
            once.push(word);
        }
    }
    once
}

/// Text that does not end a table's cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests;
