//! Nodes with a replica: two servers share one name, and one server is the replica of the other.
//!
//! The replica gets the master's data late. It is promoted at any time, also while the master runs, is frozen, or grants
//! votes. New connections then lead to the promoted server, or still to the old one. Later the old master becomes a
//! replica of the promoted server, whose data replaces its own. The two wall clocks differ.

use std::collections::VecDeque;

use quorlock_core::{Evidence, Failure, FailureKind};

use super::{Parcel, Process, Reply, Server, SimEvent, World};
use crate::count::Count;
use crate::fact::{FaultEvent, NodeIndex};
use crate::network::{Direction, WireId};
use crate::node::{Health, ModelNode, Run};
use crate::time::{Clock, MS, SECOND, Time};

/// One of the two servers of a node. At the start of a run, `false` is the master, and `true` is the replica.
pub(crate) type Side = bool;

/// The two servers that share a node's name. `World::servers` has one of them, and this record the other one.
pub(crate) struct Pair {
    /// The side of the server in `servers`.
    here: Side,
    other: Box<Server>,
    /// The side that the name leads to.
    name: Side,
    /// The side whose data the other side gets. `None` after a promotion.
    master: Option<Side>,
    /// Number of batches that the servers have executed as masters. Never reset, so no two batches share a number.
    offset: u64,
    /// For each side, the number of the newest batch that the other side acknowledged.
    acknowledged: [u64; 2],
    /// The number of promotions and demotions so far. A server ignores data that was sent before the last of them.
    changes: u64,
    /// The arrival times of the newest data and of the newest acknowledgement. Later messages must not overtake them.
    last: [Time; 2],
    /// For each side, the batches that wait for an acknowledgement.
    waits: [Vec<Wait>; 2],
}

/// A batch whose connection is blocked by `WAIT`.
struct Wait {
    offset: u64,
    until: Time,
    reply: Box<Reply>,
    /// Batches that came on the same connection meanwhile.
    behind: VecDeque<Parcel>,
}

/// An event of a node with a replica.
#[derive(Debug)]
pub(crate) enum Replicated {
    /// The replica gets the master's data up to this batch.
    Data { changes: u64, offset: u64, data: Box<ModelNode> },
    /// The master on this side gets the replica's acknowledgement.
    Acknowledged { to: Side, offset: u64 },
    /// A `WAIT` on this side times out.
    WaitOver { on: Side },
    /// The replica is promoted.
    Promote,
    /// The old master becomes a replica.
    Demote { changes: u64 },
    /// A frozen server on this side continues.
    Thaw { on: Side },
}

impl World {
    /// Adds a replica to a node.
    pub(crate) fn add_replica(&mut self, node: NodeIndex) {
        let master = &self.servers[node];
        let random = &mut self.random.replicas;
        let ahead = random.between(-SECOND, SECOND);
        let clock = Clock::new(master.node.clock.at(0) + ahead, master.node.clock.ppm());
        let mut replica = ModelNode::new(clock, master.node.kind());
        self.progress.runs += 1;
        replica.run = Run::new(self.progress.runs, clock.at(0) - 1_000 * SECOND);
        replica.follow(&master.node);
        replica.health = Health::ReadOnly(FailureKind::ReadOnly);
        let other = Box::new(Server {
            node: replica,
            process: Process::Runs,
            stuck: Vec::new(),
            silent: false,
            known_scripts: master.known_scripts.clone(),
            ahead: 0,
            sound_since: 0,
            has_jumped: false,
        });
        self.pairs.push(Pair {
            here: false,
            other,
            name: false,
            master: Some(false),
            offset: 0,
            acknowledged: [0; 2],
            changes: 0,
            last: [0; 2],
            waits: [Vec::new(), Vec::new()],
        });
        self.plan_failover(node);
    }

    fn plan_failover(&mut self, node: NodeIndex) {
        let span = self.random.replicas.span(self.plan.quarantine());
        self.plan_in(span, SimEvent::Replicated(node, Replicated::Promote));
    }

    /// Puts the server of this side into `servers`.
    fn turn_to(&mut self, node: NodeIndex, side: Side) {
        let pair = &mut self.pairs[node];
        if pair.here != side {
            pair.here = side;
            std::mem::swap(&mut self.servers[node], &mut pair.other);
        }
    }

