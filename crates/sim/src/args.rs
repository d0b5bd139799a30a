//! The command line.

use clap::Parser;

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

    /// How many threads to run them on
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) jobs: u16,

    /// Run this seed alone and tell line by line what happens
    #[arg(long, value_name = "SEED")]
    pub(crate) seed: Option<u64>,

    /// Make this mistake in every run
    #[cfg(quorlock_mutants)]
    #[arg(long, value_name = "NAME")]
    pub(crate) mutant: Option<String>,

    /// List the mistakes that can be made, and the layer of each
    #[cfg(quorlock_mutants)]
    #[arg(long)]
    pub(crate) list_mutants: bool,
}

#[cfg(quorlock_mutants)]
impl Args {
    /// Switches on what was asked for, or lists what can be.
    pub(crate) fn switch_on(&self) -> Result<(), std::process::ExitCode> {
        use std::process::ExitCode;

        if self.list_mutants {
            for (name, layer) in quorlock_sim::mutants::all() {
                println!("{name}\t{layer}");
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
