//! One round of extending a lease on every node: Extended, Absent, Other or a failure, per node.
//!
//! The round only counts; what an answer does to the votes is the lease's business
//! ([`crate::redlock::lease`]), answer by answer, so that even a round that fails keeps what it gained.

use alloc::vec::Vec;
use core::time::Duration;

use crate::command::{Answer, Failure, FailureKind};
use crate::redlock::acquire::{NodeOutcome, NodeResult};
use crate::redlock::quorum::{NodeId, NodeSet, Quorum};
use crate::time::{BootTime, Reading};

/// One round of extending.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Extension {
    round: u32,
    quorum: Quorum,
    started: Reading,
    due: BootTime,
    slots: Vec<Slot>,
    wanted: bool,
    told: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Slot {
    state: SlotState,
    took: Duration,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum SlotState {
    Outstanding,
    Extended,
    Absent,
    Healing,
    Other,
    Failed(Failure),
}

/// Where a round of extending stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use]
pub(crate) enum Progress {
    /// Fewer than a quorum have confirmed, and more may.
    Open,
    /// A quorum has confirmed.
    Confirmed,
    /// Too few have confirmed, and no more will in time.
    Failed,
}

impl Extension {
    /// Starts round number `round`, whose command goes to every node now.
    pub(crate) fn start(round: u32, quorum: Quorum, node_timeout: Duration, now: Reading) -> Self {
        let slot = Slot { state: SlotState::Outstanding, took: Duration::ZERO };
        Self {
            round,
            quorum,
            started: now,
            due: now.after(node_timeout),
            slots: alloc::vec![slot; quorum.nodes()],
            wanted: false,
            told: false,
        }
    }

    /// The number of this round.
    pub(crate) const fn round(&self) -> u32 {
        self.round
    }

    /// When the round began.
    pub(crate) const fn started(&self) -> Reading {
        self.started
    }

    /// A caller waits for the outcome of this round.
    pub(crate) const fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Notes that a caller waits for the outcome of this round.
    pub(crate) fn want(&mut self) {
        self.wanted = true;
    }

    /// The outcome is clear and has been told; only healing may follow.
    pub(crate) const fn is_told(&self) -> bool {
        self.told
    }

    /// Notes that the outcome has been told.
    pub(crate) fn tell(&mut self) {
        self.told = true;
    }

    /// When the round stops waiting for answers.
    pub(crate) const fn deadline(&self) -> BootTime {
        self.due
    }

    /// Counts an answer.
    pub(crate) fn handle_answer(&mut self, node: NodeId, answer: Answer, now: Reading) {
        let slot = &mut self.slots[node.index()];
        if slot.state != SlotState::Outstanding {
            return;
        }
        slot.took = now.elapsed_since(self.started);
        slot.state = match answer {
            Answer::Extended | Answer::Downgraded => SlotState::Extended,
            Answer::Absent => SlotState::Absent,
            Answer::Other => SlotState::Other,
            Answer::Failed(failure) => SlotState::Failed(failure),
            _ => SlotState::Failed(Failure::new(FailureKind::Protocol)),
        };
    }

    /// Stops waiting when the time is up: what has not answered by then has failed, for this round.
    /// Answers that have come already are given first, so that a client that was slow itself does
    /// not take them for silence.
    pub(crate) fn handle_time(&mut self, now: Reading) {
        if !self.due.remaining(now).is_zero() {
            return;
        }
        let took = now.elapsed_since(self.started);
        for slot in &mut self.slots {
            if slot.state == SlotState::Outstanding {
                let state = SlotState::Failed(Failure::new(FailureKind::Silent));
                *slot = Slot { state, took };
            }
        }
    }

    /// The absent nodes that may be healed now, each of them once: those that answered so in this
    /// round, after a quorum has confirmed in this round.
    pub(crate) fn take_healable(&mut self) -> NodeSet {
        let mut healable = NodeSet::default();
        if self.quorum.is_reached(self.count(&SlotState::Extended)) {
            for (node, slot) in self.quorum.node_ids().zip(&mut self.slots) {
                if slot.state == SlotState::Absent {
                    slot.state = SlotState::Healing;
                    healable.insert(node);
                }
            }
        }
        healable
    }

    /// Where the round stands.
    pub(crate) fn progress(&self) -> Progress {
        let confirmed = self.count(&SlotState::Extended);
        let outstanding = self.count(&SlotState::Outstanding);
        if self.quorum.is_reached(confirmed) {
            Progress::Confirmed
        } else if self.quorum.is_out_of_reach(confirmed, outstanding) {
            Progress::Failed
        } else {
            Progress::Open
        }
    }

    /// Every node has confirmed.
    pub(crate) fn is_confirmed_by_all(&self) -> bool {
        self.count(&SlotState::Extended) == self.slots.len()
    }

    /// A node has answered, and has not confirmed.
    pub(crate) fn has_denial(&self) -> bool {
        let count = self.count(&SlotState::Extended) + self.count(&SlotState::Outstanding);
        count < self.slots.len()
    }

    /// Every node has answered, or its time is up: nothing more can be healed in this round.
    pub(crate) fn is_over(&self) -> bool {
        self.count(&SlotState::Outstanding) == 0
    }

    /// What each node said, for people.
    pub(crate) fn report(&self, now: Reading) -> Vec<NodeResult> {
        let so_far = now.elapsed_since(self.started);
        let tell = |slot: &Slot| match &slot.state {
            SlotState::Outstanding => NodeResult::new(NodeOutcome::Nothing, so_far),
            SlotState::Extended => NodeResult::new(NodeOutcome::Granted, slot.took),
            SlotState::Absent | SlotState::Healing => {
                NodeResult::new(NodeOutcome::Seen(crate::command::Holding::Free), slot.took)
            }
            SlotState::Other => NodeResult::new(NodeOutcome::Refused(None), slot.took),
            SlotState::Failed(failure) => {
                NodeResult::new(NodeOutcome::Failed(failure.clone()), slot.took)
            }
        };
        self.slots.iter().map(tell).collect()
    }

    pub(crate) fn shift(&mut self, base: Reading) {
        self.started = self.started.shifted(base);
        self.due = self.due.shifted(base);
        self.slots.iter_mut().for_each(|slot| slot.took = Duration::ZERO);
    }

    fn count(&self, state: &SlotState) -> usize {
        self.slots.iter().filter(|slot| slot.state == *state).count()
    }
}
