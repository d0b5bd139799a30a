//! One round of extending a held lock: the answer of each node.
//!
//! The round only counts answers. The [held lock](crate::redlock::held_lock) updates its votes with each answer, so
//! even a failed round keeps the votes that it prolonged.

use alloc::vec::Vec;
use core::time::Duration;

use crate::command::{Answer, Failure, FailureKind, Holding};
use crate::redlock::acquire::{NodeOutcome, NodeResult};
use crate::redlock::quorum::{NodeId, NodeSet, Quorum};
use crate::time::{BootTime, Reading};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Extension {
    pub(crate) round: u32,
    quorum: Quorum,
    pub(crate) started: Reading,
    pub(crate) due: BootTime,
    /// The result of each node; `None` while its answer is outstanding.
    results: Vec<Option<NodeResult>>,
    healing: NodeSet,
    pub(crate) is_awaited: bool,
    /// Whether the engine has reported the outcome to the holder. Afterwards this round can only heal nodes.
    pub(crate) is_reported: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use]
pub(crate) enum Progress {
    Open,
    Confirmed,
    Failed,
}

impl Extension {
    /// Starts a round, whose command goes to every node now. It ends at `due` at the latest.
    pub(crate) fn start(round: u32, quorum: Quorum, due: BootTime, now: Reading) -> Self {
        Self {
            round,
            quorum,
            started: now,
            due,
            results: alloc::vec![None; quorum.nodes()],
            healing: NodeSet::default(),
            is_awaited: false,
            is_reported: false,
        }
    }

    pub(crate) fn handle_answer(&mut self, node: NodeId, answer: &Answer, now: Reading) {
        let said = match answer {
            Answer::Extended | Answer::Downgraded => NodeOutcome::Granted,
            Answer::Absent => NodeOutcome::Seen(Holding::Free),
            Answer::Other => NodeOutcome::Refused(None),
            Answer::Failed(failure) => NodeOutcome::Failed(failure.clone()),
            _ => NodeOutcome::Failed(Failure::new(FailureKind::Protocol)),
        };
        let took = now.elapsed_since(self.started);
        self.results[node.index()].get_or_insert(NodeResult::new(said, took));
    }

    /// Whether the node's answer is outstanding.
    pub(crate) fn awaits(&self, node: NodeId) -> bool {
        self.results[node.index()].is_none()
    }

    /// Ends the round when its time is up: nodes without an answer have failed. The driver delivers received answers
    /// first, so a slow client does not take a received answer for silence.
    pub(crate) fn handle_time(&mut self, now: Reading) {
        if self.due.has_come(now) {
            let silent = NodeOutcome::Failed(Failure::new(FailureKind::Silent));
            let silent = NodeResult::new(silent, now.elapsed_since(self.started));
            for result in &mut self.results {
                result.get_or_insert_with(|| silent.clone());
            }
        }
    }

    /// Returns the nodes to heal now: nodes that answered "absent" in this round, once a quorum confirmed in this
    /// round. Each node is returned once.
    pub(crate) fn take_healable(&mut self) -> NodeSet {
        let mut healable = NodeSet::default();
        if self.quorum.is_reached(self.confirmed()) {
            for (node, result) in self.quorum.node_ids().zip(&self.results) {
                let is_absent = |it: &NodeResult| it.said == NodeOutcome::Seen(Holding::Free);
                if result.as_ref().is_some_and(is_absent) && !self.healing.contains(node) {
                    self.healing.insert(node);
                    healable.insert(node);
                }
            }
        }
        healable
    }

    pub(crate) fn progress(&self) -> Progress {
        let confirmed = self.confirmed();
        if self.quorum.is_reached(confirmed) {
            Progress::Confirmed
        } else if self.quorum.is_out_of_reach(confirmed, self.outstanding()) {
            Progress::Failed
        } else {
            Progress::Open
        }
    }

    pub(crate) fn is_confirmed_by_all(&self) -> bool {
        self.confirmed() == self.results.len()
    }

    /// Whether some node failed, or answered and did not confirm its vote.
    pub(crate) fn has_denial(&self) -> bool {
        self.confirmed() + self.outstanding() < self.results.len()
    }

    /// Whether every node has answered or timed out, so that no further node can be healed in this round.
    pub(crate) fn is_over(&self) -> bool {
        self.outstanding() == 0
    }

    pub(crate) fn report(&self, now: Reading) -> Vec<NodeResult> {
        NodeResult::all_so_far(&self.results, now.elapsed_since(self.started))
    }

    pub(crate) fn shift(&mut self, base: Reading) {
        self.started = self.started.shifted(base);
        self.due = self.due.shifted(base);
        self.results.iter_mut().flatten().for_each(|result| result.took = Duration::ZERO);
    }

    fn confirmed(&self) -> usize {
        let granted = |result: &&NodeResult| result.said == NodeOutcome::Granted;
        self.results.iter().flatten().filter(granted).count()
    }

    fn outstanding(&self) -> usize {
        self.results.iter().filter(|result| result.is_none()).count()
    }
}
