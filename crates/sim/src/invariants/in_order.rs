//! The commands to a node, and the answers that the engine gets, keep their order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use quorlock_core::{Answer, Ticket, Verb};

use super::Checked;
use crate::fact::{ClientId, Fact, NodeIndex};

pub(crate) const NAME: &str = "in order";

pub(crate) const SENTENCE: &str = "A release never overtakes its acquire; what sets a key is not sent behind \
     its release. The client delivers the answers of a node in the order of sending, also across \
     connections, whichever of them were asked again. (algorithm)";

/// The commands sent to each node since the client's first connection to it. In models it stays empty (no connections).
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct InOrder(BTreeMap<(ClientId, NodeIndex), Sent>);

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Sent {
    /// Commands that the engine has no answer to yet.
    undelivered: VecDeque<Ticket>,
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
                sent.undelivered.push_back(*ticket);
                let value = command.subject().map(|(_, value)| value.as_bytes().to_vec());
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
            // Failures have no place in the order of answers, because a failed command may never have been sent.
            Fact::Answered { client, node, ticket, answer, .. }
                if !matches!(answer, Answer::Failed(_)) =>
            {
                let Some(sent) = self.0.get_mut(&(*client, *node)) else { return Ok(()) };
                match sent.undelivered.iter().position(|other| other == ticket) {
                    // Also drops the commands before this one: they failed, or their answers never arrive.
                    Some(place) => drop(sent.undelivered.drain(..=place)),
                    None => {
                        return Err(format!(
                            "client {client} gets an answer of node {node} after that to a later command: \
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
