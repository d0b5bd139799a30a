//! A proxy that reads what passes through it, message by message: commands one way, replies and
//! pushes the other. Each of the three is a lane of its own, in which a test can hold messages back
//! for as long as it likes, so that they come in any order that the network could bring about.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use quorlock_servers::proxy::Door;
use quorlock_servers::resp::take;
use quorlock_servers::{Reply, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::PATIENCE;

/// Something that has happened at the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The client has sent this command.
    Sent(String),
    /// The server has executed it: its reply is here.
    Executed(String),
    /// The client has been given the reply.
    Answered(String),
    /// The server has pushed that this key has changed.
    Pushed(String),
    /// The client has been told so.
    Told(String),
    /// Not the proxy's doing: the test says so.
    Noted(&'static str),
}

/// A message that waits to be passed on. Commands go by their name, those with subcommands by both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Command(String),
    /// The reply to this command.
    Reply(String),
    /// This key has changed.
    Push(String),
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Pass,
    /// And the client has the time to read it before anything else comes: what arrives together may
    /// be read in one go.
    PassAlone,
    /// Until something else happens, and then it is asked again.
    Hold,
    Drop,
}

/// The client reads what is there within this time. If it does not, the test is as good, for all
/// that differs is which of two orders it sees.
const READING: Duration = Duration::from_millis(1);

/// What becomes of the first message of a lane, after all that has been seen. Looked up anew
/// whenever more is seen.
type Rule = Box<dyn Fn(&Message, &[Seen]) -> Fate + Send>;

pub(crate) struct RespProxy {
    door: Door,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<(Rule, Vec<Seen>)>,
    changed: watch::Sender<u64>,
}

impl RespProxy {
    pub(crate) async fn start(server: &Server) -> Self {
        let rule: Rule = Box::new(|_, _| Fate::Pass);
        let state = Mutex::new((rule, Vec::new()));
        let shared = Arc::new(Shared { state, changed: watch::Sender::new(0) });
        let its = shared.clone();
        let door = Door::open(server, move |client, server| {
            let connection = RespConnection::new(its.clone());
            async move {
                if let Some(server) = server {
                    connection.run(client, server).await;
                }
            }
        });
        Self { door: door.await.unwrap(), shared }
    }

    pub(crate) fn url(&self) -> String {
        self.door.url()
    }

    /// Forgets what was seen. From now on this rule applies.
    pub(crate) fn rule(&self, rule: impl Fn(&Message, &[Seen]) -> Fate + Send + 'static) {
        *self.shared.state() = (Box::new(rule), Vec::new());
        self.shared.wake();
    }

    /// Tells the rule something.
    pub(crate) fn note(&self, what: Seen) {
        self.shared.saw(what);
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.state().1.clone()
    }

    pub(crate) fn count(&self, what: &Seen) -> usize {
        self.shared.state().1.iter().filter(|seen| *seen == what).count()
    }

    /// Waits until this has been seen.
    pub(crate) async fn until(&self, what: &Seen) {
        let mut changes = self.shared.changed.subscribe();
        let waiting = changes.wait_for(|_| self.count(what) > 0);
        if timeout(PATIENCE, waiting).await.is_err() {
            panic!("{what:?} has not been seen, but: {:?}", self.seen());
        }
    }
}

impl fmt::Debug for RespProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RespProxy").field("url", &self.url()).field("seen", &self.seen()).finish()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, (Rule, Vec<Seen>)> {
        self.state.lock().unwrap()
    }

    fn saw(&self, what: Seen) {
        self.state().1.push(what);
        self.wake();
    }

    fn wake(&self) {
        self.changed.send_modify(|changes| *changes += 1);
    }

    fn fate(&self, message: &Message) -> Fate {
        let (rule, seen) = &*self.state();
        rule(message, seen)
    }
}

/// Messages on their way, each with its bytes.
type Lane = VecDeque<(Message, Vec<u8>)>;

struct RespConnection {
    shared: Arc<Shared>,
    commands: Lane,
    replies: Lane,
    pushes: Lane,
    /// The commands that the server has not answered yet.
    unanswered: VecDeque<String>,
}

impl RespConnection {
    fn new(shared: Arc<Shared>) -> Self {
        let (commands, replies, pushes) = Default::default();
        Self { shared, commands, replies, pushes, unanswered: VecDeque::new() }
    }

    /// Until either side ends it.
    async fn run(mut self, mut client: TcpStream, mut server: UnixStream) {
        let mut changes = self.shared.changed.subscribe();
        let (mut from_client, mut from_server) = (Vec::new(), Vec::new());
        loop {
            changes.mark_unchanged();
            while let Some((message, fate, bytes)) = self.next() {
                let written = match message {
                    Message::Command(_) => server.write_all(&bytes).await,
                    Message::Reply(_) | Message::Push(_) => client.write_all(&bytes).await,
                };
                if written.is_err() {
                    return;
                }
                if fate == Fate::PassAlone {
                    sleep(READING).await;
                }
            }
            tokio::select! {
                Ok(()) = changes.changed() => {}
                read = client.read_buf(&mut from_client) => {
                    let Ok(1..) = read else { return };
                    while let Some((command, bytes)) = take(&mut from_client).unwrap() {
                        let name = command_name(&command);
                        self.shared.saw(Seen::Sent(name.clone()));
                        self.commands.push_back((Message::Command(name), bytes));
                    }
                }
                read = server.read_buf(&mut from_server) => {
                    let Ok(1..) = read else { return };
                    while let Some((said, bytes)) = take(&mut from_server).unwrap() {
                        self.take_from_server(&said, bytes);
                    }
                }
            }
        }
    }

    fn take_from_server(&mut self, said: &Reply, bytes: Vec<u8>) {
        if let Reply::Push(_) = said {
            // Flushes push no key; nobody flushes here.
            let key = strings(said).pop().unwrap();
            self.shared.saw(Seen::Pushed(key.clone()));
            self.pushes.push_back((Message::Push(key), bytes));
        } else {
            let name = self.unanswered.pop_front().expect("a reply is one to a command");
            self.shared.saw(Seen::Executed(name.clone()));
            self.replies.push_back((Message::Reply(name), bytes));
        }
    }

    /// The next message to pass on.
    fn next(&mut self) -> Option<(Message, Fate, Vec<u8>)> {
        for lane in [&mut self.commands, &mut self.replies, &mut self.pushes] {
            while let Some((message, _)) = lane.front() {
                let fate = self.shared.fate(message);
                if fate == Fate::Hold {
                    break;
                }
                let (message, bytes) = lane.pop_front().unwrap();
                if fate == Fate::Drop {
                    continue;
                }
                match &message {
                    Message::Command(name) => self.unanswered.push_back(name.clone()),
                    Message::Reply(name) => self.shared.saw(Seen::Answered(name.clone())),
                    Message::Push(key) => self.shared.saw(Seen::Told(key.clone())),
                }
                return Some((message, fate, bytes));
            }
        }
        None
    }
}

/// All strings in a message, in order.
pub(crate) fn strings(message: &Reply) -> Vec<String> {
    match message {
        Reply::Bulk(Some(text)) => vec![String::from_utf8_lossy(text).into_owned()],
        Reply::Array(parts) | Reply::Push(parts) => parts.iter().flat_map(strings).collect(),
        _ => Vec::new(),
    }
}

pub(crate) fn command_name(command: &Reply) -> String {
    match &strings(command)[..] {
        [name, sub, ..] if name == "CLIENT" => format!("{name}|{sub}"),
        [name, ..] => name.clone(),
        [] => panic!("no command: {command:?}"),
    }
}
