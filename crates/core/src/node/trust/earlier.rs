//! The earlier servers that voted under a node's name.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use crate::time::{BootTime, Reading};

/// Largest number of earlier runs that are remembered for a node.
const RUNS_MAX: usize = 16;

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
