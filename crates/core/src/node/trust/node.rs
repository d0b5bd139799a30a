//! The record of whether one node's votes count.

use alloc::string::String;
use alloc::sync::Arc;
use core::time::Duration;

use super::run::before_origin;
use super::{
    EXAMINE_AGAIN, NodeClock, NodeTrust, ReplicasSeen, Review, Run, Step, Todo, TrustState,
};
use crate::command::{Command, Failure};
use crate::node::evidence::MarkerSeen;
use crate::node::info::Info;
use crate::redlock::quorum::NodeId;
use crate::time::{BootTime, Reading};

impl NodeTrust {
    pub(super) const fn new() -> Self {
        Self {
            epoch: (0, 0),
            trust_state: TrustState::Unverified,
            marker: None,
            run: Run::new(),
            is_near: false,
            clock: NodeClock { reading: None, is_late: false },
            has_new_data: false,
            has_lost_data: false,
            unread: None,
            adopted: None,
            rival: None,
            is_guess: false,
            replicas: ReplicasSeen { connected: None, acknowledging: None },
            review: Review { step: Step::Rest, round: 0, due: None, wake: None },
            reported: None,
            last_identified: (0, false),
            few_clocks: None,
        }
    }

    pub(crate) const fn trust_state(&self) -> &TrustState {
        &self.trust_state
    }

    /// The connection of the last evidence, and the number of flushes that the node had announced on it.
    pub(crate) const fn epoch(&self) -> (u64, u64) {
        self.epoch
    }

    pub(crate) const fn is_trusted(&self) -> bool {
        matches!(self.trust_state, TrustState::Trusted)
    }

    pub(super) fn is_marked_as(&self, seen: &MarkerSeen) -> bool {
        let (Some(marker), MarkerSeen::Text(text)) = (&self.marker, seen) else { return false };
        // The texts are usually one allocation, so the contents need no comparison.
        Arc::ptr_eq(marker, text) || marker == text || mutant!(ChangedMarkerTrusted)
    }

    /// Whether the node stays trusted, by the connection and the marker of a batch. If so, notes when it was sent.
    pub(super) fn is_confirmed(
        &mut self,
        epoch: (u64, u64),
        seen: &MarkerSeen,
        sent: Reading,
    ) -> bool {
        let is_silent = matches!(seen, MarkerSeen::NotAsked);
        let is_trusted = self.is_trusted() && self.is_near && self.epoch == epoch;
        let is_confirmed = is_trusted && (is_silent || self.is_marked_as(seen));
        if is_confirmed {
            self.run.answered = Some(sent.boot());
            self.run.voted = self.run.answered;
        }
        is_confirmed
    }

    pub(super) fn distrust(&mut self) {
        self.marker = None;
        self.trust_state = TrustState::Unverified;
    }

    pub(super) fn refuse(&mut self, failure: Failure) {
        self.marker = None;
        self.review.step = Step::Rest;
        self.trust_state = TrustState::Refused(failure.executed());
    }

    /// Quarantines a node until the given time, although its data and its marker are valid.
    pub(super) fn hold_back(&mut self, until: BootTime, why: String, now: Reading) {
        self.marker = None;
        self.review.step = Step::Rest;
        self.is_guess = false;
        self.trust_state = TrustState::Quarantined { until, why: why.into() };
        self.review.due = Some(until.min(now.after(EXAMINE_AGAIN)));
    }

    /// Notes the run and the wall clock in a node's `INFO`. If the answer took long, the clock may have been read long
    /// ago, so the client will read it again.
    pub(super) fn note_run(
        &mut self,
        info: &Info,
        sent: Reading,
        now: Reading,
        quarantine: Duration,
    ) {
        self.run.note(info, sent, now, quarantine);
        let took = now.boot().as_nanos().saturating_sub(sent.boot().as_nanos());
        let late = quarantine / 2;
        let is_late = i64::try_from(late.as_nanos()).is_ok_and(|late| took > late);
        let reading = info.time_us.map(|time_us| (time_us, now.boot()));
        self.clock = NodeClock { reading, is_late };
    }

    pub(super) fn identify(&mut self, node: NodeId, todo: &mut Todo) {
        if self.review.step != Step::Identifying {
            self.review.step = Step::Identifying;
            self.review.due = None;
            self.send(node, Command::Identify, todo);
        }
    }

    pub(super) fn send(&mut self, node: NodeId, command: Command, todo: &mut Todo) {
        self.review.round += 1;
        todo.push((node, command));
    }

    /// Schedules the next examination if none is in progress or due.
    pub(super) fn rest(&mut self, now: Reading) {
        if self.review.step == Step::Rest && self.review.due.is_none() {
            self.review.due = Some(now.after(EXAMINE_AGAIN));
        }
    }

    pub(super) fn shift(&mut self, base: Reading) {
        self.run.shift(base);
        if let Some((_, at)) = &mut self.clock.reading {
            *at = at.shifted(base);
        }
        if let Some((_, _, at)) = &mut self.adopted {
            *at = at.shifted(base);
        }
        for trust_state in
            [Some(&mut self.trust_state), self.reported.as_mut()].into_iter().flatten()
        {
            if let TrustState::Quarantined { until, .. } = trust_state {
                *until = until.shifted(base);
            }
        }
        self.review.shift(base);
    }

    /// Drops history that can no longer affect decisions. All times are relative to the present. No command about trust
    /// may be in flight, because its answer would not be recognised.
    pub(super) fn forget(&mut self, quarantine: Duration) {
        let now = Reading::default();
        self.run.forget(now, quarantine);
        self.clock.reading = self.clock.reading.filter(|_| self.clock.time_us(now).is_some());
        self.clock.is_late &= self.clock.reading.is_some();
        if let Some((_, age, at)) = &mut self.adopted {
            // The time since the age was read becomes part of the age, because decisions depend only on their sum.
            *age += before_origin(at);
            *at = now.boot();
        }
        if matches!(self.review.step, Step::Rest | Step::Contested(_) | Step::Gathering(_)) {
            self.review.round = 0;
        }
    }
}

impl Review {
    fn shift(&mut self, base: Reading) {
        for time in [&mut self.due, &mut self.wake].into_iter().flatten() {
            *time = time.shifted(base);
        }
        let plan = match &mut self.step {
            Step::Adopting(plan) | Step::Gathering(plan) => plan,
            Step::Contested(contest) => &mut contest.plan,
            Step::Rest | Step::Identifying | Step::Marking => return,
        };
        plan.grown_at = plan.grown_at.shifted(base);
    }
}
