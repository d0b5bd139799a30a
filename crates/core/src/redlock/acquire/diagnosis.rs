//! The answers of the nodes in an attempt, and the reason of a failure.

use alloc::vec::Vec;
use core::time::Duration;

use super::Attempt;
use super::votes::Vote;
use crate::command::{Failure, FailureKind, Holding};
use crate::redlock::quorum::{NodeId, NodeSet, Quorum};
use crate::time::{BootTime, Reading};
use crate::timing::Timing;

/// The reason why an attempt failed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FailureReason {
    /// Nodes refused, and a quorum would have been possible without these refusals: another client holds the lock or
    /// contends for it.
    Contended,
    /// Too many nodes failed: no quorum was possible, whatever the other nodes answer.
    NoQuorum,
    /// A quorum granted, but too late: too little validity was left.
    TooSlow,
    /// Too many nodes are not trusted, or not trusted yet: no quorum is possible, whatever the other nodes answer.
    NodesUntrusted,
}

/// The reason why there is no quorum. `granted` and `refused` nodes answered, and `open` nodes may still answer.
///
/// Contention is never inferred from an I/O error (S26). A failure is contention only if some node refused, and if a
/// quorum would be possible had the `refused` and `open` nodes granted. The `open` nodes count, because the first
/// refusal may decide the attempt before the holder's other nodes have refused.
fn reason(
    quorum: Quorum,
    distrusted: usize,
    refused: usize,
    granted: usize,
    open: usize,
) -> FailureReason {
    if quorum.is_out_of_reach(quorum.nodes() - distrusted, 0) {
        FailureReason::NodesUntrusted
    } else if refused > 0 && quorum.is_reached(granted + refused + open) {
        FailureReason::Contended
    } else {
        FailureReason::NoQuorum
    }
}

/// The reason why there is no lock. `nodes` are the answers to an attempt, or to an inspection before it. `open` nodes
/// may still answer.
pub(crate) fn why_not(quorum: Quorum, nodes: &[NodeResult], open: usize) -> FailureReason {
    let count =
        |is: fn(&NodeOutcome) -> bool| nodes.iter().filter(|report| is(&report.said)).count();
    let distrusted = count(
        |said| matches!(said, NodeOutcome::Failed(failure) if failure.kind().is_about_trust()),
    );
    let refused = count(|said| matches!(said, NodeOutcome::Refused(_)));
    let granted =
        count(|said| matches!(said, NodeOutcome::Granted | NodeOutcome::Seen(Holding::Free)));
    reason(quorum, distrusted, refused, granted, open)
}

impl Attempt {
    /// Marks a node as failed because its vote would not count. No command goes to the node.
    pub(crate) fn bar(&mut self, node: NodeId, failure: Failure) {
        self.votes[node.index()] = Vote::Failed { failure, took: Duration::ZERO };
    }

    /// The earliest time at which the wait for a node ends; `None` if no answer is awaited.
    pub fn deadline(&self) -> Option<BootTime> {
        let timeouts = self.votes.iter().filter_map(|vote| match vote {
            Vote::Outstanding { due } => Some(*due),
            _ => None,
        });
        let raises = self
            .fence_request
            .as_ref()
            .and_then(|fence_request| fence_request.write_back.deadline());
        timeouts.chain(raises).min()
    }

    /// The nodes that a command of this attempt may have reached.
    pub(crate) fn reached(&self) -> NodeSet {
        let reached = |vote: &Vote| match vote {
            Vote::Failed { failure, .. } if mutant!(NoReleaseToTimedOut) => {
                failure.kind() != FailureKind::Silent
            }
            Vote::Failed { failure, .. } => failure.may_have_been_executed(),
            _ => true,
        };
        self.quorum.node_ids().filter(|node| reached(&self.votes[node.index()])).collect()
    }

