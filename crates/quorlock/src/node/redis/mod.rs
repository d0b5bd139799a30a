//! A node that is a real Redis or Valkey server.
//!
//! Its connection is one wire. When it is made, probed, suspended and replaced is decided by the core's
//! [`Supervisor`].
//!
//! One connection per node, so the server executes commands in the order given (a release can never
//! overtake its acquire). Each connection is an epoch: a reply comes from the connection its command
//! went out on, or the command has failed. Nothing is ever sent again here; what happened to a
//! command on a broken connection is unknown, and the answer says so (S8). No time-out here gives up
//! a command: deadlines are the engine's.
//!
//! From below: [`resp`] reads and writes the language. [`wire`] is a socket with those who wait for
//! its replies. [`codec`] encodes commands and decodes replies, with [`scripts`]. [`evidence`] asks for
//! what makes the answers count. A [`parcel`] is a batch on its way there and back, a
//! [`connection`] sends and judges it, and [`direct`] is the line from the client. [`connect`]
//! makes a wire of an address ([`target`], [`tls`]), and [`mod@supervise`] sees to it that there is
//! one.

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
mod resp;
mod scripts;
mod supervise;
pub(super) mod target;
mod text;
#[cfg(feature = "tls")]
mod tls;
mod wire;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorlock_core::{Answer, Command, Failure, FailureKind, Session, Supervisor};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

pub use self::admin::{AdminConnection, failure_of};
use self::codec::Capabilities;
pub use self::commands::{BESIDE, KEY, RIGHTS, Right, Weight};
use self::connect::{Dialer, NotConnected};
use self::connection::Connection;
pub(crate) use self::direct::Direct;
pub(crate) use self::parcel::Encoder;
use self::parcel::{Parcel, To};
pub use self::redis_cli::RedisCli;
pub use self::registration::Do;
use self::registration::Registration;
pub use self::resp::Reply;
use self::scripts::Scripts;
use self::supervise::{Reader, supervise};
#[cfg(feature = "tls")]
use self::tls::Encryption;
use self::wire::Wire;
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
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    address: String,
    redis_cli: RedisCli,
    dialer: Dialer,
    /// The server speaks no RESP3: then RESP2 it is.
    resp2: AtomicBool,
    connect_timeout: Duration,
    silence: Duration,
    status: watch::Sender<ConnectionStatus>,
    epochs: AtomicU64,
    scripts: Scripts,
}

/// The way to the server.
struct ConnectionStatus {
    state: NodeState,
    /// What commands go out on.
    connection: Option<Arc<Connection>>,
}

