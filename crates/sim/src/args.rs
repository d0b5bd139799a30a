//! The command line.

use std::time::{SystemTime, UNIX_EPOCH};

use clap::Parser;
use clap::builder::PossibleValuesParser;

/// Runs quorlock's engine in virtual time against model nodes and a faulty network.
#[derive(Debug, Parser)]
#[command(name = "quorlock-sim", version)]
pub(crate) struct Args {
    /// How many seeds to run
    #[arg(long, default_value_t = 1000, value_name = "N", conflicts_with = "seed")]
    pub(crate) seeds: u64,

    /// The first seed
    #[arg(long, default_value_t = 0, value_name = "SEED", conflicts_with = "seed")]
    pub(crate) from: u64,

    /// Draw the first seed from the time, so that no earlier run used these seeds
    #[arg(long, conflicts_with_all = ["from", "seed"])]
    pub(crate) fresh: bool,

    /// Number of threads
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) jobs: u16,

    /// Run only this seed and print each event
    #[arg(long, value_name = "SEED")]
    pub(crate) seed: Option<u64>,

    /// Check only this invariant
    #[arg(long, value_name = "NAME", value_parser = invariant())]
    pub(crate) only: Option<String>,

    /// Print the result in one line
    #[arg(long, conflicts_with = "seed")]
    pub(crate) brief: bool,

    /// Switch on this mutant, a deliberate bug, in every run
    #[cfg(quorlock_mutants)]
    #[arg(long, value_name = "NAME")]
    pub(crate) mutant: Option<String>,

    /// List the mutants, the layer of each, and the invariant expected to catch it
    #[cfg(quorlock_mutants)]
    #[arg(long)]
    pub(crate) list_mutants: bool,
}

fn invariant() -> PossibleValuesParser {
    quorlock_sim::SENTENCES.iter().map(|(name, _)| *name).into()
}

impl Args {
    /// The first seed. With `fresh`, it is the present time in microseconds, so that a later run draws other seeds.
    #[expect(clippy::disallowed_methods, reason = "a new seed, not a time")]
    pub(crate) fn base(&self) -> u64 {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        if self.fresh { u64::try_from(now().as_micros()).unwrap_or(u64::MAX) } else { self.from }
    }

    pub(crate) fn plan(&self, seed: u64) -> quorlock_sim::Plan {
        let plan = quorlock_sim::Plan::draw(seed);
        // The plan's own limit takes precedence: a plan with replicas checks only mutual exclusion.
        quorlock_sim::Plan { only: plan.only.clone().or_else(|| self.only.clone()), ..plan }
    }
}

#[cfg(quorlock_mutants)]
impl Args {
    /// Switches on the mutant, or lists all mutants.
    pub(crate) fn switch_on(&self) -> Result<(), std::process::ExitCode> {
        use std::process::ExitCode;

        if self.list_mutants {
            for mistake in quorlock_sim::mutants::all() {
                println!("{}", mistake.join("\t"));
            }
            return Err(ExitCode::SUCCESS);
        }
        match &self.mutant {
            Some(name) if !quorlock_sim::mutants::switch_on(name) => {
                eprintln!("quorlock-sim: there is no mutant {name:?}; see --list-mutants");
                Err(ExitCode::from(2))
            }
            _ => Ok(()),
        }
    }
}
