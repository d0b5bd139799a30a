//! The faults of a round and their times, drawn from a seed before anything starts.
//!
//! As in swarm testing, a seed uses some kinds of faults and leaves out the others, so that rare combinations occur.
//! Each seed includes all kinds of one of three fixed lists, the next seed those of the next list. So three consecutive
//! seeds use all kinds.

pub(crate) mod failover;

use quorlock_servers::proxy::{Blow, Direction, Traffic};
use quorlock_sim::Random;
use quorlock_sim::time::{MS, SECOND, Time, US};

use crate::act::{Act, Event, Kind, Places, Ways};
use crate::commands::plan::TTL;

pub(crate) const PROCESSES: usize = 3;

/// The time for which faults are injected before the healing.
const FAULTS: Time = 7 * SECOND;

/// All kinds of faults. A seed always uses one of these lists. Loss of data and clock jumps are in different lists,
/// because the order of fencing tokens depends on the clocks after a loss of counters.
pub(crate) const KINDS: [&[Kind]; 3] = [
    &[
        Kind::Delay,
        Kind::Hold,
        Kind::StopClient,
        Kind::KillNode,
        Kind::Amnesia,
        Kind::Flush,
        Kind::Forget,
    ],
    &[
        Kind::HoldOldConnections,
        Kind::Reset,
        Kind::KillClient,
        Kind::LogTail,
        Kind::ReplicaOf,
        Kind::Promote,
        Kind::Drift,
    ],
    &[
        Kind::Drop,
        Kind::HalfClose,
        Kind::Truncate,
        Kind::Split,
        Kind::StopNode,
        Kind::Reload,
        Kind::ScriptFlush,
        Kind::Evict,
        Kind::Jump,
    ],
];

/// Together, this number of consecutive seeds uses every kind of fault.
pub(crate) const SEEDS_FOR_ALL: u64 = KINDS.len() as u64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RoundPlan {
    pub(crate) seed: u64,
    pub(crate) nodes: usize,
    pub(crate) quorum: usize,
    pub(crate) max_ttl: Time,
    /// Whether locks are valid for their whole ttl. This is safe without a margin for clock drift, because all
    /// processes of a round use one clock.
    pub(crate) exact: bool,
    pub(crate) guarded: bool,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) events: Vec<Event>,
    pub(crate) faults: Time,
    /// The reason why the round does not promise mutual exclusion; `None` if it does. All other promises still hold.
    pub(crate) outside: Option<&'static str>,
}

impl RoundPlan {
    /// Draws the round of a seed. `clocks`: whether the servers' clocks can be moved.
    pub(crate) fn draw(seed: u64, clocks: bool) -> Self {
        let mut random = Random::new(seed, 0);
        let forced = KINDS[usize::try_from(seed % SEEDS_FOR_ALL).unwrap_or(0)];
        let jumps = clocks && forced.contains(&Kind::Jump);
        let mut kinds = forced.to_vec();
        for kind in KINDS.concat() {
            let may = kind != Kind::Jump && !(jumps && kind.loses_data());
            if may && !kinds.contains(&kind) && random.percent(20) {
                kinds.push(kind);
            }
        }
        kinds.retain(|kind| clocks || !kind.moves_clock());
        let nodes = if random.percent(if jumps { 20 } else { 40 }) { 3 } else { 5 };
        // A clock that jumps may end a vote early. A quorum of four of five nodes keeps mutual exclusion even if two
        // votes end early, so two clocks may jump.
        let quorum = if nodes == 5 && random.percent(if jumps { 80 } else { 20 }) {
            4
        } else {
            nodes / 2 + 1
        };
        let max_ttl = random.pick(&[400 * MS, 700 * MS, 900 * MS]);
        let exact = random.coin() && !kinds.contains(&Kind::Drift);
        let draw = Draw::of(random, (nodes, quorum, max_ttl), &kinds);
        let vanish = 2 * quorum - nodes - 1;
        let outside = (draw.jumped.len() > vanish)
            .then_some("clocks are set wrong on more nodes than votes may vanish");
        let (events, faults) = (draw.events, FAULTS);
        Self { seed, nodes, quorum, max_ttl, exact, guarded: true, kinds, events, faults, outside }
    }