    /// The side of the server in `servers`; `None` if the node has no replica.
    pub(crate) fn side_of(&self, node: NodeIndex) -> Option<Side> {
        self.pairs.get(node).map(|pair| pair.here)
    }

    /// Puts the server that this connection leads to into `servers`.
    pub(crate) fn turn_to_wire(&mut self, wire: WireId) {
        let wire = &self.network.wires[wire];
        if let Some(side) = wire.side {
            self.turn_to(wire.node, side);
        }
    }

    /// Puts the server that a new connection leads to into `servers`, and returns its side. Some clients still resolve
    /// the name to the old master.
    pub(crate) fn turn_to_name(&mut self, node: NodeIndex) -> Option<Side> {
        let pair = self.pairs.get(node)?;
        let is_stale = pair.changes > 0 && self.random.replicas.percent(20);
        let side = pair.name != is_stale;
        self.turn_to(node, side);
        Some(side)
    }

    /// Sends the master's data to its replica, after the master has executed a batch.
    pub(crate) fn replicate(&mut self, node: NodeIndex) {
        let ttl = self.plan.load.max_ttl;
        let Some(pair) = self.pairs.get_mut(node) else { return };
        if self.servers[node].node.health != Health::Good {
            return;
        }
        pair.offset += 1;
        if pair.master != Some(pair.here) {
            return;
        }
        let random = &mut self.random.replicas;
        let late = if random.percent(3) { random.span(ttl) } else { random.span(MS) };
        pair.last[0] = pair.last[0].max(self.now + late);
        let (changes, offset) = (pair.changes, pair.offset);
        let data = Box::new(self.servers[node].node.clone());
        let event = Replicated::Data { changes, offset, data };
        self.plan_at(self.pairs[node].last[0], SimEvent::Replicated(node, event));
    }

    /// Keeps a reply back until the replica has acknowledged the batch, or `WAIT` times out. Returns the reply
    /// if no acknowledgement was requested.
    pub(crate) fn hold_back(
        &mut self,
        node: NodeIndex,
        mut reply: Box<Reply>,
    ) -> Option<Box<Reply>> {
        let is_asked = reply.parcel.asked_evidence.is_some_and(|asked| asked.acknowledgement);
        let Some(pair) = self.pairs.get_mut(node).filter(|_| is_asked) else { return Some(reply) };
        if self.servers[node].node.health != Health::Good {
            acknowledge(&mut reply, Err(Failure::new(FailureKind::ReadOnly)));
            return Some(reply);
        }
        let (offset, until) = (pair.offset, self.now + self.plan.load.max_ttl / 40);
        let on = pair.here;
        pair.waits[usize::from(on)].push(Wait { offset, until, reply, behind: VecDeque::new() });
        self.plan_at(until, SimEvent::Replicated(node, Replicated::WaitOver { on }));
        None
    }

    /// Keeps a batch back if a `WAIT` blocks its connection. Otherwise returns the batch.
    pub(crate) fn queue_behind_wait(&mut self, parcel: Parcel) -> Option<Parcel> {
        let wire = &self.network.wires[parcel.wire];
        let Some(side) = wire.side else { return Some(parcel) };
        let waits = &mut self.pairs[wire.node].waits[usize::from(side)];
        match waits.iter_mut().find(|wait| wait.reply.parcel.wire == parcel.wire) {
            Some(wait) => wait.behind.push_back(parcel),
            None => return Some(parcel),
        }
        None
    }

    /// Answers the `WAIT`s of this side that were acknowledged or timed out. Then executes the batches behind them.
    fn review_waits(&mut self, node: NodeIndex, on: Side) {
        self.turn_to(node, on);
        if self.servers[node].process != Process::Runs {
            return;
        }
        let side = usize::from(on);
        let is_master = self.servers[node].node.health == Health::Good;
        loop {
            let (now, pair) = (self.now, &mut self.pairs[node]);
            let known = pair.acknowledged[side];
            let is_over = |wait: &Wait| wait.offset <= known || wait.until <= now || !is_master;
            let Some(place) = pair.waits[side].iter().position(is_over) else { return };
            let Wait { offset, mut reply, behind, .. } = pair.waits[side].remove(place);
            let count = u32::from(offset <= known);
            if count == 0 {
                self.record.counts.add(Count::Unacknowledged);
            }
            // A server that becomes a replica ends each `WAIT` with an error.
            acknowledge(
                &mut reply,
                if is_master { Ok(count) } else { Err(Failure::new(FailureKind::Rejected)) },
            );
            let wire = reply.parcel.wire;
            if self.network.wires[wire].open_here {
                let arrival = self.network.arrival(wire, Direction::Back, self.now);
                self.plan_at(arrival, SimEvent::Reply { wire, reply });
            }
            for parcel in behind {
                if let Some(parcel) = self.queue_behind_wait(parcel) {
                    let client = self.network.wires[parcel.wire].client;
                    self.serve(node, client, parcel);
                }
            }
        }
    }

