//! Which kinds of locks callers want. They came later: drawn from streams of their own, like the later faults.

use quorlock_core::RestartGuard;

use super::Plan;
use crate::random::Random;

/// Kinds of locks, beside those of one key that exclude all others.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Kinds {
    /// So many calls in a hundred want one of several sets of keys, which overlap.
    pub several: u64,
    /// So many calls in a hundred want to read.
    pub shared: u64,
    /// So many times in a hundred a writer that looks at its lock becomes a reader.
    pub downgrades: u64,
    /// What writers say that wait reaches no node.
    pub is_deaf: bool,
    /// When the faults have ended, readers come and go all the while.
    pub readers_stay: bool,
    /// Nodes forget the scripts that they have been told.
    pub forgets_scripts: bool,
    /// Locks of several keys have fences, if any has one by this.
    pub fenced: bool,
    /// When the faults have ended, so many nodes, a minority, keep foreign keys in the places of locks.
    pub leftovers: usize,
}

impl Kinds {
    /// What is drawn for a plan.
    pub(super) fn draw(plan: &Plan) -> Self {
        let random = &mut Random::new(plan.seed, 13);
        if !random.percent(30) {
            return Self::default();
        }
        let (several, shared) = random.pick(&[(70, 0), (0, 60), (40, 40)]);
        let reads = shared > 0;
        let downgrades = random.pick(&[0, 10, 30]);
        let (is_deaf, stays) = (random.percent(15), random.percent(40));
        let is_strict = plan.guard == RestartGuard::Strict;
        let is_whole = plan.servers.down_to_the_end.is_empty();
        let (forgets_scripts, fenced) =
            (random.percent(if is_strict { 20 } else { 50 }), random.coin());
        let spare = plan.servers.quorum.nodes() - plan.servers.quorum.needed();
        Self {
            several,
            shared,
            downgrades: if reads { downgrades } else { 0 },
            is_deaf: reads && is_deaf,
            readers_stay: reads && !is_deaf && stays && is_whole,
            forgets_scripts,
            fenced: several > 0 && fenced,
            leftovers: if is_whole && random.coin() { random.index(spare + 1) } else { 0 },
        }
    }

    /// Whether there are any.
    pub fn is_any(&self) -> bool {
        self.several > 0 || self.shared > 0
    }
}
