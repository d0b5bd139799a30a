//! `cargo xtask chaos`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::ExitCode;

use quorlock_servers::SERVER_VARIABLE;

use crate::cargo;
use crate::install::server_or_exit;

/// Becomes the chaos: from here on its signals and its exit code are ours. Returns only if that
/// fails.
pub(crate) fn run(workspace: &Path, args: impl Iterator<Item = OsString>) -> ExitCode {
    let server = match server_or_exit(workspace) {
        Ok(server) => server,
        Err(code) => return code,
    };
    let mut chaos = cargo(workspace);
    chaos.args(["run", "--quiet", "--release", "--package", "quorlock-chaos", "--"]).args(args);
    let error = chaos.env(SERVER_VARIABLE, server.path).exec();
    eprintln!("xtask: cannot run cargo: {error}");
    ExitCode::from(2)
}
