//! A node in memory: for users' tests and doctests.

use std::collections::VecDeque;
use std::fmt;
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quorlock_core::store::{ConnectionId, Content, Kind, Store, Stored};
use quorlock_core::{Answer, Command, Failure, FailureKind, Key};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{BoxFuture, NodeState, PushSink};
use crate::clock::Clock;

/// A node in memory. It is deterministic: it answers at once and in order, and its keys expire by tokio's clock. So a
/// test under `tokio::time::pause` needs neither a server nor real time.
///
/// Clones are the same node: keep a clone to make the node fail while a client uses it.
///
/// Its wall clock, which bounds the fencing tokens that clients propose, also follows tokio's clock, and starts one day
/// before its first use. A node that lost its data in [`MemoryNode::stop`] is still trusted, whatever the client's
/// [`RestartGuard`](crate::RestartGuard).
///
/// Use it in the place of a server in *your* tests. quorlock's own promises are tested on real servers.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use quorlock::{Client, node::MemoryNode};
///
/// let nodes: Vec<MemoryNode> = ["a", "b", "c"].map(MemoryNode::new).into();
/// let client = Client::builder().memory_nodes(nodes.clone()).build()?;
/// nodes[0].stop();
///
/// let guard = client.acquire("orders").await?;
/// assert_eq!(guard.votes(), 2);
/// guard.release().await;
/// # client.shutdown(std::time::Duration::from_secs(1)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MemoryNode {
    name: Arc<str>,
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    store: Store,
    mode: Mode,
    frozen: bool,
    stuck: VecDeque<Stuck>,
    interceptor: Option<Interceptor>,
    /// The sinks of all clients. Each sink gets a push for every change of a watched key.
    listeners: Vec<PushSink>,
    /// The time of the last adoption (the key that starts a node's wait for a new marker), in microseconds. No two
    /// adoptions have the same time, even while tokio's clock is paused.
    adopted_us: i64,
}

/// A command does not say which client sent it. So all clients share two connections: one watches keys, the other
/// changes them. A client therefore also gets pushes for its own changes.
const WATCHING: ConnectionId = ConnectionId(0);
const CHANGING: ConnectionId = ConnectionId(1);

#[derive(Default)]
enum Mode {
    #[default]
    Up,
    Stopped,
    Failing(FailureKind),
}

/// A frozen node is suspended after this time without an answer, as a server is in a client with default settings.
const SILENCE: Duration = Duration::from_millis(150);

type Answers = BoxFuture<Vec<Answer>>;

type Interceptor = Arc<dyn Fn(&[Command], Answers) -> Answers + Send + Sync>;

/// A batch that a frozen node has received but not executed.
struct Stuck {
    since: Instant,
    commands: Vec<Command>,
    answer: oneshot::Sender<Vec<Answer>>,
}

impl MemoryNode {
    /// Creates a working node without data.
    pub fn new(name: &str) -> Self {
        let kind = Kind { expires_at_once: true, deletes_natively: false, pushes: true };
        let inner = Inner {
            store: Store::new(kind),
            mode: Mode::Up,
            frozen: false,
            stuck: VecDeque::new(),
            interceptor: None,
            listeners: Vec::new(),
            adopted_us: 0,
        };
        Self { name: name.into(), inner: Arc::new(Mutex::new(inner)) }
    }

    /// The name that messages show for the node.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether a client can use the node now.
    pub fn state(&self) -> NodeState {
        let inner = self.inner();
        if inner.interceptor.is_some() {
            return NodeState::Up;
        }
        if matches!(inner.mode, Mode::Stopped) {
            return NodeState::Down(stopped());
        }
        match inner.stuck.front() {
            Some(first) if first.since.elapsed() >= SILENCE => {
                NodeState::Suspended(Failure::unsent(FailureKind::Suspended))
            }
            _ => NodeState::Up,
        }
    }

