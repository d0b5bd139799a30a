//! The plan of a run: the faults, the number of nodes and clients, the times.
//!
//! Swarm testing: each seed draws a subset of the faults. A run with every fault at once never reaches the
//! states that a single fault reaches.

mod bounds;
mod distances;
mod kinds;
mod later;
mod leases;
mod replicated;

use std::time::Duration;

use quorlock_core::marker::Cluster;
use quorlock_core::{
    Key, NodeId, NodePipeline, Quorum, RestartGuard, Rules, Timing, TimingOptions, Words,
};

pub use self::distances::Distances;
pub use self::kinds::Kinds;
pub use self::later::{Later, Modes};
pub use self::leases::Leases;
use crate::random::Random;
use crate::time::{MS, SECOND, Time, US, duration};

/// The plan of one run. All of it follows from the seed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// The callers and the locks that they want.
    pub load: Load,
    /// The nodes.
    pub servers: Servers,
    /// The connections between clients and nodes.
    pub wiring: Wiring,
    /// The rates of the clocks.
    pub clocks: Clocks,
    /// The faults.
    pub faults: Faults,
    /// Faults and settings that were added after the other fields. Separate random streams draw them, so that each seed
    /// still draws the same values for the other fields.
    pub later: Later,
    /// The assumption of mutual exclusion that the run violates on purpose, if any.
    pub outside: Option<Outside>,
    /// How the clients protect themselves against nodes that restart without their votes.
    pub guard: RestartGuard,
    /// The only invariant to check; `None`: all.
    pub only: Option<String>,
}

/// The callers and the locks that they want.
#[derive(Clone, Debug)]
pub struct Load {
    /// The number of clients at the start.
    pub clients: usize,
    /// The number of callers per client.
    pub callers: usize,
    /// The number of resources that callers contend for.
    pub resources: usize,
    /// The timings (ttl, margin and timeouts) of locks. Each call takes one of these timings.
    pub timings: Vec<Timing>,
    /// The longest ttl.
    pub max_ttl: Time,
    /// The percentage of calls that want a fencing token.
    pub fenced: u64,
}

/// The nodes and their peculiarities.
#[derive(Clone, Debug)]
pub struct Servers {
    /// The number of nodes, and the size of a quorum.
    pub quorum: Quorum,
    /// At the start the nodes have markers (which show that no data was lost) and have been running for a long time.
    pub prepared: bool,
    /// The first two node names in the list lead to the same server.
    pub duplicates: bool,
    /// The nodes that may lose votes before their expiry. The assumptions allow 2Q − N − 1 of N nodes, with quorum Q.
    pub lossy: Vec<usize>,
    /// The nodes that stay broken until the end of the run: a minority.
    pub down_to_the_end: Vec<usize>,
}

/// Delays on connections, and the times after which connections are given up.
#[derive(Clone, Debug)]
pub struct Wiring {
    /// The usual delay in one direction.
    pub one_way: Time,
    /// The distances of the nodes, in addition to the usual delay.
    pub distances: Distances,
    /// An additional delay, and the percentage of messages that have it.
    pub spikes: (Time, u64),
    /// The longest time for which commands of a broken connection may still arrive.
    pub zombie_for: Time,
    /// The time after which a client suspends a node that sends nothing: commands to the node then fail unsent.
    pub silence: Time,
    /// The time from the suspension of a silent node until its connection is replaced.
    pub replace_after: Time,
    /// The largest number of commands in one batch.
    pub batch_max: usize,
}

/// The rates of the clocks, as the deviation from true time in parts per million; positive is fast.
#[derive(Clone, Debug)]
pub struct Clocks {
    /// The rates of the clients' clocks, in the order in which the clients start.
    pub client_ppm: Vec<i64>,
    /// The rates of the nodes' clocks.
    pub node_ppm: Vec<i64>,
    /// Clients' wall clocks agree with the nodes' wall clocks.
    pub sober: bool,
}

