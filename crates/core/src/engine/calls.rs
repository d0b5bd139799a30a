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
//! Whose turn it is among the callers of one process is in `turns.rs`.
//!
//! From `Starting` a call goes to `Looking` if its process has just had the lock and others want it
//! too: it looks before it tries.
//!
//! A call that has to wait asks as many nodes as it takes to tell when the lock changes, and then does
//! nothing until they do, or until the keys expire. What decides when it goes on is in
//! [`crate::wait`]; how those who wait keep out of each other's way, in `courtesy.rs`.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use super::{
    Call, Effect, Engine, Entropy, Link, LockId, Owner, Phase, Refusal, RefusalKind, Request,
    Story, Ticket, Timed, Verb, Wait,
};
use crate::acquire::{Attempt, Decision, NodeSaid, NodeStory, WhyNot, why_not};
use crate::command::{Answer, Command, Holding};
use crate::courtesy::{believed, mix};
use crate::deadlines::Deadlines;
use crate::inspect::Inspection;
use crate::lease::Lease;
use crate::queue::LocalQueue;
use crate::quorum::{NodeId, NodeSet, Quorum};
use crate::retry::{Delay, Retry, after_expiry};
use crate::time::{BootTime, Reading};
use crate::token::{Key, Value};
use crate::vote::Validity;
use crate::wait::Waiting;

impl Engine {
    /// A caller wants a lock: it contends at once, or queues behind others of this process.
    pub(super) fn acquire(
        &mut self,
        lock: LockId,
        request: Request,
        now: Reading,
        out: &mut Vec<Effect>,
    ) {
        let deadline = match request.wait {
            Wait::For(wait) => Some(now.after(wait)),
            Wait::Once | Wait::Forever => None,
        };
        let (key, once) = (request.key.clone(), request.wait == Wait::Once);
        let call = Call {
            request,
            started: now,
            began: now,
            deadline,
            attempts: 0,
            round: 0,
            token: None,
            jitter: 0,
            round_trip: Duration::ZERO,
            phase: Phase::Queued,
            last: None,
            free_in: None,
            waiting: None,
            polls: 0,
            opens: 0,
            split: false,
            woken: false,
            missed: 0,
            draws: 0,
            polite: false,
            is_told: false,
            settles_by: None,
            settling: false,
            number_seen: 0,
        };
        let refused = if self.closing {
            Some(RefusalKind::Closed)
        } else if once && !self.may_try(&key, now) {
            Some(RefusalKind::BusyHere)
        } else {
            None
        };
        if let Some(kind) = refused {
            return out.push(Effect::NotAcquired { lock, refusal: call.refusal(kind, now) });
        }
        let known = self.calls.insert(lock, Timed::new(call));
        assert!(known.is_none(), "a lock id is used once");
        self.enter(lock, now);
    }

    /// The next attempt begins, with a fresh token.
    pub(super) fn begin(
        &mut self,
        lock: LockId,
        now: Reading,
        entropy: &mut dyn Entropy,
        out: &mut Vec<Effect>,
    ) {
        let barred = self.barred(now);
        let Some(timed) = self.calls.get_mut(&lock) else {
            return;
        };
        let call = &mut timed.record;
        if call.phase != Phase::Starting {
            return;
        }
        let (token, jitter) = entropy.draw(lock);
        let round_trip = self.round_trips.latest(self.quorum);
        (call.jitter, call.round_trip) = (jitter, round_trip);
        call.settling = false;
        if !barred.is_empty() && self.quorum.is_out_of_reach(self.quorum.nodes() - barred.len(), 0)
        {
            call.note_unsafe(self.quorum, barred, now);
            return self.await_trust(lock, now, out);
        }
        if call.polite && call.waiting.is_none() && call.has_time_to_look(now) {
            call.waiting = Some(Waiting::new(self.quorum));
            return self.look(lock, self.quorum.all(), true, now, out);
        }
        call.began = now;
        call.attempts += 1;
        call.round += 1;
        let token = call.token.filter(|_| mutant!(TokenReused)).unwrap_or(token);
        call.token = Some(token);
        let timing = call.request.timing;
        let name = (call.request.key.clone(), Value::new(&token, &call.request.owner));
        let nodes = &self.nodes;
        let connecting = |node: NodeId| nodes[node.index()].connecting;
        let timeout = timing.node_timeout(round_trip);
        let mut attempt = Attempt::start(name, self.quorum, timing, timeout, connecting, now);
        if let Some(counter) = &call.request.fenced {
            attempt.seek_fence(counter.clone(), call.number_seen);
        }
        let ticket = Ticket { lock, round: call.round, verb: Verb::Acquire };
        let mut nodes = self.quorum.all();
        for (node, failure) in barred {
            attempt.bar(node, failure);
            nodes.remove(node);
        }
        out.push(Effect::Send { nodes, ticket, command: attempt.command() });
        call.phase = Phase::Attempting(attempt);
        Self::index_call(&mut self.deadlines, lock, timed);
    }

