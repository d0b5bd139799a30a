//! Rules of scripted worlds, beside the invariants: here an engine hears at once what its guards see, and keys vanish
//! only where that is said.

use quorlock_core::{Command, Ticket, Verb};

use super::{Node, ScriptedWorld};
use crate::fact::{ClientId, NodeIndex};
use crate::guard::{Guard, GuardId};
use crate::ledger::subject;

impl ScriptedWorld {
    /// What is asked for is not released; what is extended, healed or raised is neither released nor over, and what
    /// is raised for the next one is nobody's before (S14). In the simulator, guards may have seen their end before
    /// their engine knows of it.
    pub(super) fn check_order(
        &mut self,
        client: ClientId,
        node: NodeIndex,
        ticket: Ticket,
        what: &Command,
    ) {
        if !matches!(ticket.verb, Verb::Acquire | Verb::Extend | Verb::Heal | Verb::Raise) {
            return;
        }
        let Some((_, value)) = subject(what) else { return };
        let token = self.witness.watch.ledger.of_ticket(client, ticket);
        let is_released = token.is_some_and(|token| token.nodes[node].released);
        assert!(
            !is_released,
            "nothing is asked for, extended, healed or raised behind its release"
        );
        if ticket.verb == Verb::Acquire {
            return;
        }
        let now = self.reading();
        let its = self.witness.watch.guards.iter().filter(|(_, guard)| guard.value() == *value);
        let last = its.map(|(_, guard)| guard).max_by_key(|guard| guard.handover_count);
        if let Command::Raise { to, .. } = what {
            let is_valid = last.is_some_and(|guard| guard.is_valid(now));
            assert!(!is_valid, "invalid before the next one's fence (S14)");
            let before = self.raising.to.insert((value.clone(), node), *to);
            assert!(before < Some(*to), "raised from {before:?} to {to}");
            return;
        }
        let is_left = |guard: &Guard| match ticket.verb {
            Verb::Heal => guard.is_valid(now),
            // The guard may be going: what is due comes before its release is looked at.
            _ => !guard.hold.validity().remaining(now).is_zero(),
        };
        assert!(last.is_some_and(is_left), "extended or healed while valid");
    }

    /// A lock was handed out.
    pub(super) fn granted(&mut self, id: GuardId) {
        let guard = self.guard(id.lock);
        let Some(fence) = guard.fence else { return };
        let of_same_key =
            |(other, it): &(GuardId, &Guard)| *other != id && it.request.key == guard.request.key;
        let mut others = self.witness.watch.guards.iter().filter(of_same_key);
        let grows = others.all(|(_, other)| other.fence.is_none_or(|shown| shown < fence));
        assert!(grows || !self.settings.assume_no_loss, "{fence} is shown after a larger one");
        let value = guard.value();
        // The ledger holds it against what was answered; this is what the nodes really have (S18).
        let records = |node: &&Node| {
            let counter = guard.request.fenced.as_ref();
            let stored = node.model.stored(&guard.request.key, self.now);
            counter.and_then(|counter| node.model.fence(counter)) == Some(fence)
                && stored.is_some_and(|stored| stored.holds(&value))
        };
        let recorded = self.nodes.iter().filter(records).count();
        let enough = self.quorum.is_reached(recorded) || !self.settings.assume_no_loss;
        assert!(enough, "{fence} is recorded on {recorded} nodes (S18)");
        self.raising.count +=
            usize::from(self.raising.to.keys().any(|(raised, _)| *raised == value));
    }

    /// While a guard is valid, a quorum of nodes really hold its value (S2); unless nodes may lose what they like.
    pub(super) fn look(&self) {
        if !self.settings.assume_no_loss || self.guarded.is_some() {
            return;
        }
        let now = self.reading();
        for (id, guard) in self.witness.watch.guards.iter().filter(|(_, guard)| guard.is_valid(now))
        {
            let holds = |node: &&Node| {
                let stored = node.model.stored(&guard.request.key, self.now);
                stored.is_some_and(|stored| stored.holds(&guard.value()))
            };
            let votes = self.nodes.iter().filter(holds).count();
            assert!(self.quorum.is_reached(votes), "{id} is valid with {votes} votes: {guard:?}");
        }
    }
}
