//! The faults that make a node's votes worthless. [`Words`], which the library supplies, describe them to people.

use alloc::format;
use alloc::string::String;
use core::fmt;
use core::hash::{Hash, Hasher};

use crate::command::{Failure, FailureKind};
use crate::node::info::Incomplete;
use crate::node::marker::Cluster;
use crate::token::Key;

/// A fault of a node: its votes do not count until a person fixes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault<'a> {
    /// Its `INFO` lacks something.
    Incomplete(Incomplete),
    /// It answers `INFO` with this error.
    NoInfo(&'a str),
    /// It is a replica.
    Replica,
    /// It is part of a cluster.
    InCluster,
    /// It deletes keys when its memory is full, by this policy.
    Evicts(&'a str),
    /// It is the same server as this other node.
    SameServer(&'a str),
    /// It votes for clients with other settings.
    OtherSettings {
        /// It is marked for them; if not, it is being taken into use.
        is_marked: bool,
        /// Settings of the others.
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

/// Puts a fault into words for people. All are equal: no decision depends on them.
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
        Failure::new(kind).with_detail((self.0)(fault))
    }
}

impl Default for Words {
    /// The fault as the code has it.
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
