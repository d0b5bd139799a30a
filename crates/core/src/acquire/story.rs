//! What each node said in an attempt, and why there is no lock.

use core::time::Duration;

use super::WhyNot;
use crate::command::{Failure, Holding};
use crate::quorum::Quorum;

/// Why there is no lock, as far as the nodes have said: as [`Attempt`](super::Attempt) judges, of whose nodes `open` may
/// still answer.
pub(crate) fn why_not(quorum: Quorum, nodes: &[NodeStory], open: usize) -> WhyNot {
    let count = |is: fn(&NodeSaid) -> bool| nodes.iter().filter(|story| is(&story.said)).count();
    let doubted =
        count(|said| matches!(said, NodeSaid::Failed(failure) if failure.kind().is_about_trust()));
    let refused = count(|said| matches!(said, NodeSaid::Refused(_)));
    let granted = count(|said| matches!(said, NodeSaid::Granted | NodeSaid::Seen(Holding::Free)));
    if quorum.is_out_of_reach(quorum.nodes() - doubted, 0) {
        WhyNot::Unsafe
    } else if refused > 0 && quorum.is_reached(granted + refused + open) {
        WhyNot::Contended
    } else {
        WhyNot::NoQuorum
    }
}

/// What one node said in an attempt, and when: material for an error that tells the story.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct NodeStory {
    /// What it said.
    pub said: NodeSaid,
    /// How long after the start of the attempt.
    pub took: Duration,
}

impl NodeStory {
    pub(crate) fn new(said: NodeSaid, took: Duration) -> Self {
        Self { said, took }
    }

    /// What was seen before the first attempt, as an attempt would have been told it.
    pub(crate) fn seen_as_refusal(self) -> Self {
        let said = match self.said {
            NodeSaid::Seen(held) if held != Holding::Free => NodeSaid::Refused(Some(held)),
            said => said,
        };
        Self { said, ..self }
    }
}

/// What one node said.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum NodeSaid {
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
    /// It failed.
    Failed(Failure),
}
