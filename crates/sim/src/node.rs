//! The model node: a store, with the clock and the process of its server.
//!
//! It stands for the servers in every run of the simulator. Time comes in with each call, as true time; the node reads
//! its own wall clock.

mod run;

use std::ops::{Deref, DerefMut};

use quorlock_core::store::Store;
pub use quorlock_core::store::{ConnectionId, Content, Health, Kind, Stored};
use quorlock_core::{Answer, Command, Key};

pub use self::run::Run;
use crate::time::{Clock, MS, Time, US};

/// One server.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ModelNode {
    /// Its wall clock. Keys expire by it.
    pub clock: Clock,
    /// The run of its process.
    pub run: Run,
    store: Store,
}

impl ModelNode {
    /// An empty node.
    pub fn new(clock: Clock, kind: Kind) -> Self {
        Self { clock, run: Run::new(0, clock.at(0)), store: Store::new(kind) }
    }

    /// Carries out one command, atomically, and answers it.
    pub fn execute(&mut self, by: ConnectionId, command: &Command, now: Time) -> Answer {
        let now_us = self.now_us(now);
        self.store.execute(by, command, now_us)
    }

    /// Takes over the keys of another node, because it was its replica. The clocks of the two may be far apart.
    pub fn copy(&mut self, other: &Self, now: Time) {
        let ahead_ms = self.now_us(now).div_euclid(1000) - other.now_us(now).div_euclid(1000);
        self.store.copy(&other.store, ahead_ms);
    }

    /// The content of a key, if its time is not over.
    pub fn stored(&self, key: &str, now: Time) -> Option<&Stored> {
        self.store.stored(key, self.now_us(now))
    }

    /// Whether the time of this content is not over yet.
    pub fn is_alive(&self, stored: &Stored, now: Time) -> bool {
        self.store.is_alive(stored, self.now_us(now))
    }

    /// Whether a key that ends in this millisecond of the node's clock still exists.
    pub(crate) fn lives(&self, end_ms: i64, now: Time) -> bool {
        self.store.lives(end_ms, self.now_us(now))
    }

    /// Every key whose time is not over.
    pub fn all(&self, now: Time) -> impl Iterator<Item = (&Key, &Stored)> {
        self.store.all(self.now_us(now))
    }

    /// Sets a key to a string as another library's client would. `None`: to a list.
    pub fn set(&mut self, key: &Key, value: Option<Vec<u8>>, ttl_ms: Option<i64>, now: Time) {
        self.put_there(key, value.map_or(Content::Other, Content::Text), ttl_ms, now);
    }

    /// Sets a key as another library's client would, over any content.
    pub fn put_there(&mut self, key: &Key, content: Content, ttl_ms: Option<i64>, now: Time) {
        let now_us = self.now_us(now);
        self.store.put_there(key, content, ttl_ms, now_us);
    }

    /// Deletes a key as another library's client would. Returns whether there was one.
    pub fn delete(&mut self, key: &str, now: Time) -> bool {
        let now_us = self.now_us(now);
        self.store.delete(key, now_us)
    }

    /// Lets time pass and counts it from its new end. For models, in which the present is always zero.
    pub(crate) fn rebase(&mut self, by: Time) {
        let now_us = self.now_us(0);
        self.store.rebase(by / MS, now_us);
    }

    fn now_us(&self, now: Time) -> i64 {
        self.clock.at(now).div_euclid(US)
    }
}

/// The node hides the functions of the store that need a time.
impl Deref for ModelNode {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

impl DerefMut for ModelNode {
    fn deref_mut(&mut self) -> &mut Store {
        &mut self.store
    }
}
