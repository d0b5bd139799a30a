//! The options of the commands that take a lock.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueHint};
use quorlock::LockOptions;
use quorlock::settings::{boolean, default_ttl, duration, number};

use super::{IfHeld, NodeArgs, WaitArg};
use crate::exit_code;

const RUN_EXAMPLES: &str = "\
Examples:
  export QUORLOCK_NODES=a=redis://10.0.0.1,b=redis://10.0.0.2,c=redis://10.0.0.3

  Wait up to a minute, then run the command while the lock is held:
    quorlock run deploy -- ./deploy.sh --all

  From cron on several machines: one of them runs the job, the others skip it:
    quorlock run nightly --wait 0s --if-held skip --min-hold 5m -- ./report.sh

  Two locks at once, and readers that share one:
    quorlock run stock --also prices -- ./import
    quorlock run --shared stock -- ./read-only-report";

/// Run a command while holding the lock KEY
///
/// Takes the lock, runs CMD, extends the lock while CMD runs, and gives the lock back. If the lock
/// is lost, CMD and all its descendants in this session are ended before another client can have
/// the lock. This works even if quorlock itself is stopped or killed. A descendant that starts a
/// session of its own (setsid) escapes.
///
/// The environment of CMD has QUORLOCK_KEY, QUORLOCK_TOKEN, with --fenced QUORLOCK_FENCE, and
/// QUORLOCK_VALID_UNTIL_MS. The last one is the Unix time in milliseconds until which the lock is
/// held if it is never extended. The variables that describe this call (QUORLOCK_TTL,
/// QUORLOCK_SHARED, …) are removed. So are those that describe the nodes, unless --pass-nodes is
/// given.
#[derive(Debug, Args)]
#[command(override_usage = "quorlock run [OPTIONS] <KEY> [--] <CMD>...")]
#[command(after_long_help = format!("{RUN_EXAMPLES}\n\n{}", exit_code::HELP))]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) lock: LockArgs,

    /// The command and its arguments, such as ./deploy.sh --all: all words from the first one after KEY
    /// on. Options of quorlock stand before it. Put -- before the command if its first word begins
    /// with -
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    pub(crate) cmd: Vec<OsString>,

    #[arg(long, value_parser = duration)]
    pub(crate) min_hold: Option<Duration>,

    #[arg(long, hide_short_help = true, value_parser = duration)]
    pub(crate) kill_after: Option<Duration>,

    #[arg(long, default_value = "fail")]
    #[arg(hide_possible_values = true)]
    pub(crate) if_held: IfHeld,

    #[arg(long, hide_short_help = true, short = 'E')]
    #[arg(value_parser = number::<u8>)]
    pub(crate) held_exit_code: Option<u8>,

    #[arg(long, hide_short_help = true, value_parser = number::<u32>)]
    pub(crate) status_fd: Option<u32>,

    #[arg(long)]
    pub(crate) pass_nodes: bool,

    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

/// The lock that a command takes
#[derive(Debug, Args)]
pub(crate) struct LockArgs {
    /// The lock's name, such as deploy; any text. All users of the same name exclude each other
    pub(crate) key: String,

    /// Lock this as well: KEY and all of these are held at the same time. Repeatable. They are taken
    /// together or not at all, so two commands that name them in another order never wait for each
    /// other
    #[arg(long, value_name = "KEY2")]
    pub(crate) also: Vec<String>,

    #[arg(long)]
    pub(crate) shared: bool,

    #[arg(long)]
    pub(crate) fenced: bool,

    #[command(flatten)]
    pub(crate) times: Times,

    #[arg(long, hide_short_help = true)]
    pub(crate) label: Option<String>,
}

impl LockArgs {
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.key).chain(&self.also).map(String::as_str)
    }

    /// The keys with `", "` between them. A message puts this text between quotation marks.
    pub(crate) fn title(&self) -> String {
        let keys: Vec<String> = self.keys().map(|key| key.escape_debug().to_string()).collect();
        keys.join("\", \"")
    }
}

/// How long a command waits for the lock and holds it
#[derive(Debug, Args)]
pub(crate) struct Times {
    #[arg(long, value_parser = duration)]
    pub(crate) ttl: Option<Duration>,

    #[arg(long, short = 'w')]
    pub(crate) wait: Option<WaitArg>,

    // The client's builder reads the value, as that of a setting of the nodes.
    #[arg(long, value_parser = boolean)]
    pub(crate) yield_to_pollers: Option<bool>,

    #[arg(long, hide_short_help = true, value_parser = duration)]
    pub(crate) max_hold: Option<Duration>,
}

impl Times {
    pub(crate) fn ttl(&self, nodes: &NodeArgs) -> Duration {
        self.ttl.unwrap_or_else(|| default_ttl(nodes.max_ttl()))
    }

    pub(crate) fn max_hold(&self) -> Duration {
        self.max_hold.unwrap_or(LockOptions::DEFAULT_MAX_HOLD)
    }

    pub(crate) fn wait(&self) -> WaitArg {
        self.wait.unwrap_or(WaitArg::For(Duration::from_secs(60)))
    }
}
