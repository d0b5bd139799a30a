//! The outcome of a release, as callers see it.

use quorlock_core::{NodeReleased, Outcome, ReleaseReport};

use super::Reply;
use crate::client::context::Names;

/// The outcome of a release.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "it tells whether the lock was held until the release"]
#[non_exhaustive]
pub struct Released {
    /// The outcome, by the client's clock and the nodes' answers.
    pub outcome: Outcome,
    /// Whether the lock went to the next waiting call of this client. Then the client asked no node, and other clients
    /// still find the lock held.
    pub handed_over: bool,
    names: Names,
    nodes: Vec<NodeReleased>,
}

impl Released {
    pub(super) fn new(reply: Option<Reply>, names: Names) -> Self {
        let report = match reply {
            Some(Reply::Released(report)) => Some(report),
            _ => None,
        };
        Self::of_report(report, names)
    }

    /// The outcome is unknown if the driver has ended without a report.
    pub(crate) fn of_report(report: Option<ReleaseReport>, names: Names) -> Self {
        match report {
            Some(ReleaseReport { outcome, handed_over, nodes }) => {
                Self { outcome, handed_over, names, nodes }
            }
            None => {
                Self { outcome: Outcome::Unknown, handed_over: false, names, nodes: Vec::new() }
            }
        }
    }

    /// The name and the answer of each node, in the order of the client's list. Empty if the client was shut down, or its
    /// runtime has ended.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, &NodeReleased)> {
        self.names.iter().map(|name| &**name).zip(&self.nodes)
    }

    /// Whether the lock was valid until its release.
    pub fn is_released(&self) -> bool {
        self.outcome == Outcome::Released
    }
}
