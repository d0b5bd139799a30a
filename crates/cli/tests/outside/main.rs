//! Messages, exit codes, events, JSON and the commands that the server receives, compared with this folder's files.
//!
//! Tokens, times, process ids and addresses differ from run to run, so a placeholder replaces each.
//! `UPDATE_EXPECT=1 cargo test -p quorlock-cli --test outside` records the files again. Explain each difference in the
//! commit message. The texts of servers differ, so the files are for one version of Redis.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

#[path = "../common/mod.rs"]
mod common;

mod arguments;
mod locks;
mod nodes;
mod scene;
mod wire;
