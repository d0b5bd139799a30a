//! Calls: from the request for a lock to the grant or the refusal.
//!
//! ```text
//!   Queued ─► Starting ─► Attempting ─┬─► (held)
//!     │         ▲ │                   ├─► Looking ◄─► Pausing ─┐
//!     │         │ └───────────────────│─────▲                  │
//!     │         └─────────────────────┴────────────────────────┘
//!     └─► (handed over)
//! ```
//!
//! A call whose attempt succeeds ends with a held lock. A queued call can instead get the lock from a caller of this
//! process that releases it (handed over). A refusal can end a call in each phase.
//!
//! Attempts are in `attempting.rs`, inspections and pauses in `waiting.rs`, the order of the callers of one process in
//! `turns.rs`, and the record of one call in `call.rs`.
//!
//! A call goes from `Starting` to `Looking` if its process has just released the lock and other processes wait. A
//! waiting call asks enough nodes to push a change of the lock, and pauses until a push or the expiry of the keys.
//! [`crate::client::wait`] decides when the call continues. `contention.rs` spreads the attempts of waiting processes.

use alloc::collections::VecDeque;

use super::{Call, Context, Effect, Engine, Phase, RefusalKind};
use crate::client::deadlines::Deadlines;
use crate::client::deadlines::Owner;
use crate::ids::LockId;
use crate::redlock::acquire::{Decision, NodeResult};
use crate::request::{Request, Wait};

impl Engine {
    /// Starts a call: it attempts at once, or queues behind other callers of this process.
    pub(super) fn on_acquire(&mut self, lock: LockId, request: Request, cx: &mut Context<'_>) {
        let once = request.wait == Wait::Once;
        // A call that attaches a detached lock does not wait behind callers that wait for that lock.
        let is_queued = !request.attaches();
        let refused = if self.closing.has_begun {
            Some(RefusalKind::Closed)
        } else if once && is_queued && !self.may_try(&request, cx.now) {
            Some(RefusalKind::BusyHere)
        } else {
            None
        };
        if let Some(kind) = refused {
            let refusal = Call::new(request, cx.now).refusal(kind, cx.now);
            return cx.emit(Effect::NotAcquired { lock, refusal });
        }
        let is_new = self.calls.insert(lock, Call::new(request, cx.now));
        assert!(is_new, "a lock id is used once");
        if is_queued {
            self.enter(lock, cx);
        } else if let Some(call) = self.calls.get_mut(&lock) {
            Self::start(&mut self.deadlines, &mut self.local.begins, lock, call);
        }
        if once && self.calls.get(&lock).is_some_and(|call| call.phase == Phase::Queued) {
            self.refuse(lock, RefusalKind::BusyHere, cx);
        }
    }

    pub(super) fn due_call(&mut self, lock: LockId, cx: &mut Context<'_>) {
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        if call.is_out_of_time(cx.now) {
            return self.wait_is_over(lock, cx);
        }
        if let Some(command) = call.renew_intent(cx.now) {
            let ticket = call.announcement(lock);
            cx.emit(Effect::Send { nodes: self.quorum.all(), ticket, command });
        }
        match &mut call.phase {
            Phase::Attempting(attempt) => {
                match attempt.handle_time(cx.now, |node| cx.emit(Effect::TimedOut { node })) {
                    Decision::Wait => Self::index_call(&mut self.deadlines, lock, call),
                    decision => self.follow(lock, decision, cx),
                }
            }
            Phase::Looking { inspection, .. } => {
                inspection.handle_time(cx.now);
                if inspection.is_over() {
                    if let Some(waiting) = &mut call.waiting {
                        waiting.handle_silence();
                    }
                    self.looked(lock, cx);
                } else {
                    Self::index_call(&mut self.deadlines, lock, call);
                }
            }
            Phase::Pausing { until, again, .. } if until.has_come(cx.now) => {
                if *again {
                    return self.look_again(lock, cx);
                }
                Self::start(&mut self.deadlines, &mut self.local.begins, lock, call);
            }
            Phase::Yielded { until } if until.has_come(cx.now) => {
                self.enter(lock, cx);
            }
            _ => Self::index_call(&mut self.deadlines, lock, call),
        }
    }

