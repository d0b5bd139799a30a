//! `quorlock init`: decisions of an operator about nodes.

use std::io::{self, BufRead, IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use quorlock::ClientBuilder;
use quorlock::admin::{group, names};
use quorlock::node::{Failure, FailureKind, NodeConfig};
use quorlock::settings::old_nodes;
use quorlock_admin::init::{
    Before, ChangedNode, InUse, InitError, Initialized, LiveClient, NodeChange, fresh, in_use,
    in_use_by_old, reconfigure,
};
use quorlock_admin::locks::Incomplete;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::ls::not_looked_at;
use super::slow::looking;
use super::status::who;
use crate::args::{Init, OutputArgs};
use crate::child::Signals;
use crate::exit_code::ExitCode;
use crate::options::{self, Refused};
use crate::output::{Output, millis, plain, time};

pub(crate) fn main(args: &Init, format: OutputArgs) -> Result<ExitCode, Refused> {
    let mut builder = options::builder(&args.nodes)?;
    let old: Result<Vec<_>, _> = args.old_node.iter().map(|list| old_nodes(list)).collect();
    let old: Vec<NodeConfig> =
        old.map_err(|reason| Refused::usage(format!("--old-node: {reason}")))?.concat();
    let mut output = Output::new(format, None)?;
    let runtime = super::runtime()?;
    let question = if args.fresh { FRESH } else { RECONFIGURE };
    if !args.yes && !can_answer() {
        return Err(Refused::usage(format!("{question} If so, give --yes")));
    }
    let mut is_asked = false;
    // A lock may be acquired while a question is open, so the nodes are searched again after the answers.
    for is_first in [true, false] {
        let search = async {
            if args.fresh { in_use(&builder).await } else { in_use_by_old(&builder, &old).await }
        };
        let found = match runtime.block_on(looking(&builder, format, search)) {
            Ok(found) => found,
            Err(error) => return failed(error, args, &mut output),
        };
        if is_first {
            say_unknown(args, &found, &mut output);
        }
        if let Some(code) = objections(args, &found, &mut output) {
            return Ok(code);
        }
        if is_first {
            is_asked = asked(args, &found, question, &mut output)?;
        }
        // The nodes were waited for once.
        if !found.silent.is_empty() {
            builder = quorlock_admin::init::impatient(builder);
        }
        if args.force || !is_asked {
            break;
        }
    }
    // Signals are caught only from here on, so that Ctrl-C at a question ends quorlock.
    let signals = Signals::catch()?;
    let change = runtime.block_on(async {
        if args.fresh {
            fresh(&builder).await.map(InitEnd::Done)
        } else {
            moved(&builder, &old, &mut output, signals).await
        }
    });
    match change {
        Ok(InitEnd::Done(change)) => Ok(conclude(&change, &mut output)),
        Ok(InitEnd::Signal(signal)) => Ok(ExitCode::Signal(signal.as_raw())),
        Err(error) => failed(error, args, &mut output),
    }
}

/// Asks the user whether the nodes may be changed. Returns false if it certainly did not wait for an answer.
fn asked(args: &Init, found: &InUse, question: &str, output: &mut Output) -> Result<bool, Refused> {
    let before = &found.before;
    if !args.yes {
        confirm(&(settings(before) + &doubts(found)), question)?;
    }
    let is_changed = args.fresh && !before.old.is_empty();
    if is_changed && args.force {
        let lines = settings(before);
        let text = lines.trim_start_matches("quorlock: ").trim_end();
        output.event(json!({ "event": "settings_change", "message": lines }), Some(text));
    } else if is_changed {
        confirm_change(before)?;
    }
    Ok(!args.yes || is_changed)
}

fn failed(error: InitError, args: &Init, output: &mut Output) -> Result<ExitCode, Refused> {
    let message = error.to_string();
    match error {
        InitError::Build(error) => return Err(options::blamed(error, &args.nodes)),
        InitError::OldNodeListed { .. } => {
            return Err(Refused::usage(format!("--old-node: {message}")));
        }
        InitError::OldNodeVotes { .. } => {
            return Err(Refused::about(&["node"], message, &args.nodes));
        }
        _ => {}
    }
    output.error(json!({ "event": "not_initialized", "message": message }), &message);
    let is_barred = matches!(error, InitError::TooFew { barred: true, .. });
    Ok(if is_barred { ExitCode::NotAllowed } else { ExitCode::NoQuorum })
}

enum InitEnd {
    Done(Initialized),
    Signal(Signal),
}

const FRESH: &str =
    "Are all clients stopped, so that none has a lock on these nodes, or is about to take one?";
const RECONFIGURE: &str = "No lock is granted until this is done. Is that acceptable?";

const LISTED_MAX: usize = 100;

fn can_answer() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

fn confirm(lines: &str, question: &str) -> Result<(), Refused> {
    let mut answer = String::new();
    let asked = write!(io::stderr(), "{}quorlock: {question} Type yes: ", plain(lines))
        .and_then(|()| io::stderr().flush())
        .and_then(|()| io::stdin().lock().read_line(&mut answer));
    match asked {
        Ok(_) if answer.trim() == "yes" => Ok(()),
        _ => Err(Refused::usage("nothing was changed: the answer was not yes")),
    }
}

/// Asks about a change of settings. --yes does not answer this question.
fn confirm_change(before: &Before) -> Result<(), Refused> {
    let lines = settings(before);
    if can_answer() {
        let question = "Is it certain that no client uses the old settings any more?";
        return confirm(&lines, question);
    }
    let remedy = match before.is_reconfigurable {
        true => "give --force if no client uses the old ones any more; or, to change them safely, ",
        false => "",
    };
    let remedy = format!("{remedy}{}", before.remedy);
    Err(Refused::usage(format!(
        "nothing was changed: these nodes have other settings, and clients with the old and the new ones could \
         hold one lock at the same time; {remedy}\n{}",
        lines.trim_end()
    )))
}

/// The old settings and the new ones, a line each.
fn settings(before: &Before) -> String {
    let mut lines = String::new();
    for (settings, nodes) in &before.old {
        lines += &format!("quorlock: old settings of {}: {settings}\n", nodes.join(", "));
    }
    lines + &format!("quorlock: new settings: {}\n", before.new)
}

/// The reasons why the search shows less than all locks: nodes that may have forgotten some.
fn doubts(found: &InUse) -> String {
    let doubts =
        group(found.doubtful.iter().map(|(node, why)| (&**node, why)), |one, other| one == other);
    let line = |(nodes, why): &(Vec<&str>, &Failure)| {
        format!("quorlock: {} may have forgotten locks: {why}\n", names(nodes))
    };
    doubts.iter().map(line).collect()
}

/// Says on which nodes it is not known whether clients are connected, or whether locks are in use. With --fresh the second
/// is an objection.
fn say_unknown(args: &Init, found: &InUse, output: &mut Output) {
    if !args.fresh && !found.incomplete.is_empty() {
        let lines = not_looked_at(found.incomplete.iter().map(|(node, why)| (&**node, why)));
        let message = format!("not known whether locks are in use: {}", lines.join("; "));
        output.event(json!({ "event": "locks_unknown", "message": message }), Some(&message));
    }
    let reasons =
        group(found.unlisted.iter().map(|(node, why)| (&**node, why)), |one, other| one == other);
    for (nodes, why) in reasons {
        let hint = match why.kind() {
            FailureKind::Forbidden => {
                "; stop all clients yourself, or give the user the right +client|list"
            }
            _ => "; stop all clients yourself",
        };
        let message =
            format!("not known whether clients are connected to {}: {why}{hint}", names(&nodes));
        let event = json!({ "event": "clients_unknown", "nodes": nodes, "message": message });
        output.event(event, Some(&message));
    }
}

/// Reports the objections to a change of the nodes: locks are in use, clients are connected, or, for --fresh, the search
/// for locks was incomplete. `None`: there are no objections, or --force overrides them.
fn objections(args: &Init, found: &InUse, output: &mut Output) -> Option<ExitCode> {
    let (locks, incomplete, clients) = (&found.locks, &found.incomplete, &found.clients);
    let is_unknown = args.fresh && !incomplete.is_empty();
    if locks.is_empty() && clients.is_empty() && !is_unknown {
        return None;
    }
    let mut lines: Vec<String> = locks
        .iter()
        .take(LISTED_MAX)
        .map(|lock| {
            let (key, holder, nodes) =
                (lock.key.escape_debug(), lock.holder.describe(), lock.nodes.join(", "));
            format!("\"{key}\" in database {} is {holder} (on {nodes})", lock.database)
        })
        .collect();
    if locks.len() > LISTED_MAX {
        lines.push(format!("and {} more", locks.len() - LISTED_MAX));
    }
    let client = |client: &LiveClient| {
        let LiveClient { process, nodes, .. } = client;
        format!("the client {process} is connected (to {})", nodes.join(", "))
    };
    lines.extend(clients.iter().take(LISTED_MAX).map(client));
    if clients.len() > LISTED_MAX {
        lines.push(format!("and {} more clients", clients.len() - LISTED_MAX));
    }
    lines.extend(not_looked_at(incomplete.iter().map(|(node, why)| (&**node, why))));
    let (code, what, advice) = if let [_] = locks[..] {
        (ExitCode::Held, "a lock is in use".to_owned(), "wait until it has ended, or ")
    } else if !locks.is_empty() {
        let what = format!("{} locks are in use", locks.len());
        (ExitCode::Held, what, "wait until they have ended, or ")
    } else if let [_] = clients[..] {
        let what = "a client that takes locks is connected";
        (ExitCode::Held, what.to_owned(), "stop it, or ")
    } else if !clients.is_empty() {
        let what = format!("{} clients that take locks are connected", clients.len());
        (ExitCode::Held, what, "stop them, or ")
    } else {
        let (code, what, advice) = not_looked(incomplete.iter().map(|(_, why)| why));
        (code, what.to_owned(), advice)
    };
    let listed = lines.join("\nquorlock:   ");
    if args.force {
        output.event(
            json!({ "event": "forced", "message": what }),
            Some(&format!("{what}; --force goes on:\nquorlock:   {listed}")),
        );
        return None;
    }
    let lock_json = |lock: &quorlock_admin::init::LiveLock| {
        json!({
            "key": &*lock.key,
            "database": lock.database,
            "holder": who(&lock.holder),
            "left_ms": lock.holder.remaining.map(millis),
            "nodes": lock.nodes.iter().map(|node| &**node).collect::<Vec<_>>(),
        })
    };
    let forced = match args.fresh {
        true => "give --force if you are certain that no client relies on a lock",
        false => {
            "give --force, which ends the work: quorlock run stops its command and exits with 79"
        }
    };
    let message = format!("nothing was changed: {what}; {advice}{forced}");
    let locks: Vec<Value> = locks.iter().map(lock_json).collect();
    let client_json = |client: &LiveClient| {
        let nodes: Vec<&str> = client.nodes.iter().map(|node| &**node).collect();
        json!({ "process": client.process, "nodes": nodes })
    };
    let clients: Vec<Value> = clients.iter().take(LISTED_MAX).map(client_json).collect();
    let node_json =
        |(node, why): &(Arc<str>, Incomplete)| json!({ "node": **node, "reason": why.to_string() });
    let nodes: Vec<Value> = incomplete.iter().map(node_json).collect();
    let event = json!({
        "event": "not_initialized", "message": message, "locks": locks, "clients": clients,
        "incomplete": nodes,
    });
    output.error(event, &format!("{message}\nquorlock:   {listed}"));
    Some(code)
}

/// The reason why the search for locks was incomplete, with advice other than --force.
fn not_looked<'a>(
    mut reasons: impl Iterator<Item = &'a Incomplete> + Clone,
) -> (ExitCode, &'static str, &'static str) {
    let barred = reasons.clone().find(|why| why.is_about_rights());
    match barred.and_then(Incomplete::kind) {
        Some(FailureKind::MissingCommand) => (
            ExitCode::NotAllowed,
            "a command that looks for locks is missing",
            "remove its rename-command line from the server's configuration and restart the server, or ",
        ),
        Some(FailureKind::Unauthenticated) => {
            (ExitCode::NotAllowed, "a node refuses the user", "correct user or password, or ")
        }
        Some(_) => (
            ExitCode::NotAllowed,
            "the user may not look for locks",
            "give it the rights to SCAN, to SELECT, and to read all keys (~*), or ",
        ),
        None if reasons.clone().any(|why| why.kind() == Some(FailureKind::Busy)) => (
            ExitCode::NoQuorum,
            "not all keys could be looked at",
            "wait until the script has ended, or end it (SCRIPT KILL), and try again, or ",
        ),
        // Another try does not help, because there are too many keys.
        None if reasons.any(|why| *why == Incomplete::TimeIsUp) => {
            (ExitCode::NoQuorum, "not all keys could be looked at", "")
        }
        None => (ExitCode::NoQuorum, "not all keys could be looked at", "try again, or "),
    }
}

