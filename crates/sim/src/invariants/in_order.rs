//! What is sent to a node, and what the engine hears of it, keeps its order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use quorlock_core::{Answer, Ticket, Verb};

use super::Checked;
use crate::fact::{ClientId, Fact, NodeIndex};
use crate::ledger::subject;

pub(crate) const NAME: &str = "in order";

pub(crate) const SENTENCE: &str = "A release never overtakes its acquire; what sets a key is not sent behind \
     its release. Answers of a node are told in the order of sending, also across \
     connections, whichever of them were asked again. (protocol, 2 and 4)";

/// What was sent to each node, kept from the first connection on; the models have none.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct InOrder(BTreeMap<(ClientId, NodeIndex), Sent>);

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Sent {
    /// What has not been told.
    untold: VecDeque<Ticket>,
    /// The values that releases were about.
    released: BTreeSet<Vec<u8>>,
}

impl InOrder {
    pub(crate) fn check(&mut self, fact: &Fact<'_>) -> Checked {
        match fact {
            Fact::Connected { client, node, .. } => {
                self.0.entry((*client, *node)).or_default();
            }
            Fact::Sent { client, node, ticket, command } => {
                let Some(sent) = self.0.get_mut(&(*client, *node)) else { return Ok(()) };
                sent.untold.push_back(*ticket);
                let value = subject(command).map(|(_, value)| value.as_bytes().to_vec());
                match (ticket.verb, value) {
                    (Verb::Release, Some(value)) => drop(sent.released.insert(value)),
                    (Verb::Acquire | Verb::Heal, Some(value)) if sent.released.contains(&value) => {
                        return Err(format!(
                            "client {client} sends node {node} {ticket:?} behind its release"
                        ));
                    }
                    _ => {}
                }
            }
            // What failed may never have been sent.
            Fact::Told { client, node, ticket, answer, .. }
                if !matches!(answer, Answer::Failed(_)) =>
            {
                let Some(sent) = self.0.get_mut(&(*client, *node)) else { return Ok(()) };
                match sent.untold.iter().position(|other| other == ticket) {
                    // What was sent before it has failed, or never will be told.
                    Some(place) => drop(sent.untold.drain(..=place)),
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
