//! `quorlock bench`: measures a user's nodes.

mod measure;

use std::iter;

use quorlock::RestartGuard;
use serde_json::json;

use self::measure::{Failed, LOCKERS, Latency, Measured, measure};

use crate::args::{Bench, OutputArgs};
use crate::exit_code::ExitCode;
use crate::options::{self, Refused};
use crate::output::{self, Output, columns, time};

pub(crate) fn main(args: &Bench, format: OutputArgs) -> Result<ExitCode, Refused> {
    let guarded = args.nodes.restart_guard.is_some() || options::has_replicas(&args.nodes)?;
    let build = || {
        let builder = options::builder(&args.nodes)?;
        // No program relies on these locks, so the restart guard, under which new nodes do not vote, is off by default.
        let builder = if guarded { builder } else { builder.restart_guard(RestartGuard::Off) };
        options::build_here(builder, &args.nodes)
    };
    let mut output = Output::new(format, None)?;
    let for_so_long = time(args.time);
    let most = LOCKERS.into_iter().max().unwrap_or(1);
    output.event(
        json!({ "event": "loading", "seconds": args.time.as_secs_f64(), "lockers": most }),
        Some(&format!(
            "loads the nodes for {for_so_long}, with up to {most} lockers; all keys begin with \
             \"quorlock-bench:\" and are given back{}",
            if guarded { "" } else { "; restart guard off, because nobody relies on these locks" }
        )),
    );
    match measure(build, args.time) {
        Ok(measured) => {
            let text = if format.json { as_json(&measured)? } else { as_table(&measured) };
            output::print(&text)?;
            Ok(ExitCode::Success)
        }
        Err(Failed::Refused(refused)) => Err(refused),
        Err(Failed::Nodes(error)) => {
            let message = error.to_string();
            output.error(json!({ "event": "not_measured", "message": message }), &message);
            Ok(if error.is_permission_denied() { ExitCode::NotAllowed } else { ExitCode::NoQuorum })
        }
    }
}

fn as_json(measured: &Measured) -> Result<String, Refused> {
    let json =
        serde_json::to_string(measured).map_err(|error| Refused::internal(error.to_string()))?;
    Ok(format!("{json}\n"))
}

fn as_table(measured: &Measured) -> String {
    let nodes = measured.nodes.iter().map(|node| {
        let [p50, p99] = times(&node.latency);
        [node.node.clone(), p50, p99, count(node.failed)]
    });
    let mut lines = columns(["ROUND TRIP", "P50", "P99", "FAILED"], nodes, &[1, 2, 3]);
    let pairs = measured.pairs.iter().map(|pairs| {
        let [p50, p99] = times(&pairs.latency);
        let rate = format!("{:.0}", pairs.pairs_per_s);
        [pairs.lockers.to_string(), rate, p50, p99, count(pairs.failed)]
    });
    lines.push(String::new());
    lines.extend(columns(["LOCKERS", "PAIRS/S", "P50", "P99", "FAILED"], pairs, &[1, 2, 3, 4]));
    let [p50, p99] = times(&measured.handover.latency);
    let row = [measured.handover.count.to_string(), p50, p99];
    lines.push(String::new());
    lines.extend(columns(["HAND-OVERS", "P50", "P99"], iter::once(row), &[1, 2]));
    lines.join("\n") + "\n"
}

fn count(count: u64) -> String {
    if count == 0 { String::new() } else { count.to_string() }
}

/// Median and 99th percentile in milliseconds.
fn times(latency: &Latency) -> [String; 2] {
    [latency.p50_us, latency.p99_us].map(|micros| {
        micros.map_or_else(|| "-".to_owned(), |micros| format!("{:.2}ms", micros / 1000.0))
    })
}
