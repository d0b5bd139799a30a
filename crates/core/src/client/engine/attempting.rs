//! An attempt of a call: asking all nodes at once (step 2), counting the votes (3, 4), and giving up (5).

use alloc::vec::Vec;

use super::{Call, Effect, Engine, Entropy, Phase, RefusalKind, Sink, Timed};
use crate::client::wait::Waiting;
use crate::command::Answer;
use crate::ids::{LockId, Ticket, Verb};
use crate::keys::Entry;
use crate::redlock::acquire::{Attempt, Decision, FailureReason};
use crate::redlock::lease::Lease;
use crate::redlock::quorum::{NodeId, NodeSet};
use crate::redlock::vote::Validity;
use crate::time::Reading;
use crate::token::Value;

impl Engine {
    /// The next attempt begins, with a fresh token.
    pub(super) fn begin(
        &mut self,
        lock: LockId,
        now: Reading,
        entropy: &mut dyn Entropy,
        out: &mut dyn Sink,
    ) {
        let excluded = self.excluded(now);
        let Some(timed) = self.calls.get_mut(&lock) else {
            return;
        };
        let call = &mut timed.record;
        if call.phase != Phase::Starting {
            return;
        }
        let (token, jitter) = entropy.draw(lock);
        let round_trip = self.paths.round_trips.latest(self.quorum);
        (call.pace.word, call.pace.round_trip) = (jitter, round_trip);
        call.trust_wait.settling = false;
        if !excluded.is_empty()
            && self.quorum.is_out_of_reach(self.quorum.nodes() - excluded.len(), 0)
        {
            call.note_untrusted(self.quorum, excluded, now);
            return self.await_trust(lock, now, out);
        }
        if call.contention.polite && call.waiting.is_none() && call.has_time_to_look(now) {
            call.waiting = Some(Waiting::new(self.quorum, call.request.mode));
            // No attempt is made with it; readers may be told of this call by it.
            call.history.token.get_or_insert(token);
            return self.look(lock, self.quorum.all(), true, now, out);
        }
        call.history.began = now;
        call.history.count += 1;
        call.round += 1;
        let token = call.history.token.filter(|_| mutant!(TokenReused)).unwrap_or(token);
        call.history.token = Some(token);
        let timing = call.request.timing;
        let entry = Entry {
            keys: call.request.keys.clone(),
            mode: call.request.mode,
            value: Value::dated(&token, &call.request.owner, now),
        };
        let nodes = &self.paths.links;
        let connecting = |node: NodeId| nodes[node.index()].connecting;
        let timeout = timing.node_timeout(round_trip);
        let mut attempt = Attempt::start(entry, self.quorum, timing, timeout, connecting, now);
        if let Some(counter) = &call.request.fenced {
            attempt.seek_fence(counter.clone(), call.history.number_seen);
        }
        let command = attempt.command(call.request.prefix_bytes);
        let ticket = Ticket { lock, round: call.round, verb: Verb::Acquire };
        let mut nodes = self.quorum.all();
        for (node, failure) in excluded {
            attempt.bar(node, failure);
            nodes.remove(node);
        }
        out.push(Effect::Send { nodes, ticket, command });
        call.phase = Phase::Attempting(attempt);
        Self::index_call(&mut self.deadlines, lock, timed);
    }

    /// A vote or its refusal. It belongs to the call's attempt, or to the lease that the attempt became.
    pub(super) fn handle_vote(
        &mut self,
        node: NodeId,
        sent: Reading,
        ticket: Ticket,
        answer: Answer,
        now: Reading,
        out: &mut dyn Sink,
    ) {
        if ticket.verb == Verb::Acquire
            && let Answer::Failed(failure) = &answer
            && !failure.may_have_been_executed()
        {
            self.note_unreached(node, ticket, out);
        }
        let Some(timed) = self.calls.get_mut(&ticket.lock) else {
            return self.vote_for_lease(node, sent, ticket, &answer, now, out);
        };
        let call = &mut timed.record;
        // An answer to an earlier attempt: its release is queued, the vote is void for ever (S1).
        if call.round != ticket.round && !mutant!(LateGrantBehindRelease) {
            return call.history.note_number(&answer);
        }
        let Phase::Attempting(attempt) = &mut call.phase else {
            call.history.note_number(&answer);
            return self.hear_late(ticket.lock, node, answer, now, out);
        };
        // While it waits for others, its deadline is where it was, or later.
        let decision = attempt.handle_answer(node, sent, answer, now);
        self.follow(ticket.lock, decision, now, out);
    }

    /// An answer to an attempt that has failed without it: no vote any more, but the story is to be true.
    pub(super) fn hear_late(
        &mut self,
        lock: LockId,
        node: NodeId,
        answer: Answer,
        now: Reading,
        out: &mut dyn Sink,
    ) {
        if matches!(answer, Answer::Refused | Answer::RefusedFenced { .. }) {
            self.look_at_late(lock, node, out);
        }
        let Some(Timed { record: call, .. }) = self.calls.get_mut(&lock) else {
            return;
        };
        call.history.note_late(self.quorum, node, answer, now);
        if call.has_seen_enough(self.quorum, now) {
            self.looked(lock, now, out);
        }
    }

