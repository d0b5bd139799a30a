use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::ExitCode;

use quorlock_servers::{SERVER_VARIABLE, ServerBinary};

use crate::{cargo, install};

/// Environment variable from which the benchmark takes the command line for its report. Its `machine.rs` has a copy.
const COMMAND_VARIABLE: &str = "QUORLOCK_BENCH_COMMAND";

/// Replaces this process by the benchmark (exec). Returns only if exec fails.
pub(crate) fn run(workspace: &Path, server: &ServerBinary, args: &[OsString]) -> ExitCode {
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
        .env(COMMAND_VARIABLE, typed)
        .exec();
    eprintln!("xtask: cannot run cargo: {error}");
    ExitCode::from(2)
}
