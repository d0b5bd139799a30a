//! What is told at the end: a table for somebody who has never seen this before.

use std::fmt;

use quorlock_sim::time::Time;

use crate::act::Kind;
use crate::ledger::{Findings, seconds};
use crate::oracles::{Rereading, Store, Witness};
use crate::outcome::{EFFECTS, Exclusion, Faults, Fences, Outcome};
use crate::plan::{KINDS, PROCESSES, SEEDS_FOR_ALL};
use crate::protocol::{CALLERS, CLIENTS, RESOURCES};
use crate::tally::Tally;

/// The sum of all rounds.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    /// Servers' clocks can be moved.
    clocks: bool,
    rounds: Rounds,
    faults: Faults,
    tally: Tally,
    exclusion: ExclusionSum,
    fences: FencesSum,
    keys: KeysLeft,
    healing: Healing,
}

/// How many rounds, and what was wrong in them.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    pub(crate) count: u64,
    interrupted: bool,
    /// The seeds of those with violations.
    failed: Vec<u64>,
    violations: usize,
}

impl Rounds {
    pub(crate) fn add(&mut self, seed: u64, interrupted: bool, findings: &Findings) {
        self.interrupted |= interrupted;
        self.count += u64::from(!interrupted);
        self.violations += findings.violations.len();
        if !findings.violations.is_empty() {
            self.failed.push(seed);
        }
    }

    /// In some round something was wrong.
    pub(crate) const fn have_violations(&self) -> bool {
        !self.failed.is_empty()
    }

    /// The last line; `what` they are.
    pub(crate) fn tell(&self, f: &mut fmt::Formatter<'_>, what: &str) -> fmt::Result {
        let ended = if self.interrupted { ", and one that was interrupted" } else { "" };
        write!(f, "{} {what}{ended}", self.count)?;
        match &self.failed[..] {
            [] => Ok(()),
            seeds => write!(f, "; {} violations, with seeds {seeds:?}", self.violations),
        }
    }
}

/// Whether one at a time held a lock.
#[derive(Debug, Default)]
struct ExclusionSum {
    overlaps: usize,
    together: usize,
    witness: Witness,
    lost_updates: u64,
    rereading: Rereading,
    outside: Outside,
}

/// What was seen where nothing of it was promised; and in how many rounds.
#[derive(Debug, Default)]
struct Outside {
    rounds: u64,
    overlaps: usize,
    lost_updates: u64,
    changed: u64,
}

impl ExclusionSum {
    fn add(&mut self, round: &Exclusion) {
        let lost = round.witness.lost();
        if round.outside.is_none() {
            self.overlaps += round.overlaps;
            self.lost_updates += lost;
            self.rereading.changed += round.rereading.changed;
        } else {
            self.outside.rounds += 1;
            self.outside.overlaps += round.overlaps;
            self.outside.lost_updates += lost;
            self.outside.changed += round.rereading.changed;
        }
        self.witness.number += round.witness.number;
        self.witness.writes += round.witness.writes;
        self.witness.too_late += round.witness.too_late;
        self.together += round.together;
        self.rereading.compared += round.rereading.compared;
        self.rereading.too_late += round.rereading.too_late;
    }
}

/// What became of fences.
#[derive(Debug, Default)]
struct FencesSum {
    all: Fences,
    /// Counted by round: they do not make up for each other.
    lost: u64,
}

impl FencesSum {
    fn add(&mut self, round: &Fences) {
        self.all.store.number += round.store.number;
        self.all.store.writes += round.store.writes;
        self.all.store.refused += round.store.refused;
        self.all.holders += round.holders;
        self.all.disordered += round.disordered;
        self.lost += round.store.lost();
    }
}

/// Keys that were left on the nodes.
#[derive(Debug, Default)]
struct KeysLeft {
    count: usize,
    /// How often they were looked for right after the last client had been shut down.
    at_once: u64,
}

/// When clients had locks again.
#[derive(Debug, Default)]
struct Healing {
    longest: Option<Time>,
    /// Rounds in which one had none.
    never: u64,
}

impl Summary {
    pub(crate) fn new(clocks: bool) -> Self {
        Self { clocks, ..Self::default() }
    }

    pub(crate) const fn rounds(&self) -> u64 {
        self.rounds.count
    }

    /// In some round something was wrong.
    pub(crate) const fn has_violations(&self) -> bool {
        self.rounds.have_violations()
    }

