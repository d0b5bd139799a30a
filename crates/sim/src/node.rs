//! The model node: what a Redis or Valkey server does with the commands of this protocol.
//!
//! It stands for the servers in every run of the simulator; `tests/differential/` holds it against
//! real ones. Time comes in with each command, as true time; the node reads its own wall clock.

mod exclusive;
mod fenced;
mod looking;
mod run;
mod shared;

use std::collections::{BTreeMap, BTreeSet};

use quorlock_core::{Answer, Command, Failure, FailureKind, Key, Keys, Value};

pub use self::run::Run;
use crate::time::{Clock, MS, Time, US};

/// Whose connection a command comes on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(pub u64);

/// One server.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ModelNode {
    /// Its wall clock: what keys expire by.
    pub clock: Clock,
    /// What it refuses to do at the moment.
    pub health: Health,
    /// The run of its process.
    pub run: Run,
    kind: Kind,
    keys: BTreeMap<Key, Stored>,
    /// What was there before each of the last writes, if that is kept: what is not on the disk yet.
    undo: Option<Vec<(Key, Option<Stored>)>>,
    /// Who is to be told, once, when a key changes.
    watchers: BTreeMap<Key, BTreeSet<ConnectionId>>,
    pushes: Vec<(ConnectionId, Key)>,
}

/// In what servers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// A key is gone in the millisecond in which its time is over, not in the one after it.
    pub expires_at_once: bool,
    /// It has a command of its own that compares and deletes, which does not tell absent from other.
    pub deletes_natively: bool,
    /// It tells those who have asked for it that a key has changed.
    pub pushes: bool,
}

/// What a node refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Health {
    /// Nothing.
    Good,
    /// Everything, with this error: loading its data, busy with a script, out of reach behind a
    /// proxy.
    Refusing(FailureKind),
    /// To write: a replica, or one that cannot persist.
    ReadOnly(FailureKind),
    /// To write what takes memory.
    OutOfMemory,
    /// Nothing, but every answer is an error of some proxy's.
    Garbled,
}

/// What a key holds, and until when.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stored {
    /// What it holds.
    pub content: Content,
    /// The millisecond of the node's wall clock; `None`: never.
    pub expires_ms: Option<i64>,
}

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// A string.
    Text(Vec<u8>),
    /// A sorted set: its members and their scores. Readers, if it is as they make it; by when each of them ends.
    Scored(BTreeMap<Vec<u8>, i64>),
    /// Anything else.
    Other,
}

impl ModelNode {
    /// An empty node.
    pub fn new(clock: Clock, kind: Kind) -> Self {
        Self {
            clock,
            health: Health::Good,
            run: Run::new(0, clock.at(0)),
            kind,
            keys: BTreeMap::new(),
            undo: None,
            watchers: BTreeMap::new(),
            pushes: Vec::new(),
        }
    }

    /// Carries out one command, atomically, and answers it.
    pub fn execute(&mut self, by: ConnectionId, command: &Command, now: Time) -> Answer {
        match self.health {
            Health::Good | Health::OutOfMemory | Health::ReadOnly(_) => {
                self.carry_out(by, command, now)
            }
            Health::Refusing(kind) => failed(command, kind),
            Health::Garbled => {
                self.carry_out(by, command, now);
                Answer::Failed(Failure::new(FailureKind::Rejected))
            }
        }
    }

    /// In what it differs from other servers.
    pub(crate) const fn kind(&self) -> Kind {
        self.kind
    }

    fn carry_out(&mut self, by: ConnectionId, command: &Command, now: Time) -> Answer {
        let now_ms = self.now_ms(now);
        match command {
            Command::Acquire { keys, value, ttl_ms } | Command::Heal { keys, value, ttl_ms } => {
                self.acquire(command, (keys, value), *ttl_ms, by, now_ms)
            }
            Command::Extend { keys, value, ttl_ms } => {
                let extended = self.extend((keys, value), *ttl_ms, by, now_ms);
                extended.unwrap_or_else(|kind| failed(command, kind))
            }
            Command::Release { keys, value, tell } => {
                let released = self.release((keys, value), *tell, by, now_ms);
                released.unwrap_or_else(|kind| failed(command, kind))
            }
            Command::Inspect { keys, intents } => {
                Answer::Seen(self.look_at(keys, intents.as_ref(), by, now_ms))
            }
            Command::Watch { keys, intents } => {
                let holding = self.look_at(keys, intents.as_ref(), by, now_ms);
                if !self.kind.pushes {
                    return Answer::Seen(holding);
                }
                for key in keys.iter().chain(intents.iter().flat_map(|intents| intents.iter())) {
                    self.watchers.entry(key.clone()).or_default().insert(by);
                }
                Answer::Watched(holding)
            }
            Command::Identify => Answer::Identified,
            Command::Adopt { key, text, replaces, marker, seen } => {
                let seen = (marker, seen.as_ref());
                let adopted = self.adopt((key, text), replaces.as_ref(), seen, by, now);
                adopted.unwrap_or_else(|| self.script_failed(command))
            }
            Command::Mark { key, text, replaces, adoption } => {
                if self.write_error(true).is_some() {
                    return self.script_failed(command);
                }
                self.mark((key, text), replaces.as_ref(), adoption.as_ref(), by, now_ms)
            }
            Command::AcquireFenced { .. }
            | Command::Raise { .. }
            | Command::HealFenced { .. }
            | Command::ExtendFenced { .. } => {
                let answer = self.carry_out_fenced(by, command, now);
                answer.unwrap_or_else(|| self.script_failed(command))
            }
            _ => {
                let answer = self.carry_out_shared(by, command, now_ms);
                answer.unwrap_or_else(|kind| failed(command, kind))
            }
        }
    }

