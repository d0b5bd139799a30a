//! A store that refuses whoever has been overtaken: fencing tokens with SQLite, from end to end.
//!
//! ```text
//! cargo run --example fenced_store    # on servers of its own
//! ```
//!
//! Two processes withdraw from one account under a lock. The first one is stopped (`SIGSTOP`, as a
//! laptop's lid or a long garbage collection would) between its reading and its writing. Its lock
//! ends meanwhile; the second one takes it, and withdraws. Then the first goes on, where it was: it
//! still believes that it holds the lock, for nobody could tell it. Without a fence it would write its
//! balance over the other's. With one, the store refuses it.

mod store;
mod story;
mod withdraw;

use std::error::Error;
use std::process::{Command, ExitCode};

/// Without more, the whole story; its processes are this program again.
fn main() -> Result<ExitCode, Box<dyn Error>> {
    if withdraw::is_wanted() {
        return withdraw::run();
    }
    story::run(|| Ok(Command::new(std::env::current_exe()?)))?;
    Ok(ExitCode::SUCCESS)
}
