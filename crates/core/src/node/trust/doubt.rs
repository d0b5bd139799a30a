//! Whether a node's answer to a look counts, and what is known of a loss of its data. A look is an inspection of a
//! lock, or a list of locks.
//!
//! A node that reports a holder is always believed. A node that reports a free lock may have forgotten a holder, or may
//! not be the server that votes any more. So this answer counts only if a vote of the node would count as well.

use alloc::format;
use core::hash::{Hash, Hasher};

use super::{EXAMINE_EVERY, EXAMINE_SOONEST, NodeMonitor, NodeTrust, Step, Todo, TrustState};
use crate::command::{Failure, FailureKind};
use crate::node::evidence::MarkerSeen;
use crate::node::info::Info;
use crate::redlock::quorum::NodeId;
use crate::time::Reading;

/// The replicas of a node's present server when they were last counted. All values compare equal, because no decision
/// about a lock depends on them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReplicasSeen {
    /// Number of connected replicas, by `INFO`; `None` before the first answer.
    pub(super) connected: Option<u32>,
    /// Number of replicas that acknowledged the last vote; `None` before the first vote.
    pub(super) acknowledging: Option<u32>,
}

impl PartialEq for ReplicasSeen {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ReplicasSeen {}

impl Hash for ReplicasSeen {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl NodeTrust {
    /// Whether the node was trusted and then lost all its data, as far as this client knows: the node has announced
    /// that, or its server is another run. A marker that was deleted like any other key is no such loss.
    pub(crate) const fn has_lost_data(&self) -> bool {
        self.has_lost_data
    }

    /// Notes a loss of data by the evidence of a batch, before the evidence is evaluated: see
    /// [`has_lost_data`](Self::has_lost_data).
    pub(super) fn note_loss(
        &mut self,
        epoch: (u64, u64),
        info: Option<&Info>,
        marker: &MarkerSeen,
    ) {
        let is_other_run =
            || info.is_some_and(|info| self.run.id.as_deref() != Some(&*info.run_id));
        if self.is_trusted() && epoch > self.epoch {
            self.has_lost_data = epoch.0 == self.epoch.0 || is_other_run();
        }
        if matches!(marker, MarkerSeen::Text(_)) {
            self.has_lost_data = false;
        }
    }
}

impl NodeMonitor {
    /// Examines a node whose data may have been deleted or replaced. Until its answer it is sent nothing that prolongs
    /// a key without a guard (S36). Answers from before that still count: a key that was gone then is a lost vote
    /// (S11).
    pub(crate) fn examine_again(&mut self, node: NodeId, todo: &mut Todo) {
        let trust = self.node_mut(node);
        if trust.is_trusted() && !mutant!(FlushKeepsTrust) {
            trust.has_new_data = true;
            if trust.review.step == Step::Rest {
                trust.identify(node, todo);
            }
        }
    }

    /// The reason why a node's answer that a lock is free does not count; `None` if it counts. `answered_on` is the
    /// connection of the answer, and the number of flushes that the node had announced on it by then.
    pub(crate) fn doubt(
        &self,
        node: NodeId,
        answered_on: (u64, u64),
        now: Reading,
    ) -> Option<Failure> {
        let trust = self.node(node);
        let needed = self.rules.replicas_of(node);
        let counts = match &trust.trust_state {
            TrustState::Trusted => true,
            // All locks that the node may have forgotten have ended by then.
            TrustState::Quarantined { until, .. } => until.remaining(now).is_zero(),
            TrustState::Unverified | TrustState::Refused(_) => false,
        };
        if !counts {
            return Some(self.distrust_reason(node, now));
        }
        if trust.epoch != answered_on {
            let detail = "its data or its server were replaced a moment ago";
            return Some(Failure::new(FailureKind::Unverified).with_detail(detail));
        }
        let ReplicasSeen { connected, acknowledging } = trust.replicas;
        let seen = [connected, acknowledging].into_iter().flatten().min();
        let seen = seen.filter(|seen| *seen < needed)?;
        let detail = format!(
            "it has {seen} of {needed} replicas, so another server may have taken its place"
        );
        Some(Failure::new(FailureKind::Unverified).with_detail(detail))
    }

    /// Examines a trusted node, unless it was examined within [`EXAMINE_SOONEST`].
    pub(crate) fn refresh(&mut self, node: NodeId, now: Reading, todo: &mut Todo) {
        let trust = self.node_mut(node);
        let is_recent = trust
            .review
            .due
            .is_some_and(|due| due.remaining(now) + EXAMINE_SOONEST > EXAMINE_EVERY);
        if trust.is_trusted() && trust.review.step == Step::Rest && !is_recent {
            trust.identify(node, todo);
        }
    }

    /// The failure of votes that too few replicas of the node have acknowledged (S35). Such a vote may be missing on
    /// the replica that is promoted next, or come from a master whose replica was promoted already.
    pub(crate) fn unacknowledged(
        &mut self,
        node: NodeId,
        acknowledged: Option<&Result<u32, Failure>>,
    ) -> Option<Failure> {
        let needed = self.rules.replicas_of(node);
        if needed == 0 || mutant!(UnacknowledgedCounts) {
            return None;
        }
        if let Some(Ok(count)) = acknowledged {
            self.node_mut(node).replicas.acknowledging = Some(*count);
        }
        let count = match acknowledged {
            Some(Ok(count)) if *count >= needed => return None,
            Some(Ok(count)) => format!("{count} of {needed} replicas have it"),
            Some(Err(failure)) => format!("WAIT failed: {failure}"),
            None => return Some(Failure::new(FailureKind::Unacknowledged)),
        };
        Some(Failure::new(FailureKind::Unacknowledged).with_detail(count))
    }
}
