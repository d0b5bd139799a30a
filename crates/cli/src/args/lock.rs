//! The options of the commands that take a lock.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueHint};
use quorlock::LockOptions;
use quorlock::env::{boolean, default_ttl, duration};

use super::values::number;
use super::{IfHeld, NodeArgs, WaitArg};
use crate::exit_code;

const RUN_EXAMPLES: &str = "\
Examples:
  export QUORLOCK_NODES=redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3

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

    /// The command and its arguments: all words from the first one after KEY on. Options of quorlock
    /// stand before it. Put -- before the command if its first word begins with -
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    pub(crate) cmd: Vec<OsString>,

    /// Hold the lock for at least this time. CMD may end sooner: for jobs that several machines start
    /// "at the same time". The key is then left to expire, up to one TTL later
    #[arg(long, env = "QUORLOCK_MIN_HOLD", value_parser = duration, value_name = "TIME")]
    pub(crate) min_hold: Option<Duration>,

    /// Send SIGTERM this time before the lock ends: at least as early as SIGKILL, and less than a
    /// third of the TTL [default: TTL/5]. SIGKILL follows max(5% of TTL, 50ms) before the lock ends
    #[arg(long, env = "QUORLOCK_KILL_AFTER", value_parser = duration, value_name = "TIME")]
    pub(crate) kill_after: Option<Duration>,

    /// Fail, skip or wait if it is held: fail with exit code 75 or skip CMD and exit 0, both after
    /// --wait; or wait for at most --wait until its holders are done, and then exit 0 without
    /// running CMD
    #[arg(long, env = "QUORLOCK_IF_HELD", default_value = "fail", value_name = "WHAT")]
    #[arg(hide_possible_values = true)]
    pub(crate) if_held: IfHeld,

    /// Exit with this code instead of 75 if others hold the lock
    #[arg(long, short = 'E', env = "QUORLOCK_HELD_EXIT_CODE", value_name = "N")]
    #[arg(value_parser = number::<u8>)]
    pub(crate) held_exit_code: Option<u8>,

    /// Write one JSON object per event to this open file descriptor: waiting, acquired, extended,
    /// lost, released, each with its fields. Open a file that others write to as well with >>
    #[arg(long, env = "QUORLOCK_STATUS_FD", value_name = "N", value_parser = number::<u32>)]
    pub(crate) status_fd: Option<u32>,

    /// Leave the nodes' settings in CMD's environment: QUORLOCK_NODES, QUORLOCK_PASSWORD,
    /// QUORLOCK_CONFIG and all other variables of the section "Nodes"
    #[arg(long, env = "QUORLOCK_PASS_NODES")]
    pub(crate) pass_nodes: bool,

    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

/// The lock that a command takes
#[derive(Debug, Args)]
pub(crate) struct LockArgs {
    /// The lock's name; any text. All users of the same name exclude each other
    pub(crate) key: String,

    /// Lock this as well: KEY and all of these are held at the same time. Repeatable. They are taken
    /// together or not at all, so two commands that name them in another order never wait for each
    /// other
    #[arg(long, value_name = "KEY2")]
    pub(crate) also: Vec<String>,

    /// Share the lock with others that use --shared; it excludes all that do not. A command without
    /// --shared that waits is let in before those with it that come later
    #[arg(long, env = "QUORLOCK_SHARED")]
    pub(crate) shared: bool,

    /// Ask for a fencing token: a number that is larger than that of every earlier holder. The
    /// resource that the holder writes to can then refuse holders that have lost the lock. Either
    /// all users of KEY ask for one, or none
    #[arg(long, env = "QUORLOCK_FENCED")]
    pub(crate) fenced: bool,

    #[command(flatten)]
    pub(crate) times: Times,

    /// Describe this holder to those who ask who holds the lock [default: the command's name]
    #[arg(long, env = "QUORLOCK_LABEL", value_name = "TEXT")]
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
    /// How long nodes keep the lock without an extension; with run or a keeper at least 500ms. A
    /// crashed holder blocks others for this time [default: 10s, or --max-ttl if that is shorter]
    #[arg(long, env = "QUORLOCK_TTL", value_parser = duration, value_name = "TIME")]
    pub(crate) ttl: Option<Duration>,

    /// How long to try: a time, 0s for a single attempt, or "forever" [default: 60s]
    #[arg(long, short = 'w', env = "QUORLOCK_WAIT", value_name = "TIME")]
    pub(crate) wait: Option<WaitArg>,

    /// Whether the wait leaves gaps for clients that poll, while other libraries used the lock in the
    /// last ten seconds [default: true]
    #[arg(long, env = "QUORLOCK_YIELD_TO_POLLERS", value_parser = boolean, value_name = "BOOL")]
    pub(crate) yield_to_pollers: Option<bool>,

    /// The longest time to hold the lock. It is not extended beyond this, ends at most one TTL
    /// before it, and then counts as lost [default: 24h]
    #[arg(long, env = "QUORLOCK_MAX_HOLD", value_parser = duration, value_name = "TIME")]
    pub(crate) max_hold: Option<Duration>,
}

impl Times {
    pub(crate) fn ttl(&self, nodes: &NodeArgs) -> Duration {
        self.ttl.unwrap_or_else(|| default_ttl(nodes.max_ttl))
    }

    pub(crate) fn max_hold(&self) -> Duration {
        self.max_hold.unwrap_or(LockOptions::DEFAULT_MAX_HOLD)
    }

    pub(crate) fn wait(&self) -> WaitArg {
        self.wait.unwrap_or(WaitArg::For(Duration::from_secs(60)))
    }
}
