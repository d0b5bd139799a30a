//! `cargo xtask demo`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::ExitCode;

use quorlock_servers::{NotFound, SERVER_VARIABLE};

use crate::cargo;
use crate::install::ensure_server;

/// Becomes the demo: from here on its terminal, its signals and its exit code are ours.
/// Returns only if that fails.
pub(crate) fn run(workspace: &Path, args: &[OsString]) -> ExitCode {
    let mut demo = cargo(workspace);
    match ensure_server(workspace) {
        Ok(binary) => {
            demo.env(SERVER_VARIABLE, binary.path);
        }
        // The demo can do without, and says itself that it does.
        Err(help @ NotFound::Nowhere) => eprintln!("xtask: {help}"),
        Err(wrong) => {
            eprintln!("xtask: {wrong}");
            return ExitCode::FAILURE;
        }
    }
    demo.args(["run", "--release", "--package", "quorlock-cli", "--bin", "quorlock", "--", "demo"])
        .args(args);
    let error = demo.exec();
    eprintln!("xtask: cannot run cargo: {error}");
    ExitCode::FAILURE
}