/// The faults: their kinds, frequency and duration.
#[derive(Clone, Debug)]
pub struct Faults {
    /// The kinds of faults.
    pub kinds: Vec<Fault>,
    /// The mean time between two faults of a kind.
    pub every: Time,
    /// The duration of the phase with faults.
    pub last_for: Time,
}

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Connections break. Messages in flight are lost or arrive later.
    Resets,
    /// Messages are held back for a while, in one direction or both.
    Partitions,
    /// A node's process is paused. When it continues, it carries out the commands that arrived meanwhile.
    Freezes,
    /// A node is killed. It restarts with its data, or, after the longest ttl, without its data.
    Crashes,
    /// A node refuses commands: read-only, loading, out of memory, busy. Or a proxy garbles its answers.
    Refusals,
    /// A client's process is paused.
    Pauses,
    /// A client's process is paused between reading the clock and acting on it.
    Stalls,
    /// A client's machine is suspended, or its virtual machine paused.
    Suspends,
    /// A client's wall clock jumps.
    WallSteps,
    /// A client is killed, and a new one starts.
    ClientCrashes,
    /// Commands arrive twice.
    Duplicates,
    /// Another program stores a value under the key of a lock.
    Occupants,
    /// The lossy nodes lose keys: by a flush, a deletion by hand, or a restart without data.
    Losses,
    /// Node clocks jump back, or ahead by less than the assumptions allow.
    NodeSteps,
    /// Nodes restart with all of their data, a part, or none. They are flushed, also between two commands of a batch,
    /// become replicas and masters again, and start to evict keys. Only runs with the restart guard have these faults.
    Distrust,
}

impl Fault {
    /// All kinds of faults.
    pub const ALL: [Self; 15] = [
        Self::Resets,
        Self::Partitions,
        Self::Freezes,
        Self::Crashes,
        Self::Refusals,
        Self::Pauses,
        Self::Stalls,
        Self::Suspends,
        Self::WallSteps,
        Self::ClientCrashes,
        Self::Duplicates,
        Self::Occupants,
        Self::Losses,
        Self::NodeSteps,
        Self::Distrust,
    ];

    /// The number of kinds that can occur in any plan: all except `Distrust`, which needs the restart guard.
    const COMMON: usize = Self::ALL.len() - 1;
}

/// The assumption of mutual exclusion that a run violates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outside {
    /// Nodes are killed without their data and started again at once.
    Amnesia,
    /// More nodes lose votes than the assumptions allow.
    Losses,
    /// Clocks run faster or slower than assumed, or jump ahead by more than assumed.
    Clocks,
}

/// Half of the assumed error of clock rates. Nodes' clocks may be wrong by one half, clients' clocks by the other.
pub(crate) const HALF_DRIFT_PPM: i64 = 5_000;

impl Plan {
    /// Draws the plan of a seed.
    pub fn draw(seed: u64) -> Self {
        // A random stream of its own: more draws from the first stream would change the plan of every seed.
        let mut more = Random::new(seed, 7);
        let guard = match more.below(100) {
            0..40 => RestartGuard::Strict,
            40..45 => RestartGuard::Observe,
            _ => RestartGuard::Off,
        };
        let mut plan = Self::draw_guarded(seed, guard);
        plan.servers.prepared = more.percent(70);
        plan.clocks.sober = more.coin();
        plan.load.fenced = if more.percent(40) { more.pick(&[50, 100]) } else { 0 };
        if plan.clocks.sober {
            plan.faults.kinds.retain(|fault| plan.load.fenced == 0 || *fault != Fault::WallSteps);
        }
        if guard == RestartGuard::Strict && more.percent(85) {
            plan.faults.kinds.push(Fault::Distrust);
        }
        plan.servers.duplicates =
            guard == RestartGuard::Strict && plan.servers.quorum.nodes() > 1 && more.percent(3);
        plan.later = Later::draw(&plan);
        if plan.later.kinds.fenced {
            plan.load.fenced = 100;
            plan.faults.kinds.retain(|fault| !plan.clocks.sober || *fault != Fault::WallSteps);
        }
        if plan.later.leases.is_any() {
            // A connection delivers each command once. A repeated one could set a detached lock again.
            plan.faults.kinds.retain(|fault| *fault != Fault::Duplicates);
        }
        let Later { merges, modes, .. } = &plan.later;
        if *merges || !modes.is_empty() {
            plan.faults.kinds.retain(|fault| !matches!(fault, Fault::Distrust | Fault::Losses));
        }
        if *merges {
            // The second node's name will lead to the first node's server. Then the votes of the second node's server
            // are lost, so no other vote may be lost. Until then the first node is absent, so no fault may restart it.
            plan.faults.last_for = plan.faults.last_for.max(30 * SECOND);
            plan.faults.kinds.retain(|fault| !matches!(fault, Fault::Crashes | Fault::Freezes));
            plan.outside = plan.outside.filter(|outside| *outside != Outside::Losses);
            plan.servers.lossy.clear();
        }
        if plan.later.rolls_back {
            // The nodes must be out of their quarantine before the healing begins.
            plan.faults.last_for = plan.faults.last_for.max(4 * plan.quarantine());
        }
        if plan.later.replicated {
            plan.replicate();
        }
        plan
    }

