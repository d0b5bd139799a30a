//! Draws the faults of servers, connections and worker processes, and their times.

use quorlock_servers::proxy::{Blow, Direction, Traffic};
use quorlock_sim::Random;
use quorlock_sim::time::{MS, SECOND, Time, US};

use super::{FAILOVERS, FAULTS, PROCESSES};
use crate::clock::nanos;
use crate::faults::{
    Act, Change, EVICT, Event, FLUSH, Failover, Kind, MASTER_AGAIN, NO_EVICTION, Places, RELOAD,
    SCRIPT_FLUSH, Ways,
};

pub(super) struct Draw {
    random: Random,
    nodes: usize,
    quorum: usize,
    max_ttl: Time,
    /// The kind of the fault that is being drawn.
    kind: Kind,
    pub(super) events: Vec<Event>,
    nodes_out: Vec<(usize, Time, Time)>,
    processes_out: Vec<(usize, Time, Time)>,
    pub(super) jumped: Places,
}

/// The time for which a fault that takes effect at once, such as a restart, keeps a server free of other faults.
const AT_ONCE: Time = 200 * MS;

impl Draw {
    /// Draws all faults of these kinds, ordered by time.
    pub(super) fn of(
        random: Random,
        (nodes, quorum, max_ttl): (usize, usize, Time),
        kinds: &[Kind],
    ) -> Self {
        let (events, nodes_out, processes_out, jumped) = Default::default();
        let kind = Kind::DELAY;
        let mut draw =
            Self { random, nodes, quorum, max_ttl, kind, events, nodes_out, processes_out, jumped };
        for &kind in kinds {
            draw.kind = kind;
            for _ in 0..draw.count() {
                // Another fault may occupy the drawn node or process at that time. Then the draw is repeated.
                let before = draw.events.len();
                (0..50).find(|_| {
                    draw.fault();
                    draw.events.len() > before
                });
            }
        }
        draw.events.sort_by_key(|event| event.at);
        draw
    }

    /// The number of faults of a kind. Faults that stop nodes for seconds are few, because they hide other faults.
    fn count(&mut self) -> u64 {
        match self.kind {
            kind if FAILOVERS.contains(&kind) => 1 + self.random.below(self.nodes as u64),
            Kind::PROMOTE | Kind::JUMP | Kind::FLUSH | Kind::FORGET | Kind::AMNESIA => 1,
            kind if kind.loses_data() => 1 + self.random.below(2),
            // Frequent, because one of these faults may find no message in flight, and then has no effect.
            Kind::DELAY | Kind::HOLD | Kind::DROP | Kind::SPLIT => 3 + self.random.below(3),
            Kind::SCRIPT_FLUSH => 3 + self.random.below(4),
            _ => 1 + self.random.below(4),
        }
    }

