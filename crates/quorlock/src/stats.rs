//! The figures of a client.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::{Failure, Reading, TrustState, in_time};

use crate::node::NodeState;

/// Figures of a client, as [`Client::stats`](crate::Client::stats) reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The figures of each node, in the order of the client's list.
    pub nodes: Vec<NodeStats>,
    /// Number of nodes that must grant a lock. If fewer [would vote](NodeStats::would_vote), no lock can be granted now.
    pub quorum: usize,
    /// Guards alive, including those whose lock was lost. Zero once the client's task has ended.
    pub locks_held: usize,
    /// Calls waiting for a lock: in the local queue, for answers or for the next attempt.
    pub calls_waiting: usize,
    /// Tokens that are being released, or owed to a node that cannot be reached. A token is owed for its ttl at most,
    /// because then its key has expired. Intents of waiting writers that are being taken back count too.
    pub releases_owed: usize,
    /// Times that a waiting call went on because nodes reported a change of its lock, since the client was built.
    pub wakeups: u64,
}

/// Figures of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStats {
    /// The node's name.
    pub name: Arc<str>,
    /// Whether the node can be used.
    pub state: NodeState,
    /// The smoothed round trip, including the time in the server's and the client's queues. `None` before the first
    /// answer.
    pub round_trip: Option<Duration>,
    /// Attempts that the node did not answer in time, since the client was built.
    pub timeouts: u64,
    /// Commands given to the node, since the client was built.
    pub commands: u64,
    /// Whether the node's votes count. Whether the node can be reached is in `state`.
    pub trust_state: NodeTrustState,
    /// Whether the node would vote for a lock now: it is connected, and its votes count. With the restart guard `observe`:
    /// whether they would count for a client with `strict`.
    pub would_vote: bool,
}

/// Whether a node's votes count; see [`ClientBuilder::restart_guard`](crate::ClientBuilder::restart_guard). `Display`
/// shows the reason if they do not. Whether the node would vote now, for which it must be reachable as well, is
/// [`NodeStats::would_vote`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeTrustState {
    /// The restart guard is off, so all votes count.
    Unguarded,
    /// The client has not checked the node on this connection yet, or need not check it because it is a
    /// [`MemoryNode`](crate::node::MemoryNode). A node whose votes did not count, and that cannot be reached now, is
    /// unverified as well.
    Unverified,
    /// The node's votes count.
    Trusted,
    /// The node's votes do not count yet.
    Quarantined {
        /// The time until the votes count, unless the node is restarted again.
        remaining: Duration,
        /// The reason.
        why: Arc<str>,
    },
    /// The node's votes do not count until a person has corrected the failure.
    Refused(Failure),
}

impl NodeTrustState {
    pub(crate) fn new(trust_state: &TrustState, state: &NodeState, now: Reading) -> Self {
        let is_down = matches!(state, NodeState::Suspended(_) | NodeState::Down(_));
        match trust_state {
            TrustState::Trusted => Self::Trusted,
            TrustState::Quarantined { until, why } if !is_down => {
                Self::Quarantined { remaining: until.remaining(now), why: why.clone() }
            }
            TrustState::Refused(failure) if !is_down => Self::Refused(failure.clone()),
            _ => Self::Unverified,
        }
    }
}

impl fmt::Display for NodeTrustState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unguarded => f.write_str("not looked at"),
            Self::Unverified => f.write_str("not verified"),
            Self::Trusted => f.write_str("votes"),
            Self::Quarantined { remaining, why } => {
                write!(f, "quarantined: {why}; its votes count {}", in_time(*remaining))
            }
            Self::Refused(failure) => write!(f, "{failure}"),
        }
    }
}
