//! The options and arguments of all commands. [`crate::options`] interprets them.

mod files;
mod lease;
mod lock;
mod nodes;
mod values;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub(crate) use self::files::{Completions, Man};
pub(crate) use self::lease::{Acquire, Extend, LeaseArgs, Query, Release};
pub(crate) use self::lock::{LockArgs, Run, Times};
pub(crate) use self::nodes::{NodeArgs, OutputArgs};
use self::values::acl_user;
pub(crate) use self::values::{IfHeld, OnLost, WaitArg};
use crate::exit_code;

/// Where the nodes come from, and the first commands.
const START_HERE: &str = "\
The nodes come from --node, QUORLOCK_NODES or a file (--config).

Examples:
  export QUORLOCK_NODES=a=redis://10.0.0.1,b=redis://10.0.0.2,c=redis://10.0.0.3
  quorlock doctor
  quorlock run deploy -- ./deploy.sh";

/// A lock over several independent Redis or Valkey servers
///
/// A client holds the lock while a majority of the servers has granted it.
#[derive(Debug, Parser)]
#[command(name = "quorlock", version, max_term_width = 80)]
#[command(after_help = START_HERE)]
#[command(after_long_help = format!("{START_HERE}\n\n{}", exit_code::HELP))]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,

    // Options that may stand before or behind the command.
    #[arg(long, global = true)]
    config: Option<PathBuf>,

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
  New servers, or all clients are stopped: all nodes vote at once
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
    /// See it work: five nodes in memory, and one fault after the other
    ///
    /// Lets twelve workers contend for one lock on five nodes in the memory of this process. Freezes
    /// and kills nodes meanwhile, and shows what each of them says. Ends after about 20 seconds with a
    /// verdict, and with what to do next. Needs no server.
    #[command(after_long_help = "Examples:\n  quorlock demo")]
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
/// Exit code 0 if a quorum of nodes votes now, 69 if not; 75 if locks are in use or clients are
/// connected; 77 if a password is wrong, a command is missing or, with --fresh, the user may not
/// look for locks.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true))]
#[command(after_long_help = INIT_EXAMPLES)]
pub(crate) struct Init {
    /// All clients are stopped, so no lock is in use: all nodes vote at once. Refused if a lock or a
    /// connected client is found on them. If this is wrong, two clients may hold one lock
    #[arg(long, group = "what")]
    pub(crate) fresh: bool,

    /// Change the list of nodes, the quorum or --max-ttl to what is given here. The old settings
    /// are read from the nodes. Refused if a lock or a connected client is found on them. If the
    /// command is interrupted, run it again
    #[arg(long, group = "what")]
    pub(crate) reconfigure: bool,

    /// A node of the old list, with its old name. Repeatable, or comma separated. Needed if fewer
    /// than N - Q + 1 of the old nodes are in the new list under their old names. It may be a server
    /// of the new list that had another name
    #[arg(long, value_name = "[NAME=]URL", requires = "reconfigure", conflicts_with = "fresh")]
    pub(crate) old_node: Vec<String>,

    /// Answer yes to the question: with --fresh, that all clients are stopped; with --reconfigure,
    /// that no lock need be granted until the change is done
    #[arg(long)]
    pub(crate) yes: bool,

    /// Go on even if locks are in use or clients are connected. With --reconfigure their commands get
    /// SIGTERM. With --fresh also if it is not known, or if the nodes have other settings: two clients
    /// may then hold one lock
    #[arg(long)]
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
    /// others. Run it as the arguments of redis-cli -h HOST -p PORT
    #[arg(long, value_name = "USER", value_parser = acl_user, conflicts_with_all = ["systemd", "json"])]
    pub(crate) acl: Option<String>,

    /// Print only a drop-in for the servers' systemd unit. It delays a restart until no earlier
    /// lock can still be held, and so also protects users of other libraries
    #[arg(long, conflicts_with = "json")]
    pub(crate) systemd: bool,

    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}
