//! Nodes: independent masters with one vote each.
//!
//! [`NodeConfig`] describes a server. [`MemoryNode`] stands for a server in your tests.
//!
//! The feature `unstable-node` adds the trait `Node` for other transports, `RedisNode` to wrap a server, and
//! `conformance`, the suite that every implementation must pass. This part may change in any release.

mod config;
#[cfg(feature = "unstable-node")]
pub mod conformance;
mod credentials;
#[cfg_attr(
    not(feature = "unstable-node"),
    allow(
        dead_code,
        rustdoc::private_intra_doc_links,
        unreachable_pub,
        unused_imports,
        reason = "only authors of a node use all of it"
    )
)]
pub(crate) mod custom;
mod memory;
mod push_sink;
pub(crate) mod ready;
pub(crate) mod redis;
pub(crate) mod transport;

use std::ops::Deref;
use std::sync::Arc;

pub use self::config::{NodeConfig, NodeConfigError, Tls};
pub use self::credentials::Credentials;
pub(crate) use self::custom::Stamp;
#[cfg(not(feature = "unstable-node"))]
pub(crate) use self::custom::*;
#[cfg(feature = "unstable-node")]
pub use self::custom::*;
pub use self::memory::MemoryNode;
pub(crate) use self::push_sink::Inbox;
pub use quorlock_core::{Failure, FailureKind, Holding, NodeState};

/// A node of a client.
#[derive(Clone, Debug)]
pub(crate) enum ClientNode {
    /// A server. The driver owns the connection to it.
    Server(RedisNode),
    /// A node of any other kind. The driver uses it through the trait [`Node`].
    Custom(Arc<dyn Node>),
}

impl ClientNode {
    /// The database with the locks; zero for a node that is not a server.
    pub(crate) fn database(&self) -> u32 {
        match self {
            Self::Server(server) => server.database(),
            Self::Custom(_) => 0,
        }
    }
}

impl Deref for ClientNode {
    type Target = dyn Node;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Server(server) => server,
            Self::Custom(node) => &**node,
        }
    }
}
