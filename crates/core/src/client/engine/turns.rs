//! Turns: the order of the callers of this process that request the same keys.
//!
//! One caller, or several readers, has the turn (is active): it talks to the nodes or holds the lock. The other callers
//! wait in the local queues. While another process holds the lock, the active caller waits for it, and the others wait
//! behind that caller. A caller may also pause although the lock is free: because of fixed delays, a large
//! `min_validity`, or too few nodes. It then steps aside for the next caller, and returns to its place in arrival order
//! after the pause. So this process makes at most one attempt for a key at a time, except by readers, and attempts
//! follow each other no faster than those of a single caller.
//!
//! A call for several keys becomes active for all keys at the same time. It steps aside whenever it pauses, because the
//! engine does not know which key is held, and calls for the other keys need not wait.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::call::Intent;
use super::{Call, Context, Engine, Phase};
use crate::client::contention::{KnownOfKey, PastTurn};
use crate::client::key_table::KeyRecord;
use crate::client::local_queue::{LocalQueue, Place};
use crate::ids::{LockId, Ticket};
use crate::keys::{Keys, Mode};
use crate::request::{Request, Wait};
use crate::time::{BootTime, Reading};
use crate::token::Key;

/// Largest number of waiting callers per key that the engine considers when an active caller may step aside. The bound
/// keeps this search short.
const WAITING_MAX: usize = 16;

impl Request {
    pub(super) const fn place(&self, lock: LockId) -> Place {
        Place { lock, mode: self.mode }
    }
}

impl Engine {
    /// Puts a new call, or a call that stepped aside, into the local queue.
    pub(super) fn enter(&mut self, lock: LockId, cx: &mut Context<'_>) {
        let Some(call) = self.calls.get(&lock) else {
            return;
        };
        let request = &call.request;
        if let Some(key) = request.keys.single() {
            let KeyRecord { queue, backoff } = self.keys.record(key);
            if queue.is_empty() {
                *queue = LocalQueue::new(request.place(lock));
                let known = backoff.as_ref().map(|it| it.known(cx.now)).unwrap_or_default();
                return self.begin_turn(lock, None, known, cx.now);
            }
        }
        let keys = request.keys.clone();
        self.join(lock, None, cx.now);
        let is_in_the_way = |key: &Key| self.keys.queue(key).into_iter();
        let active: Vec<LockId> = keys
            .iter()
            .flat_map(is_in_the_way)
            .flat_map(|queue| queue.active().iter().map(|place| place.lock))
            .filter(|other| *other != lock)
            .collect();
        for other in active {
            self.pass_on(other, cx);
        }
    }

    /// Adds a call to the queues of its keys, and makes it active unless another caller blocks it. Its first attempt
    /// begins no earlier than at the time `lent`.
    fn join(&mut self, lock: LockId, lent: Option<BootTime>, now: Reading) {
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        call.phase = Phase::Queued;
        self.local.aside.remove(&lock);
        let (keys, place) = (call.request.keys.clone(), call.request.place(lock));
        Self::index_call(&mut self.deadlines, lock, call);
        for key in &*keys {
            self.keys.record(key).queue.join(place);
        }
        self.advance(&keys, lent, now);
    }

    /// Whether a new call with this request could attempt at once, without waiting for another caller of this process.
    pub(super) fn may_try(&self, request: &Request, now: Reading) -> bool {
        let makes_room = |other: LockId| {
            let phase = self.calls.get(&other).map(|call| &call.phase);
            matches!(phase, Some(Phase::Pausing { lent: Some(from), .. }) if from.has_come(now))
        };
        let queues = request.keys.iter().filter_map(|key| self.keys.queue(key));
        queues.into_iter().all(|queue| !queue.would_wait(request.mode, makes_room))
    }

    /// Whether a caller of this process holds a lock that excludes this request.
    pub(super) fn is_held_here(&self, request: &Request) -> bool {
        let queues = request.keys.iter().filter_map(|key| self.keys.queue(key));
        queues
            .flat_map(LocalQueue::active)
            .any(|place| place.mode.excludes(request.mode) && !self.calls.contains_key(&place.lock))
    }

