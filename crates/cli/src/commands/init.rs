//! `quorlock init`: what an operator decides about the nodes.

use std::io::{self, BufRead, IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use quorlock::ClientBuilder;
use quorlock::node::NodeConfig;
use quorlock_admin::init::{
    Before, ChangedNode, InitError, Initialized, NodeChange, before, fresh, reconfigure,
};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::run::ends_the_wait;
use crate::args::Init;
use crate::child::Signals;
use crate::exit_code::ExitCode;
use crate::options::{self, Refused};
use crate::output::{Output, millis, time};

pub(crate) fn main(args: &Init) -> Result<ExitCode, Refused> {
    let builder = options::builder(&args.nodes)?;
    let old: Result<Vec<NodeConfig>, _> =
        args.old_node.iter().map(|url| NodeConfig::parse(url)).collect();
    let old = old.map_err(|error| Refused::usage(format!("--old-node: {error}")))?;
    let mut output = Output::new(args.output, None)?;
    let runtime = super::runtime()?;
    if !args.yes {
        can_answer(args)?;
        let before = match runtime.block_on(before(&builder, &old)) {
            Ok(before) => before,
            Err(InitError::Build(error)) => return Err(options::blamed(error, &args.nodes)),
            Err(error) => return Err(Refused::usage(error.to_string())),
        };
        confirm(args, &before)?;
    }
    // Only from here on: who is asked may still press Ctrl-C.
    let signals = Signals::catch()?;
    let change = runtime.block_on(async {
        if args.fresh {
            fresh(&builder).await.map(Ended::Done)
        } else {
            moved(&builder, &old, &mut output, signals).await
        }
    });
    match change {
        Ok(Ended::Done(change)) => Ok(conclude(&change, &mut output)),
        Ok(Ended::Signal(signal)) => Ok(ExitCode::Signal(signal.as_raw())),
        Err(InitError::Build(error)) => Err(options::blamed(error, &args.nodes)),
        Err(error) => {
            let message = error.to_string();
            output.error(json!({ "event": "not_initialized", "message": message }), &message);
            Ok(ExitCode::NoQuorum)
        }
    }
}

/// How it ended.
enum Ended {
    Done(Initialized),
    Signal(Signal),
}

const FRESH: &str =
    "No lock is in use on these nodes, and no client is about to take one by the old settings?";
const RECONFIGURE: &str = "No lock will be granted until this is done. Go on?";

fn question(args: &Init) -> &'static str {
    if args.fresh { FRESH } else { RECONFIGURE }
}

/// Whoever does not say so beforehand is asked, if there is somebody to ask.
fn can_answer(args: &Init) -> Result<(), Refused> {
    if io::stdin().is_terminal() && io::stderr().is_terminal() {
        return Ok(());
    }
    Err(Refused::usage(format!("{} If so, give --yes", question(args))))
}

fn confirm(args: &Init, before: &Before) -> Result<(), Refused> {
    let mut answer = String::new();
    let (shown, question) = (shown(args.fresh, &before.old, &before.new), question(args));
    let asked = write!(io::stderr(), "{shown}quorlock: {question} Type yes: ")
        .and_then(|()| io::stderr().flush())
        .and_then(|()| io::stdin().lock().read_line(&mut answer));
    match asked {
        Ok(_) if answer.trim() == "yes" => Ok(()),
        _ => Err(Refused::usage("nothing was changed: the answer was not yes")),
    }
}

/// What was, and what will be: a line each.
fn shown(fresh: bool, old: &[(String, Vec<Arc<str>>)], new: &str) -> String {
    let mut lines = String::new();
    for (settings, nodes) in old {
        let nodes = nodes.join(", ");
        lines += &if fresh {
            format!("quorlock: overwritten on {nodes}: the mark of other clients, {settings}\n")
        } else {
            format!("quorlock: old settings, as {nodes} say: {settings}\n")
        };
    }
    if old.is_empty() && !fresh {
        lines += "quorlock: old settings: no node that answers is marked for others\n";
    }
    lines += &format!("quorlock: new settings: {new}\n");
    lines
}

