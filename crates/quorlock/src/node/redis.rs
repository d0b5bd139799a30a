//! A node that is a real Redis or Valkey server. The only file that names the client crate.
//!
//! The crate's connection is multiplexed and never reconnects; a supervisor of ours does:
//!
//! ```text
//!            connected                    silent for three node timeouts
//!   Connecting ────────► Up ◄───────────────────────────────► Suspended
//!       ▲  │              │ broke            an answer            │ 2 s: a new connection
//!       │  │ failed       ▼                                       │ replaces it
//!       │  └─────► Down   Connecting (at once) ◄──────────────────┘
//!       └─ backoff ──┘
//! ```
//!
//! One connection per node, so the server executes commands in the order given (a release can never
//! overtake its acquire). Each connection is an epoch: a reply comes from the connection its command
//! went out on, or the command has failed. Nothing is ever sent again here; what happened to a
//! command on a broken connection is unknown, and the answer says so (S8).
//!
//! What the crate's own means would do to a lock, and what is done about it: its time-outs give up a
//! reply without closing anything, so they are off (deadlines are the engine's); it leaves Nagle's
//! algorithm on, so nodelay is set; its reconnecting manager lets commands wait for as long as it
//! takes and gives up after an authentication error, so it is not used; a dropped future discards
//! commands that were not yet written, so a batch's future is dropped only with its connection.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use quorlock_core::{Answer, Command, Failure, FailureKind, Holding, Value as LockValue};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind,
    IntoConnectionInfo, Pipeline, ProtocolVersion, PushInfo, PushKind, RedisError, Script,
    ServerError, Value,
};
#[cfg(feature = "tls")]
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{Batch, BoxFuture, Key, News, Node, NodeConfig, NodeConfigError, NodeState, Tls};
use crate::error::printable;

/// After so long a silence on a suspended connection, a new one is tried.
const REPLACE_AFTER: Duration = Duration::from_secs(2);

/// A connection without traffic is probed this often, so that a dead one is noticed.
const PROBE_EVERY: Duration = Duration::from_secs(15);

/// The delays between attempts to connect: from, to.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The crate's queue of unwritten pipelines; more than are ever in flight.
const PIPELINE_BUFFER: usize = 64;

/// A node that is a real server: Redis from 6.2 on, or Valkey.
///
/// It has one connection, made when a client begins to use the node and made again for as long as
/// the client lives, whatever the reason for the break, each time resolving the name anew. While
/// there is none, commands fail at once. A server that is silent for too long is suspended:
/// nothing but releases is sent until it answers again, and after two more seconds a new
/// connection takes the old one's place.
///
/// Clients make it themselves from [`ClientBuilder::nodes`](crate::ClientBuilder::nodes); it is
/// public for programs that wrap it in a node of their own.
#[derive(Clone)]
pub struct RedisNode {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    address: String,
    client: Client,
    /// The server speaks no RESP3: then RESP2 it is.
    resp2: AtomicBool,
    connect_timeout: Duration,
    silence: Duration,
    link: watch::Sender<Link>,
    epochs: AtomicU64,
    scripts: Scripts,
}

/// The way to the server.
#[derive(Clone)]
enum Link {
    Connecting,
    Up(Arc<Connection>),
    Suspended(Arc<Connection>, Failure),
    Down(Failure),
}

