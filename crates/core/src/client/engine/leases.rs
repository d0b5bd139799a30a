//! Leases: extension, heal, loss, hand-over and release.

use alloc::boxed::Box;

use super::{Context, Effect, Engine, Extended};
use crate::client::deadlines::{Deadlines, Owner};
use crate::client::gap;
use crate::command::Answer;
use crate::ids::{LockId, NodeAnswer, Ticket, Verb};
use crate::keys::Mode;
use crate::loss::LossCause;
use crate::redlock::extend::Progress;
use crate::redlock::lease::Lease;
use crate::redlock::quorum::{NodeId, NodeSet};
use crate::redlock::release::{NodeReleased, Outcome, ReleaseReport};
use crate::time::Reading;

impl Engine {
    /// Handles a vote that arrived after the grant, or the answer to a heal, which restores a lost vote.
    pub(super) fn on_lease_vote(&mut self, answer: NodeAnswer<'_>, cx: &mut Context<'_>) {
        let ticket = answer.ticket;
        let Some(lease) = self.lease_of_answer(ticket.lock, cx) else {
            return;
        };
        if ticket.verb == Verb::Acquire && ticket.round != lease.acquire_round() {
            return;
        }
        if let Answer::Superseded { fence } = *answer.answer
            && lease.handle_superseded(fence)
        {
            cx.emit(Effect::Superseded { lock: lease.holder(), fence });
        }
        // A vote only postpones the loss (S11), so the lease's entry in the deadline index can stay as it is.
        if lease.handle_vote(answer, cx.now) {
            Self::emit_changed(lease, cx);
        }
        if lease.is_detaching() {
            self.review_lease(ticket.lock, false, cx);
        }
    }

    pub(super) fn on_lease_raised(&mut self, answer: NodeAnswer<'_>, cx: &mut Context<'_>) {
        let lock = answer.ticket.lock;
        let Some(lease) = self.lease_of_answer(lock, cx) else {
            return;
        };
        let changed = lease.handle_raised(answer);
        self.review_answered_lease(lock, changed, cx);
    }

    pub(super) fn on_extended(&mut self, answer: NodeAnswer<'_>, cx: &mut Context<'_>) {
        let ticket = answer.ticket;
        if self.on_entry_extended(answer, cx) {
            return;
        }
        let Some(lease) = self.lease_of_answer(ticket.lock, cx) else {
            return;
        };
        let changed = lease.handle_extended(answer, cx.now);
        if let Some(extension) = lease.extension_mut()
            && extension.round == ticket.round
        {
            extension.handle_answer(answer.node, answer.answer, cx.now);
        }
        self.review_answered_lease(ticket.lock, changed, cx);
    }

    /// The lease that a guard holds. `None` for a guard that has handed its lease over, or has begun to do so: another
    /// guard has the lease then, or no guard has it (S24).
    pub(super) fn held_by(&self, holder: LockId) -> Option<LockId> {
        let lock = self.local.handed.get(&holder).copied().unwrap_or(holder);
        let lease = &self.leases.get(&lock)?;
        (lease.holder() == holder && !lease.is_handing_over()).then_some(lock)
    }

    /// Extends a lease at the holder's request. The request joins an extension in flight, or starts a new one.
    pub(super) fn on_extend(&mut self, holder: LockId, cx: &mut Context<'_>) {
        let Some(lock) = self.held_by(holder) else {
            let outcome = Extended::Lost(LossCause::Expired);
            return cx.emit(Effect::Extended { lock: holder, outcome });
        };
        self.latch_loss(lock, cx);
        let outcome = match self.leases.get(&lock) {
            None => Some(Extended::Lost(LossCause::Expired)),
            Some(lease) => match (lease.lost(), lease.extension()) {
                (Some(cause), _) => Some(Extended::Lost(cause)),
                // The extension in flight began within the hold limit, so this caller joins it and shares its outcome.
                (None, Some(extension)) if !extension.is_reported => None,
                (None, _) if !lease.limit().allows_extension(cx.now) => Some(Extended::HoldLimit),
                (None, _) => None,
            },
        };
        if let Some(outcome) = outcome {
            return cx.emit(Effect::Extended { lock: holder, outcome });
        }
        let Some(lease) = self.leases.get_mut(&lock) else {
            return;
        };
        if lease.extension().is_none_or(|extension| extension.is_reported) {
            Self::start_extension(self.quorum.all(), lock, lease, cx);
        }
        if let Some(extension) = lease.extension_mut() {
            extension.is_awaited = true;
        }
        self.review_lease(lock, false, cx);
    }

