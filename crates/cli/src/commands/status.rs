//! `quorlock status`: who holds a lock, node by node.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use quorlock::node::Holding;
use quorlock::{
    Client, Holder, HolderKind, Inspection, NodeAnswer, NodeOutcome, NodeStats, NodeTrustState,
    RestartGuard, Verdict,
};
use quorlock_bench::columns;
use serde_json::{Value, json};

use crate::args::Status;
use crate::exit_code::ExitCode;
use crate::options::{self, Refused};
use crate::output::{millis, time};

/// Time between two looks of `--watch`.
const WATCH_EVERY: Duration = Duration::from_secs(1);

pub(crate) fn main(args: &Status) -> Result<ExitCode, Refused> {
    options::check_key(&args.key, &args.nodes)?;
    let mut builder = options::builder(&args.nodes)?;
    if !options::guard_is_off(&args.nodes) {
        // Who only looks writes nothing.
        builder = builder.restart_guard(RestartGuard::Observe);
    }
    let client = options::build(builder, &args.nodes)?;
    super::runtime()?.block_on(show(&client, args))
}

async fn show(client: &Client, args: &Status) -> Result<ExitCode, Refused> {
    let inspect = || async {
        let inspected = client.inspect(&args.key).await;
        inspected.map_err(|error| Refused::usage(error.to_string()))
    };
    // What follows from the first look at a node is asked behind it: with the second one it is known.
    inspect().await?;
    loop {
        let inspection = inspect().await?;
        let nodes = client.stats().nodes;
        if args.watch && !args.output.json && io::stdout().is_terminal() {
            // Home, and clear what follows: nothing is scrolled away.
            print_out("\x1b[H\x1b[2J");
        }
        if args.output.json {
            print_out(&format!("{}\n", as_json(&args.key, &inspection, &nodes)));
        } else if args.output.quiet {
            print_out(&format!("{}\n", inspection.verdict()));
        } else {
            print_out(&(as_table(&args.key, &inspection) + &trust_states(&inspection, &nodes)));
        }
        if !args.watch {
            return Ok(exit_code(&inspection));
        }
        tokio::time::sleep(WATCH_EVERY).await;
    }
}

fn exit_code(inspection: &Inspection) -> ExitCode {
    if inspection.verdict() != Verdict::Unknown {
        return ExitCode::Success;
    }
    let without_rights = inspection
        .nodes
        .iter()
        .filter(|node| node.failure().is_some_and(|failure| failure.kind().is_about_rights()));
    let others = inspection.nodes.len() - without_rights.count();
    if others < inspection.quorum() { ExitCode::NotAllowed } else { ExitCode::NoQuorum }
}

fn as_table(key: &str, inspection: &Inspection) -> String {
    let mut table = format!("{}: {}\n", key.escape_debug(), headline(inspection));
    let head = ["NODE", "STATE", "LEFT", "HOLDER"];
    for line in columns(Some(head), inspection.nodes.iter().map(row), &[2]) {
        table.push_str(&format!("  {line}\n"));
    }
    table
}

/// A line for each node whose votes do not count. Of one that did not answer, the table says it all.
fn trust_states(inspection: &Inspection, nodes: &[NodeStats]) -> String {
    let mut lines = String::new();
    for (answer, node) in inspection.nodes.iter().zip(nodes) {
        let hint = match node.trust_state {
            NodeTrustState::Quarantined { .. } | NodeTrustState::Refused(_) => "",
            NodeTrustState::Unverified if matches!(answer.said, NodeOutcome::Seen(_)) => {
                ": what it says of itself, or its marker, cannot be read; quorlock doctor says why"
            }
            _ => continue,
        };
        lines.push_str(&format!("  node {}: {}{hint}\n", node.name, node.trust_state));
    }
    lines
}

