use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;

use quorlock_servers::{BENCH_COMMAND_VARIABLE, SERVER_VARIABLE, ServerBinary};

use crate::{Outcome, cargo, install};

/// Replaces this process by the benchmark (exec). Returns only if exec fails.
pub(crate) fn run(workspace: &Path, server: &ServerBinary, args: &[OsString]) -> Outcome {
    if !args.iter().any(|arg| arg == "quick" || arg == "--no-rivals") {
        install::rivals(workspace);
    }
    let typed = args.iter().fold("cargo xtask bench".to_owned(), |typed, arg| {
        format!("{typed} {}", arg.to_string_lossy())
    });
    let error = cargo(workspace)
        .args(["run", "--release", "--package", "quorlock-bench", "--"])
        .args(args)
        .env(SERVER_VARIABLE, &server.path)
        .env(BENCH_COMMAND_VARIABLE, typed)
        .exec();
    Err(format!("cargo: {error}"))
}
