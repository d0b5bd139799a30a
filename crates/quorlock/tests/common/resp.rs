//! A proxy that parses RESP, between a client and a server. Commands, replies and pushes travel in three lanes. A test
//! can hold messages in each lane, and so bring about any order that a network could.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use quorlock_servers::proxy::{Door, ServerStream};
use quorlock_servers::resp::take;
use quorlock_servers::{Reply, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::PATIENCE;

/// An event at the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The client has sent this command.
    Sent(String),
    /// The server has executed this command: its reply has arrived at the proxy.
    Executed(String),
    /// The proxy has delivered the reply to the client.
    Answered(String),
    /// The server has pushed a change of this key.
    Pushed(String),
    /// The proxy has delivered this push to the client.
    Told(String),
    /// A mark that the test has set.
    Noted(&'static str),
}

/// A message that the proxy has not passed on yet. A command includes the name of its subcommand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Command(String),
    /// The reply to this command.
    Reply(String),
    /// A push about this key.
    Push(String),
}

/// The proxy's decision about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Pass,
    /// Passes the message on, and gives the client time to read it alone. Messages that arrive together may be read
    /// together.
    PassAlone,
    /// Keeps the message until the next event, and then asks the rule again.
    Hold,
    Drop,
}

/// The time in which the client reads a message that was passed alone. If the machine is too slow, the test sees
/// another order and is still valid.
const READING: Duration = Duration::from_millis(1);

/// Decides about the first message of a lane, from all events so far. The proxy asks again after each event.
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

    /// Forgets all events, and installs a new rule.
    pub(crate) fn rule(&self, rule: impl Fn(&Message, &[Seen]) -> Fate + Send + 'static) {
        *self.shared.state() = (Box::new(rule), Vec::new());
        self.shared.wake();
    }

    pub(crate) fn note(&self, what: Seen) {
        self.shared.saw(what);
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.state().1.clone()
    }

    pub(crate) fn count(&self, what: &Seen) -> usize {
        self.shared.state().1.iter().filter(|seen| *seen == what).count()
    }

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

/// The messages of one lane (commands, replies or pushes), each with its bytes.
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

    /// Runs until either side closes the connection.
    async fn run(mut self, mut client: TcpStream, mut server: Box<dyn ServerStream>) {
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
            // Every push names its key, except the push of a flush. No test that uses this proxy flushes.
            let key = strings(said).pop().unwrap();
            self.shared.saw(Seen::Pushed(key.clone()));
            self.pushes.push_back((Message::Push(key), bytes));
        } else {
            let name = self.unanswered.pop_front().expect("a reply is one to a command");
            self.shared.saw(Seen::Executed(name.clone()));
            self.replies.push_back((Message::Reply(name), bytes));
        }
    }

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
