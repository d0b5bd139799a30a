//! Calls: from the wish for a lock to the grant or the refusal.
//!
//! ```text
//!   Queued ─► Starting ─► Attempting ─┬─► (lease)
//!     │         ▲ │                   ├─► Looking ◄─► Pausing ─┐
//!     │         │ └───────────────────│─────▲                  │
//!     │         └─────────────────────┴────────────────────────┘
//!     └─► (handed over)
//! ```
//!
//! Attempts are in `attempting.rs`, looking and pausing in `waiting.rs`, what is known of one call in `call.rs`.
//!
//! Whose turn it is among the callers of one process is in `turns.rs`.
//!
//! From `Starting` a call goes to `Looking` if its process has just had the lock and others want it
//! too: it looks before it tries.
//!
//! A call that has to wait asks as many nodes as it takes to tell when the lock changes, and then does
//! nothing until they do, or until the keys expire. What decides when it goes on is in
//! [`crate::client::wait`]; how those who wait keep out of each other's way, in `contention.rs`.

use alloc::collections::VecDeque;

use super::{Call, Context, Effect, Engine, Phase, RefusalKind};
use crate::client::deadlines::Deadlines;
use crate::client::deadlines::Owner;
use crate::ids::LockId;
use crate::redlock::acquire::Decision;
use crate::request::{Request, Wait};

impl Engine {
    /// A caller wants a lock: it contends at once, or queues behind others of this process.
    pub(super) fn on_acquire(&mut self, lock: LockId, request: Request, cx: &mut Context<'_>) {
        let once = request.wait == Wait::Once;
        let is_busy = once && !self.may_try(&request, cx.now);
        let call = Call::new(request, cx.now);
        let refused = if self.closing.has_begun {
            Some(RefusalKind::Closed)
        } else if is_busy {
            Some(RefusalKind::BusyHere)
        } else {
            None
        };
        if let Some(kind) = refused {
            return cx.emit(Effect::NotAcquired { lock, refusal: call.refusal(kind, cx.now) });
        }
        let known = self.calls.insert(lock, call);
        assert!(known.is_none(), "a lock id is used once");
        self.enter(lock, cx);
        let phase = self.calls.get(&lock).map(|call| &call.phase);
        if once && phase == Some(&Phase::Queued) {
            self.refuse(lock, RefusalKind::BusyHere, cx);
        }
    }

    /// Time has passed for a call.
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
            Phase::Pausing { until, again, .. } if until.remaining(cx.now).is_zero() => {
                if *again {
                    return self.look_again(lock, cx);
                }
                Self::start(&mut self.deadlines, &mut self.local.begins, lock, call);
            }
            Phase::Aside { until } if until.remaining(cx.now).is_zero() => {
                self.enter(lock, cx);
            }
            _ => Self::index_call(&mut self.deadlines, lock, call),
        }
    }

    /// The caller's patience is at its end, whatever is under way.
    pub(super) fn wait_is_over(&mut self, lock: LockId, cx: &mut Context<'_>) {
        let leftovers = self.leftovers(lock, cx.now);
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        match &call.phase {
            // An attempt cut short says less than the one before it, but more than a look.
            Phase::Attempting(attempt) if call.history.count == 1 => {
                let (why, nodes) = (attempt.why_not_yet(), attempt.report(cx.now));
                call.history.note_cut_short(why, nodes, self.quorum);
            }
            // A look cut short has perhaps seen the holder already.
            Phase::Looking { .. } => {
                call.note_holders(cx.now);
                call.note_free_in(cx.now);
            }
            _ => {}
        }
        if !leftovers.is_empty() {
            call.history.tell_leftovers(self.quorum, &leftovers);
        }
        call.history.settle(self.quorum);
        let is_queued = call.phase == Phase::Queued;
        let kind = call.history.last.as_ref().map(|(why, _)| RefusalKind::from(*why));
        // Of who has had its turn already, and waits for the next one, more is known than that; unless
        // another of this process has got the lock meanwhile.
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

    /// The caller has gone.
    pub(super) fn on_cancel(&mut self, lock: LockId, cx: &mut Context<'_>) {
        self.inspections.remove(&lock);
        self.release_attempt(lock, cx);
        if let Some(mut call) = self.remove_call(lock) {
            self.leave_queue(&call.request.keys, lock, cx);
            self.pass_intent_on(call.take_intent(lock), cx);
        }
    }

    /// Ends a call from outside, releasing what an attempt under way may have got.
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
        cx.emit(Effect::NotAcquired { lock, refusal: call.refusal(kind, cx.now) });
        self.leave_queue(&call.request.keys, lock, cx);
        self.pass_intent_on(call.take_intent(lock), cx);
    }

    fn remove_call(&mut self, lock: LockId) -> Option<Call> {
        self.local.aside.remove(&lock);
        self.calls.remove(&lock)
    }

    /// The call has the lock. If readers were told that it waits, they are told that it does not any more.
    pub(super) fn take_call(&mut self, lock: LockId, cx: &mut Context<'_>) -> Option<Call> {
        let mut call = self.remove_call(lock)?;
        if let Some(withdrawal) = call.withdrawal(lock) {
            self.withdraw(withdrawal, cx);
        }
        Some(call)
    }

    /// The next attempt is due.
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
