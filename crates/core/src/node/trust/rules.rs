//! The rules by which the restart guard judges nodes.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::{Fault, Words};
use crate::command::Failure;
use crate::node::marker::Cluster;
use crate::redlock::quorum::{NodeId, NodeSet};
use crate::token::Key;

/// How the client treats nodes that may have lost their data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum RestartGuard {
    /// The votes of a node do not count until the client trusts the node.
    #[default]
    Strict,
    /// The client examines nodes as with `Strict`, and reports the outcome. All votes count, and nothing is written.
    Observe,
    /// Nodes are not examined. Use this mode for tests, and for servers without important locks.
    Off,
}

/// The rules for whether a node's votes count.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Rules {
    /// The mode of the restart guard. With [`RestartGuard::Off`] all other rules are ignored.
    pub guard: RestartGuard,
    /// The settings that all clients must share.
    pub cluster: Cluster,
    /// The nodes' names, in the order of the client's list of nodes.
    pub names: Vec<Arc<str>>,
    /// The key of the marker.
    pub marker: Key,
    /// The key of the adoption: the text that starts the wait of a node without a valid marker.
    pub adoption: Key,
    /// The number of replicas of each node, in the order of `names`. Nodes beyond the end of `replicas` have none. A
    /// vote of a node counts only if all of its replicas acknowledge it (S35).
    pub replicas: Vec<u32>,
    /// The nodes that the operator declares durable: every write is on the disk before the server answers it, and this
    /// was also so before the server's last stop.
    pub durable: NodeSet,
    /// Describes the faults of nodes to people.
    pub words: Words,
}

impl Rules {
    /// The time for which a server must have run, or must have waited since a client wrote its adoption, until its
    /// votes count. Slightly longer than the longest ttl (S10).
    pub fn quarantine(&self) -> Duration {
        let max_ttl = Duration::from_millis(self.cluster.max_ttl_ms());
        max_ttl + max_ttl / 100 + Duration::from_secs(2)
    }

    /// Whether the quarantine is shorter than the time for which a promoted server still reports its promotion. By
    /// default, servers forget a promotion after an hour (`repl-backlog-ttl`).
    pub fn would_tell_of_promotions(&self) -> bool {
        self.quarantine() < Duration::from_secs(3600)
    }

    /// The number of replicas that must acknowledge a vote of this node.
    pub fn replicas_of(&self, node: NodeId) -> u32 {
        self.replicas.get(node.index()).copied().unwrap_or(0)
    }

    /// The failure of a node on which one of the library's own keys holds a text that this version cannot read.
    pub(super) fn unreadable(&self, key: &Key, text: &str) -> Failure {
        self.words.failure(&Fault::ForeignKey { key, text })
    }

    /// Whether the votes of untrusted nodes are ignored.
    pub(crate) fn is_strict(&self) -> bool {
        self.guard == RestartGuard::Strict
    }
}
