//! `cargo xtask mixed`: version 0.1.0 and this one on the same nodes.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use quorlock_servers::{SERVER_VARIABLE, ServerBinary};

use crate::cargo;

/// The commit that was released as 0.1.0.
const COMMIT: &str = "b92b7e3";

/// Its sources, and what is built of them.
const FOLDER: &str = "target/old-version";

/// Builds the old version, unless it has been, and runs the tests of both.
pub(crate) fn run(workspace: &Path, server: &ServerBinary) -> ExitCode {
    match build(workspace).and_then(|old| test(workspace, server, &old)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask mixed: {why}");
            ExitCode::FAILURE
        }
    }
}

fn build(workspace: &Path) -> Result<PathBuf, String> {
    let folder = workspace.join(FOLDER);
    let sources = folder.join("source");
    if !sources.join("Cargo.lock").exists() {
        unpack(workspace, &sources)?;
    }
    let old = folder.join("quorlock");
    if old.exists() {
        return Ok(old);
    }
    // Not where this version is built: cargo takes packages of the same name and place in their workspaces for
    // the same, and would mix the two.
    let target = folder.join("target");
    let mut cargo = cargo(&sources);
    cargo.args([
        "build",
        "--locked",
        "--package",
        "quorlock-cli",
        "--bin",
        "quorlock",
        "--target-dir",
    ]);
    succeed(cargo.arg(&target), "cargo build of 0.1.0")?;
    let built = target.join("debug/quorlock");
    std::fs::copy(&built, &old).map_err(|error| format!("{}: {error}", built.display()))?;
    Ok(old)
}

/// The sources as they were.
fn unpack(workspace: &Path, sources: &Path) -> Result<(), String> {
    let known = Command::new("git")
        .current_dir(workspace)
        .args(["cat-file", "-e", &format!("{COMMIT}^{{commit}}")])
        .stderr(Stdio::null())
        .status();
    if !known.is_ok_and(|status| status.success()) {
        return Err(format!(
            "version 0.1.0, commit {COMMIT}, is not in the history of this clone: git fetch --unshallow"
        ));
    }
    std::fs::create_dir_all(sources).map_err(|error| format!("{}: {error}", sources.display()))?;
    let archive = sources.with_extension("tar");
    let mut git = Command::new("git");
    git.current_dir(workspace).args(["archive", "--output"]).arg(&archive).arg(COMMIT);
    succeed(&mut git, "git archive")?;
    let mut tar = Command::new("tar");
    tar.arg("-xf").arg(&archive).arg("-C").arg(sources);
    succeed(&mut tar, "tar")
}

fn test(workspace: &Path, server: &ServerBinary, old: &Path) -> Result<(), String> {
    let mut cargo = cargo(workspace);
    cargo.args(["test", "--package", "quorlock-cli", "--test", "mixed", "--", "--nocapture"]);
    cargo.env(SERVER_VARIABLE, &server.path).env("QUORLOCK_OLD", old);
    succeed(&mut cargo, "the tests")
}

fn succeed(command: &mut Command, what: &str) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{what} failed: {status}")),
        Err(error) => Err(format!("{what}: {error}")),
    }
}
