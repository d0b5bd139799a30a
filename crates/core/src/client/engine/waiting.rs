//! Waiting calls inspect the lock on the nodes, pause, and wake at pushes.

use super::{Context, Effect, Engine, Phase, RefusalKind};
use crate::client::contention::believed;
use crate::client::local_queue::LocalQueue;
use crate::client::wait::Waiting;
use crate::ids::{LockId, NodeAnswer, Ticket, Verb};
use crate::keys::{Mode, Origin, of_intent};
use crate::redlock::acquire::FailureReason;
use crate::redlock::inspect::Inspection;
use crate::redlock::quorum::{NodeId, NodeSet};
use crate::redlock::retry::Retry;
use crate::request::Request;
use crate::time::{BootTime, Reading};
use crate::token::Key;
use alloc::vec::Vec;
use core::time::Duration;

/// Delay after which a call that yielded its turn returns to its queue, once a push reports a change of readers.
const RETURN_AFTER: Duration = Duration::from_millis(50);

/// Delay between a push in a gap (in which the call leaves the lock to clients that poll) and the call's next
/// inspection. Other libraries acquire on one node after the other, so the first push alone does not show a new holder.
const GAP_STEP: Duration = Duration::from_millis(1);

impl Engine {
    /// Asks nodes for the holder and its remaining time. If the call is going to wait, the command also requests a
    /// push. The call notes the request before the command is sent, because a push may arrive before the answer.
    pub(super) fn look(&mut self, lock: LockId, nodes: NodeSet, again: bool, cx: &mut Context<'_>) {
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        // The new round keeps answers to an earlier inspection from counting for this one.
        call.round += u32::from(again);
        let round_trips = nodes.iter().map(|node| self.paths.round_trips.to(node));
        let longest = round_trips.max().unwrap_or_default();
        let due = cx.now.after(call.request.timing.node_timeout(longest));
        let inspection = Inspection::start(self.quorum, nodes, due, cx.now);
        if let Some(waiting) = &mut call.waiting {
            nodes.iter().for_each(|node| waiting.ask(node));
        }
        let ticket = Ticket { lock, round: call.round, verb: Verb::Inspect };
        let command = call.look();
        cx.emit(Effect::Send { nodes, ticket, command });
        call.phase = Phase::Looking { inspection, again };
        Self::index_call(&mut self.deadlines, lock, call);
    }

    /// Adds a node to the inspection in flight, because the node refused after the attempt was decided. Only a call
    /// with an intent, which keeps new readers out, needs this node's answer.
    pub(super) fn look_at_late(&mut self, lock: LockId, node: NodeId, cx: &mut Context<'_>) {
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        let Phase::Looking { inspection, .. } = &mut call.phase else {
            return;
        };
        if call.intent.is_some() && inspection.ask_too(node) {
            if let Some(waiting) = &mut call.waiting {
                waiting.ask(node);
            }
            let ticket = Ticket { lock, round: call.round, verb: Verb::Inspect };
            cx.emit(Effect::Send { nodes: NodeSet::only(node), ticket, command: call.look() });
        }
    }

    /// Handles the answer to an inspection of the lock, either a waiting call's or one that a caller requested.
    pub(super) fn on_seen(&mut self, answer: NodeAnswer<'_>, cx: &mut Context<'_>) {
        let NodeAnswer { node, epoch, ticket, answer, .. } = answer;
        if let Some(inspection) = self.inspections.get_mut(&ticket.lock) {
            inspection.note_epoch(node, epoch);
            inspection.handle_answer(node, answer, cx.now);
            return self.review_inspection(ticket.lock, cx);
        }
        let Some(call) = self.calls.get_mut(&ticket.lock) else {
            return;
        };
        if call.round != ticket.round {
            return;
        }
        let Phase::Looking { inspection, .. } = &mut call.phase else {
            return;
        };
        if let Some(waiting) = &mut call.waiting {
            waiting.handle_answer(node, answer, cx.now);
        }
        inspection.handle_answer(node, answer, cx.now);
        if call.has_seen_enough(self.quorum, cx.now) {
            self.looked(ticket.lock, cx);
        }
    }