    /// Downgrades a lease. The holder has already latched the new mode, so the lock counts as a reader's whatever the
    /// nodes answer. The holder receives the outcome in the same form as that of an extension.
    pub(super) fn on_downgrade(&mut self, holder: LockId, cx: &mut Context<'_>) {
        let lock = self.held_by(holder);
        if let Some(lock) = lock {
            self.latch_loss(lock, cx);
        }
        let lease = lock.and_then(|lock| self.leases.get_mut(&lock));
        let Some((lock, lease)) = lock.zip(lease) else {
            let outcome = Extended::Lost(LossCause::Expired);
            return cx.emit(Effect::Extended { lock: holder, outcome });
        };
        if let Some(cause) = lease.lost() {
            return cx.emit(Effect::Extended { lock: holder, outcome: Extended::Lost(cause) });
        }
        if lease.mode() == Mode::Exclusive {
            let is_awaited = lease.extension().is_some_and(|it| it.is_awaited && !it.is_reported);
            let (round, command) = lease.downgrade(cx.now);
            let ticket = Ticket { lock, round, verb: Verb::Extend };
            cx.emit(Effect::Send { nodes: self.quorum.all(), ticket, command });
            if is_awaited && let Some(extension) = lease.extension_mut() {
                extension.is_awaited = true;
            }
            let keys = lease.keys().clone();
            self.downgrade_place(&keys, holder, cx);
        }
        self.on_extend(holder, cx);
    }

    /// Ends a lease whose guard saw the end of the validity. The guard became invalid then, and stays invalid.
    pub(super) fn on_run_out(&mut self, holder: LockId, cx: &mut Context<'_>) {
        let Some(lock) = self.held_by(holder) else {
            return;
        };
        let due = self.leases.get(&lock).and_then(|lease| lease.due_loss(cx.now));
        self.lose(lock, due.unwrap_or(LossCause::Expired), cx);
    }

    /// Releases a lease: hands it over to the next caller of this process if possible, or else sends a release to every
    /// node. The release follows all earlier commands for this lock on its connection, also an extension in flight.
    pub(super) fn on_release(&mut self, holder: LockId, report: bool, cx: &mut Context<'_>) {
        let Some(lock) = self.held_by(holder) else {
            if report {
                cx.emit(Effect::Released { lock: holder, report: self.nothing_held() });
            }
            return;
        };
        let has_left = self.leave_unwanted(lock, cx.now);
        if has_left || !self.hand_over(lock, report, cx) {
            self.give_back(lock, report, has_left, cx);
        }
    }

    /// Removes a lease from the local queue in the usual case: an exclusive lock with one key that no other caller of
    /// this process waits for. Returns whether this was the case. The lease need not be handed over then, so one search
    /// of the key's record suffices.
    fn leave_unwanted(&mut self, lock: LockId, now: Reading) -> bool {
        let Some(lease) = self.leases.get(&lock) else { return false };
        let is_usual = lease.backs_off() && lease.is_queued();
        let Some(key) = lease.keys().single().filter(|_| is_usual) else { return false };
        let Some((queue, backoff)) = self.keys.with_backoff_if_unwanted(key, now) else {
            return false;
        };
        let (had, pace) = lease.past_turn(now);
        backoff.give_back(had, pace, now);
        queue.leave(lease.holder());
        true
    }

    /// Ends a lease: sends one release to every node, and lets the next caller of this process attempt. `has_left`
    /// means that the lease has left the local queue already, because no caller waits.
    fn give_back(&mut self, lock: LockId, report: bool, has_left: bool, cx: &mut Context<'_>) {
        let Some(lease) = self.leases.get_mut(&lock) else {
            return;
        };
        Self::emit_extended(lease, Extended::Lost(LossCause::Expired), cx);
        let (holder, keys) = (lease.holder(), lease.keys().clone());
        let is_held = lease.lost().is_none();
        let is_kept = !is_held && lease.keeps_on_loss();
        // A lost lease was released when it was lost, unless the caller wanted to keep it. A second release is sent
        // only for a caller that awaits the outcome.
        let release =
            (is_held || is_kept || report).then(|| (lease.next_round(), lease.end(report, cx.now)));
        let turn = lease.backs_off().then(|| lease.past_turn(cx.now));
        let is_queued = lease.is_queued();
        self.leases.discard(&lock);
        self.local.handed.remove(&holder);
        if let Some((round, release)) = release {
            self.start_release((lock, round), release, cx);
        }
        if !is_queued {
            self.note_own_change(&keys, cx);
        }
        if (is_held || is_kept) && !has_left {
            self.leave_queue(&keys, holder, turn, cx);
        }
    }

