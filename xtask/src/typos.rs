//! The spelling checker `typos`, out of a Python wheel that is pinned by hash.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::server_wheels::{file_named, python};

/// Where the program is kept, by version.
const FOLDER: &str = "target/typos-1.52.0";

/// Checks all files that git tracks by `typos.toml`, and prints what is found.
///
/// # Errors
/// Something is misspelled, or the program is not available here.
pub(crate) fn check(workspace: &Path) -> Result<(), String> {
    let program = ensure(workspace)?;
    let status = Command::new(program)
        .args(["--config", "typos.toml", "--format", "brief"])
        .current_dir(workspace)
        .status()
        .map_err(|error| format!("typos: {error}"))?;
    if status.success() { Ok(()) } else { Err("words are misspelled; see typos.toml".to_owned()) }
}

/// The program, fetched with pip if it is not there yet.
fn ensure(workspace: &Path) -> Result<PathBuf, String> {
    let program = workspace.join(FOLDER).join("typos");
    if program.exists() {
        return Ok(program);
    }
    eprintln!("xtask: fetching typos with pip into {FOLDER} ...");
    if let Err(why) = fetch(workspace, &program) {
        install_pip(&why)?;
        fetch(workspace, &program)?;
    }
    Ok(program)
}

fn fetch(workspace: &Path, program: &Path) -> Result<(), String> {
    let io = |error: std::io::Error| error.to_string();
    let target = workspace.join("target");
    fs::create_dir_all(&target).map_err(io)?;
    // On the same file system as its destination, so that the program appears in one step.
    let staging = tempfile::tempdir_in(&target).map_err(io)?;
    let wheels = staging.path().join("wheel");
    python("pip", |pip| {
        pip.args(["download", "--quiet", "--disable-pip-version-check", "--no-deps"])
            .args(["--only-binary=:all:", "--require-hashes", "--dest"])
            .arg(&wheels)
            .arg("--requirement")
            .arg(workspace.join("xtask/typos.txt"))
    })?;
    let mut files = fs::read_dir(&wheels).map_err(io)?.flatten();
    let wheel = files.next().ok_or("pip fetched nothing")?.path();
    let unpacked = staging.path().join("unpacked");
    python("zipfile", |zip| zip.arg("--extract").arg(&wheel).arg(&unpacked))?;
    let found = file_named("typos", &unpacked)
        .ok_or_else(|| format!("there is no typos in {}", wheel.display()))?;
    fs::set_permissions(&found, fs::Permissions::from_mode(0o755)).map_err(io)?;
    fs::create_dir_all(workspace.join(FOLDER)).map_err(io)?;
    fs::rename(found, program).map_err(io)
}

/// As root, on Debian: pip, where it was the reason.
fn install_pip(why: &str) -> Result<(), String> {
    let has_pip = Command::new("python3").args(["-m", "pip", "--version"]).output();
    let is_root = rustix::process::geteuid().is_root();
    if has_pip.is_ok_and(|pip| pip.status.success())
        || !is_root
        || !Path::new("/usr/bin/apt-get").exists()
    {
        return Err(format!("typos is not available, so spelling is not checked: {why}"));
    }
    eprintln!("xtask: pip is not there; installing python3-pip with apt-get ...");
    let install = "apt-get update -qq && \
         DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends python3-pip";
    let apt = Command::new("sh").args(["-c", install]).stdin(Stdio::null()).status();
    match apt {
        Ok(status) if status.success() => Ok(()),
        _ => Err("typos is not available: apt-get could not install python3-pip".to_owned()),
    }
}
