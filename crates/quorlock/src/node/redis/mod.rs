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
//! From below: [`resp`] reads and writes the language, [`wire`] is a socket with those who wait for
//! its replies, [`speech`] says our commands in that language, with [`scripts`], [`proof`] asks for what
//! makes the answers count, [`connect`] makes a wire of an address
//! ([`target`], [`tls`]), and [`supervise`] sees to it that there is one.

mod connect;
mod exam;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod proof;
mod registration;
mod resp;
mod scripts;
mod speech;
mod supervise;
mod target;
#[cfg(feature = "tls")]
mod tls;
mod wire;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quorlock_core::info::Info;
use quorlock_core::shown::{LINE_MAX, shown};
use quorlock_core::{
    Answer, Command, Failure, FailureKind, Key, Proof, Supervisor, Untold, may_ask_again,
};
use tokio::sync::watch;
use tokio::time::timeout;

use self::connect::{Dialer, NotConnected};
pub(crate) use self::exam::Exam;
use self::proof::Looks;
pub(crate) use self::registration::{Do, Registration};
pub(crate) use self::resp::Reply;
use self::scripts::Scripts;
use self::speech::{Skills, Way, is_out_of_protocol, say, translate};
use self::supervise::supervise;
pub(super) use self::target::Target;
#[cfg(feature = "tls")]
use self::tls::Encryption;
use self::wire::Wire;
use super::{Answers, Batch, BoxFuture, News, Node, NodeConfig, NodeConfigError, NodeState};

/// A node that is a real server: Redis from 6.2 on, or Valkey.
///
/// It has one connection, made when a client begins to use the node and made again for as long as
/// the client lives, whatever the reason for the break, each time resolving the name anew. Commands
/// wait for the first attempt to make it, for a bounded time; once that has failed, they fail at
/// once until there is a connection. A server that is silent for too long is suspended:
/// nothing but releases is sent until it answers again, and after two more seconds a new
/// connection takes the old one's place.
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
    dialer: Dialer,
    /// The server speaks no RESP3: then RESP2 it is.
    resp2: AtomicBool,
    connect_timeout: Duration,
    silence: Duration,
    link: watch::Sender<Link>,
    epochs: AtomicU64,
    scripts: Scripts,
}

/// The way to the server.
struct Link {
    state: NodeState,
    /// What commands go out on.
    connection: Option<Arc<Connection>>,
}

/// One connection: an epoch.
struct Connection {
    epoch: u64,
    wire: Wire,
    skills: Skills,
    /// Under which key its marker is, if it has to prove itself.
    marker: Option<Key>,
    /// Which database it is in, and whether that is to be written if nobody has.
    registration: Option<(Registration, Do)>,
    /// The operator says that it forgets nothing when it stops, and it is asked whether that can be.
    is_lasting: bool,
    /// How many pipelines have been sent. All are sent by one task, the client's.
    pipelines: AtomicU64,
    /// What it did not know, and has not been told since.
    untold: Mutex<Untold>,
}

/// What came of a pipeline.
struct Said {
    answers: Vec<Answer>,
    /// Which commands must be asked again, and in which way.
    unclear: Vec<(usize, Way)>,
    /// `None`: no replies came.
    seen: Option<Proof>,
    /// Which of the connection's pipelines it was.
    number: u64,
}

