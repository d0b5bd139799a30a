//! A node that is a real Redis or Valkey server.
//!
//! Its connection is one wire. The core's [`Supervisor`](quorlock_core::Supervisor) decides when a connection is made,
//! probed, suspended and replaced.
//!
//! One connection per node, so the server executes commands in the order of sending: a release never
//! overtakes its acquire. Each connection is an epoch. A reply comes from the connection of its command, or the command
//! has failed. No command is sent twice here; nobody knows the effect of a command on a broken connection, and its
//! answer says so (S8). No timeout here ends a command: deadlines belong to the engine.
//!
//! From below: [`resp`] reads and writes RESP. [`wire`] is a socket with the parcels that await its replies. [`codec`]
//! encodes commands and decodes replies, with [`scripts`]. [`evidence`] asks for proof that the answers count. A
//! [`parcel`] is a batch on its way there and back. A [`connection`] sends parcels and judges their replies. [`server`]
//! holds the current connection, and [`direct`] is the line from the client. [`connect`] makes a wire of an address
//! ([`target`], [`tls`]). [`mod@supervise`] keeps the server connected.

mod admin;
mod codec;
mod commands;
mod connect;
mod connection;
mod direct;
mod evidence;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod parcel;
mod redis_cli;
mod registration;
mod resolver;
mod resp;
mod scripts;
mod server;
mod supervise;
pub(super) mod target;
#[cfg(feature = "tls")]
mod tls;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::admin::{AdminConnection, failure_of};
pub use self::commands::{BESIDE, KEY, RIGHTS, Right, Weight};
pub(crate) use self::direct::Direct;
pub(crate) use self::parcel::Encoder;
pub use self::redis_cli::RedisCli;
pub use self::registration::Do;
pub use self::resp::Reply;
use self::server::Server;
use self::supervise::{Reader, supervise};
use super::{Answers, Batch, BoxFuture, Node, NodeConfig, NodeConfigError, NodeState, PushSink};

/// A node that is a real server: Redis from 6.2 on, or Valkey.
///
/// It has one connection. It is made when a client begins to use the node, and again after every
/// break for as long as the client lives. The name is resolved again each time. Commands wait for
/// the first attempt to make it, for a bounded time; once that has failed, they fail at once until
/// there is a connection. A server that is silent for too long is suspended: nothing but releases
/// is sent until it answers again, and after two more seconds a new connection takes the old one's
/// place.
///
/// For one client at a time, until its shutdown has ended. Clients make it themselves from [`ClientBuilder::nodes`](crate::ClientBuilder::nodes); it is
/// public for programs that wrap it in a node of their own.
#[derive(Clone)]
pub struct RedisNode {
    server: Arc<Server>,
}

impl RedisNode {
    /// A node that will be connected to once a client uses it.
    ///
    /// `connect_timeout` bounds each attempt to connect, log-in included. After `silence` without
    /// an answer the node is suspended.
    ///
    /// # Errors
    /// If a certificate or key cannot be used, or a server name is set without TLS. Nothing is sent.
    pub fn new(
        config: NodeConfig,
        connect_timeout: Duration,
        silence: Duration,
    ) -> Result<Self, NodeConfigError> {
        Ok(Self { server: Arc::new(Server::new(config, connect_timeout, silence)?) })
    }

    /// `host:port`, or the path of the socket.
    pub fn address(&self) -> &str {
        &self.server.address
    }

    /// How a person reaches the server with `redis-cli`.
    #[doc(hidden)]
    pub fn redis_cli(&self) -> &RedisCli {
        &self.server.redis_cli
    }
}

impl Node for RedisNode {
    fn name(&self) -> &str {
        &self.server.name
    }

    fn state(&self) -> NodeState {
        self.server.status.borrow().state.clone()
    }

    fn execute(&self, batch: Batch) -> BoxFuture<Answers> {
        let server = self.server.clone();
        Box::pin(async move {
            match server.connection().await {
                Ok(connection) => server.run(&connection, batch.send()).await,
                Err(failure) => batch.fail(&failure),
            }
        })
    }

    fn background(&self, push_sink: PushSink) -> BoxFuture<()> {
        Box::pin(supervise(self.server.clone(), push_sink, Reader::Supervisor))
    }

    fn as_redis(&self) -> Option<&RedisNode> {
        Some(self)
    }
}

impl fmt::Debug for RedisNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisNode")
            .field("name", &self.server.name)
            .field("address", &self.server.address)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
