//! The model node: a store, with the clock and the process of its server.
//!
//! Model nodes replace servers in every run of the simulator. The caller passes the true time to each function; the
//! node reads its own wall clock.

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
    /// The node's wall clock, by which keys expire.
    pub clock: Clock,
    /// The present run of the server's process.
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

    /// Takes over the keys of another node with their remaining times: shifts expiries by the difference of the clocks.
    pub fn copy(&mut self, other: &Self, now: Time) {
        let ahead_ms = self.now_us(now).div_euclid(1000) - other.now_us(now).div_euclid(1000);
        self.store.copy(&other.store, ahead_ms);
    }

    /// Takes over the keys of this node's master. Expiries are copied unchanged, although the wall clocks may differ.
    pub fn follow(&mut self, master: &Self) {
        self.store.copy(&master.store, 0);
    }

    /// The content of a key that has not expired.
    pub fn stored(&self, key: &str, now: Time) -> Option<&Stored> {
        self.store.stored(key, self.now_us(now))
    }

    /// Whether this content has not expired.
    pub fn is_alive(&self, stored: &Stored, now: Time) -> bool {
        self.store.is_alive(stored, self.now_us(now))
    }

    /// Whether a key with this expiry, in milliseconds of the node's clock, still exists.
    pub(crate) fn lives(&self, end_ms: i64, now: Time) -> bool {
        self.store.lives(end_ms, self.now_us(now))
    }

    /// Every key that has not expired.
    pub fn all(&self, now: Time) -> impl Iterator<Item = (&Key, &Stored)> {
        self.store.all(self.now_us(now))
    }

    /// Sets a key as another library's client would: to a string, or to a list if `value` is `None`.
    pub fn set(&mut self, key: &Key, value: Option<Vec<u8>>, ttl_ms: Option<i64>, now: Time) {
        self.put_there(key, value.map_or(Content::Other, Content::Text), ttl_ms, now);
    }

    /// Overwrites a key with any content, as another library's client would.
    pub fn put_there(&mut self, key: &Key, content: Content, ttl_ms: Option<i64>, now: Time) {
        let now_us = self.now_us(now);
        self.store.put_there(key, content, ttl_ms, now_us);
    }

    /// Deletes a key as another library's client would. Returns whether the key existed.
    pub fn delete(&mut self, key: &str, now: Time) -> bool {
        let now_us = self.now_us(now);
        self.store.delete(key, now_us)
    }

    /// Lets the time `by` pass in a model: moves all times back, so that the present is 0 again.
    pub(crate) fn rebase(&mut self, by: Time) {
        let now_us = self.now_us(0);
        self.store.rebase(by / MS, now_us);
    }

    fn now_us(&self, now: Time) -> i64 {
        self.clock.at(now).div_euclid(US)
    }
}

/// Gives access to the store. Where a function of the store needs a time, the node has a function of the same name that
/// reads the node's clock.
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