    /// Adds a round.
    pub(crate) fn add(&mut self, seed: u64, outcome: &Outcome) {
        self.rounds.add(seed, outcome.interrupted, &outcome.findings);
        self.faults.add(&outcome.faults);
        self.tally.add(&outcome.tally);
        self.exclusion.add(&outcome.exclusion);
        self.fences.add(&outcome.fences);
        self.keys.count += outcome.keys.wrong().count();
        self.keys.at_once += u64::from(!outcome.interrupted && !outcome.keys.excused);
        self.healing.longest = self.healing.longest.max(outcome.healed);
        self.healing.never += u64::from(!outcome.interrupted && outcome.healed.is_none());
    }

    /// Kinds of faults that never came about, although there were rounds enough for all.
    pub(crate) fn never(&self) -> Vec<&'static str> {
        if self.rounds.count < SEEDS_FOR_ALL {
            return Vec::new();
        }
        self.kinds().filter(|kind| !self.faults.happened(*kind)).map(Kind::name).collect()
    }

    /// Those that can be.
    fn kinds(&self) -> impl Iterator<Item = Kind> {
        let kinds = KINDS.iter().flat_map(|kinds| kinds.iter()).copied();
        kinds.filter(|kind| self.clocks || !kind.moves_clock())
    }

    /// Oracles that were never asked anything, although there were rounds enough.
    fn never_asked(&self) -> Vec<&'static str> {
        if self.rounds.count < SEEDS_FOR_ALL {
            return Vec::new();
        }
        let fences = &self.fences.all;
        let asked = [
            ("whether fences grow", fences.holders > 0),
            ("a store that asks for fences", fences.store.writes > 0 && fences.store.refused > 0),
            ("a witness that asks for validity", self.exclusion.witness.writes > 0),
            ("what readers read", self.exclusion.rereading.compared > 0),
            ("readers that hold one lock together", self.exclusion.together > 0),
            ("locks of several keys", self.tally.several > self.tally.several_fenced),
            ("locks of several keys with a fence", self.tally.several_fenced > 0),
            ("writers that become readers", self.tally.downgrades_confirmed > 0),
            ("how long nodes are not to be trusted", self.tally.not_safe > 0),
        ];
        asked.iter().filter(|(_, was)| !was).map(|(name, _)| *name).collect()
    }

    /// In no round could keys be looked for at once, although there were rounds enough.
    fn never_looked(&self) -> bool {
        self.rounds.count >= SEEDS_FOR_ALL && self.keys.at_once == 0
    }

    /// Something should not have been.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_violations()
            || !self.never().is_empty()
            || !self.never_asked().is_empty()
            || self.never_looked()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "faults injected")?;
        for kind in self.kinds() {
            let count = self.faults.injected.get(&kind).unwrap_or(&0);
            writeln!(f, "  {:<54}{count:>9}", kind.name())?;
        }
        writeln!(f, "what that did")?;
        for ((_, name), count) in EFFECTS.iter().zip(self.faults.effects) {
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
        let Tally { several, several_fenced, readers, downgraded, .. } = self.tally;
        let confirmed = self.tally.downgrades_confirmed;
        let Tally { granted, contended, no_quorum, not_safe, too_slow, cancelled, .. } = self.tally;
        let lost: u64 = self.tally.lost.values().sum();
        let causes: Vec<_> =
            self.tally.lost.iter().map(|(cause, count)| format!("{cause} {count}")).collect();
        for (name, count) in [
            ("locks granted", granted),
            ("  of these, of several keys without a fence", several - several_fenced),
            ("  of these, of several keys with one fence for all", several_fenced),
            ("  of these, of readers", readers),
            ("  readers let in while another one held the same", self.exclusion.together as u64),
            ("  writers that went on as readers", downgraded),
            ("    confirmed by a quorum before it was too late", confirmed),
            ("refused, held by others", contended),
            ("refused, no quorum of nodes", no_quorum),
            ("refused, too few nodes are to be trusted", not_safe),
            ("granted too late to be of use", too_slow),
            ("no longer wanted (future dropped)", cancelled),
            (
                "writes that came after the end of their lock: not made",
                self.exclusion.witness.too_late,
            ),
            (
                "readers that looked again after the end of their lock",
                self.exclusion.rereading.too_late,
            ),
            ("writes and reads refused for an old fence", self.fences.all.store.refused),
        ] {
            writeln!(f, "  {name:<54}{count:>9}")?;
        }
        let causes =
            if causes.is_empty() { String::new() } else { format!(": {}", causes[..].join(", ")) };
        writeln!(f, "  {:<54}{lost:>9}{causes}", "locks lost while held")?;
        writeln!(f, "oracles")?;
        let ExclusionSum { overlaps, witness, lost_updates, outside, .. } = &self.exclusion;
        let Rereading { compared, changed, .. } = self.exclusion.rereading;
        writeln!(f, "  {:<54}{:>9}", "two holders at the same time, not both readers", overlaps)?;
        let Witness { number, writes, .. } = witness;
        writeln!(
            f,
            "  {:<54}{:>9}  {writes} increments, and the numbers say {number}",
            "updates lost by trust in validity", lost_updates
        )?;
        writeln!(
            f,
            "  {:<54}{changed:>9}  of {compared} that were compared",
            "numbers that changed while readers held their lock"
        )?;
        let FencesSum { all: Fences { store, holders, disordered }, lost } = &self.fences;
        let Store { number, writes, .. } = store;
        let exact = if *lost == 0 { "exact" } else { "NOT EXACT" };
        writeln!(
            f,
            "  {:<54}{:>9}  {writes} increments, and the numbers say {number}: {exact}",
            "updates lost by the store that asks for fences", lost
        )?;
        writeln!(
            f,
            "  {:<54}{disordered:>9}  of {holders} holders with one",
            "fences shown twice, or smaller than one before"
        )?;
        let Outside { rounds, overlaps, lost_updates, changed } = outside;
        if *rounds > 0 {
            writeln!(
                f,
                "  {:<54}{rounds:>9}  {overlaps} overlaps, {lost_updates} updates lost by \
                 trust in validity, {changed} numbers changed while readers held the lock",
                "rounds outside what exclusion is promised for"
            )?;
        }
        writeln!(
            f,
            "  {:<54}{:>9}  in {} of {} rounds looked for at once, else within one ttl",
            "keys left on the nodes", self.keys.count, self.keys.at_once, self.rounds.count
        )?;
        if self.never_looked() {
            writeln!(
                f,
                "  NEVER LOOKED FOR KEYS AT ONCE: a key that is given back late is not seen"
            )?;
        }
        let Healing { longest, never } = self.healing;
        let healed = match longest {
            Some(after) if never == 0 => seconds(after),
            None if never == 0 => "not asked".to_owned(),
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
        } else if self.rounds.count >= SEEDS_FOR_ALL {
            writeln!(f, "  every kind of fault was injected, and has touched something")?;
            if !self.clocks {
                writeln!(f, "  but no wall clock was moved: it cannot be done here")?;
            }
        } else {
            writeln!(f, "  all kinds of faults come about in {SEEDS_FOR_ALL} rounds or more")?;
        }
        self.rounds.tell(f, "rounds")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round in which everything came about.
    fn eventful() -> Outcome {
        let injected = KINDS.concat().into_iter().map(|kind| (kind, 1)).collect();
        Outcome {
            faults: Faults { injected, effects: [1; EFFECTS.len()] },
            tally: Tally {
                not_safe: 1,
                several: 2,
                several_fenced: 1,
                downgrades_confirmed: 1,
                ..Tally::default()
            },
            exclusion: Exclusion {
                together: 1,
                rereading: Rereading { compared: 1, ..Rereading::default() },
                witness: Witness { number: 1, writes: 1, too_late: 0 },
                ..Exclusion::default()
            },
            fences: Fences { store: Store::seen(), holders: 1, disordered: 0 },
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
        outcome.faults.injected.remove(&Kind::KillNode);
        assert_eq!(summary(&outcome).never(), ["kill -9 a node"]);
        // Ordered, but nothing passed.
        let mut outcome = eventful();
        outcome.faults.effects = [0; EFFECTS.len()];
        let summary = summary(&outcome);
        assert!(summary.has_failed() && summary.never().contains(&"reset"));
        assert!(summary.to_string().contains("NEVER INJECTED: "));
    }

    #[test]
    fn an_oracle_that_was_never_asked_fails_the_run() {
        let mut outcome = eventful();
        outcome.exclusion.together = 0;
        let summary = summary(&outcome);
        assert!(summary.has_failed());
        assert!(
            summary.to_string().contains("NEVER ASKED: readers that hold one lock together"),
            "{summary}"
        );
    }

    #[test]
    fn what_cannot_be_done_here_is_not_asked_for_but_said() {
        let mut outcome = eventful();
        outcome.faults.injected.retain(|kind, _| !kind.moves_clock());
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
        outcome.findings.violations.push(violation);
        let mut summary = summary(&eventful());
        summary.add(77, &outcome);
        assert!(summary.has_failed());
        assert!(summary.to_string().ends_with("1 violations, with seeds [77]"), "{summary}");
    }
}
