//! The figures of a client, for people.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::{Failure, Reading, TrustState, in_time};

use crate::node::NodeState;

/// Figures of a client, as [`Client::stats`](crate::Client::stats) reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Per node, in the order of the client's list.
    pub nodes: Vec<NodeStats>,
    /// Guards alive, those whose lock was lost included; none once the client's task has ended.
    pub locks_held: usize,
    /// Calls waiting for a lock: for their turn, for answers or for the next attempt.
    pub calls_waiting: usize,
    /// Tokens being released right now, or owed to a node that cannot be reached: those for the
    /// ttl at most, because then the key has expired. Intents of waiting writers that are being taken back count too.
    pub releases_owed: usize,
    /// How often a call that was waiting went on because nodes said that its lock had changed, since
    /// the client was built.
    pub wakeups: u64,
}

/// Figures of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStats {
    /// The node's name.
    pub name: Arc<str>,
    /// Whether it can be used.
    pub state: NodeState,
    /// The smoothed round trip, waiting in the server's and our own queues included; `None` before
    /// the first answer.
    pub round_trip: Option<Duration>,
    /// How often it did not answer an attempt in time, since the client was built.
    pub timeouts: u64,
    /// How many commands were given to it, since the client was built.
    pub commands: u64,
    /// Whether its votes count, as of now.
    pub trust_state: NodeTrustState,
}

/// Whether a node's votes count: see [`ClientBuilder::restart_guard`](crate::ClientBuilder::restart_guard). Printed, it says why not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeTrustState {
    /// The restart guard is off: nobody looks.
    Unguarded,
    /// It has not been looked at on this connection yet, or need not be, as a
    /// [`MemoryNode`](crate::node::MemoryNode).
    Unverified,
    /// Its votes count.
    Trusted,
    /// They do not yet.
    Quarantined {
        /// In what time they do, if nothing comes between.
        remaining: Duration,
        /// Why they do not.
        why: Arc<str>,
    },
    /// They do not, until a person has corrected this.
    Refused(Failure),
}

impl NodeTrustState {
    pub(crate) fn new(trust_state: &TrustState, now: Reading) -> Self {
        match trust_state {
            TrustState::Trusted => Self::Trusted,
            TrustState::Quarantined { until, why } => {
                Self::Quarantined { remaining: until.remaining(now), why: why.clone() }
            }
            TrustState::Refused(failure) => Self::Refused(failure.clone()),
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
                write!(f, "quarantined: {why}, its votes count {}", in_time(*remaining))
            }
            Self::Refused(failure) => write!(f, "{failure}"),
        }
    }
}