    /// From now on, what was there before each write is kept.
    pub fn keep_undo(&mut self) {
        self.undo = Some(Vec::new());
    }

    /// The last writes are not on the disk: they never were. Returns whether there were any.
    pub fn undo(&mut self, writes: usize) -> bool {
        let undo = self.undo.as_mut().map(std::mem::take).unwrap_or_default();
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

    /// Takes over what another node has: it was its replica.
    pub fn copy(&mut self, other: &Self, now: Time) {
        self.keys = other.keys.clone();
        // Their clocks are set apart as far as anybody likes; what is copied lives as long on both.
        let apart = self.now_ms(now) - other.now_ms(now);
        self.keys.values_mut().for_each(|stored| stored.shift(apart));
        self.undo = self.undo.is_some().then(Vec::new);
    }

    fn put(&mut self, key: &Key, stored: Stored, by: ConnectionId) {
        let before = self.keys.insert(key.clone(), stored);
        self.note_undo(key, before);
        self.changed(key, Some(by));
    }

    fn take(&mut self, key: &Key, by: ConnectionId) {
        let before = self.keys.remove(key);
        self.note_undo(key, before);
        self.changed(key, Some(by));
    }

    fn note_undo(&mut self, key: &Key, before: Option<Stored>) {
        if let Some(undo) = &mut self.undo {
            undo.push((key.clone(), before));
        }
    }

    /// It tells connections what has changed.
    pub fn pushes(&self) -> bool {
        self.kind.pushes
    }

    /// From now on it does that, or does not.
    pub fn set_pushing(&mut self, pushes: bool) {
        self.kind.pushes = pushes;
    }

    /// What connections are to be told since this was last asked.
    pub fn take_pushes(&mut self) -> Vec<(ConnectionId, Key)> {
        std::mem::take(&mut self.pushes)
    }

    /// What a key holds, if its time is not over.
    pub fn stored(&self, key: &str, now: Time) -> Option<&Stored> {
        let now_ms = self.now_ms(now);
        self.keys.get(key).filter(|stored| !self.is_over(stored, now_ms))
    }

    /// Whether the time of what a key held is not over yet.
    pub fn is_alive(&self, stored: &Stored, now: Time) -> bool {
        !self.is_over(stored, self.now_ms(now))
    }

    /// Whether what ends in this millisecond of its clock has not ended yet.
    pub(crate) fn lives(&self, end_ms: i64, now: Time) -> bool {
        !self.has_ended(end_ms, self.now_ms(now))
    }

    /// Every key whose time is not over.
    pub fn all(&self, now: Time) -> impl Iterator<Item = (&Key, &Stored)> {
        let now_ms = self.now_ms(now);
        self.keys.iter().filter(move |(_, stored)| !self.is_over(stored, now_ms))
    }

    /// Sets a key as somebody else's client would, whatever it held. `None`: it is no string.
    pub fn set(&mut self, key: &Key, value: Option<Vec<u8>>, ttl_ms: Option<i64>, now: Time) {
        self.put_there(key, value.map_or(Content::Other, Content::Text), ttl_ms, now);
    }

    /// The same of anything that a key can hold.
    pub fn put_there(&mut self, key: &Key, content: Content, ttl_ms: Option<i64>, now: Time) {
        let expires_ms = ttl_ms.map(|ttl_ms| self.now_ms(now) + ttl_ms);
        self.keys.insert(key.clone(), Stored { content, expires_ms });
        self.changed(key, None);
    }

    /// Deletes a key as somebody else's client would. Returns whether there was one.
    pub fn delete(&mut self, key: &str, now: Time) -> bool {
        let now_ms = self.now_ms(now);
        self.expire(key, None, now_ms);
        let deleted = self.keys.remove(key).is_some();
        if deleted {
            self.changed(key, None);
        }
        deleted
    }

    /// Deletes all keys. Every connection is told that everything has changed; that is for the caller
    /// to do.
    pub fn flush(&mut self) {
        self.keys.clear();
        self.undo = self.undo.is_some().then(Vec::new);
        self.watchers.clear();
        self.pushes.clear();
    }

    /// The process ends, and with it every connection. What it knew is on its disk, or is not.
    pub fn crash(&mut self, keeps_data: bool) {
        self.watchers.clear();
        self.pushes.clear();
        if !keeps_data {
            self.flush();
        }
    }

    /// A connection has ended.
    pub fn disconnect(&mut self, connection: ConnectionId) {
        self.watchers.retain(|_, watchers| {
            watchers.remove(&connection);
            !watchers.is_empty()
        });
    }

    /// Time passes, and what is left is seen from then: for models, in which it is always now.
    pub(crate) fn rebase(&mut self, by: Time) {
        self.keys.values_mut().for_each(|stored| stored.shift(-by / MS));
        let now_ms = self.now_ms(0);
        let over: Vec<Key> = self
            .keys
            .iter()
            .filter(|(_, stored)| self.is_over(stored, now_ms))
            .map(|(key, _)| key.clone())
            .collect();
        over.iter().for_each(|key| self.expire(key, None, now_ms));
    }

    fn now_us(&self, now: Time) -> i64 {
        self.clock.at(now).div_euclid(US)
    }

    fn now_ms(&self, now: Time) -> i64 {
        self.clock.at(now).div_euclid(MS)
    }

    fn is_over(&self, stored: &Stored, now_ms: i64) -> bool {
        stored.expires_ms.is_some_and(|at| self.has_ended(at, now_ms))
    }

    const fn has_ended(&self, at: i64, now_ms: i64) -> bool {
        if self.kind.expires_at_once { now_ms >= at } else { now_ms > at }
    }

    /// A key whose time is over is found to be gone by whoever touches it, and only then are those
    /// told who wait for it; but not who found it out.
    fn expire(&mut self, key: &str, by: Option<ConnectionId>, now_ms: i64) {
        if self.keys.get(key).is_some_and(|stored| self.is_over(stored, now_ms)) {
            self.keys.remove(key);
            self.changed(key, by);
        }
    }

    /// Everybody who has asked for it is told, but for who did it; and all are forgotten, who did it
    /// as well.
    fn changed(&mut self, key: &str, by: Option<ConnectionId>) {
        if let Some((key, watchers)) = self.watchers.remove_entry(key) {
            let told = watchers.into_iter().filter(|watcher| Some(*watcher) != by);
            self.pushes.extend(told.map(|watcher| (watcher, key.clone())));
        }
    }

    fn expire_all(&mut self, keys: &Keys, by: ConnectionId, now_ms: i64) {
        keys.iter().for_each(|key| self.expire(key, Some(by), now_ms));
    }

    fn write_error(&self, takes_memory: bool) -> Option<FailureKind> {
        match self.health {
            Health::ReadOnly(kind) => Some(kind),
            Health::OutOfMemory if takes_memory => Some(FailureKind::OutOfMemory),
            _ => None,
        }
    }
}

impl Stored {
    const fn text(text: Vec<u8>, expires_ms: Option<i64>) -> Self {
        Self { content: Content::Text(text), expires_ms }
    }

