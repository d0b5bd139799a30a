//! Whose turn it is among the callers of this process that want the same keys.
//!
//! One has the turn, or several readers: it talks to the nodes, or holds the lock; the others are queued. While the
//! lock is taken, the one whose turn it is waits for it, and they behind it. A caller may also pause for
//! reasons of its own: a delay of its own choice, too little validity for its wishes, too few nodes
//! for its times. It then steps aside as soon as another may try. It comes back to its place in the
//! order of arrival when its pause is over. So there is never more than one attempt of this process
//! for one key at a time, except by readers. All attempts together follow each other no faster than those of one
//! caller would.
//!
//! A lock with several keys has its turn for all of them at one moment. It steps aside whenever it pauses. It is not known
//! at which of its keys another is in the way, and a call that wants only the other keys need not wait.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::collections::btree_map::Entry;
use alloc::vec::Vec;

use super::call::Intent;
use super::{Call, Context, Engine, Phase};
use crate::client::local_queue::{LocalQueue, Place};
use crate::ids::{LockId, Ticket};
use crate::keys::{Keys, Mode};
use crate::request::{Request, Wait};
use crate::time::{BootTime, Reading};
use crate::token::Key;

/// No more of those that wait for a key are looked at, to find one that others would step aside for.
const WAITING_MAX: usize = 16;

impl Request {
    pub(super) const fn place(&self, lock: LockId) -> Place {
        Place { lock, mode: self.mode }
    }
}