    /// Hands a lease over to the next caller of this process that requested the same lock, under the conditions of a
    /// grant: `now` was read after the old guard's release, and enough validity must be left (S5). The old guard became
    /// invalid before it asked (S14), so no two guards hold the lease (S24). With a fencing token, the nodes must first
    /// record a larger number, and meanwhile no guard holds the lease.
    fn hand_over(&mut self, lock: LockId, report: bool, cx: &mut Context<'_>) -> bool {
        let Some(lease) = self.leases.get_mut(&lock) else {
            return false;
        };
        let queues = || lease.keys().iter().map(|key| self.keys.queue(key)?.first_waiting());
        // The same call must be next in the queues of all keys.
        let next = queues().next().flatten().filter(|next| queues().all(|it| it == Some(*next)));
        let call = next.and_then(|next| Some((next, self.calls.get(&next)?)));
        let Some((next, call)) =
            call.filter(|(_, call)| lease.may_be_handed_to(&call.request, cx.now))
        else {
            return false;
        };
        // In a gap, the lock is released on the nodes, so that clients that poll can acquire it.
        if !lease.is_handing_over() && gap::open_until(lease.foreign_seen, cx.now).is_some() {
            return false;
        }
        Self::emit_extended(lease, Extended::Lost(LossCause::Expired), cx);
        if lease.fence().is_some() && !lease.is_handing_over() {
            let Some((nodes, round, command)) = lease.pass(report, cx.now) else {
                return false;
            };
            let ticket = Ticket { lock, round, verb: Verb::Raise };
            cx.emit(Effect::Send { nodes, ticket, command });
            Self::index_lease(&mut self.deadlines, lock, lease, cx.now);
            return true;
        }
        let old = lease.holder();
        lease.hand_over(next, &call.request, cx.now);
        let (attempts, hold) = (call.history.count, lease.hold());
        let ((token, handover_count), fence) = (lease.token_and_handovers(), lease.fence());
        if report {
            let kept = |node| match hold.validity().has_vote_of(node) {
                true => NodeReleased::HandedOver,
                false => NodeReleased::NeverGranted,
            };
            let nodes = self.quorum.node_ids().map(kept).collect();
            let report = ReleaseReport { outcome: Outcome::Released, handed_over: true, nodes };
            cx.emit(Effect::Released { lock: old, report });
        }
        self.local.handed.remove(&old);
        self.local.handed.insert(next, lock);
        let keys = lease.keys().clone();
        Self::index_lease(&mut self.deadlines, lock, lease, cx.now);
        self.with_queues(&keys, |queue| queue.hand_over(old, next));
        self.finish_call(next, cx);
        cx.emit(Effect::Acquired { lock: next, token, hold, attempts, handover_count, fence });
        true
    }

    /// Finishes a hand-over once the nodes recorded the next guard's fencing token. If they cannot, or no caller waits
    /// any more, the lease is released.
    fn review_handover(&mut self, lock: LockId, cx: &mut Context<'_>) {
        let Some(lease) = self.leases.get_mut(&lock) else {
            return;
        };
        let report = lease.handover_report();
        match lease.is_passed() {
            None => Self::index_lease(&mut self.deadlines, lock, lease, cx.now),
            Some(true) if self.hand_over(lock, report, cx) => {}
            Some(_) => self.give_back(lock, report, false, cx),
        }
    }

    pub(super) fn due_lease(&mut self, lock: LockId, cx: &mut Context<'_>) {
        if let Some(lease) = self.leases.get_mut(&lock) {
            if let Some(extension) = lease.extension_mut() {
                extension.handle_time(cx.now);
            }
            lease.handle_time(cx.now, |node| cx.emit(Effect::TimedOut { node }));
        }
        self.review_lease(lock, false, cx);
    }

