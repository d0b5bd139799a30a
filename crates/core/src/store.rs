//! A model of one server: the keys of a Redis or Valkey server, and the effect of each command of the protocol on them.
//!
//! The simulator's nodes and the library's node in memory are this store. A test compares its answers with those of
//! every real server (`quorlock/tests/conformance/differential.rs`). Each call gets the server's wall clock as an
//! argument, in microseconds.

mod attaching;
mod exclusive;
mod fenced;
mod looking;
mod marking;
mod shared;
mod taking;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

pub use self::shared::READERS_MAX;
use crate::command::{
    AcquireForm, Answer, AttachForm, Command, ExtendForm, Failure, FailureKind, HealForm,
    ReleaseForm,
};
use crate::keys::{Keys, Mode};
use crate::token::{Key, Value};

/// The connection that a command comes on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(pub u64);

/// The keys of one server.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Store {
    /// The commands that the server refuses at the moment.
    pub health: Health,
    kind: Kind,
    keys: BTreeMap<Key, Stored>,
    /// The key and its old state for each write that is not on the disk yet; `None` if these are not recorded.
    undo: Option<Vec<(Key, Option<Stored>)>>,
    /// For each key, the connections that get one push when the key changes.
    watchers: BTreeMap<Key, BTreeSet<ConnectionId>>,
    pushes: Vec<(ConnectionId, Key)>,
}

/// The properties in which servers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// A key is gone from the beginning of the millisecond of its expiry on, not from the end of that millisecond.
    pub expires_at_once: bool,
    /// The server has a native command that compares and deletes. Its reply does not distinguish an absent key from
    /// another value.
    pub deletes_natively: bool,
    /// The server pushes changes of a key to the connections that watch it.
    pub pushes: bool,
}

/// The commands that a server refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Health {
    /// The server refuses no command.
    Good,
    /// The server refuses all commands with this error: it loads data, runs a long script, or a proxy cannot reach it.
    Refusing(FailureKind),
    /// The server refuses writes, because it is a replica or cannot persist.
    ReadOnly(FailureKind),
    /// The server refuses writes that need memory.
    OutOfMemory,
    /// The server refuses no command, but a proxy replaces every reply by an error.
    Garbled,
}

/// The content of a key, and its expiry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stored {
    /// The content.
    pub content: Content,
    /// Expiry in milliseconds of the server's wall clock; `None` if the key never expires.
    pub expires_ms: Option<i64>,
}

/// The content of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// A string.
    Text(Vec<u8>),
    /// A sorted set: its members and their scores. A reader's score is the millisecond at which the reader ends.
    Scored(BTreeMap<Vec<u8>, i64>),
    /// A value of another type.
    Other,
}

/// The answer to a command, or the error of a server that has not executed it.
type Executed = Result<Answer, FailureKind>;

/// The keys of a lock, and the value of the attempt.
type Ours<'a> = (&'a Keys, &'a Value);

/// The connection of a command, and the server's wall clock in microseconds.
#[derive(Clone, Copy)]
struct Turn {
    by: ConnectionId,
    now_us: i64,
}

impl Turn {
    const fn now_ms(self) -> i64 {
        self.now_us.div_euclid(1000)
    }

    /// The end of a time to live that begins now, in milliseconds of the server's wall clock.
    const fn until(self, ttl_ms: u64) -> i64 {
        self.now_ms().saturating_add_unsigned(ttl_ms)
    }
}

impl Store {
    /// A store without keys.
    pub const fn new(kind: Kind) -> Self {
        Self {
            health: Health::Good,
            kind,
            keys: BTreeMap::new(),
            undo: None,
            watchers: BTreeMap::new(),
            pushes: Vec::new(),
        }
    }

    /// Executes one command atomically and returns the answer.
    pub fn execute(&mut self, by: ConnectionId, command: &Command, now_us: i64) -> Answer {
        let turn = Turn { by, now_us };
        let answer = match self.health {
            Health::Refusing(kind) => Err(kind),
            _ => self.carry_out(command, turn),
        };
        match answer {
            _ if self.health == Health::Garbled => {
                Answer::Failed(Failure::new(FailureKind::Rejected))
            }
            Ok(answer) => answer,
            // A server replies with a known error before it executes a command, so a command that sets a lock has set
            // no key. After an unknown error the key may be set.
            Err(kind) if command.sets_a_lock() && kind != FailureKind::Rejected => {
                Answer::Failed(Failure::unsent(kind))
            }
            Err(kind) => Answer::Failed(Failure::new(kind)),
        }
    }