    /// A vote, or the want of one, for an attempt, or for the lease that it has become.
    pub(super) fn vote_for_attempt(
        &mut self,
        node: NodeId,
        sent: Reading,
        ticket: Ticket,
        answer: Answer,
        now: Reading,
        out: &mut Vec<Effect>,
    ) {
        let Some(timed) = self.calls.get_mut(&ticket.lock) else {
            return self.vote_for_lease(node, sent, ticket, &answer, now, out);
        };
        let call = &mut timed.record;
        // An answer to an earlier attempt: its release is queued, the vote is void for ever (S1).
        if call.round != ticket.round && !mutant!(LateGrantBehindRelease) {
            return call.note_number(&answer);
        }
        let Phase::Attempting(attempt) = &mut call.phase else {
            call.note_number(&answer);
            return self.hear_late(ticket.lock, node, answer, now, out);
        };
        // While it waits for others, its deadline is where it was, or later.
        let decision = attempt.handle_answer(node, sent, answer, now);
        self.follow(ticket.lock, decision, now, out);
    }

    /// An answer to an attempt that has failed without it: no vote any more, but the story is to be true.
    fn hear_late(
        &mut self,
        lock: LockId,
        node: NodeId,
        answer: Answer,
        now: Reading,
        out: &mut Vec<Effect>,
    ) {
        let Some(Timed { record: call, .. }) = self.calls.get_mut(&lock) else {
            return;
        };
        call.note_late(self.quorum, node, answer, now);
        if call.has_seen_enough(self.quorum, now) {
            self.looked(lock, now, out);
        }
    }

