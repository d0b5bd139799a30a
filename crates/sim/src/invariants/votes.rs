//! A vote is a yes to this very attempt, on the connection it was sent on, with no release queued
//! behind it.

use std::collections::{BTreeMap, BTreeSet};

use quorlock_core::{Answer, Ticket, Verb};

use super::Verdict;
use crate::fact::{ClientId, Fact, NodeIndex};
use crate::guard::GuardId;
use crate::view::View;

pub(crate) const NAME: &str = "votes";

pub(crate) const SENTENCE: &str = "S1: a vote exists only after a positive reply to this attempt on \
     its own epoch, with no release queued for it. (protocol, 9)";

/// What was sent to each node on the present connection, kept from the first connection on. In the
/// models there are none, and so nothing is kept: what is on its way there is taken away when it breaks.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Votes {
    epochs: BTreeMap<(ClientId, NodeIndex), Epoch>,
    /// Who was told a yes with the last answers: those that come together may say "granted" and then "gone", and the
    /// engine tells of one after the other.
    yes: BTreeSet<(ClientId, NodeIndex)>,
    /// The last answers are all told.
    is_over: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Epoch {
    /// Sent, and neither answered nor given up.
    awaited: BTreeSet<Ticket>,
    /// Answered in time; the connection may break before the engine is told.
    arrived: BTreeSet<Ticket>,
}

impl Votes {
    pub(crate) fn check(&mut self, fact: &Fact<'_>, view: &View<'_>) -> Verdict {
        self.check_epoch(fact)?;
        self.check_counted(fact, view)
    }

    fn check_epoch(&mut self, fact: &Fact<'_>) -> Verdict {
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
            Fact::Told { client, node, ticket, answer, .. } => {
                let Some(epoch) = self.epochs.get_mut(&(*client, *node)) else { return Ok(()) };
                if std::mem::take(&mut self.is_over) {
                    self.yes.clear();
                }
                let is_yes = matches!(
                    answer,
                    Answer::Granted | Answer::GrantedFenced { .. } | Answer::Extended
                );
                if !epoch.arrived.remove(ticket) && is_yes {
                    return Err(format!(
                        "client {client} is told a yes of node {node} on a connection given up before"
                    ));
                }
                if is_yes {
                    self.yes.insert((*client, *node));
                }
                return Ok(());
            }
            _ => {}
        }
        self.is_over |= !self.yes.is_empty();
        Ok(())
    }

    fn check_counted(&self, fact: &Fact<'_>, view: &View<'_>) -> Verdict {
        match fact {
            Fact::Granted { guard, .. } => check_guard(*guard, view, |_| false),
            Fact::Changed { guard, .. } => {
                check_guard(*guard, view, |node| self.yes.contains(&(guard.client, node)))
            }
            Fact::TurnOver { client } => {
                let mut its = view.guards.iter().filter(|(id, _)| id.client == *client);
                its.try_for_each(|(id, _)| check_guard(id, view, |_| false))
            }
            _ => check_heal(fact, view),
        }
    }
}

fn check_heal(fact: &Fact<'_>, view: &View<'_>) -> Verdict {
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

/// `may_be_gone`: of which nodes the engine has not told all that it was told.
fn check_guard(id: GuardId, view: &View<'_>, may_be_gone: impl Fn(NodeIndex) -> bool) -> Verdict {
    let Some(guard) = view.guards.of(id).filter(|guard| guard.hold.ended().is_none()) else {
        return Ok(());
    };
    let Some(token) = view.ledger.of_guard(guard) else {
        return Err(format!("{id} has a token that was never sent"));
    };
    for (node, record) in view.quorum.node_ids().zip(&token.nodes) {
        let is_counted = guard.hold.validity().has_vote_of(node);
        if is_counted && record.yes.is_none() && !may_be_gone(node.index()) {
            return Err(format!(
                "{id} counts a vote of node {} that it has not got (or has lost, or given back)",
                node.index()
            ));
        }
    }
    Ok(())
}