    fn carry_out(&mut self, command: &Command, turn: Turn) -> Executed {
        match command {
            Command::Acquire { keys, value, ttl_ms, form } => match (form, (keys, value)) {
                (AcquireForm::Plain, ours) => self.acquire(ours, *ttl_ms, false, turn),
                (AcquireForm::Fenced { counter, proposal }, ours) => {
                    self.acquire_fenced(ours, None, *ttl_ms, (counter, *proposal), turn)
                }
                (AcquireForm::Shared { intents }, ours) => {
                    self.add_reader(ours, intents, *ttl_ms, turn)
                }
                (AcquireForm::Taken(from), ours) => self.acquire_taken(ours, from, *ttl_ms, turn),
            },
            Command::Heal { keys, value, ttl_ms, form } => match (form, (keys, value)) {
                (HealForm::Plain, ours) => self.acquire(ours, *ttl_ms, true, turn),
                (HealForm::Fenced { counter, to }, ours) => {
                    self.heal_fenced(ours, *ttl_ms, (counter, *to), turn)
                }
                (HealForm::Shared, ours) => self.heal_reader(ours, *ttl_ms, turn),
            },
            Command::Extend { keys, value, ttl_ms, form } => match (form, (keys, value)) {
                (ExtendForm::Plain, ours) => self.extend(ours, *ttl_ms, turn),
                (ExtendForm::Fenced { counter }, ours) => {
                    self.extend_fenced(ours, *ttl_ms, counter, turn)
                }
                (ExtendForm::Shared, ours) => self.extend_reader(ours, *ttl_ms, turn),
                (ExtendForm::Taken(from), ours) => self.extend_taken(ours, from, *ttl_ms, turn),
            },
            Command::Release { keys, value, form } => match (form, (keys, value)) {
                (ReleaseForm::Plain { tell }, ours) => self.release(ours, *tell, turn),
                (ReleaseForm::Shared, ours) => self.remove_reader(ours, turn),
                (ReleaseForm::Taken(from), ours) => self.release_taken(ours, from, turn),
            },
            Command::Attach { keys, from, value, ttl_ms, form } => match form {
                AttachForm::Plain => {
                    self.attach((keys, Mode::Exclusive), (from, value), *ttl_ms, turn)
                }
                AttachForm::Shared => {
                    self.attach((keys, Mode::Shared), (from, value), *ttl_ms, turn)
                }
                AttachForm::Fenced { counter, proposal } => {
                    let (ours, counter) = ((keys, value), (counter, *proposal));
                    self.acquire_fenced(ours, Some(from), *ttl_ms, counter, turn)
                }
            },
            Command::GiveBack { keys, mode, value, to } => {
                self.give_back((keys, *mode), (value, to), turn)
            }
            Command::Inspect { keys, intents } => {
                Ok(Answer::Seen(self.look_at(keys, intents.as_ref(), turn)))
            }
            Command::Watch { keys, intents } => {
                let holding = self.look_at(keys, intents.as_ref(), turn);
                if !self.kind.pushes {
                    return Ok(Answer::Seen(holding));
                }
                for key in keys.iter().chain(intents.iter().flat_map(|intents| intents.iter())) {
                    self.watchers.entry(key.clone()).or_default().insert(turn.by);
                }
                Ok(Answer::Watched(holding))
            }
            Command::Raise { keys, value, counter, to } => {
                self.raise((keys, value), counter, *to, turn)
            }
            Command::Downgrade { keys, value } => self.downgrade((keys, value), turn),
            Command::Announce { intents, value, ttl_ms, renews } => {
                self.announce((intents, value), *ttl_ms, *renews, turn)
            }
            Command::Withdraw { intents, value } => self.withdraw((intents, value), turn),
            Command::Identify => Ok(Answer::Identified),
            Command::Adopt { key, text, replaces, marker, seen } => {
                let before = (replaces.as_deref(), seen.as_deref());
                self.adopt((key, text), marker, before, turn)
            }
            Command::Mark { key, text, replaces, adoption } => {
                self.mark((key, text), replaces.as_deref(), adoption.as_ref(), turn)
            }
        }
    }

