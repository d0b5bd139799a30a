//! Turns: the order of the callers of this process that request the same keys.
//!
//! One caller, or several readers, has the turn (is active): it talks to the nodes or holds the lock. The other callers
//! wait in the local queues. While another process holds the lock, the active caller waits for it, and the others wait
//! behind that caller. A caller may also pause although the lock is free: because of fixed delays, a large
//! `min_validity`, or too few nodes. It then yields its turn to the next caller, and returns to its place in arrival
//! order after the pause. So this process makes at most one attempt for a key at a time, except by readers, and
//! attempts follow each other no faster than those of a single caller.
//!
//! A call for several keys becomes active for all keys at the same time. It yields whenever it pauses, because the
//! engine does not know which key is held, and calls for the other keys need not wait.

use alloc::vec::Vec;

use super::{Context, Engine, Phase};
use crate::client::contention::{KnownOfKey, PastTurn};
use crate::client::key_table::KeyRecord;
use crate::client::local_queue::{LocalQueue, Place};
use crate::ids::LockId;
use crate::keys::{Keys, Mode};
use crate::request::{Request, Wait};
use crate::time::{BootTime, Reading};

/// Largest number of waiting callers per key that the engine considers when an active caller may yield its turn. The
/// bound keeps this search short.
const WAITING_MAX: usize = 16;

impl Request {
    pub(super) const fn place(&self, lock: LockId) -> Place {
        Place { lock, mode: self.mode }
    }
}

impl Engine {
    /// Puts a new call, or a call that yielded its turn, into the local queue.
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
        let active = self.keys.active(&keys).map(|place| place.lock);
        for other in active.filter(|other| *other != lock).collect::<Vec<_>>() {
            self.yield_turn(other, cx);
        }
    }

    /// Adds a call to the queues of its keys, and makes it active unless another caller blocks it. Its first attempt
    /// begins no earlier than at `not_before`.
    pub(super) fn join(&mut self, lock: LockId, not_before: Option<BootTime>, now: Reading) {
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        call.phase = Phase::Queued;
        self.local.yielded.remove(&lock);
        let (keys, place) = (call.request.keys.clone(), call.request.place(lock));
        Self::index_call(&mut self.deadlines, lock, call);
        for key in &*keys {
            self.keys.record(key).queue.join(place);
        }
        self.advance(&keys, not_before, now);
    }

    /// Whether a new call with this request could attempt at once, without waiting for another caller of this process.
    pub(super) fn may_try(&self, request: &Request, now: Reading) -> bool {
        let makes_room = |other: LockId| {
            let phase = self.calls.get(&other).map(|call| &call.phase);
            matches!(phase, Some(Phase::Pausing { yields_from: Some(from), .. }) if from.has_come(now))
        };
        let mut queues = self.keys.queues_of(&request.keys);
        queues.all(|queue| !queue.would_wait(request.mode, makes_room))
    }

    /// Whether a caller of this process holds a lock that excludes this request.
    pub(super) fn is_held_here(&self, request: &Request) -> bool {
        let mut active = self.keys.active(&request.keys);
        active.any(|it| it.mode.excludes(request.mode) && !self.calls.contains_key(&it.lock))
    }

    /// For each of these keys, the first waiting callers, at most [`WAITING_MAX`].
    pub(super) fn waiting_for(&self, keys: &Keys) -> Vec<LockId> {
        self.keys.queues_of(keys).flat_map(|queue| queue.waiting().take(WAITING_MAX)).collect()
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
                    backoff.note_release(had, pace, cx.now);
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
    /// have to pause first. It yields if it then blocks a caller that waits for another of its keys.
    fn go_on(&mut self, keys: &Keys, cx: &mut Context<'_>) {
        self.advance(keys, None, cx.now);
        let yields = self.keys.active(keys).any(|it| self.yields_from(it.lock).is_some());
        // Keys and modes of the calls that became active here. Calls that wait behind them must not displace them.
        let mut came: Vec<(Keys, Mode)> = Vec::new();
        for next in self.waiting_for(keys) {
            let Some(call) = self.calls.get(&next) else { continue };
            let (its, mode) = (call.request.keys.clone(), call.request.mode);
            let is_behind = |(keys, of): &(Keys, Mode)| of.excludes(mode) && keys.overlaps(&its);
            if (yields || its.single().is_none())
                && !came.iter().any(is_behind)
                && self.yield_to(next, cx)
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

    /// Makes each waiting caller active that no other caller blocks. No attempt begins before `not_before`.
    pub(super) fn advance(&mut self, keys: &Keys, not_before: Option<BootTime>, now: Reading) {
        while let Some(next) = self.first_ready(keys) {
            let Some(request) = self.calls.get(&next).map(|call| &call.request) else {
                debug_assert!(false, "only calls wait");
                break;
            };
            let (its, place) = (request.keys.clone(), request.place(next));
            self.with_queues(&its, |queue| queue.activate(place));
            self.turn_comes(next, not_before, now);
        }
        for key in &**keys {
            self.keys.forget_unused(key);
        }
    }

    /// The first waiting caller of these keys that no other caller blocks at any of its keys.
    pub(super) fn first_ready(&self, keys: &Keys) -> Option<LockId> {
        let is_ready = |lock: &LockId| {
            let Some(call) = self.calls.get(lock) else { return false };
            let its = &call.request.keys;
            its.single().is_some()
                || its.iter().all(|key| {
                    let queue = self.keys.queue(key);
                    queue.is_some_and(|queue| queue.ready().any(|ready| ready == *lock))
                })
        };
        self.keys.queues_of(keys).filter_map(|queue| queue.ready().find(is_ready)).min()
    }

    /// Makes a call active. If this process just had the lock, the call backs off so that other processes come first,
    /// but for at most half of its remaining wait. If many processes wait, the call inspects the lock before it
    /// attempts, as they do. A call with a single attempt does not back off. If another call let this one become
    /// active, the first attempt must not begin before `not_before`.
    fn turn_comes(&mut self, lock: LockId, not_before: Option<BootTime>, now: Reading) {
        let Some(call) = self.calls.get(&lock) else {
            return;
        };
        let backoffs = call.request.keys.iter().filter_map(|key| self.keys.backoff(key));
        let known = backoffs.map(|backoff| backoff.known(now)).reduce(KnownOfKey::merge);
        self.begin_turn(lock, not_before, known.unwrap_or_default(), now);
    }

    /// Makes a call active as [`Engine::turn_comes`] does, but with a back-off that the caller has looked up.
    fn begin_turn(
        &mut self,
        lock: LockId,
        not_before: Option<BootTime>,
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
        call.phase = match resume_at.max(not_before).filter(is_in_future) {
            Some(until) => {
                let until = until.min(now.after(call.patience(now)));
                // With several keys, other callers may attempt during this pause: they may need only one of the keys.
                let yields_from = call.request.keys.single().is_none().then(|| now.boot());
                Phase::Pausing { until, again: false, yields_from }
            }
            None => {
                self.local.begins.push_back(lock);
                Phase::Starting
            }
        };
        Self::index_call(&mut self.deadlines, lock, call);
    }
}