    fn fault(&mut self) {
        let at = self.random.between(FAULTS / 20, FAULTS * 9 / 10);
        let span = self.random.between(FAULTS / 14, FAULTS * 2 / 5);
        let node = self.random.index(self.nodes);
        match self.kind {
            Kind::DELAY => {
                let delay = self.random.between(MS, 150 * MS);
                self.weather(at, span, Traffic::Delay(nanos(delay)));
            }
            Kind::HOLD => self.weather(at, span, Traffic::Hold),
            Kind::DROP => self.weather(at, span, Traffic::Drop),
            Kind::SPLIT => {
                let piece = 1 + self.random.index(40);
                self.weather(at, span, Traffic::Split(piece));
            }
            Kind::HOLD_OLD_CONNECTIONS => {
                // Messages are held back for long enough for clients to replace the connections.
                let (at, span) = (at / 2, self.random.between(FAULTS / 2, FAULTS * 4 / 5));
                let (ways, direction) = (self.ways(), self.direction());
                self.begin(at, Act::Strike(ways.clone(), Blow::Hold(direction)));
                self.end(at + span, Act::Release(ways));
            }
            Kind::HALF_CLOSE => {
                let blow = Blow::HalfClose(self.direction());
                self.strike(at, blow);
            }
            Kind::RESET => self.strike(at, Blow::Reset),
            Kind::TRUNCATE => {
                let blow = Blow::Truncate(self.direction(), self.random.index(1000));
                self.strike(at, blow);
            }
            Kind::KILL_NODE => {
                let down = self.random.between(0, 2 * self.max_ttl);
                self.node_out((node, at, down), Change::Kill, Change::Start);
            }
            Kind::STOP_NODE => self.node_out((node, at, span), Change::Stop, Change::Continue),
            Kind::STOP_CLIENT => {
                // The pause is often long enough for the locks to end before the process continues.
                let span = self.random.between(FAULTS / 50, 2 * self.max_ttl);
                self.process_out(at, span, Change::Stop, Change::Continue);
            }
            Kind::KILL_CLIENT => self.process_out(at, span / 2, Change::Kill, Change::Start),
            Kind::AMNESIA => self.at_once(Act::Amnesia),
            Kind::LOG_TAIL => {
                let bytes = self.random.below(600) + 1;
                self.at_once(|places| Act::LogTail(places, bytes));
            }
            Kind::FLUSH => self.at_once(|places| Act::Commands(places, FLUSH)),
            Kind::FORGET => self.at_once(Act::Forget),
            Kind::RELOAD => {
                self.takes((node, at, AT_ONCE), Act::Commands(vec![node], RELOAD), None);
            }
            Kind::SCRIPT_FLUSH => {
                self.takes((node, at, 0), Act::Commands(vec![node], SCRIPT_FLUSH), None);
            }
            Kind::REPLICA_OF => {
                // A node becomes a replica only of a node with a smaller index. If two nodes became each other's
                // replicas, first one and then the other, they could get their own old data back.
                let node = 1 + self.random.index(self.nodes - 1);
                let of = self.random.index(node);
                let end = Some(Act::Commands(vec![node], MASTER_AGAIN));
                self.takes((node, at * 2 / 3, span / 2), Act::ReplicaOf(node, of), end);
            }
            Kind::PROMOTE => {
                let span = self.random.between(FAULTS / 10, FAULTS / 5);
                self.takes((node, at / 2, span), Act::Follow(node), Some(Act::Promote(node)));
            }
            Kind::EVICT => {
                let [begin, end] = [EVICT, NO_EVICTION].map(|it| Act::Commands(vec![node], it));
                self.takes((node, at, span), begin, Some(end));
            }
            Kind::DRIFT => self.drift(node, at),
            Kind::JUMP => self.jump(at),
            _ => self.failover(node),
        }
    }

    fn begin(&mut self, at: Time, act: Act) {
        self.events.push(Event { at, begins: Some(self.kind), act });
    }

    fn end(&mut self, at: Time, act: Act) {
        self.events.push(Event { at, begins: None, act });
    }

    /// Draws a fault that makes some nodes lose data at the same moment. Leaves out nodes that have another fault then.
    fn at_once(&mut self, act: impl FnOnce(Places) -> Act) {
        // The loss is in the first half, so that the nodes vote again before the faults end.
        let at = self.random.between(FAULTS / 20, FAULTS / 2);
        let minority = (self.nodes - 1) / 2;
        let wanted = self.random.pick(&[1, 1, minority, minority + 1, self.nodes]);
        let mut places = some(&mut self.random, self.nodes, wanted);
        places.retain(|node| !self.is_out(*node, at, AT_ONCE));
        if !places.is_empty() {
            self.nodes_out.extend(places.iter().map(|node| (*node, at, at + AT_ONCE)));
            self.begin(at, act(places));
        }
    }

    /// Adds the beginning and the end of a fault of one node, unless the node has another fault at that time.
    fn takes(&mut self, (node, at, span): (usize, Time, Time), begin: Act, end: Option<Act>) {
        if self.is_out(node, at, span + AT_ONCE) {
            return;
        }
        self.nodes_out.push((node, at, at + span + AT_ONCE));
        self.begin(at, begin);
        if let Some(end) = end {
            self.end(at + span, end);
        }
    }

    /// Stops a node, but never a majority at a time, because then no client could get a lock.
    fn node_out(&mut self, (node, at, span): (usize, Time, Time), begin: Change, end: Change) {
        let others = self.nodes_out.iter().filter(|out| overlap(out, at, span));
        if others.count() < (self.nodes - 1) / 2 {
            self.takes((node, at, span), Act::Node(node, begin), Some(Act::Node(node, end)));
        }
    }

    fn process_out(&mut self, at: Time, span: Time, begin: Change, end: Change) {
        let process = self.random.index(PROCESSES);
        let mut outs = self.processes_out.iter().filter(|out| out.0 == process);
        if outs.any(|out| overlap(out, at, span)) {
            return;
        }
        self.processes_out.push((process, at, at + span));
        self.begin(at, Act::Client(process, begin));
        self.end(at + span, Act::Client(process, end));
    }