    /// The kind of server that this store models.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Records the state before each write from now on.
    pub fn keep_undo(&mut self) {
        self.undo = Some(Vec::new());
    }

    /// Reverts the last `writes` writes that are not on the disk yet. Returns whether there were any.
    pub fn undo(&mut self, writes: usize) -> bool {
        let undo = self.undo.as_mut().map(core::mem::take).unwrap_or_default();
        let kept = undo.len().saturating_sub(writes);
        for (key, before) in undo[kept..].iter().rev() {
            match before {
                Some(before) => self.keys.insert(key.clone(), before.clone()),
                None => self.keys.remove(key),
            };
        }
        let any = kept < undo.len();
        self.undo = self.undo.is_some().then(|| undo[..kept].to_vec());
        any
    }

    /// Copies the keys of another store, as a replica does. The clock of this store is `ahead_ms` ahead, so all
    /// expiries move by this time.
    pub fn copy(&mut self, other: &Self, ahead_ms: i64) {
        self.keys = other.keys.clone();
        self.keys.values_mut().for_each(|stored| stored.shift(ahead_ms));
        self.undo = self.undo.is_some().then(Vec::new);
    }

    fn put(&mut self, key: &Key, stored: Stored, turn: Turn) {
        let before = self.keys.insert(key.clone(), stored);
        self.note_undo(key, before);
        self.changed(key, Some(turn.by));
    }

    fn take(&mut self, key: &Key, turn: Turn) {
        let before = self.keys.remove(key);
        self.note_undo(key, before);
        self.changed(key, Some(turn.by));
    }

    fn note_undo(&mut self, key: &Key, before: Option<Stored>) {
        if let Some(undo) = &mut self.undo {
            undo.push((key.clone(), before));
        }
    }

    /// Whether connections get pushes.
    pub const fn pushes(&self) -> bool {
        self.kind.pushes
    }

    /// Switches pushes to connections on or off.
    pub fn set_pushing(&mut self, pushes: bool) {
        self.kind.pushes = pushes;
    }

    /// Returns the pushes to connections since the last call.
    pub fn take_pushes(&mut self) -> Vec<(ConnectionId, Key)> {
        core::mem::take(&mut self.pushes)
    }

    /// Returns the content of a key unless the key has expired.
    pub fn stored(&self, key: &str, now_us: i64) -> Option<&Stored> {
        self.keys.get(key).filter(|stored| self.is_alive(stored, now_us))
    }

    /// Whether this content has not expired.
    pub fn is_alive(&self, stored: &Stored, now_us: i64) -> bool {
        stored.expires_ms.is_none_or(|end| self.lives(end, now_us))
    }

    /// Whether an expiry at this millisecond of the server's clock is in the future.
    pub const fn lives(&self, end_ms: i64, now_us: i64) -> bool {
        !self.has_ended(end_ms, now_us.div_euclid(1000))
    }

    /// Returns every key that has not expired.
    pub fn all(&self, now_us: i64) -> impl Iterator<Item = (&Key, &Stored)> {
        self.keys.iter().filter(move |(_, stored)| self.is_alive(stored, now_us))
    }

    /// Sets a key as another library's client would, over any content.
    pub fn put_there(&mut self, key: &Key, content: Content, ttl_ms: Option<i64>, now_us: i64) {
        let expires_ms = ttl_ms.map(|ttl_ms| now_us.div_euclid(1000).saturating_add(ttl_ms));
        self.keys.insert(key.clone(), Stored { content, expires_ms });
        self.changed(key, None);
    }

    /// Sets a key to a known state, or removes it. No connection gets a push.
    pub fn load(&mut self, key: &Key, stored: Option<Stored>) {
        match stored {
            Some(stored) => self.keys.insert(key.clone(), stored),
            None => self.keys.remove(key),
        };
    }

    /// Deletes a key as another library's client would. Returns whether there was one.
    pub fn delete(&mut self, key: &str, now_us: i64) -> bool {
        self.expire(key, None, now_us.div_euclid(1000));
        let deleted = self.keys.remove(key).is_some();
        if deleted {
            self.changed(key, None);
        }
        deleted
    }

