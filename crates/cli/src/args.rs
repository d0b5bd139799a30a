//! The options and arguments of all commands. [`crate::options`] interprets them.

mod files;
mod nodes;
mod values;

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueHint};
use quorlock::env::duration;

pub(crate) use self::files::{Completions, Man};
use self::nodes::ConfigArg;
pub(crate) use self::nodes::{NodeArgs, OutputArgs};
pub(crate) use self::values::{IfHeld, WaitArg};
use self::values::{acl_user, load_time, number};
use crate::exit_code;

/// A lock over several independent Redis or Valkey servers
///
/// A client holds the lock while a majority of the servers has granted it.
#[derive(Debug, Parser)]
#[command(name = "quorlock", version, max_term_width = 80)]
#[command(after_long_help = exit_code::HELP)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,

    // Options that may stand before or behind the command.
    #[command(flatten)]
    config: ConfigArg,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

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

const STATUS_EXAMPLES: &str = "\
Examples:
  quorlock status deploy
  quorlock status deploy --watch
  quorlock status deploy nightly --json
  quorlock status deploy --exit-code && echo free";

const LS_EXAMPLES: &str = "\
Examples:
  quorlock ls
  quorlock ls 'deploy-*' --json
  quorlock ls --holder web-7";

const INIT_EXAMPLES: &str = "\
Examples:
  New servers, or no lock is in use: all nodes vote at once
    quorlock init --fresh

  Replace node c by d:
    quorlock init --reconfigure -n a=redis://10.0.0.1 -n b=redis://10.0.0.2 \\
      -n d=redis://10.0.0.4 --old-node c=redis://10.0.0.3";

const DOCTOR_EXAMPLES: &str = "\
Examples:
  quorlock doctor
  quorlock doctor --quiet || echo 'look at the nodes'
  quorlock doctor --acl locker
  quorlock doctor --systemd > /etc/systemd/system/redis.service.d/quorlock.conf";

const BENCH_EXAMPLES: &str = "\
Examples:
  quorlock bench --time 5s
  quorlock bench --json > measured.json";

const DEMO_EXAMPLES: &str = "\
Examples:
  quorlock demo
  quorlock demo --memory";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Run),
    Status(Status),
    Ls(Ls),
    Init(Init),
    Doctor(Doctor),
    Bench(Bench),
    Demo(Demo),
    Completions(Completions),
    Man(Man),
}

impl Command {
    /// The options about nodes; `None` for a command without any.
    pub(crate) fn nodes_mut(&mut self) -> Option<&mut NodeArgs> {
        match self {
            Self::Run(args) => Some(&mut args.nodes),
            Self::Status(args) => Some(&mut args.nodes),
            Self::Ls(args) => Some(&mut args.nodes),
            Self::Init(args) => Some(&mut args.nodes),
            Self::Doctor(args) => Some(&mut args.nodes),
            Self::Bench(args) => Some(&mut args.nodes),
            Self::Demo(_) | Self::Completions(_) | Self::Man(_) => None,
        }
    }
}

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
    /// The lock's name; any text. All users of the same name exclude each other
    pub(crate) key: String,

    /// Lock this as well: CMD runs while KEY and all of these are held. Repeatable. They are taken
    /// together or not at all, so two commands that name them in another order never wait for each
    /// other
    #[arg(long, value_name = "KEY2")]
    pub(crate) also: Vec<String>,

    /// Share the lock with others that use --shared; it excludes all that do not. A command without
    /// --shared that waits is let in before those with it that come later
    #[arg(long, env = "QUORLOCK_SHARED")]
    pub(crate) shared: bool,

    /// The command and its arguments: all words from the first one after KEY on. Options of quorlock
    /// stand before it. Put -- before the command if its first word begins with -
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    pub(crate) cmd: Vec<OsString>,

    #[command(flatten)]
    pub(crate) times: Times,

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

    /// Ask for a fencing token: a number that is larger than that of every earlier holder. The
    /// resource that CMD writes to can then refuse holders that have lost the lock. CMD finds it in
    /// QUORLOCK_FENCE. Either all users of KEY ask for one, or none
    #[arg(long, env = "QUORLOCK_FENCED")]
    pub(crate) fenced: bool,

    /// Describe this holder to those who ask who holds the lock [default: the command's name]
    #[arg(long, env = "QUORLOCK_LABEL", value_name = "TEXT")]
    pub(crate) label: Option<String>,

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

