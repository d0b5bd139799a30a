//! An attempt of a call. The step numbers are those of the Redlock paper (see `lib.rs`): the attempt starts (step 1,
//! [`Call::start_attempt`]), asks all nodes at once (step 2), counts the votes (steps 3 and 4), and releases if it
//! fails (step 5).

use alloc::vec::Vec;

use super::{Call, Context, Effect, Engine, Entropy, Paths, Phase, RefusalKind};
use crate::client::gap;
use crate::client::wait::Waiting;
use crate::command::{Answer, Failure};
use crate::ids::{LockId, NodeAnswer, Ticket, Verb};
use crate::keys::{Entry, Mode, Origin};
use crate::redlock::acquire::{Attempt, Decision, FailureReason};
use crate::redlock::entry_extension::vote_does_not_count;
use crate::redlock::held_lock::HeldLock;
use crate::redlock::quorum::{NodeId, NodeSet, Quorum};
use crate::redlock::vote::Validity;
use crate::request::Request;
use crate::time::Reading;
use crate::token::{Token, Value};

/// After this number of attempts to attach a reader's lock, the lock counts as gone if too few nodes have its value. A
/// reader's value is also missing on nodes where other processes attach the lock at the same time, and these processes
/// restore the value if they fail.
const READER_ATTACHES: u32 = 5;

impl Engine {
    /// Begins a call's attempt, if enough nodes are trusted and the call need not inspect the lock first.
    pub(super) fn begin(&mut self, lock: LockId, entropy: &mut dyn Entropy, cx: &mut Context<'_>) {
        let excluded = self.excluded(true, cx.now);
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        if !matches!(call.phase, Phase::Starting) {
            return;
        }
        if call.is_out_of_time(cx.now) {
            return self.wait_is_over(lock, cx);
        }
        let (token, jitter) = entropy.draw(lock);
        let round_trip = self.paths.round_trips.latest(self.quorum);
        (call.pace.word, call.pace.round_trip) = (jitter, round_trip);
        call.trust_wait.settling = false;
        if !excluded.is_empty()
            && self.quorum.is_out_of_reach(self.quorum.nodes() - excluded.len(), 0)
        {
            call.note_untrusted(self.quorum, excluded, cx.now);
            return self.await_trust(lock, cx);
        }
        if call.inspects_first(self.quorum, token, cx.now) {
            return self.look(lock, self.quorum.all(), true, cx);
        }
        call.start_attempt(self.quorum, &self.paths, token, cx.now);
        self.ask_all_nodes(lock, excluded, cx);
    }

    /// Step 2: sends one command to all nodes at once, except to those whose votes would not count.
    fn ask_all_nodes(
        &mut self,
        lock: LockId,
        excluded: Vec<(NodeId, Failure)>,
        cx: &mut Context<'_>,
    ) {
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        let Phase::Attempting(attempt) = &mut call.phase else {
            return;
        };
        let command = attempt.command(call.request.prefix_bytes);
        let ticket = Ticket { lock, round: call.round, verb: Verb::Acquire };
        let mut nodes = self.quorum.all();
        for (node, failure) in excluded {
            attempt.bar(node, failure);
            nodes.remove(node);
        }
        if let Origin::Detached(from) = &call.request.origin
            && !mutant!(TextTrusted)
        {
            for node in from.unanswered.iter() {
                attempt.bar(node, vote_does_not_count());
                nodes.remove(node);
            }
            // These excluded nodes send no answer, so the attempt may have failed already.
            let decision = attempt.decide(cx.now);
            if decision != Decision::Wait {
                return self.follow(lock, decision, cx);
            }
        }
        cx.emit(Effect::Send { nodes, ticket, command });
        Self::index_call(&mut self.deadlines, lock, call);
    }

    /// Handles a vote or refusal. The answer belongs to the call's attempt, or to the held lock that followed from the
    /// attempt.
    pub(super) fn on_vote(&mut self, answer: NodeAnswer<'_>, cx: &mut Context<'_>) {
        let ticket = answer.ticket;
        if ticket.verb == Verb::Acquire
            && let Answer::Failed(failure) = answer.answer
            && !failure.may_have_been_executed()
        {
            self.note_unreached(answer.node, ticket, cx);
        }
        let Some(call) = self.calls.get_mut(&ticket.lock) else {
            return self.on_held_vote(answer, cx);
        };
        // A vote for an earlier attempt is void, because that attempt's release follows and deletes it (S1).
        if call.round != ticket.round && !mutant!(LateGrantBehindRelease) {
            return call.history.note_number(answer.answer);
        }
        let Phase::Attempting(attempt) = &mut call.phase else {
            call.history.note_number(answer.answer);
            return self.on_late_answer(answer, cx);
        };
        // An answer never makes the deadline earlier, so the call's entry in the deadline index can stay as it is.
        let NodeAnswer { node, sent, answer, .. } = answer;
        let decision = attempt.handle_answer(node, sent, answer, cx.now);
        self.follow(ticket.lock, decision, cx);
    }