    /// Latches the loss of a lease, releases it on all nodes, and lets the next caller of this process attempt. If the
    /// lease is kept on a loss, the release and the next caller wait until the holder releases the lease.
    pub(super) fn lose(&mut self, lock: LockId, cause: LossCause, cx: &mut Context<'_>) {
        let Some(lease) = self.leases.get_mut(&lock) else {
            return;
        };
        if lease.lost().is_some() {
            return;
        }
        if lease.is_handing_over() {
            // During a hand-over the lease has no holder to notify, so it ends like a released lease.
            let report = lease.handover_report();
            return self.give_back(lock, report, false, cx);
        }
        // Report the answers that led to the loss, if the holder does not know them yet.
        let by_answers =
            matches!(cause, LossCause::Expired | LossCause::KeyGone | LossCause::KeyOverwritten);
        let is_open = lease.extension().is_some_and(|it| !it.is_reported && it.has_denial());
        if by_answers && is_open {
            Self::emit_health(lease, true, cx);
        }
        Self::emit_extended(lease, Extended::Lost(cause), cx);
        lease.lose(cause);
        let holder = lease.holder();
        cx.emit(Effect::Lost { lock: holder, cause });
        if lease.is_detaching() && !lease.is_detached() {
            cx.emit(Effect::Detached { lock: holder, detached: None });
        }
        if lease.keeps_on_loss() {
            // The holder decides when to release. Until then the engine sends no release, and no other caller of this
            // process gets the lock.
            return Self::index_lease(&mut self.deadlines, lock, lease, cx.now);
        }
        let (round, keys) = (lease.next_round(), lease.keys().clone());
        let (release, is_queued) = (lease.end(false, cx.now), lease.is_queued());
        Self::index_lease(&mut self.deadlines, lock, lease, cx.now);
        self.start_release((lock, round), release, cx);
        if !is_queued {
            self.note_own_change(&keys, cx);
        }
        self.leave_queue(&keys, holder, None, cx);
    }

    /// Latches the loss of a lease if time has ended it. Returns whether it did. The timer alone is not enough, because
    /// a wall clock that jumps ahead ends a lease before its timer.
    pub(super) fn latch_loss(&mut self, lock: LockId, cx: &mut Context<'_>) -> bool {
        let due = self.leases.get(&lock).and_then(|lease| lease.due_loss(cx.now));
        if let Some(cause) = due {
            self.lose(lock, cause, cx);
        }
        due.is_some()
    }

    /// The lease that an answer is about; `None` if time has ended the lease. A due loss is latched before the answer
    /// may raise the validity (S13).
    fn lease_of_answer(&mut self, lock: LockId, cx: &mut Context<'_>) -> Option<&mut Lease> {
        if !mutant!(LossNotLatched) && self.latch_loss(lock, cx) {
            return None;
        }
        self.leases.get_mut(&lock)
    }

    /// Reviews a lease after an answer. If the lease is not valid any more, this answer has taken a vote away, because
    /// a loss by time is latched before an answer is handled.
    fn review_answered_lease(&mut self, lock: LockId, changed: bool, cx: &mut Context<'_>) {
        let lease = self.leases.get(&lock);
        match lease.and_then(|lease| lease.proved_loss(cx.now)) {
            Some(cause) => self.lose(lock, cause, cx),
            None => self.review_lease(lock, changed, cx),
        }
    }

    /// Reviews a lease after a change: detects a loss or the end of an extension, and starts an extension that is due.
    pub(super) fn review_lease(&mut self, lock: LockId, changed: bool, cx: &mut Context<'_>) {
        let Some(lease) = self.leases.get_mut(&lock) else {
            return;
        };
        if let Some(cause) = lease.due_loss(cx.now) {
            return self.lose(lock, cause, cx);
        }
        if lease.lost().is_some() {
            return;
        }
        if lease.is_handing_over() {
            return self.review_handover(lock, cx);
        }
        if changed {
            Self::emit_changed(lease, cx);
        }
        let mut excluded = NodeSet::default();
        if lease.extension().is_some()
            && let Some(monitor) = &self.monitor
        {
            let exclusion = |node: &NodeId| monitor.exclusion(*node, cx.now).is_some();
            excluded = self.quorum.node_ids().filter(exclusion).collect();
        }
        Self::review_extension(lock, lease, excluded, cx);
        if let Some(detached) = lease.poll_detached(cx.now) {
            let (lock, detached) = (lease.holder(), detached.map(Box::new));
            cx.emit(Effect::Detached { lock, detached });
        }
        if lease.extension_is_due(cx.now) {
            if lease.limit().allows_extension(cx.now) {
                Self::start_extension(self.quorum.all(), lock, lease, cx);
            } else {
                lease.stop_extending();
            }
        }
        Self::index_lease(&mut self.deadlines, lock, lease, cx.now);
    }

