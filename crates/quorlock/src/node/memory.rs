//! A node in memory: for users' tests, doctests and the conformance suite.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quorlock_core::marker::Adoption;
use quorlock_core::{Adopted, Answer, Command, Counter, Failure, FailureKind, Holding, Value};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Answers, Batch, BoxFuture, News, Node, NodeState};
use crate::clock::Clock;

/// A node in memory. Deterministic: it answers at once, in order, and its keys expire by tokio's
/// clock, so that a test under `tokio::time::pause` needs neither a server nor a moment's waiting.
///
/// Clones are the same node: keep one to make it misbehave while a client uses it.
///
/// Its time of day, by which it bounds the fences that clients propose, is tokio's clock too, counted
/// from a day before it was first looked at. It forgets what [`MemoryNode::stop`] deletes and is trusted
/// all the same, whatever the client's [`RestartGuard`](crate::RestartGuard).
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
    listeners: Vec<News>,
    watched: BTreeSet<String>,
    /// The time of day of the last adoption: no two have the same, also while time stands still.
    adopted_us: u64,
}

struct Entry {
    value: Option<Vec<u8>>,
    expires: Option<Instant>,
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
    /// commands fail at once. What a frozen node was sent has not been executed, but whoever sent
    /// it cannot know that.
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
            inner.listeners.iter().for_each(News::all_changed);
        }
    }

    /// Freezes the node as SIGSTOP does: it takes commands and answers none; its keys expire all
    /// the same. After 150 ms of silence it is suspended, as a server is: until it goes on it is sent
    /// nothing but releases, and all else fails at once. One that is stopped stays as it is.
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
        let entry = Entry { value: Some(value.into()), expires };
        self.inner().set(key, entry);
    }

    /// Sets a key that is not a string, as a list would be; it does not expire.
    pub fn insert_other_type(&self, key: &str) {
        self.inner().set(key, Entry { value: None, expires: None });
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
        inner.keys.get(key).and_then(|entry| entry.value.clone())
    }

    /// Time until a key expires, if there is one that does.
    pub fn ttl_of(&self, key: &str) -> Option<Duration> {
        let mut inner = self.inner();
        inner.expire();
        inner.keys.get(key).and_then(Entry::ttl)
    }

    /// Whether there is such a key, be it a string or not.
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

    fn background(&self, news: News) -> BoxFuture<()> {
        let listeners = &mut self.inner().listeners;
        listeners.retain(|other| !other.is_closed());
        listeners.push(news);
        Box::pin(std::future::pending())
    }
}

