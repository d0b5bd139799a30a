//! A server: its address, how to connect to it, and the state that its link publishes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use quorlock_core::{Failure, FailureKind, NodeState, Session, Supervisor};
use tokio::time::{Instant, timeout};

use super::codec::Capabilities;
use super::connect::{self, NotConnected};
use super::connection::Connection;
use super::dialer::Dialer;
use super::evidence;
use super::redis_cli::RedisCli;
use super::registration::Registration;
use super::resolver::Resolver;
use super::scripts::Scripts;
use super::sentinel::Sentinels;
#[cfg(feature = "tls")]
use super::tls::Encryption;
use super::wire::Wire;
use crate::node::{NodeConfig, NodeConfigError, PushSink};
use crate::own_keys::{REPLICATED, own_key, prefix_of_marker};

pub(super) struct Server {
    pub(super) name: String,
    pub(super) address: String,
    redis_cli: RedisCli,
    pub(super) dialer: Dialer,
    /// Whether connections use RESP2, because the server does not speak RESP3.
    pub(super) resp2: AtomicBool,
    pub(super) connect_timeout: Duration,
    /// A node without an answer for this long is suspended.
    pub(super) silence: Duration,
    /// Whether the node can be used, published for tasks that do not own the link.
    state: Mutex<NodeState>,
    /// Connections opened so far.
    epochs: AtomicU64,
    pub(super) scripts: Scripts,
}

impl Server {
    pub(super) fn new(
        config: NodeConfig,
        connect_timeout: Duration,
        silence: Duration,
    ) -> Result<Self, NodeConfigError> {
        let (name, target, tls, credentials) = config.into_parts();
        let address = target.address();
        let redis_cli = RedisCli::new(&target, tls.as_ref());
        if target.tls_server_name.is_some() && !target.is_encrypted() {
            let reason =
                "tls-server-name has no effect here, because the URL does not begin with rediss://"
                    .to_owned();
            return Err(NodeConfigError::Tls { node: name, reason, source: None });
        }
        if target.sentinels.is_some() && target.replicas == 0 {
            let reason = "add the parameter replicas=1 (the number of the master's replicas), because Sentinel \
                          promotes replicas";
            let scheme = if target.is_encrypted() { "rediss" } else { "redis" };
            let url = format!("\"{scheme}+sentinel://{address}\"");
            return Err(NodeConfigError::Url { url, reason: reason.to_owned(), source: None });
        }
        let sentinels = Sentinels::of(&target, tls.as_ref(), connect_timeout);
        #[cfg(not(feature = "tls"))]
        drop(tls);
        #[cfg(feature = "tls")]
        let encryption = target
            .is_encrypted()
            .then(|| Encryption::new(tls.unwrap_or_default(), target.tls_server_name.as_deref()))
            .transpose()
            .map_err(|crate::error::Reason { text, source }| NodeConfigError::Tls {
                node: name.clone(),
                reason: text,
                source,
            })?;
        let dialer = Dialer {
            target,
            credentials,
            sentinels,
            resolver: Resolver::default(),
            #[cfg(feature = "tls")]
            encryption,
            give_up_after: (silence * 10).max(Supervisor::REPLACE_AFTER),
            awaits_tls: AtomicBool::new(false),
            awaits_credentials: AtomicBool::new(false),
        };
        Ok(Self {
            name,
            address,
            redis_cli,
            dialer,
            resp2: AtomicBool::new(false),
            connect_timeout,
            silence,
            state: Mutex::new(NodeState::Connecting),
            epochs: AtomicU64::new(0),
            scripts: Scripts::new(),
        })
    }

    /// The command line with which a person reaches the server.
    pub(super) fn redis_cli(&self) -> RedisCli {
        let Self { dialer, redis_cli, .. } = self;
        let sentinels = dialer.sentinels.as_ref();
        sentinels.map_or_else(|| redis_cli.clone(), |it| it.redis_cli(redis_cli))
    }

    pub(super) fn state(&self) -> NodeState {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn publish(&self, state: &NodeState) {
        let mut published = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if *published != *state {
            published.clone_from(state);
        }
    }

    /// Connects. Fails if the server lacks a command that locks need.
    pub(super) async fn connect(&self, push_sink: &PushSink) -> Result<Connection, Failure> {
        let connection = self.open(push_sink).await?;
        if self.dialer.target.replicas > 0 && !connection.capabilities.watches {
            let detail = "a node with replicas needs RESP3 and the right +client|tracking: without pushes a client does \
                          not notice that a replica's data replaced the node's";
            return Err(Failure::unsent(FailureKind::UnsafeNode).with_detail(detail));
        }
        // A client that only inspects locks registers nothing, and needs no `INFO`.
        match connection.capabilities.lacking.no_locks(push_sink.registers) {
            Some(failure) => Err(failure),
            None => Ok(connection),
        }
    }

    /// Connects, logs in, and makes the scripts known.
    pub(super) async fn open(&self, push_sink: &PushSink) -> Result<Connection, Failure> {
        let epoch = self.epochs.fetch_add(1, Ordering::Relaxed) + 1;
        let made = timeout(self.connect_timeout, self.connect_somehow(push_sink)).await;
        let (wire, capabilities) =
            made.unwrap_or_else(|_| Err(self.dialer.timed_out(self.connect_timeout)))?;
        let replicas = self.dialer.target.replicas;
        let acknowledgement = push_sink.marker().filter(|_| replicas > 0).and_then(|marker| {
            let key = own_key(prefix_of_marker(marker)?, REPLICATED);
            // `silence` is three node timeouts. So `WAIT` ends after 3/4 of one, while the attempt still waits.
            Some(evidence::ask_acknowledgement(&key, replicas, self.silence / 4))
        });
        Ok(Connection {
            is_unregistered: false,
            alone: None,
            opened_at: Instant::now(),
            epoch,
            wire,
            capabilities,
            marker: push_sink.marker().map(evidence::ask_marker),
            registration: push_sink
                .marker()
                .and_then(|marker| Registration::beside(marker, self.dialer.target.database)),
            registers: push_sink.registers,
            is_durable: push_sink.is_durable,
            session: Session::new(push_sink.marker().is_some())
                .replicated(acknowledgement.is_some()),
            acknowledgement,
        })
    }

    /// Connects with RESP3, or with RESP2 if the server does not speak RESP3.
    async fn connect_somehow(&self, push_sink: &PushSink) -> Result<(Wire, Capabilities), Failure> {
        let target = self.dialer.look_up().await?;
        if target.replicas > 0 {
            // The host name may lead to another server than before, which may speak RESP3.
            self.resp2.store(false, Ordering::Relaxed);
        }
        loop {
            let resp2 = self.resp2.load(Ordering::Relaxed);
            match connect::connect(&self.dialer, &target, &self.scripts, resp2, push_sink).await {
                Ok(made) => return Ok(made),
                Err(NotConnected::Because(failure)) => return Err(self.dialer.placed(failure)),
                Err(NotConnected::OnlyResp2) => self.resp2.store(true, Ordering::Relaxed),
            }
        }
    }
}
