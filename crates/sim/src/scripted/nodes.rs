//! What happens to nodes, and what is on them.

use quorlock_core::{FailureKind, Key};

use super::{COUNTERS, ScriptedWorld};
use crate::fact::{Fact, FaultEvent};
use crate::node::{Health, Stored};

impl ScriptedWorld {
    /// Every command is answered by this error, and not carried out; or not any more.
    pub fn refuse(&mut self, node: usize, with: Option<FailureKind>) {
        self.world.servers[node].node.health = with.map_or(Health::Good, Health::Refusing);
    }

    /// Locks can be taken on the nodes, and not looked at; or can again.
    pub fn blind(&mut self, is_blind: bool) {
        self.world.by_hand_mut().is_blind = is_blind;
    }

    /// From now on a node's clock runs so many parts per million fast: keys are gone before their time.
    pub fn run_fast(&mut self, node: usize, ppm: i64) {
        self.world.servers[node].node.clock.run(ppm, self.world.now);
    }

    /// The nodes tell nobody that a key has changed.
    pub fn no_pushes(&mut self) {
        self.world.servers.iter_mut().for_each(|server| server.node.set_pushing(false));
    }

    /// The node loses its locks. From here on votes may be missing, and locks may overlap.
    pub fn flush(&mut self, node: usize) {
        self.may_lose(true);
        self.clear(node);
    }

    /// Votes may be missing from here on. Where clients look at nodes, locks still must not overlap.
    fn may_lose(&mut self, is_lost: bool) {
        if is_lost && !self.world.by_hand().is_guarded {
            self.promise_nothing();
        }
    }

    /// The node's locks vanish, whoever's they were. Nobody is told: what knew of those who wanted to know is gone.
    pub fn clear(&mut self, node: usize) {
        let keys = self.locks(node).map(|(key, _)| key.clone()).collect::<Vec<_>>();
        for key in keys {
            self.world.servers[node].node.delete(&key, self.world.now);
        }
        self.world.servers[node].node.take_pushes();
        self.world.note(&Fact::FaultEvent(FaultEvent::KeyDeleted { node }));
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
        self.may_lose(self.has(node, key));
        let value = value.map(<[u8]>::to_vec);
        self.world.servers[node].node.set(&key.into(), value, ttl_ms, self.world.now);
        self.world.note(&Fact::FaultEvent(FaultEvent::KeyOccupied { node }));
        self.world.deliver_pushes(node);
    }

    /// Somebody deletes a key, and those who wanted to know are told.
    pub fn forget_key(&mut self, node: usize, key: &str) {
        let is_lost = self.world.servers[node].node.delete(key, self.world.now);
        self.may_lose(is_lost);
        self.world.note(&Fact::FaultEvent(FaultEvent::KeyDeleted { node }));
        self.world.deliver_pushes(node);
    }

    /// A node's counter stands there, as by rivals.
    pub fn set_counter(&mut self, node: usize, counter: &str, at: u64) {
        let text = Some(at.to_string().into_bytes());
        self.world.servers[node].node.set(&counter.into(), text, None, self.world.now);
        self.world.note(&Fact::FaultEvent(FaultEvent::CounterMoved { node }));
    }

    /// What a node's counter stands at.
    pub fn counter_at(&self, node: usize, counter: &str) -> Option<u64> {
        self.world.servers[node].node.fence_at(&counter.into()).filter(|fence| *fence > 0)
    }

    /// Whether a node has this key.
    pub fn has(&self, node: usize, key: &str) -> bool {
        self.stored(node, key).is_some()
    }

    /// What a node has under a key.
    pub fn stored(&self, node: usize, key: &str) -> Option<&Stored> {
        self.world.servers[node].node.stored(key, self.world.now)
    }

    /// How many nodes there are.
    pub const fn node_count(&self) -> usize {
        self.world.servers.len()
    }

    /// A node's keys, but for counters.
    pub fn locks(&self, node: usize) -> impl Iterator<Item = (&Key, Option<&Vec<u8>>)> {
        let of_locks = self.world.servers[node]
            .node
            .all(self.world.now)
            .filter(|(key, _)| !key.starts_with(COUNTERS));
        of_locks.map(|(key, stored)| (key, stored.value()))
    }
}
