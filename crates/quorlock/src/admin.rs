//! The interface for quorlock's own programs. It may change in any release.
//!
//! - the nodes that a builder describes, without a client, and a node for tests that compare nodes
//! - a connection to a node for questions that are not about locks
//! - a client that reads nodes only
//! - the resource of this machine that an error reports as exhausted, such as file descriptors
//! - the command that gives nodes the settings of a builder
//! - lists that show nodes with the same answer in one entry

use std::time::Duration;

pub use quorlock_core::display::{ceil_ms, exactly};
use quorlock_core::{Holding, RestartGuard, Value};

pub use crate::builder::Topology;
use crate::error::{Holder, InvalidRequest};
pub use crate::error::{confirmations, group, list_nodes, names};
pub use crate::init_command::{AgreedSettings, BECOMES, InitCommand};
pub use crate::node::redis::{
    AdminConnection, Do, KEY, REPLICAS_RIGHT, RIGHTS, RedisCli, RedisNode, Reply, Right,
    WITHOUT_RIGHT, Weight, failure_of,
};
pub use crate::node::transport::ClientNode;
pub use crate::node::under_test::NodeUnderTest;
pub use crate::os_limits::{current_thread_runtime, exhausted, explained};
pub use crate::own_keys::{DATABASE, MARKER, REPLICATED, RESERVED, prefix_of_marker};
use crate::{Client, ClientBuilder, Resources};

/// The time, by the clock that clients read.
pub fn now() -> quorlock_core::Reading {
    crate::Clock::System.now()
}

/// The builder of a client that reads nodes and writes nothing to them. The client must acquire no locks.
pub fn reader(builder: ClientBuilder, is_unguarded: bool) -> ClientBuilder {
    builder.only_inspects(if is_unguarded { RestartGuard::Off } else { RestartGuard::Observe })
}

/// Those of these resources for which a node has a fencing counter, so that all holders of them must have fencing tokens.
/// Takes as long as [`Client::inspect`].
///
/// # Errors
/// A name cannot be locked.
pub async fn with_fencing_counter(
    client: &Client,
    resources: impl Into<Resources>,
) -> Result<Vec<String>, InvalidRequest> {
    client.with_fencing_counter(resources.into()).await
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
