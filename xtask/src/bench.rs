use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;

use quorlock_servers::{BENCH_COMMAND_VARIABLE, SERVER_VARIABLE, ServerBinary};

use crate::{Outcome, cargo, install};

const ROUND_TRIPS: &str = "round-trips";

/// Replaces this process by the benchmark (exec). Returns only if exec fails.
pub(crate) fn run(workspace: &Path, server: &ServerBinary, args: &[OsString]) -> Outcome {
    let has = |word| args.iter().any(|arg| arg == word);
    if !["quick", "--no-rivals", ROUND_TRIPS].into_iter().any(has) {
        install::rivals(workspace);
    }
    if has(ROUND_TRIPS) {
        // The program whose `run` is counted.
        let build = ["build", "--release", "--package", "quorlock-cli"];
        let built = cargo(workspace).args(build).status();
        if !built.map_err(|error| format!("cargo: {error}"))?.success() {
            return Ok(false);
        }
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
