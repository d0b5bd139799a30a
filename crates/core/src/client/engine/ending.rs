//! The end of held locks: by a release or by a loss.

use core::time::Duration;

use super::{Context, Effect, Engine, Extended};
use crate::ids::LockId;
use crate::loss::LossCause;
use crate::redlock::release::{NodeReleased, Outcome, ReleaseReport};
use crate::time::Reading;

impl Engine {
    /// Releases a held lock: hands it over to the next caller of this process if possible, or else sends a release to
    /// every node. The release follows all earlier commands for this lock on its connection, also an extension in
    /// flight.
    pub(super) fn on_release(&mut self, holder: LockId, report: bool, cx: &mut Context<'_>) {
        let Some(lock) = self.held_by(holder) else {
            if report {
                cx.emit(Effect::Released { lock: holder, report: self.nothing_held() });
            }
            return;
        };
        let has_left = self.leave_unwanted(lock, cx.now);
        if has_left || !self.hand_over(lock, report, cx) {
            self.release_held(lock, report, has_left, cx);
        }
    }

    /// Removes a held lock from the local queue in the usual case: an exclusive lock with one key that no other caller
    /// of this process waits for. Returns whether this was the case. The lock need not be handed over then, so one
    /// search of the key's record suffices.
    fn leave_unwanted(&mut self, lock: LockId, now: Reading) -> bool {
        let Some(held) = self.held.get(&lock) else { return false };
        let is_usual = held.backs_off() && held.is_queued();
        let Some(key) = held.keys().single().filter(|_| is_usual) else { return false };
        let Some((queue, backoff)) = self.keys.with_backoff_if_unwanted(key, now) else {
            return false;
        };
        let (had, pace) = held.past_turn(now);
        backoff.note_release(had, pace, now);
        queue.leave(held.holder());
        true
    }

    /// Ends a held lock: sends one release to every node, and lets the next caller of this process attempt. `has_left`
    /// means that the lock has left the local queue already, because no caller waits.
    pub(super) fn release_held(
        &mut self,
        lock: LockId,
        report: bool,
        has_left: bool,
        cx: &mut Context<'_>,
    ) {
        let longest = self.paths.round_trips.longest();
        let Some(held) = self.held.get_mut(&lock) else {
            return;
        };
        Self::emit_extended(held, Extended::Lost(LossCause::Expired), cx);
        let (holder, keys) = (held.holder(), held.keys().clone());
        let is_held = held.lost().is_none();
        let is_kept = !is_held && held.keeps_on_loss();
        // A lost lock was released when it was lost, unless the caller wanted to keep it. A second release is sent
        // only for a caller that awaits the outcome.
        let release = (is_held || is_kept || report).then(|| {
            let round = held.next_round();
            (round, held.end(report, longest, cx.now))
        });
        let turn = held.backs_off().then(|| held.past_turn(cx.now));
        let is_queued = held.is_queued();
        self.held.discard(&lock);
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

    fn nothing_held(&self) -> ReleaseReport {
        let nodes = self.quorum.node_ids().map(|_| NodeReleased::NeverGranted).collect();
        ReleaseReport { outcome: Outcome::Expired, handed_over: false, nodes }
    }

    /// Ends a held lock whose guard saw the end of the validity. The guard became invalid then, and stays invalid.
    pub(super) fn on_run_out(&mut self, holder: LockId, cx: &mut Context<'_>) {
        let Some(lock) = self.held_by(holder) else {
            return;
        };
        let due = self.held.get(&lock).and_then(|held| held.due_loss(cx.now));
        self.lose(lock, due.unwrap_or(LossCause::Expired), cx);
    }

    /// Latches the loss of a held lock if time has ended it. Returns whether it did. The timer alone is not enough,
    /// because a wall clock that jumps ahead ends a lock before its timer.
    pub(super) fn latch_loss(&mut self, lock: LockId, cx: &mut Context<'_>) -> bool {
        let due = self.held.get(&lock).and_then(|held| held.due_loss(cx.now));
        if let Some(cause) = due {
            self.lose(lock, cause, cx);
        }
        due.is_some()
    }

    /// Latches the loss of a held lock, releases it on all nodes, and lets the next caller of this process attempt. If
    /// the lock is kept on a loss, the release and the next caller wait until the holder releases the lock.
    pub(super) fn lose(&mut self, lock: LockId, cause: LossCause, cx: &mut Context<'_>) {
        let Some(held) = self.held.get_mut(&lock) else {
            return;
        };
        if held.lost().is_some() {
            return;
        }
        if held.is_handing_over() {
            // During a hand-over the lock has no holder to notify, so it ends like a released lock.
            let report = held.handover_report();
            return self.release_held(lock, report, false, cx);
        }
        // Report the answers that led to the loss, if the holder does not know them yet.
        let by_answers =
            matches!(cause, LossCause::Expired | LossCause::KeyGone | LossCause::KeyOverwritten);
        let is_open = held.extension().is_some_and(|it| !it.is_reported && it.has_denial());
        if by_answers && is_open {
            Self::emit_health(held, true, cx);
        }
        Self::emit_extended(held, Extended::Lost(cause), cx);
        held.lose(cause);
        let holder = held.holder();
        cx.emit(Effect::Lost { lock: holder, cause });
        if held.is_detaching() && !held.is_detached() {
            cx.emit(Effect::Detached { lock: holder, detached: None });
        }
        if held.keeps_on_loss() {
            // The holder decides when to release. Until then the engine sends no release, and no other caller of this
            // process gets the lock.
            return Self::index_held(&mut self.deadlines, lock, held, cx.now);
        }
        let (round, keys) = (held.next_round(), held.keys().clone());
        let (release, is_queued) = (held.end(false, Duration::ZERO, cx.now), held.is_queued());
        Self::index_held(&mut self.deadlines, lock, held, cx.now);
        self.start_release((lock, round), release, cx);
        if !is_queued {
            self.note_own_change(&keys, cx);
        }
        self.leave_queue(&keys, holder, None, cx);
    }
}