    /// Ends a call's inspection. An inspection before an attempt decides whether the attempt is made.
    pub(super) fn looked(&mut self, lock: LockId, cx: &mut Context<'_>) {
        let leftovers = self.leftovers(lock, cx.now);
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        let Phase::Looking { again, .. } = call.phase else {
            return;
        };
        let first = call.history.last.is_none();
        call.note_holders(cx.now);
        if !leftovers.is_empty() {
            call.history.note_leftovers(self.quorum, &leftovers);
        }
        call.contention.looked_at = Some(cx.now.boot());
        let was_gap = core::mem::take(&mut call.contention.leaves_gap);
        if let Some(at) = call.note_foreign(cx.now) {
            for key in &*call.request.keys {
                self.keys.with_backoff(key, cx.now).1.see_foreign(at);
            }
        }
        if let Origin::Detached(from) = &call.request.origin
            && call.history.note_holder(self.quorum, &from.value)
        {
            self.release_remains(lock, cx);
            return self.refuse(lock, RefusalKind::Contended, cx);
        }
        self.review_intent(lock, cx);
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        let closed = call.waiting.as_ref().is_some_and(Waiting::is_closed);
        if !again || closed {
            // If only one of several readers released the lock, the lock did not become free, and was not missed.
            let is_missed = !call.waiting.as_ref().is_some_and(Waiting::is_held_by_several);
            call.contention.missed += u32::from(again && !first && !was_gap && is_missed);
            return self.pause(lock, first || !again, cx);
        }
        if call.is_open() {
            if let Some(end) = call.gap_until(cx.now) {
                return self.leave_gap(lock, end, cx);
            }
            if first {
                // Other processes may also be about to attempt, so the call pauses for a random time first.
                return self.draw_pause(lock, cx);
            }
            for key in &*call.request.keys {
                self.keys.with_backoff(key, cx.now).1.see_room();
            }
        }
        self.try_now(lock);
    }

    /// Draws a random pause, because a lock became free. Without a pause the call attempts at once. After a pause it
    /// inspects the lock again first.
    pub(super) fn draw_pause(&mut self, lock: LockId, cx: &mut Context<'_>) {
        let pause = self.random_pause(lock, cx.now);
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        if call.gap_until(cx.now).is_some() {
            // This inspection also requests a push, by which the call notices the next holder.
            call.contention.leaves_gap = true;
            return self.look_again(lock, cx);
        }
        if pause.is_zero() {
            return self.try_now(lock);
        }
        let until = cx.now.after(pause.min(call.patience(cx.now)));
        call.phase = Phase::Pausing { until, again: true, yields_from: None };
        Self::index_call(&mut self.deadlines, lock, call);
    }

    /// A random pause, by which the contenders for a free lock do not all attempt at once.
    fn random_pause(&mut self, lock: LockId, now: Reading) -> Duration {
        let Some(call) = self.calls.get_mut(&lock) else {
            return Duration::ZERO;
        };
        let (word, missed) = (call.pace.draw(), call.contention.missed);
        let backoffs = call.request.keys.iter().filter_map(|key| self.keys.backoff(key));
        backoffs.map(|backoff| backoff.pause(word, missed, now)).max().unwrap_or_default()
    }

    /// Leaves a free lock to clients that poll: pauses until `end` and then for a random time, but for at most half of
    /// the remaining wait. The call inspects the lock earlier if a node pushes that another client took it.
    fn leave_gap(&mut self, lock: LockId, end: BootTime, cx: &mut Context<'_>) {
        let rest = match mutant!(GapNeverEnds) {
            true => Duration::MAX,
            false => end.remaining(cx.now) + self.random_pause(lock, cx.now),
        };
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        let patience = call.patience(cx.now);
        (call.contention.leaves_gap, call.contention.skips_gap) = (true, patience < rest);
        // With several keys, other callers may attempt during this pause, because they may need only one of the keys.
        let yields_from = call.request.keys.single().is_none().then(|| cx.now.boot());
        call.phase =
            Phase::Pausing { until: cx.now.after(rest.min(patience)), again: true, yields_from };
        Self::index_call(&mut self.deadlines, lock, call);
        self.yield_turn(lock, cx);
    }