impl Run {
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.key).chain(&self.also).map(String::as_str)
    }

    /// The keys with `", "` between them. A message puts this text between quotation marks.
    pub(crate) fn title(&self) -> String {
        let keys: Vec<String> = self.keys().map(|key| key.escape_debug().to_string()).collect();
        keys.join("\", \"")
    }
}

/// How long a run waits, holds the lock, and gives the command to end
#[derive(Debug, Args)]
pub(crate) struct Times {
    /// How long nodes keep the lock without an extension; at least 500ms. A crashed holder blocks
    /// others for this time [default: 10s, or --max-ttl if that is shorter]
    #[arg(long, env = "QUORLOCK_TTL", value_parser = duration, value_name = "TIME")]
    pub(crate) ttl: Option<Duration>,

    /// How long to try: a time, 0s for a single attempt, or "forever" [default: 60s]
    #[arg(long, short = 'w', env = "QUORLOCK_WAIT", value_name = "TIME")]
    pub(crate) wait: Option<WaitArg>,

    /// The longest time to hold the lock. It is not extended beyond this, ends at most one TTL
    /// before it, and then counts as lost [default: 24h]
    #[arg(long, env = "QUORLOCK_MAX_HOLD", value_parser = duration, value_name = "TIME")]
    pub(crate) max_hold: Option<Duration>,

    /// Hold the lock for at least this time. CMD may end sooner: for jobs that several machines start
    /// "at the same time". The key is then left to expire, up to one TTL later
    #[arg(long, env = "QUORLOCK_MIN_HOLD", value_parser = duration, value_name = "TIME")]
    pub(crate) min_hold: Option<Duration>,

    /// Send SIGTERM this time before the lock ends: at least as early as SIGKILL, and less than a
    /// third of the TTL [default: TTL/5]. SIGKILL follows max(5% of TTL, 50ms) before the lock ends
    #[arg(long, env = "QUORLOCK_KILL_AFTER", value_parser = duration, value_name = "TIME")]
    pub(crate) kill_after: Option<Duration>,
}

/// Show who holds the locks KEY…, node by node
///
/// The verdict is HELD (one holder has a quorum), FREE (a quorum of nodes is free), SPLIT (neither)
/// or UNKNOWN. It is UNKNOWN if too few nodes answered, or if too many of those that say it is free
/// may have forgotten it. The exit code is then 69, or 77 if rights are missing.
#[derive(Debug, Args)]
#[command(after_long_help = STATUS_EXAMPLES)]
pub(crate) struct Status {
    /// The locks' names
    #[arg(required = true, value_name = "KEY")]
    pub(crate) keys: Vec<String>,

    /// Exit with 75 if any of the locks is held or split, and with 0 if all are free. A lock that is
    /// UNKNOWN comes first: 69 or 77
    #[arg(long)]
    pub(crate) exit_code: bool,

    /// Look again every second, until interrupted
    #[arg(long)]
    pub(crate) watch: bool,

    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

/// List every lock on the nodes, with its holder
///
/// Looks at all keys of all nodes in small steps, so other clients are served in between. A lock
/// that is held throughout is listed, and a lock that is listed was held at some time meanwhile.
/// Keys of other programs are not listed. Needs the right to SCAN.
///
/// Exit code 0, also if there are no locks; 69 if fewer than a quorum of nodes could be looked at,
/// 77 if rights are missing.
#[derive(Debug, Args)]
#[command(after_long_help = LS_EXAMPLES)]
pub(crate) struct Ls {
    /// Only locks whose names match this pattern: * stands for any text, ? for one character, [ab]
    /// for one of these. Put it between quotation marks
    pub(crate) glob: Option<String>,

    /// Only locks whose holder's description contains this text
    #[arg(long, value_name = "TEXT")]
    pub(crate) holder: Option<String>,