    /// Draws a round with processes of the command line. In half of these rounds, servers and connections have no
    /// faults, because such faults could hide the effects of faults of these processes. Server clocks do not jump,
    /// because the round promises mutual exclusion.
    pub(crate) fn commands(seed: u64, clocks: bool) -> Self {
        let mut random = Random::new(seed, 2);
        let mut kinds = KINDS.concat();
        kinds.retain(|kind| {
            let is_other = matches!(kind, Kind::StopClient | Kind::KillClient | Kind::Jump);
            seed % 2 == 1 && !is_other && (clocks || !kind.moves_clock()) && random.percent(30)
        });
        if seed % 2 == 1 && kinds.is_empty() {
            kinds.push(Kind::Delay);
        }
        let nodes = if random.percent(60) { 3 } else { 5 };
        let (quorum, max_ttl, faults) = (nodes / 2 + 1, TTL, FAULTS);
        let draw = Draw::of(random, (nodes, quorum, max_ttl), &kinds);
        let events = draw.events;
        let (exact, guarded, outside) = (false, true, None);
        Self { seed, nodes, quorum, max_ttl, exact, guarded, kinds, events, faults, outside }
    }

    /// Draws a round in which a majority repeatedly loses its data. Without the restart guard (`guarded`), a lock must
    /// get two holders.
    pub(crate) fn negative(seed: u64, guarded: bool) -> Self {
        let (nodes, quorum, max_ttl) = (5, 3, 1500 * MS);
        let mut random = Random::new(seed, 0);
        let begins = Some(Kind::Amnesia);
        let amnesia = |place| {
            let forgetful = random.some(nodes, quorum);
            Event { at: SECOND + 500 * MS * place, begins, act: Act::Amnesia(forgetful) }
        };
        let events = (0..6).map(amnesia).collect();
        let kinds = vec![Kind::Amnesia];
        Self {
            seed,
            nodes,
            quorum,
            max_ttl,
            exact: false,
            guarded,
            kinds,
            events,
            faults: 5 * SECOND,
            outside: None,
        }
    }

    pub(crate) fn has(&self, kind: Kind) -> bool {
        self.kinds.contains(&kind)
    }

    /// The longest time for which a node that lost its data does not vote. Clients ignore its votes for the longest ttl
    /// and 2 s (the quarantine). Another 4 s are added, because clients check a node only every two seconds: clients
    /// notice the loss late and end the quarantine late. The node also reports its uptime only in whole seconds.
    pub(crate) fn quarantine(&self) -> Time {
        if self.guarded { over(self.max_ttl) + 2 * SECOND + 4 * SECOND } else { 0 }
    }
}

/// The time after which a lock of this ttl has expired by every clock, even by a slow one.
pub(crate) fn over(ttl: Time) -> Time {
    ttl + ttl / 100 + 10 * MS
}

struct Draw {
    random: Random,
    nodes: usize,
    quorum: usize,
    max_ttl: Time,
    events: Vec<Event>,
    nodes_out: Vec<(usize, Time, Time)>,
    processes_out: Vec<(usize, Time, Time)>,
    jumped: Places,
}

/// The time for which a fault that takes effect at once, such as a restart, keeps a server free of other faults.
const AT_ONCE: Time = 200 * MS;

