//! The network delays messages, holds them back, and breaks connections.
//!
//! Clients and nodes are joined by connections. A connection keeps the order of its messages in each direction.
//! Messages on different connections have no order. A live connection loses nothing: a lost packet only delays its
//! message, or the connection breaks.

use crate::fact::{ClientId, NodeIndex};
use crate::plan::{Distances, Plan};
use crate::random::Random;
use crate::time::{MS, Time, US};

pub(crate) type WireId = usize;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    There,
    Back,
}

#[derive(Clone, Debug)]
pub(crate) struct Wire {
    pub(crate) client: ClientId,
    pub(crate) node: NodeIndex,
    /// The one of two servers that the connection leads to, if the node has a replica; otherwise `None`.
    pub(crate) side: Option<bool>,
    /// The client has not given up the connection.
    pub(crate) open_here: bool,
    /// The node has not given up the connection.
    pub(crate) open_there: bool,
    /// The number of times that the node reported lost or replaced data on this connection.
    pub(crate) flushes: u64,
    /// Messages that would arrive after this time are lost, because the connection broke while they were in flight.
    pub(crate) lost_after: Time,
    /// Messages that were in flight when the connection died arrive at this time or later.
    pub(crate) held_until: Time,
    last: [Time; 2],
}

/// For each direction, the time until which the network holds messages back.
type Blocks = [Time; 2];

pub(crate) struct Network {
    one_way: Time,
    distances: Distances,
    spikes: (Time, u64),
    random: Random,
    pub(crate) wires: Vec<Wire>,
    blocks: Vec<Vec<Blocks>>,
    nodes: usize,
    healed: bool,
    /// Exact delays by client and node, if a test sets them.
    pub(crate) ways: Option<Vec<Vec<Way>>>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// Delay of a command, and of a reply.
    pub(crate) one_way: Time,
    /// Delay of a push, if it differs from a reply's.
    pub(crate) push: Option<Time>,
}

impl Network {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self {
            one_way: plan.wiring.one_way,
            distances: plan.wiring.distances.clone(),
            spikes: plan.wiring.spikes,
            random: Random::new(plan.seed, 1),
            wires: Vec::new(),
            blocks: Vec::new(),
            nodes: plan.servers.quorum.nodes(),
            healed: false,
            ways: None,
        }
    }

    pub(crate) fn connect(&mut self, client: ClientId, node: NodeIndex) -> WireId {
        self.wires.push(Wire {
            client,
            node,
            side: None,
            open_here: true,
            open_there: true,
            flushes: 0,
            lost_after: Time::MAX,
            held_until: 0,
            last: [0; 2],
        });
        self.wires.len() - 1
    }

    /// Returns the arrival time of a message sent now. The message does not overtake earlier messages.
    pub(crate) fn arrival(&mut self, id: WireId, way: Direction, now: Time) -> Time {
        if let Some(exact) = self.way(id) {
            let last = &mut self.wires[id].last[way as usize];
            *last = (now + exact.one_way).max(*last);
            return *last;
        }
        let Wire { client, node, .. } = self.wires[id];
        let delay = self.delay_of(node, way);
        let blocked = self.blocks_of(client, node)[way as usize];
        let last = &mut self.wires[id].last[way as usize];
        *last = (now.max(blocked) + delay).max(*last + 1);
        *last
    }

    /// Returns the arrival time of a message that may overtake other messages.
    pub(crate) fn stray(&mut self, id: WireId, now: Time) -> Time {
        if let Some(exact) = self.way(id) {
            return now + exact.push.unwrap_or(exact.one_way);
        }
        let Wire { client, node, .. } = self.wires[id];
        let blocked = self.blocks_of(client, node)[Direction::Back as usize];
        now.max(blocked) + self.delay_of(node, Direction::Back)
    }

    fn way(&self, id: WireId) -> Option<Way> {
        let Wire { client, node, .. } = self.wires[id];
        self.ways.as_ref().map(|ways| ways[client][node])
    }

    /// Returns the time at which a connection that a client begins to make now would be there.
    pub(crate) fn dial(&mut self, client: ClientId, node: NodeIndex, now: Time) -> Time {
        let [there, back] = *self.blocks_of(client, node);
        let asked = now.max(there) + self.delay_of(node, Direction::There);
        asked.max(back) + self.delay_of(node, Direction::Back)
    }

    pub(crate) fn block(
        &mut self,
        client: ClientId,
        node: NodeIndex,
        ways: &[Direction],
        until: Time,
    ) {
        let blocks = self.blocks_of(client, node);
        for way in ways {
            blocks[*way as usize] = blocks[*way as usize].max(until);
        }
    }

    pub(crate) fn heal(&mut self, now: Time) {
        self.blocks.iter_mut().flatten().for_each(|blocks| *blocks = [0; 2]);
        // `World::hurry` delivers the messages in flight now, so their planned arrivals must not delay later messages.
        let last = self.wires.iter_mut().flat_map(|wire| &mut wire.last);
        last.for_each(|last| *last = (*last).min(now + MS));
        self.healed = true;
    }

    /// The delay of a message from or to this node. Some messages to far nodes take a tenth longer than others.
    fn delay_of(&mut self, node: NodeIndex, way: Direction) -> Time {
        let distance = self.distances.of(node, way);
        let jitter = if distance > 0 { self.random.between(0, distance / 10) } else { 0 };
        self.delay() + distance + jitter
    }

    fn delay(&mut self) -> Time {
        let (spike, percent) = self.spikes;
        let base = self.one_way / 2 + self.random.between(0, self.one_way);
        if !self.healed && self.random.percent(percent) {
            base + self.random.span(spike)
        } else {
            base.max(10 * US)
        }
    }

    fn blocks_of(&mut self, client: ClientId, node: NodeIndex) -> &mut Blocks {
        if self.blocks.len() <= client {
            self.blocks.resize(client + 1, vec![[0; 2]; self.nodes]);
        }
        &mut self.blocks[client][node]
    }
}
