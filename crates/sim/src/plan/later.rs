//! Faults that came later. They are drawn from a stream of their own, in two of five runs, and strike by a
//! stream of their own: whatever was drawn before is drawn as before.

use quorlock_core::RestartGuard;

use super::{Plan, shuffle};
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

impl Later {
    /// What is drawn for a plan.
    pub(super) fn draw(plan: &Plan) -> Self {
        let random = &mut Random::new(plan.seed, 8);
        if !random.percent(40) || NAMED.contains(&plan.seed) {
            return Self::default();
        }
        let (nodes, needed) = (plan.quorum.nodes(), plan.quorum.needed());
        let is_strict = plan.guard == RestartGuard::Strict;
        let mut order: Vec<usize> = (0..nodes).collect();
        shuffle(&mut order, random);
        let small_steps = random.coin();
        let jumps = random.coin() && is_strict;
        // Where every node may lose its counters, the order of fences rests on clocks that agree: they are
        // set by less than a node is waited for. Else by so much that it seems to be waited for no more.
        let rests_on_clocks = plan.sober && plan.fenced > 0;
        let most = if rests_on_clocks { plan.quarantine() / 2 } else { 2 * plan.quarantine() };
        let jumps = jumps.then_some(most);
        // A floor rests on the clocks of so many others and on the node's own.
        let behind = order[..needed.min(nodes - 1)].to_vec();
        let has_behind = random.percent(70) && is_strict && plan.sober && plan.fenced > 0;
        let behind = if has_behind { behind } else { Vec::new() };
        Self { behind, jumps, small_steps }
    }

    /// Whether there is anything of it.
    pub fn is_any(&self) -> bool {
        *self != Self::default()
    }
}