impl Connection {
    fn untold(&self) -> MutexGuard<'_, Untold> {
        self.untold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What must be asked beside these commands.
    fn looks_for(&self, commands: &[Command]) -> Looks {
        let is_first = self.pipelines.load(Ordering::Relaxed) == 0;
        match self.marker {
            Some(_) => Looks::for_batch(is_first, self.is_lasting, commands),
            None => Looks { info: false, settings: false, marker: false },
        }
    }
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
        #[cfg(not(feature = "tls"))]
        drop(tls);
        #[cfg(feature = "tls")]
        let encryption = target
            .is_encrypted()
            .then(|| Encryption::new(tls.unwrap_or_default()))
            .transpose()
            .map_err(|reason| NodeConfigError::Tls { node: name.clone(), reason })?;
        let dialer = Dialer {
            target,
            #[cfg(feature = "tls")]
            encryption,
            give_up_after: (silence * 10).max(Supervisor::REPLACE_AFTER),
        };
        let shared = Shared {
            name,
            address,
            dialer,
            resp2: AtomicBool::new(false),
            connect_timeout,
            silence,
            link: watch::Sender::new(Link { state: NodeState::Connecting, connection: None }),
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
        self.shared.link.borrow().state.clone()
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

impl Link {
    /// The connection, or why there is none; `None` while that is open.
    fn settled(&self) -> Option<Result<Arc<Connection>, Failure>> {
        if let NodeState::Down(failure) = &self.state {
            return Some(Err(failure.clone()));
        }
        // A connection that has broken a moment ago, and whose supervisor has not noticed yet, is as
        // good as one being made: what is not given to it is not lost with it.
        let connection = self.connection.as_ref().filter(|it| !it.wire.is_closed());
        connection.cloned().map(Ok)
    }
}

impl Shared {
    /// The connection, once it is made; or why there is none.
    async fn connection(&self) -> Result<Arc<Connection>, Failure> {
        if let Some(settled) = self.link.borrow().settled() {
            return settled;
        }
        let mut link = self.link.subscribe();
        let settled = link.wait_for(|link| link.settled().is_some()).await;
        let settled = settled.ok().and_then(|link| link.settled());
        settled.unwrap_or_else(|| Err(Failure::unsent(FailureKind::Unreachable)))
    }

    /// Sends the commands as one pipeline and translates the answers. A few need another: where the
    /// server did not know the script (a definite no: it has not run, so this is no repetition), or
    /// did not say what was there instead of our key.
    async fn run(&self, connection: &Connection, commands: Vec<Command>) -> Answers {
        let way = match connection.untold().is_told_with(&commands) {
            true => Way::Text,
            false => connection.skills.way(),
        };
        let Said { mut answers, mut unclear, mut seen, mut number } =
            self.pipeline(connection, &commands, way).await;
        for way in [Way::Sha, Way::Text] {
            if unclear.is_empty() {
                break;
            }
            let asked = unclear.iter().filter(|(_, other)| *other == way);
            let has_moved_on = connection.pipelines.load(Ordering::Relaxed) != number;
            let (late, places): (Vec<usize>, Vec<usize>) = asked
                .map(|(place, _)| *place)
                .partition(|&place| !may_ask_again(&commands, place, has_moved_on));
            for place in late {
                let why = "NOSCRIPT, and it is too late to ask again";
                let failure = Failure::unsent(FailureKind::Rejected).with_detail(why);
                answers[place] = Answer::Failed(failure);
                connection.untold().note(&commands[place]);
            }
            if !places.is_empty() {
                let again: Vec<Command> = places.iter().map(|&i| commands[i].clone()).collect();
                let said = self.pipeline(connection, &again, way).await;
                for (&place, given) in places.iter().zip(said.answers) {
                    answers[place] = match given {
                        // It is known that it was not ours, if not what it was.
                        Answer::Failed(_) if way == Way::Sha => Answer::NotOurs,
                        given => given,
                    };
                }
                unclear.extend(said.unclear.into_iter().map(|(i, way)| (places[i], way)));
                if said.number == number + 1 {
                    number = said.number;
                }
                // A later look that came to nothing says nothing of what was answered before it.
                seen = seen.map(|seen| seen.and_later(said.seen.unwrap_or_default()));
            }
        }
        match seen {
            Some(proof) if connection.marker.is_some() && !mutant!(NothingProved) => {
                Answers { answers, proof }
            }
            // Nobody looks; or there is nothing but failures.
            _ => answers.into(),
        }
    }

    /// One round trip. What it leaves unclear counts as failed until it has been asked again; in
    /// which way to do so is told beside.
    async fn pipeline(&self, connection: &Connection, commands: &[Command], way: Way) -> Said {
        let looks = connection.looks_for(commands);
        let number = connection.pipelines.fetch_add(1, Ordering::Relaxed) + 1;
        let failed = |failure: Failure| Said {
            answers: vec![Answer::Failed(failure); commands.len()],
            unclear: Vec::new(),
            seen: None,
            number,
        };
        let Skills { watches, sections, .. } = connection.skills;
        if watches {
            let watched =
                commands.iter().filter(|command| matches!(command, Command::Watch { .. }));
            let count = watched.count();
            if count > 0 {
                connection.wire.expect_pushes(count);
            }
        }
        let said = connection.wire.send(|out| {
            let registration = connection.registration.as_ref();
            let mut count = looks.say_before(sections, registration, out);
            for command in commands {
                count += say(command, way, watches, &self.scripts, out);
            }
            let marker = connection.marker.as_ref();
            count + marker.map_or(0, |marker| looks.say_behind(marker, out))
        });
        let said = match said {
            Ok(said) => said.await,
            Err(unsent) => return failed(unsent),
        };
        let Ok(wire::Said { replies, flushes }) = said else {
            return failed(connection.wire.why_closed());
        };
        // What came in one piece with something out of step cannot be told from it (S22).
        if let Some(failure) = connection.wire.why_out_of_step() {
            return failed(failure);
        }
        self.resume(connection);
        let mut replies = replies.into_iter();
        let before = looks.take_before(&mut replies);
        if looks.settings && number == 1 {
            self.contradict(before.as_ref());
        }
        let registration = connection.registration.as_ref().filter(|_| looks.info);
        let registered = registration.and_then(|(it, _)| Some(it.judge(&replies.next()?)));
        let behind = looks.marker.then(|| replies.next_back()).flatten();
        let seen = proof::read(before, behind, registered, connection.epoch, flushes);
        let (mut answers, mut unclear) = (Vec::with_capacity(commands.len()), Vec::new());
        let mut in_step = true;
        for command in commands {
            answers.push(match translate(command, way, watches, &mut replies) {
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
        match seen {
            Some(seen) if in_step => Said { answers, unclear, seen: Some(seen), number },
            // Out of step somewhere: which of the other replies fit their commands cannot be told
            // either, so none of them counts (S22).
            _ => {
                let failure =
                    Failure::new(FailureKind::Protocol).with_detail("its answers do not fit");
                connection.wire.close(failure.clone());
                failed(failure)
            }
        }
    }

    /// Tells the operator, once for each connection, if the server itself says that it forgets.
    fn contradict(&self, info: Option<&Reply>) {
        let Some(Reply::Bytes(info)) = info else { return };
        let setting =
            Info::parse(&String::from_utf8_lossy(info)).ok().and_then(|info| info.forgets_by());
        if let Some(setting) = setting {
            tracing::warn!(
                "node {}: declared to forget nothing when it stops (lasting), but it has {setting}: it waits \
                 after a restart as others do",
                self.name
            );
        }
    }

    /// The server gave a sign of life: a suspended connection is as good as before. The supervisor sees that with
    /// its next look, which comes before it publishes anything.
    fn resume(&self, connection: &Connection) {
        let suspended = matches!(self.link.borrow().state, NodeState::Suspended(_));
        if suspended {
            self.link.send_if_modified(|link| {
                let current = link.connection.as_ref();
                let is_it = current.is_some_and(|current| current.epoch == connection.epoch);
                is_it && link.state.resume()
            });
        }
    }

    /// Connects, logs in, and makes the scripts known.
    async fn connect(&self, news: &News) -> Result<Arc<Connection>, Failure> {
        let epoch = self.epochs.fetch_add(1, Ordering::Relaxed) + 1;
        let made = timeout(self.connect_timeout, self.connect_somehow(news)).await;
        let (wire, skills) = made.unwrap_or_else(|_| {
            let bound = format!("nothing within {:?}", self.connect_timeout);
            Err(Failure::unsent(FailureKind::ConnectTimeout).with_detail(bound))
        })?;
        Ok(Arc::new(Connection {
            epoch,
            wire,
            skills,
            marker: news.marker().cloned(),
            registration: news.marker().and_then(|marker| {
                let registration = Registration::beside(marker, self.dialer.target.database)?;
                let what = if news.registers() { Do::Register } else { Do::Look };
                Some((registration, what))
            }),
            is_lasting: news.is_lasting(),
            pipelines: AtomicU64::new(0),
            untold: Mutex::default(),
        }))
    }

    /// In the newer protocol, or else in the older one.
    async fn connect_somehow(&self, news: &News) -> Result<(Wire, Skills), Failure> {
        loop {
            let resp2 = self.resp2.load(Ordering::Relaxed);
            match connect::connect(&self.dialer, &self.scripts, resp2, news).await {
                Ok(made) => return Ok(made),
                Err(NotConnected::Because(failure)) => return Err(failure),
                Err(NotConnected::OnlyResp2) => self.resp2.store(true, Ordering::Relaxed),
            }
        }
    }
}

/// One line, printable, of a bounded length. Servers repeat the arguments of a command they do not
/// know, a password or a token among them: that part is left out.
fn for_people(text: &str) -> String {
    let text = text.split(", with args beginning with").next().unwrap_or_default();
    shown(text.trim(), LINE_MAX)
}
