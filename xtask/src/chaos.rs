//! `cargo xtask chaos` and `cargo xtask sentinel`: builds chaos, and becomes it.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use quorlock_servers::{SERVER_VARIABLE, ServerBinary};

use crate::Outcome;
use crate::special_build::{STEPPED, UNOPTIMIZED};

/// Build arguments. The small test `proxy` is built too, because cargo then chooses the same features of dependencies
/// as for all tests, and does not compile the dependencies again. In this dev build, debug assertions are on.
const PROGRAMS: &[&str] =
    &["--workspace", "--bin", "quorlock-chaos", "--bin", "quorlock", "--test", "proxy"];

/// Replaces this process by chaos (exec), so that chaos gets the signals. Returns only if exec fails.
pub(crate) fn run(workspace: &Path, server: &ServerBinary, args: &[OsString]) -> Outcome {
    let program = build(workspace)?;
    let error = Command::new(&program).args(args).env(SERVER_VARIABLE, &server.path).exec();
    Err(format!("{}: {error}", program.display()))
}

/// Builds chaos and the program `quorlock` that it tests, both with a wall clock that tests can set forward or back.
pub(crate) fn build(workspace: &Path) -> Result<PathBuf, String> {
    let build = [&["build", "--quiet"], UNOPTIMIZED, PROGRAMS].concat();
    STEPPED.program(workspace, &build, "quorlock-chaos")
}