    /// Handles an answer that arrived after its attempt had failed. It is not a vote, but the report shows it.
    fn on_late_answer(&mut self, answer: NodeAnswer<'_>, cx: &mut Context<'_>) {
        let NodeAnswer { node, ticket: Ticket { lock, .. }, answer, .. } = answer;
        if matches!(answer, Answer::Refused | Answer::RefusedFenced { .. }) {
            self.look_at_late(lock, node, cx);
        }
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        call.history.note_late(self.quorum, node, answer, cx.now);
        if call.has_seen_enough(self.quorum, cx.now) {
            self.looked(lock, cx);
        }
    }

    /// Handles the answer to a command that raises a node's fencing counter. The answer belongs to the call's attempt,
    /// or to the held lock that followed from the attempt.
    pub(super) fn on_raised(&mut self, answer: NodeAnswer<'_>, cx: &mut Context<'_>) {
        let ticket = answer.ticket;
        let Some(call) = self.calls.get_mut(&ticket.lock) else {
            return self.on_held_raised(answer, cx);
        };
        if let Phase::Attempting(attempt) = &mut call.phase
            && call.round == ticket.round
        {
            let decision = attempt.handle_raised(answer.node, answer.answer, cx.now);
            self.follow(ticket.lock, decision, cx);
        }
    }

    /// Asks nodes to raise their counters to the attempt's fencing token.
    pub(super) fn raise(&mut self, lock: LockId, nodes: NodeSet, cx: &mut Context<'_>) {
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        if let Phase::Attempting(attempt) = &call.phase
            && let Some(command) = attempt.raise_command()
        {
            let ticket = Ticket { lock, round: call.round, verb: Verb::Raise };
            cx.emit(Effect::Send { nodes, ticket, command });
        }
        Self::index_call(&mut self.deadlines, lock, call);
    }

    pub(super) fn follow(&mut self, lock: LockId, decision: Decision, cx: &mut Context<'_>) {
        match decision {
            Decision::Wait => {}
            Decision::Raise(nodes) => self.raise(lock, nodes, cx),
            // Clients of another configuration may soon get votes of a node (S37).
            Decision::Acquired(_) if self.is_contested() => {
                let contested = self.contested(cx.now);
                if let Some(Call { phase: Phase::Attempting(attempt), .. }) =
                    self.calls.get_mut(&lock)
                {
                    contested.into_iter().for_each(|(node, failure)| attempt.bar(node, failure));
                }
                self.attempt_failed(lock, FailureReason::NodesUntrusted, cx);
            }
            Decision::Acquired(validity) => self.begin_held(lock, validity, cx),
            Decision::GiveUp(why) => self.attempt_failed(lock, why, cx),
        }
    }

    /// Turns a successful attempt into a held lock. Records are large, so the new one is built from the call while the
    /// call is still in its map.
    fn begin_held(&mut self, lock: LockId, validity: Validity, cx: &mut Context<'_>) {
        let Some(Call { request, phase, round, history, pace, contention, .. }) =
            self.calls.get_mut(&lock)
        else {
            return;
        };
        let (Phase::Attempting(attempt), Some(token)) = (phase, history.token) else {
            unreachable!("only an attempt is decided, and it has a token");
        };
        let (attempts, fence) = (history.count, attempt.fence());
        let pace = (pace.round_trip, pace.word);
        let mut held =
            HeldLock::begin(attempt, request, validity, (lock, token, *round), pace, cx.now);
        let hold = held.hold();
        let attached = (!held.is_queued()).then(|| held.keys().clone());
        let has_remains = attempt.may_leave_remains(held.keys().len());
        let foreign_seen = contention.foreign_seen.filter(|_| request.yields_to_pollers);
        held.foreign_seen = foreign_seen;
        self.held.insert(lock, held);
        if let Some(held) = self.held.get_mut(&lock) {
            Self::index_held(&mut self.deadlines, lock, held, cx.now);
        }
        if let Some(keys) = attached {
            if has_remains {
                self.release_remains(lock, cx);
            }
            self.note_own_change(&keys, cx);
        }
        self.finish_call(lock, cx);
        cx.emit(Effect::Acquired { lock, token, hold, attempts, handover_count: 0, fence });
    }

