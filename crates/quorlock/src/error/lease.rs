//! The errors of calls about detached locks.

use std::sync::Arc;
use std::time::Duration;

use quorlock_core::{LossCause, NodeOutcome, Quorum};

use super::InvalidRequest;
use super::node::{NodeAnswer, confirmations};
use crate::lease::{LeaseKind, LeaseTextError};
use crate::text::quoted;

/// The reason why a call about a detached lock failed, or why an extension of a lock by its value alone failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// The text is not a lease. No command about the lock was sent.
    #[error(transparent)]
    Text(#[from] LeaseTextError),
    /// A client with another configuration made the lease. No command about the lock was sent.
    #[error(
        "the lease of lock {} belongs to another configuration: {difference}; \
         use the settings of the program that made the lease", quoted(.resource)
    )]
    OtherCluster {
        /// The resource's name.
        resource: Arc<str>,
        /// The difference between the two configurations.
        difference: String,
    },
    /// The end of the lease has passed. No command about the lock was sent.
    #[error(
        "the lease of lock {} is over: its end has passed, so another client may hold the lock; \
         acquire the lock again", quoted(.resource)
    )]
    Over {
        /// The resource's name.
        resource: Arc<str>,
    },
    /// The call does not accept leases of this kind. No command about the lock was sent.
    #[error("the lease of lock {} {}", quoted(.resource), wrong_kind(*.kind))]
    Kind {
        /// The resource's name.
        resource: Arc<str>,
        /// The kind of the lease.
        kind: LeaseKind,
    },
    /// The call has a shorter ttl than the lease, so no command about the lock was sent. Keys with the ttl of the lease
    /// would outlive the lock.
    #[error(
        "the lease of lock {} has a ttl of {lease_ttl:?}, and the call one of {ttl:?}; choose {lease_ttl:?} or more",
        quoted(.resource)
    )]
    TtlTooShort {
        /// The resource's name.
        resource: Arc<str>,
        /// The ttl of the call.
        ttl: Duration,
        /// The ttl of the lease.
        lease_ttl: Duration,
    },
    /// The extension would reach past `max_hold` of the call that acquired the lock, so no command about the lock was
    /// sent. The lock is held until the end of the lease.
    #[error(
        "lock {} not extended or attached: that would reach past max_hold; release the lock, and acquire it again",
        quoted(.resource)
    )]
    HoldLimit {
        /// The resource's name.
        resource: Arc<str>,
    },
    /// Too few nodes confirmed the call in time. No key was deleted. The lock is held for as long as before, or longer if
    /// some nodes confirmed.
    #[error(
        "lock {} not confirmed, {needed} of {} nodes must confirm; {}",
        quoted(.resource), .nodes.len(), confirmations(.nodes, *.needed)
    )]
    Unconfirmed {
        /// The resource's name.
        resource: Arc<str>,
        /// The answer of each node.
        nodes: Vec<NodeAnswer>,
        /// Number of nodes that must confirm.
        needed: usize,
    },
    /// Too many nodes no longer have the value of the lock, so no quorum is left. The lock expired or was released, or
    /// another process has attached it.
    #[error(
        "lock {} is lost: it expired or was released, or another process has taken it over; \
         acquire the lock again; {}", quoted(.resource), confirmations(.nodes, *.needed)
    )]
    Lost {
        /// The resource's name.
        resource: Arc<str>,
        /// The answer of each node.
        nodes: Vec<NodeAnswer>,
        /// Number of nodes that must confirm.
        needed: usize,
    },
    /// The arguments of the call are invalid. No command about the lock was sent.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// The client, or the runtime on which it was built, was shut down.
    #[error("lock {}: the client is shut down", quoted(.resource))]
    Closed {
        /// The resource's name.
        resource: Arc<str>,
    },
}

