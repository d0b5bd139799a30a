//! Records the facts of a run and checks the invariants. The simulator and the models use the same checker.

use quorlock_core::Reading;

use crate::count::Counts;
use crate::fact::{ClientId, Fact};
use crate::guard::Guards;
use crate::invariants::{Invariants, Surroundings, Terms, View, Violation};
use crate::ledger::Ledger;
use crate::time::Time;

#[derive(Clone, PartialEq, Hash, Debug)]
pub(crate) struct Checker {
    pub(crate) guards: Guards,
    pub(crate) ledger: Ledger,
    invariants: Invariants,
}

pub(crate) struct Moment<'a> {
    pub(crate) now: Time,
    /// The time on the client's clocks. Only `Fact::Answered` needs it; for other facts, the simulator sets `None`.
    pub(crate) reading: Option<Reading>,
    pub(crate) terms: Terms<'a>,
    pub(crate) around: &'a dyn Surroundings,
}

impl Checker {
    pub(crate) fn new(ledger: Ledger, invariants: Invariants) -> Self {
        Self { guards: Guards::default(), ledger, invariants }
    }

    pub(crate) fn note(
        &mut self,
        fact: &Fact<'_>,
        Moment { now, reading, terms, around }: Moment<'_>,
        counts: &mut Counts,
        looks: impl FnOnce(&View<'_>, &mut Counts),
    ) -> Result<(), Violation> {
        self.ledger.note(fact, reading);
        let view = View { now, terms, guards: &self.guards, ledger: &self.ledger, around };
        looks(&view, counts);
        self.invariants.check(fact, &view, counts)
    }

    /// A model counts times from the present, which is always 0. When time passes, this moves all recorded times back.
    /// It also drops records that no longer matter.
    pub(crate) fn rebase(&mut self, by: Time, base: impl Fn(ClientId) -> Reading) {
        self.guards.rebase(&base);
        self.ledger.rebase(&base);
        self.invariants.rebase(by, &base, &self.guards);
    }
}