/// One connection: an epoch.
struct Connection {
    epoch: u64,
    handle: MultiplexedConnection,
    skills: Skills,
    /// Cancelled when nothing may be expected of this connection any more.
    closed: CancellationToken,
    /// Batches sent and not answered.
    in_flight: AtomicUsize,
    /// When the server last gave a sign of life, or was first asked after a pause; in nanoseconds
    /// since the connection was made.
    alive_at: AtomicU64,
    made_at: Instant,
    /// The supervisor watches over what is in flight; else it wants to be woken.
    watched: AtomicBool,
    wake: Notify,
    /// Longer than this without an answer is a silence.
    silence: Duration,
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
        let client = target
            .client(tls, silence)
            .map_err(|reason| NodeConfigError::Tls { node: name.clone(), reason })?;
        let shared = Shared {
            name,
            address,
            client,
            resp2: AtomicBool::new(false),
            connect_timeout,
            silence,
            link: watch::Sender::new(Link::Connecting),
            epochs: AtomicU64::new(0),
            scripts: Scripts::new(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// `host:port`, or the path of the socket.
    pub fn address(&self) -> &str {
        &self.shared.address
    }
}

impl Node for RedisNode {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn state(&self) -> NodeState {
        match &*self.shared.link.borrow() {
            Link::Connecting => NodeState::Connecting,
            Link::Up(_) => NodeState::Up,
            Link::Suspended(_, failure) => NodeState::Suspended(failure.clone()),
            Link::Down(failure) => NodeState::Down(failure.clone()),
        }
    }

    fn execute(&self, batch: Batch) -> BoxFuture<Vec<Answer>> {
        let shared = self.shared.clone();
        Box::pin(async move {
            match shared.connection().await {
                Ok(connection) => shared.run(&connection, batch.send()).await,
                Err(failure) => batch.fail(&failure),
            }
        })
    }

    fn background(&self, news: News) -> BoxFuture<()> {
        Box::pin(supervise(self.shared.clone(), news))
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

impl Shared {
    /// The connection, once it is made; or why there is none.
    async fn connection(&self) -> Result<Arc<Connection>, Failure> {
        // A connection that has broken a moment ago, and whose supervisor has not noticed yet, is as
        // good as one being made: what is not given to it is not lost with it.
        let is_settled = |link: &Link| match link {
            Link::Connecting => false,
            Link::Up(connection) | Link::Suspended(connection, _) => {
                !connection.closed.is_cancelled()
            }
            Link::Down(_) => true,
        };
        let link = self.link.borrow().clone();
        let link = if is_settled(&link) {
            link
        } else {
            let settled = self.link.subscribe().wait_for(is_settled).await.map(|link| link.clone());
            settled.unwrap_or(Link::Connecting)
        };
        match link {
            Link::Up(connection) | Link::Suspended(connection, _) => Ok(connection),
            Link::Down(failure) => Err(failure),
            Link::Connecting => Err(Failure::unsent(FailureKind::Unreachable)),
        }
    }

    /// Sends the commands as one pipeline and translates the answers. A few need another: where the
    /// server did not know the script (a definite no: it has not run, so this is no repetition), or
    /// did not say what was there instead of our key.
    async fn run(&self, connection: &Connection, commands: Vec<Command>) -> Vec<Answer> {
        let way = connection.skills.way();
        let (mut answers, mut unclear) = self.pipeline(connection, &commands, way).await;
        for way in [Way::Sha, Way::Text] {
            let asked = unclear.iter().filter(|(_, other)| *other == way);
            let places: Vec<usize> = asked.map(|(place, _)| *place).collect();
            if !places.is_empty() {
                let again: Vec<Command> = places.iter().map(|&i| commands[i].clone()).collect();
                let (given, still) = self.pipeline(connection, &again, way).await;
                for (&place, given) in places.iter().zip(given) {
                    answers[place] = given;
                }
                unclear.extend(still.into_iter().map(|(i, way)| (places[i], way)));
            }
        }
        answers
    }

    /// One round trip. What it leaves unclear counts as failed until it has been asked again; in
    /// which way to do so is told beside.
    async fn pipeline(
        &self,
        connection: &Connection,
        commands: &[Command],
        way: Way,
    ) -> (Vec<Answer>, Vec<(usize, Way)>) {
        let mut pipeline = Pipeline::with_capacity(commands.len());
        let mut replies = 0;
        let watches = connection.skills.watches;
        for command in commands {
            replies += self.scripts.add(&mut pipeline, command, way, watches);
        }
        let mut handle = connection.handle.clone();
        connection.begin_flight();
        let result = tokio::select! {
            biased;
            result = handle.req_packed_commands(&pipeline, 0, replies) => result,
            () = connection.closed.cancelled() => Err(closed()),
        };
        connection.end_flight();
        let failed = |failure: Failure| (vec![Answer::Failed(failure); commands.len()], Vec::new());
        let values = match result {
            Ok(values) if values.len() == replies => values,
            // Replies that do not fit: the stream is out of step, and so would be all that
            // follows (S22).
            Ok(_) => {
                connection.closed.cancel();
                return failed(Failure::new(FailureKind::Protocol));
            }
            Err(error) => {
                connection.closed.cancel();
                return failed(broken(&error));
            }
        };
        self.resume(connection);
        let mut values = values.into_iter();
        let (mut answers, mut unclear) = (Vec::with_capacity(commands.len()), Vec::new());
        let mut in_step = true;
        for command in commands {
            answers.push(match translate(command, way, watches, &mut values) {
                Ok(answer) => {
                    in_step &= !is_out_of_protocol(&answer);
                    answer
                }
                Err(way) => {
                    unclear.push((answers.len(), way));
                    Answer::Failed(Failure::new(FailureKind::Protocol))
                }
            });
        }
        if !in_step {
            // Out of step somewhere: which of the other replies fit their commands cannot be told
            // either, so none of them counts (S22).
            connection.closed.cancel();
            return failed(Failure::new(FailureKind::Protocol));
        }
        (answers, unclear)
    }

    /// The server gave a sign of life: a suspended connection is as good as before.
    fn resume(&self, connection: &Connection) {
        let suspended = matches!(&*self.link.borrow(), Link::Suspended(..));
        if suspended {
            self.link.send_if_modified(|link| match link {
                Link::Suspended(current, _) if current.epoch == connection.epoch => {
                    *link = Link::Up(current.clone());
                    true
                }
                _ => false,
            });
        }
    }

    /// Connects, logs in, and makes the scripts known.
    async fn connect(&self, news: &News) -> Result<(Arc<Connection>, Pump), Failure> {
        let epoch = self.epochs.fetch_add(1, Ordering::Relaxed) + 1;
        let closed = CancellationToken::new();
        let started = Instant::now();
        let made = timeout(self.connect_timeout, self.open(closed.clone(), news)).await;
        let (handle, skills, pump) = made.unwrap_or_else(|_| {
            let bound = format!("nothing within {:?}", self.connect_timeout);
            Err(Failure::unsent(FailureKind::ConnectTimeout).with_detail(bound))
        })?;
        // Whoever is far away is not silent yet when others would be.
        let silence = self.silence.max(2 * started.elapsed());
        let connection = Arc::new(Connection {
            epoch,
            handle,
            skills,
            closed,
            in_flight: AtomicUsize::new(0),
            alive_at: AtomicU64::new(0),
            made_at: Instant::now(),
            watched: AtomicBool::new(false),
            wake: Notify::new(),
            silence,
        });
        Ok((connection, pump))
    }

    async fn open(
        &self,
        closed: CancellationToken,
        news: &News,
    ) -> Result<(MultiplexedConnection, Skills, Pump), Failure> {
        let resp2 = self.resp2.load(Ordering::Relaxed);
        let logs_in = self.client.get_connection_info().redis_settings().password().is_some();
        match self.open_with(resp2, closed.clone(), news).await {
            Err(error) if !resp2 && knows_no_resp3(&error, logs_in) => {
                self.resp2.store(true, Ordering::Relaxed);
                self.open_with(true, closed, news).await
            }
            result => result,
        }
        .map_err(|error| not_connected(&error))
    }

    async fn open_with(
        &self,
        resp2: bool,
        closed: CancellationToken,
        news: &News,
    ) -> Result<(MultiplexedConnection, Skills, Pump), RedisError> {
        let mut config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_connection_timeout(None)
            .set_pipeline_buffer_size(PIPELINE_BUFFER);
        let mut info = self.client.get_connection_info().clone();
        if resp2 {
            let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2);
            info = info.set_redis_settings(settings);
        } else {
            let news = news.clone();
            config = config.set_push_sender(move |push: PushInfo| {
                match push.kind {
                    PushKind::Disconnection => closed.cancel(),
                    PushKind::Invalidate => pass_on(push.data, &news),
                    _ => {}
                }
                Ok::<(), std::convert::Infallible>(())
            });
        }
        let (mut handle, mut pump) = dial(info, config).await?;
        let pipeline = self.scripts.greet();
        // All but the first is a convenience: a user without the right to load scripts may still
        // have the right to run them. But who is not logged in is not connected.
        let greeted = handle.req_packed_commands(&pipeline, 0, GREETINGS);
        let values = pump.beside(greeted).await?;
        let skills = Skills::learn(&values, resp2);
        let not_logged_in = values.into_iter().find_map(|value| match value {
            Value::ServerError(error) if error.code() == "NOAUTH" => Some(error),
            _ => None,
        });
        match not_logged_in {
            Some(error) => Err(error.into()),
            None => Ok((handle, skills, pump)),
        }
    }
}

/// What moves bytes between the crate's queue and the socket. Polled in the client's own task, so that
/// a command need not change tasks, or threads, on its way to the socket and back.
struct Pump {
    /// `None`: the crate runs it in a task of its own, or it has ended, and the connection with it.
    future: Option<BoxFuture<()>>,
    ended: bool,
}

impl Pump {
    /// Until the connection ends. Does not return for one that the crate looks after.
    async fn run(&mut self) {
        if let Some(future) = &mut self.future {
            future.await;
            self.future = None;
            self.ended = true;
        }
        if !self.ended {
            std::future::pending().await
        }
    }

    /// Goes on while something else is waited for.
    async fn beside<T>(&mut self, other: impl Future<Output = T>) -> T {
        tokio::pin!(other);
        tokio::select! {
            biased;
            result = &mut other => return result,
            () = self.run() => {}
        }
        other.await
    }
}

/// Makes the connection itself; the crate logs in. With TLS, all is the crate's.
async fn dial(
    info: ConnectionInfo,
    config: AsyncConnectionConfig,
) -> Result<(MultiplexedConnection, Pump), RedisError> {
    let settings = info.redis_settings().clone();
    let future: BoxFuture<()>;
    let handle;
    match info.addr() {
        ConnectionAddr::Tcp(host, port) => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            set_up(&stream, &info)?;
            let made = MultiplexedConnection::new_with_config(&settings, stream, config).await?;
            (handle, future) = (made.0, Box::pin(made.1));
        }
        #[cfg(unix)]
        ConnectionAddr::Unix(path) => {
            let stream = UnixStream::connect(path).await?;
            let made = MultiplexedConnection::new_with_config(&settings, stream, config).await?;
            (handle, future) = (made.0, Box::pin(made.1));
        }
        _ => {
            let client = Client::open(info)?;
            let handle = client.get_multiplexed_async_connection_with_config(&config).await?;
            return Ok((handle, Pump { future: None, ended: false }));
        }
    }
    Ok((handle, Pump { future: Some(future), ended: false }))
}

/// The socket's settings that [`Target::client`] asks for.
fn set_up(stream: &TcpStream, info: &ConnectionInfo) -> Result<(), RedisError> {
    let (socket, settings) = (SockRef::from(stream), info.tcp_settings());
    socket.set_tcp_nodelay(settings.nodelay())?;
    if let Some(keepalive) = settings.keepalive() {
        socket.set_tcp_keepalive(keepalive)?;
    }
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(settings.user_timeout())?;
    Ok(())
}

/// What a server can do, as it has said on this connection.
#[derive(Clone, Copy, Debug)]
struct Skills {
    /// It pushes when a key changes that was looked at.
    watches: bool,
    /// The command that compares and deletes, if it has one of its own.
    delete: Option<Delete>,
}

/// A command that deletes a key if it holds a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delete {
    /// `DELIFEQ key value`: Valkey from 9.0 on.
    IfEq,
    /// `DELEX key IFEQ value`: Redis from 8.4 on.
    Ex,
}

impl Skills {
    /// Reads the answers to [`Scripts::greet`].
    fn learn(values: &[Value], resp2: bool) -> Self {
        let watches = !resp2 && matches!(values.get(1), Some(Value::Okay));
        let delete = match values.get(2) {
            Some(Value::Array(known)) => {
                let has = |place: usize| known.get(place).is_some_and(|info| *info != Value::Nil);
                match (has(0), has(1)) {
                    (true, _) => Some(Delete::IfEq),
                    (false, true) => Some(Delete::Ex),
                    (false, false) => None,
                }
            }
            _ => None,
        };
        Self { watches, delete }
    }