    pub(crate) fn replicated(&mut self, node: NodeIndex, event: Replicated) {
        match event {
            Replicated::Data { changes, offset, data } => {
                let pair = &self.pairs[node];
                let Some(master) = pair.master.filter(|_| pair.changes == changes) else { return };
                self.turn_to(node, !master);
                self.servers[node].node.follow(&data);
                let late = self.random.replicas.span(MS);
                let last = &mut self.pairs[node].last[1];
                *last = (*last).max(self.now + late);
                let at = *last;
                let event = Replicated::Acknowledged { to: master, offset };
                self.plan_at(at, SimEvent::Replicated(node, event));
            }
            Replicated::Acknowledged { to, offset } => {
                let known = &mut self.pairs[node].acknowledged[usize::from(to)];
                *known = (*known).max(offset);
                self.review_waits(node, to);
            }
            Replicated::WaitOver { on } => self.review_waits(node, on),
            Replicated::Promote => self.promote(node),
            Replicated::Demote { changes } => self.demote(node, changes),
            Replicated::Thaw { on } => {
                self.turn_to(node, on);
                self.thaw_node(node);
                self.review_waits(node, on);
            }
        }
    }

    fn promote(&mut self, node: NodeIndex) {
        let Some(old) = self.pairs[node].master.take() else { return };
        let quarantine = self.plan.quarantine();
        let random = &mut self.random.replicas;
        let frozen_for = random.coin().then(|| random.between(0, 2 * quarantine));
        let demoted_in = random.pick(&[quarantine / 8, 3 * quarantine, 4 * quarantine]);
        let demoted_in = random.span(demoted_in);
        let pair = &mut self.pairs[node];
        (pair.name, pair.changes) = (!old, pair.changes + 1);
        let changes = pair.changes;
        if let Some(span) = frozen_for {
            self.turn_to(node, old);
            self.freeze_node(node);
            self.plan_in(span, SimEvent::Replicated(node, Replicated::Thaw { on: old }));
        }
        self.turn_to(node, !old);
        self.cure_node(node);
        self.record.counts.add(Count::Failovers);
        self.note_fault(FaultEvent::NodePromoted { node });
        self.plan_in(demoted_in, SimEvent::Replicated(node, Replicated::Demote { changes }));
    }

    /// Makes the old master a replica of the promoted server, whose data replaces its own.
    fn demote(&mut self, node: NodeIndex, changes: u64) {
        let (new, span) = (self.pairs[node].name, MS * 100);
        self.turn_to(node, !new);
        if self.servers[node].process != Process::Runs {
            return self.plan_in(span, SimEvent::Replicated(node, Replicated::Demote { changes }));
        }
        let master = self.pairs[node].other.node.clone();
        let old = &mut self.servers[node].node;
        old.health = Health::ReadOnly(FailureKind::ReadOnly);
        old.follow(&master);
        let pair = &mut self.pairs[node];
        (pair.master, pair.changes) = (Some(new), pair.changes + 1);
        self.note_fault(FaultEvent::NodeOverwritten { node });
        self.review_waits(node, !new);
        self.push_everything(node);
        // Sentinel closes the connections of clients to a server that it makes a replica.
        if self.random.replicas.percent(80) {
            let is_old = |it: &crate::network::Wire| it.node == node && it.side == Some(!new);
            for wire in 0..self.network.wires.len() {
                if is_old(&self.network.wires[wire]) {
                    self.reset(wire);
                }
            }
        }
        self.plan_failover(node);
    }
}

fn acknowledge(reply: &mut Reply, by: Result<u32, Failure>) {
    if let Evidence::Seen { acknowledged, .. } = &mut reply.evidence {
        *acknowledged = Some(by);
    }
}
