//! A downgraded guard is a reader's guard before any node learns of the downgrade. It never becomes a writer's again.

use std::collections::BTreeSet;

use quorlock_core::{Command, ExtendForm, HealForm, Mode};

use super::Checked;
use crate::fact::Fact;
use crate::guard::{Guard, GuardId};
use crate::invariants::View;

pub(crate) const NAME: &str = "mode first";

pub(crate) const SENTENCE: &str = "Downgrade exclusive → shared: mode() turns to shared and fence() to none, \
     latched, before the first byte; a failed or unknown downgrade never turns back. (kinds, 1)";

/// The guards that were readers' guards when last checked.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct ModeFirst(BTreeSet<GuardId>);

impl ModeFirst {
    pub(crate) fn check(&mut self, fact: &Fact<'_>, view: &View<'_>) -> Checked {
        match fact {
            Fact::Granted { guard: id, .. } => {
                let Some(guard) = view.guards.of(*id) else { return Ok(()) };
                if guard.hold.mode() != guard.request.mode {
                    return Err(format!("{id} is granted in another mode than was asked for"));
                }
                self.check_guard(*id, guard)
            }
            Fact::Downgraded { guard: id } | Fact::Changed { guard: id, .. } => {
                view.guards.of(*id).map_or(Ok(()), |guard| self.check_guard(*id, guard))
            }
            Fact::TickOver { client } => {
                let mut its = view.guards.iter().filter(|(id, _)| id.client == *client);
                its.try_for_each(|(id, guard)| self.check_guard(id, guard))
            }
            Fact::Ordered { client, command, .. } => {
                let (Command::Downgrade { value, .. }
                | Command::Heal { value, form: HealForm::Shared, .. }
                | Command::Extend { value, form: ExtendForm::Shared, .. }) = command
                else {
                    return Ok(());
                };
                let is_late = |(id, guard): &(GuardId, &Guard)| {
                    id.client == *client
                        && guard.hold.mode() == Mode::Exclusive
                        && guard.hold.ended().is_none()
                        && guard.value() == *value
                };
                match view.guards.iter().find(is_late) {
                    Some((id, _)) => {
                        Err(format!("{id} is a writer's, and nodes are asked to downgrade it"))
                    }
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn check_guard(&mut self, id: GuardId, guard: &Guard) -> Checked {
        match guard.hold.mode() {
            Mode::Shared if guard.fence.is_some() => {
                Err(format!("{id} is a reader's, and has a fencing token"))
            }
            Mode::Shared => {
                self.0.insert(id);
                Ok(())
            }
            Mode::Exclusive if self.0.contains(&id) => {
                Err(format!("{id} was a reader's, and is a writer's again"))
            }
            Mode::Exclusive => Ok(()),
        }
    }
}
