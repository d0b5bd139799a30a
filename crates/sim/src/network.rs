//! The network: how long things take, and what does not get through.
//!
//! Between a client and a node there are connections. What goes over one of them keeps its order,
//! there as back; two connections know nothing of each other's order. A connection loses nothing
//! while it lives: what the network loses comes later, or the connection breaks.

use crate::fact::{ClientId, NodeIndex};
use crate::plan::Plan;
use crate::random::Random;
use crate::time::{MS, Time, US};

/// A connection's number.
pub(crate) type WireId = usize;

/// There or back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    There,
    Back,
}

/// A connection from a client to a node.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    pub(crate) client: ClientId,
    pub(crate) node: NodeIndex,
    /// The client still listens.
    pub(crate) open_here: bool,
    /// The node still does.
    pub(crate) open_there: bool,
    /// How often the node has said on it that all of its data are gone, or others.
    pub(crate) flushes: u64,
    /// What arrives after this is lost: the connection broke while it was under way.
    pub(crate) lost_after: Time,
    /// What had not arrived when the connection died does not before this.
    pub(crate) held_until: Time,
    last: [Time; 2],
}

/// Until when nothing gets through, there and back.
type Blocks = [Time; 2];

pub(crate) struct Network {
    one_way: Time,
    spikes: (Time, u64),
    random: Random,
    pub(crate) wires: Vec<Wire>,
    /// By client, then node.
    blocks: Vec<Vec<Blocks>>,
    nodes: usize,
    healed: bool,
    /// By client, then node, how long things take, if nothing is left to chance.
    pub(crate) ways: Option<Vec<Vec<Way>>>,
}

/// How long things take between a client and a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// Commands and replies, each.
    pub(crate) one_way: Time,
    /// Pushes, if not as long as replies.
    pub(crate) push: Option<Time>,
}

impl Network {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self {
            one_way: plan.wiring.one_way,
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
            open_here: true,
            open_there: true,
            flushes: 0,
            lost_after: Time::MAX,
            held_until: 0,
            last: [0; 2],
        });
        self.wires.len() - 1
    }

    /// When what is sent now arrives, behind all that was sent before.
    pub(crate) fn arrival(&mut self, id: WireId, way: Direction, now: Time) -> Time {
        if let Some(exact) = self.way(id) {
            let last = &mut self.wires[id].last[way as usize];
            *last = (now + exact.one_way).max(*last);
            return *last;
        }
        let delay = self.delay();
        let Wire { client, node, .. } = self.wires[id];
        let blocked = self.blocks_of(client, node)[way as usize];
        let last = &mut self.wires[id].last[way as usize];
        *last = (now.max(blocked) + delay).max(*last + 1);
        *last
    }

    /// When something arrives that need not keep any order.
    pub(crate) fn stray(&mut self, id: WireId, now: Time) -> Time {
        if let Some(exact) = self.way(id) {
            return now + exact.push.unwrap_or(exact.one_way);
        }
        let Wire { client, node, .. } = self.wires[id];
        let blocked = self.blocks_of(client, node)[Direction::Back as usize];
        now.max(blocked) + self.delay()
    }

    fn way(&self, id: WireId) -> Option<Way> {
        let Wire { client, node, .. } = self.wires[id];
        self.ways.as_ref().map(|ways| ways[client][node])
    }

    /// When the answer to a handshake would be there.
    pub(crate) fn dial(&mut self, client: ClientId, node: NodeIndex, now: Time) -> Time {
        let [there, back] = *self.blocks_of(client, node);
        let asked = now.max(there) + 2 * self.delay();
        asked.max(back) + self.delay()
    }

    /// Nothing gets through until then.
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

    /// From now on everything gets through, and nothing is slow.
    pub(crate) fn heal(&mut self, now: Time) {
        self.blocks.iter_mut().flatten().for_each(|blocks| *blocks = [0; 2]);
        // What was under way arrives now, in order; see `World::hurry`.
        let last = self.wires.iter_mut().flat_map(|wire| &mut wire.last);
        last.for_each(|last| *last = (*last).min(now + MS));
        self.healed = true;
    }

    pub(crate) fn delay(&mut self) -> Time {
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
