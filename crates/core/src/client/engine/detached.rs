//! Locks without a guard: detaching a held lock, and extending or releasing a lock that no guard of this client holds.

use core::time::Duration;

use super::{Context, Effect, Engine, EntryOf, Extended};
use crate::client::deadlines::Owner;
use crate::command::Counter;
use crate::ids::{LockId, NodeAnswer, Ticket, Verb};
use crate::keys::{Entry, Keys, Origin};
use crate::loss::LossCause;
use crate::redlock::entry_extension::{EntryExtension, vote_does_not_count};
use crate::redlock::quorum::NodeSet;
use crate::redlock::release::Release;

/// The round of the release in `release_remains`. No attempt and no held lock has this round.
const REMAINS: u32 = u32::MAX;

impl Engine {
    /// Begins to detach a held lock. A lock that is lost cannot be detached.
    pub(super) fn on_detach(&mut self, holder: LockId, cx: &mut Context<'_>) {
        let longest = self.paths.round_trips.longest();
        match self.latched_by(holder, cx).filter(|(_, held)| held.lost().is_none()) {
            Some((lock, held)) => {
                held.detach(longest, cx.now);
                self.review_held(lock, false, cx);
            }
            None => cx.emit(Effect::Detached { lock: holder, detached: None }),
        }
    }

    /// Forgets a held lock without a release. The next caller of this process may attempt.
    pub(super) fn on_forget(&mut self, holder: LockId, cx: &mut Context<'_>) {
        let Some(lock) = self.held_by(holder) else {
            return;
        };
        let Some(held) = self.held.get_mut(&lock) else {
            return;
        };
        Self::emit_extended(held, Extended::Lost(LossCause::Expired), cx);
        // A lost lock has left the queue already, unless it keeps its keys despite the loss.
        let has_place = held.lost().is_none() || held.keeps_on_loss();
        let keys = held.keys().clone();
        self.held.discard(&lock);
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
        let due = cx.now.after(timing.node_timeout(self.paths.round_trips.longest()));
        let mut extension = EntryExtension::start(self.quorum, *timing, due, cx.now);
        let mut nodes = self.quorum.all();
        let unanswered = unanswered.iter().map(|node| (node, vote_does_not_count()));
        for (node, failure) in self.excluded(false, cx.now).into_iter().chain(unanswered) {
            extension.bar(node, failure, cx.now);
            nodes.remove(node);
        }
        for node in self.paths.connecting() {
            extension.await_answer(node, None, cx.now);
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
        let NodeAnswer { node, sent, ticket, answer, .. } = answer;
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
        if let Some((validity, mut nodes)) = outcome {
            extension.explain_silence(&mut nodes, |node| self.paths.round_trips.to(node));
            cx.emit(Effect::EntryExtended { lock, validity, nodes });
            self.entry_extensions.discard(&lock);
        }
    }

    /// Releases a lock on all nodes. A release that fails is sent again, like the release of a held lock.
    pub(super) fn on_release_entry(
        &mut self,
        lock: LockId,
        EntryOf { entry, timing, unanswered }: EntryOf,
        valid_for: Duration,
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
        let answers_due = cx.now.after(timing.node_timeout(self.paths.round_trips.longest()));
        // Such a release is not sent again, so its caller waits for the answers alone.
        let confirmed_for = if by_value { Duration::ZERO } else { valid_for };
        let valid = (!valid_for.is_zero(), confirmed_for);
        release.report_to(lock, valid, answers_due, cx.now);
        for node in self.paths.connecting() {
            release.await_answer(node, None, cx.now);
        }
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
