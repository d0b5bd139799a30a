//! The invariants, one per file, each with the sentence that it checks. An invariant reads only facts and the ledger of
//! past facts. It never asks the engine.

use std::fmt;
use std::ops::Deref;

use quorlock_core::{Quorum, Reading};

use crate::count::Counts;
use crate::fact::{ClientId, Fact, NodeIndex, point};
use crate::guard::Guards;
use crate::ledger::Ledger;
use crate::node::ModelNode;
use crate::plan::Outside;
use crate::time::Time;

pub(crate) mod announced;
pub(crate) mod clock_check;
pub(crate) mod continuity;
pub(crate) mod deadlock_free;
pub(crate) mod detached;
pub(crate) mod extension;
pub(crate) mod fault_tolerance;
pub(crate) mod fencing;
pub(crate) mod hold_limit;
pub(crate) mod in_order;
pub(crate) mod intents;
pub(crate) mod invalid_first;
pub(crate) mod latched;
pub(crate) mod mode_first;
pub(crate) mod mutual_exclusion;
pub(crate) mod no_starvation;
pub(crate) mod nothing_left;
pub(crate) mod nothing_resent;
pub(crate) mod outcomes;
pub(crate) mod owed;
pub(crate) mod patience;
pub(crate) mod quarantine;
pub(crate) mod released_everywhere;
pub(crate) mod rivals;
pub(crate) mod stored;
pub(crate) mod tally;
pub(crate) mod token_ownership;
mod turn;
pub(crate) mod unique_guards;
pub(crate) mod validity;
pub(crate) mod votes;
pub(crate) mod waits;

/// The state that an invariant can use besides the fact that it checks. Both the simulator and the models provide it.
pub(crate) struct View<'a> {
    pub(crate) now: Time,
    pub(crate) terms: Terms<'a>,
    pub(crate) guards: &'a Guards,
    pub(crate) ledger: &'a Ledger,
    pub(crate) around: &'a dyn Surroundings,
}

#[derive(Clone, Copy)]
pub(crate) struct Terms<'a> {
    pub(crate) quorum: Quorum,
    /// The assumption of mutual exclusion that the run violates, if any.
    pub(crate) outside: Option<Outside>,
    /// The number of nodes that may lose their counters without breaking the order of fencing tokens.
    pub(crate) spare_counters: usize,
    /// The time for which a restarted node does not vote if its clients have the restart guard.
    pub(crate) quarantine: Time,
    /// The nodes that are declared durable and keep their data.
    pub(crate) durable: &'a [NodeIndex],
}

impl Terms<'_> {
    /// The conditions of runs in which no node loses data, so clients need no quarantine, and no node is durable.
    pub(crate) const fn sound(quorum: Quorum) -> Self {
        Self { quorum, outside: None, spare_counters: 0, quarantine: 0, durable: &[] }
    }
}

pub(crate) trait Surroundings {
    fn reading(&self, client: ClientId) -> Reading;

    /// The reading that the client's present tick must use: taken after all of its input had arrived.
    fn tick_reading(&self, client: ClientId) -> Reading;

    /// Whether a process on this client's machine could check a guard now.
    fn can_check(&self, client: ClientId) -> bool;

    fn node(&self, node: NodeIndex) -> &ModelNode;
}

impl<'a> Deref for View<'a> {
    type Target = dyn Surroundings + 'a;

    fn deref(&self) -> &Self::Target {
        self.around
    }
}

/// A violated invariant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The name of the invariant.
    pub invariant: &'static str,
    /// The observation that contradicts the invariant.
    pub what: String,
    /// The time of the violation.
    pub at: Time,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} does not hold at {} ms: {}", self.invariant, point(self.at).trim(), self.what)
    }
}

/// The names and sentences of all invariants.
pub const SENTENCES: &[(&str, &str)] = &[
    (mutual_exclusion::NAME, mutual_exclusion::SENTENCE),
    (deadlock_free::NAME, deadlock_free::SENTENCE),
    (fault_tolerance::NAME, fault_tolerance::SENTENCE),
    (token_ownership::NAME, token_ownership::SENTENCE),
    (stored::NAME, stored::SENTENCE),
    (quarantine::NAME, quarantine::SENTENCE),
    (waits::NAME, waits::SENTENCE),
    (rivals::NAME, rivals::SENTENCE),
    (votes::NAME, votes::SENTENCE),
    (in_order::NAME, in_order::SENTENCE),
    (validity::NAME, validity::SENTENCE),
    (clock_check::NAME, clock_check::SENTENCE),
    (nothing_resent::NAME, nothing_resent::SENTENCE),
    (extension::NAME, extension::SENTENCE),
    (latched::NAME, latched::SENTENCE),
    (announced::NAME, announced::SENTENCE),
    (invalid_first::NAME, invalid_first::SENTENCE),
    (released_everywhere::NAME, released_everywhere::SENTENCE),
    (owed::NAME, owed::SENTENCE),
    (hold_limit::NAME, hold_limit::SENTENCE),
    (unique_guards::NAME, unique_guards::SENTENCE),
    (fencing::NAME, fencing::SENTENCE),
    (mode_first::NAME, mode_first::SENTENCE),
    (detached::NAME, detached::SENTENCE),
    (continuity::NAME, continuity::SENTENCE),
    (intents::NAME, intents::SENTENCE),
    (no_starvation::NAME, no_starvation::SENTENCE),
    (outcomes::NAME, outcomes::SENTENCE),
    (patience::NAME, patience::SENTENCE),
    (nothing_left::NAME, nothing_left::SENTENCE),
];

