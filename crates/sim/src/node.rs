//! The model node: what a Redis or Valkey server does with the commands of this protocol.
//!
//! It stands for the servers in every run of the simulator; `tests/differential/` holds it against
//! real ones. Time comes in with each command, as true time; the node reads its own wall clock.

mod fenced;
mod run;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quorlock_core::{Answer, Command, Failure, FailureKind, Holding, Key, Value};

pub use self::run::Run;
use crate::mutants::{Mutant, is_active};
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
    /// `None`: the key is not a string.
    pub value: Option<Vec<u8>>,
    /// The millisecond of the node's wall clock; `None`: never.
    pub expires_ms: Option<i64>,
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
            Command::Acquire { key, value, ttl_ms } => {
                if let Some(kind) = self.write_error(true) {
                    return failed(command, kind);
                }
                self.expire(key, Some(by), now_ms);
                if self.keys.contains_key(key) {
                    return Answer::Refused;
                }
                let expires_ms = Some(now_ms + *ttl_ms as i64);
                let value = Some(value.as_bytes().to_vec());
                self.put(key, Stored { value, expires_ms }, by);
                Answer::Granted
            }
            Command::Extend { key, value, ttl_ms } => {
                self.expire(key, Some(by), now_ms);
                let write_error = self.write_error(false);
                match self.keys.get_mut(key) {
                    None => Answer::Absent,
                    Some(stored) if stored.holds(value) => {
                        // The script reads first, and fails when it comes to the writing.
                        let until = now_ms + *ttl_ms as i64;
                        if stored.expires_ms.is_none_or(|at| at < until) {
                            if let Some(kind) = write_error {
                                return failed(command, kind);
                            }
                            stored.expires_ms = Some(until);
                            self.changed(key, Some(by));
                        }
                        Answer::Extended
                    }
                    Some(_) => Answer::Other,
                }
            }
            Command::Release { key, value, tell } => {
                self.expire(key, Some(by), now_ms);
                let write_error = self.write_error(false);
                if let Some(kind) = write_error.filter(|_| self.kind.deletes_natively) {
                    return failed(command, kind);
                }
                let answer = match self.keys.get(key) {
                    None => Answer::Absent,
                    Some(_) if is_active(Mutant::ReleaseWithoutCompare) => Answer::Deleted,
                    Some(stored) if stored.holds(value) => Answer::Deleted,
                    // The native command knows another type when it sees one.
                    Some(Stored { value: None, .. }) => return Answer::Other,
                    Some(_) => Answer::Other,
                };
                match answer {
                    Answer::Deleted => {
                        if let Some(kind) = write_error {
                            return failed(command, kind);
                        }
                        self.take(key, by);
                        Answer::Deleted
                    }
                    _ if self.kind.deletes_natively && !tell => Answer::NotOurs,
                    answer => answer,
                }
            }
            Command::Inspect { key } => {
                self.expire(key, Some(by), now_ms);
                Answer::Seen(self.look(key, now_ms))
            }
            Command::Watch { key } => {
                self.expire(key, Some(by), now_ms);
                let holding = self.look(key, now_ms);
                if !self.kind.pushes {
                    return Answer::Seen(holding);
                }
                self.watchers.entry(key.clone()).or_default().insert(by);
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
            _ => {
                let answer = self.carry_out_fenced(by, command, now);
                answer.unwrap_or_else(|| self.script_failed(command))
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
        for stored in self.keys.values_mut() {
            stored.expires_ms = stored.expires_ms.map(|at| at + apart);
        }
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

    /// Every key whose time is not over.
    pub fn all(&self, now: Time) -> impl Iterator<Item = (&Key, &Stored)> {
        let now_ms = self.now_ms(now);
        self.keys.iter().filter(move |(_, stored)| !self.is_over(stored, now_ms))
    }

    /// Sets a key as somebody else's client would, whatever it held.
    pub fn set(&mut self, key: &Key, value: Option<Vec<u8>>, ttl_ms: Option<i64>, now: Time) {
        let expires_ms = ttl_ms.map(|ttl_ms| self.now_ms(now) + ttl_ms);
        self.keys.insert(key.clone(), Stored { value, expires_ms });
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
        for stored in self.keys.values_mut() {
            stored.expires_ms = stored.expires_ms.map(|at| at - by / MS);
        }
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
        stored
            .expires_ms
            .is_some_and(|at| if self.kind.expires_at_once { now_ms >= at } else { now_ms > at })
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

    fn look(&self, key: &str, now_ms: i64) -> Holding {
        let Some(stored) = self.keys.get(key) else {
            return Holding::Free;
        };
        let left = |at: i64| Duration::from_millis(u64::try_from(at - now_ms).unwrap_or(0));
        let ttl = stored.expires_ms.map(left);
        match &stored.value {
            Some(value) => Holding::Held { value: value.clone(), ttl },
            None => Holding::OtherType { ttl },
        }
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
    /// Whether it holds this value, the whole of it.
    pub fn holds(&self, value: &Value) -> bool {
        self.value.as_deref() == Some(value.as_bytes())
    }
}

/// An error by name in answer to what sets a lock says that no key was set; in answer to another
/// script it says nothing.
fn failed(command: &Command, kind: FailureKind) -> Answer {
    Answer::Failed(match command {
        Command::Acquire { .. } | Command::AcquireFenced { .. } | Command::HealFenced { .. }
            if kind != FailureKind::Rejected =>
        {
            Failure::unsent(kind)
        }
        _ => Failure::new(kind),
    })
}