    fn way(self) -> Way {
        self.delete.map_or(Way::Sha, Way::Native)
    }
}

/// Hands on which keys the server says have changed; `nil` stands for all of them.
fn pass_on(data: Vec<Value>, news: &News) {
    for value in data {
        match value {
            Value::Array(keys) | Value::Set(keys) => {
                // What is no text is no key of ours.
                let keys = keys.into_iter().filter_map(|key| match key {
                    Value::BulkString(bytes) => String::from_utf8(bytes).ok().map(Key::from),
                    Value::SimpleString(text) => Some(Key::from(text)),
                    _ => None,
                });
                news.changed(keys.collect());
            }
            Value::Nil => news.all_changed(),
            _ => {}
        }
    }
}

/// Keeps the node connected, for ever.
async fn supervise(shared: Arc<Shared>, news: News) {
    let mut failures: u32 = 0;
    loop {
        match shared.connect(&news).await {
            Ok((connection, pump)) => {
                let made_at = connection.made_at;
                watch_over(&shared, connection, pump, &news).await;
                // It broke just now: perhaps only the connection did, so the first attempt to
                // make a new one has the benefit of the doubt, and commands wait for it.
                shared.link.send_replace(Link::Connecting);
                if made_at.elapsed() >= BACKOFF.1 {
                    failures = 0;
                } else {
                    // But whoever takes every connection and breaks it at once is not to be
                    // asked as fast as we can.
                    sleep(backoff(failures)).await;
                    failures = failures.saturating_add(1);
                }
            }
            Err(failure) => {
                tracing::debug!(node = shared.name, %failure, "not connected");
                shared.link.send_replace(Link::Down(failure));
                sleep(backoff(failures)).await;
                failures = failures.saturating_add(1);
            }
        }
    }
}

/// Watches over one connection, and those that replace it, until one breaks.
async fn watch_over(shared: &Shared, mut connection: Arc<Connection>, mut pump: Pump, news: &News) {
    tracing::debug!(node = shared.name, epoch = connection.epoch, "connected");
    shared.link.send_replace(Link::Up(connection.clone()));
    news.all_changed();
    // However this ends, nothing may be expected of the connection afterwards.
    let mut _closes = connection.closed.clone().drop_guard();
    let mut failures: u32 = 0;
    loop {
        tokio::select! {
            () = connection.closed.cancelled() => {
                tracing::debug!(node = shared.name, epoch = connection.epoch, "disconnected");
                return;
            }
            () = pump.run() => {
                connection.closed.cancel();
                continue;
            }
            () = connection.silence_or_pause() => {}
        }
        let silent_for = connection.silent_for();
        let Some(silent_for) = silent_for.filter(|time| *time >= connection.silence) else {
            // Whatever was awaited has been answered, be it only a probe.
            shared.resume(&connection);
            if silent_for.is_none() {
                connection.probe();
            }
            continue;
        };
        shared.suspend(&connection, silent_for);
        if silent_for >= connection.silence + REPLACE_AFTER {
            // The old connection is kept until the new one has answered its handshake: if the
            // server only slept, what it was sent is executed in order.
            let replacement = pump.beside(shared.connect(news)).await;
            let still_silent = matches!(&*shared.link.borrow(), Link::Suspended(..));
            match replacement {
                Ok((new, its_pump)) if still_silent => {
                    shared.link.send_replace(Link::Up(new.clone()));
                    news.all_changed();
                    _closes = new.closed.clone().drop_guard();
                    connection = new;
                    pump = its_pump;
                    failures = 0;
                }
                // It answers again; the new one is not needed.
                Ok(_) => {}
                Err(_) => {
                    let pause = async {
                        tokio::select! {
                            () = connection.closed.cancelled() => {}
                            () = sleep(backoff(failures)) => {}
                        }
                    };
                    pump.beside(pause).await;
                    failures = failures.saturating_add(1);
                }
            }
        }
    }
}

impl Shared {
    fn suspend(&self, connection: &Arc<Connection>, silent_for: Duration) {
        let detail = format!("no answer for {silent_for:.1?}");
        let failure = Failure::unsent(FailureKind::Suspended).with_detail(detail);
        self.link.send_replace(Link::Suspended(connection.clone(), failure));
    }
}

impl Connection {
    fn begin_flight(&self) {
        // In one order with what `silence_or_pause` does, or each could miss the other's news.
        if self.in_flight.fetch_add(1, Ordering::SeqCst) == 0 {
            self.mark_alive();
        }
        if !self.watched.swap(true, Ordering::SeqCst) {
            self.wake.notify_one();
        }
    }

