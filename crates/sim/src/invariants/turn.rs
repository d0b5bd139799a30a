//! Selects the guards to check: a new guard at its grant, other guards at the end of a tick in which their votes
//! changed. A check within the tick would fail, because the engine reports one by one on answers that arrived together.

use std::collections::BTreeSet;

use crate::fact::Fact;
use crate::guard::GuardId;

/// Guards with changed votes in the present tick.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Turn {
    changed: BTreeSet<GuardId>,
}

impl Turn {
    pub(crate) fn due(&mut self, fact: &Fact<'_>) -> BTreeSet<GuardId> {
        match fact {
            Fact::Granted { guard, .. } => BTreeSet::from([*guard]),
            Fact::Changed { guard, .. } => {
                self.changed.insert(*guard);
                BTreeSet::new()
            }
            Fact::TickOver { client } => {
                let is_its = |guard: &GuardId| guard.client == *client;
                let changed = std::mem::take(&mut self.changed);
                let (its, others) = changed.into_iter().partition(is_its);
                self.changed = others;
                its
            }
            _ => BTreeSet::new(),
        }
    }
}
