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

    /// The first of them
    #[arg(long, default_value_t = 0, value_name = "SEED", conflicts_with = "seed")]
    pub(crate) from: u64,

    /// Draw the first of them from the time, so that they are seeds that nobody has run
    #[arg(long, conflicts_with_all = ["from", "seed"])]
    pub(crate) fresh: bool,

    /// How many threads to run them on
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) jobs: u16,

    /// Run this seed alone and tell line by line what happens
    #[arg(long, value_name = "SEED")]
    pub(crate) seed: Option<u64>,

    /// Check this invariant alone
    #[arg(long, value_name = "NAME", value_parser = invariant())]
    pub(crate) only: Option<String>,

    /// Say in one line what came of it
    #[arg(long, conflicts_with = "seed")]
    pub(crate) brief: bool,

    /// Make this mistake in every run
    #[cfg(quorlock_mutants)]
    #[arg(long, value_name = "NAME")]
    pub(crate) mutant: Option<String>,

    /// List the mistakes that can be made, the layer of each, and the invariant expected to catch it
    #[cfg(quorlock_mutants)]
    #[arg(long)]
    pub(crate) list_mutants: bool,
}

/// One of those there are.
fn invariant() -> PossibleValuesParser {
    quorlock_sim::SENTENCES.iter().map(|(name, _)| *name).into()
}

impl Args {
    /// The first seed. Drawn in microseconds, so that no two calls share seeds.
    #[expect(clippy::disallowed_methods, reason = "a number that no other day has, and no time")]
    pub(crate) fn base(&self) -> u64 {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        if self.fresh { u64::try_from(now().as_micros()).unwrap_or(u64::MAX) } else { self.from }
    }

    /// The plan of a seed, with what is to be checked.
    pub(crate) fn plan(&self, seed: u64) -> quorlock_sim::Plan {
        quorlock_sim::Plan { only: self.only.clone(), ..quorlock_sim::Plan::draw(seed) }
    }
}

#[cfg(quorlock_mutants)]
impl Args {
    /// Switches on what was asked for, or lists what can be.
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