fn headline(inspection: &Inspection) -> String {
    let verdict = inspection.verdict();
    let held = inspection.holder_nodes();
    let nodes = inspection.nodes.len();
    match (verdict, inspection.holder()) {
        (Verdict::Held, Some(holder)) => {
            format!("{verdict} by {holder} (on {held} of {nodes} nodes)")
        }
        (Verdict::Shared, _) => {
            let readers = inspection.readers();
            let names: Vec<String> = readers.iter().map(who).collect();
            let count = readers.len();
            let plural = if count == 1 { "" } else { "s" };
            format!("HELD shared by {count} reader{plural}: {}", names.join(", "))
        }
        (Verdict::Free, _) => format!("{verdict}"),
        (Verdict::Split, _) => {
            format!("{verdict}: nobody has {} of {nodes} nodes", inspection.quorum())
        }
        (_, holder) if inspection.untrusted() > 0 => {
            let untrusted = inspection.untrusted();
            let holder = match holder {
                Some(holder) => format!("held by {holder} on {held} of {nodes} nodes; "),
                None => String::new(),
            };
            let nodes = if untrusted == 1 { "node that says" } else { "nodes that say" };
            format!("{verdict}: {holder}{untrusted} {nodes} it is free may have forgotten it")
        }
        _ => format!("{verdict}: too few of {nodes} nodes answered"),
    }
}

fn row(node: &NodeAnswer) -> [String; 4] {
    let name = node.node.to_string();
    let [state, left, holder] = match (&node.said, node.holder()) {
        (NodeOutcome::Failed(failure), _) => {
            return [name, "failed".into(), String::new(), failure.to_string()];
        }
        (_, Some(holder)) => {
            let left = holder.remaining.map_or_else(|| "never".to_owned(), time);
            ["held".to_owned(), left, who(&holder)]
        }
        (NodeOutcome::Seen(Holding::Free), None) => {
            ["free".to_owned(), String::new(), String::new()]
        }
        _ => ["silent".to_owned(), String::new(), format!("no answer within {}", time(node.took))],
    };
    [name, state, left, holder]
}

/// The holder without the time, which has a column of its own.
pub(crate) fn who(holder: &Holder) -> String {
    match &holder.kind {
        HolderKind::Owner(owner) if owner.is_empty() => "a client without a name".to_owned(),
        HolderKind::Owner(owner) => owner.clone(),
        HolderKind::Foreign(value) => format!("foreign value \"{value}\""),
        HolderKind::OtherType => "not a lock: a key of another type".to_owned(),
        kind @ (HolderKind::Readers { .. } | HolderKind::WaitingWriter(_)) => kind.to_string(),
        _ => "another caller".to_owned(),
    }
}

fn as_json(key: &str, inspection: &Inspection, stats: &[NodeStats]) -> Value {
    let with_trust_state = |(answer, stats): (&NodeAnswer, &NodeStats)| {
        let mut node = node_json(answer);
        let (trust_state, remaining) = match &stats.trust_state {
            NodeTrustState::Trusted => ("trusted", None),
            NodeTrustState::Quarantined { remaining, .. } => ("quarantined", Some(*remaining)),
            NodeTrustState::Refused(_) => ("refused", None),
            NodeTrustState::Unguarded => ("unguarded", None),
            _ => ("unverified", None),
        };
        node["trust_state"] = json!(trust_state);
        node["trust_state_text"] = json!(stats.trust_state.to_string());
        node["votes_count_in_ms"] = json!(remaining.map(millis));
        node
    };
    let nodes: Vec<Value> = inspection.nodes.iter().zip(stats).map(with_trust_state).collect();
    json!({
        "key": key,
        "verdict": inspection.verdict().to_string().to_lowercase(),
        "quorum": inspection.quorum(),
        "holder": inspection.holder().as_ref().map(who),
        "holder_nodes": inspection.holder_nodes(),
        "nodes": nodes,
    })
}

/// A node's answer, as `status --json` and the events of `run` show it.
pub(crate) fn node_json(node: &NodeAnswer) -> Value {
    let holder = node.holder();
    let state = match (&node.said, &holder) {
        (NodeOutcome::Failed(_), _) => "failed",
        (NodeOutcome::Granted, _) => "granted",
        (_, Some(Holder { kind: HolderKind::WaitingWriter(_), .. })) => "writer_waits",
        (_, Some(_)) => "held",
        (NodeOutcome::Refused(_), None) => "refused",
        (NodeOutcome::Seen(_), None) => "free",
        (NodeOutcome::NotAsked, _) => "not_asked",
        _ => "silent",
    };
    json!({
        "node": &*node.node,
        "state": state,
        "holder": holder.as_ref().map(who),
        "left_ms": holder.as_ref().and_then(|holder| holder.remaining).map(millis),
        "failure": node.failure().map(ToString::to_string),
    })
}

fn print_out(text: &str) {
    // A reader that has gone away has seen enough.
    let _ = io::stdout().write_all(text.as_bytes());
    let _ = io::stdout().flush();
}
