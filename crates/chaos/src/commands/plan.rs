//! Draws the faults of keepers (processes that hold a lock), guardians (which end commands), keys and clocks.

use quorlock_sim::Random;
use quorlock_sim::time::{MS, SECOND, Time};

use super::writer::Kind;
use crate::plan::{PROCESSES, RoundPlan};

pub(crate) const KEYS: [&str; 3] = ["backup", "report", "import"];

pub(crate) const LANES: usize = 2;

/// The ttl of the locks. A command that wrongly survives the loss of its lock runs for the rest of the ttl, which is
/// much longer than a correct command needs to end, even on a busy machine. So the checks can tell the two apart.
pub(crate) const TTL: Time = 3 * SECOND;

pub(crate) const FAULTS: Time = 20 * SECOND;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    StopKeeper,
    KillKeeper,
    TermKeeper,
    StopGuardian,
    KillGuardian,
    TermGuardian,
    /// The guardian is stopped and the wall clock jumps, so the keeper has to end the command.
    StopGuardianAndStep,
    /// Keeper and guardian are stopped for longer than the lock lives, so neither can end the command.
    StopBoth,
    /// A script and its keeper are killed. Nobody releases the lock.
    KillBoth,
    StallReader,
    DeleteMinority,
    /// The key is deleted on a majority, so that another client may get the lock.
    DeleteMajority,
    Overwrite,
    StepClock,
}

impl Fault {
    pub(crate) const ALL: [Self; 14] = [
        Self::StopKeeper,
        Self::KillKeeper,
        Self::TermKeeper,
        Self::StopGuardian,
        Self::KillGuardian,
        Self::TermGuardian,
        Self::StopGuardianAndStep,
        Self::StopBoth,
        Self::KillBoth,
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
            Self::KillBoth => "kill -9 a script and its keeper",
            Self::StallReader => "the status descriptor is not read",
            Self::DeleteMinority => "DEL of a key on a minority",
            Self::DeleteMajority => "DEL of a key on a majority",
            Self::Overwrite => "SET over a key",
            Self::StepClock => "a machine's wall clock stepped",
        }
    }

    /// Whether a round injects the fault more often: it has uncovered bugs in quorlock, or rarely finds a target.
    const fn is_telling(self) -> bool {
        matches!(
            self,
            Self::StopGuardian
                | Self::KillGuardian
                | Self::KillBoth
                | Self::StopGuardianAndStep
                | Self::DeleteMajority
                | Self::StepClock
        )
    }

    /// Whether a run whose command is of this kind can show that quorlock handles the fault wrongly.
    pub(crate) fn suits(self, kind: Kind) -> bool {
        self != Self::StopGuardianAndStep || kind == Kind::Spawning
    }

    /// Whether the fault may be injected into a command of this kind. If the command is a script, faults of the keeper
    /// strike the script, and faults of the guardian strike the script's keeper.
    pub(crate) fn fits(self, kind: Kind) -> bool {
        match self {
            Self::KillBoth => kind == Kind::Script,
            Self::StopGuardianAndStep => kind != Kind::Script,
            _ => true,
        }
    }

    /// Whether the fault is a wall-clock jump. Only a special build of quorlock has a wall clock that can be set.
    pub(crate) const fn is_step(self) -> bool {
        matches!(self, Self::StepClock | Self::StopGuardianAndStep)
    }

    /// Whether the fault concerns the processes of one `quorlock run`. Each run has at most one such fault.
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
                | Self::KillBoth
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strike {
    pub(crate) at: Time,
    pub(crate) fault: Fault,
    pub(crate) span: Time,
    pub(crate) step: Time,
    /// The random number that selects the target of the fault, such as a run or a node.
    pub(crate) word: u64,
}

/// Draws every fault at least once per round. Without `can_step`, wall-clock jumps are left out.
pub(crate) fn strikes(plan: &RoundPlan, can_step: bool, has_leases: bool) -> Vec<Strike> {
    let mut random = Random::new(plan.seed, 3);
    let mut strikes = Vec::new();
    for fault in Fault::ALL {
        // `StallReader` has no time of its own: whether a run's events are read is drawn when the run starts.
        let is_left_out = match fault {
            Fault::StallReader => true,
            Fault::KillBoth => !has_leases,
            _ => fault.is_step() && !can_step,
        };
        if is_left_out {
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

/// The number of machines. Like a worker process in library rounds, each machine has its own proxy to each node.
pub(crate) const MACHINES: usize = PROCESSES;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_has_every_fault() {
        for seed in 0..100 {
            let plan = RoundPlan::commands(seed, true);
            let strikes = strikes(&plan, true, true);
            for fault in Fault::ALL {
                let has = strikes.iter().any(|strike| strike.fault == fault);
                assert_eq!(has, fault != Fault::StallReader, "{fault:?}");
            }
            assert_eq!(strikes, super::strikes(&plan, true, true), "a seed is a schedule");
            assert_eq!(plan.events.is_empty(), seed % 2 == 0, "half of the rounds are calm");
        }
    }
}
