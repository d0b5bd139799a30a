//! A vote counts only if the client trusts its node.

use std::collections::BTreeMap;

use quorlock_core::{NodeId, Ticket};

use super::Checked;
use crate::fact::{ClientId, Fact, NodeIndex};
use crate::guard::GuardId;
use crate::invariants::View;
use crate::time::elapsed;

pub(crate) const NAME: &str = "quarantine";

pub(crate) const SENTENCE: &str = "S9: no vote before verification and marker. S10: none within the \
     quarantine. (algorithm) — By true time: none that a node gives within the longest ttl and 1 % \
     after it was started or lost what it knew. S3: nodes are distinct servers.";

/// The server behind each vote, because a node's name may later lead to another server. In models, a name always leads
/// to the same server, so this record is not needed: no `Fact::Started` sets `is_watching`, and it stays empty.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Quarantine {
    is_watching: bool,
    /// The run id of the server that carried out a command. The entry is removed when the answer arrives.
    done: BTreeMap<(ClientId, NodeIndex, Ticket), u64>,
    /// The run id of the server that answered a command. The `i64` is the sending time on the client's boot clock.
    voters: BTreeMap<(ClientId, NodeIndex, i64), u64>,
}

impl Quarantine {
    pub(crate) fn check(&mut self, fact: &Fact<'_>, view: &View<'_>) -> Checked {
        match fact {
            Fact::Started { .. } => self.is_watching = true,
            Fact::Misread { client, node } => {
                return Err(format!("client {client} misreads the marker of node {node}"));
            }
            Fact::Granted { guard, .. } | Fact::Changed { guard, .. } => {
                return self.check_guard(*guard, view);
            }
            Fact::Executed { client, node, ticket, duplicate: false, .. } if self.is_watching => {
                self.done.insert((*client, *node, *ticket), view.node(*node).run.id);
            }
            Fact::Answered { client, node, ticket, sent, .. } if self.is_watching => {
                if let Some(server) = self.done.remove(&(*client, *node, *ticket)) {
                    self.voters.insert((*client, *node, sent.boot().as_nanos()), server);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn check_guard(&self, id: GuardId, view: &View<'_>) -> Checked {
        let Some(guard) = view.guards.of(id).filter(|guard| guard.hold.ended().is_none()) else {
            return Ok(());
        };
        let Some(token) =
            view.ledger.of_guard(guard).filter(|_| view.ledger.needs_evidence(id.client))
        else {
            return Ok(());
        };
        let voting =
            || view.terms.quorum.node_ids().filter(|node| guard.hold.validity().has_vote_of(*node));
        // Returns the server that a node's name leads to, if the node's vote came from it and still counts.
        let server = |node: NodeId| {
            let asked = guard.hold.validity().asked_when(node)?;
            let counts = elapsed(asked, view.reading(id.client)) < token.term;
            let now = view.node(node.index()).run.id;
            let voter = self.voters.get(&(id.client, node.index(), asked.boot().as_nanos()));
            (counts && voter.is_none_or(|voter| *voter == now)).then_some(now)
        };
        if let Some(duplicate) = voting().find(|node| {
            voting().any(|it| it < *node && server(it).is_some() && server(it) == server(*node))
        }) {
            return Err(format!("{id} counts the vote of node {} twice", duplicate.index()));
        }
        let now = view.reading(id.client);
        for (node, record) in view.terms.quorum.node_ids().zip(&token.nodes) {
            let Some((_, why)) = record.void else { continue };
            let node_index = node.index();
            if guard.hold.validity().has_vote_of(node) && record.yes.is_none() {
                return Err(format!("{id} counts a vote of node {node_index}, which {why}"));
            }
            let claimed = guard.hold.validity().valid_for(now).as_nanos() as i64;
            let with = view.ledger.valid_for_with_void(token, now);
            if claimed > view.ledger.valid_for(token, now) && claimed <= with {
                return Err(format!(
                    "{id} stays valid by an answer of node {node_index}, which {why}"
                ));
            }
        }
        Ok(())
    }
}