    /// The time from which a pausing call lets other callers of this process attempt; `None` if it does not.
    fn lends(&self, lock: LockId) -> Option<BootTime> {
        match self.calls.get(&lock)?.phase {
            Phase::Pausing { lent, .. } => lent,
            _ => None,
        }
    }

    /// Lets a pausing call step aside if another caller of this process waits for its keys.
    pub(super) fn pass_on(&mut self, lock: LockId, cx: &mut Context<'_>) {
        if self.lends(lock).is_none() {
            return;
        }
        let Some(keys) = self.calls.get(&lock).map(|call| call.request.keys.clone()) else {
            return;
        };
        for next in self.waiting_for(&keys) {
            if self.make_way(next, cx) {
                return;
            }
        }
    }

    /// For each of these keys, the first waiting callers, at most [`WAITING_MAX`].
    fn waiting_for(&self, keys: &Keys) -> Vec<LockId> {
        let queues = keys.iter().filter_map(|key| self.keys.queue(key));
        queues.flat_map(|queue| queue.waiting().take(WAITING_MAX)).collect()
    }

    /// Lets all callers that block `next` step aside, if all of them pause and let others attempt. `next` takes over
    /// the counts that determine the delay between attempts. Returns whether the callers stepped aside.
    fn make_way(&mut self, next: LockId, cx: &mut Context<'_>) -> bool {
        let Some(Request { keys, mode, .. }) = self.calls.get(&next).map(|call| &call.request)
        else {
            return false;
        };
        let (keys, mode) = (keys.clone(), *mode);
        let queues = keys.iter().filter_map(|key| self.keys.queue(key));
        let active = queues.flat_map(LocalQueue::active);
        if active.clone().any(|place| place.lock == next) {
            return false;
        }
        let in_the_way = active.filter(|place| place.mode.excludes(mode));
        let in_the_way: BTreeSet<LockId> = in_the_way.map(|place| place.lock).collect();
        let lent = in_the_way.iter().map(|lock| self.lends(*lock)).collect::<Option<Vec<_>>>();
        let Some(lent) = lent.and_then(|lent| lent.into_iter().max()) else {
            return false;
        };
        let place_of = |lock: &LockId| {
            let request = &self.calls.get(lock)?.request;
            Some((request.keys.clone(), request.place(*lock)))
        };
        let places: Vec<(Keys, Place)> = in_the_way.iter().filter_map(place_of).collect();
        for (its, place) in &places {
            self.with_queues(its, |queue| queue.leave(place.lock));
        }
        if self.first_ready(&keys).is_none() {
            for (its, place) in &places {
                self.with_queues(its, |queue| queue.activate(*place));
            }
            return false;
        }
        for (_, place) in &places {
            self.step_aside(place.lock, next);
        }
        self.advance(&keys, Some(lent), cx.now);
        for (its, Place { lock, .. }) in &places {
            self.advance(its, Some(lent), cx.now);
            self.local.aside.insert(*lock);
        }
        for (_, Place { lock, .. }) in places {
            if let Some(call) = self.calls.get_mut(&lock) {
                let intent = call.take_intent(lock);
                self.pass_intent_on(intent, cx);
            }
        }
        true
    }

    /// Passes an intent, which keeps new readers out, from a call that stepped aside or ended to the active writers of
    /// these keys. If each writer withdrew its own intent, readers would acquire the lock whenever the active writer
    /// changes, and all writers could starve. The rest of the intent is withdrawn, because readers must not wait for a
    /// writer that waits for callers of its own process.
    pub(super) fn pass_intent_on(
        &mut self,
        intent: Option<(Box<Intent>, Ticket)>,
        cx: &mut Context<'_>,
    ) {
        let Some((mut intent, ticket)) = intent else {
            return;
        };
        if self.closing.has_begun {
            return self.withdraw(intent.withdrawal(ticket), cx);
        }
        self.bring_back(&intent.keys, cx.now);
        let queues = intent.keys.iter().filter_map(|key| self.keys.queue(key));
        let active = queues.flat_map(LocalQueue::active);
        let writers: BTreeSet<LockId> =
            active.filter(|it| it.mode == Mode::Exclusive).map(|it| it.lock).collect();
        for to in writers {
            // A caller that holds the lock already is not a call any more, and needs no intent.
            let Some(call) = self.calls.get_mut(&to) else {
                continue;
            };
            let (part, rest) = intent.split(&call.request.keys);
            if let Some(part) = part {
                let ticket = call.announcement(to);
                let (withdrawal, announcement) = call.take_over(part, ticket, cx.now);
                Self::index_call(&mut self.deadlines, to, call);
                if let Some(withdrawal) = withdrawal {
                    self.send_withdrawal(withdrawal, cx);
                }
                self.announce(to, self.quorum.all(), announcement, cx);
            }
            match rest {
                Some(rest) => intent = rest,
                None => return,
            }
        }
        self.withdraw(intent.withdrawal(ticket), cx);
    }