    /// Whether a node may keep the value that the attempt attaches: it refused, failed or was not asked. Of several
    /// keys, so may each node that has not granted: a node that lacks one of them answers *absent*, and may have the
    /// others.
    pub(crate) fn may_leave_remains(&self, keys: usize) -> bool {
        let leaves = |vote: &Vote| match vote {
            Vote::Refused { .. } | Vote::Failed { .. } => true,
            Vote::Gone { .. } | Vote::Outstanding { .. } => keys > 1,
            Vote::Granted { .. } => false,
        };
        self.count(leaves) > 0
    }

    /// The nodes on which the attempt's command may still be executed, because no answer excludes this.
    pub(crate) fn unanswered(&self) -> NodeSet {
        let unanswered = |vote: &Vote| match vote {
            Vote::Outstanding { .. } => true,
            Vote::Failed { failure, .. } => failure.may_have_been_executed(),
            Vote::Granted { .. } | Vote::Refused { .. } | Vote::Gone { .. } => false,
        };
        self.quorum.node_ids().filter(|node| unanswered(&self.votes[node.index()])).collect()
    }

    /// The reason why this node failed to grant, or to record the fencing token; `None` if it has not failed.
    pub(super) fn failure(&self, node: NodeId) -> Option<&Failure> {
        match &self.votes[node.index()] {
            Vote::Failed { failure, .. } => Some(failure),
            Vote::Granted { .. } => self.fence_request.as_ref()?.write_back.failure(node),
            Vote::Outstanding { .. } | Vote::Refused { .. } | Vote::Gone { .. } => None,
        }
    }

    /// The reason of a failure if the call ends before the attempt is decided. Nodes without an answer count as failed.
    pub(crate) fn why_not_yet(&self) -> FailureReason {
        self.why_not(self.voters(), 0)
    }

    /// The reason of a failure if a quorum granted too late. Failures to record the fencing token are the reason
    /// instead if they leave too few nodes for a quorum.
    pub(super) fn why_too_late(&self, outstanding: usize) -> FailureReason {
        let voters = self.voters();
        if self.quorum.is_out_of_reach(voters, outstanding) {
            self.why_not(voters, outstanding)
        } else {
            FailureReason::TooSlow
        }
    }

    pub(super) fn why_not(&self, granted: usize, outstanding: usize) -> FailureReason {
        let distrusted = self.failures().filter(|failure| failure.kind().is_about_trust()).count();
        let refused = self.count(|vote| matches!(vote, Vote::Refused { .. }));
        reason(self.quorum, distrusted, refused, granted, outstanding)
    }

    /// Whether missing rights alone make a quorum impossible, so that a longer wait cannot help.
    pub(crate) fn is_permission_denied(&self) -> bool {
        let failed = self.failures().filter(|failure| failure.kind().is_about_rights()).count();
        self.quorum.is_out_of_reach(self.quorum.nodes() - failed, 0)
    }

    fn failures(&self) -> impl Iterator<Item = &Failure> {
        self.quorum.node_ids().filter_map(|node| self.failure(node))
    }

    pub(crate) fn granting(&self) -> impl Iterator<Item = NodeId> {
        let granted = |vote: &Vote| matches!(vote, Vote::Granted { .. });
        self.quorum.node_ids().filter(move |node| granted(&self.votes[node.index()]))
    }

    pub(crate) fn refusing(&self) -> impl Iterator<Item = NodeId> {
        let refused = |vote: &Vote| matches!(vote, Vote::Refused { .. });
        self.quorum.node_ids().filter(move |node| refused(&self.votes[node.index()]))
    }

    /// The nodes that should push the next change of the lock: all nodes that refused. If these are too few to notice
    /// every release, some nodes that granted or have not answered are added. The request for a push reaches the added
    /// nodes after the release of this attempt, so their pushes are about the next holder.
    pub(crate) fn nodes_to_watch(&self) -> NodeSet {
        let outstanding = |vote: &Vote| matches!(vote, Vote::Outstanding { .. });
        let outstanding =
            self.quorum.node_ids().filter(|node| outstanding(&self.votes[node.index()]));
        let missing = self.quorum.nodes_to_ask().saturating_sub(self.refusing().count());
        self.refusing().chain(self.granting().chain(outstanding).take(missing)).collect()
    }

