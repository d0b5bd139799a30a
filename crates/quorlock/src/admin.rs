//! For `quorlock-admin` alone, not API-stable: the nodes of a client that is not built, and a connection to a
//! node for questions that no lock asks.

pub use crate::builder::Topology;
pub use crate::node::redis::{AdminConnection, Do, RedisCli, Reply};

/// The time, by the clock that clients read.
pub fn now() -> quorlock_core::Reading {
    crate::Clock::System.now()
}
