//! The run of the server that a node leads to, and its wall clock.

use alloc::boxed::Box;
use core::time::Duration;

use super::FRESH;
use super::earlier::EarlierRuns;
use super::evaluation::told_uptime;
use crate::node::info::Info;
use crate::time::{BootTime, Reading};

/// The run of the server that a node leads to, and the runs before it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Run {
    pub(super) id: Option<Box<str>>,
    /// How many seconds this run had been running by its own account when it was first heard of, and when
    /// that was.
    pub(super) first: Option<(u64, BootTime)>,
    /// When the newest command was sent that this run has answered; and an earlier run.
    pub(super) answered: Option<BootTime>,
    pub(super) answered_before: Option<BootTime>,
    /// When the newest command was sent that this run has answered while it was trusted: its vote may count.
    pub(super) voted: Option<BootTime>,
    /// Earlier runs whose votes under this name may still count.
    pub(super) earlier: EarlierRuns,
}

/// A node's wall clock.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct NodeClock {
    /// What it showed in microseconds, and when that was heard.
    pub(super) told: Option<(i64, BootTime)>,
    /// It was heard long after it was asked for.
    pub(super) is_late: bool,
}

impl Run {
    pub(super) const fn new() -> Self {
        Self {
            id: None,
            first: None,
            answered: None,
            answered_before: None,
            voted: None,
            earlier: EarlierRuns::new(),
        }
    }

    /// The server has said which run it is.
    pub(super) fn note(&mut self, info: &Info, sent: Reading, now: Reading, quarantine: Duration) {
        if self.id.as_deref() != Some(&*info.run_id) {
            if let Some(run_id) = self.id.take() {
                self.answered_before = self.answered;
                self.earlier.note(run_id, self.voted.take(), now, quarantine);
            }
            self.first = Some((told_uptime(info), now.boot()));
        }
        self.id = Some(info.run_id.clone());
        self.answered = Some(sent.boot());
    }

    /// When this run was last asked for what may count under the node's name.
    pub(super) fn voted_as(&self, run_id: &str) -> Option<BootTime> {
        let now = self.voted.filter(|_| self.id.as_deref() == Some(run_id));
        now.max(self.earlier.voted(run_id))
    }

    pub(super) fn shift(&mut self, base: Reading) {
        let seen = [&mut self.answered, &mut self.answered_before, &mut self.voted];
        for time in seen.into_iter().flatten() {
            *time = time.shifted(base);
        }
        self.earlier.shift(base);
        if let Some((_, at)) = &mut self.first {
            *at = at.shifted(base);
        }
    }

    pub(super) fn forget(&mut self, now: Reading, quarantine: Duration) {
        // A server that was seen so long ago may as well not have been.
        for seen in [&mut self.answered, &mut self.answered_before, &mut self.voted] {
            *seen = seen.filter(|at| before_origin(at) < quarantine);
        }
        self.earlier.forget(now, quarantine);
        if let Some((at_first, at)) = &mut self.first {
            // What has run for long enough is old enough.
            let long = i64::try_from(quarantine.as_nanos()).unwrap_or(i64::MAX);
            if at.as_nanos() <= -long {
                (*at_first, *at) = (0, BootTime::from_nanos(-long));
            }
            *at_first = (*at_first).min(quarantine.as_secs() + 1);
        }
    }
}

impl NodeClock {
    /// What its wall clock shows by now at least, if it was read lately. Reckoned from the hearing, not from the
    /// sending: a floor by a clock that is ahead by a late answer could be above one that is set after it.
    pub(super) fn time_us(&self, now: Reading) -> Option<u64> {
        let (time_us, at) = self.told?;
        let passed = now.boot().as_nanos().saturating_sub(at.as_nanos()) / 1000;
        let fresh = i64::try_from(FRESH.as_micros()).is_ok_and(|fresh| passed <= fresh);
        u64::try_from(time_us.saturating_add(passed)).ok().filter(|_| fresh)
    }

    /// Its wall clock is known well enough for a floor: behind by no more than half of a quarantine, or a floor
    /// by it could be below one that was set before. A late one is a bound all the same, though a weak one.
    pub(super) fn is_well_known(&self, now: Reading) -> bool {
        !self.is_late && self.time_us(now).is_some()
    }
}

/// How long before the origin of time that was.
pub(super) fn before_origin(at: &BootTime) -> Duration {
    Duration::from_nanos(at.as_nanos().min(0).unsigned_abs())
}
