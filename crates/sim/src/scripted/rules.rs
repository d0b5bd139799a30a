//! Rules of scripted worlds, beside the invariants: here an engine hears at once what its guards see, and keys vanish
//! only where that is said.

use quorlock_core::{Command, Key, Ticket, Verb};

use super::{Node, ScriptedWorld};
use crate::fact::{ClientId, NodeIndex};
use crate::guard::{Guard, GuardId};
use crate::ledger::subject;
use crate::node::Stored;

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
        let overlaps = |(other, it): &(GuardId, &Guard)| {
            *other != id && it.request.keys.overlaps(&guard.request.keys)
        };
        let mut others = self.witness.watch.guards.iter().filter(overlaps);
        let grows = others.all(|(_, other)| other.fence.is_none_or(|shown| shown < fence));
        assert!(grows || !self.settings.assume_no_loss, "{fence} is shown after a larger one");
        let value = guard.value();
        // The ledger holds it against what was answered; this is what the nodes really have (S18).
        let records = |node: &&Node| {
            let counters = guard.request.fenced.iter().flat_map(|it| it.keys.iter());
            let stored = |key: &Key| node.model.stored(key, self.now);
            let is_ours = |key: &Key| stored(key).is_some_and(|stored| stored.holds(&value));
            counters.into_iter().all(|key| node.model.fence_at(key) == Some(fence))
                && guard.request.keys.iter().all(is_ours)
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
            let value = guard.value();
            let holds = |node: &&Node| {
                let stored = |key: &Key| node.model.stored(key, self.now);
                let holds = |stored: &Stored| stored.values().any(|it| it == value.as_bytes());
                guard.request.keys.iter().all(|key| stored(key).is_some_and(holds))
            };
            let votes = self.nodes.iter().filter(holds).count();
            assert!(self.quorum.is_reached(votes), "{id} is valid with {votes} votes: {guard:?}");
        }
    }
}
