//! What is known of one node.

use alloc::string::String;
use alloc::sync::Arc;
use core::time::Duration;

use super::earlier::EarlierRuns;
use super::judging::told_uptime;
use super::{FRESH, LOOK_AGAIN, Standing, Step, Todo, Trust};
use crate::command::{Command, Failure};
use crate::info::Info;
use crate::proof::MarkerSeen;
use crate::quorum::NodeId;
use crate::time::{BootTime, Reading};

impl Trust {
    pub(super) const fn new() -> Self {
        Self {
            epoch: (0, 0),
            standing: Standing::Unverified,
            marker: None,
            run_id: None,
            is_near: false,
            answered: None,
            answered_before: None,
            voted: None,
            earlier: EarlierRuns::new(),
            first: None,
            clock: None,
            is_clock_late: false,
            adopted: None,
            is_guess: false,
            step: Step::Rest,
            round: 0,
            due: None,
            wake: None,
            told: None,
            few_clocks: None,
        }
    }

    pub(crate) const fn standing(&self) -> &Standing {
        &self.standing
    }

    pub(crate) const fn is_trusted(&self) -> bool {
        matches!(self.standing, Standing::Trusted)
    }

    /// When this run was last asked for what may count under the node's name.
    pub(super) fn voted_as(&self, run_id: &str) -> Option<BootTime> {
        let now = self.voted.filter(|_| self.run_id.as_deref() == Some(run_id));
        now.max(self.earlier.voted(run_id))
    }

    pub(super) fn is_marked_as(&self, seen: &MarkerSeen) -> bool {
        let (Some(marker), MarkerSeen::Text(text)) = (&self.marker, seen) else { return false };
        // Mostly it is the very same one.
        Arc::ptr_eq(marker, text) || marker == text || mutant!(ChangedMarkerTrusted)
    }

    /// What goes with a batch of answers finds it trusted, and says nothing else: the usual case, in which nothing
    /// changes.
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
            self.answered = Some(sent.boot());
            self.voted = self.answered;
        }
        is_confirmed
    }

    pub(super) fn distrust(&mut self) {
        self.marker = None;
        self.standing = Standing::Unverified;
    }

    pub(super) fn refuse(&mut self, failure: Failure) {
        self.marker = None;
        self.step = Step::Rest;
        self.standing = Standing::Refused(failure.executed());
    }

    /// It is sound and marked, but its votes do not count before then.
    pub(super) fn hold_back(&mut self, until: BootTime, why: String, now: Reading) {
        self.marker = None;
        self.step = Step::Rest;
        self.is_guess = false;
        self.standing = Standing::Quarantined { until, why: why.into() };
        self.due = Some(until.min(now.after(LOOK_AGAIN)));
    }

    /// A clock that was heard late may have been read long before, and is asked for again.
    pub(super) fn note_run(
        &mut self,
        info: &Info,
        sent: Reading,
        now: Reading,
        quarantine: Duration,
    ) {
        let late = quarantine / 2;
        if self.run_id.as_deref() != Some(&*info.run_id) {
            if let Some(run_id) = self.run_id.take() {
                self.answered_before = self.answered;
                self.earlier.note(run_id, self.voted.take(), now, quarantine);
            }
            self.first = Some((told_uptime(info), now.boot()));
        }
        self.run_id = Some(info.run_id.clone());
        self.answered = Some(sent.boot());
        let took = now.boot().as_nanos().saturating_sub(sent.boot().as_nanos());
        let is_late = i64::try_from(late.as_nanos()).is_ok_and(|late| took > late);
        self.clock = info.time_us.map(|time_us| (time_us, now.boot()));
        self.is_clock_late = is_late;
    }

    /// What its wall clock shows by now at least, if it was read lately. Reckoned from the hearing, not from the
    /// sending: a floor by a clock that is ahead by a late answer could be above one that is set after it.
    pub(super) fn time_us(&self, now: Reading) -> Option<u64> {
        let (time_us, at) = self.clock?;
        let passed = now.boot().as_nanos().saturating_sub(at.as_nanos()) / 1000;
        let fresh = i64::try_from(FRESH.as_micros()).is_ok_and(|fresh| passed <= fresh);
        u64::try_from(time_us.saturating_add(passed)).ok().filter(|_| fresh)
    }

    /// Its wall clock is known well enough for a floor: behind by no more than half of a quarantine, or a floor
    /// by it could be below one that was set before. A late one is a bound all the same, though a weak one.
    pub(super) fn has_told_time(&self, now: Reading) -> bool {
        !self.is_clock_late && self.time_us(now).is_some()
    }

    pub(super) fn greet(&mut self, node: NodeId, todo: &mut Todo) {
        if self.step != Step::Greeting {
            self.step = Step::Greeting;
            self.due = None;
            self.send(node, Command::Greet, todo);
        }
    }

    pub(super) fn send(&mut self, node: NodeId, command: Command, todo: &mut Todo) {
        self.round += 1;
        todo.push((node, command));
    }

    /// Nothing is under way; looked at again in a while.
    pub(super) fn rest(&mut self, now: Reading) {
        if self.step == Step::Rest && self.due.is_none() {
            self.due = Some(now.after(LOOK_AGAIN));
        }
    }

    pub(super) fn shift(&mut self, base: Reading) {
        let seen = [&mut self.answered, &mut self.answered_before, &mut self.voted];
        for time in seen.into_iter().chain([&mut self.due, &mut self.wake]).flatten() {
            *time = time.shifted(base);
        }
        self.earlier.shift(base);
        if let Some((_, at)) = &mut self.clock {
            *at = at.shifted(base);
        }
        if let Some((_, at)) = &mut self.first {
            *at = at.shifted(base);
        }
        if let Some((_, _, at)) = &mut self.adopted {
            *at = at.shifted(base);
        }
        for standing in [Some(&mut self.standing), self.told.as_mut()].into_iter().flatten() {
            if let Standing::Quarantined { until, .. } = standing {
                *until = until.shifted(base);
            }
        }
        if let Step::Adopting(plan) | Step::Gathering(plan) = &mut self.step {
            plan.grown_at = plan.grown_at.shifted(base);
        }
    }

    /// What makes no difference any more, as seen from the origin of time; no command about trust may be
    /// under way, for its answer would not be known again.
    pub(super) fn forget(&mut self, quarantine: Duration) {
        let now = Reading::default();
        let ago = |at: &BootTime| Duration::from_nanos(at.as_nanos().min(0).unsigned_abs());
        // A server that was seen so long ago may as well not have been.
        self.answered = self.answered.filter(|at| ago(at) < quarantine);
        self.answered_before = self.answered_before.filter(|at| ago(at) < quarantine);
        self.voted = self.voted.filter(|at| ago(at) < quarantine);
        self.earlier.forget(now, quarantine);
        self.clock = self.clock.filter(|_| self.time_us(now).is_some());
        self.is_clock_late &= self.clock.is_some();
        if let Some((at_first, at)) = &mut self.first {
            // What has run for long enough is old enough.
            let long = i64::try_from(quarantine.as_nanos()).unwrap_or(i64::MAX);
            if at.as_nanos() <= -long {
                (*at_first, *at) = (0, BootTime::from_nanos(-long));
            }
            *at_first = (*at_first).min(quarantine.as_secs() + 1);
        }
        if let Some((_, age, at)) = &mut self.adopted {
            // Only their sum matters.
            *age += ago(at);
            *at = now.boot();
        }
        if matches!(self.step, Step::Rest | Step::Gathering(_)) {
            self.round = 0;
        }
    }
}
