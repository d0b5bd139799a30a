//! What is done to whom, and when: drawn from a seed, before anything is started.
//!
//! Swarm style: a seed uses some kinds of faults and leaves the others out, so that rare mixtures
//! come about. Two kinds are not left to chance: six seeds in a row use all twelve.

use std::fmt;

use quorlock_servers::proxy::{Blow, Direction, Way};
use quorlock_sim::Random;
use quorlock_sim::time::{MS, SECOND, Time};

/// How many worker processes there are.
pub(crate) const PROCESSES: usize = 3;

/// How long faults are injected, before all of them are healed.
const FAULTS: Time = 5 * SECOND;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Delay,
    Hold,
    HoldOld,
    Drop,
    HalfClose,
    Reset,
    Truncate,
    Split,
    KillNode,
    StopNode,
    StopClient,
    KillClient,
    /// Not a fault that quorlock withstands: `--negative` alone does it.
    Amnesia,
}

/// All that is drawn from.
pub(crate) const KINDS: [Kind; 12] = [
    Kind::Delay,
    Kind::KillNode,
    Kind::Hold,
    Kind::StopClient,
    Kind::HoldOld,
    Kind::Reset,
    Kind::Drop,
    Kind::KillClient,
    Kind::HalfClose,
    Kind::StopNode,
    Kind::Truncate,
    Kind::Split,
];

/// So many seeds in a row use every kind.
pub(crate) const SEEDS_FOR_ALL: u64 = KINDS.len() as u64 / 2;

/// Some nodes or processes, by their places.
pub(crate) type Places = Vec<usize>;

/// Which connections: those of these processes to these nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ways {
    pub(crate) processes: Places,
    pub(crate) nodes: Places,
}

/// Something that is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Set(Ways, Vec<Direction>, Way),
    Strike(Ways, Blow),
    Release(Ways),
    KillNode(usize),
    /// Not before all that it had granted is over.
    StartNode(usize),
    StopNode(usize),
    ContinueNode(usize),
    StopClient(usize),
    ContinueClient(usize),
    KillClient(usize),
    StartClient(usize),
    /// These nodes lose their data and are back at once.
    Amnesia(Places),
}

/// An act and its time, counted from the start of the round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) at: Time,
    /// The fault that it begins; nothing where it ends one.
    pub(crate) begins: Option<Kind>,
    pub(crate) act: Act,
}

/// A round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) nodes: usize,
    pub(crate) max_ttl: Time,
    /// Locks are believed in until the very last moment: no margin, and no drift between clocks that
    /// are one clock.
    pub(crate) exact: bool,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) events: Vec<Event>,
    pub(crate) faults: Time,
}

impl Plan {
    /// The round of a seed.
    pub(crate) fn draw(seed: u64) -> Self {
        let mut random = Random::new(seed, 0);
        let nodes = if random.percent(40) { 3 } else { 5 };
        let max_ttl = random.pick(&[600 * MS, SECOND, 1500 * MS]);
        let exact = random.coin();
        let forced = usize::try_from(seed % SEEDS_FOR_ALL).unwrap_or(0) * 2;
        let mut kinds = KINDS[forced..forced + 2].to_vec();
        for kind in KINDS {
            if !kinds.contains(&kind) && random.percent(35) {
                kinds.push(kind);
            }
        }
        let mut draw = Draw {
            random,
            nodes,
            max_ttl,
            events: Vec::new(),
            nodes_out: Vec::new(),
            processes_out: Vec::new(),
        };
        for &kind in &kinds {
            for _ in 0..2 + draw.random.below(4) {
                draw.fault(kind);
            }
        }
        let mut events = draw.events;
        events.sort_by_key(|event| event.at);
        Self { seed, nodes, max_ttl, exact, kinds, events, faults: FAULTS }
    }

    /// What must go wrong: a majority forgets, again and again, what it has granted.
    pub(crate) fn negative(seed: u64) -> Self {
        let (nodes, max_ttl) = (5, 1500 * MS);
        let mut random = Random::new(seed, 0);
        let begins = Some(Kind::Amnesia);
        let amnesia = |place| {
            let forgetful = random.some(nodes, nodes / 2 + 1);
            Event { at: SECOND + 500 * MS * place, begins, act: Act::Amnesia(forgetful) }
        };
        let events = (0..6).map(amnesia).collect();
        let kinds = vec![Kind::Amnesia];
        Self { seed, nodes, max_ttl, exact: false, kinds, events, faults: FAULTS }
    }

