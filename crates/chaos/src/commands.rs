//! Rounds whose locks are held by commands: `quorlock run`, as it is shipped, in processes of its own.
//!
//! ```text
//!   machines ── each its proxies to the nodes, and a wall clock of its own
//!     lanes  ── one `quorlock run` after the other: keeper, guardian, command
//!                 command ── writes the time into the lock's file, again and again
//!                 events  ── its status descriptor, and how it ends
//! ```
//!
//! What two commands have written under one lock must not overlap where that is promised, and each
//! exit code must say what has happened. [`checks`] decides both.

pub(crate) mod checks;
pub(crate) mod lane;
pub(crate) mod plan;
mod round;
mod run;
pub(crate) mod writer;

pub(crate) use self::round::{KINDS, SEEN, STRUCK, needed, run};
