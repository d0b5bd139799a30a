//! Whether a node's votes count: the restart guard.
//!
//! A node that comes back without its data has forgotten its votes; if it voted again while a lock
//! that it had voted for is still held, two could have a majority. The paper's answer is to keep a
//! restarted node out for as long as the longest ttl. Here every client sees to that by itself: from
//! what a node says of itself on each new connection (a connection never outlives the server), and
//! from the [marker](crate::marker), which vanishes with whatever else was deleted.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use crate::command::Failure;
use crate::marker::Cluster;
use crate::quorum::NodeSet;
use crate::time::BootTime;
use crate::token::Key;

/// How much is made of what nodes say of themselves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum RestartGuard {
    /// Votes of nodes that are not to be trusted, or not yet, do not count.
    #[default]
    Strict,
    /// Nodes are looked at as by `Strict`, and what is found is told; but all votes count, and nothing
    /// is written.
    Observe,
    /// Nodes are not looked at. For tests, and for servers whose locks nobody relies on.
    Off,
}

/// What nodes are measured by.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Rules {
    /// How much is made of it. With [`RestartGuard::Off`] there are no rules.
    pub guard: RestartGuard,
    /// What all clients must agree on.
    pub cluster: Cluster,
    /// The nodes' names, in the order of the list.
    pub names: Vec<Arc<str>>,
    /// The key of the marker.
    pub marker: Key,
    /// The key of the adoption.
    pub adoption: Key,
    /// The nodes of which the operator says that they forget nothing when they stop: every write is on
    /// the disk before it is answered, and was so before the last stop.
    pub lasting: NodeSet,
}

/// Whether a node's votes count.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Standing {
    /// It has not been looked at on this connection yet: it may be asked, and what it answers counts
    /// once it has been.
    Unverified,
    /// They do.
    Trusted,
    /// They do not yet.
    Quarantined {
        /// When it is looked at again; its votes count from then on if nothing comes between.
        until: BootTime,
        /// Why.
        why: Arc<str>,
    },
    /// They do not.
    Refused(Failure),
}

impl Rules {
    /// How long a node must have been running, or have been adopted, until its votes count: a bit
    /// more than the longest ttl (S10).
    pub fn quarantine(&self) -> Duration {
        let max_ttl = Duration::from_millis(self.cluster.max_ttl_ms());
        max_ttl + max_ttl / 100 + Duration::from_secs(2)
    }
}