    /// Only locks that fewer than a quorum of nodes have: they are lost, or just being taken or
    /// released
    #[arg(long)]
    pub(crate) stale: bool,

    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

/// Take new nodes into use, or change nodes, quorum or --max-ttl
///
/// A server that was never used, or has lost its data, cannot be told from one that has forgotten
/// its locks. Its votes count after a wait of a bit more than the longest TTL. Nothing need be done
/// for that. With --fresh its votes count at once. With --reconfigure the nodes of --node replace
/// the old ones, or change their quorum or longest TTL, without two holders in between. No locks
/// are granted meanwhile, for a bit more than the longest TTL, old or new.
///
/// Exit code 0 if a quorum of nodes votes now, 69 if not. With --fresh also 75 if locks are in use,
/// and 77 if the user may not look for them, a password is wrong or a command is missing.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true))]
#[command(after_long_help = INIT_EXAMPLES)]
pub(crate) struct Init {
    /// You know that no lock is in use: all nodes vote at once. Refused if a lock is found on them.
    /// If this is wrong, two clients may hold one lock
    #[arg(long, group = "what")]
    pub(crate) fresh: bool,

    /// Change the list of nodes, the quorum or --max-ttl to what is given here. The old settings
    /// are read from the nodes. If the command is interrupted, run it again
    #[arg(long, group = "what")]
    pub(crate) reconfigure: bool,

    /// A node of the old list that is not in the new one, with its old name. Repeatable. Needed if
    /// fewer than N - Q + 1 of the old nodes are in the new list
    #[arg(long, value_name = "[NAME=]URL", requires = "reconfigure", conflicts_with = "fresh")]
    pub(crate) old_node: Vec<String>,

    /// Do not ask whether a lock is in use, or whether locks may be refused meanwhile
    #[arg(long)]
    pub(crate) yes: bool,

    /// With --fresh: go on although locks are in use, or that could not be found out, or the nodes
    /// have other settings so far. Two clients may then hold one lock
    #[arg(long, requires = "fresh", conflicts_with = "reconfigure")]
    pub(crate) force: bool,

    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

/// Find out whether the nodes are fit to hold locks
///
/// Asks each node what it is, and tries what the user may do there, on a key of its own that is
/// gone afterwards. Says what is found, why it matters for locks, and what fixes it. Changes
/// nothing.
///
/// Exit code 0 if all is well, 1 if there are warnings, 2 if there are errors.
#[derive(Debug, Args)]
#[command(after_long_help = DOCTOR_EXAMPLES)]
pub(crate) struct Doctor {
    /// Also show findings that are only for information
    #[arg(long)]
    pub(crate) notes: bool,

    /// Print only the command that gives USER the rights that locks need on these nodes, and no
    /// others. Put it behind redis-cli -h HOST -p PORT
    #[arg(long, value_name = "USER", value_parser = acl_user, conflicts_with_all = ["systemd", "json"])]
    pub(crate) acl: Option<String>,

    /// Print only a drop-in for the servers' systemd unit. It delays a restart until no earlier
    /// lock can still be held, and so also protects users of other libraries
    #[arg(long, conflicts_with = "json")]
    pub(crate) systemd: bool,

    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

/// Measure your own nodes, which loads them
///
/// Says how long it will load the nodes, and begins at once, with up to 64 locks at a time, as fast
/// as they go. Measures each node's round trip, acquire and release by 1, 8 and 64 lockers on keys
/// of their own, and how long a lock takes from one client to another that waits for it. Every key
/// begins with "quorlock-bench:", behind --key-prefix, and is given back; if interrupted, the last
/// ones expire with their TTL of 10s. Nothing else on the nodes is read or changed.
///
/// `cargo xtask bench`, in the source, compares quorlock with others on servers of its own.
#[derive(Debug, Args)]
#[command(after_long_help = BENCH_EXAMPLES)]
pub(crate) struct Bench {
    /// How long to load the nodes, 1s to 10m
    #[arg(long, default_value = "10s", value_parser = load_time, value_name = "TIME")]
    pub(crate) time: Duration,

    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

/// See it work: five real servers, and one fault after the other
///
/// Starts five Redis or Valkey servers of its own in a temporary folder, and lets workers in
/// several processes contend for one lock. Stops and kills servers meanwhile, and shows what each
/// of them says. Ends with a verdict after about 20 seconds. Needs a redis-server or valkey-server
/// (QUORLOCK_SERVER names one that is not on the PATH); without one it runs on nodes in memory.
#[derive(Debug, Args)]
#[command(after_long_help = DEMO_EXAMPLES)]
pub(crate) struct Demo {
    /// Run on nodes in memory even if there is a server
    #[arg(long)]
    pub(crate) memory: bool,

    /// Listen on ports of 127.0.0.1 instead of Unix sockets
    #[arg(long)]
    pub(crate) tcp: bool,
}
