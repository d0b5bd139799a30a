//! Calls that pause yield their turn to the next caller of this process.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::{Call, Context, Engine, Phase};
use crate::client::local_queue::Place;
use crate::ids::LockId;
use crate::keys::Keys;
use crate::request::Request;
use crate::time::BootTime;

impl Engine {
    /// Lets a pausing call yield its turn if another caller of this process waits for its keys.
    pub(super) fn yield_turn(&mut self, lock: LockId, cx: &mut Context<'_>) {
        if self.yields_from(lock).is_none() {
            return;
        }
        let Some(keys) = self.calls.get(&lock).map(|call| call.request.keys.clone()) else {
            return;
        };
        for next in self.waiting_for(&keys) {
            if self.yield_to(next, cx) {
                return;
            }
        }
    }

    /// Lets all callers that block `next` yield their turn, if all of them pause and let others attempt. `next` takes
    /// over the counts that determine the delay between attempts. Returns whether the callers yielded.
    pub(super) fn yield_to(&mut self, next: LockId, cx: &mut Context<'_>) -> bool {
        let Some(Request { keys, mode, .. }) = self.calls.get(&next).map(|call| &call.request)
        else {
            return false;
        };
        let (keys, mode) = (keys.clone(), *mode);
        let active = self.keys.active(&keys);
        if active.clone().any(|place| place.lock == next) {
            return false;
        }
        let in_the_way = active.filter(|place| place.mode.excludes(mode));
        let in_the_way: BTreeSet<LockId> = in_the_way.map(|place| place.lock).collect();
        let yields =
            in_the_way.iter().map(|lock| self.yields_from(*lock)).collect::<Option<Vec<_>>>();
        let Some(not_before) = yields.and_then(|times| times.into_iter().max()) else {
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
            self.mark_yielded(place.lock, next);
        }
        self.advance(&keys, Some(not_before), cx.now);
        for (its, Place { lock, .. }) in &places {
            self.advance(its, Some(not_before), cx.now);
            self.local.yielded.insert(*lock);
        }
        for (_, Place { lock, .. }) in places {
            if let Some(call) = self.calls.get_mut(&lock) {
                let intent = call.take_intent(lock);
                self.pass_intent_on(intent, cx);
            }
        }
        true
    }

    fn mark_yielded(&mut self, lock: LockId, next: LockId) {
        let Some(Call { phase, contention, .. }) = self.calls.get_mut(&lock) else {
            return;
        };
        if let Phase::Pausing { until, .. } = *phase {
            *phase = Phase::Yielded { until };
        }
        let (polls, opens) = (contention.polls, contention.opens);
        if let Some(call) = self.calls.get_mut(&next) {
            let contention = &mut call.contention;
            (contention.polls, contention.opens) =
                (contention.polls.max(polls), contention.opens.max(opens));
        }
    }

    /// The time from which a pausing call lets other callers of this process attempt; `None` if it does not.
    pub(super) fn yields_from(&self, lock: LockId) -> Option<BootTime> {
        match self.calls.get(&lock)?.phase {
            Phase::Pausing { yields_from, .. } => yields_from,
            _ => None,
        }
    }
}
