//! Faults and settings that were added to the simulator later. Random streams of their own decide whether and when they
//! occur, so the draws of all older streams stay the same.

use quorlock_core::RestartGuard;

use super::leases::NAMED_BEFORE_LEASES;
use super::{Kinds, Leases, Plan, shuffle};
use crate::fact::ClientId;
use crate::random::Random;
use crate::time::Time;

/// Faults and settings that [`Fault`](super::Fault) does not contain.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Later {
    /// Nodes whose clocks are hours behind while clients' clocks are right. They are few enough that at least one right
    /// clock contributes to any floor (the lower bound for a node's fencing tokens).
    pub behind: Vec<usize>,
    /// The largest jump of a clock during a quarantine (the wait of a restarted node), if clocks jump. Clients' clocks
    /// jump in either direction. Nodes' clocks jump back, or, if the run violates the assumption about clocks, ahead.
    pub jumps: Option<Time>,
    /// Clients' wall clocks make small jumps, after which a lock may be valid for less than its margin.
    pub small_steps: bool,
    /// Nodes that the operator declared `durable`.
    pub declared: Vec<usize>,
    /// The declared nodes that log their writes, so that they keep their data when they stop. The other declared nodes
    /// report in `INFO` that they have no log.
    pub durable: Vec<usize>,
    /// The first node is absent for a long time. When its server is back, the second node's name leads to that server.
    pub merges: bool,
    /// The clients' restart guards, if the clients have different ones.
    pub modes: Modes,
    /// Nodes drop the scripts that clients have loaded.
    pub forgets_scripts: bool,
    /// The kinds of locks.
    pub kinds: Kinds,
    /// Each node is a master with a replica that is promoted now and then.
    pub replicated: bool,
    /// Clients do not wait for the acknowledgement of replicas. Then two clients hold one lock in some runs.
    pub unacknowledged: bool,
    /// Locks that outlive their guard, and locks with the caller's value.
    pub leases: Leases,
    /// Clients start, do one thing and end.
    pub visits: bool,
    /// Clients of another configuration have a node in their list by mistake.
    pub strays: bool,
    /// A quorum of nodes comes back with the data of a moment at which a lock had just been detached. Clients go on
    /// extending that lock.
    pub rolls_back: bool,
}

/// Restart guards, assigned to clients in rotation.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Modes(Vec<RestartGuard>);

impl Modes {
    pub(crate) const fn new(guards: Vec<RestartGuard>) -> Self {
        Self(guards)
    }

    /// Whether all clients have the same restart guard.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The restart guard of this client; `None` if all clients have the same one.
    pub(crate) fn of(&self, client: ClientId) -> Option<RestartGuard> {
        let tick = client.checked_rem(self.0.len())?;
        Some(self.0[tick])
    }
}

/// Old seeds in tests and documents. Their runs must not change, so their plans skip all draws that were added later:
/// the draws of this file.
const NAMED: [u64; 10] = [
    37,
    72,
    50_009_027,
    50_037_399,
    50_074_842,
    50_079_000,
    50_096_569,
    50_109_459,
    50_119_400,
    28_161_012_801,
];

/// Seeds in tests, newer than `NAMED`. Their plans skip all draws of this file except those of `Later::faults`.
const NAMED_LATER: [u64; 2] = [1_795_355_166_365_189, 1_795_357_018_933_923];

/// Seeds in tests, newer than `NAMED_LATER`. Their plans skip lost scripts, kinds of locks, leases and replicas.
const NAMED_SINCE: [u64; 7] = [
    1_795_363_931_392_764,
    1_795_368_106_810_887,
    1_795_382_354_268_190,
    1_795_382_354_359_029,
    1_795_384_976_722_503,
    1_795_395_092_798_731,
    1_795_397_625_883_331,
];

/// Seeds in tests, newer than `NAMED_SINCE`. Their plans skip kinds of locks, leases and replicas.
const NAMED_BEFORE_KINDS: [u64; 8] = [
    3_780,
    4_066,
    1_795_423_988_136_557,
    1_795_423_988_145_881,
    1_795_425_041_537_954,
    1_795_425_041_702_940,
    1_795_439_800_538_938,
    870,
];

/// Whether a test or a document names this seed: its plan skips the newest draws.
pub(super) fn is_named(seed: u64) -> bool {
    let named = [&NAMED[..], &NAMED_LATER, &NAMED_SINCE, &NAMED_BEFORE_KINDS].concat();
    named.contains(&seed) || NAMED_BEFORE_LEASES.contains(&seed)
}

