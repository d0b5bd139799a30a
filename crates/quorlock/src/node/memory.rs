//! A node in memory: for users' tests, doctests and the conformance suite.

mod executing;
mod reading;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quorlock_core::{Answer, Command, Failure, FailureKind};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Answers, Batch, BoxFuture, Node, NodeState, PushSink};

/// A node in memory. Deterministic: it answers at once, in order, and its keys expire by tokio's
/// clock, so that a test under `tokio::time::pause` needs neither a server nor a moment's waiting.
///
/// Clones are the same node: keep one to make it misbehave while a client uses it.
///
/// Its time of day, by which it bounds the fences that clients propose, is tokio's clock too, counted
/// from a day before it was first looked at. It forgets what [`MemoryNode::stop`] deletes and is
/// still trusted, whatever the client's [`RestartGuard`](crate::RestartGuard).
///
/// It stands for a server in *your* tests. What quorlock promises is shown on real servers.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use quorlock::{Client, node::MemoryNode};
///
/// let nodes: Vec<MemoryNode> = ["a", "b", "c"].map(MemoryNode::new).into();
/// let client = Client::builder().custom_nodes(nodes.clone()).build()?;
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

#[derive(Default)]
struct Inner {
    keys: BTreeMap<String, Entry>,
    mode: Mode,
    frozen: bool,
    stuck: VecDeque<Stuck>,
    /// Whom to tell of changes, and of which keys; each is told of once.
    listeners: Vec<PushSink>,
    watched: BTreeSet<String>,
    /// The time of day of the last adoption: no two have the same, also while time stands still.
    adopted_us: u64,
}

struct Entry {
    content: Content,
    expires: Option<Instant>,
}

enum Content {
    Text(Vec<u8>),
    /// Of each member, when it ends. Readers, if the key expires with the last of them.
    SortedSet(BTreeMap<Vec<u8>, Instant>),
    Other,
}

#[derive(Default)]
enum Mode {
    #[default]
    Up,
    Stopped,
    Failing(FailureKind),
}

/// How long a node may owe an answer: what a client with default settings allows a server.
const SILENCE: Duration = Duration::from_millis(150);

/// A batch that a frozen node has received and not looked at.
struct Stuck {
    since: Instant,
    commands: Vec<Command>,
    answer: oneshot::Sender<Vec<Answer>>,
}

