//! No vote counts of a node that is not to be trusted, or not yet.

use quorlock_core::NodeId;

use super::Verdict;
use crate::fact::Fact;
use crate::guard::GuardId;
use crate::view::View;

pub(crate) const NAME: &str = "quarantine";

pub(crate) const SENTENCE: &str = "S9: no vote before verification and marker. S10: none within the \
     quarantine. (protocol, 9) — By true time: none that a node gives within the longest ttl and 1 % \
     after it was started or lost what it knew. S3: nodes are distinct servers.";

pub(crate) fn check(fact: &Fact<'_>, view: &View<'_>) -> Verdict {
    match fact {
        Fact::Granted { guard, .. } | Fact::Changed { guard, .. } => check_guard(*guard, view),
        _ => Ok(()),
    }
}

fn check_guard(id: GuardId, view: &View<'_>) -> Verdict {
    let Some(guard) = view.guards.of(id).filter(|guard| guard.ended.is_none()) else {
        return Ok(());
    };
    let Some(token) = view.ledger.of_guard(guard).filter(|_| view.ledger.needs_proof()) else {
        return Ok(());
    };
    let voting = || view.quorum.node_ids().filter(|node| guard.validity.has_vote_of(*node));
    let server = |node: NodeId| view.node(node.index()).run.id;
    if let Some(twin) =
        voting().find(|node| voting().any(|it| it < *node && server(it) == server(*node)))
    {
        return Err(format!("{id} counts the vote of node {} twice", twin.index()));
    }
    let now = view.reading(id.client);
    for (node, record) in view.quorum.node_ids().zip(&token.nodes) {
        let Some((_, why)) = record.void else { continue };
        let node_index = node.index();
        if guard.validity.has_vote_of(node) && record.yes.is_none() {
            return Err(format!("{id} counts a vote of node {node_index}, which {why}"));
        }
        let claimed = guard.validity.valid_for(now).as_nanos() as i64;
        let with = view.ledger.valid_for_with_void(token, now);
        if claimed > view.ledger.valid_for(token, now) && claimed <= with {
            return Err(format!("{id} lives on by what node {node_index} says, which {why}"));
        }
    }
    Ok(())
}
