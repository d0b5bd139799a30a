//! The engine sends no command but a release twice to a node.

use std::collections::BTreeSet;

use quorlock_core::{Command, Ticket, Verb};

use super::Checked;
use crate::fact::{ClientId, Fact, NodeIndex};

pub(crate) const NAME: &str = "nothing resent";

pub(crate) const SENTENCE: &str =
    "S8: nothing resent. Unknown = no vote, release owed. (protocol, 12)";

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct NothingResent(BTreeSet<(ClientId, NodeIndex, Ticket, Option<u64>)>);

impl NothingResent {
    /// Models restart the numbering of commands about trust when no such command is in flight, so this drops their
    /// records.
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

/// The new number in a raise. Two raises of one lock are different commands if their numbers differ.
const fn raised_to(command: &Command) -> Option<u64> {
    match command {
        Command::Raise { to, .. } => Some(*to),
        _ => None,
    }
}
