//! Handing a held lock over to the next caller of this process.

use alloc::boxed::Box;
use core::time::Duration;

use super::extending::Extending;
use super::{Confirmation, GuardTerms, HeldLock};
use crate::client::contention::HANDOVERS_MAX;
use crate::command::Command;
use crate::ids::LockId;
use crate::keys::{Entry, Mode, Origin};
use crate::redlock::fence::{PendingHandover, WriteBack};
use crate::redlock::quorum::{NodeId, NodeSet};
use crate::request::Request;
use crate::time::Reading;
use crate::token::Value;

impl HeldLock {
    /// Whether this process should leave the lock to other processes: after 64 hand-overs, or after a tenth of the ttl.
    pub(crate) fn is_exhausted(&self, now: Reading) -> bool {
        let for_long = now.elapsed_since(self.tenure.began) > self.timing.ttl() / 10;
        (self.tenure.handover_count >= HANDOVERS_MAX || for_long) && !mutant!(HandOversUnlimited)
    }

    /// Whether the next caller of this process may take the lock over. The caller must request the same lock, enough
    /// validity must be left (S5), and this process must not have had the lock for too long.
    pub(crate) fn may_be_handed_to(&self, next: &Request, now: Reading) -> bool {
        self.lost.is_none()
            && !self.is_detaching()
            && self.is_queued()
            && self.entry.origin == Origin::Absent
            && self.mode() == Mode::Exclusive
            && next.mode == Mode::Exclusive
            && next.origin == Origin::Absent
            && next.keys == self.entry.keys
            && next.timing == self.timing
            && next.fenced.as_ref() == self.fenced.as_ref().map(|fenced| &fenced.counter)
            && Value::owner_of(self.entry.value.as_bytes()) == Some(&next.owner)
            && !self.is_exhausted(now)
            && (mutant!(TokenLimitIgnored)
                || now.after(self.timing.ttl()) <= self.tenure.token_until)
            && (mutant!(HandOverWithinMargin) || self.votes.validity.lasts(Duration::ZERO, now))
            && self.votes.validity.valid_for(now) >= next.timing.min_validity()
    }

    /// Passes the lock to another guard. The extension in flight belongs to the old guard, but late answers to it
    /// still count as votes.
    pub(crate) fn hand_over(&mut self, holder: LockId, next: &Request, now: Reading) {
        debug_assert!(self.may_be_handed_to(next, now), "only what is held is handed over");
        self.guard = GuardTerms::new(holder, next, now);
        if !mutant!(TokenLimitIgnored) {
            self.guard.hold_until = self.guard.hold_until.min(self.tenure.token_until);
        }
        self.tenure.handover_count += 1;
        let at = next.automatic.then(|| now.after(self.timing.extend_every()));
        self.extending = Extending::begin(at);
        // The new holder is notified about its own rounds of extending only, so earlier confirmations are forgotten.
        self.confirmation = Confirmation::default();
        if let Some(fenced) = &mut self.fenced
            && let Some(handover) = fenced.handover.take()
        {
            fenced.fence = handover.write_back.number();
            fenced.note(handover.write_back.largest());
            fenced.superseded = false;
        }
    }

    /// Whether the lock was released and waits for the fencing token of the next guard. Meanwhile it has no holder.
    pub(crate) fn is_handing_over(&self) -> bool {
        self.handover().is_some()
    }

    pub(super) fn handover(&self) -> Option<&PendingHandover> {
        self.fenced.as_ref()?.handover.as_deref()
    }

    /// Starts a hand-over with a fencing token. The next guard needs a number larger than all numbers that voting nodes
    /// have reported, and a quorum of them must record it first. Returns the nodes to ask, the round and the command.
    /// `None` if there is no larger number. `longest` is the longest round trip to any node.
    pub(crate) fn pass(
        &mut self,
        report: bool,
        longest: Duration,
        now: Reading,
    ) -> Option<(NodeSet, u32, Command)> {
        let due = now.after(self.timing.node_timeout(longest));
        let fenced = self.fenced.as_mut()?;
        let to = fenced.next()?;
        let mut write_back = WriteBack::new(to);
        let nodes = write_back.ask(self.votes.validity.held(), due);
        self.round += 1;
        let (round, called) = (self.round, now);
        fenced.handover = Some(Box::new(PendingHandover { round, called, report, write_back }));
        let Entry { keys, value, .. } = self.entry.clone();
        let counter = fenced.counter.clone();
        self.extending = Extending::default();
        Some((nodes, round, Command::Raise { keys, value, counter, to }))
    }

    /// Whether a quorum recorded the next guard's fencing token. `None` while answers that decide this are outstanding.
    pub(crate) fn is_passed(&self) -> Option<bool> {
        let (recorded, awaited) = self.handover()?.write_back.counts();
        if self.quorum.is_reached(recorded) {
            return Some(true);
        }
        self.quorum.is_out_of_reach(recorded, awaited).then_some(false)
    }

    pub(crate) fn handover_report(&self) -> bool {
        self.handover().is_some_and(|handover| handover.report)
    }

    /// Ends the wait for nodes that did not record the next guard's fencing token in time.
    pub(crate) fn handle_time(&mut self, now: Reading, timed_out: impl FnMut(NodeId)) {
        if let Some(fenced) = &mut self.fenced
            && let Some(handover) = &mut fenced.handover
        {
            handover.write_back.handle_time(now, timed_out);
        }
    }
}
