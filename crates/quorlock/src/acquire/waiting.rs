//! What is known of a call that waits.

use std::sync::Arc;
use std::time::Duration;

use quorlock_core::{AttemptReport, Keys, Quorum};

use crate::error::{Holder, NodeAnswer, most_frequent};

/// Why a call is still waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiting {
    /// How many attempts there were.
    pub attempts: u32,
    /// Time since the call.
    pub elapsed: Duration,
    /// Enough nodes answered, and refused; else too few answered, or too late.
    pub contended: bool,
    /// Too many nodes are not trusted, or not yet, for a quorum. `nodes` says why, and when they
    /// are.
    pub untrusted: bool,
    /// What each node said in the last attempt.
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

    /// Who holds the lock: on a quorum of the nodes. `None` if nobody was seen to: then the nodes are shared by several, or
    /// too few of them told who it is.
    pub fn holder(&self) -> Option<Holder> {
        let (holder, nodes) = most_frequent(&self.nodes, self.quorum.needed())?;
        self.quorum.is_reached(nodes).then_some(holder)
    }
}
