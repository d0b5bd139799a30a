//! Faults of nodes, and functions that read and change the keys on nodes.

use quorlock_core::{FailureKind, Key};

use super::{COUNTERS, ScriptedWorld};
use crate::fact::{Fact, FaultEvent};
use crate::node::{Health, Stored};

impl ScriptedWorld {
    /// Makes a node answer every command with this error instead of carrying it out. With `None` it works again.
    pub fn refuse(&mut self, node: usize, with: Option<FailureKind>) {
        self.world.servers[node].node.health = with.map_or(Health::Good, Health::Refusing);
    }

    /// Takes away the clients' right to read locks, or gives it back. Locks can still be set and deleted.
    pub fn blind(&mut self, is_blind: bool) {
        self.world.by_hand_mut().is_blind = is_blind;
    }

    /// From now on a node's clock runs `ppm` parts per million fast, so keys expire early.
    pub fn run_fast(&mut self, node: usize, ppm: i64) {
        self.world.servers[node].node.clock.run(ppm, self.world.now);
    }

    /// Makes the nodes send no pushes.
    pub fn no_pushes(&mut self) {
        self.world.servers.iter_mut().for_each(|server| server.node.set_pushing(false));
    }

    /// Deletes a node's locks. Without a restart guard, the invariants then allow two clients to hold one lock.
    pub fn flush(&mut self, node: usize) {
        self.may_lose(true);
        self.clear(node);
    }

    /// If keys were lost, lets two clients hold one lock from now on, except in a world with a restart guard.
    fn may_lose(&mut self, is_lost: bool) {
        if is_lost && !self.world.by_hand().is_guarded {
            self.promise_nothing();
        }
    }

    /// Deletes all locks of a node, without a push.
    pub fn clear(&mut self, node: usize) {
        let keys = self.locks(node).map(|(key, _)| key.clone()).collect::<Vec<_>>();
        for key in keys {
            self.world.servers[node].node.delete(&key, self.world.now);
        }
        self.world.servers[node].node.take_pushes();
        self.world.note(&Fact::FaultEvent(FaultEvent::KeyDeleted { node }));
    }

    /// Sets a foreign key that expires after `ttl_ms`, or never.
    pub fn occupy(&mut self, node: usize, key: &str, value: &[u8], ttl_ms: Option<i64>) {
        self.occupy_with(node, key, Some(value), ttl_ms);
    }

    /// Sets a foreign key: to a string, or to another type if the value is `None`.
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

    /// Deletes a key as another program would. The node pushes to the clients that watch the key.
    pub fn forget_key(&mut self, node: usize, key: &str) {
        let is_lost = self.world.servers[node].node.delete(key, self.world.now);
        self.may_lose(is_lost);
        self.world.note(&Fact::FaultEvent(FaultEvent::KeyDeleted { node }));
        self.world.deliver_pushes(node);
    }

    /// Sets a counter for fencing tokens on a node, as other clients would. `counter` is its key.
    pub fn set_counter(&mut self, node: usize, counter: &str, at: u64) {
        let text = Some(at.to_string().into_bytes());
        self.world.servers[node].node.set(&counter.into(), text, None, self.world.now);
        self.world.note(&Fact::FaultEvent(FaultEvent::CounterMoved { node }));
    }

    /// The value of a counter for fencing tokens on a node. `counter` is its key. `None` if it is absent or 0.
    pub fn counter_at(&self, node: usize, counter: &str) -> Option<u64> {
        self.world.servers[node].node.fence_at(&counter.into()).filter(|fence| *fence > 0)
    }

    /// Whether a node has this key.
    pub fn has(&self, node: usize, key: &str) -> bool {
        self.stored(node, key).is_some()
    }

    /// The content of a key on a node.
    pub fn stored(&self, node: usize, key: &str) -> Option<&Stored> {
        self.world.servers[node].node.stored(key, self.world.now)
    }

    /// The number of nodes.
    pub const fn node_count(&self) -> usize {
        self.world.servers.len()
    }

    /// The keys of a node, except its counters for fencing tokens. The value of a key is `None` if it is not a string.
    pub fn locks(&self, node: usize) -> impl Iterator<Item = (&Key, Option<&Vec<u8>>)> {
        let of_locks = self.world.servers[node]
            .node
            .all(self.world.now)
            .filter(|(key, _)| !key.starts_with(COUNTERS));
        of_locks.map(|(key, stored)| (key, stored.value()))
    }
}