    /// Draws the plan of a seed without restart guard and fencing tokens.
    pub fn draw_plain(seed: u64) -> Self {
        Self::draw_guarded(seed, RestartGuard::Off)
    }

    fn draw_guarded(seed: u64, guard: RestartGuard) -> Self {
        let mut random = Random::new(seed, 0);
        let outside = random
            .percent(37)
            .then(|| random.pick(&[Outside::Amnesia, Outside::Losses, Outside::Clocks]))
            // A strict restart guard protects against `Amnesia`, so a run with both would violate no assumption.
            .filter(|outside| guard != RestartGuard::Strict || *outside != Outside::Amnesia);
        Self::draw_with(seed, outside, guard, &mut random)
    }

    /// Draws a plan in which nodes forget their votes. In some of these runs, two clients must hold one lock.
    pub fn draw_amnesia(seed: u64) -> Self {
        let random = &mut Random::new(seed, 0);
        Self::draw_with(seed, Some(Outside::Amnesia), RestartGuard::Off, random)
    }

    /// The plan of a world that a test controls: no clients, no faults, exact clocks.
    pub(crate) fn by_hand(quorum: Quorum, guard: RestartGuard) -> Self {
        let drawn = Self::draw_plain(0);
        let (lossy, down_to_the_end) = (Vec::new(), Vec::new());
        let (client_ppm, node_ppm) = (vec![0], vec![0; quorum.nodes()]);
        Self {
            load: Load { clients: 0, ..drawn.load },
            servers: Servers { quorum, prepared: true, lossy, down_to_the_end, ..drawn.servers },
            wiring: Wiring {
                batch_max: NodePipeline::BATCH_MAX,
                distances: Distances::default(),
                ..drawn.wiring
            },
            clocks: Clocks { client_ppm, node_ppm, sober: true },
            faults: Faults { kinds: Vec::new(), ..drawn.faults },
            outside: None,
            guard,
            ..drawn
        }
    }

    fn draw_with(
        seed: u64,
        outside: Option<Outside>,
        guard: RestartGuard,
        random: &mut Random,
    ) -> Self {
        let nodes = random.pick(&[1, 2, 3, 3, 3, 4, 5, 5, 5, 6, 7]);
        let majority = nodes / 2 + 1;
        let needed = if random.percent(80) {
            majority
        } else {
            majority + random.index(nodes - majority + 1)
        };
        let quorum = quorum(nodes, needed);
        let ttl = match guard {
            RestartGuard::Off => random.pick(&[100, 150, 300, 500, 1000, 2000]) * MS,
            // The ttl is long compared with the quarantine (the wait of a restarted node), so that runs do more than
            // wait. It is not a whole number of seconds, because servers report their uptime in seconds.
            _ => random.pick(&[900, 1500, 1500, 1900, 1900, 2900]) * MS,
        };
        let (distances, ttl) = Distances::draw(seed, nodes, ttl);
        let one_way = random.pick(&[50 * US, 200 * US, MS, 3 * MS, 10 * MS]).min(ttl / 40);
        let longest = distances.longest();
        // With a few commands for each round trip to a far node, commands would wait for minutes.
        let least = if distances.is_any() { 64 } else { 1 };
        let mut timings = vec![timing(ttl, one_way, longest, random)];
        if random.percent(25) {
            timings.push(timing((ttl / 2).max(100 * MS), one_way, longest, random));
        }
        let chance = random.pick(&[10, 30, 50, 70]);
        let mut faults: Vec<Fault> = Fault::ALL[..Fault::COMMON]
            .iter()
            .copied()
            .filter(|_| random.percent(chance))
            .collect();
        // The assumptions allow this number of nodes to lose votes.
        let spare = 2 * needed - nodes - 1;
        let lossy_count = match outside {
            Some(Outside::Amnesia | Outside::Losses) => {
                if !faults.contains(&Fault::Losses) {
                    faults.push(Fault::Losses);
                }
                nodes
            }
            _ => spare,
        };
        let mut order: Vec<usize> = (0..nodes).collect();
        shuffle(&mut order, random);
        let lossy = order[..lossy_count].to_vec();
        shuffle(&mut order, random);
        let minority = random.index(nodes - needed + 1);
        let down_to_the_end =
            if random.percent(40) { order[..minority].to_vec() } else { Vec::new() };
        let clients = 1 + random.index(4);
        let wild = outside == Some(Outside::Clocks);
        let client_ppm = (0..32)
            .map(|_| match random.below(3) {
                0 => 0,
                1 if wild => -random.pick(&[30_000, 100_000, 500_000]),
                _ => random.pick(&[-HALF_DRIFT_PPM, HALF_DRIFT_PPM, -100, 0]),
            })
            .collect();
        let node_ppm = (0..nodes)
            .map(|_| match random.below(3) {
                0 => 0,
                1 if wild => random.pick(&[30_000, 83_333, 500_000]),
                _ => random.pick(&[-HALF_DRIFT_PPM, HALF_DRIFT_PPM, 100, 0]),
            })
            .collect();
        // The order of these draws is fixed, because another order would change the plan of every seed.
        let callers = 1 + random.index(3);
        let resources = random.pick(&[1, 1, 1, 2]);
        let last_for = ttl * random.between(6, 14);
        let every = ttl * random.between(1, 6);
        Self {
            seed,
            load: Load { clients, callers, resources, timings, max_ttl: ttl, fenced: 0 },
            servers: Servers { quorum, prepared: false, duplicates: false, lossy, down_to_the_end },
            wiring: Wiring {
                one_way,
                distances,
                spikes: (
                    random.pick(&[ttl / 20, ttl / 4, ttl, 3 * ttl]),
                    random.pick(&[0, 1, 5, 20]),
                ),
                zombie_for: random.pick(&[0, ttl / 4, 2 * ttl]),
                silence: random.pick(&[ttl / 8, ttl / 4, ttl]),
                replace_after: random.pick(&[ttl / 4, ttl, 2 * SECOND]),
                batch_max: random.pick(&[1, 3, 512]).max(least),
            },
            clocks: Clocks { client_ppm, node_ppm, sober: false },
            faults: Faults { kinds: faults, every, last_for },
            later: Later::default(),
            outside,
            guard,
            only: None,
        }
    }

