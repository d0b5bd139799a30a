//! A store that refuses writes of an earlier holder: fencing tokens with SQLite, from end to end.
//!
//! ```text
//! cargo run --example fenced_store    # starts its own servers
//! ```
//!
//! Two processes withdraw from one account under a lock. The first one is stopped between its read and its write, by
//! `SIGSTOP`, as a suspended laptop or a long garbage collection would stop it. Its lock ends meanwhile, and the
//! second process acquires the lock and withdraws. Then the first process resumes. It still believes that it holds
//! the lock. Without a fencing token its write would overwrite the other's balance. With the token, the store refuses
//! the write.

mod store;
mod story;
mod withdraw;

use std::error::Error;
use std::process::{Command, ExitCode};

/// Runs the whole story. The story starts this program again for each of its two processes.
fn main() -> Result<ExitCode, Box<dyn Error>> {
    if withdraw::is_wanted() {
        return withdraw::run();
    }
    story::run(|| Ok(Command::new(std::env::current_exe()?)))?;
    Ok(ExitCode::SUCCESS)
}
