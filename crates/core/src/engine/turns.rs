//! Whose turn it is among the callers of this process that want one key.
//!
//! One has the turn: it talks to the nodes, or holds the lock; the others are queued. While the lock is
//! taken, the one whose turn it is waits for it, and they behind it. A caller may also pause for
//! reasons of its own: a delay of its own choice, too little validity for its wishes, too few nodes
//! for its times. It then steps aside as soon as another may try. It comes back to its place in the
//! order of arrival when its pause is over. So there is never more than one attempt of this process
//! for one key at a time, and all attempts together follow each other no faster than those of one
//! caller would.

use alloc::collections::VecDeque;
use alloc::collections::btree_map::Entry;

use super::{Call, Engine, LockId, Phase, Wait};
use crate::contention::BackoffTable;
use crate::queue::LocalQueue;
use crate::time::{BootTime, Reading};
use crate::token::Key;

impl Engine {
    /// A call wants its turn, for the first time or after it stepped aside.
    pub(super) fn enter(&mut self, lock: LockId, now: Reading) {
        let Some(timed) = self.calls.get_mut(&lock) else {
            return;
        };
        let call = &mut timed.record;
        call.phase = Phase::Queued;
        let active = match self.local.queues.entry(call.request.key.clone()) {
            Entry::Occupied(mut queue) => {
                queue.get_mut().join(lock);
                Some(queue.get().active())
            }
            Entry::Vacant(place) => {
                place.insert(LocalQueue::new(lock));
                Self::turn_comes((&self.backoff, &mut self.local.begins), lock, call, None, now);
                None
            }
        };
        Self::index_call(&mut self.deadlines, lock, timed);
        if let Some(active) = active {
            self.pass_on(active, now);
        }
    }

    /// Whether a call that does not queue would have its turn now.
    pub(super) fn may_try(&self, key: &Key, now: Reading) -> bool {
        let Some(queue) = self.local.queues.get(key) else { return true };
        let active = self.calls.get(&queue.active()).map(|timed| &timed.record.phase);
        matches!(active, Some(Phase::Pausing { lent: Some(from), .. }) if from.remaining(now).is_zero())
    }

    /// The lock is held by a caller of this process.
    pub(super) fn is_held_here(&self, key: &Key) -> bool {
        self.local.queues.get(key).is_some_and(|queue| !self.calls.contains_key(&queue.active()))
    }

    /// If this call pauses for reasons of its own and another waits, it steps aside, and the other's turn
    /// comes. What the process has learnt of how long to wait between two attempts goes with the turn.
    pub(super) fn pass_on(&mut self, lock: LockId, now: Reading) {
        let Some(timed) = self.calls.get_mut(&lock) else {
            return;
        };
        let call = &mut timed.record;
        let Phase::Pausing { until, lent: Some(lent), .. } = call.phase else {
            return;
        };
        let queue =
            self.local.queues.get_mut(&call.request.key).filter(|queue| queue.active() == lock);
        let Some((queue, next)) = queue.and_then(|queue| queue.next().map(|next| (queue, next)))
        else {
            return;
        };
        call.phase = Phase::Aside { until };
        let (polls, opens) = (call.contention.polls, call.contention.opens);
        queue.advance();
        if let Some(timed) = self.calls.get_mut(&next) {
            let call = &mut timed.record;
            (call.contention.polls, call.contention.opens) =
                (call.contention.polls.max(polls), call.contention.opens.max(opens));
            Self::turn_comes((&self.backoff, &mut self.local.begins), next, call, Some(lent), now);
            Self::index_call(&mut self.deadlines, next, timed);
        }
    }

    /// A call's turn in this process has come. If this process has just had the lock, others have
    /// theirs first: it waits, though not for more than half of its patience; and if there was a
    /// crowd, it looks before it tries, as those do who waited all the while. But who only tries does
    /// not wait. And if the turn was `lent` by another, not before that time.
    fn turn_comes(
        (backoff, begins): (&BackoffTable, &mut VecDeque<LockId>),
        lock: LockId,
        call: &mut Call,
        lent: Option<BootTime>,
        now: Reading,
    ) {
        let is_in_future = |at: &BootTime| !at.remaining(now).is_zero();
        let once = call.request.wait == Wait::Once;
        let resume = backoff.resume_at(&call.request.key, now).filter(|_| !once);
        if resume.is_some() {
            call.contention.polite =
                call.may_look_first() && backoff.is_contended(&call.request.key, now);
        }
        call.phase = match resume.max(lent).filter(is_in_future) {
            Some(until) => {
                let until = until.min(now.after(call.patience(now)));
                Phase::Pausing { until, again: false, lent: None }
            }
            None => {
                begins.push_back(lock);
                Phase::Starting
            }
        };
    }

    /// Leaves the local queue; if it was this one's turn, the next one's has come.
    pub(super) fn leave_queue(&mut self, key: Key, lock: LockId, now: Reading) {
        let Entry::Occupied(mut queue) = self.local.queues.entry(key) else {
            return;
        };
        if queue.get().active() != lock {
            return queue.get_mut().leave(lock);
        }
        match queue.get_mut().advance() {
            Some(next) => {
                if let Some(timed) = self.calls.get_mut(&next) {
                    let own = (&self.backoff, &mut self.local.begins);
                    Self::turn_comes(own, next, &mut timed.record, None, now);
                    Self::index_call(&mut self.deadlines, next, timed);
                }
            }
            None => {
                queue.remove();
            }
        }
    }
}
