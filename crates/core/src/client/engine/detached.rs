//! Locks without a guard: detaching a lease, and extending or releasing a lock that no guard of this client holds.

use super::{Context, Effect, Engine, EntryOf, Extended};
use crate::client::deadlines::Owner;
use crate::command::Counter;
use crate::ids::{LockId, NodeAnswer, Ticket, Verb};
use crate::keys::{Entry, Keys, Origin};
use crate::loss::LossCause;
use crate::redlock::entry_extension::{EntryExtension, vote_does_not_count};
use crate::redlock::quorum::NodeSet;
use crate::redlock::release::Release;

/// The round of the release in `release_remains`. No attempt and no lease has this round.
const REMAINS: u32 = u32::MAX;

impl Engine {
    /// Begins to detach a lease. A lock that is lost cannot be detached.
    pub(super) fn on_detach(&mut self, holder: LockId, cx: &mut Context<'_>) {
        let lock = self.held_by(holder);
        if let Some(lock) = lock {
            self.latch_loss(lock, cx);
        }
        let lease = lock.and_then(|lock| self.leases.get_mut(&lock));
        match lock.zip(lease.filter(|lease| lease.lost().is_none())) {
            Some((lock, lease)) => {
                lease.detach(cx.now);
                self.review_lease(lock, false, cx);
            }
            None => cx.emit(Effect::Detached { lock: holder, detached: None }),
        }
    }

    /// Forgets a lease without a release. The next caller of this process may attempt.
    pub(super) fn on_forget(&mut self, holder: LockId, cx: &mut Context<'_>) {
        let Some(lock) = self.held_by(holder) else {
            return;
        };
        let Some(lease) = self.leases.get_mut(&lock) else {
            return;
        };
        Self::emit_extended(lease, Extended::Lost(LossCause::Expired), cx);
        // A lost lease has left the queue already, unless it keeps its keys despite the loss.
        let has_place = lease.lost().is_none() || lease.keeps_on_loss();
        let keys = lease.keys().clone();
        self.leases.discard(&lock);
        self.local.handed.remove(&holder);
        if has_place {
            self.leave_queue(&keys, holder, None, cx);
        }
    }

    /// Asks the nodes to prolong their votes for a lock.
    pub(super) fn on_extend_entry(
        &mut self,
        lock: LockId,
        EntryOf { entry, timing, unanswered }: &EntryOf,
        counter: Option<&Counter>,
        cx: &mut Context<'_>,
    ) {
        let unanswered = if mutant!(TextTrusted) { NodeSet::default() } else { *unanswered };
        let round_trip = self.paths.round_trips.latest(self.quorum);
        let due = cx.now.after(timing.node_timeout(round_trip));
        let mut extension = EntryExtension::start(self.quorum, *timing, due, cx.now);
        let mut nodes = self.quorum.all();
        let unanswered = unanswered.iter().map(|node| (node, vote_does_not_count()));
        for (node, failure) in self.excluded(cx.now).into_iter().chain(unanswered) {
            extension.bar(node, failure, cx.now);
            nodes.remove(node);
        }
        let ticket = Ticket { lock, round: 0, verb: Verb::Extend };
        let command = entry.extend(timing.ttl_ms(), counter);
        cx.emit(Effect::Send { nodes, ticket, command });
        self.note_own_change(&entry.keys, cx);
        self.entry_extensions.insert(lock, extension);
        self.review_entry_extension(lock, cx);
    }

    /// Handles the answer to [`Engine::on_extend_entry`]. Returns whether the answer belongs to such a request.
    pub(super) fn on_entry_extended(
        &mut self,
        answer: NodeAnswer<'_>,
        cx: &mut Context<'_>,
    ) -> bool {
        let NodeAnswer { node, sent, ticket, answer } = answer;
        let Some(extension) = self.entry_extensions.get_mut(&ticket.lock) else {
            return false;
        };
        extension.handle_answer(node, sent, answer, cx.now);
        self.review_entry_extension(ticket.lock, cx);
        true
    }

    pub(super) fn due_entry_extension(&mut self, lock: LockId, cx: &mut Context<'_>) {
        if let Some(extension) = self.entry_extensions.get_mut(&lock) {
            extension.handle_time(cx.now);
        }
        self.review_entry_extension(lock, cx);
    }

    fn review_entry_extension(&mut self, lock: LockId, cx: &mut Context<'_>) {
        let Some(extension) = self.entry_extensions.get_mut(&lock) else {
            return;
        };
        let outcome = extension.outcome(cx.now);
        let deadline = outcome.is_none().then(|| extension.deadline());
        self.deadlines.put(Owner::EntryExtension(lock), &mut extension.wake, deadline);
        if let Some((validity, nodes)) = outcome {
            cx.emit(Effect::EntryExtended { lock, validity, nodes });
            self.entry_extensions.discard(&lock);
        }
    }

    /// Releases a lock on all nodes. A release that fails is sent again, like the release of a lease.
    pub(super) fn on_release_entry(
        &mut self,
        lock: LockId,
        EntryOf { entry, timing, unanswered }: EntryOf,
        was_valid: bool,
        cx: &mut Context<'_>,
    ) {
        let mut held = self.quorum.all();
        unanswered.iter().for_each(|node| held.remove(node));
        let keys = entry.keys.clone();
        // A release by the value alone is not sent again: in the meantime, another client may have the lock with an
        // equal value.
        let by_value = matches!(&entry.origin, Origin::Taken(from) if from.by_value);
        let reached = match by_value && !mutant!(ValueReleaseOwed) {
            true => NodeSet::default(),
            false => self.quorum.all(),
        };
        let votes = (reached, held);
        let mut release = Release::new(entry, 0, (self.quorum, &timing), votes, cx.now);
        let round_trip = self.paths.round_trips.latest(self.quorum);
        release.report_to(lock, was_valid, cx.now.after(timing.node_timeout(round_trip)));
        self.start_release((lock, 0), release, cx);
        self.note_own_change(&keys, cx);
    }

    /// Deletes the value of a detached lock that this call or another process has attached. Nodes on which an attach
    /// failed may still have the value, and would refuse the new holder until the value expires.
    pub(super) fn release_remains(&mut self, lock: LockId, cx: &mut Context<'_>) {
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        let Origin::Detached(from) = &call.request.origin else {
            return;
        };
        let (keys, mode, value) =
            (call.request.keys.clone(), call.request.mode, from.value.clone());
        let entry = Entry { keys, mode, value, origin: Origin::Absent };
        let (round, timing) = (REMAINS, call.request.timing);
        let votes = (self.quorum.all(), NodeSet::default());
        let release = Release::new(entry, round, (self.quorum, &timing), votes, cx.now);
        self.start_release((lock, round), release, cx);
    }

    /// Wakes callers of this process that wait for these keys, after this process changed a lock that has no place in
    /// the local queue. Nodes do not push to them, because a server pushes nothing to the connection that made the
    /// change.
    pub(super) fn note_own_change(&mut self, keys: &Keys, cx: &mut Context<'_>) {
        for node in self.quorum.all().iter() {
            self.note_change(node, Some(keys), |_| true, cx);
        }
    }
}
