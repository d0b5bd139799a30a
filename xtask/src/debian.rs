//! Installs a server from the packages of Debian 13 on a machine with another Debian version. The server comes with its
//! libraries and dynamic loader. The system is not changed.

use std::env::consts::{ARCH, OS};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use quorlock_servers::ServerBinary;

use crate::server_wheels;

/// The name of the server's folder in `target/servers`, and of the file with its hashes, without `.txt`.
pub(crate) const FOLDER: &str = "redis-8.0.2";

/// A script that starts the server with its own loader, because the machine's loader may be older than the server's
/// libc. Debian's server and `redis-check-rdb` are one program, which is a server only if started as `redis-server`.
const LAUNCHER: &str = "\
#!/bin/sh
root=${0%/*}/root
libraries=$root/usr/lib/x86_64-linux-gnu
exec \"$libraries/ld-linux-x86-64.so.2\" --argv0 redis-server --library-path \"$libraries\" \\
    \"$root/usr/bin/redis-check-rdb\" \"$@\"
";

/// Whether the server is available for this machine.
pub(crate) fn is_offered() -> bool {
    (OS, ARCH) == ("linux", "x86_64") && Path::new("/usr/bin/apt-get").exists()
}

/// Returns the server in `target/servers`, and fetches it if it is absent.
///
/// # Errors
/// A message for the user.
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