    /// Stops the node as `kill -9` does, frozen or not: its data is gone, connections break, commands fail at once. A
    /// frozen node has not executed the commands that it received, but their answers do not say so.
    pub fn stop(&self) {
        let mut inner = self.inner();
        inner.mode = Mode::Stopped;
        inner.frozen = false;
        inner.store.crash(false);
        // Dropping the reply channels fails the batches in flight.
        inner.stuck.clear();
    }

    /// Starts a stopped node without data. Does nothing if the node is not stopped.
    pub fn start(&self) {
        let mut inner = self.inner();
        if matches!(inner.mode, Mode::Stopped) {
            inner.mode = Mode::Up;
            inner.listeners.iter().for_each(PushSink::all_changed);
        }
    }

    /// Freezes the node as SIGSTOP does: it takes commands and answers none; its keys still expire. After 150 ms of
    /// silence it is suspended, as a server would be: the client sends it only releases, and all other commands fail at
    /// once, until the node is thawed. Does nothing if the node is stopped.
    pub fn freeze(&self) {
        let mut inner = self.inner();
        inner.frozen = !matches!(inner.mode, Mode::Stopped);
    }

    /// Lets a frozen node continue: it executes the commands that it received meanwhile, in order.
    pub fn thaw(&self) {
        let mut inner = self.inner();
        inner.frozen = false;
        while let Some(Stuck { commands, answer, .. }) = inner.stuck.pop_front() {
            // The send fails only if the client was dropped, and a dropped client needs no answer.
            let _ = answer.send(inner.execute(&commands));
        }
    }

    /// Makes every command fail with `kind`, until [`MemoryNode::recover`]. The data stays.
    pub fn fail_with(&self, kind: FailureKind) {
        let mut inner = self.inner();
        if !matches!(inner.mode, Mode::Stopped) {
            inner.mode = Mode::Failing(kind);
        }
    }

    /// Lets a failing node work again, with its data. A stopped node needs [`MemoryNode::start`].
    pub fn recover(&self) {
        let mut inner = self.inner();
        if matches!(inner.mode, Mode::Failing(_)) {
            inner.mode = Mode::Up;
        }
    }

    /// Sets a key as another client would. Without `ttl`, the key does not expire.
    pub fn insert(&self, key: &str, value: impl Into<Vec<u8>>, ttl: Option<Duration>) {
        self.inner().put(key, Content::Text(value.into()), ttl);
    }

    /// Sets a key that is not a string, such as a list. The key does not expire.
    pub fn insert_other_type(&self, key: &str) {
        self.inner().put(key, Content::Other, None);
    }

    /// Makes a key expire after `ttl` from now, as a foreign `PEXPIRE` would. Returns whether the key existed.
    pub fn expire_in(&self, key: &str, ttl: Duration) -> bool {
        let mut inner = self.inner();
        let content = inner.stored(key).map(|stored| stored.content.clone());
        let Some(content) = content else { return false };
        inner.put(key, content, Some(ttl));
        true
    }

    /// Deletes a key, as a foreign `DEL` would. Returns whether the key existed.
    pub fn remove(&self, key: &str) -> bool {
        let mut inner = self.inner();
        let removed = inner.store.delete(key, now_us());
        inner.push_changes();
        removed
    }

    /// The stored value of a key, if there is one.
    pub fn value_of(&self, key: &str) -> Option<Vec<u8>> {
        self.inner().stored(key)?.value().cloned()
    }

    /// Time until a key expires; `None` if the key does not exist or never expires.
    pub fn ttl_of(&self, key: &str) -> Option<Duration> {
        self.inner().stored(key)?.expires_ms.map(left)
    }

    /// Whether there is such a key, of any type.
    pub fn contains(&self, key: &str) -> bool {
        self.inner().stored(key).is_some()
    }

    /// Returns the number of keys.
    pub fn key_count(&self) -> usize {
        self.inner().store.all(now_us()).count()
    }

