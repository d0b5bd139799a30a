//! `quorlock-sim`: runs a number of seeds, or one seed with its trace.

mod args;
mod runs;

use std::process::ExitCode;

use clap::Parser as _;

use crate::args::Args;

fn main() -> ExitCode {
    let args = Args::parse();
    #[cfg(quorlock_mutants)]
    if let Err(code) = args.switch_on() {
        return code;
    }
    match args.seed {
        Some(seed) => runs::replay(&args, seed),
        None => runs::many(&args),
    }
}
