//! What is noted of a world, and held against the invariants: the same for the simulator's world and
//! the models'.

use quorlock_core::Reading;

use crate::count::Counts;
use crate::fact::{ClientId, Fact};
use crate::guard::Guards;
use crate::invariants::{Invariants, Violation};
use crate::ledger::Ledger;
use crate::time::Time;
use crate::view::{Surroundings, Terms, View};

/// The guards, what went over the wire, and what the invariants remember.
#[derive(Clone, PartialEq, Hash, Debug)]
pub(crate) struct Checker {
    pub(crate) guards: Guards,
    pub(crate) ledger: Ledger,
    invariants: Invariants,
}

/// When something happens, and in which world.
pub(crate) struct Moment<'a> {
    /// The true time.
    pub(crate) now: Time,
    /// What the clocks show of the client that is concerned, where that matters.
    pub(crate) reading: Option<Reading>,
    pub(crate) terms: Terms<'a>,
    pub(crate) around: &'a dyn Surroundings,
}

impl Checker {
    pub(crate) fn new(ledger: Ledger, invariants: Invariants) -> Self {
        Self { guards: Guards::default(), ledger, invariants }
    }

    /// Notes what has happened: for the ledger, for who else looks, for the invariants.
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

    /// Another origin of time, and what is of no interest any more is forgotten.
    pub(crate) fn rebase(&mut self, by: Time, base: impl Fn(ClientId) -> Reading) {
        self.guards.rebase(&base);
        self.ledger.rebase(&base);
        self.invariants.rebase(by, &base, &self.guards);
    }
}
