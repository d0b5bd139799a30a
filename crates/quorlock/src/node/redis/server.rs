//! A server: how to connect to it, its current connection, and batches that are sent as a whole.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorlock_core::{Answer, Command, Failure, FailureKind, NodeState, Session, Supervisor};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use super::codec::Capabilities;
use super::connect::{self, Dialer, NotConnected};
use super::connection::Connection;
use super::evidence;
use super::parcel::{Encoder, Parcel, To};
use super::redis_cli::RedisCli;
use super::registration::Registration;
use super::resolver::Resolver;
use super::scripts::Scripts;
#[cfg(feature = "tls")]
use super::tls::Encryption;
use super::wire::Wire;
use crate::node::{Answers, NodeConfig, NodeConfigError, PushSink};

/// A server, as the client uses it: its address, how to connect to it, and the current connection.
pub(super) struct Server {
    pub(super) name: String,
    pub(super) address: String,
    pub(super) redis_cli: RedisCli,
    pub(super) dialer: Dialer,
    /// The server speaks no RESP3, so connections use RESP2.
    pub(super) resp2: AtomicBool,
    pub(super) connect_timeout: Duration,
    /// A node without an answer for this long is suspended.
    pub(super) silence: Duration,
    pub(super) status: watch::Sender<ConnectionStatus>,
    /// Connections opened so far.
    epochs: AtomicU64,
    pub(super) scripts: Scripts,
}

/// The state of the node, and its current connection.
pub(super) struct ConnectionStatus {
    pub(super) state: NodeState,
    /// The connection that takes commands.
    pub(super) connection: Option<Arc<Connection>>,
}

impl ConnectionStatus {
    /// The connection, or the failure that explains its absence; `None` while an attempt to connect is under way.
    fn settled(&self) -> Option<Result<Arc<Connection>, Failure>> {
        Self::settle(&self.state, self.connection.as_ref())
    }

    pub(super) fn settle(
        state: &NodeState,
        connection: Option<&Arc<Connection>>,
    ) -> Option<Result<Arc<Connection>, Failure>> {
        if let NodeState::Down(failure) = state {
            return Some(Err(failure.clone()));
        }
        // The supervisor may not have noticed yet that this connection broke. Commands then wait for the next
        // connection, as they do while one is being made, so they are not lost.
        connection.filter(|it| !it.wire.is_closed()).cloned().map(Ok)
    }
}

impl Server {
    pub(super) fn new(
        config: NodeConfig,
        connect_timeout: Duration,
        silence: Duration,
    ) -> Result<Self, NodeConfigError> {
        let (name, target, tls) = config.into_parts();
        let address = target.address();
        let redis_cli = RedisCli::new(&target, tls.as_ref());
        if target.tls_server_name.is_some() && !target.is_encrypted() {
            let reason =
                "tls-server-name has no effect here, because the URL does not begin with rediss://"
                    .to_owned();
            return Err(NodeConfigError::Tls { node: name, reason });
        }
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
            resolver: Resolver::default(),
            #[cfg(feature = "tls")]
            encryption,
            give_up_after: (silence * 10).max(Supervisor::REPLACE_AFTER),
            awaits_tls: AtomicBool::new(false),
        };
        Ok(Self {
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
        })
    }

    /// Waits until there is a connection, or until an attempt to connect has failed.
    pub(super) async fn connection(&self) -> Result<Arc<Connection>, Failure> {
        if let Some(settled) = self.status.borrow().settled() {
            return settled;
        }
        let mut status = self.status.subscribe();
        let settled = status.wait_for(|status| status.settled().is_some()).await;
        let settled = settled.ok().and_then(|status| status.settled());
        settled.unwrap_or_else(|| Err(Failure::unsent(FailureKind::Unreachable)))
    }

    /// Sends commands and waits for their answers. Sends a command again if the session says so.
    pub(super) async fn run(&self, connection: &Connection, commands: Vec<Command>) -> Answers {
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

    /// Ends the suspension of this connection, because the server has answered on it. The supervisor sees the answer
    /// with its next look, before it publishes a state.
    pub(super) fn resume(&self, connection: &Connection) {
        let suspended = matches!(self.status.borrow().state, NodeState::Suspended(_));
        if suspended {
            self.status.send_if_modified(|status| {
                let current = status.connection.as_ref();
                let is_it = current.is_some_and(|current| current.epoch == connection.epoch);
                is_it && status.state.resume()
            });
        }
    }

    /// Connects. Fails if the server lacks a command that locks need.
    pub(super) async fn connect(&self, push_sink: &PushSink) -> Result<Arc<Connection>, Failure> {
        let connection = self.open(push_sink).await?;
        // A client that only inspects locks needs no `INFO`.
        match connection.capabilities.lacking.no_locks(push_sink.registers()) {
            Some(failure) => Err(failure),
            None => Ok(connection),
        }
    }

    /// Connects, logs in, and makes the scripts known.
    pub(super) async fn open(&self, push_sink: &PushSink) -> Result<Arc<Connection>, Failure> {
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

    /// Connects with RESP3, or with RESP2 if the server speaks no RESP3.
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
