//! A vote is a positive reply to the present attempt, on the connection that carried the command, with no release
//! queued behind the command.

use std::collections::{BTreeMap, BTreeSet};

use quorlock_core::{Answer, Ticket, Verb};

use super::Checked;
use super::turn::Turn;
use crate::fact::{ClientId, Fact, NodeIndex};
use crate::guard::GuardId;
use crate::invariants::View;

pub(crate) const NAME: &str = "votes";

pub(crate) const SENTENCE: &str = "S1: a vote exists only after a positive reply to this attempt on \
     its own epoch, with no release queued for it. (algorithm)";

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Votes {
    /// The present connection of each client to each node. Models report no `Connected` fact, so this stays empty
    /// there. They need no such check, because they give a client no answers of a broken connection.
    epochs: BTreeMap<(ClientId, NodeIndex), Epoch>,
    turn: Turn,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Epoch {
    /// Commands except releases that were sent, and neither answered nor given up.
    awaited: BTreeSet<Ticket>,
    /// Commands whose answers arrived. The answers count even if the connection breaks before the engine gets them.
    arrived: BTreeSet<Ticket>,
}

impl Votes {
    pub(crate) fn check(&mut self, fact: &Fact<'_>, view: &View<'_>) -> Checked {
        self.check_epoch(fact)?;
        self.turn.due(fact).into_iter().try_for_each(|guard| check_guard(guard, view))?;
        match fact {
            Fact::Ordered { client, node, ticket, .. } if ticket.verb == Verb::Heal => {
                let token = view.ledger.of_ticket(*client, *ticket);
                if token.is_some_and(|token| token.nodes[*node].released) {
                    return Err(format!("client {client} heals node {node} behind a release"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn check_epoch(&mut self, fact: &Fact<'_>) -> Checked {
        match fact {
            Fact::Connected { client, node, .. } => {
                self.epochs.entry((*client, *node)).or_default();
            }
            Fact::Sent { client, node, ticket, .. } if ticket.verb != Verb::Release => {
                if let Some(epoch) = self.epochs.get_mut(&(*client, *node)) {
                    epoch.awaited.insert(*ticket);
                }
            }
            Fact::GivenUp { client, node } => {
                if let Some(epoch) = self.epochs.get_mut(&(*client, *node)) {
                    epoch.awaited.clear();
                }
            }
            Fact::Arrived { client, node, ticket } => {
                if let Some(epoch) = self.epochs.get_mut(&(*client, *node))
                    && epoch.awaited.remove(ticket)
                {
                    epoch.arrived.insert(*ticket);
                }
            }
            Fact::Answered { client, node, ticket, answer, .. } => {
                let Some(epoch) = self.epochs.get_mut(&(*client, *node)) else { return Ok(()) };
                let is_yes = matches!(
                    answer,
                    Answer::Granted | Answer::GrantedFenced { .. } | Answer::Extended
                );
                if !epoch.arrived.remove(ticket) && is_yes {
                    return Err(format!(
                        "client {client} gets a grant of node {node} from a connection that was given up before"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn check_guard(id: GuardId, view: &View<'_>) -> Checked {
    let Some(guard) = view.guards.of(id).filter(|guard| guard.hold.ended().is_none()) else {
        return Ok(());
    };
    let Some(token) = view.ledger.of_guard(guard) else {
        return Err(format!("{id} has a token that was never sent"));
    };
    for (node, record) in view.terms.quorum.node_ids().zip(&token.nodes) {
        if guard.hold.validity().has_vote_of(node) && record.yes.is_none() {
            return Err(format!(
                "{id} counts a vote of node {} that it has not got (or has lost, or released)",
                node.index()
            ));
        }
    }
    Ok(())
}