    pub(super) fn wait_is_over(&mut self, lock: LockId, cx: &mut Context<'_>) {
        let leftovers = self.leftovers(lock, cx.now);
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        match &call.phase {
            // The report of an unfinished attempt replaces that of an inspection, but not that of an earlier attempt.
            Phase::Attempting(attempt) if call.history.count == 1 => {
                let (why, nodes) = (attempt.why_not_yet(), attempt.report(cx.now));
                call.history.note_cut_short(why, nodes, self.quorum);
            }
            // An unfinished inspection may have found the holder already.
            Phase::Looking { .. } => {
                call.note_holders(cx.now);
                call.note_free_in(cx.now);
            }
            _ => {}
        }
        if !leftovers.is_empty() {
            call.history.note_leftovers(self.quorum, &leftovers);
        }
        call.history.settle(self.quorum);
        let is_queued = call.phase == Phase::Queued;
        let kind = call.history.last.as_ref().map(|(why, _)| RefusalKind::from(*why));
        // A queued call that has attempted before reports its last attempt, unless a caller of this process now holds
        // the lock.
        let is_held_here = || {
            let call = self.calls.get(&lock);
            call.is_some_and(|call| self.is_held_here(&call.request))
        };
        let kind = match kind {
            Some(kind) if !is_queued || !is_held_here() => kind,
            None if !is_queued => RefusalKind::NoQuorum,
            _ => RefusalKind::BusyHere,
        };
        self.abandon(lock, kind, cx);
    }

    /// Ends a call or an inspection that its caller cancelled.
    pub(super) fn on_cancel(&mut self, lock: LockId, cx: &mut Context<'_>) {
        self.inspections.remove(&lock);
        self.release_attempt(lock, cx);
        if let Some(mut call) = self.remove_call(lock) {
            self.leave_queue(&call.request.keys, lock, None, cx);
            self.pass_intent_on(call.take_intent(lock), cx);
        }
    }

    pub(super) fn abandon(&mut self, lock: LockId, kind: RefusalKind, cx: &mut Context<'_>) {
        self.release_attempt(lock, cx);
        self.refuse(lock, kind, cx);
    }

    pub(super) fn refuse(&mut self, lock: LockId, kind: RefusalKind, cx: &mut Context<'_>) {
        let Some(mut call) = self.remove_call(lock) else {
            return;
        };
        if kind == RefusalKind::NoQuorum {
            call.free_in = call.free_in.or_else(|| self.quorum_in(&call, cx.now));
        }
        let mut refusal = call.refusal(kind, cx.now);
        let round_trip = |node| self.paths.round_trips.to(node);
        NodeResult::explain_silence(&mut refusal.nodes, &call.request.timing, round_trip);
        cx.emit(Effect::NotAcquired { lock, refusal });
        self.leave_queue(&call.request.keys, lock, None, cx);
        self.pass_intent_on(call.take_intent(lock), cx);
    }

    fn remove_call(&mut self, lock: LockId) -> Option<Call> {
        self.local.yielded.remove(&lock);
        self.calls.remove(&lock)
    }

    /// Ends a call that has its lock, and withdraws its intent, which kept new readers out.
    pub(super) fn finish_call(&mut self, lock: LockId, cx: &mut Context<'_>) {
        let withdrawal = self.calls.get_mut(&lock).and_then(|call| call.withdrawal(lock));
        self.local.yielded.remove(&lock);
        self.calls.discard(&lock);
        if let Some(withdrawal) = withdrawal {
            self.withdraw(withdrawal, cx);
        }
    }

    pub(super) fn start(
        deadlines: &mut Deadlines,
        begins: &mut VecDeque<LockId>,
        lock: LockId,
        call: &mut Call,
    ) {
        call.phase = Phase::Starting;
        begins.push_back(lock);
        Self::index_call(deadlines, lock, call);
    }

    pub(super) fn index_call(deadlines: &mut Deadlines, lock: LockId, call: &mut Call) {
        let due = call.due();
        deadlines.put(Owner::Call(lock), &mut call.wake, due);
    }
}