    fn is_out(&self, node: usize, at: Time, span: Time) -> bool {
        self.nodes_out.iter().any(|out| out.0 == node && overlap(out, at, span))
    }

    /// Lets a node's clock jump once by at most two milliseconds, and later run up to half a percent fast or slow. A
    /// second jump within the same ttl could exceed the drift that the protocol tolerates.
    fn drift(&mut self, node: usize, at: Time) {
        if self.events.iter().any(|event| matches!(event.act, Act::Step(other, _) if other == node))
        {
            return;
        }
        let by = self.random.between(-1900 * US, 1900 * US);
        self.begin(at, Act::Step(node, by));
        let ppm = i64::try_from(self.random.below(9801)).unwrap_or(0) - 4900;
        let later = self.random.between(at, FAULTS);
        self.end(later, Act::Run(node, ppm));
    }

    fn jump(&mut self, at: Time) {
        let two = 2 * self.quorum > self.nodes + 1;
        let count = if two { self.random.pick(&[1, 2]) } else { 1 + self.random.index(self.nodes) };
        self.jumped = some(&mut self.random, self.nodes, count);
        for node in self.jumped.clone() {
            let by = self.random.pick(&[SECOND, 10 * SECOND, 600 * SECOND, 3600 * SECOND]);
            let by = if self.random.coin() { by } else { -by };
            self.begin(at, Act::Step(node, by));
            if by < 0 {
                // A clock that was set back prolongs earlier locks. It is set right at the end, so that these locks
                // expire.
                self.end(FAULTS - 1, Act::SetRight(node));
            }
        }
    }

    fn weather(&mut self, at: Time, span: Time, traffic: Traffic) {
        let ways = self.ways();
        let directions = match self.random.below(3) {
            0 => vec![Direction::ToServer],
            1 => vec![Direction::ToClient],
            _ => vec![Direction::ToServer, Direction::ToClient],
        };
        self.begin(at, Act::Set(ways.clone(), directions.clone(), traffic));
        self.end(at + span, Act::Set(ways, directions, Traffic::Open));
    }

    fn strike(&mut self, at: Time, blow: Blow) {
        let ways = self.ways();
        self.begin(at, Act::Strike(ways, blow));
    }

    fn direction(&mut self) -> Direction {
        self.random.pick(&[Direction::ToServer, Direction::ToClient])
    }

    /// Draws the affected connections: of one process or all, to one node, a minority, a majority or all nodes.
    fn ways(&mut self) -> Ways {
        let processes = if self.random.coin() { PROCESSES } else { 1 };
        let minority = (self.nodes - 1) / 2;
        let nodes = self.random.pick(&[1, minority, minority + 1, self.nodes]);
        let processes = some(&mut self.random, PROCESSES, processes);
        Ways { processes, nodes: some(&mut self.random, self.nodes, nodes) }
    }

    /// Lets a node's master fail and its replica take over. Until just before the faults end, both may answer clients.
    fn failover(&mut self, node: usize) {
        if self.is_out(node, 0, FAULTS) {
            return;
        }
        self.nodes_out.push((node, 0, FAULTS));
        let count = 1 + self.random.index(PROCESSES - 1);
        let stale = some(&mut self.random, PROCESSES, count);
        let (kind, closes, third) = (self.kind, self.random.coin(), self.random.coin());
        let failover = Failover { kind, node, stale, closes, third };
        let at = self.random.between(FAULTS / 20, FAULTS / 6);
        self.begin(at, Act::Failover(failover.clone()));
        if kind == Kind::MASTER_STOPS {
            let span: Time = self.random.between(0, FAULTS * 2 / 3);
            self.end(at + span, Act::OldMasterContinues(failover.clone()));
        }
        self.end(FAULTS - AT_ONCE, Act::OldMasterLeaves(failover));
    }
}

fn overlap((_, from, to): &(usize, Time, Time), at: Time, span: Time) -> bool {
    at <= *to && *from <= at + span
}

/// Draws `wanted` different indexes below `count`, in ascending order.
pub(super) fn some(random: &mut Random, count: usize, wanted: usize) -> Places {
    let mut all: Places = (0..count).collect();
    while all.len() > wanted {
        all.remove(random.index(all.len()));
    }
    all
}
