//! Nodes: independent masters with one vote each.
//!
//! [`NodeConfig`] describes a server. [`MemoryNode`] stands for a server in your tests.

mod config;
mod credentials;
mod memory;
mod offload;
mod push_sink;
pub(crate) mod ready;
pub(crate) mod redis;
pub(crate) mod secret;
mod tls;
pub(crate) mod transport;
pub(crate) mod under_test;

use std::pin::Pin;

pub(crate) use self::config::OnWarning;
pub use self::config::{NodeConfig, NodeConfigError};
pub use self::credentials::Credentials;
pub(crate) use self::credentials::{Provider, function};
pub use self::memory::MemoryNode;
pub(crate) use self::push_sink::{Inbox, PushSink};
pub(crate) use self::redis::RedisNode;
pub use self::tls::Tls;
pub(crate) use self::transport::ClientNode;
pub(crate) use quorlock_core::Key;
pub use quorlock_core::{Difference, Failure, FailureKind, Holding, NodeState};

pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