    /// The answer of each node. A node that granted, but failed to raise its counter, counts as failed.
    pub(crate) fn report(&self, now: Reading) -> Vec<NodeResult> {
        let so_far = now.elapsed_since(self.started);
        let result = |(node, vote): (NodeId, &Vote)| match vote {
            Vote::Outstanding { .. } => NodeResult::new(NodeOutcome::Nothing, so_far),
            Vote::Granted { took, .. } => match self.failure(node) {
                None => NodeResult::new(NodeOutcome::Granted, *took),
                Some(failure) => NodeResult::new(NodeOutcome::Failed(failure.clone()), so_far),
            },
            Vote::Refused { took, holding } => {
                NodeResult::new(NodeOutcome::Refused(holding.as_deref().cloned()), *took)
            }
            Vote::Failed { failure, took } => {
                NodeResult::new(NodeOutcome::Failed(failure.clone()), *took)
            }
            Vote::Gone { took } => NodeResult::new(NodeOutcome::Seen(Holding::Free), *took),
        };
        self.quorum.node_ids().zip(&*self.votes).map(result).collect()
    }

    pub(super) fn count(&self, is: impl Fn(&Vote) -> bool) -> usize {
        self.votes.iter().filter(|vote| is(vote)).count()
    }
}

/// The answer of one node in an attempt, and its time. Errors show both.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct NodeResult {
    /// The answer, or the reason why there is none.
    pub said: NodeOutcome,
    /// Time from the start of the attempt to the answer.
    pub took: Duration,
}

impl NodeResult {
    pub(crate) fn new(said: NodeOutcome, took: Duration) -> Self {
        Self { said, took }
    }

    /// Adds the setting that is too short to the failure of the farthest silent node, if a setting is.
    pub(crate) fn explain_silence(
        results: &mut [Self],
        timing: &Timing,
        round_trip: impl Fn(NodeId) -> Duration,
    ) {
        let silent = results.iter_mut().enumerate().filter_map(|(index, result)| {
            let NodeOutcome::Failed(failure) = &mut result.said else { return None };
            let is_silent = failure.kind() == FailureKind::Silent && failure.detail().is_none();
            is_silent.then(|| (round_trip(NodeId::new(index)), failure))
        });
        if let Some((round_trip, failure)) = silent.max_by_key(|(round_trip, _)| *round_trip)
            && let Some(detail) = timing.too_short_for(round_trip)
        {
            *failure = failure.clone().with_detail(detail);
        }
    }

    /// The results of all nodes. An outstanding answer (`None`) becomes [`NodeOutcome::Nothing`] after `so_far`.
    pub(crate) fn all_so_far(results: &[Option<Self>], so_far: Duration) -> Vec<Self> {
        let nothing = || Self::new(NodeOutcome::Nothing, so_far);
        results.iter().map(|result| result.clone().unwrap_or_else(nothing)).collect()
    }

    /// Turns the result of an inspection before the first attempt into the answer that an attempt would have received.
    pub(crate) fn seen_as_refusal(self) -> Self {
        let said = match self.said {
            NodeOutcome::Seen(held) if held != Holding::Free => NodeOutcome::Refused(Some(held)),
            said => said,
        };
        Self { said, ..self }
    }
}

/// The answer of one node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum NodeOutcome {
    /// The node was not asked.
    NotAsked,
    /// The node has not answered yet.
    Nothing,
    /// The node granted. If the attempt failed, the vote was released.
    Granted,
    /// Another value is under the key. `Some` describes the holder, if the command asked for it.
    Refused(Option<Holding>),
    /// The state of the key that an inspection found. In an attempt, `Free` if the node lacks the key.
    Seen(Holding),
    /// The command failed.
    Failed(Failure),
}
