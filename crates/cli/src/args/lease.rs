//! The options of the commands for shell scripts: a lock is taken by one command and released by a later one.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use quorlock::settings::duration;

use super::values::other_process;
use super::{LockArgs, NodeArgs, OnLost};
use crate::exit_code;

const ACQUIRE_EXAMPLES: &str = "\
Examples:
  A script that holds the lock until it ends, however it ends:
    lease=$(quorlock acquire deploy --wait 5m --hold-by $$) || exit
    trap 'QUORLOCK_LEASE=$lease quorlock release' EXIT
    ./build && ./deploy

  The same without a keeper: the lock ends after --ttl unless it is extended
    lease=$(quorlock acquire deploy --ttl 30s --wait 5m) || exit
    trap 'QUORLOCK_LEASE=$lease quorlock release' EXIT
    step_one && next=$(QUORLOCK_LEASE=$lease quorlock extend) || exit
    lease=$next; step_two

  In fish:
    set lease (quorlock acquire deploy --hold-by $fish_pid); or exit
    function give_back --on-event fish_exit
        QUORLOCK_LEASE=$lease quorlock release
    end
    ./build; and ./deploy

  Taken by one job and released by another one:
    quorlock acquire deploy --ttl 30s --lease-file deploy.lease --quiet";

const EXTEND_EXAMPLES: &str = "\
Examples:
  next=$(QUORLOCK_LEASE=$lease quorlock extend) && lease=$next || exit
  quorlock extend --lease-file deploy.lease --quiet
  quorlock extend cart-7 --value checkout-42 --ttl 10s";

const RELEASE_EXAMPLES: &str = "\
Examples:
  QUORLOCK_LEASE=$lease quorlock release
  quorlock release --lease-file deploy.lease
  quorlock release cart-7 --value checkout-42";

const QUERY_EXAMPLES: &str = "\
Examples:
  quorlock query cart-7
  if value=$(quorlock query cart-7); then echo \"taken by $value\"; fi";

/// Take the lock KEY for a shell script, and print a lease
///
/// The lease is one line without spaces. `quorlock extend` and `quorlock release` take it, from any
/// process and on any machine. Whoever has the line can end the lock; it contains no password. If
/// the lock is not acquired, nothing is printed. A signal before the line is printed, such as
/// Ctrl-C, gives the lock back.
///
/// Nothing extends the lock after that, unless --hold-by is given: it ends after --ttl, and another
/// client can have it. A message says when.
///
/// With --json one object is printed: lease, keys, kind, fence, valid_for_ms, valid_until_unix_ms,
/// keeper_pid.
#[derive(Debug, Args)]
#[command(after_long_help = format!("{ACQUIRE_EXAMPLES}\n\n{}", exit_code::ACQUIRE))]
pub(crate) struct Acquire {
    #[command(flatten)]
    pub(crate) lock: LockArgs,

    /// Extend the lock while process PID lives; release it when PID ends. A script names itself by
    /// $$ (fish: $fish_pid). A process of another user needs --on-lost none
    ///
    /// A keeper does this: a process in the background, which survives this command and holds no
    /// file or terminal open. After kill -9 of the script, its children run on without the lock. At
    /// logout, a service manager may end the keeper; the lock then ends within one TTL
    #[arg(long, value_name = "PID", value_parser = other_process)]
    pub(crate) hold_by: Option<i32>,

    /// With --hold-by: the signal that PID gets if the lock is lost, or "none". It is sent a fifth
    /// of the TTL before the lock ends, or at once if the lock is gone already. Only PID gets it,
    /// not its children
    #[arg(
        long,
        hide_short_help = true,
        value_name = "SIGNAL",
        default_value = "TERM",
        requires = "hold_by"
    )]
    pub(crate) on_lost: OnLost,

    /// With --hold-by: append a line to FILE if the lock is lost, with the time and the reason. The
    /// same line goes to the standard error of PID, except where that is a socket, as under systemd
    #[arg(long, hide_short_help = true, value_name = "FILE", requires = "hold_by")]
    pub(crate) log: Option<PathBuf>,

    /// Also write the lease to this file. Only its owner can read it. A file that holds no lease is
    /// not overwritten. If the file cannot be written, the lock is given back and nothing is printed
    #[arg(long, value_name = "PATH")]
    pub(crate) lease_file: Option<PathBuf>,

    /// Store V as the lock's value. `quorlock query` prints it, and clients of other libraries can
    /// compare it. The lock is refused if it is held, even with the same value. Not with --shared,
    /// --fenced, --also or --label
    #[arg(long, value_name = "V")]
    pub(crate) value: Option<String>,

    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

