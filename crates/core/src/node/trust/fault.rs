//! The faults that make a node's votes worthless. [`Words`], which the library supplies, describe them to people.

use alloc::format;
use alloc::string::{String, ToString as _};
use core::fmt;
use core::hash::{Hash, Hasher};

use crate::command::{Difference, Failure, FailureKind};
use crate::node::info::Incomplete;
use crate::node::marker::Cluster;
use crate::token::Key;

/// A fault of a node: its votes do not count until a person fixes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault<'a> {
    /// The node's `INFO` lacks a required part.
    Incomplete(Incomplete),
    /// The node answers `INFO` with this error.
    NoInfo(&'a str),
    /// The node is a replica.
    Replica,
    /// The node is part of a cluster.
    InCluster,
    /// The node has more replicas than this client's configuration declares.
    MoreReplicas {
        /// Number of replicas that are connected to the node.
        connected: u32,
        /// Number of replicas in the client's configuration.
        declared: u32,
    },
    /// The node deletes keys by this policy when its memory is full.
    Evicts(&'a str),
    /// The node is the same server as this other node.
    SameServer(&'a str),
    /// The node votes, or will vote, for clients with other settings.
    OtherSettings {
        /// Whether the node has the marker of the other clients. Otherwise it has their adoption, the text that starts
        /// the wait for a marker.
        is_marked: bool,
        /// Settings of the other clients.
        theirs: &'a Cluster,
        /// Settings of this client.
        ours: &'a Cluster,
    },
    /// One of the library's own keys holds a text that this version does not write.
    ForeignKey {
        /// The key's name.
        key: &'a Key,
        /// The text of the key.
        text: &'a str,
    },
}

/// Describes a fault for people. All values compare equal, because no decision depends on them.
#[derive(Clone, Copy)]
pub struct Words(pub fn(&Fault<'_>) -> String);

impl Words {
    pub(super) fn failure(self, fault: &Fault<'_>) -> Failure {
        let kind = match fault {
            Fault::SameServer(_) => FailureKind::SameServer,
            Fault::OtherSettings { .. } | Fault::ForeignKey { .. } => {
                FailureKind::OtherConfiguration
            }
            _ => FailureKind::UnsafeNode,
        };
        let failure = Failure::new(kind).with_detail((self.0)(fault));
        match fault {
            Fault::OtherSettings { theirs, .. } => {
                failure.with_difference(Difference::Settings(theirs.to_string().into()))
            }
            _ => failure,
        }
    }
}

impl Default for Words {
    /// Describes a fault by its `Debug` output.
    fn default() -> Self {
        Self(|fault| format!("{fault:?}"))
    }
}

impl PartialEq for Words {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Words {}

impl Hash for Words {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Words")
    }
}
