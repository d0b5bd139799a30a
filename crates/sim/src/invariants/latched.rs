//! A lost or released lock stays lost or released.

use std::collections::{BTreeMap, BTreeSet};

use quorlock_core::{Ended, Reading, Validity, Verb};

use super::Checked;
use crate::fact::{ClientId, Fact};
use crate::guard::{Guard, GuardId, Guards};
use crate::invariants::View;

pub(crate) const NAME: &str = "latched";

pub(crate) const SENTENCE: &str = "S13: loss and release are terminal and latched. valid_until is \
     never raised on a latched lock. Once a guard has seen the end, the engine extends its lock no more. \
     (algorithm)";

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Latched {
    ended: BTreeSet<GuardId>,
    lost: BTreeSet<GuardId>,
    /// The votes in the latest report on each lock.
    reported: BTreeMap<GuardId, Validity>,
    /// Guards that noticed their own end. The `bool`: a tick is over since then, so the engine knows of the end.
    over: BTreeMap<GuardId, bool>,
}

impl Latched {
    /// Moves all times back, and drops records of released guards, because the engine reports nothing more on them.
    pub(crate) fn rebase(&mut self, base: impl Fn(ClientId) -> Reading, guards: &Guards) {
        self.reported.retain(|id, _| guards.of(*id).is_some());
        self.over.retain(|id, _| guards.of(*id).is_some());
        for (id, validity) in &mut self.reported {
            *validity = validity.rebased(base(id.client));
        }
    }

    pub(crate) fn check(&mut self, fact: &Fact<'_>, view: &View<'_>) -> Checked {
        self.check_extended(fact, view)?;
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
            let then = view.tick_reading(id.client);
            let before = self.reported.get(&id);
            if before.is_some_and(|before| before.remaining(then).is_zero()) {
                return Err(format!("{id} had run out when its votes were raised"));
            }
            self.reported.insert(id, (*validity).clone());
        }
        let Some(guard) = view.guards.of(id) else { return Ok(()) };
        if guard.hold.ended().is_some() {
            self.ended.insert(id);
        } else if self.ended.contains(&id) {
            return Err(format!("{id} had ended, and is valid again"));
        }
        if matches!(fact, Fact::Granted { .. }) {
            self.reported.insert(id, guard.hold.validity().clone());
        }
        Ok(())
    }

    /// After the tick in which the engine learns that a guard has noticed its end, it must not extend or heal the lock.
    fn check_extended(&mut self, fact: &Fact<'_>, view: &View<'_>) -> Checked {
        match fact {
            Fact::Tick { client } => {
                self.over.retain(|id, _| view.guards.of(*id).is_some());
                for (id, guard) in view.guards.iter().filter(|(id, _)| id.client == *client) {
                    if matches!(guard.hold.ended(), Some(Ended::Lost(_))) {
                        self.over.entry(id).or_insert(false);
                    }
                }
            }
            Fact::TickOver { client } => {
                let its = self.over.iter_mut().filter(|(id, _)| id.client == *client);
                its.for_each(|(_, is_over)| *is_over = true);
            }
            Fact::Ordered { client, ticket, command, .. }
                if matches!(ticket.verb, Verb::Extend | Verb::Heal) =>
            {
                // Compares values, because after a hand-over the ticket has the lock id of the token's first guard.
                let value = command.subject().map(|(_, value)| value);
                let is_its = |(id, guard): &(GuardId, &Guard)| {
                    id.client == *client && Some(&guard.value()) == value
                };
                let mut extended = view.guards.iter().filter(is_its);
                if let Some((id, _)) = extended.find(|(id, _)| self.over.get(id) == Some(&true)) {
                    return Err(format!("{id} has seen its end, and its lock is extended"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
