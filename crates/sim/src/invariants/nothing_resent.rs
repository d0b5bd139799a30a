//! The engine sends no command twice to a node, except a release.

use std::collections::BTreeSet;

use quorlock_core::{Command, Ticket, Verb};

use super::Checked;
use crate::fact::{ClientId, Fact, NodeIndex};

pub(crate) const NAME: &str = "nothing resent";

pub(crate) const SENTENCE: &str =
    "S8: nothing resent. Unknown = no vote, release owed. (algorithm)";

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct NothingResent(BTreeSet<(ClientId, NodeIndex, Ticket, Option<u64>)>);

impl NothingResent {
    /// Drops the records of commands about trust: a model numbers these commands from the start again when none is in
    /// flight, so an equal number is no repetition.
    pub(crate) fn rebase(&mut self) {
        self.0.retain(|(_, _, ticket, _)| ticket.verb != Verb::Trust);
    }

    pub(crate) fn check(&mut self, fact: &Fact<'_>) -> Checked {
        match fact {
            Fact::Ordered { client, node, ticket, command }
                if ticket.verb != Verb::Release
                    && !self.0.insert((*client, *node, *ticket, raised_to(command))) =>
            {
                Err(format!("client {client} gives node {node} a second time: {command:?}"))
            }
            _ => Ok(()),
        }
    }
}

/// The new value of the counters in a `Raise` command. Two raises of one lock are no repetition if their values differ.
const fn raised_to(command: &Command) -> Option<u64> {
    match command {
        Command::Raise { to, .. } => Some(*to),
        _ => None,
    }
}
