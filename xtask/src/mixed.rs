//! `cargo xtask mixed`: tests version 0.1.0 and the current version on the same nodes.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use quorlock_servers::{REQUIRE_VARIABLE, SERVER_VARIABLE, ServerBinary};

use crate::special_build::UNOPTIMIZED;
use crate::{Outcome, cargo, succeed};

/// The commit of release 0.1.0.
const COMMIT: &str = "b92b7e3";

/// The folder with the sources of 0.1.0, and the name of the program that is built from them.
const FOLDER: &str = "target/old-version";
const NAME: &str = "quorlock-old";

/// Builds 0.1.0 if necessary, and runs the tests that use both versions.
pub(crate) fn run(workspace: &Path, server: &ServerBinary, _args: &[OsString]) -> Outcome {
    let old = build(workspace)?;
    let mut cargo = cargo(workspace);
    cargo.args(["test", "--workspace", "--test", "mixed", "--", "--nocapture"]);
    cargo.env(SERVER_VARIABLE, &server.path).env("QUORLOCK_OLD", old).env(REQUIRE_VARIABLE, "1");
    succeed(&mut cargo, "the tests").map(|()| true)
}

fn build(workspace: &Path) -> Result<PathBuf, String> {
    let folder = workspace.join(FOLDER);
    let old = folder.join(NAME);
    if old.exists() {
        return Ok(old);
    }
    let sources = folder.join("source");
    unpack(workspace, &sources)?;
    adapt(workspace, &folder, &sources)
        .map_err(|error| format!("{}: {error}", folder.display()))?;
    let target = workspace.join("target");
    let mut cargo = cargo(&folder);
    // With `--workspace` and the small test `proxy`, cargo chooses the same features of dependencies as in the current
    // build, so it does not compile the dependencies again.
    cargo.arg("build").args(UNOPTIMIZED);
    cargo.args(["--workspace", "--bin", NAME, "--test", "proxy", "--target-dir"]);
    succeed(cargo.arg(&target), "cargo build of 0.1.0")?;
    let built = target.join("debug").join(NAME);
    fs::rename(&built, &old).map_err(|error| format!("{}: {error}", built.display()))?;
    Ok(old)
}

/// Creates a workspace for the old sources that shares our target folder, so that compiled dependencies are reused.
/// Cargo identifies packages by name and path within the workspace, so the old packages get other paths. Our tests
/// expect the current program under the name `quorlock`, so the old program gets another name.
fn adapt(workspace: &Path, folder: &Path, sources: &Path) -> std::io::Result<()> {
    let rewrite = |from: &Path, to: &Path, words: &[(&str, &str)]| {
        let text = fs::read_to_string(from)?;
        fs::write(to, words.iter().fold(text, |text, (old, new)| text.replace(old, new)))
    };
    let moved = [("\"crates/", "\"source/crates/"), ("\"xtask\"", "\"source/xtask\"")];
    let manifest = folder.join("Cargo.toml");
    rewrite(&sources.join("Cargo.toml"), &manifest, &moved)?;
    let profiles = |text: &str| text.find("[profile.").unwrap_or(text.len());
    let (theirs, ours) =
        (fs::read_to_string(&manifest)?, fs::read_to_string(workspace.join("Cargo.toml"))?);
    fs::write(&manifest, theirs[..profiles(&theirs)].to_owned() + &ours[profiles(&ours)..])?;
    fs::remove_file(sources.join("Cargo.toml"))?;
    fs::copy(sources.join("Cargo.lock"), folder.join("Cargo.lock"))?;
    let renamed = format!("[[bin]]\nname = \"{NAME}\"");
    let cli = sources.join("crates/cli/Cargo.toml");
    rewrite(&cli, &cli, &[("[[bin]]\nname = \"quorlock\"", &renamed)])
}

/// Extracts the sources of the commit.
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
    fs::create_dir_all(sources).map_err(|error| format!("{}: {error}", sources.display()))?;
    let archive = sources.with_extension("tar");
    let mut git = Command::new("git");
    git.current_dir(workspace).args(["archive", "--output"]).arg(&archive).arg(COMMIT);
    succeed(&mut git, "git archive")?;
    let mut tar = Command::new("tar");
    tar.arg("-xf").arg(&archive).arg("-C").arg(sources);
    succeed(&mut tar, "tar")
}
