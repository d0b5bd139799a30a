//! What is told at the end: a table for somebody who has never seen this before.

use std::collections::BTreeMap;
use std::fmt;

use quorlock_servers::proxy::Effect;
use quorlock_sim::time::Time;

use crate::act::Kind;
use crate::ledger::{Tally, seconds};
use crate::oracles::{Store, Witness};
use crate::plan::{KINDS, PROCESSES, SEEDS_FOR_ALL};
use crate::round::{EFFECTS, Outcome, Votes};
use crate::talk::{CALLERS, CLIENTS, RESOURCES};

/// The sum of all rounds.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    /// Servers' clocks can be moved.
    clocks: bool,
    rounds: u64,
    interrupted: bool,
    failed: Vec<u64>,
    injected: BTreeMap<Kind, u64>,
    effects: [u64; EFFECTS.len()],
    tally: Tally,
    overlaps: usize,
    witness: Witness,
    lost_updates: u64,
    /// The same, and holders that were short of votes, where nothing of it was promised; and in how
    /// many rounds.
    outside: (u64, usize, u64, usize),
    store: Store,
    lost_in_store: u64,
    fenced: usize,
    disordered: usize,
    votes: Votes,
    keys_left: usize,
    /// How often keys were looked for right after the last client had been shut down.
    keys_at_once: u64,
    healed: Option<Time>,
    /// Rounds in which one had none.
    unhealed: u64,
    other_violations: usize,
}

impl Summary {
    pub(crate) fn new(clocks: bool) -> Self {
        Self { clocks, ..Self::default() }
    }

    pub(crate) const fn rounds(&self) -> u64 {
        self.rounds
    }

    /// In some round something was wrong.
    pub(crate) fn has_violations(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Adds a round.
    pub(crate) fn add(&mut self, seed: u64, outcome: &Outcome) {
        self.interrupted |= outcome.interrupted;
        self.rounds += u64::from(!outcome.interrupted);
        if !outcome.violations.is_empty() {
            self.failed.push(seed);
        }
        for (kind, count) in &outcome.injected {
            *self.injected.entry(*kind).or_default() += count;
        }
        for (sum, count) in self.effects.iter_mut().zip(outcome.effects) {
            *sum += count;
        }
        let Tally {
            granted,
            contended,
            no_quorum,
            not_safe,
            too_slow,
            cancelled,
            lost,
            stopped_holding,
            killed_holding,
        } = &outcome.tally;
        self.tally.granted += granted;
        self.tally.contended += contended;
        self.tally.no_quorum += no_quorum;
        self.tally.not_safe += not_safe;
        self.tally.too_slow += too_slow;
        self.tally.cancelled += cancelled;
        self.tally.stopped_holding += stopped_holding;
        self.tally.killed_holding += killed_holding;
        for (cause, count) in lost {
            *self.tally.lost.entry(cause.clone()).or_default() += count;
        }
        let (lost, short) = (outcome.witness.lost(), outcome.votes.short);
        if outcome.outside.is_none() {
            self.overlaps += outcome.overlaps;
            self.lost_updates += lost;
            self.votes.short += short;
        } else {
            let (rounds, overlaps, updates, votes) = &mut self.outside;
            *rounds += 1;
            *overlaps += outcome.overlaps;
            *updates += lost;
            *votes += short;
        }
        self.votes.judged += outcome.votes.judged;
        self.votes.blind += outcome.votes.blind;
        self.witness.number += outcome.witness.number;
        self.witness.writes += outcome.witness.writes;
        self.witness.too_late += outcome.witness.too_late;
        self.store.number += outcome.store.number;
        self.store.writes += outcome.store.writes;
        self.store.refused += outcome.store.refused;
        self.lost_in_store += outcome.store.lost();
        self.fenced += outcome.fenced;
        self.disordered += outcome.disordered;
        let keys = outcome.keys.wrong().count();
        self.keys_left += keys;
        self.keys_at_once += u64::from(!outcome.interrupted && !outcome.keys.excused);
        self.healed = self.healed.max(outcome.healed);
        self.unhealed += u64::from(!outcome.interrupted && outcome.healed.is_none());
        self.other_violations += outcome.violations.len();
    }

    /// Kinds of faults that never came about, although there were rounds enough for all.
    pub(crate) fn never(&self) -> Vec<&'static str> {
        if self.rounds < SEEDS_FOR_ALL {
            return Vec::new();
        }
        self.kinds().filter(|kind| !self.happened(*kind)).map(Kind::name).collect()
    }

    /// Those that can be.
    fn kinds(&self) -> impl Iterator<Item = Kind> {
        let kinds = KINDS.iter().flat_map(|kinds| kinds.iter()).copied();
        kinds.filter(|kind| self.clocks || !kind.moves_clock())
    }

