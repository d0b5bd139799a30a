use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::ExitCode;

use quorlock_servers::{NotFound, SERVER_VARIABLE};

use crate::cargo;
use crate::install::ensure_server;

/// Replaces this process by the demo (exec), which gets its terminal and signals. Returns only if exec fails.
pub(crate) fn run(workspace: &Path, args: &[OsString]) -> ExitCode {
    let mut demo = cargo(workspace);
    match ensure_server(workspace) {
        Ok(binary) => {
            demo.env(SERVER_VARIABLE, binary.path);
        }
        // Without a server, the demo runs nevertheless and prints a note.
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
