//! Plans in which each node is a master with a replica.

use quorlock_core::RestartGuard;

use super::{Fault, Kinds, Later, Plan, quorum};
use crate::invariants::mutual_exclusion::NAME;
use crate::random::Random;

impl Plan {
    /// Draws a plan in which each node is a master with a replica.
    pub fn draw_replicated(seed: u64) -> Self {
        let random = &mut Random::new(seed, 0);
        let mut plan = Self::draw_with(seed, None, RestartGuard::Strict, random);
        plan.replicate();
        plan
    }

    /// Gives each node a replica. The run checks only mutual exclusion. Its only faults are promotions and faults of
    /// clients and connections.
    pub(super) fn replicate(&mut self) {
        let random = &mut Random::new(self.seed, 44);
        if random.percent(70) {
            self.servers.quorum = quorum(1, 1);
        }
        self.servers.prepared = true;
        self.servers.lossy.clear();
        self.servers.down_to_the_end.clear();
        self.faults.last_for = random.between(4, 8) * self.quarantine();
        self.faults.kinds.retain(|fault| {
            matches!(
                fault,
                Fault::Resets
                    | Fault::Partitions
                    | Fault::Pauses
                    | Fault::Stalls
                    | Fault::Suspends
                    | Fault::WallSteps
                    | Fault::ClientCrashes
            )
        });
        self.later = Later {
            replicated: true,
            small_steps: self.later.small_steps,
            forgets_scripts: self.later.forgets_scripts,
            kinds: Kinds { leftovers: 0, readers_stay: false, ..self.later.kinds.clone() },
            leases: self.later.leases.clone(),
            ..Later::default()
        };
        self.only = Some(NAME.to_owned());
    }
}
