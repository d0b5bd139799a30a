//! No two guards have the same token and hand-over count, and no two guards hold the same lock.

use std::collections::BTreeSet;

use quorlock_core::Token;

use super::Checked;
use crate::fact::Fact;
use crate::invariants::View;

pub(crate) const NAME: &str = "unique guards";

pub(crate) const SENTENCE: &str = "S24: two live guards never share a lock; no two guards ever show \
     the same token. (algorithm)";

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct UniqueGuards(BTreeSet<(Token, u32)>);

impl UniqueGuards {
    pub(crate) fn check(&mut self, fact: &Fact<'_>, view: &View<'_>) -> Checked {
        let Fact::Granted { guard: id, .. } = fact else { return Ok(()) };
        let Some(guard) = view.guards.of(*id) else {
            return Err(format!("{id}: no call asked for it"));
        };
        if !self.0.insert((guard.token, guard.handover_count)) {
            return Err(format!("{id} looks like an earlier guard"));
        }
        let shares = |other: &crate::guard::Guard| {
            other.token == guard.token
                && other.handover_count != guard.handover_count
                && other.hold.ended().is_none()
        };
        match view.guards.iter().find(|(_, other)| shares(other)) {
            Some((other, _)) => Err(format!("{id} and {other} hold one lock")),
            None => Ok(()),
        }
    }
}
