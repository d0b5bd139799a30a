//! For quorlock's own programs alone, not API-stable: the nodes of a client that is not built, a connection to a
//! node for questions that no lock asks, and the names of exhausted resources.

pub use crate::builder::Topology;
pub use crate::exhausted::{exhausted, explained};
pub use crate::node::redis::{AdminConnection, Do, RedisCli, Reply};

/// The time, by the clock that clients read.
pub fn now() -> quorlock_core::Reading {
    crate::Clock::System.now()
}
