//! The engine hears of a node's answers in the order in which the node was asked.

use std::collections::{BTreeMap, VecDeque};

use quorlock_core::{Answer, Ticket};

use super::Verdict;
use crate::fact::{ClientId, Fact, NodeIndex};

pub(crate) const NAME: &str = "in order";

pub(crate) const SENTENCE: &str = "Answers of a node are told in the order of sending, also across \
     connections: an old \"extended\" is never taken for news after a newer \"gone\". (protocol, 5)";

/// What was sent to each node and has not been told, kept from the first connection on; the models have none.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct InOrder(BTreeMap<(ClientId, NodeIndex), VecDeque<Ticket>>);

impl InOrder {
    pub(crate) fn check(&mut self, fact: &Fact<'_>) -> Verdict {
        match fact {
            Fact::Connected { client, node, .. } => {
                self.0.entry((*client, *node)).or_default();
            }
            Fact::Sent { client, node, ticket, .. } => {
                if let Some(sent) = self.0.get_mut(&(*client, *node)) {
                    sent.push_back(*ticket);
                }
            }
            // What failed may never have been sent.
            Fact::Told { client, node, ticket, answer, .. }
                if !matches!(answer, Answer::Failed(_)) =>
            {
                let Some(sent) = self.0.get_mut(&(*client, *node)) else { return Ok(()) };
                match sent.iter().position(|other| other == ticket) {
                    // What was sent before it has failed, or never will be told.
                    Some(place) => drop(sent.drain(..=place)),
                    None => {
                        return Err(format!(
                            "client {client} is told an answer of node {node} behind that to a later command: \
                             {ticket:?}"
                        ));
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}
