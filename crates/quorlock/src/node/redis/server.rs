//! A server: its address, how to connect to it, and the state that its transport publishes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use quorlock_core::info::Info;
use quorlock_core::{
    Evidence, EvidenceRequest, Failure, FailureKind, NodeState, ROUND_TRIPS_AWAITED, Session,
    Supervisor, Timing,
};
use tokio::time::timeout;

use super::connect::{self, Made, NotConnected};
use super::connection::{Connection, Greeting};
use super::dialer::{Awaits, Dialer, Resolver};
use super::evidence::{self, EvidenceQuestions};
use super::handshake::{Greeted, Identification};
use super::redis_cli::RedisCli;
use super::registration::{Do, Registration};
use super::replicas::Replicas;
use super::resp::Reply;
use super::scripts::Scripts;
use super::sentinel::Sentinels;
#[cfg(feature = "tls")]
use super::tls::Encryption;
use crate::clock::Clock;
use crate::error::Reason;
use crate::node::{NodeConfig, NodeConfigError, Provider, PushSink};
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
    silence: Silence,
    /// Whether the node can be used, published for tasks that do not own the transport.
    state: Mutex<NodeState>,
    /// Connections opened so far.
    epochs: AtomicU64,
    pub(super) scripts: Scripts,
}

/// How long a node may be silent before it is suspended: three of its node timeouts, by the client's default times.
/// After one node timeout an attempt stops waiting for the node, so one late answer does not suspend it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silence {
    /// The silence of a near node, and the longest round trip for which it is long enough.
    near: Duration,
    near_until: Duration,
    /// The longest silence.
    far: Duration,
}

impl Silence {
    /// Three node timeouts for any distance.
    pub(crate) fn of(timing: &Timing) -> Self {
        let after = |round_trip| 3 * timing.node_timeout(round_trip);
        let near = after(Duration::ZERO);
        let near_until = near / 3 / ROUND_TRIPS_AWAITED;
        Self { near, near_until, far: after(Duration::MAX) }
    }

    /// The silence of a node at this distance. It is never so short that a timely answer ends a suspension.
    pub(super) fn at(self, round_trip: Duration) -> Duration {
        if round_trip <= self.near_until {
            return self.near;
        }
        let awaited = round_trip.saturating_mul(ROUND_TRIPS_AWAITED);
        awaited.saturating_mul(3).clamp(self.near, self.far).max(awaited)
    }
}

