//! `quorlock ls`: every lock on the nodes.

use quorlock::admin;
use quorlock::node::FailureKind;
use quorlock_admin::locks::{Incomplete, Lock, LockKind, Locks, NodeLook, list};
use serde_json::{Value, json};

use super::slow::looking;
use super::status::who;
use crate::args::{Ls, OutputArgs};
use crate::exit_code::ExitCode;
use crate::options::{self, Refused};
use crate::output::{self, columns, json_line, millis, since, time, unix_millis};

pub(crate) fn main(args: &Ls, format: OutputArgs) -> Result<ExitCode, Refused> {
    if args.glob.as_deref() == Some("") {
        return Err(Refused::usage("the pattern is empty, and no lock has an empty name"));
    }
    let builder = options::builder(&args.nodes)?;
    let look = list(&builder, args.glob.as_deref());
    let found = super::runtime()?.block_on(looking(&builder, format, look));
    let mut found = found.map_err(|error| options::blamed(error, &args.nodes))?;
    let text = args.holder.as_deref().unwrap_or_default();
    found.locks.retain(|lock| who(&lock.holder).contains(text) && (lock.stale || !args.stale));
    let shown = if format.json {
        json_line(as_json(&found))
    } else if format.quiet {
        names(&found)
    } else {
        as_table(&found)
    };
    output::print(&shown)?;
    if found.complete() >= found.quorum {
        return Ok(ExitCode::Success);
    }
    let (complete, nodes, quorum) = (found.complete(), found.nodes.len(), found.quorum);
    let mut message = format!(
        "locks may be missing: the answers of {complete} of {nodes} nodes count, but {quorum} are needed"
    );
    let is_doubtful = |node: &&NodeLook| match &node.incomplete {
        Some(Incomplete::Doubtful(failure)) => !failure.kind().is_for_good(),
        _ => false,
    };
    let forgetful = found.nodes.iter().filter(is_doubtful);
    let forgetful: Vec<&str> = forgetful.map(|node| &*node.node).collect();
    if !forgetful.is_empty() {
        message += &format!("; {} may have forgotten locks", admin::names(&forgetful));
    }
    if !format.json {
        output::say(false, "refused", &message);
    }
    let without_rights =
        |node: &&NodeLook| node.incomplete.as_ref().is_some_and(Incomplete::is_about_rights);
    let others = nodes - found.nodes.iter().filter(without_rights).count();
    Ok(if others < quorum { ExitCode::NotAllowed } else { ExitCode::NoQuorum })
}

fn names(found: &Locks) -> String {
    let mut names: Vec<&str> = found.locks.iter().map(|lock| &*lock.resource).collect();
    names.dedup();
    names.iter().map(|name| format!("{}\n", name.escape_debug())).collect()
}

fn as_table(found: &Locks) -> String {
    let mut table = String::new();
    let head = ["KEY", "KIND", "HOLDER", "NODES", "LEFT", "HELD SINCE", "KEY'S LAST TOKEN", ""];
    if !found.locks.is_empty() {
        let rows = found.locks.iter().map(|lock| row(lock, found.nodes.len()));
        for line in columns(head, rows, &[3, 4]) {
            table += &format!("{line}\n");
        }
    } else if found.complete() >= found.quorum {
        table += "no locks\n";
    }
    let missing = found.nodes.iter();
    for line in
        not_looked_at(missing.filter_map(|node| Some((&*node.node, node.incomplete.as_ref()?))))
    {
        table += &format!("{line}\n");
    }
    table
}

/// A line for each reason why not all keys of a node were read, with all nodes that have this reason.
pub(crate) fn not_looked_at<'a>(
    nodes: impl Iterator<Item = (&'a str, &'a Incomplete)>,
) -> Vec<String> {
    let line = |(nodes, why): (Vec<&str>, &Incomplete)| {
        let hint = match why.kind() {
            Some(FailureKind::Forbidden) => {
                "; quorlock doctor --acl USER prints the command that gives the rights"
            }
            Some(FailureKind::Unauthenticated) => {
                "; check --username and the password (QUORLOCK_PASSWORD or --password-file)"
            }
            Some(FailureKind::Busy) => "; wait until the script has ended, or end it: SCRIPT KILL",
            _ => "",
        };
        let not_all = match why {
            Incomplete::Doubtful(_) => "",
            _ => "not all keys were looked at: ",
        };
        format!("{}: {not_all}{why}{hint}", admin::names(&nodes))
    };
    admin::group(nodes, |one, other| one == other).into_iter().map(line).collect()
}

fn row(lock: &Lock, nodes: usize) -> [String; 8] {
    [
        lock.resource.escape_debug().to_string(),
        kind(lock).to_owned(),
        who(&lock.holder),
        format!("{} of {nodes}", lock.nodes.len()),
        lock.holder.remaining.map_or_else(|| "never ends".to_owned(), time),
        lock.holder.since.map_or_else(|| "unknown".to_owned(), since),
        match lock.fencing_token {
            Some(token) => token.to_string(),
            None if lock.has_fencing_counter => "nodes differ".to_owned(),
            None => String::new(),
        },
        if lock.stale { "below quorum" } else { "" }.to_owned(),
    ]
}

fn kind(lock: &Lock) -> &'static str {
    match lock.kind {
        LockKind::Shared => "shared",
        LockKind::Intent => "intent",
        _ => "exclusive",
    }
}

fn as_json(found: &Locks) -> Value {
    let lock = |lock: &Lock| {
        json!({
            "key": &*lock.resource,
            "kind": kind(lock),
            "holder": who(&lock.holder),
            "nodes": lock.nodes.iter().map(|node| &**node).collect::<Vec<_>>(),
            "left_ms": lock.holder.remaining.map(millis),
            "since_unix_ms": lock.holder.since.map(unix_millis),
            "fencing_token": lock.fencing_token,
            "has_fencing_counter": lock.has_fencing_counter,
            "below_quorum": lock.stale,
        })
    };
    let node = |node: &NodeLook| {
        let incomplete = node.incomplete.as_ref().map(ToString::to_string);
        json!({ "node": &*node.node, "incomplete": incomplete })
    };
    json!({
        "complete": found.complete() >= found.quorum,
        "quorum": found.quorum,
        "locks": found.locks.iter().map(lock).collect::<Vec<_>>(),
        "nodes": found.nodes.iter().map(node).collect::<Vec<_>>(),
    })
}
