//! The run of the server that a node leads to, its earlier runs, and its wall clock.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use super::FRESH;
use super::evaluation::reported_uptime;
use crate::node::info::Info;
use crate::time::{BootTime, Reading};

/// Largest number of earlier runs that are remembered for a node.
const RUNS_MAX: usize = 16;

/// The present run of the server behind a node's address, and the server's earlier runs. A restart begins a new run.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Run {
    pub(super) id: Option<Box<str>>,
    /// The uptime in seconds that this run reported in its first answer, and the time of that answer.
    pub(super) first: Option<(u64, BootTime)>,
    /// Time at which the client sent the newest command that this run answered. `answered_before` is the same time for
    /// the run before; `None` if no such run is known.
    pub(super) answered: Option<BootTime>,
    pub(super) answered_before: Option<BootTime>,
    /// Time of sending of the newest command that this run answered while trusted (its last vote); `None` without one.
    pub(super) voted: Option<BootTime>,
    /// Earlier runs whose votes under this name may still count.
    pub(super) earlier: EarlierRuns,
}

/// A node's wall clock.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct NodeClock {
    /// The wall clock in microseconds, and the time at which the answer arrived; `None` if no clock is known.
    pub(super) reading: Option<(i64, BootTime)>,
    /// Whether the answer with this clock took longer than half a quarantine, so that the clock may be too old.
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

    /// Notes the run that the server reported.
    pub(super) fn note(&mut self, info: &Info, sent: Reading, now: Reading, quarantine: Duration) {
        if self.id.as_deref() != Some(&*info.run_id) {
            if let Some(run_id) = self.id.take() {
                self.answered_before = self.answered;
                self.earlier.note(run_id, self.voted.take(), now, quarantine);
            }
            self.first = Some((reported_uptime(info), now.boot()));
        }
        self.id = Some(info.run_id.clone());
        self.answered = Some(sent.boot());
    }

    /// The last time at which this run was asked for a vote that may count under the node's name; `None` without one.
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
        // A server that was last seen longer ago than a quarantine counts as never seen: its votes have expired.
        for seen in [&mut self.answered, &mut self.answered_before, &mut self.voted] {
            *seen = seen.filter(|at| before_origin(at) < quarantine);
        }
        self.earlier.forget(now, quarantine);
        if let Some((at_first, at)) = &mut self.first {
            // An uptime that is longer than the quarantine makes no difference, so it is cut to the quarantine.
            let long = i64::try_from(quarantine.as_nanos()).unwrap_or(i64::MAX);
            if at.as_nanos() <= -long {
                (*at_first, *at) = (0, BootTime::from_nanos(-long));
            }
            *at_first = (*at_first).min(quarantine.as_secs() + 1);
        }
    }
}

impl NodeClock {
    /// A lower bound of the node's wall clock, if it was read lately. The elapsed time counts from the arrival of the
    /// answer: counted from the sending, a late answer would give a bound that is too high. The node's floor, its
    /// smallest fencing token, would then be too high as well, and a later floor could be lower.
    pub(super) fn time_us(&self, now: Reading) -> Option<u64> {
        let (time_us, at) = self.reading?;
        let passed = now.boot().as_nanos().saturating_sub(at.as_nanos()) / 1000;
        let fresh = i64::try_from(FRESH.as_micros()).is_ok_and(|fresh| passed <= fresh);
        u64::try_from(time_us.saturating_add(passed)).ok().filter(|_| fresh)
    }

    /// Whether the wall clock is known well enough for a floor (a node's smallest fencing token). The time in an answer
    /// that arrived late is too old, and a floor from it could be below an earlier floor.
    pub(super) fn is_well_known(&self, now: Reading) -> bool {
        !self.is_late && self.time_us(now).is_some()
    }
}

/// The time from `at` to the origin of time; zero if `at` is later.
pub(super) fn before_origin(at: &BootTime) -> Duration {
    Duration::from_nanos(at.as_nanos().min(0).unsigned_abs())
}

/// The earlier runs of a node whose votes may still count, each with the time at which the client last asked it for a
/// vote that may count. The list is complete, because a new run is trusted only while the list has room.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct EarlierRuns(Vec<(Box<str>, BootTime)>);

impl EarlierRuns {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Remembers a run that another run has replaced. `voted` is the time at which the run was last asked for a vote
    /// that may count.
    pub(super) fn note(
        &mut self,
        run_id: Box<str>,
        voted: Option<BootTime>,
        now: Reading,
        quarantine: Duration,
    ) {
        self.forget(now, quarantine);
        let Some(voted) = voted else { return };
        // The name may lead to the same server again. A run has one entry, with its latest vote.
        self.0.retain(|(it, _)| *it != run_id);
        debug_assert!(self.0.len() < RUNS_MAX, "a run is trusted only while there is room");
        self.0.push((run_id, voted));
    }

    /// The last time at which this earlier run was asked for a vote that may count; `None` without such a vote.
    pub(super) fn voted(&self, run_id: &str) -> Option<BootTime> {
        self.0.iter().find(|(it, _)| **it == *run_id).map(|(_, voted)| *voted)
    }

    /// If the list is full, the time of the last vote of the run that voted least recently. When that vote has expired,
    /// there is room for another run.
    pub(super) fn is_full_since(&self) -> Option<BootTime> {
        let is_full = self.0.len() >= RUNS_MAX;
        self.0.iter().map(|(_, voted)| *voted).min().filter(|_| is_full)
    }

    /// Drops runs whose votes are too old to count.
    pub(super) fn forget(&mut self, now: Reading, quarantine: Duration) {
        self.0.retain(|(_, voted)| !voted.after(quarantine).remaining(now).is_zero());
    }

    pub(super) fn shift(&mut self, base: Reading) {
        self.0.iter_mut().for_each(|(_, voted)| *voted = voted.shifted(base));
    }
}
