//! A vote is a yes to this very attempt, with no release queued behind it.

use quorlock_core::Verb;

use super::Verdict;
use crate::fact::Fact;
use crate::guard::GuardId;
use crate::view::View;

pub(crate) const NAME: &str = "votes";

pub(crate) const SENTENCE: &str = "S1: a vote exists only after a positive reply to this attempt on \
     its own epoch, with no release queued for it. (protocol, 9)";

pub(crate) fn check(fact: &Fact<'_>, view: &View<'_>) -> Verdict {
    match fact {
        Fact::Granted { guard, .. } | Fact::Changed { guard, .. } => check_guard(*guard, view),
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

fn check_guard(id: GuardId, view: &View<'_>) -> Verdict {
    let Some(guard) = view.guards.of(id).filter(|guard| guard.ended.is_none()) else {
        return Ok(());
    };
    let Some(token) = view.ledger.of_guard(guard) else {
        return Err(format!("{id} has a token that was never sent"));
    };
    for (node, record) in view.quorum.node_ids().zip(&token.nodes) {
        if guard.validity.has_vote_of(node) && record.yes.is_none() {
            return Err(format!(
                "{id} counts a vote of node {} that it has not got (or has lost, or given back)",
                node.index()
            ));
        }
    }
    Ok(())
}