    fn end_flight(&self) {
        self.mark_alive();
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
    }

    fn mark_alive(&self) {
        let nanos = u64::try_from(self.made_at.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.alive_at.store(nanos, Ordering::Release);
    }

    /// For how long answers have been awaited in vain; `None` if none are awaited.
    fn silent_for(&self) -> Option<Duration> {
        if self.in_flight.load(Ordering::Acquire) == 0 {
            return None;
        }
        let alive_at = Duration::from_nanos(self.alive_at.load(Ordering::Acquire));
        Some(self.made_at.elapsed().saturating_sub(alive_at))
    }

    /// Returns after a while in which there was something to watch over, or after a long pause.
    async fn silence_or_pause(&self) {
        if self.in_flight.load(Ordering::SeqCst) == 0 {
            self.watched.store(false, Ordering::SeqCst);
            if self.in_flight.load(Ordering::SeqCst) == 0 {
                tokio::select! {
                    () = self.wake.notified() => {}
                    () = sleep(PROBE_EVERY) => return,
                }
            }
        }
        sleep(self.silence / 3).await;
    }

    /// Asks for a sign of life, without waiting for it: who watches sees whether it comes.
    fn probe(self: &Arc<Self>) {
        if self
            .made_at
            .elapsed()
            .saturating_sub(Duration::from_nanos(self.alive_at.load(Ordering::Acquire)))
            < PROBE_EVERY
        {
            return;
        }
        let connection = self.clone();
        tokio::spawn(async move {
            let mut handle = connection.handle.clone();
            connection.begin_flight();
            let ping = redis::cmd("PING");
            tokio::select! {
                result = handle.req_packed_command(&ping) => {
                    if result.is_err_and(|error| error.is_unrecoverable_error()) {
                        connection.closed.cancel();
                    }
                }
                () = connection.closed.cancelled() => {}
            }
            connection.end_flight();
        });
    }
}

/// Doubling, jittered in its upper half.
fn backoff(failures: u32) -> Duration {
    let full = BACKOFF.0.saturating_mul(1 << failures.min(10)).min(BACKOFF.1);
    let word = getrandom::u32().unwrap_or(u32::MAX);
    full / 2 + (full / 2).mul_f64(f64::from(word) / f64::from(u32::MAX))
}

/// How a compare-and-something is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By a command of the server's own, where there is one; else by a script.
    Native(Delete),
    /// By a script that the server should know.
    Sha,
    /// By a script that it did not know.
    Text,
}

/// How many commands [`Scripts::greet`] says.
const GREETINGS: usize = 5;

/// The scripts, and how each command is said in the server's language.
struct Scripts {
    extend: Script,
    release: Script,
}

const EXTEND: &str = include_str!("scripts/extend.lua");
const RELEASE: &str = include_str!("scripts/release.lua");

impl Scripts {
    fn new() -> Self {
        Self { extend: Script::new(EXTEND), release: Script::new(RELEASE) }
    }

