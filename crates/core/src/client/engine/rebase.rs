//! The engine's state relative to another point in time, so that a model checker recognises states it has visited.

use alloc::collections::{BTreeMap, BTreeSet};
use core::time::Duration;

use super::{Call, Engine, Phase};
use crate::client::deadlines::Deadlines;
use crate::client::deadlines::Owner;
use crate::ids::{LockId, Ticket};
use crate::time::Reading;

impl Engine {
    /// The state relative to `now`, with its locks renumbered from `first` on in the order of their ids. Also returns
    /// the map from old to new ids.
    ///
    /// Two states that behave alike, apart from times and ids, have equal results, unless a deadline was postponed in
    /// one of them (Lamport: real-time model checking is really simple). Elapsed times are reset, because only reports
    /// show them. No command about trust may be in flight: its round gets a new number, so the engine would not
    /// recognise the answer.
    #[must_use]
    pub fn rebased(&self, now: Reading, first: u64) -> (Self, BTreeMap<LockId, LockId>) {
        let ids: BTreeSet<LockId> = self
            .calls
            .keys()
            .chain(self.held.keys())
            .chain(self.inspections.keys())
            .chain(self.entry_extensions.keys())
            .chain(self.releases.iter().map(|((lock, _), _)| lock))
            .chain(self.releases.iter().filter_map(|(_, release)| release.awaited_by()))
            .chain(self.local.handed.keys().copied())
            .chain(self.closing.withdrawals.keys().map(|ticket| ticket.lock))
            .collect();
        let map: BTreeMap<LockId, LockId> =
            ids.into_iter().zip(first..).map(|(old, new)| (old, LockId(new))).collect();
        let mut engine = self.clone();
        engine.shift(now);
        engine.renumber(&map);
        (engine, map)
    }

    fn shift(&mut self, base: Reading) {
        self.calls.values_mut().for_each(|call| call.shift(base));
        self.held.values_mut().for_each(|held| held.shift(base));
        self.releases.values_mut().for_each(|release| release.shift(base));
        self.inspections.values_mut().for_each(|inspection| inspection.shift(base));
        self.entry_extensions.values_mut().for_each(|extension| extension.shift(base));
        for link in &mut self.paths.links {
            link.retry_at = link.retry_at.map(|at| at.shifted(base));
        }
        self.closing.drains_by = self.closing.drains_by.map(|at| at.shifted(base));
        self.keys.shift(base);
        if let Some(monitor) = &mut self.monitor {
            monitor.shift(base);
        }
    }

    fn renumber(&mut self, map: &BTreeMap<LockId, LockId>) {
        let to = |lock: LockId| map.get(&lock).copied().unwrap_or(lock);
        self.local.begins.retain(|lock| self.calls.contains_key(lock));
        self.local.begins.iter_mut().for_each(|lock| *lock = to(*lock));
        let withdrawals = core::mem::take(&mut self.closing.withdrawals);
        let ticket = |it: Ticket| Ticket { lock: to(it.lock), ..it };
        self.closing.withdrawals =
            withdrawals.into_iter().map(|(it, nodes)| (ticket(it), nodes)).collect();
        let yielded = core::mem::take(&mut self.local.yielded);
        self.local.yielded = yielded.into_iter().map(to).collect();
        self.calls.renumber(to);
        self.held.renumber(to);
        self.inspections.renumber(to);
        self.entry_extensions.renumber(to);
        self.releases.renumber(to);
        self.releases.values_mut().for_each(|release| release.renumber(to));
        self.held.values_mut().for_each(|held| held.renumber(to));
        let handed = core::mem::take(&mut self.local.handed);
        self.local.handed =
            handed.into_iter().map(|(holder, lock)| (to(holder), to(lock))).collect();
        self.keys.renumber(to);
        self.find_deadlines();
    }

    /// Fills the deadline index from the records.
    fn find_deadlines(&mut self) {
        let calls = self.calls.keys().map(Owner::Call);
        let held = self.held.keys().map(Owner::HeldLock);
        let inspections = self.inspections.keys().map(Owner::Inspection);
        let extensions = self.entry_extensions.keys().map(Owner::EntryExtension);
        let releases = self.releases.iter().map(|((lock, round), _)| Owner::Release(lock, round));
        let nodes = self.quorum.node_ids().flat_map(|node| [Owner::Node(node), Owner::Trust(node)]);
        let owners =
            calls.chain(held).chain(inspections).chain(extensions).chain(releases).chain(nodes);
        let mut deadlines = Deadlines::default();
        for owner in owners.chain([Owner::Close]) {
            if let Some(at) = self.wake_of(owner) {
                deadlines.add(at, owner);
            }
        }
        self.deadlines = deadlines;
    }
}

impl Call {
    fn shift(&mut self, base: Reading) {
        (self.started, self.history.began) = (Reading::default(), Reading::default());
        for report in self.history.last.iter_mut().flat_map(|(_, nodes)| nodes) {
            report.took = Duration::ZERO;
        }
        self.deadline = self.deadline.map(|at| at.shifted(base));
        self.trust_wait.settles_by =
            self.trust_wait.settles_by.map(|by| by.map(|at| at.shifted(base)));
        match &mut self.phase {
            Phase::Queued | Phase::Starting => {}
            Phase::Attempting(attempt) => attempt.shift(base),
            Phase::Looking { inspection, .. } => inspection.shift(base),
            Phase::Pausing { until, yields_from, .. } => {
                *until = until.shifted(base);
                *yields_from = yields_from.map(|at| at.shifted(base));
            }
            Phase::Yielded { until } => *until = until.shifted(base),
        }
        if let Some(waiting) = &mut self.waiting {
            waiting.shift(base);
        }
        self.wake = self.wake.map(|at| at.shifted(base));
        self.contention.looked_at = self.contention.looked_at.map(|at| at.shifted(base));
        self.contention.foreign_seen = self.contention.foreign_seen.map(|at| at.shifted(base));
        self.shift_intent(base);
    }
}
