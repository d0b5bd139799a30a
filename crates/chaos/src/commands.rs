//! Rounds in which commands hold the locks: `quorlock run` as it is shipped, in separate processes. Its keeper process
//! holds the lock, and its guardian process ends the command in time if the keeper fails.
//!
//! ```text
//!   machines ── each has its own proxies to the nodes and its own wall clock
//!     lanes  ── one `quorlock run` after the other: keeper, guardian, command
//!                 command ── writes the time into the lock's file, again and again
//!                 events  ── read from the status descriptor of `quorlock run`
//! ```
//!
//! Some lanes (a lane runs one command after the other) run a script instead. The script holds its lock by `quorlock
//! acquire --hold-by`, `extend` and `release`, and starts a writer that stops at the end of the lease, before another
//! client can get the lock.
//!
//! [`checks`] tests two promises: two commands never write under one lock at the same time where `docs/cli.md` rules
//! this out, and each exit code fits the events.

pub(crate) mod checks;
pub(crate) mod lane;
pub(crate) mod plan;
mod round;
mod run;
pub(crate) mod writer;

pub(crate) use self::round::{KINDS, SEEN, STRUCK, has_leases, needed, run};
