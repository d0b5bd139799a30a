//! Locks that outlive their guard, and locks with the caller's value. A separate random stream draws them, so that all
//! other draws of a seed stay the same.

use super::Plan;
use crate::random::Random;

/// How often callers detach their locks, and take locks with a value of their own.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Leases {
    /// The chance in percent that a holder detaches its lock when it checks its guard.
    pub detaches: u64,
    /// The percentage of calls that take a lock of one key with the caller's value.
    pub takes: u64,
    /// Extensions and releases of taken locks compare the value alone. In such a run each client has a value of its own.
    pub by_value: bool,
}

/// Seeds in tests and documents that are older than the draws of this file. Their plans skip these draws.
pub(super) const NAMED_BEFORE_LEASES: [u64; 10] = [
    290,
    1_135,
    6_238,
    12_633,
    14_100,
    45_610,
    50_079_000,
    1_795_568_838_658_511,
    1_795_650_468_205_166,
    1_795_425_041_702_940,
];

impl Leases {
    pub(super) fn draw(plan: &Plan) -> Self {
        let random = &mut Random::new(plan.seed, 40);
        if !random.percent(30) || NAMED_BEFORE_LEASES.contains(&plan.seed) {
            return Self::default();
        }
        let (detaches, takes) = random.pick(&[(30, 0), (0, 60), (30, 40), (60, 30)]);
        Self { detaches, takes, by_value: takes > 0 && random.percent(40) }
    }

    /// Whether callers detach locks, or take locks with a value of their own.
    pub const fn is_any(&self) -> bool {
        self.detaches > 0 || self.takes > 0
    }
}