    /// How long a node that has lost its data stays down: everything that it had granted is over by
    /// every clock that is right to 1 %, and all timers are a little late.
    pub(crate) fn down_time(&self) -> Time {
        over(self.max_ttl)
    }
}

/// A ttl is over after this time by anybody's clock.
pub(crate) fn over(ttl: Time) -> Time {
    ttl + ttl / 100 + 10 * MS
}

struct Draw {
    random: Random,
    nodes: usize,
    max_ttl: Time,
    events: Vec<Event>,
    /// Which nodes do not work, from when to when.
    nodes_out: Vec<(usize, Time, Time)>,
    processes_out: Vec<(usize, Time, Time)>,
}

impl Draw {
    fn fault(&mut self, kind: Kind) {
        let at = self.random.between(FAULTS / 20, FAULTS * 9 / 10);
        let span = self.random.between(FAULTS / 50, FAULTS * 2 / 5);
        match kind {
            Kind::Delay => {
                let delay = self.random.between(MS, 150 * MS);
                self.weather(kind, (at, span), Way::Delay(nanos(delay)));
            }
            Kind::Hold => self.weather(kind, (at, span), Way::Hold),
            Kind::Drop => self.weather(kind, (at, span), Way::Drop),
            Kind::Split => {
                let piece = 1 + self.random.index(40);
                self.weather(kind, (at, span), Way::Split(piece));
            }
            Kind::HoldOld => {
                // Long enough for clients to make new connections beside the old ones.
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
                let down = over(self.max_ttl) + self.random.between(0, FAULTS / 10);
                self.node_out(kind, (at, down), Act::KillNode, Act::StartNode);
            }
            Kind::StopNode => {
                self.node_out(kind, (at, span), Act::StopNode, Act::ContinueNode);
            }
            Kind::StopClient => {
                // Often for so long that its locks are over when it goes on.
                let span = self.random.between(FAULTS / 50, 2 * self.max_ttl);
                self.process_out(kind, (at, span), Act::StopClient, Act::ContinueClient);
            }
            Kind::KillClient => {
                let span = span / 2;
                self.process_out(kind, (at, span), Act::KillClient, Act::StartClient);
            }
            Kind::Amnesia => {}
        }
    }

    fn event(&mut self, at: Time, begins: Option<Kind>, act: Act) {
        self.events.push(Event { at, begins, act });
    }

    fn weather(&mut self, kind: Kind, (at, span): (Time, Time), way: Way) {
        let ways = self.ways();
        let directions = match self.random.below(3) {
            0 => vec![Direction::ToServer],
            1 => vec![Direction::ToClient],
            _ => vec![Direction::ToServer, Direction::ToClient],
        };
        self.event(at, Some(kind), Act::Set(ways.clone(), directions.clone(), way));
        self.event(at + span, None, Act::Set(ways, directions, Way::Open));
    }

    fn strike(&mut self, kind: Kind, at: Time, blow: Blow) {
        let ways = self.ways();
        self.event(at, Some(kind), Act::Strike(ways, blow));
    }

    fn direction(&mut self) -> Direction {
        self.random.pick(&[Direction::ToServer, Direction::ToClient])
    }

    /// One process or all, with one node, a minority, a majority or all.
    fn ways(&mut self) -> Ways {
        let processes = if self.random.coin() { PROCESSES } else { 1 };
        let minority = (self.nodes - 1) / 2;
        let nodes = self.random.pick(&[1, minority, minority + 1, self.nodes]);
        let processes = self.random.some(PROCESSES, processes);
        Ways { processes, nodes: self.random.some(self.nodes, nodes) }
    }

    /// Never a majority at the same time: what it had granted would still be kept, but nobody could
    /// be granted anything.
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

/// A span that was drawn; none is negative.
pub(crate) fn nanos(span: Time) -> std::time::Duration {
    std::time::Duration::from_nanos(span.unsigned_abs())
}

/// Draws places.
trait Some {
    /// So many of `count`, in order.
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

impl Kind {
    /// What it is called, in a table of a width.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Delay => "delay",
            Self::Hold => "hold, then release",
            Self::HoldOld => "hold old connections only",
            Self::Drop => "drop",
            Self::HalfClose => "half-close",
            Self::Reset => "reset",
            Self::Truncate => "truncate",
            Self::Split => "split bytes",
            Self::KillNode => "kill -9 a node",
            Self::StopNode => "SIGSTOP a node",
            Self::StopClient => "SIGSTOP a client",
            Self::KillClient => "kill -9 a client",
            Self::Amnesia => "amnesia of a majority",
        }
    }
}