/// Whether clients of another configuration can meet the clients of this plan: all of these are strict, and each node
/// is a server of its own. A node with another configuration's marker or adoption bars until it is heard again, so no
/// node may stay down to the end.
fn may_have_strays(plan: &Plan, later: &Later, replicated: bool) -> bool {
    let is_strict = plan.guard == RestartGuard::Strict && later.modes.is_empty();
    let comes_back = plan.servers.down_to_the_end.is_empty();
    is_strict
        && comes_back
        && !later.merges
        && !plan.servers.duplicates
        && !replicated
        && !is_named(plan.seed)
}

impl Later {
    pub(super) fn draw(plan: &Plan) -> Self {
        let later = Self::settings(plan);
        let named = [&NAMED[..], &NAMED_LATER, &NAMED_SINCE].concat();
        let forgets_scripts = plan.load.fenced > 0
            && !named.contains(&plan.seed)
            && Random::new(plan.seed, 11).percent(30);
        let is_older = named.contains(&plan.seed) || NAMED_BEFORE_KINDS.contains(&plan.seed);
        let kinds = if is_older { Kinds::default() } else { Kinds::draw(plan) };
        let forgets_scripts = forgets_scripts || kinds.forgets_scripts;
        let leases = if is_older { Leases::default() } else { Leases::draw(plan) };
        let replicated = !is_older && Self::draws_replicas(plan) && !later.merges;
        let random = &mut Random::new(plan.seed, 47);
        let visits = random.percent(30) && !is_named(plan.seed);
        let is_sure = later.durable.is_empty() && later.modes.is_empty() && !later.merges;
        let has_old = is_sure && plan.guard == RestartGuard::Strict && leases.detaches > 0;
        let rolls_back = has_old && random.percent(60) && plan.excludes() && !is_named(plan.seed);
        let strays =
            may_have_strays(plan, &later, replicated) && Random::new(plan.seed, 48).percent(30);
        Self { forgets_scripts, kinds, leases, replicated, visits, strays, rolls_back, ..later }
    }

    fn draws_replicas(plan: &Plan) -> bool {
        let is_strict = plan.guard == RestartGuard::Strict;
        let may = is_strict && plan.excludes() && !plan.servers.duplicates;
        may && Random::new(plan.seed, 42).percent(8)
    }

    fn settings(plan: &Plan) -> Self {
        let mut later = Self::faults(plan);
        let random = &mut Random::new(plan.seed, 10);
        let is_named = NAMED.contains(&plan.seed) || NAMED_LATER.contains(&plan.seed);
        if is_named || plan.guard != RestartGuard::Strict {
            return later;
        }
        match random.below(10) {
            0 | 1 => {
                let nodes = 0..plan.servers.quorum.nodes();
                later.declared = nodes.filter(|_| random.percent(60)).collect();
                let declared = later.declared.iter().copied();
                later.durable = declared.filter(|_| random.percent(80)).collect();
            }
            2 if plan.servers.quorum.nodes() > 1 && !plan.servers.duplicates => {
                later.merges = random.coin()
            }
            // Clients without the restart guard are safe only if nodes lose no votes.
            3 if plan.excludes() && !plan.servers.duplicates => {
                let modes = [RestartGuard::Strict, RestartGuard::Observe, RestartGuard::Off];
                let first = random.index(3);
                let second = (first + 1 + random.index(2)) % 3;
                later.modes = Modes(vec![modes[first], modes[second]]);
            }
            _ => {}
        }
        later
    }

    fn faults(plan: &Plan) -> Self {
        let random = &mut Random::new(plan.seed, 8);
        if !random.percent(40) || NAMED.contains(&plan.seed) {
            return Self::default();
        }
        let (nodes, needed) = (plan.servers.quorum.nodes(), plan.servers.quorum.needed());
        let is_strict = plan.guard == RestartGuard::Strict;
        let mut order: Vec<usize> = (0..nodes).collect();
        shuffle(&mut order, random);
        let small_steps = random.coin();
        let jumps = random.coin() && is_strict;
        // If every node may lose its counters, the order of tokens depends on clocks that agree, so clock jumps are
        // small. Otherwise a jump may be long enough to make a quarantine appear over.
        let rests_on_clocks = plan.clocks.sober && plan.load.fenced > 0;
        let most = if rests_on_clocks { plan.load.max_ttl / 4 } else { 2 * plan.quarantine() };
        let jumps = jumps.then_some(most);
        // At most `needed` clocks are behind. A floor uses `needed` + 1 clocks, so at least one of them is right.
        let behind = order[..needed.min(nodes - 1)].to_vec();
        let has_behind =
            random.percent(70) && is_strict && plan.clocks.sober && plan.load.fenced > 0;
        let behind = if has_behind { behind } else { Vec::new() };
        Self { behind, jumps, small_steps, ..Self::default() }
    }

    /// Whether the run has any of these faults and settings.
    pub fn is_any(&self) -> bool {
        *self != Self::default()
    }
}
