//! An intent (a waiting writer's note on nodes) is no vote. It only keeps new readers out, and is withdrawn in time.

use std::collections::BTreeMap;

use quorlock_core::{AcquireForm, Answer, Command, HealForm, Key, Keys, LockId, Mode, Value};

use super::Checked;
use crate::fact::{ClientId, Fact, NodeIndex};
use crate::invariants::View;

pub(crate) const NAME: &str = "intents";

pub(crate) const SENTENCE: &str = "Heal: as acquire, but ignores intents. No vote: no epoch, no marker. Deleted \
     by compare on grant, on give-up, or when a string refuses. (kinds, 1)";

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Intents {
    /// The intents on nodes, each with the call that it belongs to. A call can hand its intent over to another call.
    said: BTreeMap<(ClientId, Key, Value), LockId>,
    /// Calls that ended while an intent was on nodes. The `bool`: a tick has begun since then, and must withdraw it.
    over: BTreeMap<(ClientId, LockId), bool>,
}

impl Intents {
    pub(crate) fn check(&mut self, fact: &Fact<'_>, view: &View<'_>) -> Checked {
        match fact {
            Fact::Ordered {
                client,
                ticket,
                command: Command::Announce { intents, value, .. },
                ..
            } => {
                for key in &**intents {
                    self.said.insert((*client, key.clone(), value.clone()), ticket.lock);
                }
                let request = view.ledger.request(*client, ticket.lock);
                if request.is_none_or(|request| request.mode == Mode::Shared) {
                    return Err(format!(
                        "client {client}: a call that is no waiting writer announces an intent"
                    ));
                }
            }
            Fact::Ordered { client, command: Command::Withdraw { intents, value }, .. } => {
                for key in &**intents {
                    self.said.remove(&(*client, key.clone(), value.clone()));
                }
            }
            Fact::Granted { guard, .. } => self.is_over(guard.client, guard.lock),
            Fact::Cancelled { client, lock } | Fact::NotAcquired { client, lock, .. } => {
                self.is_over(*client, *lock);
            }
            Fact::Tick { client } => {
                let its = self.over.iter_mut().filter(|((of, _), _)| of == client);
                its.for_each(|(_, is_due)| *is_due = true);
            }
            Fact::TickOver { client } => {
                let its = |((of, _), is_due): (&(ClientId, LockId), &bool)| of == client && *is_due;
                let stands = |call: &&(ClientId, LockId)| self.stands(**call);
                let due = || self.over.iter().filter(|it| its(*it)).map(|(call, _)| call);
                if let Some((_, lock)) = due().find(stands) {
                    let lock = lock.0;
                    return Err(format!(
                        "client {client}: lock {lock} is over, and its intent stays"
                    ));
                }
                self.over.retain(|(of, _), is_due| of != client || !*is_due);
            }
            Fact::Executed { node, command, answer: Answer::Refused, .. } => {
                return check_refusal(*node, command, view);
            }
            _ => {}
        }
        Ok(())
    }

    fn is_over(&mut self, client: ClientId, lock: LockId) {
        if self.stands((client, lock)) {
            self.over.insert((client, lock), false);
        }
    }

    fn stands(&self, (client, lock): (ClientId, LockId)) -> bool {
        self.said.iter().any(|((of, _, _), whose)| *of == client && *whose == lock)
    }
}

/// A node refuses a command only if another holder blocks it.
fn check_refusal(node: NodeIndex, command: &Command, view: &View<'_>) -> Checked {
    let is_in_the_way = |key: &Key, value: &Value| {
        let Some(stored) = view.node(node).stored(key, view.now) else { return false };
        let is_heal_of_reader = matches!(command, Command::Heal { form: HealForm::Shared, .. });
        !is_heal_of_reader || !stored.holds(value) && !stored.is_of_readers()
    };
    let is_any = |keys: &Keys, value: &Value| keys.iter().any(|key| is_in_the_way(key, value));
    if let Command::Acquire { keys, value, form: AcquireForm::Plain, .. }
    | Command::Heal { keys, value, .. } = command
        && !is_any(keys, value)
    {
        return Err(format!("node {node} refuses {command:?}, and no other holder is in the way"));
    }
    Ok(())
}
