//! Nothing but a release is given to a node twice.

use std::collections::BTreeSet;

use quorlock_core::{Ticket, Verb};

use super::Verdict;
use crate::fact::{ClientId, Fact, NodeIndex};

pub(crate) const NAME: &str = "nothing resent";

pub(crate) const SENTENCE: &str =
    "S8: nothing resent. Unknown = no vote, release owed. (protocol, 9)";

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct NothingResent(BTreeSet<(ClientId, NodeIndex, Ticket)>);

impl NothingResent {
    pub(crate) fn check(&mut self, fact: &Fact<'_>) -> Verdict {
        match fact {
            Fact::Ordered { client, node, ticket, command }
                if ticket.verb != Verb::Release && !self.0.insert((*client, *node, *ticket)) =>
            {
                Err(format!("client {client} gives node {node} a second time: {command:?}"))
            }
            _ => Ok(()),
        }
    }
}
