//! What is lost or given back stays so.

use std::collections::{BTreeMap, BTreeSet};

use quorlock_core::{Reading, Validity};

use super::Verdict;
use crate::fact::{ClientId, Fact};
use crate::guard::{GuardId, Guards};
use crate::view::View;

pub(crate) const NAME: &str = "latched";

pub(crate) const SENTENCE: &str = "S13: loss and release are terminal and latched. valid_until is \
     never raised on a latched lease. (protocol, 4 and 9)";

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Latched {
    /// Seen to have ended.
    ended: BTreeSet<GuardId>,
    lost: BTreeSet<GuardId>,
    /// The votes as last told.
    told: BTreeMap<GuardId, Validity>,
}

impl Latched {
    /// Of guards that have been given back there is nothing more to be told.
    pub(crate) fn rebase(&mut self, base: impl Fn(ClientId) -> Reading, guards: &Guards) {
        self.told.retain(|id, _| guards.of(*id).is_some());
        for (id, validity) in &mut self.told {
            *validity = validity.rebased(base(id.client));
        }
    }

    pub(crate) fn check(&mut self, fact: &Fact<'_>, view: &View<'_>) -> Verdict {
        let id = match fact {
            Fact::Granted { guard, .. }
            | Fact::Changed { guard, .. }
            | Fact::Lost { guard, .. }
            | Fact::EndSeen { guard }
            | Fact::ReleaseAsked { guard, .. } => *guard,
            _ => return Ok(()),
        };
        if matches!(fact, Fact::Lost { .. }) && !self.lost.insert(id) {
            return Err(format!("{id} is lost twice"));
        }
        if let Fact::Changed { validity, .. } = fact {
            if self.lost.contains(&id) {
                return Err(format!("{id} is lost, and its votes change"));
            }
            let then = view.turn_reading(id.client);
            let before = self.told.get(&id);
            if before.is_some_and(|before| before.remaining(then).is_zero()) {
                return Err(format!("{id} had run out when its votes were raised"));
            }
            self.told.insert(id, (*validity).clone());
        }
        let Some(guard) = view.guards.of(id) else { return Ok(()) };
        if guard.ended.is_some() {
            self.ended.insert(id);
        } else if self.ended.contains(&id) {
            return Err(format!("{id} had ended, and is valid again"));
        }
        if matches!(fact, Fact::Granted { .. }) {
            self.told.insert(id, guard.validity.clone());
        }
        Ok(())
    }
}
