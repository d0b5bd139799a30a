//! The progress of a waiting call.

use std::sync::Arc;
use std::time::Duration;

use quorlock_core::{AttemptReport, Keys, Quorum};

use crate::error::{Holder, NodeAnswer, most_frequent};

/// The reason why a call is still waiting, after a failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiting {
    /// The number of attempts so far.
    pub attempts: u32,
    /// Time since the call began.
    pub elapsed: Duration,
    /// Whether enough nodes refused the lock because other clients hold it. False if too few nodes answered in time.
    pub contended: bool,
    /// Whether the attempt failed because too few nodes are trusted. `nodes` has the reasons and the times to wait.
    pub untrusted: bool,
    /// Each node's answer in the last attempt.
    pub nodes: Vec<NodeAnswer>,
    quorum: Quorum,
}

impl Waiting {
    pub(super) fn new(
        (names, several): (&[Arc<str>], Option<&Keys>),
        quorum: Quorum,
        report: AttemptReport,
    ) -> Self {
        Self {
            quorum,
            attempts: report.attempts,
            elapsed: report.elapsed,
            contended: report.why == quorlock_core::FailureReason::Contended,
            untrusted: report.why == quorlock_core::FailureReason::NodesUntrusted,
            nodes: NodeAnswer::all(names, several, report.nodes),
        }
    }

    /// The holder of the lock on a quorum of the nodes. `None` if no client has a quorum, because several clients have
    /// votes or because too few nodes named a holder.
    pub fn holder(&self) -> Option<Holder> {
        let (holder, nodes) = most_frequent(&self.nodes, self.quorum.needed())?;
        self.quorum.is_reached(nodes).then_some(holder)
    }
}