impl MemoryNode {
    /// An empty node that works.
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), inner: Arc::default() }
    }

    /// Stops the node as `kill -9` does, frozen or not: its data is gone, connections break,
    /// commands fail at once. What a frozen node was sent has not been executed, but the sender
    /// cannot know that.
    pub fn stop(&self) {
        let mut inner = self.inner();
        inner.mode = Mode::Stopped;
        inner.frozen = false;
        inner.keys.clear();
        inner.watched.clear();
        // Dropping their senders breaks what was under way.
        inner.stuck.clear();
    }

    /// Starts a stopped node, empty. One that was not stopped is left as it is.
    pub fn start(&self) {
        let mut inner = self.inner();
        if matches!(inner.mode, Mode::Stopped) {
            inner.mode = Mode::Up;
            inner.listeners.iter().for_each(PushSink::all_changed);
        }
    }

    /// Freezes the node as SIGSTOP does: it takes commands and answers none; its keys still expire.
    /// After 150 ms of silence it is suspended, as a server is: until it goes on it is sent nothing
    /// but releases, and all else fails at once. One that is stopped stays as it is.
    pub fn freeze(&self) {
        let mut inner = self.inner();
        inner.frozen = !matches!(inner.mode, Mode::Stopped);
    }

    /// Lets a frozen node go on: it executes what it was sent meanwhile, in order.
    pub fn thaw(&self) {
        let mut inner = self.inner();
        inner.frozen = false;
        while let Some(Stuck { commands, answer, .. }) = inner.stuck.pop_front() {
            // The receiver is gone if the client is.
            let _ = answer.send(inner.execute(commands));
        }
    }

    /// Makes every command fail with `kind`, until [`MemoryNode::recover`]. The data stays.
    pub fn fail_with(&self, kind: FailureKind) {
        let mut inner = self.inner();
        if !matches!(inner.mode, Mode::Stopped) {
            inner.mode = Mode::Failing(kind);
        }
    }

    /// Lets a failing node work again, with its data. One that was stopped needs
    /// [`MemoryNode::start`].
    pub fn recover(&self) {
        let mut inner = self.inner();
        if matches!(inner.mode, Mode::Failing(_)) {
            inner.mode = Mode::Up;
        }
    }

    /// Sets a key as another client would; without `ttl` it does not expire.
    pub fn insert(&self, key: &str, value: impl Into<Vec<u8>>, ttl: Option<Duration>) {
        let expires = ttl.map(|ttl| Instant::now() + ttl);
        self.inner().set(key, Entry { content: Content::Text(value.into()), expires });
    }

    /// Sets a key that is not a string, as a list would be; it does not expire.
    pub fn insert_other_type(&self, key: &str) {
        self.inner().set(key, Entry { content: Content::Other, expires: None });
    }

    /// Makes a key expire after `ttl` from now, as a foreign `PEXPIRE` would. Returns whether there
    /// was one.
    pub fn expire_in(&self, key: &str, ttl: Duration) -> bool {
        let mut inner = self.inner();
        inner.expire();
        let Some(entry) = inner.keys.get_mut(key) else {
            return false;
        };
        entry.expires = Some(Instant::now() + ttl);
        inner.tell(key);
        true
    }

    /// Deletes a key, as a foreign `DEL` would. Returns whether there was one.
    pub fn remove(&self, key: &str) -> bool {
        let mut inner = self.inner();
        inner.expire();
        inner.remove(key)
    }

    /// The stored value of a key, if there is one.
    pub fn value_of(&self, key: &str) -> Option<Vec<u8>> {
        let mut inner = self.inner();
        inner.expire();
        inner.text(key).map(<[u8]>::to_vec)
    }

    /// Time until a key expires, if there is one that does.
    pub fn ttl_of(&self, key: &str) -> Option<Duration> {
        let mut inner = self.inner();
        inner.expire();
        inner.keys.get(key).and_then(Entry::ttl)
    }

    /// Whether there is such a key, of any type.
    pub fn contains(&self, key: &str) -> bool {
        let mut inner = self.inner();
        inner.expire();
        inner.keys.contains_key(key)
    }

    /// How many keys there are.
    pub fn key_count(&self) -> usize {
        let mut inner = self.inner();
        inner.expire();
        inner.keys.len()
    }

    /// Who shares a key, and for how long; nobody, if it is no shared lock.
    pub fn readers_of(&self, key: &str) -> Vec<(Vec<u8>, Duration)> {
        let mut inner = self.inner();
        inner.expire();
        inner.readers_of(key)
    }

    /// Sets a key to a sorted set whose scores are times of day so far from now; it expires so far from now, too.
    #[cfg(any(test, feature = "conformance"))]
    pub(super) fn insert_sorted_set(
        &self,
        key: &str,
        members: &[(&[u8], Duration)],
        ttl: Option<Duration>,
    ) {
        let now = Instant::now();
        let members = members.iter().map(|(member, ends)| (member.to_vec(), now + *ends));
        let content = Content::SortedSet(members.collect());
        self.inner().set(key, Entry { content, expires: ttl.map(|ttl| now + ttl) });
    }

    /// The members of a sorted set in the order of their scores, and how far these are from now.
    #[cfg(any(test, feature = "conformance"))]
    pub(super) fn members_of(&self, key: &str) -> Vec<(Vec<u8>, Duration)> {
        let mut inner = self.inner();
        inner.expire();
        inner.members_of(key)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Node for MemoryNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn state(&self) -> NodeState {
        let inner = self.inner();
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

    fn execute(&self, batch: Batch) -> BoxFuture<Answers> {
        let mut inner = self.inner();
        if matches!(inner.mode, Mode::Stopped) {
            return Box::pin(std::future::ready(batch.fail(&stopped())));
        }
        let commands = batch.send();
        if !inner.frozen {
            return Box::pin(std::future::ready(inner.execute(commands).into()));
        }
        let count = commands.len();
        let (answer, answers) = oneshot::channel();
        inner.stuck.push_back(Stuck { since: Instant::now(), commands, answer });
        Box::pin(async move {
            let broken = Failure::new(FailureKind::Unreachable).with_detail("stopped");
            answers.await.unwrap_or_else(|_| vec![Answer::Failed(broken); count]).into()
        })
    }

    fn background(&self, push_sink: PushSink) -> BoxFuture<()> {
        let listeners = &mut self.inner().listeners;
        listeners.retain(|other| !other.is_closed());
        listeners.push(push_sink);
        Box::pin(std::future::pending())
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