async fn moved(
    builder: &ClientBuilder,
    old: &[NodeConfig],
    output: &mut Output,
    mut signals: Signals,
) -> Result<InitEnd, InitError> {
    let reconfiguration = reconfigure(builder, old).await?;
    let mut first = true;
    loop {
        let left = reconfiguration.left();
        if left.is_zero() {
            break;
        }
        let nodes: Vec<Value> = reconfiguration.nodes.iter().map(node_json).collect();
        let event = json!({ "event": "waiting", "left_ms": millis(left), "nodes": nodes });
        let line = format!(
            "{} until the nodes vote; Ctrl-C is safe (old locks must end first)",
            time(left)
        );
        output.progress(event, |_| line, first);
        first = false;
        tokio::select! {
            () = tokio::time::sleep(left.min(Duration::from_millis(500))) => {}
            signal = signals.ending() => {
                let line = "interrupted: the nodes keep waiting; the first client with the new settings finishes \
                            the change, or this command if it is run again";
                output.event(json!({ "event": "interrupted" }), Some(line));
                return Ok(InitEnd::Signal(signal));
            }
        }
    }
    Ok(InitEnd::Done(reconfiguration.finish().await))
}

fn conclude(change: &Initialized, output: &mut Output) -> ExitCode {
    let groups =
        group(change.nodes.iter().map(|node| (node, told(&node.change).1)), |one, other| {
            one == other
        });
    for (nodes, what) in groups {
        let line =
            format!("{}: {what}", names(&nodes.iter().map(|it| &*it.node).collect::<Vec<_>>()));
        // Each node has its own event. Nodes with the same result share a line.
        for (place, node) in nodes.into_iter().enumerate() {
            let mut event = node_json(node);
            event["event"] = json!("node");
            output.event(event, (place == 0).then_some(&line));
        }
    }
    let (votes, needed) = (change.voting(), change.needed);
    let event = json!({ "event": "initialized", "voting": votes, "needed": needed });
    let nodes_vote = if votes == 1 { "node votes" } else { "nodes vote" };
    let result = format!("{votes} {nodes_vote}, and a quorum needs {needed}");
    if votes >= needed {
        output.event(event, Some(&format!("done: {result}")));
        return ExitCode::Success;
    }
    output.error(event, &format!("not done: only {result}"));
    ExitCode::NoQuorum
}

