//! Calls: from the wish for a lock to the grant or the refusal.
//!
//! ```text
//!   Queued ─► Starting ─► Attempting ─┬─► (lease)
//!                ▲                    ├─► Looking ─► Pausing ─┐
//!                └────────────────────┴───────────────────────┘
//! ```

use alloc::vec::Vec;
use core::time::Duration;

use super::{
    Call, Effect, Engine, Link, LockId, Owner, Phase, Refusal, RefusalKind, Request, Story, Ticket,
    Timed, Verb, Wait, send,
};
use crate::acquire::{Attempt, Decision, NodeSaid, WhyNot};
use crate::command::{Answer, Command};
use crate::inspect::Inspection;
use crate::lease::Lease;
use crate::queue::LocalQueue;
use crate::quorum::NodeId;
use crate::retry::quorum_free_in;
use crate::time::Reading;
use crate::token::{Key, Token, Value};
use crate::vote::Validity;

impl Engine {
    /// A caller wants a lock: it contends at once, or queues behind others of this process.
    pub(super) fn acquire(
        &mut self,
        lock: LockId,
        request: Request,
        now: Reading,
        out: &mut Vec<Effect>,
    ) {
        assert!(!self.calls.contains_key(&lock), "a lock id is used once");
        let key = request.key.clone();
        let deadline = match request.wait {
            Wait::For(wait) => Some(now.after(wait)),
            Wait::Once | Wait::Forever => None,
        };
        let once = request.wait == Wait::Once;
        let mut call = Call {
            request,
            started: now,
            deadline,
            attempts: 0,
            round: 0,
            token: None,
            jitter: 0,
            round_trip: Duration::ZERO,
            phase: Phase::Queued,
            last: None,
            free_in: None,
        };
        let refused = match self.queues.get_mut(&key) {
            _ if self.closing => Some(RefusalKind::Closed),
            Some(_) if once => Some(RefusalKind::BusyHere),
            Some(queue) => {
                queue.join(lock);
                None
            }
            None => {
                self.queues.insert(key, LocalQueue::new(lock));
                call.phase = Phase::Starting;
                out.push(Effect::Begin { lock });
                None
            }
        };
        match refused {
            Some(kind) => out.push(Effect::NotAcquired { lock, refusal: call.refusal(kind, now) }),
            None => {
                self.calls.insert(lock, Timed::new(call));
                self.index_call(lock);
            }
        }
    }

    /// The next attempt begins, with a fresh token.
    pub(super) fn begin(
        &mut self,
        lock: LockId,
        (token, jitter, round_trip): (Token, u64, Duration),
        now: Reading,
        out: &mut Vec<Effect>,
    ) {
        let Some(Timed { record: call, .. }) = self.calls.get_mut(&lock) else {
            return;
        };
        if call.phase != Phase::Starting {
            return;
        }
        call.attempts += 1;
        call.round += 1;
        call.token = Some(token);
        call.jitter = jitter;
        call.round_trip = round_trip;
        let timing = call.request.timing;
        let name = (call.request.key.clone(), Value::new(&token, &call.request.owner));
        let nodes = &self.nodes;
        let connecting = |node: NodeId| nodes[node.index()].connecting;
        let timeout = timing.node_timeout(round_trip);
        let attempt = Attempt::start(name, self.quorum, timing, timeout, connecting, now);
        let ticket = Ticket { lock, round: call.round, verb: Verb::Acquire };
        for node in self.quorum.node_ids() {
            send(out, node, ticket, attempt.command());
        }
        call.phase = Phase::Attempting(attempt);
        self.index_call(lock);
    }

    /// A vote, or the want of one, for an attempt.
    pub(super) fn vote_for_attempt(
        &mut self,
        node: NodeId,
        sent: Reading,
        ticket: Ticket,
        answer: Answer,
        now: Reading,
        out: &mut Vec<Effect>,
    ) {
        let Some(Timed { record: call, .. }) = self.calls.get_mut(&ticket.lock) else {
            return;
        };
        // An answer to an earlier attempt: its release is queued, the vote is void for ever (S1).
        if call.round != ticket.round {
            return;
        }
        let Phase::Attempting(attempt) = &mut call.phase else {
            return;
        };
        let decision = attempt.handle_answer(node, sent, answer, now);
        self.follow(ticket.lock, decision, now, out);
    }

    /// Does what an attempt's decision demands.
    fn follow(&mut self, lock: LockId, decision: Decision, now: Reading, out: &mut Vec<Effect>) {
        match decision {
            Decision::Wait => self.index_call(lock),
            Decision::Acquired(validity) => self.begin_lease(lock, validity, now, out),
            Decision::GiveUp(why) => self.attempt_failed(lock, why, now, out),
        }
    }

