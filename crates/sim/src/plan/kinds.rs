//! The kinds of locks that callers want. A separate random stream draws them, so that all other draws stay the same.

use quorlock_core::RestartGuard;

use super::Plan;
use crate::random::Random;

/// Kinds of locks besides exclusive locks of one key.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Kinds {
    /// The percentage of calls that lock one of several overlapping sets of keys.
    pub several: u64,
    /// The percentage of calls that want to read.
    pub shared: u64,
    /// The chance in percent that a writer downgrades when it checks its guard.
    pub downgrades: u64,
    /// Intents (notes of waiting writers, which keep new readers out) reach no node.
    pub is_deaf: bool,
    /// After the end of the faults, readers keep coming.
    pub readers_stay: bool,
    /// Nodes drop the scripts that clients have loaded. This draw is newer than that of `Later::forgets_scripts`.
    pub forgets_scripts: bool,
    /// Locks of several keys have fencing tokens too, if locks of one key have them.
    pub fenced: bool,
    /// The number of nodes, a minority, on which another program's keys block locks after the end of the faults.
    pub leftovers: usize,
}

impl Kinds {
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

    /// Whether some calls lock several keys, or want to read.
    pub fn is_any(&self) -> bool {
        self.several > 0 || self.shared > 0
    }
}