    /// Whether the plan has faults of this kind.
    pub fn has(&self, fault: Fault) -> bool {
        self.faults.kinds.contains(&fault)
    }

    /// Whether the run violates no assumption, so that mutual exclusion must hold.
    pub const fn excludes(&self) -> bool {
        self.outside.is_none()
    }

    /// The rules by which clients decide whether they trust a node.
    pub fn rules(&self) -> Rules {
        let names: Vec<_> =
            (0..self.servers.quorum.nodes()).map(|node| format!("n{node}").into()).collect();
        let max_ttl_ms = u64::try_from(self.load.max_ttl / MS).unwrap_or(0);
        let cluster = Cluster::new(&names, self.servers.quorum.needed(), max_ttl_ms);
        let (marker, adoption) = (marker_key(), Key::from("quorlock:adopt"));
        let durable = self.later.declared.iter().map(|node| NodeId::new(*node)).collect();
        let words = Words::default();
        let replicas = match self.later.replicated && !self.later.unacknowledged {
            true => vec![1; self.servers.quorum.nodes()],
            false => Vec::new(),
        };
        Rules { guard: self.guard, cluster, names, marker, adoption, replicas, durable, words }
    }
}

pub(crate) fn marker_key() -> Key {
    Key::from("quorlock:node")
}

const CONNECT_TIMEOUT: Time = 300 * MS;

fn timing(ttl: Time, one_way: Time, distance: Time, random: &mut Random) -> Timing {
    let options = TimingOptions {
        ttl: duration(ttl),
        max_ttl: duration(ttl),
        // Some locks have no margin. For them, an engine error as small as the drift already violates an invariant.
        margin: random.pick(&[None, Some(Duration::ZERO), Some(duration(ttl / 10))]),
        min_validity: duration(random.pick(&[0, 0, ttl / 4])),
        // At least eight one-way delays, because no lock could be acquired with a node timeout below a round trip.
        node_timeout: random
            .pick(&[None, Some(ttl / 20), Some(ttl / 4)])
            .map(|time| duration(time.max(8 * one_way + 4 * distance).min(ttl / 4))),
        connect_timeout: duration(CONNECT_TIMEOUT + 4 * distance),
        ..TimingOptions::default()
    };
    match Timing::new(options) {
        Ok(timing) => timing,
        Err(error) => unreachable!("these options fit together: {error}"),
    }
}

fn quorum(nodes: usize, needed: usize) -> Quorum {
    match Quorum::new(nodes, needed) {
        Ok(quorum) => quorum,
        Err(error) => unreachable!("at least a majority, at most all: {error}"),
    }
}

fn shuffle(order: &mut [usize], random: &mut Random) {
    for place in (1..order.len()).rev() {
        order.swap(place, random.index(place + 1));
    }
}