    /// Makes writers that stepped aside active again, if they request one of these keys and no caller blocks them. They
    /// continue their pause, and step aside again for the next caller.
    fn bring_back(&mut self, wanted: &Keys, now: Reading) {
        for lock in self.local.aside.clone() {
            let Some(Call { request, phase, .. }) = self.calls.get(&lock) else {
                continue;
            };
            let queues = request.keys.iter().filter_map(|key| self.keys.queue(key));
            let mut active = queues.flat_map(LocalQueue::active);
            if let Phase::Aside { until } = *phase
                && request.mode == Mode::Exclusive
                && request.keys.iter().any(|key| wanted.contains(key))
                && active.next().is_none()
            {
                self.join(lock, Some(until), now);
                if let Some(call) = self.calls.get_mut(&lock)
                    && let Phase::Pausing { lent, .. } = &mut call.phase
                {
                    lent.get_or_insert(now.boot());
                }
            }
        }
    }

    fn step_aside(&mut self, lock: LockId, next: LockId) {
        let Some(Call { phase, contention, .. }) = self.calls.get_mut(&lock) else {
            return;
        };
        if let Phase::Pausing { until, .. } = *phase {
            *phase = Phase::Aside { until };
        }
        let (polls, opens) = (contention.polls, contention.opens);
        if let Some(call) = self.calls.get_mut(&next) {
            let contention = &mut call.contention;
            (contention.polls, contention.opens) =
                (contention.polls.max(polls), contention.opens.max(opens));
        }
    }

    /// Removes a caller from the local queues, and makes the next callers active. `turn` is present if the lock was
    /// released on the nodes, and describes the period in which this process held it.
    pub(super) fn leave_queue(
        &mut self,
        keys: &Keys,
        lock: LockId,
        turn: Option<PastTurn>,
        cx: &mut Context<'_>,
    ) {
        for key in &**keys {
            let queue = match turn {
                Some((had, pace)) => {
                    let (queue, backoff) = self.keys.with_backoff(key, cx.now);
                    backoff.give_back(had, pace, cx.now);
                    queue
                }
                None => &mut self.keys.record(key).queue,
            };
            queue.leave(lock);
            // The usual case: one key that no other caller of this process requests.
            if keys.single().is_some() && queue.is_empty() {
                if turn.is_none() {
                    self.keys.forget_unused(key);
                }
                return;
            }
        }
        self.go_on(keys, cx);
    }

    /// Makes waiting callers active after a caller left these keys or became a reader. A caller that becomes active may
    /// have to pause first. It steps aside if it then blocks a caller that waits for another of its keys.
    fn go_on(&mut self, keys: &Keys, cx: &mut Context<'_>) {
        self.advance(keys, None, cx.now);
        let queues = keys.iter().filter_map(|key| self.keys.queue(key));
        let mut active = queues.flat_map(LocalQueue::active);
        let is_lent = active.any(|place| self.lends(place.lock).is_some());
        // Keys and modes of the calls that became active here. Calls that wait behind them must not displace them.
        let mut came: Vec<(Keys, Mode)> = Vec::new();
        for next in self.waiting_for(keys) {
            let Some(call) = self.calls.get(&next) else { continue };
            let (its, mode) = (call.request.keys.clone(), call.request.mode);
            let is_behind = |(keys, of): &(Keys, Mode)| of.excludes(mode) && keys.overlaps(&its);
            if (is_lent || its.single().is_none())
                && !came.iter().any(is_behind)
                && self.make_way(next, cx)
            {
                came.push((its, mode));
            }
        }
    }