impl fmt::Debug for MemoryNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryNode").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Inner {
    fn execute(&mut self, commands: Vec<Command>) -> Vec<Answer> {
        if let Mode::Failing(kind) = self.mode {
            return vec![Answer::Failed(Failure::new(kind)); commands.len()];
        }
        self.expire();
        commands.into_iter().map(|command| self.answer(command)).collect()
    }

    fn answer(&mut self, command: Command) -> Answer {
        match command {
            Command::Acquire { key, value, ttl_ms } => {
                if self.keys.contains_key(&*key) {
                    return Answer::Refused;
                }
                self.set_text(&key, value.as_bytes(), Some(ttl_ms));
                Answer::Granted
            }
            Command::Extend { key, value, ttl_ms } => match self.keys.get_mut(&*key) {
                None => Answer::Absent,
                Some(entry) if entry.holds(&value) => {
                    entry.live_for(ttl_ms);
                    self.tell(&key);
                    Answer::Extended
                }
                Some(_) => Answer::Other,
            },
            Command::Release { key, value, .. } => match self.keys.get(&*key) {
                None => Answer::Absent,
                Some(entry) if entry.holds(&value) => {
                    self.remove(&key);
                    Answer::Deleted
                }
                Some(_) => Answer::Other,
            },
            Command::Inspect { key } => Answer::Seen(self.look(&key)),
            Command::Watch { key } => {
                self.watched.insert(key.to_string());
                Answer::Watched(self.look(&key))
            }
            Command::AcquireFenced { key, value, ttl_ms, counter, proposal } => {
                let Ok(fence) = self.counter(&counter.key) else { return no_counter() };
                let holding = self.look(&key);
                if holding != Holding::Free {
                    return Answer::RefusedFenced { fence, holding: Box::new(holding) };
                }
                let fence =
                    (fence + 1).max(self.floor(&counter.marker)).max(proposal.min(latest()));
                if fence >= Counter::LIMIT {
                    return no_counter();
                }
                self.set_text(&counter.key, fence.to_string(), Some(counter.ttl_ms));
                self.set_text(&key, value.as_bytes(), Some(ttl_ms));
                Answer::GrantedFenced { fence }
            }
            Command::HealFenced { key, value, ttl_ms, counter, to } => {
                if self.keys.contains_key(&*key) {
                    return Answer::Refused;
                }
                match self.counter(&counter.key) {
                    Ok(fence) if fence > to => return Answer::Superseded { fence },
                    Ok(_) => {}
                    Err(()) => return no_counter(),
                }
                self.set_text(&counter.key, to.to_string(), Some(counter.ttl_ms));
                self.set_text(&key, value.as_bytes(), Some(ttl_ms));
                Answer::GrantedFenced { fence: to }
            }
            Command::Raise { key, value, counter, to } => match self.keys.get(&*key) {
                None => Answer::Absent,
                Some(entry) if entry.holds(&value) => {
                    let Ok(fence) = self.counter(&counter.key) else { return no_counter() };
                    if fence < to {
                        self.set_text(&counter.key, to.to_string(), Some(counter.ttl_ms));
                    }
                    Answer::Raised { fence: fence.max(to) }
                }
                Some(_) => Answer::Other,
            },
            Command::ExtendFenced { key, value, ttl_ms, counter } => {
                let answer = self.answer(Command::Extend { key, value, ttl_ms });
                if answer == Answer::Extended
                    && let Some(kept) = self.keys.get_mut(&*counter.key)
                {
                    kept.live_for(counter.ttl_ms);
                }
                answer
            }
            Command::Greet => Answer::Greeted,
            Command::Adopt { key, text, replaces, marker, seen } => {
                if self.text(&marker) != seen.as_deref().map(str::as_bytes) {
                    return Answer::NotMarked;
                }
                if seen.is_some() {
                    self.remove(&marker);
                }
                let there = self.text(&key);
                if there.is_none() || there == replaces.as_deref().map(str::as_bytes) {
                    self.adopted_us = time_us().max(self.adopted_us + 1);
                    let text = format!("{text} since={}", self.adopted_us);
                    self.set_text(&key, text.as_bytes(), Some(Adoption::TTL_MS));
                }
                // Its age is told by its expiry. One without counts anew.
                if let Some(entry) =
                    self.keys.get_mut(&*key).filter(|entry| entry.expires.is_none())
                {
                    entry.live_for(Adoption::TTL_MS);
                }
                let text = String::from_utf8_lossy(self.text(&key).unwrap_or_default()).into();
                Answer::Adopting { text, age: self.age(&key).unwrap_or_default() }
            }
            Command::Mark { key, text, replaces, adoption } => {
                let is_as_expected = self.text(&key) == replaces.as_deref().map(str::as_bytes);
                let is_adopted = adoption.as_ref().is_none_or(|Adopted { key, text, age_ms }| {
                    let age = Duration::from_millis(*age_ms);
                    self.text(key) == Some(text.as_bytes())
                        && self.age(key).is_some_and(|old| old >= age)
                });
                if !is_as_expected || !is_adopted {
                    return Answer::NotMarked;
                }
                self.set_text(&key, text.as_bytes(), None);
                if let Some(adopted) = adoption {
                    self.remove(&adopted.key);
                }
                Answer::Marked
            }
            _ => Answer::Failed(Failure::unsent(FailureKind::Protocol)),
        }
    }

    /// A lock's counter; an error if there is something else.
    fn counter(&self, key: &str) -> Result<u64, ()> {
        match self.keys.get(key).map(|entry| entry.value.as_deref()) {
            None => Ok(0),
            Some(Some(digits)) if digits.iter().all(u8::is_ascii_digit) => {
                str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).ok_or(())
            }
            Some(_) => Err(()),
        }
    }

    /// Where the marker says that fences begin.
    fn floor(&self, marker: &str) -> u64 {
        let marker = self.text(marker).and_then(|text| str::from_utf8(text).ok());
        let floor = marker.and_then(|text| text.rsplit_once("floor=")?.1.parse().ok());
        floor.unwrap_or(0)
    }

    /// How old an adoption is; `None` if it does not expire, as one does.
    fn age(&self, key: &str) -> Option<Duration> {
        let left = self.keys.get(key).and_then(Entry::ttl)?;
        Some(Duration::from_millis(Adoption::TTL_MS).saturating_sub(left))
    }

    fn text(&self, key: &str) -> Option<&[u8]> {
        self.keys.get(key).and_then(|entry| entry.value.as_deref())
    }

    fn set_text(&mut self, key: &str, text: impl Into<Vec<u8>>, ttl_ms: Option<u64>) {
        let mut entry = Entry { value: Some(text.into()), expires: None };
        if let Some(ttl_ms) = ttl_ms {
            entry.live_for(ttl_ms);
        }
        self.set(key, entry);
    }

    fn look(&self, key: &str) -> Holding {
        self.keys.get(key).map_or(Holding::Free, Entry::holding)
    }

    fn set(&mut self, key: &str, entry: Entry) {
        self.keys.insert(key.to_owned(), entry);
        self.tell(key);
    }

    fn remove(&mut self, key: &str) -> bool {
        let removed = self.keys.remove(key).is_some();
        self.tell(key);
        removed
    }

    /// Tells of a change those who wait for it. Of an expiry nobody is told, as of a server's
    /// nobody is told in time.
    fn tell(&mut self, key: &str) {
        if self.watched.remove(key) {
            self.listeners.iter().for_each(|news| news.changed(vec![key.into()]));
        }
    }

    fn expire(&mut self) {
        let now = Instant::now();
        self.keys.retain(|_, entry| entry.expires.is_none_or(|expires| now < expires));
    }
}