    /// What is said on a new connection: who goes there; tell me of keys that I ask you to watch, but
    /// not of what I do to them myself; what can you do; and here are the scripts.
    fn greet(&self) -> Pipeline {
        let mut pipeline = Pipeline::with_capacity(GREETINGS);
        pipeline.cmd("PING");
        pipeline.cmd("CLIENT").arg("TRACKING").arg("ON").arg("OPTIN").arg("NOLOOP");
        pipeline.cmd("COMMAND").arg("INFO").arg("DELIFEQ").arg("DELEX");
        pipeline.cmd("SCRIPT").arg("LOAD").arg(EXTEND);
        pipeline.cmd("SCRIPT").arg("LOAD").arg(RELEASE);
        pipeline
    }

    /// Adds a command; returns how many replies it gets.
    fn add(&self, pipeline: &mut Pipeline, command: &Command, way: Way, watches: bool) -> usize {
        match command {
            Command::Acquire { key, value, ttl_ms } => {
                let mut set = sized("SET", 6, key.len() + value.as_bytes().len() + 32);
                set.arg(&**key).arg(value.as_bytes()).arg("NX").arg("PX").arg(*ttl_ms);
                pipeline.add_command(set);
                1
            }
            Command::Extend { key, value, ttl_ms } => {
                let mut call = Self::call(&self.extend, EXTEND, way, key, value);
                call.arg(*ttl_ms);
                pipeline.add_command(call);
                1
            }
            Command::Release { key, value, .. } => {
                let size = key.len() + value.as_bytes().len() + 16;
                pipeline.add_command(match way {
                    Way::Native(Delete::IfEq) => {
                        let mut delete = sized("DELIFEQ", 3, size);
                        delete.arg(&**key).arg(value.as_bytes());
                        delete
                    }
                    Way::Native(Delete::Ex) => {
                        let mut delete = sized("DELEX", 4, size);
                        delete.arg(&**key).arg("IFEQ").arg(value.as_bytes());
                        delete
                    }
                    Way::Sha | Way::Text => Self::call(&self.release, RELEASE, way, key, value),
                });
                1
            }
            // CACHING is about the one command that follows it, so nothing may come in between: the
            // three are one command of ours, and go together.
            Command::Watch { key } if watches => {
                pipeline.cmd("CLIENT").arg("CACHING").arg("YES");
                pipeline.cmd("GET").arg(&**key);
                pipeline.cmd("PTTL").arg(&**key);
                3
            }
            Command::Inspect { key } | Command::Watch { key } => {
                pipeline.cmd("GET").arg(&**key);
                pipeline.cmd("PTTL").arg(&**key);
                2
            }
            // A command of a later core: answered as out of protocol, since nothing is sent.
            _ => 0,
        }
    }

