//! redis-py, whose `Lock` and ours must exclude each other: a test shows it with the real one.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Pinned; its lock's commands have been the same for years.
const PACKAGES: [&str; 2] = ["redis==5.2.1", "async-timeout==5.0.1"];

/// Where pip puts it.
const FOLDER: &str = "target/python";

/// What to set `PYTHONPATH` to, so that `python3 -c 'import redis'` works; `None` if it does without,
/// or cannot be made to. In the latter case the test skips itself, which is counted.
pub(crate) fn ensure(workspace: &Path) -> Option<PathBuf> {
    let folder = workspace.join(FOLDER);
    if is_there(None) {
        return None;
    }
    if is_there(Some(&folder)) {
        return Some(folder);
    }
    eprintln!("xtask: fetching redis-py for the tests with pip into {FOLDER} ...");
    let pip = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"])
        .args(["--only-binary=:all:", "--root-user-action=ignore", "--target"])
        .arg(&folder)
        .args(PACKAGES)
        .stdin(Stdio::null())
        .status();
    if pip.is_ok_and(|status| status.success()) && is_there(Some(&folder)) {
        return Some(folder);
    }
    if rustix::process::geteuid().is_root() && Path::new("/usr/bin/apt-get").exists() {
        eprintln!("xtask: pip did not do; installing python3-redis with apt-get ...");
        let install = "apt-get update -qq && \
             DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
             python3-redis";
        let apt = Command::new("sh").args(["-c", install]).stdin(Stdio::null()).status();
        if let Err(error) = apt {
            eprintln!("xtask: sh cannot be run: {error}");
        }
    }
    if !is_there(None) {
        eprintln!("xtask: redis-py could not be had; its test will skip itself");
    }
    None
}

fn is_there(folder: Option<&Path>) -> bool {
    let mut python = Command::new("python3");
    python.args(["-c", "import redis"]).stdin(Stdio::null()).stderr(Stdio::null());
    if let Some(folder) = folder {
        python.env("PYTHONPATH", folder);
    }
    python.status().is_ok_and(|status| status.success())
}