    fn begin_lease(
        &mut self,
        lock: LockId,
        validity: Validity,
        now: Reading,
        out: &mut Vec<Effect>,
    ) {
        let Some(call) = self.take_call(lock) else {
            return;
        };
        let (Phase::Attempting(attempt), Some(token)) = (&call.phase, call.token) else {
            unreachable!("only an attempt is decided, and it has a token");
        };
        let timing = call.request.timing;
        let lease = Lease::begin(
            attempt,
            validity.clone(),
            (self.quorum, timing, timing.node_timeout(call.round_trip)),
            call.round,
            (call.request.automatic, call.request.max_hold),
            now,
        );
        self.leases.insert(lock, Timed::new(lease));
        self.index_lease(lock, now);
        out.push(Effect::Acquired { lock, token, validity, attempts: call.attempts });
    }

    /// Step 5, and what comes after it: a look at who holds the lock, a pause, or the end.
    fn attempt_failed(&mut self, lock: LockId, why: WhyNot, now: Reading, out: &mut Vec<Effect>) {
        let Some(Timed { record: call, .. }) = self.calls.get_mut(&lock) else {
            return;
        };
        let phase = core::mem::replace(&mut call.phase, Phase::Starting);
        let Phase::Attempting(attempt) = phase else { unreachable!("only an attempt fails") };
        let round = call.round;
        call.last = Some((why, attempt.story(now)));
        let hopeless = attempt.lacks_rights();
        let release = attempt.give_up(now).of_attempt(round);
        self.start_release((lock, round), release, out);
        if hopeless {
            self.refuse(lock, RefusalKind::NoQuorum, now, out);
        } else if attempt.refusing().next().is_some() {
            self.look(lock, &attempt, now, out);
        } else {
            self.pause(lock, now, out);
        }
    }

    /// Asks the nodes that refused who holds the lock, and for how long.
    fn look(&mut self, lock: LockId, attempt: &Attempt, now: Reading, out: &mut Vec<Effect>) {
        let Some(Timed { record: call, .. }) = self.calls.get_mut(&lock) else {
            return;
        };
        let due = now.after(call.request.timing.node_timeout(call.round_trip));
        let refusing: Vec<NodeId> = attempt.refusing().collect();
        let inspection = Inspection::start(self.quorum, |node| refusing.contains(&node), due, now);
        let ticket = Ticket { lock, round: call.round, verb: Verb::Inspect };
        for node in refusing {
            send(out, node, ticket, Command::Inspect { key: call.request.key.clone() });
        }
        call.phase = Phase::Looking(inspection);
        self.index_call(lock);
    }

    /// What a node holds, for a call or for an inspection of its own.
    pub(super) fn handle_seen(
        &mut self,
        node: NodeId,
        ticket: Ticket,
        answer: Answer,
        now: Reading,
        out: &mut Vec<Effect>,
    ) {
        if let Some(Timed { record, .. }) = self.inspections.get_mut(&ticket.lock) {
            record.handle_answer(node, answer, now);
            return self.review_inspection(ticket.lock, now, out);
        }
        let Some(Timed { record: call, .. }) = self.calls.get_mut(&ticket.lock) else {
            return;
        };
        if call.round != ticket.round {
            return;
        }
        let Phase::Looking(inspection) = &mut call.phase else {
            return;
        };
        inspection.handle_answer(node, answer, now);
        if inspection.is_over() {
            self.pause(ticket.lock, now, out);
        }
    }

    /// An attempt has failed, and what could be learnt has been: waits for the next, or ends.
    fn pause(&mut self, lock: LockId, now: Reading, out: &mut Vec<Effect>) {
        let Some(Timed { record: call, .. }) = self.calls.get_mut(&lock) else {
            return;
        };
        call.free_in = call.conclude_look(self.quorum, now);
        let spent = call.request.retry.attempts_max.is_some_and(|max| call.attempts >= max);
        let timed_out = call.deadline.is_some_and(|at| at.remaining(now).is_zero());
        if call.request.wait == Wait::Once || spent || timed_out {
            let why = call.last.as_ref().map_or(WhyNot::NoQuorum, |(why, _)| *why);
            return self.refuse(lock, why.into(), now, out);
        }
        let retry = call.request.retry;
        let delay = retry.delay(call.attempts, call.jitter, call.round_trip, call.free_in);
        call.phase = Phase::Pausing { until: now.after(delay) };
        if call.request.progress
            && let Some(story) = call.story(now)
        {
            out.push(Effect::Waiting { lock, story });
        }
        self.index_call(lock);
    }