impl Server {
    pub(super) fn new(
        config: NodeConfig,
        connect_timeout: Duration,
        silence: Silence,
    ) -> Result<Self, NodeConfigError> {
        let NodeConfig { name, mut target, tls, credentials, on_warning } = config;
        let address = target.address();
        if let Some(file) = credentials.as_ref().and_then(Provider::file) {
            file.read().map_err(|Reason { text, source }| NodeConfigError::PasswordFile {
                node: name.clone(),
                reason: text,
                source,
            })?;
            target.password = file.newest().value();
        }
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
            .map_err(|Reason { text, source }| NodeConfigError::Tls {
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
            give_up_after: (silence.near * 10).max(Supervisor::REPLACE_AFTER),
            patience: connect_timeout / 4,
            on_warning,
            awaits: Mutex::new(Awaits::Something),
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

    /// Connects. Fails if the server lacks a command that locks need. The greeting identifies the server.
    pub(super) async fn connect(
        &self,
        push_sink: &PushSink,
        clock: Clock,
    ) -> Result<(Connection, Greeting), Failure> {
        let (connection, greeting) = self.open(push_sink, Some(clock)).await?;
        if self.dialer.target.replicas > 0 && !connection.capabilities.watches {
            let detail = "a node with replicas needs RESP3 and the right +client|tracking: without pushes a client does \
                          not notice that a replica's data replaced the node's";
            return Err(Failure::unsent(FailureKind::UnsafeNode).with_detail(detail));
        }
        // A client that only inspects locks registers nothing, and needs no `INFO`.
        match connection.capabilities.lacking.no_locks(push_sink.registers) {
            Some(failure) => Err(failure),
            None => Ok((connection, greeting)),
        }
    }

    /// Connects, logs in, and makes the scripts known. With a clock, the greeting identifies the server.
    pub(super) async fn open(
        &self,
        push_sink: &PushSink,
        clock: Option<Clock>,
    ) -> Result<(Connection, Greeting), Failure> {
        let epoch = self.epochs.fetch_add(1, Ordering::Relaxed) + 1;
        let target = &self.dialer.target;
        let registration =
            push_sink.marker().and_then(|marker| Registration::of_marker(marker, target.database));
        let registration = registration.map(|it| it.registering(push_sink.registers));
        let marker = push_sink.marker().map(evidence::ask_marker);
        let identification = marker.as_deref().filter(|_| clock.is_some()).map(|marker| {
            let request = EvidenceRequest { info: true, marker: true, acknowledgement: false };
            // Whether the server is in use is not known yet, so the registration is only read.
            let look = registration.as_ref().map(|_| Do::Look);
            let questions = EvidenceQuestions::new(request, push_sink.is_durable, look);
            Identification { questions, registration: registration.as_ref(), marker }
        });
        let clock = clock.unwrap_or_default();
        let made = self.connect_somehow((push_sink, clock), identification.as_ref());
        let made = timeout(self.connect_timeout, made).await;
        let Made { wire, sent, greeted } =
            made.unwrap_or_else(|_| Err(self.dialer.timed_out(self.connect_timeout)))?;
        let Greeted { capabilities, round_trip, identity, flushes } = greeted;
        let session =
            Session::new(marker.is_some()).replicated(target.replicas > 0 && marker.is_some());
        let replicas = push_sink.marker().filter(|_| target.replicas > 0).and_then(|marker| {
            let key = own_key(prefix_of_marker(marker)?, REPLICATED);
            // The silence is three node timeouts. So `WAIT` ends after 3/4 of one, while the attempt still waits: of the
            // four round trips that a distant node is awaited for, one is left for the way there and back.
            Some(Replicas::new(target.replicas, &key, self.silence(round_trip) / 4))
        });
        let (questions, is_durable) = (identification.map(|it| it.questions), push_sink.is_durable);
        let mut connection = Connection {
            epoch,
            session,
            wire,
            capabilities,
            marker,
            registration,
            replicas,
            is_durable,
        };
        let evidence = questions.map_or(Some(Evidence::NotRequired), |questions| {
            connection.identify(self, questions, identity, flushes)
        });
        let evidence = evidence.ok_or_else(|| {
            Failure::unsent(FailureKind::Protocol).with_detail("its answers do not fit")
        })?;
        Ok((connection, Greeting { sent, round_trip, evidence }))
    }

    /// Warns if the operator declared the server durable and its settings say otherwise.
    pub(super) fn warn_if_not_durable(&self, info: Option<&Reply>) {
        let Some(Reply::Bytes(info)) = info else { return };
        let info = Info::parse(&String::from_utf8_lossy(info));
        if let Some(setting) = info.ok().and_then(|info| info.forgets_by()) {
            tracing::warn!(
                "node {}: declared to forget nothing when it stops (durable), but it has {setting}: it waits \
                 after a restart as others do",
                self.name
            );
        }
    }

    /// A node at this distance is suspended after a silence of this time.
    pub(super) fn silence(&self, round_trip: Duration) -> Duration {
        self.silence.at(round_trip)
    }

    /// Reads the files of the password and the certificates again, and connects. If the server refuses the log-in or the
    /// certificate, reads the files once more, and connects again at once if they have changed.
    async fn connect_somehow(
        &self,
        push_sink: (&PushSink, Clock),
        identification: Option<&Identification<'_>>,
    ) -> Result<Made, Failure> {
        self.dialer.renew(false).await?;
        let used = self.dialer.versions();
        let mut made = self.connect_once(push_sink, identification).await;
        if matches!(made, Err((true, _))) {
            self.dialer.renew(true).await?;
            if self.dialer.versions() != used {
                made = self.connect_once(push_sink, identification).await;
            }
        }
        made.map_err(|(_, failure)| failure)
    }

    /// Connects with RESP3, or with RESP2 if the server does not speak RESP3.
    ///
    /// # Errors
    /// Whether the log-in or a certificate was refused, and the failure.
    async fn connect_once(
        &self,
        (push_sink, clock): (&PushSink, Clock),
        identification: Option<&Identification<'_>>,
    ) -> Result<Made, (bool, Failure)> {
        let target = self.dialer.look_up().await;
        // With TLS, a Sentinel may have refused a certificate.
        let target = target.map_err(|failure| (self.dialer.target.is_encrypted(), failure))?;
        if target.replicas > 0 {
            // The host name may lead to another server than before, which may speak RESP3.
            self.resp2.store(false, Ordering::Relaxed);
        }
        loop {
            let resp2 = self.resp2.load(Ordering::Relaxed);
            let made = connect::connect(
                &self.dialer,
                &target,
                &self.scripts,
                resp2,
                (push_sink, clock),
                identification,
            );
            let (is_refused, failure) = match made.await {
                Ok(made) => return Ok(made),
                Err(NotConnected::Refused(failure)) => (true, failure),
                Err(NotConnected::Because(failure)) => (false, failure),
                Err(NotConnected::OnlyResp2) => {
                    self.resp2.store(true, Ordering::Relaxed);
                    continue;
                }
            };
            return Err((is_refused, self.dialer.placed(failure)));
        }
    }
}