impl Draw {
    /// Draws all faults of these kinds, ordered by time.
    fn of(random: Random, (nodes, quorum, max_ttl): (usize, usize, Time), kinds: &[Kind]) -> Self {
        let (events, nodes_out, processes_out, jumped) = Default::default();
        let mut draw =
            Self { random, nodes, quorum, max_ttl, events, nodes_out, processes_out, jumped };
        for &kind in kinds {
            for _ in 0..draw.count(kind) {
                // Another fault may occupy the drawn node or process at that time. Then the draw is repeated.
                let before = draw.events.len();
                (0..50).find(|_| {
                    draw.fault(kind);
                    draw.events.len() > before
                });
            }
        }
        draw.events.sort_by_key(|event| event.at);
        draw
    }

    /// The number of faults of a kind. Faults that stop nodes for seconds are few, because they hide other faults.
    fn count(&mut self, kind: Kind) -> u64 {
        match kind {
            Kind::MasterStops | Kind::MasterCutOff | Kind::MasterKilled => {
                1 + self.random.below(self.nodes as u64)
            }
            Kind::Promote | Kind::Jump | Kind::Flush | Kind::Forget | Kind::Amnesia => 1,
            kind if kind.loses_data() => 1 + self.random.below(2),
            // Frequent, because one of these faults may find no message in flight, and then has no effect.
            Kind::Delay | Kind::Hold | Kind::Drop | Kind::Split => 3 + self.random.below(3),
            Kind::ScriptFlush => 3 + self.random.below(4),
            _ => 1 + self.random.below(4),
        }
    }

    fn fault(&mut self, kind: Kind) {
        let at = self.random.between(FAULTS / 20, FAULTS * 9 / 10);
        let span = self.random.between(FAULTS / 14, FAULTS * 2 / 5);
        match kind {
            Kind::Delay => {
                let delay = self.random.between(MS, 150 * MS);
                self.weather(kind, (at, span), Traffic::Delay(nanos(delay)));
            }
            Kind::Hold => self.weather(kind, (at, span), Traffic::Hold),
            Kind::Drop => self.weather(kind, (at, span), Traffic::Drop),
            Kind::Split => {
                let piece = 1 + self.random.index(40);
                self.weather(kind, (at, span), Traffic::Split(piece));
            }
            Kind::HoldOldConnections => {
                // Messages are held back for long enough for clients to replace the connections.
                let (at, span) = (at / 2, self.random.between(FAULTS / 2, FAULTS * 4 / 5));
                let (ways, direction) = (self.ways(), self.direction());
                self.event(at, Some(kind), Act::Strike(ways.clone(), Blow::Hold(direction)));
                self.event(at + span, None, Act::Release(ways));
            }
            Kind::HalfClose => {
                let blow = Blow::HalfClose(self.direction());
                self.strike(kind, at, blow);
            }
            Kind::Reset => self.strike(kind, at, Blow::Reset),
            Kind::Truncate => {
                let blow = Blow::Truncate(self.direction(), self.random.index(1000));
                self.strike(kind, at, blow);
            }
            Kind::KillNode => {
                let down = self.random.between(0, 2 * self.max_ttl);
                self.node_out(kind, (at, down), Act::KillNode, Act::StartNode);
            }
            Kind::StopNode => {
                self.node_out(kind, (at, span), Act::StopNode, Act::ContinueNode);
            }
            Kind::StopClient => {
                // The pause is often long enough for the locks to end before the process continues.
                let span = self.random.between(FAULTS / 50, 2 * self.max_ttl);
                self.process_out(kind, (at, span), Act::StopClient, Act::ContinueClient);
            }
            Kind::KillClient => {
                let span = span / 2;
                self.process_out(kind, (at, span), Act::KillClient, Act::StartClient);
            }
            Kind::Amnesia => self.at_once(kind, Act::Amnesia),
            Kind::LogTail => {
                let bytes = self.random.below(600) + 1;
                self.at_once(kind, |places| Act::LogTail(places, bytes));
            }
            Kind::Flush => self.at_once(kind, Act::Flush),
            Kind::Forget => self.at_once(kind, Act::Forget),
            Kind::Reload => {
                let node = self.random.index(self.nodes);
                self.takes(kind, (node, at, AT_ONCE), Act::Reload(node), None);
            }
            Kind::ScriptFlush => {
                let node = self.random.index(self.nodes);
                self.takes(kind, (node, at, 0), Act::ScriptFlush(node), None);
            }
            Kind::ReplicaOf => {
                // A node becomes a replica only of a node with a smaller index. If two nodes became each other's
                // replicas, first one and then the other, they could get their own old data back.
                let node = 1 + self.random.index(self.nodes - 1);
                let of = self.random.index(node);
                let (at, span) = (at * 2 / 3, span / 2);
                let end = Some(Act::MasterAgain(node));
                self.takes(kind, (node, at, span), Act::ReplicaOf(node, of), end);
            }
            Kind::Promote => {
                let node = self.random.index(self.nodes);
                let span = self.random.between(FAULTS / 10, FAULTS / 5);
                let end = Some(Act::Promote(node));
                self.takes(kind, (node, at / 2, span), Act::Follow(node), end);
            }
            Kind::Evict => {
                let node = self.random.index(self.nodes);
                let end = Some(Act::NoEviction(node));
                self.takes(kind, (node, at, span), Act::Evict(node), end);
            }
            Kind::Drift => self.drift(kind, at),
            Kind::Jump => self.jump(kind, at),
            Kind::MasterStops | Kind::MasterCutOff | Kind::MasterKilled => self.failover(kind),
        }
    }

