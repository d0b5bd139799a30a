//! When guards are looked at: as they are granted, and when the turn is over in which their votes have changed. A
//! node's answers to several commands come together, and the engine tells what follows of each in their order.

use std::collections::BTreeSet;

use crate::fact::Fact;
use crate::guard::GuardId;

/// Guards whose votes have changed in the turn under way.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Turn {
    changed: BTreeSet<GuardId>,
}

impl Turn {
    /// The guards to look at now.
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