impl RedisNode {
    /// A node that will be connected to once a client uses it.
    ///
    /// `connect_timeout` bounds each attempt to connect, log-in included. After `silence` without
    /// an answer the node is suspended.
    ///
    /// # Errors
    /// If a certificate or key cannot be used. Nothing is sent.
    pub fn new(
        config: NodeConfig,
        connect_timeout: Duration,
        silence: Duration,
    ) -> Result<Self, NodeConfigError> {
        let (name, target, tls) = config.into_parts();
        let address = target.address();
        let redis_cli = RedisCli::new(&target, tls.as_ref());
        #[cfg(not(feature = "tls"))]
        drop(tls);
        #[cfg(feature = "tls")]
        let encryption = target
            .is_encrypted()
            .then(|| Encryption::new(tls.unwrap_or_default(), target.tls_server_name.as_deref()))
            .transpose()
            .map_err(|reason| NodeConfigError::Tls { node: name.clone(), reason })?;
        let dialer = Dialer {
            target,
            #[cfg(feature = "tls")]
            encryption,
            give_up_after: (silence * 10).max(Supervisor::REPLACE_AFTER),
            awaits_tls: AtomicBool::new(false),
        };
        let shared = Shared {
            name,
            address,
            redis_cli,
            dialer,
            resp2: AtomicBool::new(false),
            connect_timeout,
            silence,
            status: watch::Sender::new(ConnectionStatus {
                state: NodeState::Connecting,
                connection: None,
            }),
            epochs: AtomicU64::new(0),
            scripts: Scripts::new(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// `host:port`, or the path of the socket.
    pub fn address(&self) -> &str {
        &self.shared.address
    }

    /// How a person reaches the server with `redis-cli`.
    #[doc(hidden)]
    pub fn redis_cli(&self) -> &RedisCli {
        &self.shared.redis_cli
    }
}

impl Node for RedisNode {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn state(&self) -> NodeState {
        self.shared.status.borrow().state.clone()
    }

    fn execute(&self, batch: Batch) -> BoxFuture<Answers> {
        let shared = self.shared.clone();
        Box::pin(async move {
            match shared.connection().await {
                Ok(connection) => shared.run(&connection, batch.send()).await,
                Err(failure) => batch.fail(&failure),
            }
        })
    }

    fn background(&self, push_sink: PushSink) -> BoxFuture<()> {
        Box::pin(supervise(self.shared.clone(), push_sink, Reader::Supervisor))
    }

    fn as_redis(&self) -> Option<&RedisNode> {
        Some(self)
    }
}

impl fmt::Debug for RedisNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisNode")
            .field("name", &self.shared.name)
            .field("address", &self.shared.address)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

impl ConnectionStatus {
    /// The connection, or why there is none; `None` while that is open.
    fn settled(&self) -> Option<Result<Arc<Connection>, Failure>> {
        Self::settle(&self.state, self.connection.as_ref())
    }

    fn settle(
        state: &NodeState,
        connection: Option<&Arc<Connection>>,
    ) -> Option<Result<Arc<Connection>, Failure>> {
        if let NodeState::Down(failure) = state {
            return Some(Err(failure.clone()));
        }
        // A connection that has broken a moment ago, and whose supervisor has not noticed yet, is as
        // good as one being made: what is not given to it is not lost with it.
        connection.filter(|it| !it.wire.is_closed()).cloned().map(Ok)
    }
}

impl Shared {
    /// The connection, once it is made; or why there is none.
    async fn connection(&self) -> Result<Arc<Connection>, Failure> {
        if let Some(settled) = self.status.borrow().settled() {
            return settled;
        }
        let mut status = self.status.subscribe();
        let settled = status.wait_for(|status| status.settled().is_some()).await;
        let settled = settled.ok().and_then(|status| status.settled());
        settled.unwrap_or_else(|| Err(Failure::unsent(FailureKind::Unreachable)))
    }

    /// Sends commands, and waits for their answers; some may have to be asked again.
    async fn run(&self, connection: &Connection, commands: Vec<Command>) -> Answers {
        let count = commands.len();
        let mut parcel: Box<Parcel> = Box::default();
        *parcel.exchange.renew() = commands;
        loop {
            let (done, back) = oneshot::channel();
            parcel = match connection.send(self, parcel, To::Task(done), &mut Encoder::default()) {
                Err(unsent) => unsent,
                Ok(()) => match back.await {
                    Ok(parcel) => parcel,
                    // A wire that is closed gives back what it has.
                    Err(_) => {
                        let failed = Answer::Failed(connection.wire.why_closed());
                        return vec![failed; count].into();
                    }
                },
            };
            if !connection.conclude(self, &mut parcel) {
                break;
            }
        }
        let (answers, evidence) = parcel.exchange.take();
        Answers { answers: std::mem::take(answers), evidence }
    }

    /// The server gave a sign of life: a suspended connection is as good as before. The supervisor sees that with
    /// its next look, which comes before it publishes anything.
    fn resume(&self, connection: &Connection) {
        let suspended = matches!(self.status.borrow().state, NodeState::Suspended(_));
        if suspended {
            self.status.send_if_modified(|status| {
                let current = status.connection.as_ref();
                let is_it = current.is_some_and(|current| current.epoch == connection.epoch);
                is_it && status.state.resume()
            });
        }
    }

    /// Connects to a server that has all commands that are needed.
    async fn connect(&self, push_sink: &PushSink) -> Result<Arc<Connection>, Failure> {
        let connection = self.open(push_sink).await?;
        // A client that only looks may do so without `INFO`.
        match connection.capabilities.lacking.no_locks(push_sink.registers()) {
            Some(failure) => Err(failure),
            None => Ok(connection),
        }
    }

    /// Connects, logs in, and makes the scripts known.
    async fn open(&self, push_sink: &PushSink) -> Result<Arc<Connection>, Failure> {
        let epoch = self.epochs.fetch_add(1, Ordering::Relaxed) + 1;
        let made = timeout(self.connect_timeout, self.connect_somehow(push_sink)).await;
        let (wire, capabilities) =
            made.unwrap_or_else(|_| Err(self.dialer.timed_out(self.connect_timeout)))?;
        Ok(Arc::new(Connection {
            is_unregistered: AtomicBool::new(false),
            epoch,
            wire,
            capabilities,
            marker: push_sink.marker().map(evidence::ask_marker),
            registration: push_sink
                .marker()
                .and_then(|marker| Registration::beside(marker, self.dialer.target.database)),
            registers: push_sink.registers(),
            is_durable: push_sink.is_durable(),
            session: Mutex::new(Session::new(push_sink.marker().is_some())),
        }))
    }

    /// In the newer protocol, or else in the older one.
    async fn connect_somehow(&self, push_sink: &PushSink) -> Result<(Wire, Capabilities), Failure> {
        loop {
            let resp2 = self.resp2.load(Ordering::Relaxed);
            match connect::connect(&self.dialer, &self.scripts, resp2, push_sink).await {
                Ok(made) => return Ok(made),
                Err(NotConnected::Because(failure)) => return Err(failure),
                Err(NotConnected::OnlyResp2) => self.resp2.store(true, Ordering::Relaxed),
            }
        }
    }
}