    /// The string, if it is one.
    pub const fn value(&self) -> Option<&Vec<u8>> {
        match &self.content {
            Content::Text(text) => Some(text),
            Content::Scored(_) | Content::Other => None,
        }
    }

    /// Whether it is a string of this value, the whole of it.
    pub fn holds(&self, value: &Value) -> bool {
        self.value().is_some_and(|text| text == value.as_bytes())
    }

    /// The values that it holds, as a writer's or as readers'.
    pub fn values(&self) -> impl Iterator<Item = &Vec<u8>> {
        let members = match &self.content {
            Content::Scored(members) => Some(members.keys()),
            Content::Text(_) | Content::Other => None,
        };
        self.value().into_iter().chain(members.into_iter().flatten())
    }

    /// The same, later by the node's clock.
    pub(crate) fn shift(&mut self, by_ms: i64) {
        self.expires_ms = self.expires_ms.map(|at| at + by_ms);
        if let Content::Scored(members) = &mut self.content {
            members.values_mut().for_each(|end| *end += by_ms);
        }
    }
}

/// An error by name in answer to what sets a lock says that no key was set; in answer to another
/// script it says nothing.
fn failed(command: &Command, kind: FailureKind) -> Answer {
    Answer::Failed(match command.sets_a_lock() && kind != FailureKind::Rejected {
        true => Failure::unsent(kind),
        false => Failure::new(kind),
    })
}