    fn review_extension(lock: LockId, lease: &mut Lease, excluded: NodeSet, cx: &mut Context<'_>) {
        let Some(extension) = lease.extension_mut() else {
            return;
        };
        let started = extension.started;
        let was_reported = extension.is_reported;
        if !was_reported {
            let progress = extension.progress();
            let outcome = match progress {
                Progress::Open => None,
                Progress::Confirmed => Some(Extended::Confirmed),
                Progress::Failed => Some(Extended::Unconfirmed(extension.report(cx.now))),
            };
            if let Some(outcome) = outcome {
                if mutant!(FailedExtensionReleases) && progress == Progress::Failed {
                    let ticket = Ticket { lock, round: lease.next_round(), verb: Verb::Release };
                    let command = lease.end(false, cx.now).command();
                    cx.emit(Effect::Send { nodes: lease.nodes(), ticket, command });
                }
                Self::emit_extended(lease, outcome, cx);
                lease.schedule_extension(progress == Progress::Confirmed, started, cx.now);
            }
        }
        if lease.note_confirmation(!was_reported) {
            Self::emit_health(lease, false, cx);
        }
        let lease_heals = lease.heals();
        let Some(extension) = lease.extension_mut() else {
            return;
        };
        // Excluded nodes, whose votes would not count, are not healed, because a heal asks for a vote.
        let mut healable = extension.take_healable();
        if !lease_heals {
            healable = NodeSet::default();
        }
        excluded.iter().for_each(|node| healable.remove(node));
        let (over, round) = (extension.is_reported && extension.is_over(), extension.round);
        let ticket = Ticket { lock, round, verb: Verb::Heal };
        if !healable.is_empty() {
            let command = lease.heal_command(healable);
            cx.emit(Effect::Send { nodes: healable, ticket, command });
        }
        if over {
            lease.finish_extension();
        }
    }

    fn start_extension(nodes: NodeSet, lock: LockId, lease: &mut Lease, cx: &mut Context<'_>) {
        let (round, command) = lease.start_extension(cx.now);
        let ticket = Ticket { lock, round, verb: Verb::Extend };
        cx.emit(Effect::Send { nodes, ticket, command });
    }

    /// Notifies the holder of new votes, if the lease has a holder.
    fn emit_changed(lease: &Lease, cx: &mut Context<'_>) {
        if !lease.is_handing_over() && !lease.is_detaching() {
            cx.emit(Effect::Changed { lock: lease.holder(), validity: lease.validity().clone() });
        }
    }

    /// Notifies the holder of the nodes' answers to the extension in flight.
    fn emit_health(lease: &Lease, is_lost: bool, cx: &mut Context<'_>) {
        if let Some(extension) = lease.extension() {
            let is_confirmed = extension.progress() == Progress::Confirmed;
            if mutant!(FailureUntold) && !is_confirmed {
                return;
            }
            if mutant!(RecoveryUntold) && is_confirmed {
                return;
            }
            let (lock, nodes) = (lease.holder(), extension.report(cx.now));
            cx.emit(Effect::Health { lock, is_confirmed, is_lost, nodes });
        }
    }

    /// Reports the outcome of the extension in flight once, if a caller awaits it.
    pub(super) fn emit_extended(lease: &mut Lease, outcome: Extended, cx: &mut Context<'_>) {
        let lock = lease.holder();
        if let Some(extension) = lease.extension_mut()
            && !extension.is_reported
        {
            extension.is_reported = true;
            if extension.is_awaited {
                cx.emit(Effect::Extended { lock, outcome });
            }
        }
    }

    pub(super) fn index_lease(
        deadlines: &mut Deadlines,
        lock: LockId,
        lease: &mut Lease,
        now: Reading,
    ) {
        let due = lease.deadline(now);
        deadlines.put(Owner::Lease(lock), &mut lease.wake, due);
    }

    fn nothing_held(&self) -> ReleaseReport {
        let nodes = self.quorum.node_ids().map(|_| NodeReleased::NeverGranted).collect();
        ReleaseReport { outcome: Outcome::Expired, handed_over: false, nodes }
    }
}
