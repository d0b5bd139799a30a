//! Faults and settings that came later. They are drawn from streams of their own, and strike by a stream of
//! their own: whatever was drawn before is drawn as before.

use quorlock_core::RestartGuard;

use super::{Kinds, Plan, shuffle};
use crate::fact::ClientId;
use crate::random::Random;
use crate::time::Time;

/// What can go wrong beside [`Fault`](super::Fault)s.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Later {
    /// Nodes whose clocks are hours behind, where clients' clocks are right: so few that there is one that
    /// is right among any that a floor rests on.
    pub behind: Vec<usize>,
    /// Clocks are set while a node is waited for. A node's, by so much at most: back; and where clocks are
    /// worse than assumed, ahead. A client's: as anybody likes.
    pub jumps: Option<Time>,
    /// Clients' wall clocks are set by little, so that a lock may come to its margin and not to its end.
    pub small_steps: bool,
    /// Nodes that the operator has declared to forget nothing when they stop.
    pub declared: Vec<usize>,
    /// Those of them that do forget nothing; the others say that they keep no log.
    pub durable: Vec<usize>,
    /// The first node is away for long, and the second name leads to its server when it comes back.
    pub merges: bool,
    /// What the clients make of what nodes say of themselves, if it is not the same for all.
    pub modes: Modes,
    /// Nodes forget the scripts that they have been told.
    pub forgets_scripts: bool,
    /// Which kinds of locks are wanted.
    pub kinds: Kinds,
}

/// Restart guards, which the clients have in turn.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Modes(Vec<RestartGuard>);

impl Modes {
    /// These, in turn.
    pub(crate) const fn new(guards: Vec<RestartGuard>) -> Self {
        Self(guards)
    }

    /// All clients have the same.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What this client has, if not all have the same.
    pub(crate) fn of(&self, client: ClientId) -> Option<RestartGuard> {
        let tick = client.checked_rem(self.0.len())?;
        Some(self.0[tick])
    }
}

/// Seeds that had a name, in tests and documents, before there were these faults: they stay the runs that
/// they were, and have nothing of this.
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

/// Seeds that had a name before there were these settings.
const NAMED_LATER: [u64; 2] = [1_795_355_166_365_189, 1_795_357_018_933_923];

/// Seeds that had a name before nodes forgot scripts.
const NAMED_SINCE: [u64; 7] = [
    1_795_363_931_392_764,
    1_795_368_106_810_887,
    1_795_382_354_268_190,
    1_795_382_354_359_029,
    1_795_384_976_722_503,
    1_795_395_092_798_731,
    1_795_397_625_883_331,
];

/// Seeds that had a name before there were other kinds of locks than those of one key that exclude all others.
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

impl Later {
    /// What is drawn for a plan.
    pub(super) fn draw(plan: &Plan) -> Self {
        let later = Self::settings(plan);
        let named = [&NAMED[..], &NAMED_LATER, &NAMED_SINCE].concat();
        let forgets_scripts = plan.load.fenced > 0
            && !named.contains(&plan.seed)
            && Random::new(plan.seed, 11).percent(30);
        let is_named = named.contains(&plan.seed) || NAMED_BEFORE_KINDS.contains(&plan.seed);
        let kinds = if is_named { Kinds::default() } else { Kinds::draw(plan) };
        let forgets_scripts = forgets_scripts || kinds.forgets_scripts;
        Self { forgets_scripts, kinds, ..later }
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
            // Clients that do not look rely on nodes that keep what they granted.
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
        // Where every node may lose its counters, the order of fences rests on clocks that agree: they are
        // set by little. Else by so much that a node seems to be waited for no more.
        let rests_on_clocks = plan.clocks.sober && plan.load.fenced > 0;
        let most = if rests_on_clocks { plan.load.max_ttl / 4 } else { 2 * plan.quarantine() };
        let jumps = jumps.then_some(most);
        // A floor rests on the clocks of so many others and on the node's own.
        let behind = order[..needed.min(nodes - 1)].to_vec();
        let has_behind =
            random.percent(70) && is_strict && plan.clocks.sober && plan.load.fenced > 0;
        let behind = if has_behind { behind } else { Vec::new() };
        Self { behind, jumps, small_steps, ..Self::default() }
    }

    /// Whether there is anything of it.
    pub fn is_any(&self) -> bool {
        *self != Self::default()
    }
}
