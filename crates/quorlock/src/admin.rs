//! The interface for quorlock's own programs. It may change in any release.
//!
//! - the nodes that a builder describes, without a client
//! - a connection to a node for questions that are not about locks
//! - a client that reads nodes only
//! - the resource of this machine that an error reports as exhausted, such as file descriptors
//! - lists that show nodes with the same answer in one entry

use std::time::Duration;

pub use quorlock_core::shown::exactly;
use quorlock_core::{Holding, RestartGuard, Value};

use crate::ClientBuilder;
pub use crate::builder::Topology;
use crate::error::Holder;
pub use crate::error::{confirmations, group, list_nodes, names};
pub use crate::exhausted::{current_thread_runtime, exhausted, explained};
pub use crate::node::custom::{Node, RedisNode};
pub use crate::node::redis::{
    AdminConnection, BESIDE, Do, KEY, REPLICAS_RIGHT, RIGHTS, RedisCli, Reply, Right, Weight,
    failure_of,
};
pub use crate::own_keys::{DATABASE, MARKER, REPLICATED, RESERVED, prefix_of_marker};

/// The time, by the clock that clients read.
pub fn now() -> quorlock_core::Reading {
    crate::Clock::System.now()
}

/// The builder of a client that reads nodes and writes nothing to them. The client must acquire no locks.
pub fn reader(builder: ClientBuilder, is_unguarded: bool) -> ClientBuilder {
    builder.only_inspects(if is_unguarded { RestartGuard::Off } else { RestartGuard::Observe })
}

/// Waits for this time.
pub async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

/// The holder that stored this value; `None` if another library stored it.
pub fn holder(value: &[u8], remaining: Option<Duration>) -> Option<Holder> {
    Value::owner_of(value)?;
    Holder::of(&Holding::Held { value: value.to_vec(), ttl: remaining })
}
