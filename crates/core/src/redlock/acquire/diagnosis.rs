//! What each node said in an attempt, and why there is no lock.

use core::time::Duration;

use super::FailureReason;
use crate::command::{Failure, Holding};
use crate::redlock::quorum::Quorum;

/// Why there is no lock, as far as the nodes have said: as [`Attempt`](super::Attempt) judges, of whose nodes `open` may
/// still answer.
pub(crate) fn why_not(quorum: Quorum, nodes: &[NodeResult], open: usize) -> FailureReason {
    let count =
        |is: fn(&NodeOutcome) -> bool| nodes.iter().filter(|report| is(&report.said)).count();
    let distrusted = count(
        |said| matches!(said, NodeOutcome::Failed(failure) if failure.kind().is_about_trust()),
    );
    let refused = count(|said| matches!(said, NodeOutcome::Refused(_)));
    let granted =
        count(|said| matches!(said, NodeOutcome::Granted | NodeOutcome::Seen(Holding::Free)));
    if quorum.is_out_of_reach(quorum.nodes() - distrusted, 0) {
        FailureReason::NodesUntrusted
    } else if refused > 0 && quorum.is_reached(granted + refused + open) {
        FailureReason::Contended
    } else {
        FailureReason::NoQuorum
    }
}

/// What one node said in an attempt, and when: material for an error that tells the story.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct NodeResult {
    /// What it said.
    pub said: NodeOutcome,
    /// How long after the start of the attempt.
    pub took: Duration,
}

impl NodeResult {
    pub(crate) fn new(said: NodeOutcome, took: Duration) -> Self {
        Self { said, took }
    }

    /// What was seen before the first attempt, as an attempt would have been told it.
    pub(crate) fn seen_as_refusal(self) -> Self {
        let said = match self.said {
            NodeOutcome::Seen(held) if held != Holding::Free => NodeOutcome::Refused(Some(held)),
            said => said,
        };
        Self { said, ..self }
    }
}

/// What one node said.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum NodeOutcome {
    /// It was not asked.
    NotAsked,
    /// It has not answered yet.
    Nothing,
    /// It gave its vote (and got it back, if the attempt failed).
    Granted,
    /// It holds the key for somebody; for whom, if it was asked.
    Refused(Option<Holding>),
    /// What an inspection saw.
    Seen(Holding),
    /// The command failed.
    Failed(Failure),
}
