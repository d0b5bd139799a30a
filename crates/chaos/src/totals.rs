//! The counts of one round or of several rounds.

use std::collections::BTreeMap;
use std::fmt;

use quorlock_sim::time::Time;
use serde::Serialize;

use crate::clock::seconds;
use crate::ledger::Findings;
use crate::plan::RoundPlan;

/// Titles of the sections.
pub(crate) const FAULTS: &str = "faults injected";
pub(crate) const CONNECTIONS: &str = "effects of the faults";
pub(crate) const CALLS: &str = "what callers saw";
pub(crate) const OPERATIONS: &str = "operations of callers while faults were injected";
pub(crate) const LOST: &str = "locks lost while held, by cause";
pub(crate) const CHECKED: &str = "what the oracles looked at";
pub(crate) const WRONG: &str = "what was wrong";
pub(crate) const OUTSIDE: &str =
    "what was wrong in rounds beyond the assumptions of mutual exclusion";

/// Names of counts of every kind of round.
pub(crate) const GRANTED: &str = "locks granted";
pub(crate) const KEYS_LEFT: &str = "keys left on the nodes";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Totals {
    pub(crate) rounds: u64,
    pub(crate) interrupted: u64,
    pub(crate) violations: usize,
    pub(crate) failed_seeds: Vec<u64>,
    pub(crate) counts: BTreeMap<String, BTreeMap<String, u64>>,
    /// Longest time (ns) from the end of the faults until every client had a lock again. `None`: it never was so.
    pub(crate) healed_within: Option<Time>,
    pub(crate) never_healed: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) totals: Totals,
    pub(crate) findings: Findings,
}

impl Outcome {
    pub(crate) fn new(
        plan: &RoundPlan,
        interrupted: bool,
        mut totals: Totals,
        healed: Option<Time>,
        findings: Findings,
    ) -> Self {
        (totals.rounds, totals.interrupted) = (u64::from(!interrupted), u64::from(interrupted));
        totals.healed_within = healed;
        totals.never_healed = u64::from(plan.heals && !interrupted && healed.is_none());
        totals.violations = findings.violations.len();
        totals.failed_seeds.extend((totals.violations > 0).then_some(plan.seed));
        Self { totals, findings }
    }
}

impl Totals {
    pub(crate) fn count(&mut self, section: &str, name: &str, by: u64) {
        let section = self.counts.entry(section.to_owned()).or_default();
        *section.entry(name.to_owned()).or_default() += by;
    }

    pub(crate) fn get(&self, section: &str, name: &str) -> u64 {
        self.counts.get(section).and_then(|counts| counts.get(name)).copied().unwrap_or(0)
    }

    pub(crate) fn sum(&self, section: &str) -> u64 {
        self.counts.get(section).map_or(0, |counts| counts.values().sum())
    }

    pub(crate) fn add(&mut self, round: &Self) {
        self.rounds += round.rounds;
        self.interrupted += round.interrupted;
        self.violations += round.violations;
        self.failed_seeds.extend(&round.failed_seeds);
        self.healed_within = self.healed_within.max(round.healed_within);
        self.never_healed += round.never_healed;
        for (section, counts) in &round.counts {
            counts.iter().for_each(|(name, by)| self.count(section, name, *by));
        }
    }

    /// Returns the names of counts that must not be zero and are still zero after `enough` rounds.
    pub(crate) fn missing<'a>(&self, needed: &[(&str, &'a str)], enough: u64) -> Vec<&'a str> {
        let missing = needed.iter().filter(|(section, name)| self.get(section, name) == 0);
        if self.rounds < enough { Vec::new() } else { missing.map(|(_, name)| *name).collect() }
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (section, counts) in &self.counts {
            writeln!(f, "{section}")?;
            for (name, count) in counts {
                writeln!(f, "  {name:<62}{count:>9}")?;
            }
        }
        if let Some(within) = self.healed_within {
            writeln!(f, "after healing, every client had a lock within {}", seconds(within))?;
        }
        if self.never_healed > 0 {
            writeln!(f, "a client had NO LOCK after healing in {} rounds", self.never_healed)?;
        }
        let interrupted = if self.interrupted > 0 { ", and one that was interrupted" } else { "" };
        write!(f, "{} rounds{interrupted}", self.rounds)?;
        match &self.failed_seeds[..] {
            [] => Ok(()),
            seeds => write!(f, "; {} violations, with seeds {seeds:?}", self.violations),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::RoundKind;
    use crate::ledger::Violation;
    use crate::plan::Abilities;

    fn plan(seed: u64) -> RoundPlan {
        RoundPlan::draw(RoundKind::Library, seed, Abilities::default())
    }

    #[test]
    fn rounds_add_up_and_zero_counts_are_missing_after_enough_of_them() {
        let mut round = Totals::default();
        round.count("faults", "kill -9 a node", 2);
        let outcome = Outcome::new(&plan(7), false, round, Some(5), Findings::default());
        let mut sum = Totals::default();
        (0..3).for_each(|_| sum.add(&outcome.totals));
        assert_eq!((sum.rounds, sum.get("faults", "kill -9 a node"), sum.sum("faults")), (3, 6, 6));
        let needed = [("faults", "kill -9 a node"), ("faults", "reset")];
        assert_eq!(sum.missing(&needed, 3), ["reset"]);
        assert!(sum.missing(&needed, 4).is_empty(), "too few rounds");
        assert!(sum.to_string().contains("kill -9 a node"), "{sum}");
    }

    #[test]
    fn a_violation_names_its_seed_and_an_interrupted_round_does_not_count() {
        let violation = Violation { at: 0, what: "two hold one lock".to_owned() };
        let findings = Findings { violations: vec![violation], ..Findings::default() };
        let mut sum = Outcome::new(&plan(77), false, Totals::default(), None, findings).totals;
        sum.add(
            &Outcome::new(&plan(78), true, Totals::default(), None, Findings::default()).totals,
        );
        assert_eq!((sum.rounds, sum.interrupted, sum.never_healed), (1, 1, 1));
        assert!(sum.to_string().ends_with("interrupted; 1 violations, with seeds [77]"), "{sum}");
    }
}