impl Engine {
    /// A call wants its turn, for the first time or after it stepped aside.
    pub(super) fn enter(&mut self, lock: LockId, cx: &mut Context<'_>) {
        let Some(call) = self.calls.get(&lock) else {
            return;
        };
        let request = &call.request;
        if let Some(key) = request.keys.single()
            && let Entry::Vacant(queue) = self.local.queues.entry(key.clone())
        {
            queue.insert(LocalQueue::new(request.place(lock)));
            return self.turn_comes(lock, None, cx.now);
        }
        let keys = request.keys.clone();
        self.join(lock, None, cx.now);
        let is_in_the_way = |key: &Key| self.local.queues.get(key).into_iter();
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

    /// A call takes its places in the queues, and has its turn if nobody is in its way; but it is `lent` until then.
    fn join(&mut self, lock: LockId, lent: Option<BootTime>, now: Reading) {
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        call.phase = Phase::Queued;
        self.local.aside.remove(&lock);
        let (keys, place) = (call.request.keys.clone(), call.request.place(lock));
        Self::index_call(&mut self.deadlines, lock, call);
        for key in &*keys {
            self.local.queues.entry(key.clone()).or_default().join(place);
        }
        self.advance(&keys, lent, now);
    }

    /// Whether a call that does not queue would have its turn now.
    pub(super) fn may_try(&self, request: &Request, now: Reading) -> bool {
        let makes_room = |other: LockId| {
            let phase = self.calls.get(&other).map(|call| &call.phase);
            matches!(phase, Some(Phase::Pausing { lent: Some(from), .. }) if from.remaining(now).is_zero())
        };
        let queues = request.keys.iter().filter_map(|key| self.local.queues.get(key));
        queues.into_iter().all(|queue| !queue.would_wait(request.mode, makes_room))
    }

    /// A caller of this process holds a lock that excludes this one.
    pub(super) fn is_held_here(&self, request: &Request) -> bool {
        let queues = request.keys.iter().filter_map(|key| self.local.queues.get(key));
        queues
            .flat_map(LocalQueue::active)
            .any(|place| place.mode.excludes(request.mode) && !self.calls.contains_key(&place.lock))
    }

    /// It pauses for reasons of its own, and another may have its turn, from then on.
    fn lends(&self, lock: LockId) -> Option<BootTime> {
        match self.calls.get(&lock)?.phase {
            Phase::Pausing { lent, .. } => lent,
            _ => None,
        }
    }

    /// If this call pauses for reasons of its own and another waits, it steps aside, and the other's turn
    /// comes.
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

    /// The first of those that wait for these keys.
    fn waiting_for(&self, keys: &Keys) -> Vec<LockId> {
        let queues = keys.iter().filter_map(|key| self.local.queues.get(key));
        queues.flat_map(|queue| queue.waiting().take(WAITING_MAX)).collect()
    }

    /// If all that keep `next` waiting pause for reasons of their own, they step aside. What the process has learnt of
    /// how long to wait between two attempts goes with the turn.
    fn make_way(&mut self, next: LockId, cx: &mut Context<'_>) -> bool {
        let Some(Request { keys, mode, .. }) = self.calls.get(&next).map(|call| &call.request)
        else {
            return false;
        };
        let (keys, mode) = (keys.clone(), *mode);
        let queues = keys.iter().filter_map(|key| self.local.queues.get(key));
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

    /// What one has said that has stepped aside, or given up, is said by the writers whose turn it is for those keys: if
    /// each took back its own, readers would get in at every turn, and could keep all of them waiting for ever. The rest
    /// is taken back: readers are not to wait for a writer that waits for others of this process.
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
        let queues = intent.keys.iter().filter_map(|key| self.local.queues.get(key));
        let active = queues.flat_map(LocalQueue::active);
        let writers: BTreeSet<LockId> =
            active.filter(|it| it.mode == Mode::Exclusive).map(|it| it.lock).collect();
        for to in writers {
            // Who holds the lock already need not say anything.
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

    /// Writers that have stepped aside, and want any of these keys, have their turn again if nobody is in their way now.
    /// They go on with their pause, and step aside again for the next call.
    fn bring_back(&mut self, wanted: &Keys, now: Reading) {
        for lock in self.local.aside.clone() {
            let Some(Call { request, phase, .. }) = self.calls.get(&lock) else {
                continue;
            };
            let queues = request.keys.iter().filter_map(|key| self.local.queues.get(key));
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

    /// Leaves the local queues; if it was this one's turn, the next one's has come.
    pub(super) fn leave_queue(&mut self, keys: &Keys, lock: LockId, cx: &mut Context<'_>) {
        // Nearly always there is one key, which nobody else of this process wants.
        if let Some(key) = keys.single()
            && let Entry::Occupied(mut queue) = self.local.queues.entry(key.clone())
        {
            queue.get_mut().leave(lock);
            if queue.get().is_empty() {
                queue.remove();
                return;
            }
        } else {
            self.with_queues(keys, |queue| queue.leave(lock));
        }
        self.go_on(keys, cx);
    }

    /// Somebody has left these keys, or excludes fewer. Whose turn it is may pause at once, or another call may keep one that
    /// waits for several keys waiting at the others: either steps aside.
    fn go_on(&mut self, keys: &Keys, cx: &mut Context<'_>) {
        self.advance(keys, None, cx.now);
        let queues = keys.iter().filter_map(|key| self.local.queues.get(key));
        let mut active = queues.flat_map(LocalQueue::active);
        let is_lent = active.any(|place| self.lends(place.lock).is_some());
        // A call that gets its turn here keeps it: younger ones do not make it step aside at once.
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

    /// The holder of a lock is a reader from now on.
    pub(super) fn downgrade_place(&mut self, keys: &Keys, holder: LockId, cx: &mut Context<'_>) {
        self.with_queues(keys, |queue| queue.downgrade(holder));
        self.go_on(keys, cx);
    }

    pub(super) fn with_queues(&mut self, keys: &Keys, act: impl Fn(&mut LocalQueue)) {
        for key in &**keys {
            if let Some(queue) = self.local.queues.get_mut(key) {
                act(queue);
            }
        }
    }

    /// Those that wait for these keys have their turn, as far as nobody is in their way any more. `lent`: until then it
    /// is another's.
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
            if self.local.queues.get(key).is_some_and(LocalQueue::is_empty) {
                self.local.queues.remove(key);
            }
        }
    }

    /// Of those that wait for any of these keys, the first one that nobody keeps waiting at any of its own.
    fn first_ready(&self, keys: &Keys) -> Option<LockId> {
        let is_ready = |lock: &LockId| {
            let Some(call) = self.calls.get(lock) else { return false };
            let its = &call.request.keys;
            its.single().is_some()
                || its.iter().all(|key| {
                    let queue = self.local.queues.get(key);
                    queue.is_some_and(|queue| queue.ready().any(|ready| ready == *lock))
                })
        };
        let queues = keys.iter().filter_map(|key| self.local.queues.get(key));
        queues.filter_map(|queue| queue.ready().find(is_ready)).min()
    }

    /// A call's turn in this process has come. If this process has just had the lock, others have
    /// theirs first: it waits, though not for more than half of its patience; and if there was a
    /// crowd, it looks before it tries, as those do who waited all the while. But who only tries does
    /// not wait. And if the turn was `lent` by another, not before that time.
    fn turn_comes(&mut self, lock: LockId, lent: Option<BootTime>, now: Reading) {
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        let is_in_future = |at: &BootTime| !at.remaining(now).is_zero();
        let once = call.request.wait == Wait::Once;
        let keys = &call.request.keys;
        let resume = keys.iter().filter_map(|key| self.backoff.resume_at(key, now)).max();
        let resume = resume.filter(|_| !once);
        if resume.is_some() {
            call.contention.polite =
                call.may_look_first() && keys.iter().any(|key| self.backoff.is_contended(key, now));
        }
        call.phase = match resume.max(lent).filter(is_in_future) {
            Some(until) => {
                let until = until.min(now.after(call.patience(now)));
                // Whoever wants one of several keys alone need not wait as well.
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
