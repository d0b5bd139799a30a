//! Checks of scripted worlds, in addition to the invariants. These checks rely on two properties of scripted worlds: an
//! engine learns at once that a guard has ended, and keys vanish only if a test removes them.

use quorlock_core::{Command, Effect, Key, LockId, NodeId, Origin, TicketedCommand, Verb};

use crate::driver::Driver;
use crate::fact::{ClientId, NodeIndex};
use crate::guard::{Guard, GuardId};
use crate::node::Stored;
use crate::world::{Server, World};

impl World {
    /// Checks the order of commands to a node. After a release, no acquire, extension, heal or raise of the lock
    /// follows. An extension or heal is sent only before the lock ends, and a raise for the next holder only when the
    /// lock has no holder (S14). Random runs cannot check this, as a guard there may notice its end before the engine.
    pub(super) fn check_order(
        &mut self,
        client: ClientId,
        node: NodeIndex,
        (ticket, what): &TicketedCommand,
    ) {
        if !matches!(ticket.verb, Verb::Acquire | Verb::Extend | Verb::Heal | Verb::Raise) {
            return;
        }
        let Some((_, value)) = what.subject() else { return };
        let token = self.watch.ledger.of_ticket(client, *ticket);
        let is_released = token.is_some_and(|token| token.nodes[node].released);
        assert!(!is_released, "no acquire, extension, heal or raise follows its release");
        // A caller that knows the value of a detached lock may extend it at any time.
        let is_detached = token.is_some_and(|token| token.is_detached);
        if ticket.verb == Verb::Acquire || ticket.verb == Verb::Extend && is_detached {
            return;
        }
        let now = self.reading(client);
        let its = self.watch.guards.iter().filter(|(_, guard)| guard.value() == *value);
        let last = its.map(|(_, guard)| guard).max_by_key(|guard| guard.handover_count);
        if let Command::Raise { to, .. } = what {
            let is_valid = last.is_some_and(|guard| guard.is_valid(now));
            assert!(!is_valid, "invalid before the raise for the next holder (S14)");
            let earlier = |(.., effect): &(_, _, Effect)| match effect {
                Effect::Send { nodes, command: Command::Raise { value: its, to, .. }, .. } => {
                    (its == value && nodes.contains(NodeId::new(node))).then_some(*to)
                }
                _ => None,
            };
            let before = self.by_hand().log.iter().rev().find_map(earlier);
            assert!(before < Some(*to), "raised from {before:?} to {to}");
            return;
        }
        let is_left = |guard: &Guard| match ticket.verb {
            Verb::Heal => guard.is_valid(now),
            // The guard may already be released, because the engine sends a due extension before it handles a release.
            _ => !guard.hold.validity().remaining(now).is_zero(),
        };
        assert!(last.is_some_and(is_left), "extended or healed while valid");
    }

    /// The engine reports changes only of locks that are held, and losses only of locks that were granted.
    pub(super) fn check_effect(&self, client: ClientId, effect: &Effect) {
        let guard = |lock: &LockId| self.watch.guards.of(GuardId { client, lock: *lock });
        match effect {
            Effect::Changed { lock, .. } => {
                let is_kept = guard(lock).is_some_and(|guard| !guard.is_released);
                assert!(is_kept, "a released guard does not change (S13)");
            }
            Effect::Lost { lock, .. } => {
                assert!(guard(lock).is_some(), "only a held lock is lost");
            }
            _ => {}
        }
    }

    /// While a guard is valid, a quorum of nodes stores its value (S2), unless nodes may lose data.
    pub(super) fn look(&self) {
        if self.plan.outside.is_some() || self.by_hand().is_guarded {
            return;
        }
        let valid = |(id, guard): &(GuardId, &Guard)| guard.is_valid(self.reading(id.client));
        for (id, guard) in self.watch.guards.iter().filter(valid) {
            let value = match &guard.request.origin {
                Origin::Taken(from) => from.value.clone(),
                Origin::Absent | Origin::Detached(_) => guard.value(),
            };
            let holds = |Server { node, .. }: &&Server| {
                let stored = |key: &Key| node.stored(key, self.now);
                let holds = |stored: &Stored| stored.values().any(|it| it == value.as_bytes());
                guard.request.keys.iter().all(|key| stored(key).is_some_and(holds))
            };
            let votes = self.servers.iter().filter(holds).count();
            assert!(
                self.plan.servers.quorum.is_reached(votes),
                "{id} is valid with {votes} votes: {guard:?}"
            );
        }
    }
}
