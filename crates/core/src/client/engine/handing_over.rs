//! Hand-overs of held locks within this process.

use super::{Context, Effect, Engine, Extended};
use crate::client::gap;
use crate::ids::{LockId, Ticket, Verb};
use crate::loss::LossCause;
use crate::redlock::release::{NodeReleased, Outcome, ReleaseReport};

impl Engine {
    /// Hands a lock over to the next caller of this process that requested the same lock, under the conditions of a
    /// grant: `now` was read after the old guard's release, and enough validity must be left (S5). The old guard became
    /// invalid before it asked (S14), so no two guards hold the lock (S24). With a fencing token, the nodes must first
    /// record a larger number, and meanwhile no guard holds the lock.
    pub(super) fn hand_over(&mut self, lock: LockId, report: bool, cx: &mut Context<'_>) -> bool {
        let Some(held) = self.held.get_mut(&lock) else {
            return false;
        };
        let queues = || held.keys().iter().map(|key| self.keys.queue(key)?.first_waiting());
        // The same call must be next in the queues of all keys.
        let next = queues().next().flatten().filter(|next| queues().all(|it| it == Some(*next)));
        let call = next.and_then(|next| Some((next, self.calls.get(&next)?)));
        let Some((next, call)) =
            call.filter(|(_, call)| held.may_be_handed_to(&call.request, cx.now))
        else {
            return false;
        };
        // In a gap, the lock is released on the nodes, so that clients that poll can acquire it.
        if !held.is_handing_over() && gap::open_until(held.foreign_seen, cx.now).is_some() {
            return false;
        }
        Self::emit_extended(held, Extended::Lost(LossCause::Expired), cx);
        if held.fence().is_some() && !held.is_handing_over() {
            let longest = self.paths.round_trips.longest();
            let Some((nodes, round, command)) = held.pass(report, longest, cx.now) else {
                return false;
            };
            let ticket = Ticket { lock, round, verb: Verb::Raise };
            cx.emit(Effect::Send { nodes, ticket, command });
            Self::index_held(&mut self.deadlines, lock, held, cx.now);
            return true;
        }
        let old = held.holder();
        held.hand_over(next, &call.request, cx.now);
        let (attempts, hold) = (call.history.count, held.hold());
        let ((token, handover_count), fence) = (held.token_and_handovers(), held.fence());
        if report {
            let kept = |node| match hold.validity().has_vote_of(node) {
                true => NodeReleased::HandedOver,
                false => NodeReleased::NeverGranted,
            };
            let nodes = self.quorum.node_ids().map(kept).collect();
            let report = ReleaseReport { outcome: Outcome::Released, handed_over: true, nodes };
            cx.emit(Effect::Released { lock: old, report });
        }
        self.local.handed.remove(&old);
        self.local.handed.insert(next, lock);
        let keys = held.keys().clone();
        Self::index_held(&mut self.deadlines, lock, held, cx.now);
        self.with_queues(&keys, |queue| queue.hand_over(old, next));
        self.finish_call(next, cx);
        cx.emit(Effect::Acquired { lock: next, token, hold, attempts, handover_count, fence });
        true
    }

    /// Finishes a hand-over once the nodes recorded the next guard's fencing token. If they cannot, or no caller waits
    /// any more, the lock is released.
    pub(super) fn review_handover(&mut self, lock: LockId, cx: &mut Context<'_>) {
        let Some(held) = self.held.get_mut(&lock) else {
            return;
        };
        let report = held.handover_report();
        match held.is_passed() {
            None => Self::index_held(&mut self.deadlines, lock, held, cx.now),
            Some(true) if self.hand_over(lock, report, cx) => {}
            Some(_) => self.release_held(lock, report, false, cx),
        }
    }
}