    /// Turns a holder from writer to reader in the local queues.
    pub(super) fn downgrade_place(&mut self, keys: &Keys, holder: LockId, cx: &mut Context<'_>) {
        self.with_queues(keys, |queue| queue.downgrade(holder));
        self.go_on(keys, cx);
    }

    pub(super) fn with_queues(&mut self, keys: &Keys, act: impl Fn(&mut LocalQueue)) {
        for key in &**keys {
            if let Some(queue) = self.keys.queue_mut(key) {
                act(queue);
            }
        }
    }

    /// Makes each waiting caller active that no other caller blocks. No attempt begins before the time `lent`.
    fn advance(&mut self, keys: &Keys, lent: Option<BootTime>, now: Reading) {
        while let Some(next) = self.first_ready(keys) {
            let Some(request) = self.calls.get(&next).map(|call| &call.request) else {
                debug_assert!(false, "only calls wait");
                break;
            };
            let (its, place) = (request.keys.clone(), request.place(next));
            self.with_queues(&its, |queue| queue.activate(place));
            self.turn_comes(next, lent, now);
        }
        for key in &**keys {
            self.keys.forget_unused(key);
        }
    }

    /// The first waiting caller of these keys that no other caller blocks at any of its keys.
    fn first_ready(&self, keys: &Keys) -> Option<LockId> {
        let is_ready = |lock: &LockId| {
            let Some(call) = self.calls.get(lock) else { return false };
            let its = &call.request.keys;
            its.single().is_some()
                || its.iter().all(|key| {
                    let queue = self.keys.queue(key);
                    queue.is_some_and(|queue| queue.ready().any(|ready| ready == *lock))
                })
        };
        let queues = keys.iter().filter_map(|key| self.keys.queue(key));
        queues.filter_map(|queue| queue.ready().find(is_ready)).min()
    }

    /// Makes a call active. If this process just had the lock, the call backs off so that other processes come first,
    /// but for at most half of its remaining wait. If many processes wait, the call inspects the lock before it
    /// attempts, as they do. A call with a single attempt does not back off. If another call let this one become
    /// active, `lent` is the time before which the first attempt must not begin.
    fn turn_comes(&mut self, lock: LockId, lent: Option<BootTime>, now: Reading) {
        let Some(call) = self.calls.get(&lock) else {
            return;
        };
        let backoffs = call.request.keys.iter().filter_map(|key| self.keys.backoff(key));
        let known = backoffs.map(|backoff| backoff.known(now)).reduce(KnownOfKey::merge);
        self.begin_turn(lock, lent, known.unwrap_or_default(), now);
    }

    /// Makes a call active as [`Engine::turn_comes`] does, but with a back-off that the caller has looked up.
    fn begin_turn(
        &mut self,
        lock: LockId,
        lent: Option<BootTime>,
        KnownOfKey { resume_at, is_contended, foreign_seen }: KnownOfKey,
        now: Reading,
    ) {
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        call.contention.foreign_seen = foreign_seen;
        let is_in_future = |at: &BootTime| !at.has_come(now);
        let once = call.request.wait == Wait::Once;
        let resume_at = resume_at.filter(|_| !once);
        if resume_at.is_some() {
            call.contention.looks_first = is_contended && call.may_look_first();
        }
        call.phase = match resume_at.max(lent).filter(is_in_future) {
            Some(until) => {
                let until = until.min(now.after(call.patience(now)));
                // With several keys, other callers may attempt during this pause: they may need only one of the keys.
                let lent = call.request.keys.single().is_none().then(|| now.boot());
                Phase::Pausing { until, again: false, lent }
            }
            None => {
                self.local.begins.push_back(lock);
                Phase::Starting
            }
        };
        Self::index_call(&mut self.deadlines, lock, call);
    }
}
