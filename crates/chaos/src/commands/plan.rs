//! What is done to keepers, guardians, keys and clocks, and when.

use quorlock_sim::Random;
use quorlock_sim::time::{MS, SECOND, Time};

use super::writer::Kind;
use crate::plan::{PROCESSES, RoundPlan};

/// The locks.
pub(crate) const KEYS: [&str; 3] = ["backup", "report", "import"];

/// How many `quorlock run` a machine runs at a time.
pub(crate) const LANES: usize = 2;

/// The longest time for which a lock is held without being extended. A command that wrongly goes on after its
/// loss goes on for what is left of this; it must be long beside what a busy machine takes.
pub(crate) const TTL: Time = 3 * SECOND;

/// For how long faults are injected.
pub(crate) const FAULTS: Time = 20 * SECOND;

/// Something that is done while a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    StopKeeper,
    KillKeeper,
    TermKeeper,
    StopGuardian,
    KillGuardian,
    TermGuardian,
    /// And the wall clock is stepped: the keeper has to end the command.
    StopGuardianAndStep,
    /// For longer than the lock lives: nobody is left to end the command.
    StopBoth,
    /// Nobody reads the events.
    StallReader,
    /// A stranger deletes the key on some nodes,
    DeleteMinority,
    /// on so many that others may have it,
    DeleteMajority,
    /// or writes over it.
    Overwrite,
    /// The machine's wall clock.
    StepClock,
}

impl Fault {
    pub(crate) const ALL: [Self; 13] = [
        Self::StopKeeper,
        Self::KillKeeper,
        Self::TermKeeper,
        Self::StopGuardian,
        Self::KillGuardian,
        Self::TermGuardian,
        Self::StopGuardianAndStep,
        Self::StopBoth,
        Self::StallReader,
        Self::DeleteMinority,
        Self::DeleteMajority,
        Self::Overwrite,
        Self::StepClock,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::StopKeeper => "SIGSTOP the keeper",
            Self::KillKeeper => "kill -9 the keeper",
            Self::TermKeeper => "SIGTERM the keeper",
            Self::StopGuardian => "SIGSTOP the guardian",
            Self::KillGuardian => "kill -9 the guardian",
            Self::TermGuardian => "SIGTERM the guardian",
            Self::StopGuardianAndStep => "SIGSTOP the guardian, and the clock stepped",
            Self::StopBoth => "SIGSTOP keeper and guardian",
            Self::StallReader => "nobody reads the status descriptor",
            Self::DeleteMinority => "DEL of a key on a minority",
            Self::DeleteMajority => "DEL of a key on a majority",
            Self::Overwrite => "SET over a key",
            Self::StepClock => "a machine's wall clock stepped",
        }
    }

    /// Behind these there were mistakes once.
    const fn is_telling(self) -> bool {
        matches!(
            self,
            Self::StopGuardian
                | Self::KillGuardian
                | Self::StopGuardianAndStep
                | Self::DeleteMajority
                | Self::StepClock
        )
    }

    /// What goes wrong shows in commands of this kind.
    pub(crate) fn suits(self, kind: Kind) -> bool {
        self != Self::StopGuardianAndStep || kind == Kind::Spawning
    }

    /// A wall clock is stepped, which not every build can.
    pub(crate) const fn is_step(self) -> bool {
        matches!(self, Self::StepClock | Self::StopGuardianAndStep)
    }

    /// It is done to the processes of one `quorlock run`, which is spared all else of the kind.
    pub(crate) const fn is_to_processes(self) -> bool {
        matches!(
            self,
            Self::StopKeeper
                | Self::KillKeeper
                | Self::TermKeeper
                | Self::StopGuardian
                | Self::KillGuardian
                | Self::TermGuardian
                | Self::StopGuardianAndStep
                | Self::StopBoth
        )
    }
}

/// A fault and its time, counted from the start of the faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strike {
    pub(crate) at: Time,
    pub(crate) fault: Fault,
    /// How long what is stopped stands still.
    pub(crate) span: Time,
    /// By how much a clock is stepped.
    pub(crate) step: Time,
    /// Draws who is struck.
    pub(crate) word: u64,
}

/// Every fault at least once in each round, but for a step of a clock that cannot be stepped here.
pub(crate) fn strikes(plan: &RoundPlan, can_step: bool) -> Vec<Strike> {
    let mut random = Random::new(plan.seed, 3);
    let mut strikes = Vec::new();
    for fault in Fault::ALL {
        // That is drawn for each `quorlock run` when it is started.
        if fault == Fault::StallReader || fault.is_step() && !can_step {
            continue;
        }
        for _ in 0..1 + random.below(2) + 2 * u64::from(fault.is_telling()) {
            let long = fault == Fault::StopBoth || random.coin();
            strikes.push(Strike {
                at: random.between(FAULTS / 20, FAULTS * 17 / 20),
                fault,
                span: if long {
                    random.between(TTL, 2 * TTL)
                } else {
                    random.between(50 * MS, TTL)
                },
                step: random.pick(&[60 * SECOND, 60 * SECOND, TTL, TTL / 2, -30 * SECOND]),
                word: random.below(u64::MAX),
            });
        }
    }
    strikes.sort_by_key(|strike| strike.at);
    strikes
}

/// The machines are the processes of the other rounds, as far as proxies are concerned.
pub(crate) const MACHINES: usize = PROCESSES;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_has_every_fault() {
        for seed in 0..100 {
            let plan = RoundPlan::commands(seed, true);
            let strikes = strikes(&plan, true);
            for fault in Fault::ALL {
                let has = strikes.iter().any(|strike| strike.fault == fault);
                assert_eq!(has, fault != Fault::StallReader, "{fault:?}");
            }
            assert_eq!(strikes, super::strikes(&plan, true), "a seed is a schedule");
            assert_eq!(plan.events.is_empty(), seed % 2 == 0, "half of the rounds are calm");
        }
    }
}
