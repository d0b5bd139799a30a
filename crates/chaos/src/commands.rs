//! Rounds whose locks are held by commands: `quorlock run` as it is shipped, in separate processes.
//!
//! ```text
//!   machines ── each its proxies to the nodes, and a wall clock of its own
//!     lanes  ── one `quorlock run` after the other: keeper, guardian, command
//!                 command ── writes the time into the lock's file, again and again
//!                 events  ── its status descriptor, and how it ends
//! ```
//!
//! Two commands must not write under one lock at the same time where this is promised, and each exit code must
//! fit the events. [`checks`] decides both.

pub(crate) mod checks;
pub(crate) mod lane;
pub(crate) mod plan;
mod round;
mod run;
pub(crate) mod writer;

pub(crate) use self::round::{KINDS, SEEN, STRUCK, needed, run};