    /// The readers that share a key, and their remaining times. Empty if the key is no shared lock.
    pub fn readers_of(&self, key: &str) -> Vec<(Vec<u8>, Duration)> {
        let inner = self.inner();
        let readers = inner.stored(key).filter(|stored| stored.is_of_readers());
        let Some(Content::Scored(members)) = readers.map(|stored| &stored.content) else {
            return Vec::new();
        };
        let living = members.iter().filter(|(_, end)| inner.store.lives(**end, now_us()));
        living.map(|(value, end)| (value.clone(), left(*end))).collect()
    }

    /// Calls a function with the commands of each batch and with the future of its answers. The node then gives the answers
    /// of the future that the function returns, and is always [`NodeState::Up`], so that every batch reaches the function.
    #[doc(hidden)]
    pub fn intercept<F>(&self, by: impl Fn(&[Command], Answers) -> F + Send + Sync + 'static)
    where
        F: Future<Output = Vec<Answer>> + Send + 'static,
    {
        let by = move |commands: &[Command], answers: Answers| -> Answers {
            Box::pin(by(commands, answers))
        };
        self.inner().interceptor = Some(Arc::new(by));
    }

    /// Adds a client's sink for pushes.
    pub(super) fn add_listener(&self, push_sink: PushSink) {
        let listeners = &mut self.inner().listeners;
        listeners.retain(|other| !other.is_closed());
        listeners.push(push_sink);
    }

    /// Receives a batch. Returns whether it was sent, which it is not to a stopped node, and the future of the answers.
    pub(super) fn execute(&self, commands: &[Command]) -> (bool, Answers) {
        let mut inner = self.inner();
        let is_sent = !matches!(inner.mode, Mode::Stopped);
        let failed = |failure| vec![Answer::Failed(failure); commands.len()];
        let answers: Answers = if !is_sent {
            Box::pin(ready(failed(stopped())))
        } else if inner.frozen {
            let (answer, answers) = oneshot::channel();
            let (since, commands) = (Instant::now(), commands.to_vec());
            inner.stuck.push_back(Stuck { since, commands, answer });
            let broken = failed(Failure::new(FailureKind::Unreachable).with_detail("stopped"));
            Box::pin(async move { answers.await.unwrap_or(broken) })
        } else {
            Box::pin(ready(inner.execute(commands)))
        };
        let interceptor = inner.interceptor.clone();
        drop(inner);
        let answers = match interceptor {
            Some(intercept) => intercept(commands, answers),
            None => answers,
        };
        (is_sent, answers)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn execute(&mut self, commands: &[Command]) -> Vec<Answer> {
        if let Mode::Failing(kind) = self.mode {
            return vec![Answer::Failed(Failure::new(kind)); commands.len()];
        }
        let execute = |command: &Command| {
            let watches = matches!(command, Command::Watch { .. });
            let by = if watches { WATCHING } else { CHANGING };
            let mut now_us = now_us();
            if matches!(command, Command::Adopt { .. }) {
                now_us = now_us.max(self.adopted_us + 1);
                self.adopted_us = now_us;
            }
            self.store.execute(by, command, now_us)
        };
        let answers = commands.iter().map(execute).collect();
        self.push_changes();
        answers
    }

    fn stored(&self, key: &str) -> Option<&Stored> {
        self.store.stored(key, now_us())
    }

    fn put(&mut self, key: &str, content: Content, ttl: Option<Duration>) {
        self.store.put_there(&Key::from(key), content, ttl.map(millis), now_us());
        self.push_changes();
    }

    fn push_changes(&mut self) {
        let keys: Vec<Key> = self.store.take_pushes().into_iter().map(|(_, key)| key).collect();
        if !keys.is_empty() {
            self.listeners.iter().for_each(|push_sink| push_sink.changed(keys.clone()));
        }
    }
}

impl fmt::Debug for MemoryNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryNode").field("name", &self.name).finish_non_exhaustive()
    }
}

fn stopped() -> Failure {
    Failure::unsent(FailureKind::Unreachable).with_detail("stopped")
}

fn now_us() -> i64 {
    Clock::Tokio.now().real_ns() / 1_000
}

/// Time until the node's clock reaches `end_ms`.
fn left(end_ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(end_ms - now_us() / 1_000).unwrap_or(0))
}

fn millis(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX)
}