/// Node a, b, c …
pub(crate) fn node_name(place: usize) -> char {
    ('a'..='z').nth(place).unwrap_or('?')
}

fn nodes(places: &Places) -> String {
    places.iter().map(|&place| node_name(place)).map(String::from).collect::<Vec<_>>().join(" ")
}

impl fmt::Display for Ways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let processes: Vec<_> = self.processes.iter().map(|place| format!("p{place}")).collect();
        write!(f, "{} and nodes {}", processes.join(" "), nodes(&self.nodes))
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set(ways, directions, way) => {
                let there = match directions[..] {
                    [Direction::ToServer] => "commands",
                    [Direction::ToClient] => "answers",
                    _ => "commands and answers",
                };
                write!(f, "between {ways}: {there} ")?;
                match way {
                    Way::Open => write!(f, "pass again"),
                    Way::Delay(delay) => write!(f, "are late by {delay:.0?}"),
                    Way::Hold => write!(f, "are held"),
                    Way::Drop => write!(f, "are dropped"),
                    Way::Split(piece) => write!(f, "come in pieces of {piece} bytes"),
                }
            }
            Self::Strike(ways, blow) => write!(f, "connections between {ways}: {blow:?}"),
            Self::Release(ways) => write!(f, "connections between {ways}: what was held comes"),
            Self::KillNode(node) => write!(f, "node {}: kill -9", node_name(*node)),
            Self::StartNode(node) => write!(f, "node {}: started, empty", node_name(*node)),
            Self::StopNode(node) => write!(f, "node {}: SIGSTOP", node_name(*node)),
            Self::ContinueNode(node) => write!(f, "node {}: SIGCONT", node_name(*node)),
            Self::StopClient(process) => write!(f, "process p{process}: SIGSTOP"),
            Self::ContinueClient(process) => write!(f, "process p{process}: SIGCONT"),
            Self::KillClient(process) => write!(f, "process p{process}: kill -9"),
            Self::StartClient(process) => write!(f, "process p{process}: a new one"),
            Self::Amnesia(places) => {
                write!(f, "nodes {}: kill -9, and started at once, empty", nodes(places))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_schedule() {
        for seed in 0..50 {
            assert_eq!(Plan::draw(seed), Plan::draw(seed));
            assert_ne!(Plan::draw(seed).events, Plan::draw(seed + 1).events);
            assert_eq!(Plan::negative(seed), Plan::negative(seed));
        }
    }

    #[test]
    fn six_seeds_in_a_row_use_every_kind() {
        for from in 0..200 {
            let used: Vec<Kind> = (from..from + SEEDS_FOR_ALL)
                .flat_map(|seed| Plan::draw(seed).events)
                .filter_map(|event| event.begins)
                .collect();
            assert!(KINDS.iter().all(|kind| used.contains(kind)), "seeds from {from}");
        }
    }

    /// The assumptions under which mutual exclusion is promised: who has lost its data stays down,
    /// and never is a majority down or stopped.
    #[test]
    fn what_is_drawn_stays_within_the_assumptions() {
        for seed in 0..500 {
            let plan = Plan::draw(seed);
            let (mut out, mut killed) = (Vec::new(), vec![None; plan.nodes]);
            for Event { at, act, .. } in &plan.events {
                match act {
                    Act::KillNode(node) => {
                        killed[*node] = Some(*at);
                        out.push(*node);
                    }
                    Act::StartNode(node) => {
                        let since = killed[*node].take().expect("only what was killed");
                        assert!(at - since >= plan.down_time(), "seed {seed}");
                        out.retain(|other| other != node);
                    }
                    Act::StopNode(node) => out.push(*node),
                    Act::ContinueNode(node) => out.retain(|other| other != node),
                    Act::Amnesia(_) => panic!("seed {seed}"),
                    _ => {}
                }
                assert!(out.len() <= (plan.nodes - 1) / 2, "seed {seed}");
            }
        }
    }
}
