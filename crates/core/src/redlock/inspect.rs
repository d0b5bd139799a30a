//! Reading the holder and remaining time of a lock from several nodes, without changing the lock.

use alloc::vec::Vec;
use core::time::Duration;

use crate::command::{Answer, Failure, FailureKind, Holding};
use crate::redlock::acquire::{NodeOutcome, NodeResult};
use crate::redlock::quorum::{NodeId, NodeSet, Quorum};
use crate::time::{BootTime, Reading};

/// One look at a lock on several nodes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Inspection {
    /// The time at which the deadline index wakes this record: its deadline or earlier.
    pub(crate) wake: Option<BootTime>,
    quorum: Quorum,
    started: Reading,
    due: BootTime,
    slots: Vec<Slot>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Slot {
    NotAsked,
    Outstanding,
    Seen {
        holding: Holding,
        at: Reading,
    },
    Failed {
        failure: Failure,
        took: Duration,
    },
    /// The node did not answer in time.
    Unheard {
        took: Duration,
    },
}

impl Inspection {
    /// Starts a look at the lock on the nodes in `asked`. It ends at `due` at the latest.
    pub(crate) fn start(quorum: Quorum, asked: NodeSet, due: BootTime, now: Reading) -> Self {
        let slot = |node| {
            if asked.contains(node) { Slot::Outstanding } else { Slot::NotAsked }
        };
        Self { wake: None, quorum, started: now, due, slots: quorum.node_ids().map(slot).collect() }
    }

    pub(crate) fn asked(&self) -> impl Iterator<Item = NodeId> {
        let asked = |slot: &Slot| !matches!(slot, Slot::NotAsked);
        self.quorum.node_ids().filter(move |node| asked(&self.slots[node.index()]))
    }

    /// Adds a node. Returns whether the node was not asked before.
    pub(crate) fn ask_too(&mut self, node: NodeId) -> bool {
        let slot = &mut self.slots[node.index()];
        let is_new = *slot == Slot::NotAsked;
        if is_new {
            *slot = Slot::Outstanding;
        }
        is_new
    }

    pub(crate) fn handle_answer(&mut self, node: NodeId, answer: &Answer, now: Reading) {
        let slot = &mut self.slots[node.index()];
        if *slot != Slot::Outstanding {
            return;
        }
        let took = now.elapsed_since(self.started);
        *slot = match answer {
            Answer::Seen(holding) | Answer::Watched(holding) => {
                Slot::Seen { holding: holding.clone(), at: now }
            }
            Answer::Failed(failure) => Slot::Failed { failure: failure.clone(), took },
            _ => Slot::Failed { failure: Failure::new(FailureKind::Protocol), took },
        };
    }

    pub(crate) fn handle_time(&mut self, now: Reading) {
        let took = now.elapsed_since(self.started);
        if self.due.has_come(now) {
            let waited_for = self.slots.iter_mut().filter(|slot| **slot == Slot::Outstanding);
            waited_for.for_each(|slot| *slot = Slot::Unheard { took });
        }
    }

    /// Whether every asked node has answered or timed out.
    pub(crate) fn is_over(&self) -> bool {
        !self.slots.contains(&Slot::Outstanding)
    }

    pub(crate) const fn deadline(&self) -> BootTime {
        self.due
    }

    pub(crate) fn seen(&self, node: NodeId) -> Option<&Holding> {
        match &self.slots[node.index()] {
            Slot::Seen { holding, .. } => Some(holding),
            _ => None,
        }
    }

    pub(crate) const fn quorum(&self) -> Quorum {
        self.quorum
    }

    pub(crate) fn report(&self, now: Reading) -> Vec<NodeResult> {
        let so_far = now.elapsed_since(self.started);
        let tell = |slot: &Slot| match slot {
            Slot::NotAsked => NodeResult::new(NodeOutcome::NotAsked, Duration::ZERO),
            Slot::Outstanding => NodeResult::new(NodeOutcome::Nothing, so_far),
            Slot::Unheard { took } => NodeResult::new(NodeOutcome::Nothing, *took),
            Slot::Seen { holding, at } => {
                NodeResult::new(NodeOutcome::Seen(holding.clone()), at.elapsed_since(self.started))
            }
            Slot::Failed { failure, took } => {
                NodeResult::new(NodeOutcome::Failed(failure.clone()), *took)
            }
        };
        self.slots.iter().map(tell).collect()
    }

    pub(crate) fn shift(&mut self, base: Reading) {
        self.wake = self.wake.map(|at| at.shifted(base));
        self.started = self.started.shifted(base);
        self.due = self.due.shifted(base);
        for slot in &mut self.slots {
            if let Slot::Seen { at, .. } = slot {
                *at = at.shifted(base);
            }
        }
    }
}