    /// The answer to a raise. It belongs to the call's attempt, or to the lease that the attempt became.
    pub(super) fn handle_raised(
        &mut self,
        node: NodeId,
        sent: Reading,
        ticket: Ticket,
        answer: Answer,
        now: Reading,
        out: &mut dyn Sink,
    ) {
        let Some(timed) = self.calls.get_mut(&ticket.lock) else {
            return self.raised_for_lease(node, sent, ticket, answer, now, out);
        };
        let call = &mut timed.record;
        if let Phase::Attempting(attempt) = &mut call.phase
            && call.round == ticket.round
        {
            let decision = attempt.handle_raised(node, answer, now);
            self.follow(ticket.lock, decision, now, out);
        }
    }

    /// Sends what an attempt needs to have its number recorded.
    pub(super) fn raise(&mut self, lock: LockId, nodes: NodeSet, out: &mut dyn Sink) {
        let Some(timed) = self.calls.get_mut(&lock) else {
            return;
        };
        if let Phase::Attempting(attempt) = &timed.record.phase
            && let Some(command) = attempt.raise_command()
        {
            let ticket = Ticket { lock, round: timed.record.round, verb: Verb::Raise };
            out.push(Effect::Send { nodes, ticket, command });
        }
        Self::index_call(&mut self.deadlines, lock, timed);
    }

    /// Does what an attempt's decision demands.
    pub(super) fn follow(
        &mut self,
        lock: LockId,
        decision: Decision,
        now: Reading,
        out: &mut dyn Sink,
    ) {
        match decision {
            Decision::Wait => {}
            Decision::Raise(nodes) => self.raise(lock, nodes, out),
            Decision::Acquired(validity) => self.begin_lease(lock, validity, now, out),
            Decision::GiveUp(why) => self.attempt_failed(lock, why, now, out),
        }
    }

    pub(super) fn begin_lease(
        &mut self,
        lock: LockId,
        validity: Validity,
        now: Reading,
        out: &mut dyn Sink,
    ) {
        let Some(call) = self.take_call(lock, now, out) else {
            return;
        };
        let Call { request, phase, round, history, pace, .. } = call;
        let (Phase::Attempting(attempt), Some(token)) = (phase, history.token) else {
            unreachable!("only an attempt is decided, and it has a token");
        };
        let fence = attempt.fence();
        let lease = Lease::begin(
            attempt,
            &request,
            validity,
            (lock, token, round),
            (pace.round_trip, pace.word),
            now,
        );
        let hold = lease.hold();
        let mut timed = Timed::new(lease);
        Self::index_lease(&mut self.deadlines, lock, &mut timed, now);
        self.leases.insert(lock, timed);
        let attempts = history.count;
        out.push(Effect::Acquired { lock, token, hold, attempts, handover_count: 0, fence });
    }

    /// Step 5, and what comes after it: a look at who holds the lock, a pause, or the end.
    pub(super) fn attempt_failed(
        &mut self,
        lock: LockId,
        why: FailureReason,
        now: Reading,
        out: &mut dyn Sink,
    ) {
        let Some(Timed { record: call, .. }) = self.calls.get_mut(&lock) else {
            return;
        };
        let phase = core::mem::replace(&mut call.phase, Phase::Starting);
        let Phase::Attempting(attempt) = phase else { unreachable!("only an attempt fails") };
        let round = call.round;
        call.history.number_seen = call.history.number_seen.max(attempt.seen());
        call.history.last = Some((why, attempt.report(now)));
        call.waiting = Some(Waiting::after(&attempt, self.quorum, call.request.mode));
        call.contention.split =
            why == FailureReason::Contended && attempt.granting().next().is_some();
        let outrun = core::mem::take(&mut call.contention.woken) || call.contention.split;
        call.contention.missed += u32::from(outrun);
        if why == FailureReason::Contended {
            for key in &*call.request.keys {
                let backoff = self.backoff.of(key, now);
                backoff.see_rivals(call.pace.round_trip, now);
                if outrun {
                    backoff.see_contention(now);
                }
            }
        }
        let refused: NodeSet = attempt.refusing().collect();
        let asked = if call.is_to_watch() { attempt.telling() } else { refused };
        let release = attempt.give_up(now).of_attempt(round);
        self.start_release((lock, round), release, out);
        if attempt.is_permission_denied() {
            self.refuse(lock, RefusalKind::NoQuorum, now, out);
        } else if refused.is_empty() {
            // Readers are not what keeps it waiting, so they need not wait for it.
            let timed = self.calls.get_mut(&lock);
            if let Some(withdrawal) = timed.and_then(|timed| timed.record.withdrawal(lock)) {
                self.withdraw(withdrawal, now, out);
            }
            self.rest(lock, true, now, out);
        } else {
            self.look(lock, asked, false, now, out);
        }
    }

    /// Step 5 for an attempt that is cut short (S15, S25).
    pub(super) fn release_attempt(&mut self, lock: LockId, now: Reading, out: &mut dyn Sink) {
        let Some(Timed { record: call, .. }) = self.calls.get(&lock) else {
            return;
        };
        if let Phase::Attempting(attempt) = &call.phase {
            let (round, release) = (call.round, attempt.give_up(now).of_attempt(call.round));
            self.start_release((lock, round), release, out);
        }
    }

    pub(super) fn for_each_attempt(&mut self, act: impl Fn(&mut Attempt)) {
        for lock in self.calls.keys().collect::<Vec<_>>() {
            if let Some(timed) = self.calls.get_mut(&lock)
                && let Phase::Attempting(attempt) = &mut timed.record.phase
            {
                act(attempt);
                Self::index_call(&mut self.deadlines, lock, timed);
            }
        }
    }
}
