//! A key is touched only by who knows the whole value, and no two attempts share one.

use std::collections::BTreeMap;

use quorlock_core::{Answer, Command, Key, LockId, Verb};

use super::Checked;
use crate::fact::{ClientId, Fact, FaultEvent, NodeIndex};
use crate::ledger::subject;
use crate::node::Stored;
use crate::time::{MS, Time};
use crate::view::View;

pub(crate) const NAME: &str = "token ownership";

pub(crate) const SENTENCE: &str = "This is important in order to avoid removing a lock that was \
     created by another client. (paper) — S6: fresh token per attempt. S7: delete/extend only by \
     atomic compare of the whole value. S16: no key without a time to live. (protocol, 12)";

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct TokenOwnership {
    /// What each node was last seen to hold.
    seen: Vec<BTreeMap<Key, Stored>>,
    attempts: BTreeMap<Vec<u8>, (ClientId, LockId, u32)>,
}

impl TokenOwnership {
    pub(crate) fn new(nodes: usize) -> Self {
        Self { seen: vec![BTreeMap::new(); nodes], attempts: BTreeMap::new() }
    }

    pub(crate) fn rebase(&mut self, by: Time) {
        for seen in &mut self.seen {
            for stored in seen.values_mut() {
                stored.expires_ms = stored.expires_ms.map(|at| at - by / MS);
            }
            seen.retain(|_, stored| stored.expires_ms.is_none_or(|at| at > 0));
        }
    }

    pub(crate) fn check(&mut self, fact: &Fact<'_>, view: &View<'_>) -> Checked {
        match fact {
            Fact::Ordered {
                client,
                ticket,
                command: Command::Acquire { value, .. } | Command::AcquireFenced { value, .. },
                ..
            } if ticket.verb == Verb::Acquire => {
                let attempt = (*client, ticket.lock, ticket.round);
                let known = self.attempts.entry(value.as_bytes().to_vec()).or_insert(attempt);
                if *known != attempt {
                    return Err(format!("{value:?} is used in two attempts"));
                }
                Ok(())
            }
            Fact::Executed { node, command, answer, .. } => {
                self.executed(*node, command, answer, view)
            }
            Fact::FaultEvent(
                FaultEvent::NodeCrashed { node, .. }
                | FaultEvent::NodeStepped { node, .. }
                | FaultEvent::NodeFlushed { node }
                | FaultEvent::NodeOverwritten { node }
                | FaultEvent::KeyDeleted { node }
                | FaultEvent::KeyOccupied { node }
                | FaultEvent::KeyVacated { node },
            ) => {
                self.seen[*node].clear();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn executed(
        &mut self,
        node: NodeIndex,
        command: &Command,
        answer: &Answer,
        view: &View<'_>,
    ) -> Checked {
        let Some((key, value)) = subject(command) else { return Ok(()) };
        let after = view.node(node).stored(key, view.now).cloned();
        let before = match &after {
            Some(stored) => self.seen[node].insert(key.clone(), stored.clone()),
            None => self.seen[node].remove(key),
        };
        let before = before.filter(|stored| view.node(node).is_alive(stored, view.now));
        if matches!(answer, Answer::Granted | Answer::GrantedFenced { .. }) {
            let lives = after.as_ref().is_some_and(|stored| stored.expires_ms.is_some());
            return match before {
                None if lives => Ok(()),
                None => Err(format!("node {node} has granted {key} without a time to live")),
                Some(_) => Err(format!("node {node} has granted {key}, which was there")),
            };
        }
        let Some(before) = before else { return Ok(()) };
        match &after {
            Some(after) if !before.holds(value) && *after != before => {
                Err(format!("{command:?} has changed another's {key} on node {node}"))
            }
            None if !before.holds(value) => {
                Err(format!("{command:?} has deleted another's {key} on node {node}"))
            }
            Some(after) if after.expires_ms < before.expires_ms => {
                Err(format!("{command:?} has shortened the life of {key} on node {node}"))
            }
            _ => Ok(()),
        }
    }
}
