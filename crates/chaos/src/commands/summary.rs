//! What is told at the end of rounds with commands.

use std::collections::BTreeMap;
use std::fmt;

use quorlock_sim::time::Time;

use super::plan::Fault;
use super::round::Done;
use super::writer::Kind;
use crate::ledger::seconds;
use crate::summary::Rounds;

/// After so many rounds every kind of command and every fault must have come about.
const ENOUGH: u64 = 4;

/// The sum of all rounds.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    /// Machines' wall clocks can be stepped.
    can_step: bool,
    rounds: Rounds,
    struck: BTreeMap<Fault, u64>,
    kinds: BTreeMap<Kind, u64>,
    codes: BTreeMap<i32, u64>,
    causes: BTreeMap<String, u64>,
    overlaps: u64,
    excused: BTreeMap<&'static str, u64>,
    broken: u64,
    healed: Option<Time>,
}

impl Summary {
    pub(crate) fn new(can_step: bool) -> Self {
        Self { can_step, ..Self::default() }
    }

    /// Adds a round.
    pub(crate) fn add(&mut self, seed: u64, done: &Done) {
        self.rounds.add(seed, done.interrupted, &done.findings);
        add(&mut self.struck, &done.struck);
        add(&mut self.kinds, &done.kinds);
        add(&mut self.codes, &done.codes);
        add(&mut self.causes, &done.causes);
        add(&mut self.excused, &done.excused);
        self.overlaps += done.overlaps;
        self.broken += done.injected.values().sum::<u64>();
        self.healed = self.healed.max(done.healed);
    }

    pub(crate) const fn rounds(&self) -> u64 {
        self.rounds.count
    }

    /// In some round something was wrong.
    pub(crate) const fn has_violations(&self) -> bool {
        self.rounds.have_violations()
    }

    /// What never came about although it must have.
    fn never(&self) -> Vec<&'static str> {
        if self.rounds.count < ENOUGH {
            return Vec::new();
        }
        let struck = |fault: &&Fault| {
            !self.struck.contains_key(fault) && (self.can_step || !fault.is_step())
        };
        let faults = Fault::ALL.iter().filter(struck).map(|fault| fault.name());
        let kinds = Kind::ALL.iter().filter(|kind| !self.kinds.contains_key(kind));
        faults.chain(kinds.map(|kind| kind.name())).collect()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.has_violations() || !self.never().is_empty()
    }
}

fn add<K: Clone + Ord>(sums: &mut BTreeMap<K, u64>, counts: &BTreeMap<K, u64>) {
    for (name, count) in counts {
        *sums.entry(name.clone()).or_default() += count;
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |map: &BTreeMap<Kind, u64>, kind| map.get(kind).copied().unwrap_or(0);
        writeln!(f, "commands that held a lock and wrote")?;
        for kind in &Kind::ALL {
            writeln!(f, "  {:<54}{:>9}", kind.name(), count(&self.kinds, kind))?;
        }
        writeln!(f, "faults injected while a command held a lock")?;
        for fault in &Fault::ALL {
            let count = self.struck.get(fault).copied().unwrap_or(0);
            writeln!(f, "  {:<54}{count:>9}", fault.name())?;
        }
        writeln!(f, "  {:<54}{:>9}", "to servers and connections", self.broken)?;
        writeln!(f, "what `quorlock run` said")?;
        for (code, count) in &self.codes {
            writeln!(f, "  {:<54}{count:>9}", format!("exit code {code}"))?;
        }
        for (cause, count) in &self.causes {
            writeln!(f, "  {:<54}{count:>9}", format!("lost: {cause}"))?;
        }
        writeln!(f, "what was seen")?;
        writeln!(
            f,
            "  {:<54}{:>9}",
            "two commands that wrote under one lock at the same time", self.overlaps
        )?;
        for (why, count) in &self.excused {
            writeln!(f, "  {:<54}{count:>9}", format!("not promised: {why}"))?;
        }
        if let Some(after) = self.healed {
            writeln!(
                f,
                "  {:<54}{:>9}",
                "after healing, every machine had a lock within",
                seconds(after)
            )?;
        }
        if !self.can_step {
            writeln!(
                f,
                "  but no wall clock was stepped: only `cargo xtask chaos` can build that"
            )?;
        }
        let never = self.never();
        if !never.is_empty() {
            writeln!(f, "  NEVER CAME ABOUT: {}", never.join(", "))?;
        } else if self.rounds.count >= ENOUGH {
            writeln!(f, "  every kind of command and every fault has come about")?;
        } else {
            writeln!(f, "  all of that comes about in {ENOUGH} rounds or more")?;
        }
        self.rounds.tell(f, "rounds with commands")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Findings;

    fn done() -> Done {
        Done {
            struck: Fault::ALL.map(|fault| (fault, 1)).into(),
            kinds: Kind::ALL.map(|kind| (kind, 1)).into(),
            ..Done::default()
        }
    }

    fn after(rounds: u64, done: &Done, can_step: bool) -> Summary {
        let mut summary = Summary::new(can_step);
        (0..rounds).for_each(|seed| summary.add(seed, done));
        summary
    }

    #[test]
    fn what_never_came_about_in_a_long_run_fails_it() {
        assert!(!after(ENOUGH, &done(), true).has_failed());
        let mut without = done();
        without.struck.remove(&Fault::StepClock);
        assert!(after(ENOUGH, &without, true).has_failed());
        assert!(!after(ENOUGH, &without, false).has_failed(), "it cannot be done there");
        without.kinds.remove(&Kind::Forking);
        let summary = after(ENOUGH, &without, false);
        assert!(summary.to_string().contains("NEVER CAME ABOUT: ends, and its children go on"));
        assert!(!after(ENOUGH - 1, &without, false).has_failed(), "too short for all");
    }

    #[test]
    fn a_violation_fails_the_run_and_names_its_seed() {
        let violation = crate::ledger::Violation { at: 0, what: "two write".to_owned() };
        let findings = Findings { violations: vec![violation], ..Findings::default() };
        let summary = after(1, &Done { findings, ..done() }, true);
        assert!(summary.has_failed());
        assert!(summary.to_string().ends_with("1 violations, with seeds [0]"), "{summary}");
    }
}
