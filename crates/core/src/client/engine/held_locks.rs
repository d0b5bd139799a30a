//! Held locks: answers about their votes, and the review that follows each change and each deadline.
//!
//! Extensions are in `extending.rs`, hand-overs in `handing_over.rs`, releases and losses in `ending.rs`.

use alloc::boxed::Box;

use super::{Context, Effect, Engine};
use crate::client::deadlines::{Deadlines, Owner};
use crate::command::Answer;
use crate::ids::{LockId, NodeAnswer, Verb};
use crate::redlock::held_lock::HeldLock;
use crate::redlock::quorum::{NodeId, NodeSet};
use crate::time::Reading;

impl Engine {
    /// Handles a vote that arrived after the grant, or the answer to a heal, which restores a lost vote.
    pub(super) fn on_held_vote(&mut self, answer: NodeAnswer<'_>, cx: &mut Context<'_>) {
        let ticket = answer.ticket;
        let Some(held) = self.held_of_answer(ticket.lock, cx) else {
            return;
        };
        if ticket.verb == Verb::Acquire && ticket.round != held.acquire_round() {
            return;
        }
        if let Answer::Superseded { fence } = *answer.answer
            && held.handle_superseded(fence)
        {
            cx.emit(Effect::Superseded { lock: held.holder(), fence });
        }
        // A vote only postpones the loss (S11), so the lock's entry in the deadline index can stay as it is.
        if held.handle_vote(answer, cx.now) {
            Self::emit_changed(held, cx);
        }
        if held.is_detaching() {
            self.review_held(ticket.lock, false, cx);
        }
    }

    pub(super) fn on_held_raised(&mut self, answer: NodeAnswer<'_>, cx: &mut Context<'_>) {
        let lock = answer.ticket.lock;
        let Some(held) = self.held_of_answer(lock, cx) else {
            return;
        };
        let changed = held.handle_raised(answer);
        self.review_answered(lock, changed, cx);
    }

    /// The lock that a guard holds. `None` for a guard that has handed its lock over, or has begun to do so: another
    /// guard has the lock then, or no guard has it (S24).
    pub(super) fn held_by(&self, holder: LockId) -> Option<LockId> {
        let lock = self.local.handed.get(&holder).copied().unwrap_or(holder);
        let held = &self.held.get(&lock)?;
        (held.holder() == holder && !held.is_handing_over()).then_some(lock)
    }

    /// The lock that a guard holds, after a due loss was latched.
    pub(super) fn latched_by(
        &mut self,
        holder: LockId,
        cx: &mut Context<'_>,
    ) -> Option<(LockId, &mut HeldLock)> {
        let lock = self.held_by(holder)?;
        self.latch_loss(lock, cx);
        Some((lock, self.held.get_mut(&lock)?))
    }

    /// The held lock that an answer is about; `None` if time has ended it. A due loss is latched before the answer
    /// may raise the validity (S13).
    pub(super) fn held_of_answer(
        &mut self,
        lock: LockId,
        cx: &mut Context<'_>,
    ) -> Option<&mut HeldLock> {
        if !mutant!(LossNotLatched) && self.latch_loss(lock, cx) {
            return None;
        }
        self.held.get_mut(&lock)
    }

    pub(super) fn due_held(&mut self, lock: LockId, cx: &mut Context<'_>) {
        if let Some(held) = self.held.get_mut(&lock) {
            if let Some(extension) = held.extension_mut() {
                extension.handle_time(cx.now);
            }
            held.handle_time(cx.now, |node| cx.emit(Effect::TimedOut { node }));
        }
        self.review_held(lock, false, cx);
    }

    /// Reviews a held lock after an answer. If the lock is not valid any more, this answer has taken a vote away,
    /// because a loss by time is latched before an answer is handled.
    pub(super) fn review_answered(&mut self, lock: LockId, changed: bool, cx: &mut Context<'_>) {
        let held = self.held.get(&lock);
        match held.and_then(|held| held.proved_loss(cx.now)) {
            Some(cause) => self.lose(lock, cause, cx),
            None => self.review_held(lock, changed, cx),
        }
    }

    /// Reviews a held lock after a change: detects a loss or the end of an extension, and starts an extension that is
    /// due.
    pub(super) fn review_held(&mut self, lock: LockId, changed: bool, cx: &mut Context<'_>) {
        let Some(held) = self.held.get_mut(&lock) else {
            return;
        };
        if let Some(cause) = held.due_loss(cx.now) {
            return self.lose(lock, cause, cx);
        }
        if held.lost().is_some() {
            return;
        }
        if held.is_handing_over() {
            return self.review_handover(lock, cx);
        }
        if changed {
            Self::emit_changed(held, cx);
        }
        let mut excluded = NodeSet::default();
        if held.extension().is_some()
            && let Some(monitor) = &self.monitor
        {
            let exclusion = |node: &NodeId| monitor.exclusion(*node, cx.now).is_some();
            excluded = self.quorum.node_ids().filter(exclusion).collect();
        }
        Self::review_extension(lock, held, excluded, &self.paths.round_trips, cx);
        if let Some(detached) = held.poll_detached(cx.now) {
            let (lock, detached) = (held.holder(), detached.map(Box::new));
            cx.emit(Effect::Detached { lock, detached });
        }
        if held.extension_is_due(cx.now) {
            if held.limit().allows_extension(cx.now) {
                let longest = self.paths.round_trips.longest();
                Self::start_extension(lock, held, longest, cx);
            } else {
                held.stop_extending();
            }
        }
        Self::index_held(&mut self.deadlines, lock, held, cx.now);
    }

    /// Notifies the holder of new votes, if the lock has a holder.
    fn emit_changed(held: &HeldLock, cx: &mut Context<'_>) {
        if !held.is_handing_over() && !held.is_detaching() {
            cx.emit(Effect::Changed { lock: held.holder(), validity: held.validity().clone() });
        }
    }

    pub(super) fn index_held(
        deadlines: &mut Deadlines,
        lock: LockId,
        held: &mut HeldLock,
        now: Reading,
    ) {
        let due = held.deadline(now);
        deadlines.put(Owner::HeldLock(lock), &mut held.wake, due);
    }
}