/// Moves the nodes, and counts the wait down.
async fn moved(
    builder: &ClientBuilder,
    old: &[NodeConfig],
    output: &mut Output,
    mut signals: Signals,
) -> Result<Ended, InitError> {
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
            "the nodes do not vote until every lock of the old settings has expired: {} left; Ctrl-C is safe: \
             the first client with the new settings then finishes the change",
            time(left)
        );
        output.progress(event, &line, first);
        first = false;
        tokio::select! {
            () = tokio::time::sleep(left.min(Duration::from_millis(500))) => {}
            signal = signals.next() => {
                if let Some(signal) = ends_the_wait(signal) {
                    let line = "interrupted: the nodes keep waiting; the first client with the new settings \
                                finishes the change, or this command if it is run again";
                    output.event(json!({ "event": "interrupted" }), Some(line));
                    return Ok(Ended::Signal(signal));
                }
            }
        }
    }
    Ok(Ended::Done(reconfiguration.finish().await))
}

/// Tells what was done on each node.
fn conclude(change: &Initialized, output: &mut Output) -> ExitCode {
    for node in &change.nodes {
        let line = format!("node {}: {}", node.node, in_words(node));
        let mut event = node_json(node);
        event["event"] = json!("node");
        output.event(event, Some(&line));
    }
    let (votes, needed) = (change.voting(), change.needed);
    let event = json!({ "event": "initialized", "voting": votes, "needed": needed });
    let nodes_vote = if votes == 1 { "node votes" } else { "nodes vote" };
    if votes >= needed {
        output.event(
            event,
            Some(&format!("done: {votes} {nodes_vote}, and a quorum needs {needed}")),
        );
        ExitCode::Success
    } else {
        output.error(
            event,
            &format!("not done: only {votes} {nodes_vote}, and a quorum needs {needed}"),
        );
        ExitCode::NoQuorum
    }
}

fn in_words(node: &ChangedNode) -> String {
    match &node.change {
        Ok(NodeChange::Marked) => "its votes count".to_owned(),
        Ok(NodeChange::WasMarked) => "its votes counted before".to_owned(),
        Ok(NodeChange::Waits) => "its votes count after the wait".to_owned(),
        Ok(NodeChange::Retired) => "it is taken out of use and votes for no client".to_owned(),
        Ok(_) => "done".to_owned(),
        Err(why) => format!("nothing was done: {why}"),
    }
}

fn node_json(node: &ChangedNode) -> Value {
    let (change, why) = match &node.change {
        Ok(NodeChange::Marked) => ("marked", None),
        Ok(NodeChange::WasMarked) => ("was_marked", None),
        Ok(NodeChange::Waits) => ("waits", None),
        Ok(NodeChange::Retired) => ("retired", None),
        Ok(_) => ("done", None),
        Err(why) => ("nothing", Some(why)),
    };
    json!({ "node": &*node.node, "done": change, "why": why })
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn the_question_shows_what_was_and_what_will_be() {
        let old = vec![("nodes=a,b quorum=2".to_owned(), vec!["a".into(), "b".into()])];
        let changes = |fresh, old: &[_]| shown(fresh, old, "nodes=c quorum=1");
        assert_eq!(
            changes(false, &old),
            "quorlock: old settings, as a, b say: nodes=a,b quorum=2\n\
             quorlock: new settings: nodes=c quorum=1\n"
        );
        assert!(
            changes(true, &old).starts_with("quorlock: overwritten on a, b: the mark of other")
        );
        assert_eq!(changes(true, &[]), "quorlock: new settings: nodes=c quorum=1\n");
        assert!(changes(false, &[]).contains("no node that answers is marked for others"));
    }
}