    /// Oracles that were never asked anything, although there were rounds enough.
    fn never_asked(&self) -> Vec<&'static str> {
        if self.rounds < SEEDS_FOR_ALL {
            return Vec::new();
        }
        let asked = [
            ("whether votes were alive", self.votes.judged > self.votes.blind),
            ("whether fences grow", self.fenced > 0),
            ("a store that asks for fences", self.store.writes > 0 && self.store.refused > 0),
            ("a witness that asks for validity", self.witness.writes > 0),
            ("how long nodes are not to be trusted", self.tally.not_safe > 0),
        ];
        asked.iter().filter(|(_, was)| !was).map(|(name, _)| *name).collect()
    }

    /// It was not only ordered, but something has passed that it was done to.
    fn happened(&self, kind: Kind) -> bool {
        let touched = match kind {
            Kind::Delay => Effect::Delayed,
            Kind::Hold | Kind::HoldOld => Effect::Held,
            Kind::Drop => Effect::Dropped,
            Kind::Split => Effect::Split,
            Kind::HalfClose => Effect::HalfClosed,
            Kind::Truncate => Effect::Truncated,
            Kind::Reset => Effect::Reset,
            // What is done to a process is done when it was ordered.
            _ => return self.injected.contains_key(&kind),
        };
        let mut counts = EFFECTS.iter().zip(self.effects);
        self.injected.contains_key(&kind)
            && counts.any(|((effect, _), count)| *effect == touched && count > 0)
    }

    /// In no round could keys be looked for at once, although there were rounds enough.
    fn never_looked(&self) -> bool {
        self.rounds >= SEEDS_FOR_ALL && self.keys_at_once == 0
    }

    /// Something should not have been.
    pub(crate) fn has_failed(&self) -> bool {
        !self.failed.is_empty()
            || !self.never().is_empty()
            || !self.never_asked().is_empty()
            || self.never_looked()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "faults injected")?;
        for kind in self.kinds() {
            let count = self.injected.get(&kind).unwrap_or(&0);
            writeln!(f, "  {:<54}{count:>9}", kind.name())?;
        }
        writeln!(f, "what that did")?;
        for ((_, name), count) in EFFECTS.iter().zip(self.effects) {
            writeln!(f, "  {name:<54}{count:>9}")?;
        }
        let Tally { stopped_holding, killed_holding, .. } = self.tally;
        writeln!(f, "  {:<54}{stopped_holding:>9}", "processes stopped while they held a lock")?;
        writeln!(f, "  {:<54}{killed_holding:>9}", "processes killed while they held a lock")?;
        let (clients, callers) = (PROCESSES * CLIENTS, PROCESSES * CLIENTS * CALLERS);
        let locks = RESOURCES.len();
        writeln!(
            f,
            "what {callers} callers of {clients} clients in {PROCESSES} processes saw, who want \
             {locks} locks"
        )?;
        let Tally { granted, contended, no_quorum, not_safe, too_slow, cancelled, .. } = self.tally;
        let lost: u64 = self.tally.lost.values().sum();
        let causes: Vec<_> =
            self.tally.lost.iter().map(|(cause, count)| format!("{cause} {count}")).collect();
        for (name, count) in [
            ("locks granted", granted),
            ("refused, held by others", contended),
            ("refused, no quorum of nodes", no_quorum),
            ("refused, too few nodes are to be trusted", not_safe),
            ("granted too late to be of use", too_slow),
            ("no longer wanted (future dropped)", cancelled),
            ("writes that came after the end of their lock: not made", self.witness.too_late),
            ("writes and reads refused for an old fence", self.store.refused),
        ] {
            writeln!(f, "  {name:<54}{count:>9}")?;
        }
        let causes =
            if causes.is_empty() { String::new() } else { format!(": {}", causes[..].join(", ")) };
        writeln!(f, "  {:<54}{lost:>9}{causes}", "locks lost while held")?;
        writeln!(f, "oracles")?;
        writeln!(f, "  {:<54}{:>9}", "two holders at the same time (overlaps)", self.overlaps)?;
        let Witness { number, writes, .. } = self.witness;
        writeln!(
            f,
            "  {:<54}{:>9}  {writes} increments, and the numbers say {number}",
            "updates lost by trust in validity", self.lost_updates
        )?;
        let Store { number, writes, .. } = self.store;
        let exact = if self.lost_in_store == 0 { "exact" } else { "NOT EXACT" };
        writeln!(
            f,
            "  {:<54}{:>9}  {writes} increments, and the numbers say {number}: {exact}",
            "updates lost by the store that asks for fences", self.lost_in_store
        )?;
        writeln!(
            f,
            "  {:<54}{:>9}  of {} holders with one",
            "fences shown twice, or smaller than one before", self.disordered, self.fenced
        )?;
        let Votes { judged, blind, short } = self.votes;
        writeln!(
            f,
            "  {:<54}{short:>9}  of {judged}; of {blind} more the servers' MONITOR was not all seen",
            "holders without the votes of a quorum all the time"
        )?;
        let (rounds, overlaps, updates, votes) = self.outside;
        if rounds > 0 {
            writeln!(
                f,
                "  {:<54}{rounds:>9}  {overlaps} overlaps, {updates} updates lost by trust in \
                 validity, {votes} short of votes",
                "rounds outside what exclusion is promised for"
            )?;
        }
        writeln!(
            f,
            "  {:<54}{:>9}  in {} of {} rounds looked for at once, else within one ttl",
            "keys left on the nodes", self.keys_left, self.keys_at_once, self.rounds
        )?;
        if self.never_looked() {
            writeln!(
                f,
                "  NEVER LOOKED FOR KEYS AT ONCE: a key that is given back late is not seen"
            )?;
        }
        let healed = match self.healed {
            Some(after) if self.unhealed == 0 => seconds(after),
            None if self.unhealed == 0 => "not asked".to_owned(),
            _ => "NOT ALL".to_owned(),
        };
        writeln!(f, "  {:<54}{healed:>9}", "after healing, every client had a lock within")?;
        let unasked = self.never_asked();
        if !unasked.is_empty() {
            writeln!(f, "  NEVER ASKED: {}", unasked.join(", "))?;
        }
        let never = self.never();
        if !never.is_empty() {
            writeln!(f, "  NEVER INJECTED: {}", never.join(", "))?;
        } else if self.rounds >= SEEDS_FOR_ALL {
            writeln!(f, "  every kind of fault was injected, and has touched something")?;
            if !self.clocks {
                writeln!(f, "  but no wall clock was moved: it cannot be done here")?;
            }
        } else {
            writeln!(f, "  all kinds of faults come about in {SEEDS_FOR_ALL} rounds or more")?;
        }
        let ended = if self.interrupted { ", and one that was interrupted" } else { "" };
        write!(f, "{} rounds{ended}", self.rounds)?;
        match &self.failed[..] {
            [] => Ok(()),
            seeds => write!(f, "; {} violations, with seeds {seeds:?}", self.other_violations),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round in which everything came about.
    fn eventful() -> Outcome {
        let injected = KINDS.concat().into_iter().map(|kind| (kind, 1)).collect();
        Outcome {
            injected,
            effects: [1; EFFECTS.len()],
            tally: Tally { not_safe: 1, ..Tally::default() },
            witness: Witness { number: 1, writes: 1, too_late: 0 },
            store: Store::seen(),
            fenced: 1,
            votes: Votes { judged: 1, ..Votes::default() },
            ..Outcome::default()
        }
    }

    fn summary(outcome: &Outcome) -> Summary {
        let mut summary = Summary::new(true);
        (0..SEEDS_FOR_ALL).for_each(|seed| summary.add(seed, outcome));
        summary
    }

    #[test]
    fn a_fault_that_never_came_about_fails_the_run() {
        assert!(!summary(&eventful()).has_failed());
        let mut outcome = eventful();
        outcome.injected.remove(&Kind::KillNode);
        assert_eq!(summary(&outcome).never(), ["kill -9 a node"]);
        // Ordered, but nothing passed.
        let mut outcome = eventful();
        outcome.effects = [0; EFFECTS.len()];
        let summary = summary(&outcome);
        assert!(summary.has_failed() && summary.never().contains(&"reset"));
        assert!(summary.to_string().contains("NEVER INJECTED: "));
    }

    #[test]
    fn an_oracle_that_was_never_asked_fails_the_run() {
        let outcome = Outcome { votes: Votes { judged: 1, blind: 2, short: 0 }, ..eventful() };
        let summary = summary(&outcome);
        assert!(summary.has_failed());
        assert!(summary.to_string().contains("NEVER ASKED: whether votes were alive"), "{summary}");
    }

    #[test]
    fn what_cannot_be_done_here_is_not_asked_for_but_said() {
        let mut outcome = eventful();
        outcome.injected.retain(|kind, _| !kind.moves_clock());
        let mut summary = Summary::new(false);
        (0..SEEDS_FOR_ALL).for_each(|seed| summary.add(seed, &outcome));
        assert!(!summary.has_failed());
        assert!(summary.to_string().contains("no wall clock was moved"), "{summary}");
    }

    #[test]
    fn a_run_that_excuses_every_round_fails() {
        let mut outcome = eventful();
        outcome.keys.excused = true;
        let mut summary = summary(&outcome);
        assert!(summary.never().is_empty() && summary.has_failed());
        assert!(summary.to_string().contains("NEVER LOOKED FOR KEYS"), "{summary}");
        summary.add(SEEDS_FOR_ALL, &eventful());
        assert!(!summary.has_failed());
    }

    #[test]
    fn too_few_rounds_are_not_expected_to_have_everything() {
        let mut summary = Summary::default();
        summary.add(0, &Outcome::default());
        assert!(!summary.has_failed());
    }

    #[test]
    fn a_violation_fails_the_run_and_names_its_seed() {
        let mut outcome = eventful();
        let violation = crate::ledger::Violation { at: 0, what: "two hold one lock".to_owned() };
        outcome.violations.push(violation);
        let mut summary = summary(&eventful());
        summary.add(77, &outcome);
        assert!(summary.has_failed());
        assert!(summary.to_string().ends_with("1 violations, with seeds [77]"), "{summary}");
    }
}
