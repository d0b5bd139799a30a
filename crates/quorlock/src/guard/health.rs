//! How the nodes confirm a held lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::{NodeId, NodeOutcome, NodeResult, Validity};
use tokio::sync::watch;

use crate::error::{NodeAnswer, grouped};

/// How the nodes confirm a held lock: whether a quorum confirmed the last extension, and the last answer of each node.
///
/// [`Guard::health`](crate::Guard::health) returns it. Until the first extension it shows the nodes that granted the lock.
///
/// Displayed, it counts the nodes and names those that do not confirm, nodes with the same answer together:
/// `1 of 3 nodes confirms it; b, c: unreachable: connection refused`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    is_confirmed: bool,
    nodes: Vec<NodeAnswer>,
}

/// Receives the changes of a lock's [`Health`]. [`Guard::health_changes`](crate::Guard::health_changes) returns it.
///
/// It returns copies: while a reference into the channel exists, the client's task cannot update the health.
#[derive(Debug)]
pub struct HealthChanges(pub(super) watch::Receiver<Health>);

impl HealthChanges {
    /// Waits until the health changes, and returns it. Of several changes since the last call it returns the latest.
    ///
    /// Returns `None` when the client has processed the release of the lock, and at once in a forked child.
    ///
    /// # Cancel safety
    /// No change is lost if the future is dropped.
    pub async fn next(&mut self) -> Option<Health> {
        self.0.changed().await.ok()?;
        Some(self.0.borrow_and_update().clone())
    }
}

impl Health {
    /// Whether a quorum confirmed the last extension. While this is false, the lock is held until its present validity
    /// ends, and it is lost then unless a quorum confirms again.
    pub const fn is_confirmed(&self) -> bool {
        self.is_confirmed
    }

    /// The number of nodes with a confirmation as their last answer.
    pub fn confirmed(&self) -> usize {
        self.nodes.iter().filter(|node| node.said == NodeOutcome::Granted).count()
    }

    /// The last answer of each node, in the order of the client's list. [`NodeOutcome::Granted`] is a confirmation.
    /// A node that has not answered since the lock was requested has [`NodeOutcome::Nothing`].
    pub fn nodes(&self) -> &[NodeAnswer] {
        &self.nodes
    }

    /// The nodes with a last answer other than a confirmation. Nodes that have not answered yet are not among them.
    pub fn unconfirmed(&self) -> impl Iterator<Item = &NodeAnswer> {
        self.nodes.iter().filter(|node| node.denial().is_some())
    }

    /// The text of [`Health::unconfirmed`], nodes with the same answer together:
    /// `b, c: unreachable: connection refused; d: no answer in time`. Empty if all nodes confirm the lock.
    pub fn reasons(&self) -> String {
        grouped(self.unconfirmed())
    }

    /// The health at the grant, before [`note_votes`](Self::note_votes) adds the votes.
    pub(super) fn granted(names: &[Arc<str>]) -> Self {
        let nothing = NodeResult { said: NodeOutcome::Nothing, took: Duration::ZERO };
        let results = vec![nothing; names.len()];
        Self { is_confirmed: true, nodes: NodeAnswer::all(names, None, results) }
    }

    /// Notes votes that arrived after the grant. The engine reports nothing while all nodes confirm the lock, so these votes
    /// come from the hold.
    pub(super) fn note_votes(&mut self, validity: &Validity) {
        for (id, node) in self.nodes.iter_mut().enumerate() {
            if node.said == NodeOutcome::Nothing && validity.has_vote_of(NodeId::new(id)) {
                node.said = NodeOutcome::Granted;
            }
        }
    }

    /// The health that a forked child shows: no nodes, because the lock is the parent's.
    pub(super) const fn unknown() -> Self {
        Self { is_confirmed: false, nodes: Vec::new() }
    }

    /// Notes the nodes' answers to an extension. A node that has not answered keeps its last answer. Returns whether
    /// receivers of the health must be notified.
    pub(super) fn update(&mut self, is_confirmed: bool, results: Vec<NodeResult>) -> bool {
        let mut is_different = self.is_confirmed != is_confirmed;
        self.is_confirmed = is_confirmed;
        let answered = |(_, result): &(_, NodeResult)| result.said != NodeOutcome::Nothing;
        for (node, NodeResult { said, took }) in self.nodes.iter_mut().zip(results).filter(answered)
        {
            is_different |= match (&node.said, &said) {
                // A detail may be a countdown ("its votes count in 29 s"), so only another kind of failure is a change.
                (NodeOutcome::Failed(last), NodeOutcome::Failed(now)) => last.kind() != now.kind(),
                (last, now) => last != now,
            };
            (node.said, node.took) = (said, took);
        }
        is_different
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (confirmed, of) = (self.confirmed(), self.nodes.len());
        let verb = if confirmed == 1 { "confirms" } else { "confirm" };
        write!(f, "{confirmed} of {of} nodes {verb} it")?;
        let reasons = self.reasons();
        if reasons.is_empty() { Ok(()) } else { write!(f, "; {reasons}") }
    }
}

#[cfg(test)]
mod tests {
    use quorlock_core::{Failure, FailureKind};

    use super::*;

    #[test]
    fn another_detail_of_the_same_failure_is_no_news() {
        let mut health = Health::granted(&["a".into()]);
        let mut update = |kind, detail: &str| {
            let said = NodeOutcome::Failed(Failure::new(kind).with_detail(detail));
            health.update(true, vec![NodeResult { said, took: Duration::ZERO }])
        };
        assert!(update(FailureKind::Quarantined, "its votes count in 29 s"));
        assert!(!update(FailureKind::Quarantined, "its votes count in 25 s"));
        assert!(update(FailureKind::Unreachable, "Connection refused"));
        assert_eq!(health.reasons(), "a: unreachable: Connection refused");
    }
}