    fn call(script: &Script, text: &'static str, way: Way, key: &Key, value: &LockValue) -> Cmd {
        let (name, program) = match way {
            Way::Native(_) | Way::Sha => ("EVALSHA", script.get_hash()),
            Way::Text => ("EVAL", text),
        };
        let size = program.len() + key.len() + value.as_bytes().len() + 32;
        let mut call = sized(name, 6, size);
        call.arg(program).arg(1).arg(&**key).arg(value.as_bytes());
        call
    }
}

/// A command with room for so many arguments and bytes in it: to grow step by step costs more than
/// all else that is done for it.
fn sized(name: &str, arguments: usize, bytes: usize) -> Cmd {
    let mut command = Cmd::with_capacity(arguments, bytes);
    command.arg(name);
    command
}

/// Reads one command's replies. An error says in which way to ask instead.
fn translate(
    command: &Command,
    way: Way,
    watches: bool,
    values: &mut impl Iterator<Item = Value>,
) -> Result<Answer, Way> {
    let mut next = || values.next().unwrap_or(Value::Nil);
    Ok(match command {
        Command::Acquire { .. } => match next() {
            Value::Okay => Answer::Granted,
            Value::Nil => Answer::Refused,
            Value::ServerError(error) => Answer::Failed(not_set(&error)),
            other => unexpected(other),
        },
        Command::Extend { .. } => match next() {
            Value::Int(1) => Answer::Extended,
            other => return absent_or_other(other, way),
        },
        Command::Release { tell, .. } => match (next(), way) {
            (Value::Int(1), _) => Answer::Deleted,
            // Absent or another's: only the script tells which. It finds nothing of ours to delete.
            (Value::Int(0), Way::Native(_)) if *tell => return Err(Way::Sha),
            (Value::Int(0), Way::Native(_)) => Answer::NotOurs,
            (Value::ServerError(error), Way::Native(_)) if error.code() == "WRONGTYPE" => {
                Answer::Other
            }
            (other, _) => return absent_or_other(other, way),
        },
        Command::Watch { .. } if watches => {
            let (caching, value, ttl) = (next(), next(), next());
            match (holding(value, ttl), caching) {
                (Answer::Seen(holding), Value::Okay) => Answer::Watched(holding),
                (answer, _) => answer,
            }
        }
        Command::Inspect { .. } | Command::Watch { .. } => {
            let (value, ttl) = (next(), next());
            holding(value, ttl)
        }
        _ => Answer::Failed(Failure::unsent(FailureKind::Protocol)),
    })
}

fn absent_or_other(value: Value, way: Way) -> Result<Answer, Way> {
    match value {
        Value::Int(-1) => Ok(Answer::Absent),
        Value::Int(0) => Ok(Answer::Other),
        Value::ServerError(error) if error.code() == "NOSCRIPT" && way != Way::Text => {
            Err(Way::Text)
        }
        other => Ok(unexpected(other)),
    }
}

/// What `GET` and `PTTL` say together. They are two commands, so the key may have gone in between.
fn holding(value: Value, ttl: Value) -> Answer {
    let ttl = match ttl {
        Value::Int(-2) => return Answer::Seen(Holding::Free),
        Value::Int(ms) if ms < 0 => None,
        Value::Int(ms) => Some(Duration::from_millis(ms.unsigned_abs())),
        other => return unexpected(other),
    };
    match value {
        Value::Nil => Answer::Seen(Holding::Free),
        Value::BulkString(mut bytes) => {
            bytes.truncate(Holding::VALUE_BYTES_MAX);
            Answer::Seen(Holding::Held { value: bytes, ttl })
        }
        Value::ServerError(error) if error.code() == "WRONGTYPE" => {
            Answer::Seen(Holding::OtherType { ttl })
        }
        other => unexpected(other),
    }
}

fn unexpected(value: Value) -> Answer {
    Answer::Failed(match value {
        Value::ServerError(error) => rejected(&error),
        _ => Failure::new(FailureKind::Protocol),
    })
}

fn is_out_of_protocol(answer: &Answer) -> bool {
    matches!(answer, Answer::Failed(failure)
        if failure.kind() == FailureKind::Protocol && failure.may_have_been_executed())
}

/// An error that the server answered to one command, which may have done part of its work.
fn rejected(error: &ServerError) -> Failure {
    let details = error.details().unwrap_or_default();
    // What a script may not do, Redis 7.0 tells without the code for it.
    let kind = if details.starts_with("The user executing the script") {
        FailureKind::Forbidden
    } else {
        kind_of(error.code())
    };
    Failure::new(kind).with_detail(as_answered(error))
}

/// An error in answer to a `SET`. Those known by name come before the server does anything, so no
/// key was set: as good as unsent, and nothing is owed. Others may come from a proxy that has lost
/// its server, and say nothing.
fn not_set(error: &ServerError) -> Failure {
    match kind_of(error.code()) {
        FailureKind::Rejected => rejected(error),
        kind => Failure::unsent(kind).with_detail(as_answered(error)),
    }
}

fn as_answered(error: &ServerError) -> String {
    match error.details() {
        Some(details) => for_people(&format!("{} {details}", error.code())),
        None => for_people(error.code()),
    }
}

fn kind_of(code: &str) -> FailureKind {
    match code {
        "NOAUTH" | "WRONGPASS" => FailureKind::Unauthenticated,
        "NOPERM" => FailureKind::Forbidden,
        "READONLY" => FailureKind::ReadOnly,
        "LOADING" => FailureKind::Loading,
        "MASTERDOWN" => FailureKind::MasterDown,
        "OOM" => FailureKind::OutOfMemory,
        "MISCONF" => FailureKind::CannotPersist,
        "BUSY" => FailureKind::Busy,
        "MOVED" | "ASK" | "CROSSSLOT" | "CLUSTERDOWN" | "TRYAGAIN" => FailureKind::Redirected,
        _ => FailureKind::Rejected,
    }
}

/// The connection broke with commands in it: what became of them is unknown.
fn broken(error: &RedisError) -> Failure {
    Failure::new(FailureKind::Unreachable).with_detail(for_people(&error.to_string()))
}

fn closed() -> RedisError {
    RedisError::from((ErrorKind::Io, "connection lost"))
}

/// Why there is no connection. Nothing of ours has been sent on it.
fn not_connected(error: &RedisError) -> Failure {
    let kind = match error.kind() {
        ErrorKind::AuthenticationFailed => FailureKind::Unauthenticated,
        _ => match error.code() {
            Some(code) => match kind_of(code) {
                FailureKind::Rejected => FailureKind::Unreachable,
                kind => kind,
            },
            None => FailureKind::Unreachable,
        },
    };
    let detail = match (kind, error.detail()) {
        (FailureKind::Unauthenticated, _) if error.code() == Some("NOAUTH") => {
            "a password is needed".to_owned()
        }
        (FailureKind::Unauthenticated, None) => "wrong user name or password".to_owned(),
        (_, Some(detail)) => for_people(detail),
        (_, None) => for_people(&error.to_string()),
    };
    Failure::unsent(kind).with_detail(detail)
}

/// Whether `HELLO` failed because there is no such command. The crate recognises only one of the
/// servers' spellings; and some tell nobody which commands they know who has not logged in, although
/// that is what this `HELLO` was to do.
fn knows_no_resp3(error: &RedisError, logs_in: bool) -> bool {
    error.kind() == ErrorKind::RESP3NotSupported
        || error.code() == Some("NOPROTO")
        || error.code() == Some("NOAUTH") && logs_in
        || error.detail().is_some_and(|detail| detail.starts_with("unknown command"))
}

/// One line, printable, of a bounded length. Servers repeat the arguments of a command they do not
/// know, a password or a token among them: that part is left out.
fn for_people(text: &str) -> String {
    let text = text.split(", with args beginning with").next().unwrap_or_default();
    printable(text.trim()).chars().take(160).collect()
}

/// An address and how to log in there.
#[derive(Clone)]
pub(super) struct Target(ConnectionInfo);

impl Target {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let Some((scheme, _)) = text.split_once("://") else {
            return Err("malformed: a URL starts with a scheme, such as redis://".to_owned());
        };
        let known = ["redis", "rediss", "valkey", "valkeys", "redis+unix", "valkey+unix", "unix"];
        if !known.contains(&scheme) {
            return Err(format!(
                "unknown scheme {:?}; use redis://, rediss://, valkey://, valkeys:// or \
                 redis+unix://",
                scheme.chars().take(20).collect::<String>()
            ));
        }
        if cfg!(not(feature = "tls")) && matches!(scheme, "rediss" | "valkeys") {
            return Err("this build has no TLS (feature \"tls\")".to_owned());
        }
        // The crate says what is wrong, and behind a dash it repeats what it could not read: that
        // may be anything, so it is left out.
        let tail = text.find(['?', '#']).map_or("", |place| &text[place..]);
        if tail.contains('@') && !scheme.ends_with("unix") {
            return Err(
                "malformed: a ?, # or @ in a password is written %3F, %23 or %40".to_owned()
            );
        }
        let url = redis::parse_redis_url(text).ok_or_else(|| "malformed".to_owned())?;
        let is_rootless = url.has_host() || url.path().trim_matches('/').is_empty();
        if scheme.ends_with("unix") && is_rootless {
            return Err(format!("a socket has an absolute path: {scheme}:///path"));
        }
        let info = url.into_connection_info().map_err(|error| {
            let text = error.to_string();
            text.split(" - ").next().unwrap_or_default().to_lowercase()
        })?;
        match info.addr() {
            ConnectionAddr::TcpTls { insecure: true, .. } => {
                Err("certificates are always checked; #insecure is not supported".to_owned())
            }
            _ => Ok(Self(info)),
        }
    }

