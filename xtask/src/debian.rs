//! A server out of Debian 13's packages, for machines that run another Debian: with the libraries and
//! the loader that it was linked with, and without installing anything.

use std::env::consts::{ARCH, OS};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use quorlock_servers::ServerBinary;

use crate::server_wheels;

/// Its folder in `target/servers`, and the name of its file of hashes.
pub(crate) const FOLDER: &str = "redis-8.0.2";

/// Starts the server with its own loader: the machine's may be older than its libc. In Debian's
/// package the server is the program that goes by several names.
const LAUNCHER: &str = "\
#!/bin/sh
root=${0%/*}/root
libraries=$root/usr/lib/x86_64-linux-gnu
exec \"$libraries/ld-linux-x86-64.so.2\" --argv0 redis-server --library-path \"$libraries\" \\
    \"$root/usr/bin/redis-check-rdb\" \"$@\"
";

/// Whether this machine could have it.
pub(crate) fn is_offered() -> bool {
    (OS, ARCH) == ("linux", "x86_64") && Path::new("/usr/bin/apt-get").exists()
}

/// The server in `target/servers`, fetched if it is not there yet.
///
/// # Errors
/// For people.
pub(crate) fn fetch(workspace: &Path) -> Result<ServerBinary, String> {
    let io = |error: std::io::Error| error.to_string();
    server_wheels::fetch(workspace, FOLDER, "redis-server", |staging, ready| {
        if !is_offered() {
            return Err(format!("it is a package of Debian's for amd64; this is {OS} on {ARCH}"));
        }
        let list = workspace.join("xtask/servers").join(format!("{FOLDER}.txt"));
        let list = fs::read_to_string(list).map_err(io)?;
        let pinned = list.lines().find(|line| !line.starts_with('#')).unwrap_or_default();
        let mut unpack = Command::new("sh");
        unpack.args(["-c", include_str!("../servers/debian.sh"), "debian.sh"]).arg(staging);
        let output = unpack.args(pinned.split(' ')).stdin(Stdio::null()).output().map_err(io)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        if let Some(note) = errors.lines().find(|line| line.starts_with("note: ")) {
            eprintln!("xtask: {note}");
        }
        if !output.status.success() {
            let line = errors.lines().find(|line| line.starts_with("E:")).or(errors.lines().last());
            return Err(line.unwrap_or("apt-get failed without a message").to_owned());
        }
        fs::rename(staging.join("root"), ready.join("root")).map_err(io)?;
        fs::write(ready.join("redis-server"), LAUNCHER).map_err(io)
    })
}