    /// Starts an attempt, because the lock seems free or its state is unknown.
    pub(super) fn try_now(&mut self, lock: LockId) {
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        call.contention.seemed_free = call.is_open();
        call.contention.skips_gap = true;
        Self::start(&mut self.deadlines, &mut self.local.begins, lock, call);
    }

    /// Pauses until the next attempt, or ends the call. With `is_new`, the caller is notified of the last attempt.
    pub(super) fn pause(&mut self, lock: LockId, is_new: bool, cx: &mut Context<'_>) {
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        let is_untrusted = matches!(call.history.last, Some((FailureReason::NodesUntrusted, _)));
        let may_be_trusted = is_untrusted || call.history.wants_trust_alone(self.quorum);
        let is_settling =
            call.is_to_end(cx.now) && may_be_trusted && self.settles_by(lock, cx.now).is_some();
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        if is_settling {
            // The attempt failed only because nodes are not trusted yet, and the call waits for the checks of these
            // nodes. So this attempt does not count.
            call.history.count = call.history.count.saturating_sub(1);
            call.trust_wait.settling = true;
        }
        // Without the restart guard no check of nodes follows, so this failure is handled like any other.
        if (is_untrusted || is_settling) && self.monitor.is_some() {
            return self.await_trust(lock, cx);
        }
        call.note_free_in(cx.now);
        if call.is_to_end(cx.now) {
            call.history.settle(self.quorum);
            let why = call.history.last.as_ref().map_or(FailureReason::NoQuorum, |(why, _)| *why);
            return self.refuse(lock, why.into(), cx);
        }
        let steps = call.request.keys.iter().filter_map(|key| self.keys.backoff(key)?.step(cx.now));
        let step = steps.max().unwrap_or(call.pace.round_trip);
        call.count_pause();
        let pause = call.pause(call.request.retry, step, cx.now);
        // Other callers of this process may attempt during this pause in two cases: the pause is longer than usual
        // because of this caller's options, or the failure may concern this call alone, because the lock is not held.
        let usual = call.pause(Retry::default(), step, cx.now);
        let is_taken = matches!(call.history.last, Some((FailureReason::Contended, _)));
        let yields_from = match call.request.keys.single() {
            Some(_) => (!is_taken || usual < pause).then(|| cx.now.after(usual)),
            None => Some(cx.now.boot()),
        };
        call.phase = Phase::Pausing { until: cx.now.after(pause), again: false, yields_from };
        call.look_if_stale(cx.now);
        if call.request.progress
            && is_new
            && let Some(report) = call.report(cx.now)
        {
            cx.emit(Effect::Waiting { lock, report });
        }
        Self::index_call(&mut self.deadlines, lock, call);
        self.yield_turn(lock, cx);
    }

    /// Handles a push that keys changed. `None` means that any key may have changed, or that the connection is new.
    pub(super) fn on_push(&mut self, node: NodeId, keys: Option<&[Key]>, cx: &mut Context<'_>) {
        self.repeat_intents(node, keys, cx);
        let is_of_intents = |keys: &[Key]| keys.iter().all(|key| of_intent(key).is_some());
        let is_concerned: fn(&Request) -> bool = match keys.is_some_and(is_of_intents) {
            true => |call| call.mode == Mode::Shared,
            false => |_| true,
        };
        self.note_change(node, keys, is_concerned, cx);
    }

