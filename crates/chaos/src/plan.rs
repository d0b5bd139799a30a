//! The faults of a round and their times, drawn from a seed before anything starts.
//!
//! As in swarm testing, a seed uses some kinds of faults and leaves out the others, so that rare combinations occur.
//! Each seed includes all kinds of one of three fixed lists, the next seed those of the next list. So three consecutive
//! seeds use all kinds.

mod draw;

use quorlock_servers::proxy::Distance;
use quorlock_sim::Random;
use quorlock_sim::time::{MS, SECOND, Time};

use self::draw::{Draw, some};
use crate::args::RoundKind;
use crate::clock::nanos;
use crate::commands::TTL;
use crate::faults::{AROUND_RUN, Act, Event, Kind, OF_RUN, Strike};

pub(crate) const PROCESSES: usize = 3;

/// The time for which faults of servers, connections and worker processes are injected.
const FAULTS: Time = 7 * SECOND;

/// All kinds of faults. A seed always uses one of these lists. Loss of data and clock jumps are in different lists,
/// because the order of fencing tokens depends on the clocks after a loss of counters.
pub(crate) const KINDS: [&[Kind]; 3] = [
    &[
        Kind::DELAY,
        Kind::HOLD,
        Kind::STOP_CLIENT,
        Kind::KILL_NODE,
        Kind::AMNESIA,
        Kind::FLUSH,
        Kind::FORGET,
    ],
    &[
        Kind::HOLD_OLD_CONNECTIONS,
        Kind::RESET,
        Kind::KILL_CLIENT,
        Kind::LOG_TAIL,
        Kind::REPLICA_OF,
        Kind::PROMOTE,
        Kind::DRIFT,
    ],
    &[
        Kind::DROP,
        Kind::HALF_CLOSE,
        Kind::TRUNCATE,
        Kind::SPLIT,
        Kind::STOP_NODE,
        Kind::RELOAD,
        Kind::SCRIPT_FLUSH,
        Kind::EVICT,
        Kind::JUMP,
    ],
];

/// Together, this number of consecutive seeds uses every kind of fault.
pub(crate) const SEEDS_FOR_ALL: u64 = KINDS.len() as u64;

/// The ways in which a master fails. A round with replicas uses the one with the index seed modulo 3.
pub(crate) const FAILOVERS: [Kind; 3] =
    [Kind::MASTER_STOPS, Kind::MASTER_CUT_OFF, Kind::MASTER_KILLED];

/// Kinds of faults that a round with replicas may inject in addition to failovers.
const BESIDE_FAILOVERS: [Kind; 9] = [
    Kind::DELAY,
    Kind::HOLD,
    Kind::HOLD_OLD_CONNECTIONS,
    Kind::DROP,
    Kind::HALF_CLOSE,
    Kind::RESET,
    Kind::SPLIT,
    Kind::STOP_CLIENT,
    Kind::KILL_CLIENT,
];

/// The faults of a master behind Sentinels, one per failover, in turn.
pub(crate) const SENTINEL_FAULTS: [Kind; 4] =
    [Kind::MASTER_STOPS, Kind::SENTINEL_FAILOVER, Kind::MASTER_KILLED, Kind::MASTER_CUT_OFF];

/// The time for which faults of runs that hold a lock are injected.
const FAULTS_OF_HOLDERS: Time = 20 * SECOND;

/// The longest round trip is this part of the ttl, so that the longest node timeout, a fifth of the ttl, has time for
/// four round trips.
const PART_OF_TTL: Time = 20;

/// The parts of the machine and of `quorlock` that not every run has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Abilities {
    /// Whether the servers' clocks can be moved.
    pub(crate) clocks: bool,
    /// Whether the wall clock of `quorlock run` can be set: only a special build can.
    pub(crate) steps: bool,
    /// Whether `quorlock` has the commands `acquire`, `extend` and `release`.
    pub(crate) leases: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RoundPlan {
    pub(crate) seed: u64,
    pub(crate) kind: RoundKind,
    pub(crate) nodes: usize,
    pub(crate) quorum: usize,
    pub(crate) max_ttl: Time,
    /// Whether locks are valid for their whole ttl. This is safe without a margin for clock drift, because all
    /// processes of a round use one clock.
    pub(crate) exact: bool,
    pub(crate) guarded: bool,
    /// Whether workers that know only one server count its vote only with its replica.
    pub(crate) acknowledged: bool,
    /// The kinds of faults of servers, connections and worker processes.
    pub(crate) kinds: Vec<Kind>,
    pub(crate) events: Vec<Event>,
    /// The time for which faults are injected.
    pub(crate) faults: Time,
    /// Whether the faults are healed at the end and recovery is checked.
    pub(crate) heals: bool,
    /// The reason why the round does not promise mutual exclusion; `None` if it does. All other promises still hold.
    pub(crate) outside: Option<&'static str>,
}

