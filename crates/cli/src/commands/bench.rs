//! `quorlock bench`: what one's own nodes can do.

use std::io::{self, Write};
use std::iter;

use quorlock::RestartGuard;
use quorlock_bench::columns;
use quorlock_bench::live::{self, LiveNodes, LiveNodesError};
use serde_json::json;

use crate::args::Bench;
use crate::exit_code::ExitCode;
use crate::options::{self, Refused};
use crate::output::{Output, time};

pub(crate) fn main(args: &Bench) -> Result<ExitCode, Refused> {
    let guarded = args.nodes.restart_guard.is_some();
    let build = || {
        let builder = options::builder(&args.nodes)?;
        // Nobody relies on these locks, and nodes that are new are to be measured without a wait.
        let builder = if guarded { builder } else { builder.restart_guard(RestartGuard::Off) };
        options::build_here(builder, &args.nodes)
    };
    let mut output =
        Output::new(args.output, None).map_err(|error| Refused::usage(error.to_string()))?;
    let for_so_long = time(args.time);
    let most = live::LOCKERS.into_iter().max().unwrap_or(1);
    output.event(
        json!({ "event": "loading", "seconds": args.time.as_secs_f64(), "lockers": most }),
        Some(&format!(
            "loads the nodes for {for_so_long}, with up to {most} lockers; all keys begin with \
             \"quorlock-bench:\" and are given back{}",
            if guarded { "" } else { "; restart guard off, because nobody relies on these locks" }
        )),
    );
    match live::live_nodes(build, args.time) {
        Ok(measured) => {
            let text = if args.output.json { as_json(&measured)? } else { as_table(&measured) };
            // A reader that has gone away has seen enough.
            let _ = io::stdout().write_all(text.as_bytes());
            Ok(ExitCode::Success)
        }
        Err(LiveNodesError::Build(refused)) => Err(refused),
        Err(LiveNodesError::Nodes(error)) => {
            not_measured(&mut output, &error.to_string());
            Ok(if error.is_permission_denied() { ExitCode::NotAllowed } else { ExitCode::NoQuorum })
        }
        Err(LiveNodesError::Internal(why)) => {
            not_measured(&mut output, &why);
            Ok(ExitCode::Internal)
        }
    }
}

fn not_measured(output: &mut Output, message: &str) {
    output.error(json!({ "event": "not_measured", "message": message }), message);
}

fn as_json(measured: &LiveNodes) -> Result<String, Refused> {
    let json = serde_json::to_string(measured)
        .map_err(|error| Refused { message: error.to_string(), code: ExitCode::Internal })?;
    Ok(format!("{json}\n"))
}

fn as_table(measured: &LiveNodes) -> String {
    let nodes = measured.nodes.iter().map(|node| {
        let [p50, p99] = [node.p50_us, node.p99_us].map(micros);
        [node.node.clone(), p50, p99, count(node.failed)]
    });
    let mut lines = columns(Some(["ROUND TRIP", "P50", "P99", "FAILED"]), nodes, &[1, 2, 3]);
    let pairs = measured.pairs.iter().map(|pairs| {
        let [p50, p99] = [pairs.p50_us, pairs.p99_us].map(micros);
        let rate = format!("{:.0}", pairs.pairs_per_s);
        [pairs.lockers.to_string(), rate, p50, p99, count(pairs.failed)]
    });
    lines.push(String::new());
    let head = ["LOCKERS", "PAIRS/S", "P50", "P99", "FAILED"];
    lines.extend(columns(Some(head), pairs, &[1, 2, 3, 4]));
    let handover = &measured.handover;
    let [p50, p99] = [handover.p50_us, handover.p99_us].map(micros);
    let row = [handover.count.to_string(), p50, p99];
    lines.push(String::new());
    lines.extend(columns(Some(["HAND-OVERS", "P50", "P99"]), iter::once(row), &[1, 2]));
    lines.join("\n") + "\n"
}

fn count(count: u64) -> String {
    if count == 0 { String::new() } else { count.to_string() }
}

/// Microseconds for people, in milliseconds.
fn micros(micros: Option<f64>) -> String {
    micros.map_or_else(|| "-".to_owned(), |micros| format!("{:.2}ms", micros / 1000.0))
}
