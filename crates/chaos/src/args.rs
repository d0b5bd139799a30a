//! The command line.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Parser, Subcommand, ValueEnum};

use crate::workers::WORKER;

/// Breaks real servers, connections and processes under quorlock, and watches the locks
///
/// Each round starts servers and processes of its own, waits until the servers vote, does to them for
/// seconds what its seed says, heals everything, and looks whether two ever held one lock. With the
/// library: also whether an update was lost, fences did not grow, a holder had too few votes, a key
/// is left, or somebody got no lock any more. With commands: whether what two `quorlock run` have written
/// under one lock overlaps where it must not, and whether exit codes say what happened. Each seed is a
/// round of both. Exit code 1 if something was wrong, 2 if nothing could be run.
#[derive(Debug, Parser)]
#[command(name = "quorlock-chaos", version, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    /// How long, in minutes; at least one round is run
    #[arg(long, value_name = "M", default_value_t = 1.0, value_parser = minutes)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) minutes: f64,

    /// The seed of the first round, the next one has the next; the same seed is the same schedule
    /// [default: one drawn from the time]
    #[arg(long, value_name = "S", allow_negative_numbers = true)]
    pub(crate) seed: Option<u64>,

    /// The server to run: a path, or a program on the PATH [default: as the tests, the first of
    /// QUORLOCK_SERVER, the PATH and target/servers]
    #[arg(long, value_name = "SERVER")]
    pub(crate) server: Option<String>,

    /// Run one kind of fault without the restart guard, and once more with it: a majority of the nodes loses its data
    /// and is back at once, again and again. Exit code 0 if a lock has two holders without it, and none with it
    #[arg(long, conflicts_with = "minutes")]
    pub(crate) negative: bool,

    /// Run rounds of this kind only
    #[arg(long, value_name = "KIND", conflicts_with = "negative")]
    pub(crate) only: Option<RoundKind>,

    /// The `quorlock` to run [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    pub(crate) quorlock: Option<PathBuf>,

    /// End with the first round in which something was wrong
    #[arg(long)]
    pub(crate) stop_at_first: bool,

    /// List the mistakes that can be made, and where
    #[cfg(quorlock_mutants)]
    #[arg(long, hide = true)]
    pub(crate) list_mutants: bool,

    /// Tell everything that happens, not just what is done and what comes of it
    #[arg(long)]
    pub(crate) journal: bool,
}

/// A kind of rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoundKind {
    /// Processes that use the library
    Library,
    /// `quorlock run`
    Commands,
}

impl RoundKind {
    /// As it is given on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Library => "library",
            Self::Commands => "commands",
        }
    }
}

impl Args {
    /// The first seed. From the time in seconds, so that it can be typed; no round is that short, so no
    /// two calls share seeds.
    #[expect(clippy::disallowed_methods, reason = "a number that no other day has, and no time")]
    pub(crate) fn base(&self) -> u64 {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.seed.unwrap_or_else(|| now().as_secs())
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// A process that takes locks
    #[command(name = WORKER, hide = true)]
    Worker {
        /// What it is to do
        job: String,
    },
}

/// Two weeks is as long as anybody means.
const MINUTES_MAX: f64 = 20_160.0;

fn minutes(text: &str) -> Result<f64, String> {
    let minutes: f64 = text.parse().map_err(|_| "not a number of minutes".to_owned())?;
    if minutes.is_finite() && minutes > 0.0 && minutes <= MINUTES_MAX {
        Ok(minutes)
    } else {
        Err(format!("must be above 0 and at most {MINUTES_MAX}"))
    }
}