impl RoundPlan {
    /// A round without faults.
    fn new(
        kind: RoundKind,
        seed: u64,
        (nodes, quorum, max_ttl): (usize, usize, Time),
        kinds: Vec<Kind>,
    ) -> Self {
        Self {
            seed,
            kind,
            nodes,
            quorum,
            max_ttl,
            exact: false,
            guarded: true,
            acknowledged: true,
            kinds,
            events: Vec::new(),
            faults: FAULTS,
            heals: true,
            outside: None,
        }
    }

    /// Draws the round of a seed.
    pub(crate) fn draw(kind: RoundKind, seed: u64, can: Abilities) -> Self {
        match kind {
            RoundKind::Library => Self::library(seed, can.clocks),
            RoundKind::Commands => Self::commands(seed, can),
            RoundKind::Replicas => Self::replicated(seed),
            RoundKind::Sentinel => Self::sentinel(SENTINEL_FAULTS.len(), 2 * SECOND),
        }
    }

    fn library(seed: u64, clocks: bool) -> Self {
        let mut random = Random::new(seed, 0);
        let forced = KINDS[usize::try_from(seed % SEEDS_FOR_ALL).unwrap_or(0)];
        let jumps = clocks && forced.contains(&Kind::JUMP);
        let mut kinds = forced.to_vec();
        for kind in KINDS.concat() {
            let may = kind != Kind::JUMP && !(jumps && kind.loses_data());
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
        let size = (nodes, quorum, random.pick(&[400 * MS, 700 * MS, 900 * MS]));
        let exact = random.coin() && !kinds.contains(&Kind::DRIFT);
        let draw = Draw::of(random, size, &kinds);
        let vanish = 2 * quorum - nodes - 1;
        let outside = (draw.jumped.len() > vanish)
            .then_some("clocks are set wrong on more nodes than votes may vanish");
        let events = draw.events;
        Self { exact, events, outside, ..Self::new(RoundKind::Library, seed, size, kinds) }
    }

    /// Draws a round with processes of the command line. In half of these rounds, servers and connections have no
    /// faults, because such faults could hide the effects of faults of these processes. Server clocks do not jump,
    /// because the round promises mutual exclusion.
    fn commands(seed: u64, can: Abilities) -> Self {
        let mut random = Random::new(seed, 2);
        let mut kinds = KINDS.concat();
        kinds.retain(|kind| {
            let is_other = matches!(*kind, Kind::STOP_CLIENT | Kind::KILL_CLIENT | Kind::JUMP);
            seed % 2 == 1 && !is_other && (can.clocks || !kind.moves_clock()) && random.percent(30)
        });
        if seed % 2 == 1 && kinds.is_empty() {
            kinds.push(Kind::DELAY);
        }
        let nodes = if random.percent(60) { 3 } else { 5 };
        let size = (nodes, nodes / 2 + 1, TTL);
        let mut events = Draw::of(random, size, &kinds).events;
        events.extend(faults_of_holders(seed, can));
        events.sort_by_key(|event| event.at);
        let faults = FAULTS_OF_HOLDERS;
        Self { events, faults, ..Self::new(RoundKind::Commands, seed, size, kinds) }
    }

    /// Draws a round in which each node has a replica. Most of these rounds have one node.
    fn replicated(seed: u64) -> Self {
        let mut random = Random::new(seed, 3);
        let mut kinds = vec![FAILOVERS[usize::try_from(seed % 3).unwrap_or(0)]];
        kinds.extend(BESIDE_FAILOVERS.into_iter().filter(|_| random.percent(15)));
        let nodes = if random.percent(70) { 1 } else { 3 };
        let size = (nodes, nodes / 2 + 1, random.pick(&[400 * MS, 700 * MS, 900 * MS]));
        let exact = random.coin();
        let events = Draw::of(random, size, &kinds).events;
        Self { exact, events, ..Self::new(RoundKind::Replicas, seed, size, kinds) }
    }

    /// A round with a master and its replica behind Sentinels. The faults follow one another without fixed times, and
    /// there are twice as many as failovers, because a failover cannot be checked if the Sentinels do one by themselves.
    pub(crate) fn sentinel(failovers: usize, max_ttl: Time) -> Self {
        let kinds = SENTINEL_FAULTS.to_vec();
        let fault = |kind: &Kind| Event { at: 0, begins: Some(*kind), act: Act::BySentinel(*kind) };
        let events = kinds.iter().cycle().map(fault).take(2 * failovers).collect();
        let base = Self::new(RoundKind::Sentinel, 0, (2, 1, max_ttl), kinds);
        Self { events, faults: SECOND, heals: false, ..base }
    }

    /// Draws a round in which a majority repeatedly loses its data. Without the restart guard (`guarded`), a lock must
    /// get two holders.
    pub(crate) fn negative(seed: u64, guarded: bool) -> Self {
        let (nodes, quorum, max_ttl) = (5, 3, 1500 * MS);
        let mut random = Random::new(seed, 0);
        let begins = Some(Kind::AMNESIA);
        let amnesia = |place| {
            let forgetful = some(&mut random, nodes, quorum);
            Event { at: SECOND + 500 * MS * place, begins, act: Act::Amnesia(forgetful) }
        };
        let events = (0..6).map(amnesia).collect();
        let size = (nodes, quorum, max_ttl);
        let base = Self::new(RoundKind::Library, seed, size, vec![Kind::AMNESIA]);
        Self { guarded, events, faults: 5 * SECOND, heals: false, ..base }
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

    /// The number of groups of processes. Each group has its own proxy to each node.
    pub(crate) fn machines(&self) -> usize {
        if self.kind == RoundKind::Sentinel { 1 } else { PROCESSES }
    }

    /// Whether each node is a master with a replica, which must confirm each vote.
    pub(crate) fn has_replicas(&self) -> bool {
        self.kind == RoundKind::Replicas
    }

    /// The round trip to each node. Every fourth seed has distant nodes, except with replicas.
    pub(crate) fn round_trips(&self) -> Vec<Time> {
        let mut random = Random::new(self.seed, 4);
        let may_be_distant = matches!(self.kind, RoundKind::Library | RoundKind::Commands);
        let is_distant = self.seed % 4 == 3 && self.guarded && may_be_distant;
        let mut round_trip = || match is_distant && random.percent(70) {
            true => random.between(MS, self.max_ttl / PART_OF_TTL),
            false => 0,
        };
        (0..self.nodes).map(|_| round_trip()).collect()
    }

    pub(crate) fn distance(&self, node: usize) -> Distance {
        let round_trip = self.round_trips().get(node).copied().unwrap_or_default();
        Distance::of_round_trip(nanos(round_trip))
    }
}

/// The time after which a lock of this ttl has expired by every clock, even by a slow one.
pub(crate) fn over(ttl: Time) -> Time {
    ttl + ttl / 100 + 10 * MS
}

/// Draws every fault of a run that holds a lock at least once per round. `StallReader` has no time of its own: whether a
/// run's events are read is drawn when the run starts.
fn faults_of_holders(seed: u64, can: Abilities) -> Vec<Event> {
    let mut random = Random::new(seed, 3);
    let mut events = Vec::new();
    for fault in OF_RUN.into_iter().chain(AROUND_RUN) {
        if fault == Kind::KILL_BOTH && !can.leases || fault.is_step() && !can.steps {
            continue;
        }
        for _ in 0..1 + random.below(2) + 2 * u64::from(fault.is_telling()) {
            let long = fault == Kind::STOP_BOTH || random.coin();
            let at = random.between(FAULTS_OF_HOLDERS / 20, FAULTS_OF_HOLDERS * 17 / 20);
            let (shortest, longest) = if long { (TTL, 2 * TTL) } else { (50 * MS, TTL) };
            let strike = Strike {
                fault,
                span: random.between(shortest, longest),
                step: random.pick(&[60 * SECOND, 60 * SECOND, TTL, TTL / 2, -30 * SECOND]),
                word: random.below(u64::MAX),
            };
            events.push(Event { at, begins: Some(fault), act: Act::ToHolder(strike) });
        }
    }
    events
}

#[cfg(test)]
mod tests;
