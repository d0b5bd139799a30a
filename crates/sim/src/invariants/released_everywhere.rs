//! Each acquire is released on every node, unless it became a lock that is still held.

use quorlock_core::LockId;

use super::Checked;
use crate::fact::{ClientId, Fact, names};
use crate::invariants::View;
use crate::ledger::{NodeRecord, TokenRecord};

pub(crate) const NAME: &str = "released everywhere";

pub(crate) const SENTENCE: &str = "If the client failed to acquire the lock for some reason, it will \
     try to unlock all the instances (even the instances it believed it was not able to lock). (paper) \
     — S15: every attempt that ends other than by success releases on all nodes. (algorithm)";

pub(crate) fn check(fact: &Fact<'_>, view: &View<'_>) -> Checked {
    match fact {
        Fact::Begun { client, lock, .. } | Fact::NotAcquired { client, lock, .. } => {
            of_call(*client, *lock, view)
        }
        // Checks all tokens that the client has used, except those of lost locks that the nodes keep for their holders.
        Fact::Drained { client } => {
            let kept = view.guards.iter().filter(|(_, guard)| guard.is_kept());
            let kept: Vec<_> = kept.filter_map(|(_, it)| view.ledger.of_guard(it)).collect();
            let is_kept = |token| kept.iter().any(|it| std::ptr::eq(*it, token));
            let its = |token: &&TokenRecord| token.client == *client && !is_kept(*token);
            let mut tokens = view.ledger.tokens().filter(its);
            tokens.try_for_each(check_token)
        }
        Fact::TickOver { client } => {
            for (id, guard) in view.guards.iter().filter(|(id, _)| id.client == *client) {
                if let Some(token) =
                    view.ledger.of_guard(guard).filter(|_| guard.is_lost && !guard.is_kept())
                {
                    check_token(token).map_err(|what| format!("{id} is lost: {what}"))?;
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn of_call(client: ClientId, lock: LockId, view: &View<'_>) -> Checked {
    view.ledger.of_call(client, lock).try_for_each(check_token)
}

fn check_token(token: &TokenRecord) -> Checked {
    let is_left = |node: &NodeRecord| node.asked && !node.released && !token.is_detached;
    match token.nodes.iter().position(is_left) {
        None => Ok(()),
        Some(node) => Err(format!(
            "client {} has not released {} (of its lock {}) on node {node}",
            token.client,
            names(&token.keys),
            token.lock.0
        )),
    }
}