    /// Time has passed for a call.
    pub(super) fn call_is_due(&mut self, lock: LockId, now: Reading, out: &mut Vec<Effect>) {
        let Some(Timed { record: call, .. }) = self.calls.get_mut(&lock) else {
            return;
        };
        if call.deadline.is_some_and(|at| at.remaining(now).is_zero()) {
            return self.wait_is_over(lock, now, out);
        }
        match &mut call.phase {
            Phase::Attempting(attempt) => {
                let timed_out = |node| out.push(Effect::TimedOut { node });
                let decision = attempt.handle_time(now, timed_out);
                self.follow(lock, decision, now, out);
            }
            Phase::Looking(inspection) => {
                inspection.handle_time(now);
                if inspection.is_over() {
                    self.pause(lock, now, out);
                } else {
                    self.index_call(lock);
                }
            }
            Phase::Pausing { until } if until.remaining(now).is_zero() => {
                call.phase = Phase::Starting;
                out.push(Effect::Begin { lock });
                self.index_call(lock);
            }
            _ => self.index_call(lock),
        }
    }

    /// The caller's patience is at its end, whatever is under way.
    fn wait_is_over(&mut self, lock: LockId, now: Reading, out: &mut Vec<Effect>) {
        let quorum = self.quorum;
        let Some(Timed { record: call, .. }) = self.calls.get_mut(&lock) else {
            return;
        };
        match &call.phase {
            // An attempt cut short says less than the one before it.
            Phase::Attempting(attempt) if call.last.is_none() => {
                call.last = Some((attempt.why_not_yet(), attempt.story(now)));
            }
            // A look cut short has perhaps seen the holder already.
            Phase::Looking(_) => call.free_in = call.conclude_look(quorum, now),
            _ => {}
        }
        let kind = match &call.last {
            _ if call.phase == Phase::Queued => RefusalKind::BusyHere,
            Some((why, _)) => (*why).into(),
            None => RefusalKind::NoQuorum,
        };
        self.abandon(lock, kind, now, out);
    }

    /// The caller has gone.
    pub(super) fn cancel(&mut self, lock: LockId, now: Reading, out: &mut Vec<Effect>) {
        self.inspections
            .remove(&lock)
            .and_then(|timed| timed.wake)
            .map(|at| self.deadlines.remove(&(at, Owner::Inspection(lock))));
        self.release_attempt(lock, now, out);
        if let Some(call) = self.take_call(lock) {
            self.leave_queue(&call.request.key, lock, out);
        }
    }

    /// Ends a call from outside, releasing what an attempt under way may have got.
    pub(super) fn abandon(
        &mut self,
        lock: LockId,
        kind: RefusalKind,
        now: Reading,
        out: &mut Vec<Effect>,
    ) {
        self.release_attempt(lock, now, out);
        self.refuse(lock, kind, now, out);
    }

    /// Step 5 for an attempt that is cut short (S15, S25).
    fn release_attempt(&mut self, lock: LockId, now: Reading, out: &mut Vec<Effect>) {
        let Some(Timed { record: call, .. }) = self.calls.get(&lock) else {
            return;
        };
        if let Phase::Attempting(attempt) = &call.phase {
            let (round, release) = (call.round, attempt.give_up(now).of_attempt(call.round));
            self.start_release((lock, round), release, out);
        }
    }

    fn refuse(&mut self, lock: LockId, kind: RefusalKind, now: Reading, out: &mut Vec<Effect>) {
        let Some(call) = self.take_call(lock) else {
            return;
        };
        out.push(Effect::NotAcquired { lock, refusal: call.refusal(kind, now) });
        self.leave_queue(&call.request.key, lock, out);
    }

    /// Leaves the local queue; if it was this one's turn, the next one's has come.
    pub(super) fn leave_queue(&mut self, key: &Key, lock: LockId, out: &mut Vec<Effect>) {
        let Some(queue) = self.queues.get_mut(key) else {
            return;
        };
        if queue.active() != lock {
            return queue.leave(lock);
        }
        match queue.advance() {
            Some(next) => {
                if let Some(Timed { record: call, .. }) = self.calls.get_mut(&next) {
                    call.phase = Phase::Starting;
                }
                out.push(Effect::Begin { lock: next });
                self.index_call(next);
            }
            None => {
                self.queues.remove(key);
            }
        }
    }

    /// Starts an inspection that stands for itself.
    pub(super) fn inspect(
        &mut self,
        lock: LockId,
        key: Key,
        timeout: Duration,
        now: Reading,
        out: &mut Vec<Effect>,
    ) {
        let inspection = Inspection::start(self.quorum, |_| true, now.after(timeout), now);
        let ticket = Ticket { lock, round: 0, verb: Verb::Inspect };
        for node in self.quorum.node_ids() {
            send(out, node, ticket, Command::Inspect { key: key.clone() });
        }
        self.inspections.insert(lock, Timed::new(inspection));
        self.review_inspection(lock, now, out);
    }