    /// Draws a fault that makes some nodes lose data at the same moment. Leaves out nodes that have another fault then.
    fn at_once(&mut self, kind: Kind, act: impl FnOnce(Places) -> Act) {
        // The loss is in the first half, so that the nodes vote again before the faults end.
        let at = self.random.between(FAULTS / 20, FAULTS / 2);
        let minority = (self.nodes - 1) / 2;
        let wanted = self.random.pick(&[1, 1, minority, minority + 1, self.nodes]);
        let mut places = self.random.some(self.nodes, wanted);
        places.retain(|node| !self.is_out(*node, at, AT_ONCE));
        if !places.is_empty() {
            self.nodes_out.extend(places.iter().map(|node| (*node, at, at + AT_ONCE)));
            self.event(at, Some(kind), act(places));
        }
    }

    /// Adds the beginning and the end of a fault of one node, unless the node has another fault at that time.
    fn takes(
        &mut self,
        kind: Kind,
        (node, at, span): (usize, Time, Time),
        begin: Act,
        end: Option<Act>,
    ) {
        let span = span + AT_ONCE;
        if self.is_out(node, at, span) || at + span > FAULTS {
            return;
        }
        self.nodes_out.push((node, at, at + span));
        self.event(at, Some(kind), begin);
        if let Some(end) = end {
            self.event(at + span - AT_ONCE, None, end);
        }
    }

    fn is_out(&self, node: usize, at: Time, span: Time) -> bool {
        self.nodes_out.iter().any(|out| out.0 == node && overlap(out, at, span))
    }

    /// Lets a node's clock jump once by at most two milliseconds, and later run up to half a percent fast or slow. A
    /// second jump within the same ttl could exceed the drift that the protocol tolerates.
    fn drift(&mut self, kind: Kind, at: Time) {
        let node = self.random.index(self.nodes);
        if self.events.iter().any(|event| matches!(event.act, Act::Step(other, _) if other == node))
        {
            return;
        }
        let by = self.random.between(-1900 * US, 1900 * US);
        self.event(at, Some(kind), Act::Step(node, by));
        let ppm = i64::try_from(self.random.below(9801)).unwrap_or(0) - 4900;
        let later = self.random.between(at, FAULTS);
        self.event(later, None, Act::Run(node, ppm));
    }