    pub(super) fn address(&self) -> String {
        match self.0.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                let host = host.to_lowercase();
                if host.contains(':') && !host.starts_with('[') {
                    format!("[{host}]:{port}")
                } else {
                    format!("{host}:{port}")
                }
            }
            ConnectionAddr::Unix(path) => path.display().to_string(),
            _ => "unknown address".to_owned(),
        }
    }

    pub(super) fn has_password(&self) -> bool {
        self.0.redis_settings().password().is_some()
    }

    pub(super) fn set_password(&mut self, password: &str) {
        let settings = self.0.redis_settings().clone().set_password(password);
        self.0 = self.0.clone().set_redis_settings(settings);
    }

    pub(super) fn set_username(&mut self, username: &str) {
        let settings = self.0.redis_settings().clone().set_username(username);
        self.0 = self.0.clone().set_redis_settings(settings);
    }

    /// The crate's client for this address, with our settings of the socket and the protocol.
    fn client(self, tls: Option<Tls>, silence: Duration) -> Result<Client, String> {
        let keepalive = TcpKeepalive::new()
            .with_time(Duration::from_secs(10))
            .with_interval(Duration::from_secs(1));
        let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
        #[cfg(target_os = "linux")]
        let tcp = tcp.set_user_timeout((silence * 10).max(REPLACE_AFTER));
        let mut settings = self.0.redis_settings().clone();
        if settings.username().is_some() && settings.password().is_none() {
            // The crate logs nobody in without a password; a user that needs none takes any.
            settings = settings.set_password("");
        }
        let settings = settings
            .set_protocol(ProtocolVersion::RESP3)
            .set_lib_name("quorlock", env!("CARGO_PKG_VERSION"));
        let info = self.0.set_tcp_settings(tcp).set_redis_settings(settings);
        let encrypted = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
        let client = if encrypted { encrypted_client(info, tls) } else { Client::open(info) };
        client.map_err(|error| for_people(&error.to_string()))
    }
}

#[cfg(feature = "tls")]
fn encrypted_client(info: ConnectionInfo, tls: Option<Tls>) -> Result<Client, RedisError> {
    // Two providers in one build make rustls refuse to choose, with a panic at the first
    // connection: so one is chosen here, unless the program has chosen already.
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // An error says that another thread was faster: then there is one.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let Tls { ca, client } = tls.unwrap_or_default();
    for pem in ca.iter().chain(client.iter().map(|(certificate, _)| certificate)) {
        // The crate takes a file without certificates for an authority that nobody is known to.
        if CertificateDer::pem_slice_iter(pem).next().is_none() {
            let error = (ErrorKind::InvalidClientConfig, "no certificate in PEM format found");
            return Err(error.into());
        }
    }
    let client_tls =
        client.map(|(client_cert, client_key)| redis::ClientTlsConfig { client_cert, client_key });
    Client::build_with_tls(info, redis::TlsCertificates { client_tls, root_cert: ca })
}

#[cfg(not(feature = "tls"))]
fn encrypted_client(info: ConnectionInfo, _: Option<Tls>) -> Result<Client, RedisError> {
    // Refused when the URL was read.
    Client::open(info)
}