    /// A number raised, or not, for the attempt under way, or for the lease that it has become.
    pub(super) fn handle_raised(
        &mut self,
        node: NodeId,
        sent: Reading,
        ticket: Ticket,
        answer: Answer,
        now: Reading,
        out: &mut Vec<Effect>,
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
    fn raise(&mut self, lock: LockId, nodes: NodeSet, out: &mut Vec<Effect>) {
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
    fn follow(&mut self, lock: LockId, decision: Decision, now: Reading, out: &mut Vec<Effect>) {
        match decision {
            Decision::Wait => {}
            Decision::Raise(nodes) => self.raise(lock, nodes, out),
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
        let Call { request, phase, token, round, round_trip, jitter, attempts, .. } = call;
        let (Phase::Attempting(attempt), Some(token)) = (phase, token) else {
            unreachable!("only an attempt is decided, and it has a token");
        };
        let fence = attempt.fence();
        let lease = Lease::begin(
            attempt,
            &request,
            validity,
            (lock, token, round),
            (round_trip, jitter),
            now,
        );
        let hold = lease.hold();
        let mut timed = Timed::new(lease);
        Self::index_lease(&mut self.deadlines, lock, &mut timed, now);
        self.leases.insert(lock, timed);
        out.push(Effect::Acquired { lock, token, hold, attempts, turn: 0, fence });
    }

    /// Step 5, and what comes after it: a look at who holds the lock, a pause, or the end.
    fn attempt_failed(&mut self, lock: LockId, why: WhyNot, now: Reading, out: &mut Vec<Effect>) {
        let Some(Timed { record: call, .. }) = self.calls.get_mut(&lock) else {
            return;
        };
        let phase = core::mem::replace(&mut call.phase, Phase::Starting);
        let Phase::Attempting(attempt) = phase else { unreachable!("only an attempt fails") };
        let round = call.round;
        call.number_seen = call.number_seen.max(attempt.seen());
        call.last = Some((why, attempt.story(now)));
        call.waiting = Some(Waiting::after(&attempt, self.quorum));
        call.split = why == WhyNot::Contended && attempt.granting().next().is_some();
        let outrun = core::mem::take(&mut call.woken) || call.split;
        call.missed += u32::from(outrun);
        if why == WhyNot::Contended {
            let manners = self.manners.of(&call.request.key, now);
            manners.see_rivals(call.round_trip, now);
            if outrun {
                manners.see_crowd(now);
            }
        }
        let refused: NodeSet = attempt.refusing().collect();
        let asked = if call.is_to_watch() { attempt.telling() } else { refused };
        let release = attempt.give_up(now).of_attempt(round);
        self.start_release((lock, round), release, out);
        if attempt.lacks_rights() {
            self.refuse(lock, RefusalKind::NoQuorum, now, out);
        } else if refused.is_empty() {
            self.rest(lock, true, now, out);
        } else {
            self.look(lock, asked, false, now, out);
        }
    }

    /// Asks nodes who holds the lock, and for how long; and, if the call is going to wait, to tell
    /// when that changes. That this is of interest is noted before anything is sent: a push may
    /// come before the answer.
    fn look(
        &mut self,
        lock: LockId,
        nodes: NodeSet,
        again: bool,
        now: Reading,
        out: &mut Vec<Effect>,
    ) {
        let Some(timed) = self.calls.get_mut(&lock) else {
            return;
        };
        let call = &mut timed.record;
        // An answer to an earlier look is not one to this.
        call.round += u32::from(again);
        let due = now.after(call.request.timing.node_timeout(call.round_trip));
        let inspection = Inspection::start(self.quorum, nodes, due, now);
        if let Some(waiting) = &mut call.waiting {
            nodes.iter().for_each(|node| waiting.ask(node));
        }
        let ticket = Ticket { lock, round: call.round, verb: Verb::Inspect };
        let key = call.request.key.clone();
        let command =
            if call.is_to_watch() { Command::Watch { key } } else { Command::Inspect { key } };
        out.push(Effect::Send { nodes, ticket, command });
        call.phase = Phase::Looking { inspection, again };
        Self::index_call(&mut self.deadlines, lock, timed);
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
        let Phase::Looking { inspection, .. } = &mut call.phase else {
            return;
        };
        if let Some(waiting) = &mut call.waiting {
            waiting.handle_answer(node, &answer, now);
        }
        inspection.handle_answer(node, answer, now);
        if call.has_seen_enough(self.quorum, now) {
            self.looked(ticket.lock, now, out);
        }
    }

    /// A look is over. One before an attempt decides whether there is to be one.
    fn looked(&mut self, lock: LockId, now: Reading, out: &mut Vec<Effect>) {
        let Some(timed) = self.calls.get_mut(&lock) else {
            return;
        };
        let call = &mut timed.record;
        let Phase::Looking { again, .. } = call.phase else {
            return;
        };
        let first = call.last.is_none();
        call.note_holders(now);
        let closed = call.waiting.as_ref().is_some_and(Waiting::is_closed);
        if !again || closed {
            if closed && call.waiting.as_ref().is_some_and(Waiting::is_held) {
                self.manners.of(&call.request.key, now).see_rivals(call.round_trip, now);
            }
            call.missed += u32::from(again && !first);
            return self.rest(lock, first || !again, now, out);
        }
        if call.is_open() {
            if first {
                // It has been free for a while, perhaps, and others are about to look again.
                return self.draw_slot(lock, now);
            }
            self.manners.of(&call.request.key, now).see_room();
        }
        self.try_now(lock);
    }

    /// The lock has come free: whose slot is the first one tries at once, the others look later
    /// whether it still is.
    fn draw_slot(&mut self, lock: LockId, now: Reading) {
        let Some(timed) = self.calls.get_mut(&lock) else {
            return;
        };
        let call = &mut timed.record;
        let word = call.draw();
        let slot = self.manners.slot(&call.request.key, word, call.missed, now);
        if slot.is_zero() {
            return self.try_now(lock);
        }
        let until = now.after(slot.min(call.patience(now)));
        call.phase = Phase::Pausing { until, again: true, lent: None };
        Self::index_call(&mut self.deadlines, lock, timed);
    }

    /// An attempt is worth making: the lock seems to have come free, or it could not be seen that it
    /// has not.
    fn try_now(&mut self, lock: LockId) {
        let Some(timed) = self.calls.get_mut(&lock) else {
            return;
        };
        timed.record.woken = timed.record.is_open();
        Self::start(&mut self.deadlines, &mut self.begins, lock, timed);
    }

    /// What could be learnt of a lock that was not to be had has been: waits for the next attempt,
    /// or ends. If there is `news`, the caller is told.
    fn rest(&mut self, lock: LockId, news: bool, now: Reading, out: &mut Vec<Effect>) {
        let Some(timed) = self.calls.get_mut(&lock) else {
            return;
        };
        let call = &mut timed.record;
        let is_unsafe = matches!(call.last, Some((WhyNot::Unsafe, _)));
        let may_be_trusted = is_unsafe || call.wants_trust_alone(self.quorum);
        let is_settling =
            call.is_to_end(now) && may_be_trusted && self.settles_by(lock, now).is_some();
        let Some(timed) = self.calls.get_mut(&lock) else {
            return;
        };
        let call = &mut timed.record;
        if is_settling {
            // Nodes are still being looked at, and the call waits for that: what has just failed
            // was no attempt yet of those that it may make.
            call.attempts = call.attempts.saturating_sub(1);
            call.settling = true;
        }
        if is_unsafe || is_settling {
            return self.await_trust(lock, now, out);
        }
        call.note_free_in(now);
        if call.is_to_end(now) {
            call.settle(self.quorum);
            let why = call.last.as_ref().map_or(WhyNot::NoQuorum, |(why, _)| *why);
            return self.refuse(lock, why.into(), now, out);
        }
        let step = self.manners.step(&call.request.key, now).unwrap_or(call.round_trip);
        call.count_pause();
        let pause = call.pause(call.request.retry, step);
        // What is longer than usual is the caller's own wish, and what is not for the lock's being taken
        // may be its own trouble: neither holds the others of this process back.
        let usual = call.pause(Retry::default(), step);
        let is_taken = matches!(call.last, Some((WhyNot::Contended, _)));
        let lent = (!is_taken || usual < pause).then(|| now.after(usual));
        call.phase = Phase::Pausing { until: now.after(pause), again: false, lent };
        if call.request.progress
            && news
            && let Some(story) = call.story(now)
        {
            out.push(Effect::Waiting { lock, story });
        }
        Self::index_call(&mut self.deadlines, lock, timed);
        self.pass_on(lock, now);
    }

    /// A node has pushed that keys have changed (`None`: all of them, or it has a new connection).
    pub(super) fn handle_push(
        &mut self,
        node: NodeId,
        keys: Option<&[Key]>,
        now: Reading,
        out: &mut Vec<Effect>,
    ) {
        let contenders: Vec<LockId> = match keys {
            Some(keys) => keys.iter().filter_map(|key| self.queues.get(key)).collect(),
            None => self.queues.values().collect::<Vec<_>>(),
        }
        .into_iter()
        .map(LocalQueue::active)
        .collect();
        for lock in contenders {
            let Some(Timed { record: call, .. }) = self.calls.get_mut(&lock) else {
                continue;
            };
            let waits = matches!(call.phase, Phase::Looking { .. } | Phase::Pausing { .. });
            let was_open = call.is_open();
            let watches = call.is_to_watch();
            let Some(waiting) = call.waiting.as_mut().filter(|_| waits && watches) else {
                continue;
            };
            let news = match keys {
                Some(_) => waiting.handle_push(node),
                None => waiting.handle_new_epoch(node),
            };
            if news && !was_open {
                self.changed(lock, now, out);
            }
        }
    }

    /// The lock has changed on one node more, and was held as far as was known.
    fn changed(&mut self, lock: LockId, now: Reading, out: &mut Vec<Effect>) {
        let Some(timed) = self.calls.get_mut(&lock) else {
            return;
        };
        let call = &mut timed.record;
        let open = call.is_open();
        let step = believed(call.round_trip);
        let may_open = call.waiting.as_ref().is_some_and(Waiting::may_open);
        match &mut call.phase {
            Phase::Looking { .. } if open => {
                out.push(Effect::Woken { lock });
                self.looked(lock, now, out);
            }
            Phase::Pausing { again: false, .. } if open => {
                out.push(Effect::Woken { lock });
                self.draw_slot(lock, now);
            }
            // The others may not have seen the release yet; but they need not ever tell of it. If too few
            // answer at all, it is some other waiter's short vote, and an attempt would wake that one.
            Phase::Pausing { until, .. } if may_open => {
                let step = if mutant!(WakeAtFirstPush) { Duration::ZERO } else { step };
                *until = (*until).min(now.after(step));
                Self::index_call(&mut self.deadlines, lock, timed);
            }
            _ => {}
        }
    }

    /// The time to look again has come: at as few nodes as will do.
    fn look_again(&mut self, lock: LockId, now: Reading, out: &mut Vec<Effect>) {
        let Some(Timed { record: call, .. }) = self.calls.get_mut(&lock) else {
            return;
        };
        let Some(waiting) = &mut call.waiting else {
            return;
        };
        let nodes = waiting.to_ask();
        waiting.forget();
        self.look(lock, nodes, true, now, out);
    }

    /// Time has passed for a call.
    pub(super) fn call_is_due(&mut self, lock: LockId, now: Reading, out: &mut Vec<Effect>) {
        let Some(timed) = self.calls.get_mut(&lock) else {
            return;
        };
        let call = &mut timed.record;
        if call.is_out_of_time(now) {
            return self.wait_is_over(lock, now, out);
        }
        match &mut call.phase {
            Phase::Attempting(attempt) => {
                let timed_out = |node| out.push(Effect::TimedOut { node });
                match attempt.handle_time(now, timed_out) {
                    Decision::Wait => Self::index_call(&mut self.deadlines, lock, timed),
                    decision => self.follow(lock, decision, now, out),
                }
            }
            Phase::Looking { inspection, .. } => {
                inspection.handle_time(now);
                if inspection.is_over() {
                    if let Some(waiting) = &mut call.waiting {
                        waiting.handle_silence();
                    }
                    self.looked(lock, now, out);
                } else {
                    Self::index_call(&mut self.deadlines, lock, timed);
                }
            }
            Phase::Pausing { until, again, .. } if until.remaining(now).is_zero() => {
                if *again {
                    return self.look_again(lock, now, out);
                }
                Self::start(&mut self.deadlines, &mut self.begins, lock, timed);
            }
            Phase::Aside { until } if until.remaining(now).is_zero() => {
                self.enter(lock, now);
            }
            _ => Self::index_call(&mut self.deadlines, lock, timed),
        }
    }

    /// The caller's patience is at its end, whatever is under way.
    fn wait_is_over(&mut self, lock: LockId, now: Reading, out: &mut Vec<Effect>) {
        let Some(Timed { record: call, .. }) = self.calls.get_mut(&lock) else {
            return;
        };
        match &call.phase {
            // An attempt cut short says less than the one before it, but more than a look.
            Phase::Attempting(attempt) if call.attempts == 1 => {
                let (why, nodes) = (attempt.why_not_yet(), attempt.story(now));
                call.note_cut_short(why, nodes, self.quorum);
            }
            // A look cut short has perhaps seen the holder already.
            Phase::Looking { .. } => {
                call.note_holders(now);
                call.note_free_in(now);
            }
            _ => {}
        }
        call.settle(self.quorum);
        let (key, is_queued) = (call.request.key.clone(), call.phase == Phase::Queued);
        let kind = call.last.as_ref().map(|(why, _)| RefusalKind::from(*why));
        // Of who has had its turn already, and waits for the next one, more is known than that; unless
        // another of this process has got the lock meanwhile.
        let kind = match kind {
            Some(kind) if !is_queued || !self.is_held_here(&key) => kind,
            None if !is_queued => RefusalKind::NoQuorum,
            _ => RefusalKind::BusyHere,
        };
        self.abandon(lock, kind, now, out);
    }

    /// The caller has gone.
    pub(super) fn cancel(&mut self, lock: LockId, now: Reading, out: &mut Vec<Effect>) {
        self.inspections.remove(&lock);
        self.release_attempt(lock, now, out);
        if let Some(call) = self.take_call(lock) {
            self.leave_queue(call.request.key, lock, now);
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

    pub(super) fn refuse(
        &mut self,
        lock: LockId,
        kind: RefusalKind,
        now: Reading,
        out: &mut Vec<Effect>,
    ) {
        let Some(mut call) = self.take_call(lock) else {
            return;
        };
        if kind == RefusalKind::NoQuorum {
            call.free_in = call.free_in.or_else(|| self.quorum_in(&call, now));
        }
        out.push(Effect::NotAcquired { lock, refusal: call.refusal(kind, now) });
        self.leave_queue(call.request.key, lock, now);
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
        let nodes = self.quorum.all();
        let inspection = Inspection::start(self.quorum, nodes, now.after(timeout), now);
        let ticket = Ticket { lock, round: 0, verb: Verb::Inspect };
        out.push(Effect::Send { nodes, ticket, command: Command::Inspect { key } });
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
        self.deadlines.put(Owner::Inspection(lock), wake, deadline);
        if over {
            out.push(Effect::Inspected { lock, nodes: record.story(now) });
            self.inspections.remove(&lock);
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

    pub(super) fn take_call(&mut self, lock: LockId) -> Option<Call> {
        self.calls.remove(&lock).map(|timed| timed.record)
    }

    /// The next attempt is due.
    fn start(
        deadlines: &mut Deadlines,
        begins: &mut VecDeque<LockId>,
        lock: LockId,
        timed: &mut Timed<Call>,
    ) {
        timed.record.phase = Phase::Starting;
        begins.push_back(lock);
        Self::index_call(deadlines, lock, timed);
    }

    pub(super) fn index_call(
        deadlines: &mut Deadlines,
        lock: LockId,
        Timed { record: call, wake }: &mut Timed<Call>,
    ) {
        deadlines.put(Owner::Call(lock), wake, call.due());
    }
}

impl Call {
    /// When time next changes something.
    fn due(&self) -> Option<BootTime> {
        let phase = match &self.phase {
            Phase::Queued | Phase::Starting => None,
            Phase::Attempting(attempt) => attempt.deadline(),
            Phase::Looking { inspection, .. } => Some(inspection.deadline()),
            Phase::Pausing { until, .. } | Phase::Aside { until } => Some(*until),
        };
        [phase, self.deadline].into_iter().flatten().min()
    }

    /// There is to be no further attempt.
    pub(super) fn is_to_end(&self, now: Reading) -> bool {
        self.request.wait == Wait::Once || self.is_spent() || self.is_out_of_time(now)
    }

    /// The caller's patience is at its end by then.
    pub(super) fn is_over_by(&self, then: BootTime) -> bool {
        self.deadline.is_some_and(|at| at < then)
    }

    /// The caller's patience is at its end.
    fn is_out_of_time(&self, now: Reading) -> bool {
        self.deadline.is_some_and(|at| at.remaining(now).is_zero())
    }

    /// For how long at most to let others go first: half of what is left of the wait.
    pub(super) fn patience(&self, now: Reading) -> Duration {
        self.deadline.map_or(Duration::MAX, |at| at.remaining(now) / 2)
    }

    /// Whether this call may look before its first attempt. Who has chosen fixed delays wants them
    /// whatever the nodes say; and who makes one attempt alone does not want to wait for it.
    pub(super) fn may_look_first(&self) -> bool {
        self.is_to_watch() && self.request.retry.attempts_max != Some(1)
    }

    /// Whether there is time to look, to let others go first, to look again, and then to try: half of
    /// what is left is given to the others, and three round trips must fit into the rest.
    fn has_time_to_look(&self, now: Reading) -> bool {
        3 * believed(self.round_trip) <= self.patience(now)
    }

    /// Whether the nodes are to tell when the lock changes.
    fn is_to_watch(&self) -> bool {
        let adaptive = matches!(self.request.retry.delay, Delay::Adaptive { .. });
        adaptive && self.request.wait != Wait::Once && !self.is_spent()
    }

    /// Notes what number a node has told, too late for its attempt.
    fn note_number(&mut self, answer: &Answer) {
        if let Answer::GrantedFenced { fence } | Answer::RefusedFenced { fence, .. } = answer {
            self.number_seen = self.number_seen.max(*fence);
        }
    }

    /// There were as many attempts as there may be.
    fn is_spent(&self) -> bool {
        self.request.retry.attempts_max.is_some_and(|max| self.attempts >= max)
    }

    fn is_open(&self) -> bool {
        self.waiting.as_ref().is_some_and(Waiting::is_open)
    }

    /// A look is over when all have answered; one for a call that waits, as soon as it seems that
    /// the lock is to be had. One that is the last of its call also waits for the answers to the attempt
    /// that tell whether the lock is held, or too few nodes are up.
    fn has_seen_enough(&self, quorum: Quorum, now: Reading) -> bool {
        match &self.phase {
            Phase::Looking { inspection, .. } => {
                inspection.is_over() && !(self.is_to_end(now) && self.is_ambiguous(quorum))
                    || self.is_to_watch() && self.is_open()
            }
            _ => false,
        }
    }

    /// Why the last attempt failed depends on nodes that have not answered yet.
    fn is_ambiguous(&self, quorum: Quorum) -> bool {
        let Some((WhyNot::Contended, nodes)) = &self.last else { return false };
        self.attempts > 0 && why_not(quorum, nodes, 0) != WhyNot::Contended
    }

    /// The call ends: a node that has not answered by now has failed.
    fn settle(&mut self, quorum: Quorum) {
        if self.attempts > 0
            && let Some((why @ (WhyNot::Contended | WhyNot::NoQuorum), nodes)) = &mut self.last
        {
            *why = why_not(quorum, nodes, 0);
        }
    }

    /// Notes what a node has answered after the last attempt had failed without it.
    fn note_late(&mut self, quorum: Quorum, node: NodeId, answer: Answer, now: Reading) {
        let Some((why @ (WhyNot::Contended | WhyNot::NoQuorum), nodes)) = &mut self.last else {
            return;
        };
        let story = &mut nodes[node.index()];
        if self.attempts == 0 || story.said != NodeSaid::Nothing {
            return;
        }
        story.said = match answer {
            Answer::Granted | Answer::GrantedFenced { .. } => NodeSaid::Granted,
            Answer::Refused => NodeSaid::Refused(None),
            Answer::RefusedFenced { holding, .. } => NodeSaid::Refused(Some(*holding)),
            Answer::Failed(failure) => NodeSaid::Failed(failure),
            _ => return,
        };
        story.took = now.elapsed_since(self.began);
        let open = nodes.iter().filter(|node| node.said == NodeSaid::Nothing).count();
        *why = why_not(quorum, nodes, open);
    }

    /// Writes into the story of the last attempt whom the nodes have been seen to hold the lock for.
    /// Where there was no attempt yet, what was seen is the story.
    fn note_holders(&mut self, now: Reading) {
        let Phase::Looking { inspection, .. } = &self.phase else {
            return;
        };
        if self.attempts == 0 {
            let mut nodes: Vec<_> =
                inspection.story(now).into_iter().map(NodeStory::seen_as_refusal).collect();
            // Who was not asked this time stands by what it said before.
            for (node, before) in
                nodes.iter_mut().zip(self.last.take().into_iter().flat_map(|(_, nodes)| nodes))
            {
                if node.said == NodeSaid::NotAsked {
                    *node = before;
                }
            }
            // Others hold it, or have their turn first; but as with an attempt (S26), not if too few
            // nodes have answered for a quorum.
            let told =
                |node: &&NodeStory| matches!(node.said, NodeSaid::Seen(_) | NodeSaid::Refused(_));
            let enough = inspection.quorum().is_reached(nodes.iter().filter(told).count());
            let why = if enough { WhyNot::Contended } else { WhyNot::NoQuorum };
            self.last = Some((why, nodes));
            return;
        }
        let Some((_, nodes)) = &mut self.last else {
            return;
        };
        for node in inspection.asked() {
            let Some(seen) = inspection.seen(node) else { continue };
            match &mut nodes[node.index()].said {
                NodeSaid::Refused(holding) => *holding = Some(seen.clone()),
                // It had not answered in time; it does now.
                said @ NodeSaid::Nothing if *seen == Holding::Free => {
                    *said = NodeSaid::Seen(Holding::Free);
                }
                said @ NodeSaid::Nothing => *said = NodeSaid::Refused(Some(seen.clone())),
                _ => {}
            }
        }
    }

    /// Notes what the first attempt had heard when it was cut short. Who had not answered stands by what it
    /// said in a look before, if that tells who has the lock.
    fn note_cut_short(&mut self, why: WhyNot, nodes: Vec<NodeStory>, quorum: Quorum) {
        if let Some((_, before)) = self.last.take() {
            let pairs = nodes.iter().cloned().zip(before);
            let merged: Vec<NodeStory> = pairs
                .map(|(cut, before)| if cut.said == NodeSaid::Nothing { before } else { cut })
                .collect();
            if why_not(quorum, &merged, 0) == WhyNot::Contended {
                self.last = Some((WhyNot::Contended, merged));
                return;
            }
        }
        self.last = Some((why, nodes));
    }

    /// Notes in what time a quorum may be free by expiry alone, as far as is known.
    fn note_free_in(&mut self, now: Reading) {
        self.free_in = self.waiting.as_ref().and_then(|waiting| waiting.free_in(now));
    }

    /// Counts a pause that begins now, with what is known by now: how often in a row the lock seemed to be
    /// free and was not, and how often it could not be told when it will be.
    fn count_pause(&mut self) {
        let watches = self.is_to_watch();
        if watches && self.is_open() {
            (self.polls, self.opens) = (0, self.opens + 1);
            return;
        }
        if watches {
            self.opens = 0;
        }
        match (self.is_watched(), self.free_in) {
            (true, Some(_)) => self.polls = 0,
            (true, None) => {}
            (false, _) => self.polls += 1,
        }
    }

    /// For how long to wait by these rules. Who contends for a free lock again counts in the same `step` as
    /// the others.
    fn pause(&self, retry: Retry, step: Duration) -> Duration {
        let (round_trip, word) = (self.round_trip, self.jitter);
        if self.is_to_watch() && self.is_open() {
            // Given back while we asked: at once. But if votes are split, or others are faster time
            // and again, only jitter helps.
            return match self.opens {
                1 if !self.split => Duration::ZERO,
                opens => retry.delay(opens, word, step.min(round_trip), None),
            };
        }
        let watched = self.is_watched();
        match (self.free_in, retry.delay) {
            (Some(_), _) if watched && mutant!(WaitersTrustPush) => Duration::from_secs(3600),
            (Some(free_in), _) if watched => free_in + after_expiry(word),
            // Held for ever, by something foreign: who knows whether it ever tells.
            (None, Delay::Adaptive { ceiling }) if watched => ceiling,
            _ => retry.delay(self.polls, word, round_trip, self.free_in),
        }
    }

    /// So many nodes will tell that a release cannot go unnoticed.
    fn is_watched(&self) -> bool {
        self.is_to_watch() && self.waiting.as_ref().is_some_and(Waiting::is_watched)
    }

    /// A random word, a different one each time.
    fn draw(&mut self) -> u64 {
        self.draws += 1;
        mix(self.jitter, self.draws)
    }

    pub(super) fn story(&self, now: Reading) -> Option<Story> {
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
            WhyNot::Unsafe => Self::Unsafe,
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