    /// Deletes all keys without a push for each. The caller pushes to every connection that all keys have changed.
    pub fn flush(&mut self) {
        self.keys.clear();
        self.undo = self.undo.is_some().then(Vec::new);
        self.watchers.clear();
        self.pushes.clear();
    }

    /// Ends the process and every connection. With `keeps_data`, the data survive on the disk.
    pub fn crash(&mut self, keeps_data: bool) {
        self.watchers.clear();
        self.pushes.clear();
        if !keeps_data {
            self.flush();
        }
    }

    /// Ends a connection.
    pub fn disconnect(&mut self, connection: ConnectionId) {
        self.watchers.retain(|_, watchers| {
            watchers.remove(&connection);
            !watchers.is_empty()
        });
    }

    /// Moves all expiries back by this time, and drops the keys that have expired at `now_us`. The models need this,
    /// because their clock always shows the same time.
    pub fn rebase(&mut self, by_ms: i64, now_us: i64) {
        self.keys.values_mut().for_each(|stored| stored.shift(-by_ms));
        let is_over = |(_, stored): &(&Key, &Stored)| !self.is_alive(stored, now_us);
        let over: Vec<Key> = self.keys.iter().filter(is_over).map(|(key, _)| key.clone()).collect();
        over.iter().for_each(|key| self.expire(key, None, now_us.div_euclid(1000)));
    }

    const fn has_ended(&self, end_ms: i64, now_ms: i64) -> bool {
        if self.kind.expires_at_once { now_ms >= end_ms } else { now_ms > end_ms }
    }

    /// Deletes the key if it has expired. The store does this only when a command accesses the key, so the watchers get
    /// no push before that access. The connection of the access gets no push.
    fn expire(&mut self, key: &str, by: Option<ConnectionId>, now_ms: i64) {
        let ends = self.keys.get(key).and_then(|stored| stored.expires_ms);
        if ends.is_some_and(|end| self.has_ended(end, now_ms)) {
            self.keys.remove(key);
            self.changed(key, by);
        }
    }

    /// Sends a push to every watcher of the key except the connection that changed it, and removes all watchers.
    fn changed(&mut self, key: &str, by: Option<ConnectionId>) {
        if let Some((key, watchers)) = self.watchers.remove_entry(key) {
            let others = watchers.into_iter().filter(|watcher| Some(*watcher) != by);
            self.pushes.extend(others.map(|watcher| (watcher, key.clone())));
        }
    }

    fn expire_all(&mut self, keys: &Keys, turn: Turn) {
        keys.iter().for_each(|key| self.expire(key, Some(turn.by), turn.now_ms()));
    }

    fn check_write(&self, takes_memory: bool) -> Result<(), FailureKind> {
        match self.health {
            Health::ReadOnly(kind) => Err(kind),
            Health::OutOfMemory if takes_memory => Err(FailureKind::OutOfMemory),
            _ => Ok(()),
        }
    }
}

impl Stored {
    const fn text(text: Vec<u8>, expires_ms: Option<i64>) -> Self {
        Self { content: Content::Text(text), expires_ms }
    }

    /// The content, if it is a string.
    pub const fn value(&self) -> Option<&Vec<u8>> {
        match &self.content {
            Content::Text(text) => Some(text),
            Content::Scored(_) | Content::Other => None,
        }
    }

    /// Whether this is a string that equals the whole of the value.
    pub fn holds(&self, value: &Value) -> bool {
        self.value().is_some_and(|text| text == value.as_bytes())
    }

    /// The values that hold the key: the writer's value, or those of all readers.
    pub fn values(&self) -> impl Iterator<Item = &Vec<u8>> {
        let members = match &self.content {
            Content::Scored(members) => Some(members.keys()),
            Content::Text(_) | Content::Other => None,
        };
        self.value().into_iter().chain(members.into_iter().flatten())
    }

    /// Moves all expiries on the server's clock.
    pub fn shift(&mut self, by_ms: i64) {
        self.expires_ms = self.expires_ms.map(|at| at + by_ms);
        if let Content::Scored(members) = &mut self.content {
            members.values_mut().for_each(|end| *end += by_ms);
        }
    }
}
