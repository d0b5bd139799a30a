//! The options and arguments of all commands. [`crate::options`] interprets them.

mod files;
mod lease;
mod lock;
mod nodes;
mod values;

use std::time::Duration;

use clap::{Args, Parser, Subcommand};

pub(crate) use self::files::{Completions, Man};
pub(crate) use self::lease::{Acquire, Extend, LeaseArgs, Query, Release};
pub(crate) use self::lock::{LockArgs, Run, Times};
use self::nodes::ConfigArg;
pub(crate) use self::nodes::{NodeArgs, OutputArgs};
pub(crate) use self::values::{IfHeld, OnLost, WaitArg};
use self::values::{acl_user, load_time};
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
  QUORLOCK_SERVER=/opt/valkey/bin/valkey-server quorlock demo";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Run),
    Acquire(Acquire),
    Extend(Extend),
    Release(Release),
    Query(Query),
    Status(Status),
    Ls(Ls),
    Init(Init),
    Doctor(Doctor),
    Bench(Bench),
    /// See it work: five real servers, and one fault after the other
    ///
    /// Starts five Redis or Valkey servers of its own in a temporary folder, and lets workers in
    /// several processes contend for one lock. Stops and kills servers meanwhile, and shows what each
    /// of them says. Ends with a verdict after about 20 seconds. Needs a redis-server or valkey-server
    /// (QUORLOCK_SERVER names one that is not on the PATH); without one it runs on nodes in memory.
    #[command(after_long_help = DEMO_EXAMPLES)]
    Demo,
    Completions(Completions),
    Man(Man),
}

impl Command {
    /// The options about nodes; `None` for a command without any.
    pub(crate) fn nodes_mut(&mut self) -> Option<&mut NodeArgs> {
        match self {
            Self::Run(args) => Some(&mut args.nodes),
            Self::Acquire(args) => Some(&mut args.nodes),
            Self::Extend(args) => Some(&mut args.nodes),
            Self::Release(args) => Some(&mut args.nodes),
            Self::Query(args) => Some(&mut args.nodes),
            Self::Status(args) => Some(&mut args.nodes),
            Self::Ls(args) => Some(&mut args.nodes),
            Self::Init(args) => Some(&mut args.nodes),
            Self::Doctor(args) => Some(&mut args.nodes),
            Self::Bench(args) => Some(&mut args.nodes),
            Self::Demo | Self::Completions(_) | Self::Man(_) => None,
        }
    }
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
