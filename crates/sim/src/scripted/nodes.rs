//! What happens to nodes, and what is on them.

use quorlock_core::{FailureKind, Key};

use super::{COUNTERS, ScriptedWorld};
use crate::driver::Driver;
use crate::fact::{Fact, FaultEvent};
use crate::node::{Health, Stored};

impl ScriptedWorld {
    /// Every command is answered by this error, and not carried out; or not any more.
    pub fn refuse(&mut self, node: usize, with: Option<FailureKind>) {
        self.nodes[node].model.health = with.map_or(Health::Good, Health::Refusing);
    }

    /// Locks can be taken on the nodes, and not looked at; or can again.
    pub fn blind(&mut self, is_blind: bool) {
        self.nodes.iter_mut().for_each(|node| node.is_blind = is_blind);
    }

    /// From now on a node's clock runs so many parts per million fast: keys are gone before their time.
    pub fn run_fast(&mut self, node: usize, ppm: i64) {
        self.nodes[node].model.clock.run(ppm, self.now);
    }

    /// The nodes tell nobody that a key has changed.
    pub fn no_pushes(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.model.set_pushing(false));
    }

    /// A stopped process: what is sent to it waits, and is carried out when it goes on.
    pub fn freeze(&mut self, node: usize, frozen: bool) {
        self.nodes[node].is_frozen = frozen;
    }

    /// The node loses its locks. From here on votes may be missing, and locks may overlap.
    pub fn flush(&mut self, node: usize) {
        self.settings.assume_no_loss = false;
        self.clear(node);
    }

    /// The node's locks vanish, whoever's they were. Nobody is told: what knew of those who wanted to know is gone.
    pub fn clear(&mut self, node: usize) {
        let keys = self.locks(node).map(|(key, _)| key.clone()).collect::<Vec<_>>();
        for key in keys {
            self.nodes[node].model.delete(&key, self.now);
        }
        self.nodes[node].model.take_pushes();
        self.note(&Fact::FaultEvent(FaultEvent::KeyDeleted { node }));
    }

    /// Somebody else's key, for `ttl_ms` or for ever.
    pub fn occupy(&mut self, node: usize, key: &str, value: &[u8], ttl_ms: Option<i64>) {
        self.occupy_with(node, key, Some(value), ttl_ms);
    }

    /// The same; `None`: one that is not a string.
    pub fn occupy_with(
        &mut self,
        node: usize,
        key: &str,
        value: Option<&[u8]>,
        ttl_ms: Option<i64>,
    ) {
        self.settings.assume_no_loss &= !self.has(node, key);
        let value = value.map(<[u8]>::to_vec);
        self.nodes[node].model.set(&key.into(), value, ttl_ms, self.now);
        self.note(&Fact::FaultEvent(FaultEvent::KeyOccupied { node }));
        self.push_all(node);
    }

    /// Somebody deletes a key, and those who wanted to know are told.
    pub fn forget_key(&mut self, node: usize, key: &str) {
        self.settings.assume_no_loss &= !self.nodes[node].model.delete(key, self.now);
        self.note(&Fact::FaultEvent(FaultEvent::KeyDeleted { node }));
        self.push_all(node);
    }

    /// A node's counter stands there, as by rivals.
    pub fn set_counter(&mut self, node: usize, counter: &str, at: u64) {
        let text = Some(at.to_string().into_bytes());
        self.nodes[node].model.set(&counter.into(), text, None, self.now);
        self.note(&Fact::FaultEvent(FaultEvent::CounterMoved { node }));
    }

    /// What a node's counter stands at.
    pub fn counter_at(&self, node: usize, counter: &str) -> Option<u64> {
        self.nodes[node].model.fence_at(&counter.into()).filter(|fence| *fence > 0)
    }

    /// Whether a node has this key.
    pub fn has(&self, node: usize, key: &str) -> bool {
        self.stored(node, key).is_some()
    }

    /// What a node has under a key.
    pub fn stored(&self, node: usize, key: &str) -> Option<&Stored> {
        self.nodes[node].model.stored(key, self.now)
    }

    /// How many nodes there are.
    pub const fn node_count(&self) -> usize {
        self.quorum.nodes()
    }

    /// A node's keys, but for counters.
    pub fn locks(&self, node: usize) -> impl Iterator<Item = (&Key, Option<&Vec<u8>>)> {
        let of_locks =
            self.nodes[node].model.all(self.now).filter(|(key, _)| !key.starts_with(COUNTERS));
        of_locks.map(|(key, stored)| (key, stored.value()))
    }
}