/// Extend a lock by its TTL, and print the new lease
///
/// The lock is valid for one TTL from now. The old lease can still release the lock. A lock that is
/// over cannot be extended: the exit code is 79.
///
/// With --value, KEY names the lock, and every lock that stores V at KEY is extended. This is safe
/// only while one client at a time uses V. The command then prints a message and no lease.
///
/// Exit code 0 if the lock was extended; 65 if the lease is damaged or belongs to other nodes; 69
/// if too few nodes confirmed the extension; 70 if the lock was extended but the new lease cannot
/// be written; 77 if a log-in failed or rights are missing; 79 if the lock is over, if --max-hold
/// allows no further extension, or if KEY has another value or is free. After 69 or 77 the lock
/// ends when the old lease says, unless a later extend succeeds.
#[derive(Debug, Args)]
#[command(override_usage = "QUORLOCK_LEASE=<LEASE> quorlock extend [OPTIONS]\n       \
                            quorlock extend [OPTIONS] <LEASE>\n       \
                            quorlock extend [OPTIONS] --lease-file <PATH>\n       \
                            quorlock extend [OPTIONS] <KEY> --value <V>")]
#[command(after_long_help = EXTEND_EXAMPLES)]
pub(crate) struct Extend {
    #[command(flatten)]
    pub(crate) lease: LeaseArgs,

    /// The TTL with --value [default: 10s, or --max-ttl if that is shorter]. Refused for a lease,
    /// which keeps the TTL of its acquire
    #[arg(long, value_parser = duration)]
    pub(crate) ttl: Option<Duration>,

    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

/// Release a lock by its lease
///
/// Ends the lock's keeper if there is one, and deletes what the lease describes and nothing else.
/// If the lock is over already, a message says so, and the exit code is 0.
///
/// With --value, KEY names the lock, and whatever stores V at KEY is deleted. This is safe only
/// while one client at a time uses V: if the lock has expired and another client has taken it with
/// the same V, this command ends that client's lock. Prefer the lease.
///
/// Exit code 0 if the lock is released or over, or KEY is free; 65 if the lease is damaged or
/// belongs to other nodes; 69 if too few nodes confirmed the release, 77 if rights are missing: the
/// lock ends by itself within its TTL; 70 if the file cannot be deleted; 79 if KEY has another value
/// than V.
#[derive(Debug, Args)]
#[command(override_usage = "QUORLOCK_LEASE=<LEASE> quorlock release [OPTIONS]\n       \
                            quorlock release [OPTIONS] <LEASE>\n       \
                            quorlock release [OPTIONS] --lease-file <PATH>\n       \
                            quorlock release [OPTIONS] <KEY> --value <V>")]
#[command(after_long_help = RELEASE_EXAMPLES)]
pub(crate) struct Release {
    #[command(flatten)]
    pub(crate) lease: LeaseArgs,

    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

/// The lease, or a key and its value
#[derive(Debug, Args)]
pub(crate) struct LeaseArgs {
    /// The line that acquire or extend printed, or - to read it from standard input. With --value,
    /// the lock's name. Without LEASE and --lease-file, the line is read from QUORLOCK_LEASE. Prefer
    /// that: every user of the machine can read an argument while the command runs
    #[arg(value_name = "LEASE", conflicts_with = "lease_file")]
    pub(crate) lease: Option<String>,

    /// Read the lease from this file. extend writes the new lease to it, and release deletes it
    /// after the release
    #[arg(long, value_name = "PATH")]
    pub(crate) lease_file: Option<PathBuf>,

    /// Name the lock by its key and by this value instead of a lease. Safe only while one client at
    /// a time uses this value
    #[arg(long, value_name = "V", requires = "lease", conflicts_with = "lease_file")]
    pub(crate) value: Option<String>,
}

/// Print the value that a quorum of nodes stores for the lock KEY
///
/// This is a look and no promise: the lock may have changed before the value is printed.
///
/// Exit code 0 if a quorum stores one value, which is printed; 1 if the lock is free; 75 if there
/// is no such value: the nodes store different ones, readers hold the lock, or the key is of another
/// type; 69 if too few nodes answered, or may have forgotten the lock, 77 if rights are missing.
#[derive(Debug, Args)]
#[command(after_long_help = QUERY_EXAMPLES)]
pub(crate) struct Query {
    /// The lock's name
    pub(crate) key: String,

    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}