/// The verdict on a fact. An error describes the violation.
type Checked = Result<(), String>;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Invariants {
    mutual_exclusion: mutual_exclusion::MutualExclusion,
    token_ownership: token_ownership::TokenOwnership,
    votes: votes::Votes,
    validity: validity::Validity,
    in_order: in_order::InOrder,
    nothing_resent: nothing_resent::NothingResent,
    latched: latched::Latched,
    announced: announced::Announced,
    unique_guards: unique_guards::UniqueGuards,
    fencing: fencing::Fencing,
    patience: patience::Patience,
    hold_limit: hold_limit::HoldLimit,
    owed: owed::Owed,
    quarantine: quarantine::Quarantine,
    waits: waits::Waits,
    rivals: rivals::Rivals,
    mode_first: mode_first::ModeFirst,
    detached: detached::Detached,
    continuity: continuity::Continuity,
    intents: intents::Intents,
    no_starvation: no_starvation::NoStarvation,
    only: Option<String>,
}

impl Invariants {
    /// `only` names the single invariant to check. `None` checks all.
    pub(crate) fn new(nodes: usize, only: Option<String>) -> Self {
        Self {
            mutual_exclusion: mutual_exclusion::MutualExclusion::default(),
            token_ownership: token_ownership::TokenOwnership::new(nodes),
            votes: votes::Votes::default(),
            validity: validity::Validity::default(),
            in_order: in_order::InOrder::default(),
            nothing_resent: nothing_resent::NothingResent::default(),
            latched: latched::Latched::default(),
            announced: announced::Announced::default(),
            unique_guards: unique_guards::UniqueGuards::default(),
            fencing: fencing::Fencing::new(nodes),
            patience: patience::Patience::default(),
            hold_limit: hold_limit::HoldLimit::default(),
            owed: owed::Owed::default(),
            quarantine: quarantine::Quarantine::default(),
            waits: waits::Waits::default(),
            rivals: rivals::Rivals::default(),
            mode_first: mode_first::ModeFirst::default(),
            detached: detached::Detached::default(),
            continuity: continuity::Continuity::default(),
            intents: intents::Intents::default(),
            no_starvation: no_starvation::NoStarvation::default(),
            only,
        }
    }

    /// A model counts times from the present. When time passes, this moves all recorded times back: times of nodes'
    /// clocks by `by`, readings of each client's clocks by `base`.
    pub(crate) fn rebase(&mut self, by: Time, base: impl Fn(ClientId) -> Reading, guards: &Guards) {
        self.mutual_exclusion.rebase(&base);
        self.token_ownership.rebase(by);
        self.latched.rebase(&base, guards);
        self.patience.rebase(&base);
        if by > 0 {
            self.nothing_resent.rebase();
        }
    }

    pub(crate) fn check(
        &mut self,
        fact: &Fact<'_>,
        view: &View<'_>,
        counts: &mut Counts,
    ) -> Result<(), Violation> {
        let mut violation = None;
        let mut note = |invariant, verdict: Checked| {
            if let Err(what) = verdict
                && violation.is_none()
                && self.only.as_ref().is_none_or(|only| only == invariant)
            {
                violation = Some(Violation { invariant, what, at: view.now });
            }
        };
        // Every invariant hears every fact, because it records what it needs for later ones.
        note(mutual_exclusion::NAME, self.mutual_exclusion.check(fact, view, counts));
        note(token_ownership::NAME, self.token_ownership.check(fact, view));
        note(quarantine::NAME, self.quarantine.check(fact, view));
        note(in_order::NAME, self.in_order.check(fact));
        note(votes::NAME, self.votes.check(fact, view));
        note(validity::NAME, self.validity.check(fact, view));
        note(clock_check::NAME, clock_check::check(fact, view));
        note(nothing_resent::NAME, self.nothing_resent.check(fact));
        note(extension::NAME, extension::check(fact, view));
        note(latched::NAME, self.latched.check(fact, view));
        note(announced::NAME, self.announced.check(fact, view));
        note(invalid_first::NAME, invalid_first::check(fact, view));
        note(released_everywhere::NAME, released_everywhere::check(fact, view));
        note(unique_guards::NAME, self.unique_guards.check(fact, view));
        note(fencing::NAME, self.fencing.check(fact, view, counts));
        note(outcomes::NAME, outcomes::check(fact, view));
        note(patience::NAME, self.patience.check(fact, view));
        note(hold_limit::NAME, self.hold_limit.check(fact, view));
        note(owed::NAME, self.owed.check(fact, view));
        note(waits::NAME, self.waits.check(fact, view));
        note(rivals::NAME, self.rivals.check(fact, view, counts));
        note(mode_first::NAME, self.mode_first.check(fact, view));
        note(detached::NAME, self.detached.check(fact, view));
        note(continuity::NAME, self.continuity.check(fact, view));
        note(intents::NAME, self.intents.check(fact, view));
        note(no_starvation::NAME, self.no_starvation.check(fact, view));
        note(stored::NAME, stored::check(fact, view));
        violation.map_or(Ok(()), Err)
    }
}
