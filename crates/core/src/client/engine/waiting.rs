//! A call that waits: it looks who holds the lock, pauses, and is woken by what nodes push.

use super::call::Withdrawal;
use super::{Call, Context, Effect, Engine, Phase};
use crate::client::contention::believed;
use crate::client::local_queue::LocalQueue;
use crate::client::wait::Waiting;
use crate::command::{Answer, Command, Holding};
use crate::ids::{LockId, NodeAnswer, Ticket, Verb};
use crate::keys::{Keys, Mode, of_intent};
use crate::redlock::acquire::FailureReason;
use crate::redlock::inspect::Inspection;
use crate::redlock::quorum::{NodeId, NodeSet};
use crate::redlock::retry::Retry;
use crate::request::Request;
use crate::time::Reading;
use crate::token::Key;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::time::Duration;

/// Where readers come and go, a call that has stepped aside comes back no sooner than this after one has.
const ASIDE_EVERY: Duration = Duration::from_millis(50);

impl Engine {
    /// Asks nodes who holds the lock, and for how long; and, if the call is going to wait, to tell
    /// when that changes. That this is of interest is noted before anything is sent: a push may
    /// come before the answer.
    pub(super) fn look(&mut self, lock: LockId, nodes: NodeSet, again: bool, cx: &mut Context<'_>) {
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        // An answer to an earlier look is not one to this.
        call.round += u32::from(again);
        let due = cx.now.after(call.request.timing.node_timeout(call.pace.round_trip));
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

    /// A node has refused after the attempt was decided: a writer with an intent looks at this node too.
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

    /// What a node holds, for a call or for an inspection of its own.
    pub(super) fn on_seen(&mut self, answer: NodeAnswer, cx: &mut Context<'_>) {
        let NodeAnswer { node, ticket, answer, .. } = answer;
        if let Some(inspection) = self.inspections.get_mut(&ticket.lock) {
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
            waiting.handle_answer(node, &answer, cx.now);
        }
        inspection.handle_answer(node, answer, cx.now);
        if call.has_seen_enough(self.quorum, cx.now) {
            self.looked(ticket.lock, cx);
        }
    }

    /// A look is over. One before an attempt decides whether there is to be one.
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
            call.history.tell_leftovers(self.quorum, &leftovers);
        }
        call.contention.looked_at = Some(cx.now.boot());
        self.review_intent(lock, cx);
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        let closed = call.waiting.as_ref().is_some_and(Waiting::is_closed);
        if !again || closed {
            // Of several readers one has gone, and nobody was faster.
            let is_missed = !call.waiting.as_ref().is_some_and(Waiting::is_held_by_several);
            call.contention.missed += u32::from(again && !first && is_missed);
            return self.rest(lock, first || !again, cx);
        }
        if call.is_open() {
            if first {
                // It has been free for a while, perhaps, and others are about to look again.
                return self.draw_slot(lock, cx.now);
            }
            for key in &*call.request.keys {
                self.backoff.of(key, cx.now).see_room();
            }
        }
        self.try_now(lock);
    }

    /// After a look: word for readers that this one waits, or its end.
    fn review_intent(&mut self, lock: LockId, cx: &mut Context<'_>) {
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        let (withdrawal, announcement) = call.review_intent(lock, cx.now);
        if let Some(withdrawal) = withdrawal {
            self.withdraw(withdrawal, cx);
        }
        self.announce(lock, self.quorum.all(), announcement, cx);
    }

    /// Sends what a call says about its intent.
    pub(super) fn announce(
        &mut self,
        lock: LockId,
        nodes: NodeSet,
        command: Option<Command>,
        cx: &mut Context<'_>,
    ) {
        if let Some((call, command)) = self.calls.get_mut(&lock).zip(command) {
            cx.emit(Effect::Send { nodes, ticket: call.announcement(lock), command });
        }
    }

    /// Takes back what readers were told of a call, which is not among those that wait any more. Those of this process are
    /// not told by the nodes: servers push nothing to the connection that made the change.
    pub(super) fn withdraw(&mut self, withdrawal: Withdrawal, cx: &mut Context<'_>) {
        let keys = self.send_withdrawal(withdrawal, cx);
        for node in self.quorum.all().iter() {
            self.tell_of_change(node, Some(&keys), |call| call.mode == Mode::Shared, cx);
        }
    }

    /// The nodes' answers are awaited when the client ends.
    pub(super) fn send_withdrawal(
        &mut self,
        Withdrawal { ticket, command, keys }: Withdrawal,
        cx: &mut Context<'_>,
    ) -> Keys {
        self.closing.withdrawals.insert(ticket, self.quorum.all());
        cx.emit(Effect::Send { nodes: self.quorum.all(), ticket, command });
        keys
    }

    /// A node has heard what readers are told. Whether they have heard of it shows in who gets the lock; but a client does
    /// not end before it is known that it has been taken back.
    ///
    /// Where the intent of another process's writer is, this one says its own again as soon as that has gone: its next
    /// renewal would be too late to keep readers out (V13).
    pub(super) fn on_announced(&mut self, answer: NodeAnswer, cx: &mut Context<'_>) {
        let NodeAnswer { node, ticket, answer, .. } = answer;
        if let Some(unheard) = self.closing.withdrawals.get_mut(&ticket) {
            unheard.remove(node);
            if unheard.is_empty() {
                self.closing.withdrawals.remove(&ticket);
                if self.closing.drains_by.is_some() {
                    self.review_drained(cx);
                }
            }
        }
        let call = self.calls.get(&ticket.lock);
        let command = match answer {
            Answer::Other => call.and_then(Call::watch_intent),
            Answer::Seen(seen) | Answer::Watched(seen) if seen.each().contains(&Holding::Free) => {
                call.and_then(Call::repeat_intent)
            }
            _ => None,
        };
        self.announce(ticket.lock, NodeSet::only(node), command, cx);
    }

    /// Another writer's intent for these keys has gone from the node, or all has (`None`): the writers that wait say theirs
    /// again.
    fn repeat_intents(&mut self, node: NodeId, keys: Option<&[Key]>, cx: &mut Context<'_>) {
        let queues: Vec<&LocalQueue> = match keys {
            Some(keys) => {
                keys.iter().filter_map(|key| self.local.queues.get(&of_intent(key)?)).collect()
            }
            None => self.local.queues.values().collect(),
        };
        let active = queues.into_iter().flat_map(LocalQueue::active);
        let active: BTreeSet<LockId> = active.map(|place| place.lock).collect();
        for lock in active {
            let command = self.calls.get(&lock).and_then(|call| call.repeat_intent());
            self.announce(lock, NodeSet::only(node), command, cx);
        }
    }

    /// The lock has come free: whose slot is the first one tries at once, the others look later
    /// whether it still is.
    pub(super) fn draw_slot(&mut self, lock: LockId, now: Reading) {
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        let word = call.pace.draw();
        let missed = call.contention.missed;
        let slots = call.request.keys.iter().map(|key| self.backoff.slot(key, word, missed, now));
        let slot = slots.max().unwrap_or_default();
        if slot.is_zero() {
            return self.try_now(lock);
        }
        let until = now.after(slot.min(call.patience(now)));
        call.phase = Phase::Pausing { until, again: true, lent: None };
        Self::index_call(&mut self.deadlines, lock, call);
    }

    /// An attempt is worth making: the lock seems to have come free, or it could not be seen that it
    /// has not.
    pub(super) fn try_now(&mut self, lock: LockId) {
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        call.contention.woken = call.is_open();
        Self::start(&mut self.deadlines, &mut self.local.begins, lock, call);
    }

    /// What could be learnt of a lock that was not to be had has been: waits for the next attempt,
    /// or ends. If there is `news`, the caller is told.
    pub(super) fn rest(&mut self, lock: LockId, is_new: bool, cx: &mut Context<'_>) {
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
            // Nodes are still being looked at, and the call waits for that: what has just failed
            // was no attempt yet of those that it may make.
            call.history.count = call.history.count.saturating_sub(1);
            call.trust_wait.settling = true;
        }
        // Without the restart guard nothing is found out about nodes: then it is a failure like others.
        if (is_untrusted || is_settling) && self.monitor.is_some() {
            return self.await_trust(lock, cx);
        }
        call.note_free_in(cx.now);
        if call.is_to_end(cx.now) {
            call.history.settle(self.quorum);
            let why = call.history.last.as_ref().map_or(FailureReason::NoQuorum, |(why, _)| *why);
            return self.refuse(lock, why.into(), cx);
        }
        let steps = call.request.keys.iter().filter_map(|key| self.backoff.step(key, cx.now));
        let step = steps.max().unwrap_or(call.pace.round_trip);
        call.count_pause();
        let pause = call.pause(call.request.retry, step, cx.now);
        // What is longer than usual is the caller's own wish, and what is not for the lock's being taken
        // may be its own trouble: neither holds the others of this process back.
        let usual = call.pause(Retry::default(), step, cx.now);
        let is_taken = matches!(call.history.last, Some((FailureReason::Contended, _)));
        let lent = match call.request.keys.single() {
            Some(_) => (!is_taken || usual < pause).then(|| cx.now.after(usual)),
            None => Some(cx.now.boot()),
        };
        call.phase = Phase::Pausing { until: cx.now.after(pause), again: false, lent };
        call.look_if_stale(cx.now);
        if call.request.progress
            && is_new
            && let Some(report) = call.report(cx.now)
        {
            cx.emit(Effect::Waiting { lock, report });
        }
        Self::index_call(&mut self.deadlines, lock, call);
        self.pass_on(lock, cx);
    }

    /// A node has pushed that keys have changed (`None`: all of them, or it has a new connection).
    pub(super) fn on_push(&mut self, node: NodeId, keys: Option<&[Key]>, cx: &mut Context<'_>) {
        self.repeat_intents(node, keys, cx);
        let is_of_intents = |keys: &[Key]| keys.iter().all(|key| of_intent(key).is_some());
        let is_concerned: fn(&Request) -> bool = match keys.is_some_and(is_of_intents) {
            true => |call| call.mode == Mode::Shared,
            false => |_| true,
        };
        self.tell_of_change(node, keys, is_concerned, cx);
    }

    /// The same for some of those that wait.
    fn tell_of_change(
        &mut self,
        node: NodeId,
        keys: Option<&[Key]>,
        is_concerned: fn(&Request) -> bool,
        cx: &mut Context<'_>,
    ) {
        let queue_of = |key: &Key| {
            self.local.queues.get(key).or_else(|| self.local.queues.get(&of_intent(key)?))
        };
        let queues: Vec<&LocalQueue> = match keys {
            Some(keys) => keys.iter().filter_map(queue_of).collect(),
            None => self.local.queues.values().collect(),
        };
        let active = queues.into_iter().flat_map(LocalQueue::active);
        let is_about = |lock: &&LockId| {
            let its = self.calls.get(lock).map(|call| &call.request.keys);
            its.filter(|its| its.single().is_none())
                .is_some_and(|its| keys.is_none_or(|keys| keys.iter().any(|key| its.contains(key))))
        };
        let aside = self.local.aside.iter().filter(is_about).copied();
        let contenders: Vec<LockId> = active.map(|place| place.lock).chain(aside).collect();
        for lock in contenders {
            let Some(call) = self.calls.get_mut(&lock) else {
                continue;
            };
            let waits = matches!(
                call.phase,
                Phase::Looking { .. } | Phase::Pausing { .. } | Phase::Aside { .. }
            );
            let was_open = call.is_open();
            let is_told = waits && call.is_to_watch() && is_concerned(&call.request);
            let Some(waiting) = call.waiting.as_mut().filter(|_| is_told) else {
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

    /// The lock has changed on one node more, and was held as far as was known.
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
                cx.emit(Effect::Woken { lock });
                self.looked(lock, cx);
            }
            Phase::Pausing { again: false, .. } if open => {
                cx.emit(Effect::Woken { lock });
                self.draw_slot(lock, cx.now);
            }
            // It may be free where it was not, and waits for its turn.
            Phase::Aside { .. } if open => self.enter(lock, cx),
            Phase::Aside { until } if is_stale || may_open => {
                let step = if is_stale { ASIDE_EVERY } else { step };
                *until = (*until).min(cx.now.after(step));
                Self::index_call(&mut self.deadlines, lock, call);
            }
            // A reader has come or gone. If it was the last one, a look shows it.
            Phase::Pausing { .. } if is_stale => {
                call.look_if_stale(cx.now);
                Self::index_call(&mut self.deadlines, lock, call);
            }
            // The others may not have seen the release yet; but they need not ever tell of it. If too few
            // answer at all, it is some other waiter's short vote, and an attempt would wake that one.
            Phase::Pausing { until, .. } if may_open => {
                let step = if mutant!(WakeAtFirstPush) { Duration::ZERO } else { step };
                *until = (*until).min(cx.now.after(step));
                Self::index_call(&mut self.deadlines, lock, call);
            }
            _ => {}
        }
    }

    /// The time to look again has come: at as few nodes as will do. A writer with an intent looks at all that it can reach,
    /// because too few nodes do not show whether another writer holds a quorum (V13).
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
