//! A node that is a real Redis or Valkey server.
//!
//! There is one connection per node, so the server executes commands in the order of sending: a release never overtakes
//! its acquire. Each connection is an epoch. A command gets its reply on the connection that sent it, or it fails. No
//! command is sent again after its connection broke: its effect is unknown, and its answer says so (S8). No timeout
//! here ends a command: deadlines belong to the engine.
//!
//! The modules, from the lowest layer up: [`resp`] reads and writes RESP. [`wire`] is a socket with the batches that
//! await its replies. [`codec`] encodes commands and decodes replies, with [`scripts`]. [`evidence`] asks for proof
//! that the answers count. A [`wire_batch`] is a batch on the wire. A [`connection`] sends batches and decides whether
//! their answers count. [`connect`] connects to the address ([`target`], [`sentinel`], [`tls`]) of a [`server`]. A
//! [`link`] keeps a server connected, as the core's [`Supervisor`](quorlock_core::Supervisor) decides. Links belong to
//! the driver ([`direct`]), or to the task of a node that another node wraps ([`wrapped`]). [`admin`] uses no link.

mod admin;
mod codec;
mod commands;
mod connect;
mod connection;
mod dialer;
mod direct;
mod evidence;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod link;
mod redis_cli;
mod registration;
mod resolver;
mod resp;
mod scripts;
mod sentinel;
mod server;
pub(super) mod target;
#[cfg(feature = "tls")]
mod tls;
mod wire;
mod wire_batch;
mod wrapped;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::admin::{AdminConnection, failure_of};
pub use self::commands::{BESIDE, KEY, REPLICAS_RIGHT, RIGHTS, Right, Weight};
pub(crate) use self::direct::Direct;
pub use self::redis_cli::RedisCli;
pub use self::registration::Do;
pub use self::resp::Reply;
use self::sentinel::Sentinels;
use self::server::Server;
pub(crate) use self::wire_batch::Encoder;
use self::wrapped::Batches;
use super::{Answers, Batch, BoxFuture, Node, NodeConfig, NodeConfigError, NodeState, PushSink};

/// A node that is a real server: Redis from 6.2 on, or Valkey.
///
/// A client that begins to use the node connects to the server, and connects again after each break. Each time it
/// resolves the host name again. Commands wait for the first attempt to connect, at most for the connect timeout. If it
/// fails, commands fail at once until there is a connection. A server that is silent for too long is suspended: the
/// client sends only releases until the server answers again, and replaces the connection after two more seconds.
///
/// One client at a time can use a node, until the shutdown of the client has ended.
/// [`ClientBuilder::nodes`](crate::ClientBuilder::nodes) makes nodes of this type; the type is public for programs that
/// wrap it in a node of their own.
#[derive(Clone)]
pub struct RedisNode {
    server: Arc<Server>,
    /// Batches for the node's own task, which runs only if another node wraps this one.
    batches: Batches,
}

impl RedisNode {
    /// Creates a node. A client that uses it connects to the server.
    ///
    /// `connect_timeout` bounds each attempt to connect, log-in included. After `silence` without
    /// an answer the node is suspended.
    ///
    /// # Errors
    /// If a certificate or key cannot be used, a server name is set without TLS, or the node has replicas: a client
    /// requires their acknowledgement only from the nodes that it makes itself. Nothing is sent.
    pub fn new(
        config: NodeConfig,
        connect_timeout: Duration,
        silence: Duration,
    ) -> Result<Self, NodeConfigError> {
        if config.replica_count() > 0 {
            let reason = "a node with replicas cannot be wrapped; use ClientBuilder::node";
            let url = format!("\"{}\"", config.address());
            return Err(NodeConfigError::Url { url, reason: reason.to_owned(), source: None });
        }
        Self::of_client(config, connect_timeout, silence)
    }

    pub(crate) fn of_client(
        config: NodeConfig,
        connect_timeout: Duration,
        silence: Duration,
    ) -> Result<Self, NodeConfigError> {
        let server = Arc::new(Server::new(config, connect_timeout, silence)?);
        Ok(Self { server, batches: Batches::new() })
    }

    /// `host:port`, the path of the socket, or the first Sentinel and the name of its master: `host:port/NAME`.
    pub fn address(&self) -> &str {
        &self.server.address
    }

    /// The address of the server. Behind Sentinel, the address that a Sentinel gave at the last connect.
    #[doc(hidden)]
    pub fn located(&self) -> String {
        let found = self.server.dialer.sentinels.as_ref().and_then(Sentinels::found);
        found.unwrap_or_else(|| self.server.address.clone())
    }

    /// The `redis-cli` command line with which a person reaches the server or, before a Sentinel has named the server,
    /// the first Sentinel.
    #[doc(hidden)]
    pub fn redis_cli(&self) -> RedisCli {
        self.server.redis_cli()
    }

    /// The number of replicas that must acknowledge each vote.
    #[doc(hidden)]
    pub fn replicas(&self) -> u32 {
        self.server.dialer.target.replicas
    }

    pub(crate) fn database(&self) -> u32 {
        self.server.dialer.target.database
    }
}

impl Node for RedisNode {
    fn name(&self) -> &str {
        &self.server.name
    }

    fn state(&self) -> NodeState {
        self.server.state()
    }

    fn execute(&self, batch: Batch) -> BoxFuture<Answers> {
        Box::pin(self.batches.execute(batch))
    }

    fn background(&self, push_sink: PushSink) -> BoxFuture<()> {
        Box::pin(self.batches.clone().serve(self.server.clone(), push_sink))
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
