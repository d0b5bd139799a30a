//! `cargo xtask bench`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::ExitCode;

use quorlock_servers::SERVER_VARIABLE;

use crate::cargo;
use crate::install::server_or_exit;

/// Tells the benchmark what was typed: the report names it. The same word stands in its `machine.rs`.
const COMMAND_VARIABLE: &str = "QUORLOCK_BENCH_COMMAND";

/// Becomes the benchmark. Returns only if that fails.
pub(crate) fn run(workspace: &Path, args: impl Iterator<Item = OsString>) -> ExitCode {
    let server = match server_or_exit(workspace) {
        Ok(server) => server,
        Err(code) => return code,
    };
    let args: Vec<OsString> = args.collect();
    let typed = args.iter().fold("cargo xtask bench".to_owned(), |typed, arg| {
        format!("{typed} {}", arg.to_string_lossy())
    });
    let error = cargo(workspace)
        .args(["run", "--release", "--package", "quorlock-bench", "--"])
        .args(args)
        .env(SERVER_VARIABLE, server.path)
        .env(COMMAND_VARIABLE, typed)
        .exec();
    eprintln!("xtask: cannot run cargo: {error}");
    ExitCode::from(2)
}