    /// Time has passed for an inspection.
    pub(super) fn inspection_is_due(&mut self, lock: LockId, now: Reading, out: &mut Vec<Effect>) {
        if let Some(Timed { record, .. }) = self.inspections.get_mut(&lock) {
            record.handle_time(now);
        }
        self.review_inspection(lock, now, out);
    }

    fn review_inspection(&mut self, lock: LockId, now: Reading, out: &mut Vec<Effect>) {
        let Some(Timed { record, wake }) = self.inspections.get_mut(&lock) else {
            return;
        };
        let over = record.is_over();
        let deadline = (!over).then(|| record.deadline());
        Self::index(&mut self.deadlines, Owner::Inspection(lock), wake, deadline);
        if over {
            out.push(Effect::Inspected { lock, nodes: record.story(now) });
            self.inspections.remove(&lock);
        }
    }

    pub(super) fn for_each_attempt(&mut self, act: impl Fn(&mut Attempt)) {
        let locks: Vec<LockId> = self.calls.keys().copied().collect();
        for lock in locks {
            if let Some(Timed { record: call, .. }) = self.calls.get_mut(&lock)
                && let Phase::Attempting(attempt) = &mut call.phase
            {
                act(attempt);
                self.index_call(lock);
            }
        }
    }

    fn take_call(&mut self, lock: LockId) -> Option<Call> {
        let timed = self.calls.remove(&lock)?;
        if let Some(at) = timed.wake {
            self.deadlines.remove(&(at, Owner::Call(lock)));
        }
        Some(timed.record)
    }

    fn index_call(&mut self, lock: LockId) {
        let Some(Timed { record: call, wake }) = self.calls.get_mut(&lock) else {
            return;
        };
        let phase = match &call.phase {
            Phase::Queued | Phase::Starting => None,
            Phase::Attempting(attempt) => attempt.deadline(),
            Phase::Looking(inspection) => Some(inspection.deadline()),
            Phase::Pausing { until } => Some(*until),
        };
        let deadline = [phase, call.deadline].into_iter().flatten().min();
        Self::index(&mut self.deadlines, Owner::Call(lock), wake, deadline);
    }
}

impl Call {
    /// Ends the look at the holders and tells when a quorum may be free by expiry alone.
    fn conclude_look(&mut self, quorum: crate::quorum::Quorum, now: Reading) -> Option<Duration> {
        let inspection = match &self.phase {
            Phase::Looking(inspection) => Some(inspection),
            _ => None,
        };
        let (_, nodes) = self.last.as_mut()?;
        for (node, story) in quorum.node_ids().zip(nodes.iter_mut()) {
            if let NodeSaid::Refused(holding) = &mut story.said {
                *holding = inspection.and_then(|inspection| inspection.seen(node)).cloned();
            }
        }
        let free_in = quorum.node_ids().zip(nodes.iter()).map(|(node, story)| match story.said {
            NodeSaid::Granted => Some(Duration::ZERO),
            NodeSaid::Refused(_) => inspection?.free_in(node, now),
            _ => None,
        });
        quorum_free_in(free_in, quorum)
    }

    fn story(&self, now: Reading) -> Option<Story> {
        let (why, nodes) = self.last.as_ref()?;
        let elapsed = now.elapsed_since(self.started);
        Some(Story { why: *why, attempts: self.attempts, elapsed, nodes: nodes.clone() })
    }

    fn refusal(&self, kind: RefusalKind, now: Reading) -> Refusal {
        Refusal {
            kind,
            attempts: self.attempts,
            elapsed: now.elapsed_since(self.started),
            nodes: self.last.as_ref().map(|(_, nodes)| nodes.clone()).unwrap_or_default(),
            retry_after: self.free_in,
        }
    }
}

impl From<WhyNot> for RefusalKind {
    fn from(why: WhyNot) -> Self {
        match why {
            WhyNot::Contended => Self::Contended,
            WhyNot::NoQuorum => Self::NoQuorum,
            WhyNot::TooSlow => Self::TooSlow,
        }
    }
}

impl Link {
    /// The delay before owed releases are sent again: doubling, up to a second.
    pub(super) fn next_delay(&mut self) -> Duration {
        let delay = Duration::from_millis(50).saturating_mul(1 << self.failures.min(5));
        self.failures = self.failures.saturating_add(1).min(5);
        delay.min(Duration::from_secs(1))
    }
}