impl LeaseError {
    /// The error of an extension that no quorum confirmed.
    pub(crate) fn unconfirmed(resource: Arc<str>, quorum: Quorum, nodes: Vec<NodeAnswer>) -> Self {
        let is_gone = |node: &&NodeAnswer| {
            matches!(node.said, NodeOutcome::Seen(_) | NodeOutcome::Refused(_))
        };
        let gone = nodes.iter().filter(is_gone).count();
        let needed = quorum.needed();
        match quorum.is_out_of_reach(quorum.nodes() - gone, 0) {
            true => Self::Lost { resource, nodes, needed },
            false => Self::Unconfirmed { resource, nodes, needed },
        }
    }

    /// Returns the answer of each node. Empty if the call sent nothing.
    pub fn nodes(&self) -> &[NodeAnswer] {
        match self {
            Self::Unconfirmed { nodes, .. } | Self::Lost { nodes, .. } => nodes,
            _ => &[],
        }
    }
}

/// The reason why a call does not accept leases of this kind, and the call that does.
const fn wrong_kind(kind: LeaseKind) -> &'static str {
    match kind {
        LeaseKind::Fenced => "has a fencing token; use attach_fenced",
        LeaseKind::Taken => {
            "has a value that its caller chose, and cannot be attached; extend or release it by the lease"
        }
        _ => "has no fencing token; use attach",
    }
}

/// The reason why a lock was not detached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DetachError {
    /// The lock is lost and never becomes valid again. The client releases its keys on all nodes.
    #[error("lock {} not detached, it is lost: {cause}", quoted(.resource))]
    Lost {
        /// The resource's name.
        resource: Arc<str>,
        /// The cause of the loss.
        cause: LossCause,
    },
    /// Too few nodes have answered all commands of this lock, so no other process could attach it. The client releases
    /// the lock.
    #[error(
        "lock {} not detached: too few nodes have answered all commands about it; acquire it again",
        quoted(.resource)
    )]
    Unanswered {
        /// The resource's name.
        resource: Arc<str>,
    },
    /// The client, or the runtime on which it was built, was shut down.
    #[error("lock {} not detached: the client is shut down", quoted(.resource))]
    Closed {
        /// The resource's name.
        resource: Arc<str>,
    },
}

#[cfg(test)]
mod tests {
    use quorlock_core::{Failure, FailureKind, Holding, NodeResult};

    use super::*;

    /// The error of an extension that three nodes answered like this. Two of these nodes are a quorum.
    fn unconfirmed(said: [NodeOutcome; 3]) -> LeaseError {
        let names = ["a", "b", "c"].map(Arc::from);
        let results = said.map(|said| NodeResult { said, took: Duration::from_millis(50) });
        let nodes = NodeAnswer::all(&names, None, results.into());
        LeaseError::unconfirmed("deploy\n".into(), Quorum::majority(3).unwrap(), nodes)
    }

    #[test]
    fn a_lease_is_lost_if_the_other_nodes_are_no_quorum() {
        let silent = || NodeOutcome::Nothing;
        let failed = || NodeOutcome::Failed(Failure::new(FailureKind::Unreachable));
        let gone = || NodeOutcome::Seen(Holding::Free);
        let other = || NodeOutcome::Refused(None);
        for (said, expected) in [
            (
                [silent(), failed(), NodeOutcome::Granted],
                "lock \"deploy\\n\" not confirmed, 2 of 3 nodes must confirm; \
                 node a had not answered after 50.0ms; node b failed: unreachable; node c confirmed",
            ),
            (
                [gone(), failed(), silent()],
                "lock \"deploy\\n\" not confirmed, 2 of 3 nodes must confirm; \
                 node a free; node b failed: unreachable; node c: no answer was needed",
            ),
            (
                [other(), other(), silent()],
                "lock \"deploy\\n\" is lost: it expired or was released, or another process has taken it over; \
                 acquire the lock again; nodes a, b: the key has another value; node c: no answer was needed",
            ),
            (
                [gone(), other(), NodeOutcome::Granted],
                "lock \"deploy\\n\" is lost: it expired or was released, or another process has taken it over; \
                 acquire the lock again; node a free; node b: the key has another value; node c confirmed",
            ),
        ] {
            let error = unconfirmed(said);
            assert_eq!(error.to_string(), expected);
            assert_eq!(error.nodes().len(), 3);
        }
    }
}