    fn jump(&mut self, kind: Kind, at: Time) {
        let two = 2 * self.quorum > self.nodes + 1;
        let count = if two { self.random.pick(&[1, 2]) } else { 1 + self.random.index(self.nodes) };
        self.jumped = self.random.some(self.nodes, count);
        for node in self.jumped.clone() {
            let by = self.random.pick(&[SECOND, 10 * SECOND, 600 * SECOND, 3600 * SECOND]);
            let by = if self.random.coin() { by } else { -by };
            self.event(at, Some(kind), Act::Step(node, by));
            if by < 0 {
                // A clock that was set back prolongs earlier locks. It is set right at the end, so that these locks
                // expire.
                self.event(FAULTS - 1, None, Act::SetRight(node));
            }
        }
    }

    fn event(&mut self, at: Time, begins: Option<Kind>, act: Act) {
        self.events.push(Event { at, begins, act });
    }

    fn weather(&mut self, kind: Kind, (at, span): (Time, Time), traffic: Traffic) {
        let ways = self.ways();
        let directions = match self.random.below(3) {
            0 => vec![Direction::ToServer],
            1 => vec![Direction::ToClient],
            _ => vec![Direction::ToServer, Direction::ToClient],
        };
        self.event(at, Some(kind), Act::Set(ways.clone(), directions.clone(), traffic));
        self.event(at + span, None, Act::Set(ways, directions, Traffic::Open));
    }

    fn strike(&mut self, kind: Kind, at: Time, blow: Blow) {
        let ways = self.ways();
        self.event(at, Some(kind), Act::Strike(ways, blow));
    }

    fn direction(&mut self) -> Direction {
        self.random.pick(&[Direction::ToServer, Direction::ToClient])
    }

    /// Draws the affected connections: of one process or all, to one node, a minority, a majority or all nodes.
    fn ways(&mut self) -> Ways {
        let processes = if self.random.coin() { PROCESSES } else { 1 };
        let minority = (self.nodes - 1) / 2;
        let nodes = self.random.pick(&[1, minority, minority + 1, self.nodes]);
        let processes = self.random.some(PROCESSES, processes);
        Ways { processes, nodes: self.random.some(self.nodes, nodes) }
    }

    /// Stops a node, but never a majority at a time, because then no client could get a lock.
    fn node_out(
        &mut self,
        kind: Kind,
        (at, span): (Time, Time),
        begin: fn(usize) -> Act,
        end: fn(usize) -> Act,
    ) {
        let node = self.random.index(self.nodes);
        let at_once = self.nodes_out.iter().filter(|out| overlap(out, at, span));
        if at_once.clone().any(|out| out.0 == node) || at_once.count() >= (self.nodes - 1) / 2 {
            return;
        }
        self.nodes_out.push((node, at, at + span));
        self.event(at, Some(kind), begin(node));
        self.event(at + span, None, end(node));
    }

    fn process_out(
        &mut self,
        kind: Kind,
        (at, span): (Time, Time),
        begin: fn(usize) -> Act,
        end: fn(usize) -> Act,
    ) {
        let process = self.random.index(PROCESSES);
        let mut outs = self.processes_out.iter().filter(|out| out.0 == process);
        if outs.any(|out| overlap(out, at, span)) {
            return;
        }
        self.processes_out.push((process, at, at + span));
        self.event(at, Some(kind), begin(process));
        self.event(at + span, None, end(process));
    }
}

fn overlap((_, from, to): &(usize, Time, Time), at: Time, span: Time) -> bool {
    at <= *to && *from <= at + span
}

/// Converts a span of nanoseconds, which must not be negative, into a `Duration`.
pub(crate) fn nanos(span: Time) -> std::time::Duration {
    std::time::Duration::from_nanos(span.unsigned_abs())
}

trait Some {
    /// Draws `wanted` different indexes below `count`, in ascending order.
    fn some(&mut self, count: usize, wanted: usize) -> Places;
}

impl Some for Random {
    fn some(&mut self, count: usize, wanted: usize) -> Places {
        let mut all: Places = (0..count).collect();
        while all.len() > wanted {
            all.remove(self.index(all.len()));
        }
        all
    }
}

#[cfg(test)]
mod tests;
