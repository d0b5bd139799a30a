//! A node's answers are true: after a grant the node stores all keys, and after a release it stores none of them.

use quorlock_core::{Answer, Command, Key};

use super::Checked;
use crate::fact::Fact;
use crate::invariants::View;
use crate::node::{Content, Stored};

pub(crate) const NAME: &str = "stored";

pub(crate) const SENTENCE: &str = "S1: a vote exists only after a positive reply. S15: every attempt that ends \
     other than by success releases on all nodes. (algorithm) — On each key alone it is an ordinary vote; a \
     string equal to our value is ours. (kinds, 1 and 2)";

pub(crate) fn check(fact: &Fact<'_>, view: &View<'_>) -> Checked {
    let Fact::Executed { node, command, answer, .. } = fact else { return Ok(()) };
    let Some((keys, value)) = command.subject() else { return Ok(()) };
    let stored = |key: &Key| view.node(*node).stored(key, view.now);
    let taken = command.taken();
    let is_there = |it: &Stored| match &it.content {
        Content::Text(_) => it.holds(taken.map_or(value, |from| &from.value)),
        Content::Scored(members) => {
            let end = members.get(value.as_bytes());
            end.is_some_and(|end| view.node(*node).lives(*end, view.now))
        }
        Content::Other => false,
    };
    let is_yes = matches!(
        answer,
        Answer::Granted
            | Answer::GrantedFenced { .. }
            | Answer::Extended
            | Answer::Downgraded
            | Answer::Raised { .. }
    );
    let lacks = |key: &&Key| !stored(key).is_some_and(is_there);
    if is_yes && let Some(key) = keys.iter().find(lacks) {
        return Err(format!("node {node} says {answer:?}, and {key} is another's: {command:?}"));
    }
    if is_yes
        && let Some(from) = taken.filter(|_| !command.is_release())
        && !stored(&from.nonce_key).is_some_and(|it| it.holds(value))
    {
        return Err(format!(
            "node {node} says {answer:?}, and the nonce is another's: {command:?}"
        ));
    }
    // `GiveBack` undoes an attach under all keys or none. If one key has another client's value, the other keys stay.
    let is_partial = matches!(command, Command::GiveBack { .. }) && keys.len() > 1;
    let is_release = command.is_release() && taken.is_none() && !is_partial;
    let is_answered = !matches!(answer, Answer::Failed(_));
    let mut left = keys.iter().filter(|key| stored(key).is_some_and(is_there));
    match left.next().filter(|_| is_release && is_answered) {
        Some(key) => {
            Err(format!("node {node} says {answer:?}, and {key} is still ours: {command:?}"))
        }
        None => Ok(()),
    }
}