impl Entry {
    fn holds(&self, value: &Value) -> bool {
        self.value.as_deref() == Some(value.as_bytes())
    }

    /// Never shorter than it would; but no longer for ever.
    fn live_for(&mut self, ttl_ms: u64) {
        let expires = Instant::now() + Duration::from_millis(ttl_ms);
        self.expires = self.expires.max(Some(expires));
    }

    fn ttl(&self) -> Option<Duration> {
        self.expires.map(|expires| expires.saturating_duration_since(Instant::now()))
    }

    fn holding(&self) -> Holding {
        match &self.value {
            None => Holding::OtherType { ttl: self.ttl() },
            Some(value) => {
                let shown = value.len().min(Holding::VALUE_BYTES_MAX);
                Holding::Held { value: value[..shown].to_vec(), ttl: self.ttl() }
            }
        }
    }
}

/// The time of day.
fn time_us() -> u64 {
    u64::try_from(Clock::Tokio.now().real_ns() / 1000).unwrap_or(0)
}

/// No client's clock is believed further ahead than this: an hour after the node's own.
fn latest() -> u64 {
    time_us() + Duration::from_secs(3600).as_micros() as u64
}

fn no_counter() -> Answer {
    let failure = Failure::new(FailureKind::Rejected);
    Answer::Failed(failure.with_detail("the fence counter is no number, or at its end"))
}

fn stopped() -> Failure {
    Failure::unsent(FailureKind::Unreachable).with_detail("stopped")
}
