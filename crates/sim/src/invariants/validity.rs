//! A lock is valid no longer than its votes allow.

use super::Checked;
use super::turn::Turn;
use crate::fact::{Fact, span};
use crate::guard::GuardId;
use crate::invariants::View;

pub(crate) const NAME: &str = "validity";

pub(crate) const SENTENCE: &str = "If the lock was acquired, its validity time is considered to be \
     the initial validity time minus the time elapsed. (paper) — S2: E_i = t_send_i + T − (ε·T + δ); \
     valid until the Q-th largest. S4: t_send before the first byte. (algorithm)";

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Validity {
    turn: Turn,
}

impl Validity {
    pub(crate) fn check(&mut self, fact: &Fact<'_>, view: &View<'_>) -> Checked {
        self.turn.due(fact).into_iter().try_for_each(|guard| check_guard(guard, view))
    }
}

fn check_guard(id: GuardId, view: &View<'_>) -> Checked {
    let Some(guard) = view.guards.of(id).filter(|guard| guard.hold.ended().is_none()) else {
        return Ok(());
    };
    let now = view.reading(id.client);
    let claimed = guard.hold.validity().valid_for(now).as_nanos() as i64;
    let backed = view.ledger.of_guard(guard).map_or(0, |token| view.ledger.valid_for(token, now));
    if claimed > backed {
        let (claimed, backed) = (span(claimed), span(backed));
        return Err(format!("{id} claims {claimed}, and its votes are good for {backed}"));
    }
    Ok(())
}
