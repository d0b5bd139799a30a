//! The command line.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Parser, Subcommand, ValueEnum};

use crate::sentinel::SentinelArgs;
use crate::workers::WORKER;

/// Breaks real servers, connections and processes under quorlock, and watches the locks
///
/// Each round starts servers and processes of its own, waits until the servers vote, injects the faults of its seed for
/// some seconds, heals everything, and checks whether a lock ever had two holders. A library round also checks for lost
/// updates, fencing tokens that did not grow, numbers that changed while readers held the lock, keys that are left
/// over, and clients that got no lock after the healing. So does a round with replicas, in which the replicas of
/// masters are promoted. A command round checks whether two `quorlock run` wrote under one lock at the same time where
/// this is excluded, and whether exit codes match the events. Each seed runs a library and a command round, every fifth
/// seed also one with replicas. Exit code 1 if a check failed, 2 if no round could be run.
#[derive(Debug, Parser)]
#[command(name = "quorlock-chaos", version, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    /// The time to run, in minutes; at least one round is run
    #[arg(long, value_name = "M", default_value_t = 1.0, value_parser = minutes)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) minutes: f64,

    /// The seed of the first round. Later rounds count up. A seed repeats its faults [default: drawn from the time]
    #[arg(long, value_name = "S", allow_negative_numbers = true)]
    pub(crate) seed: Option<u64>,

    /// The server to run: a path, or a program on the PATH [default: as in tests, the first of QUORLOCK_SERVER,
    /// the PATH and target/servers]
    #[arg(long, value_name = "SERVER")]
    pub(crate) server: Option<String>,

    /// Let a majority of the nodes lose its data again and again, first without the restart guard, then with
    /// it. Exit code 0 if a lock has two holders without the guard, and no lock has with it
    #[arg(long, conflicts_with = "minutes")]
    pub(crate) negative: bool,

    /// Run rounds of this kind only
    #[arg(long, value_name = "KIND", conflicts_with = "negative")]
    pub(crate) only: Option<RoundKind>,

    /// The `quorlock` to run [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    pub(crate) quorlock: Option<PathBuf>,

    /// End after the first round with a violation
    #[arg(long)]
    pub(crate) stop_at_first: bool,

    /// Print each event, not just faults and results
    #[arg(long)]
    pub(crate) journal: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoundKind {
    /// Processes that use the library
    Library,
    /// `quorlock run`
    Commands,
    /// Processes that use the library on nodes with replicas, which are promoted
    Replicas,
    /// Processes that use the library on a master behind Sentinels
    #[value(skip)]
    Sentinel,
}

impl RoundKind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Library => "library",
            Self::Commands => "commands",
            Self::Replicas => "replicas",
            Self::Sentinel => "sentinel",
        }
    }

    /// Whether a seed has this kind of round if all kinds run. Every fifth seed has a round with replicas.
    pub(crate) const fn is_of(self, seed: u64) -> bool {
        match self {
            Self::Library | Self::Commands => true,
            Self::Replicas => seed.is_multiple_of(5),
            Self::Sentinel => false,
        }
    }
}

impl Args {
    /// The first seed. By default it is the time in seconds, which is short enough to be typed. Seeds count up by one
    /// per round, and a round takes longer than a second, so a later run uses other seeds.
    #[expect(clippy::disallowed_methods, reason = "a new seed, not a time")]
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
        /// The worker's job
        job: String,
    },
    Sentinel(SentinelArgs),
}

const MINUTES_MAX: f64 = 20_160.0;

fn minutes(text: &str) -> Result<f64, String> {
    let minutes: f64 = text.parse().map_err(|_| "not a number of minutes".to_owned())?;
    if minutes.is_finite() && minutes > 0.0 && minutes <= MINUTES_MAX {
        Ok(minutes)
    } else {
        Err(format!("must be above 0 and at most {MINUTES_MAX}"))
    }
}
