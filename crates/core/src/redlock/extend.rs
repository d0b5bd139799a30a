//! One round of extending a lease: the answer of each node.
//!
//! The round only counts answers. The lease ([`crate::redlock::lease`]) updates its votes with each answer, so even a failed
//! round keeps the votes that it prolonged.

use alloc::vec::Vec;
use core::time::Duration;

use crate::command::{Answer, Failure, FailureKind};
use crate::redlock::acquire::{NodeOutcome, NodeResult};
use crate::redlock::quorum::{NodeId, NodeSet, Quorum};
use crate::time::{BootTime, Reading};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Extension {
    round: u32,
    quorum: Quorum,
    started: Reading,
    due: BootTime,
    slots: Vec<Slot>,
    awaited: bool,
    reported: bool,
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

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use]
pub(crate) enum Progress {
    /// A quorum may still confirm.
    Open,
    /// A quorum confirmed.
    Confirmed,
    /// A quorum is out of reach.
    Failed,
}

impl Extension {
    /// Starts a round, whose command goes to every node now.
    pub(crate) fn start(round: u32, quorum: Quorum, node_timeout: Duration, now: Reading) -> Self {
        let slot = Slot { state: SlotState::Outstanding, took: Duration::ZERO };
        Self {
            round,
            quorum,
            started: now,
            due: now.after(node_timeout),
            slots: alloc::vec![slot; quorum.nodes()],
            awaited: false,
            reported: false,
        }
    }

    pub(crate) const fn round(&self) -> u32 {
        self.round
    }

    pub(crate) const fn started(&self) -> Reading {
        self.started
    }

    pub(crate) const fn is_awaited(&self) -> bool {
        self.awaited
    }

    pub(crate) fn await_outcome(&mut self) {
        self.awaited = true;
    }

    /// Whether the engine has reported the outcome to the holder. Afterwards this round can only heal nodes.
    pub(crate) const fn is_reported(&self) -> bool {
        self.reported
    }

    pub(crate) fn mark_reported(&mut self) {
        self.reported = true;
    }

    pub(crate) const fn deadline(&self) -> BootTime {
        self.due
    }

    pub(crate) fn handle_answer(&mut self, node: NodeId, answer: &Answer, now: Reading) {
        let slot = &mut self.slots[node.index()];
        if slot.state != SlotState::Outstanding {
            return;
        }
        slot.took = now.elapsed_since(self.started);
        slot.state = match answer {
            Answer::Extended | Answer::Downgraded => SlotState::Extended,
            Answer::Absent => SlotState::Absent,
            Answer::Other => SlotState::Other,
            Answer::Failed(failure) => SlotState::Failed(failure.clone()),
            _ => SlotState::Failed(Failure::new(FailureKind::Protocol)),
        };
    }

    /// Ends the round when its time is up: nodes without an answer have failed. The driver delivers received answers
    /// first, so a slow client does not take a received answer for silence.
    pub(crate) fn handle_time(&mut self, now: Reading) {
        if !self.due.has_come(now) {
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

    /// Returns the nodes to heal now: nodes that answered "absent" in this round, once a quorum confirmed in this round. Each
    /// node is returned once.
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

    pub(crate) fn is_confirmed_by_all(&self) -> bool {
        self.count(&SlotState::Extended) == self.slots.len()
    }

    /// Whether some node failed or answered without a confirmation.
    pub(crate) fn has_denial(&self) -> bool {
        let count = self.count(&SlotState::Extended) + self.count(&SlotState::Outstanding);
        count < self.slots.len()
    }

    /// Whether every node has answered or timed out, so that no further node can be healed in this round.
    pub(crate) fn is_over(&self) -> bool {
        self.count(&SlotState::Outstanding) == 0
    }

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