fn node_json(node: &ChangedNode) -> Value {
    json!({ "node": &*node.node, "done": told(&node.change).0, "why": node.change.why() })
}

/// The name of a change in events, and its text for people.
fn told(change: &NodeChange) -> (&'static str, String) {
    let (name, text) = match change {
        NodeChange::Marked => ("marked", "votes count"),
        NodeChange::WasMarked => ("was_marked", "votes counted before"),
        NodeChange::Waits => ("waits", "votes count after the wait"),
        NodeChange::Retired => ("retired", "taken out of use, with a vote for no client"),
        NodeChange::Unacknowledged { why } => {
            let text = format!(
                "written on the master, but not yet acknowledged: {why}; run the same command again, or \
                 see with quorlock doctor when its votes count"
            );
            return ("unacknowledged", text);
        }
        NodeChange::Unknown { why } => {
            let text = format!(
                "the change was sent, and its outcome is unknown: {why}; run the same command again, or see with \
                 quorlock doctor whether its votes count"
            );
            return ("unknown", text);
        }
        NodeChange::Nothing { why } => return ("nothing", format!("nothing was done: {why}")),
        _ => ("done", "done"),
    };
    (name, text.to_owned())
}

#[cfg(test)]
mod tests {
    use quorlock::node::Failure;

    use super::*;

    #[test]
    fn another_try_is_advised_only_where_it_can_help() {
        let silent = Incomplete::Failed(Failure::new(FailureKind::Silent));
        assert!(not_looked([&silent].into_iter()).2.contains("try again"));
        assert_eq!(not_looked([&silent, &Incomplete::TimeIsUp].into_iter()).2, "");
    }
}