    /// Notes a change of keys for the waiting calls that `is_concerned` selects. `None`: any key may have changed.
    pub(super) fn note_change(
        &mut self,
        node: NodeId,
        keys: Option<&[Key]>,
        is_concerned: fn(&Request) -> bool,
        cx: &mut Context<'_>,
    ) {
        let queue_of =
            |key: &Key| self.keys.queue(key).or_else(|| self.keys.queue(&of_intent(key)?));
        let queues: Vec<&LocalQueue> = match keys {
            Some(keys) => keys.iter().filter_map(queue_of).collect(),
            None => self.keys.queues().collect(),
        };
        let active = queues.into_iter().flat_map(LocalQueue::active);
        let is_about = |lock: &&LockId| {
            let its = self.calls.get(lock).map(|call| &call.request.keys);
            its.filter(|its| its.single().is_none())
                .is_some_and(|its| keys.is_none_or(|keys| keys.iter().any(|key| its.contains(key))))
        };
        let yielded = self.local.yielded.iter().filter(is_about).copied();
        let contenders: Vec<LockId> = active.map(|place| place.lock).chain(yielded).collect();
        for lock in contenders {
            let Some(call) = self.calls.get_mut(&lock) else {
                continue;
            };
            let waits = matches!(
                call.phase,
                Phase::Looking { .. } | Phase::Pausing { .. } | Phase::Yielded { .. }
            );
            if let Phase::Pausing { until, .. } = &mut call.phase
                && call.contention.leaves_gap
            {
                *until = (*until).min(cx.now.after(GAP_STEP));
                Self::index_call(&mut self.deadlines, lock, call);
                continue;
            }
            let was_open = call.is_open();
            let is_affected = waits && call.is_to_watch() && is_concerned(&call.request);
            let Some(waiting) = call.waiting.as_mut().filter(|_| is_affected) else {
                continue;
            };
            let is_new = match keys {
                Some(_) => waiting.handle_push(node),
                None => waiting.handle_new_epoch(node),
            };
            if is_new && !was_open {
                self.changed(lock, cx);
            }
        }
    }

    /// Wakes a waiting call, or shortens its pause, after a node reported a change.
    pub(super) fn changed(&mut self, lock: LockId, cx: &mut Context<'_>) {
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        let open = call.is_open();
        let step = believed(call.pace.round_trip);
        let may_open = call.waiting.as_ref().is_some_and(Waiting::may_open);
        let is_stale = call.waiting.as_ref().is_some_and(Waiting::is_stale);
        match &mut call.phase {
            Phase::Looking { .. } if open => {
                cx.emit(Effect::WaitEnded { lock });
                self.looked(lock, cx);
            }
            Phase::Pausing { again: false, .. } if open => {
                cx.emit(Effect::WaitEnded { lock });
                self.draw_pause(lock, cx);
            }
            // The lock may be free, but other callers of this process may be active, so the call queues first.
            Phase::Yielded { .. } if open => self.enter(lock, cx),
            Phase::Yielded { until } if is_stale || may_open => {
                let step = if is_stale { RETURN_AFTER } else { step };
                *until = (*until).min(cx.now.after(step));
                Self::index_call(&mut self.deadlines, lock, call);
            }
            // A node reported a change of readers. An inspection shows whether readers still hold the lock.
            Phase::Pausing { .. } if is_stale => {
                call.look_if_stale(cx.now);
                Self::index_call(&mut self.deadlines, lock, call);
            }
            // The call attempts after one round trip, not at once, because other nodes may not have executed the
            // release yet, and may never push. If fewer nodes than a quorum answered or pushed, the pause stays as it
            // is: the change may be the short-lived vote of another waiter, and an attempt would only wake that waiter.
            Phase::Pausing { until, .. } if may_open => {
                let step = if mutant!(WakeAtFirstPush) { Duration::ZERO } else { step };
                *until = (*until).min(cx.now.after(step));
                Self::index_call(&mut self.deadlines, lock, call);
            }
            _ => {}
        }
    }

    /// Inspects the lock again, on as few nodes as can show whether it is held. A writer with an intent inspects all
    /// reachable nodes, because fewer nodes do not show whether another writer holds a quorum (V13).
    pub(super) fn look_again(&mut self, lock: LockId, cx: &mut Context<'_>) {
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        let Some(waiting) = &mut call.waiting else {
            return;
        };
        let nodes = waiting.to_ask(call.intent.is_none());
        waiting.forget();
        self.look(lock, nodes, true, cx);
    }
}
