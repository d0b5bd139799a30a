//! A node that is a real Redis or Valkey server.
//!
//! There is one connection per node, so the server executes commands in the order of sending: a release never overtakes
//! its acquire. Each connection is an epoch. A command gets its reply on the connection that sent it, or it fails. No
//! command is sent again after its connection broke: its effect is unknown, and its answer says so (S8). No timeout
//! here ends a command: deadlines belong to the engine.
//!
//! From a node's pipeline to the socket there are four owners, each inside the one before. What they take from the core
//! decides, and does no I/O.
//!
//! 1. [`ServerTransport`]: the pipeline (which commands form a batch), the supervisor (when to connect), and the present
//!    connection.
//! 2. [`Connection`](connection): the session (which evidence is requested, what is sent again), and the wire.
//! 3. [`Wire`](wire): the socket, and the batches that await replies.
//! 4. [`WireBatch`](wire_batch): the exchange (commands and answers), and the replies so far.
//!
//! The driver's task owns the transports, and no other task has a part of them. [`connect`] makes a connection to the
//! address ([`target`], [`sentinel`], [`tls`]) of a [`server`], with a [`handshake`]. [`codec`] encodes commands, with
//! [`scripts`], and decodes replies; [`resp`] reads and writes RESP. [`evidence`], [`registration`] and [`replicas`] are
//! questions and replies that show whether answers count. [`admin`] uses a wire alone.

mod admin;
mod client_name;
mod codec;
mod connect;
mod connection;
mod dialer;
mod evidence;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod handshake;
mod lacking;
mod redis_cli;
mod registration;
mod replicas;
mod resp;
mod rights;
mod scripts;
mod sentinel;
mod server;
mod server_transport;
pub(super) mod target;
#[cfg(feature = "tls")]
pub(super) mod tls;
mod wire;
mod wire_batch;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::admin::{AdminConnection, failure_of};
pub use self::redis_cli::RedisCli;
pub use self::registration::Do;
pub use self::resp::Reply;
pub use self::rights::{KEY, REPLICAS_RIGHT, RIGHTS, Right, WITHOUT_RIGHT, Weight};
use self::sentinel::Sentinels;
use self::server::Server;
pub(crate) use self::server::Silence;
pub(crate) use self::server_transport::ServerTransport;

pub(crate) use self::wire_batch::Encoder;
use super::{NodeConfig, NodeConfigError, NodeState};

/// A node that is a real server: Redis from 6.2 on, or Valkey.
///
/// A client that begins to use the node connects to the server, and connects again after each break. Each time it
/// resolves the host name again. Commands wait for the first attempt to connect, at most for the connect timeout. If it
/// fails, commands fail at once until there is a connection. A server that is silent for too long is suspended: the
/// client sends only releases until the server answers again, and replaces the connection after two more seconds.
#[derive(Clone)]
pub struct RedisNode {
    server: Arc<Server>,
}

impl RedisNode {
    pub(crate) fn new(
        config: NodeConfig,
        connect_timeout: Duration,
        silence: Silence,
    ) -> Result<Self, NodeConfigError> {
        Ok(Self { server: Arc::new(Server::new(config, connect_timeout, silence)?) })
    }

    /// The name that messages show for the node: distinct among the nodes of a client, and never a secret.
    pub fn name(&self) -> &str {
        &self.server.name
    }

    /// Whether the node can be used now, according to the client that uses it.
    pub fn state(&self) -> NodeState {
        self.server.state()
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

impl fmt::Debug for RedisNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisNode")
            .field("name", &self.server.name)
            .field("address", &self.server.address)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