    /// Releases a failed attempt (step 5). An inspection of the lock, a pause or the end of the call follows.
    pub(super) fn attempt_failed(
        &mut self,
        lock: LockId,
        why: FailureReason,
        cx: &mut Context<'_>,
    ) {
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        let phase = core::mem::replace(&mut call.phase, Phase::Starting);
        let Phase::Attempting(attempt) = phase else { unreachable!("only an attempt fails") };
        let round = call.round;
        call.history.number_seen = call.history.number_seen.max(attempt.seen());
        call.history.last = Some((why, attempt.report(cx.now)));
        call.waiting = Some(Waiting::after(&attempt, self.quorum, call.request.mode));
        call.contention.split =
            why == FailureReason::Contended && attempt.granting().next().is_some();
        let outrun = core::mem::take(&mut call.contention.seemed_free) || call.contention.split;
        call.contention.missed += u32::from(outrun);
        if why == FailureReason::Contended {
            for key in &*call.request.keys {
                let (_, backoff) = self.keys.with_backoff(key, cx.now);
                backoff.see_rivals(call.pace.round_trip, cx.now);
                if outrun {
                    backoff.see_contention(cx.now);
                }
            }
        }
        let is_gone = call.request.attaches()
            && attempt.is_gone()
            && (call.request.mode == Mode::Exclusive
                || call.history.count >= READER_ATTACHES
                || call.is_to_end(cx.now));
        let is_barred = match &call.request.origin {
            Origin::Detached(from) => {
                self.quorum.is_out_of_reach(self.quorum.nodes() - from.unanswered.len(), 0)
            }
            Origin::Absent | Origin::Taken(_) => false,
        };
        let refused: NodeSet = attempt.refusing().collect();
        let asked = if call.is_to_watch() { attempt.nodes_to_watch() } else { refused };
        let release = attempt.give_up(round, cx.now);
        self.start_release((lock, round), release, cx);
        if is_gone {
            self.refuse(lock, RefusalKind::Gone, cx);
        } else if attempt.is_permission_denied() || is_barred {
            self.refuse(lock, RefusalKind::NoQuorum, cx);
        } else if refused.is_empty() {
            // No node refused, so no reader blocks this call. The call withdraws its intent, which would keep new
            // readers out.
            let call = self.calls.get_mut(&lock);
            if let Some(withdrawal) = call.and_then(|call| call.withdrawal(lock)) {
                self.withdraw(withdrawal, cx);
            }
            self.pause(lock, true, cx);
        } else {
            self.look(lock, asked, false, cx);
        }
    }

    /// Releases the attempt of a call that ends early (step 5; S15, S25).
    pub(super) fn release_attempt(&mut self, lock: LockId, cx: &mut Context<'_>) {
        let Some(call) = self.calls.get(&lock) else {
            return;
        };
        if let Phase::Attempting(attempt) = &call.phase {
            let (round, release) = (call.round, attempt.give_up(call.round, cx.now));
            self.start_release((lock, round), release, cx);
        }
    }

    pub(super) fn for_each_attempt(&mut self, act: impl Fn(&mut Attempt)) {
        for lock in self.calls.keys().collect::<Vec<_>>() {
            if let Some(call) = self.calls.get_mut(&lock)
                && let Phase::Attempting(attempt) = &mut call.phase
            {
                act(attempt);
                Self::index_call(&mut self.deadlines, lock, call);
            }
        }
    }
}

impl Call {
    /// Whether the call inspects the lock instead of attempting: in a gap, or because this process has just released
    /// the lock. If the inspection finds readers, the unused token becomes the value of the call's intent (the key by
    /// which a waiting writer keeps new readers out).
    fn inspects_first(&mut self, quorum: Quorum, token: Token, now: Reading) -> bool {
        let leaves_gap = self.gap_until(now).is_some();
        let looks_first = self.contention.looks_first && self.waiting.is_none();
        let inspects = leaves_gap || looks_first && self.has_time_to_look(now);
        if inspects {
            self.contention.leaves_gap = leaves_gap;
            self.waiting = Some(Waiting::new(quorum, self.request.mode));
            self.history.token.get_or_insert(token);
        }
        inspects
    }

    /// Step 1: the attempt starts at `now`, the current time. The timeout of each node runs from it.
    fn start_attempt(&mut self, quorum: Quorum, paths: &Paths, token: Token, now: Reading) {
        self.contention.skips_gap = false;
        self.history.began = now;
        self.history.count += 1;
        self.round += 1;
        let token = self.history.token.filter(|_| mutant!(TokenReused)).unwrap_or(token);
        self.history.token = Some(token);
        let (entry, timing) = (self.entry(&token, now), self.request.timing);
        let connecting = |node: NodeId| paths.links[node.index()].connecting;
        let round_trip = |node: NodeId| paths.round_trips.to(node);
        let is_connecting = paths.links.iter().any(|link| link.connecting);
        let farthest = (!is_connecting).then(|| paths.round_trips.longest());
        // An `Attempt` is large, so the code below changes it in the call's record instead of moving it again.
        let attempt = Attempt::start(entry, quorum, timing, farthest, round_trip, connecting, now);
        self.phase = Phase::Attempting(attempt);
        if let Phase::Attempting(attempt) = &mut self.phase
            && let Some(counter) = &self.request.fenced
        {
            attempt.seek_fence(counter.clone(), self.history.number_seen);
        }
    }

    /// The entry that the attempt with this token sets on the nodes.
    fn entry(&self, token: &Token, now: Reading) -> Entry {
        let Request { keys, mode, origin, owner, .. } = &self.request;
        let value = match origin {
            // Nodes only compare a nonce, and no person reads it, so it contains no description of the owner.
            Origin::Taken(_) => Value::new(token, ""),
            Origin::Absent | Origin::Detached(_) => {
                let foreign_age = self.contention.foreign_seen.and_then(|at| gap::age(at, now));
                Value::dated(token, owner, now, foreign_age)
            }
        };
        Entry { keys: keys.clone(), mode: *mode, value, origin: origin.clone() }
    }
}
