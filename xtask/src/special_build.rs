//! Builds programs that are not shipped: with mutants (deliberate bugs), or with a wall clock that tests can set.
//!
//! `RUSTC_WORKSPACE_WRAPPER` makes cargo run a script instead of rustc for the packages of the workspace. The script
//! adds a `--cfg`. Dependencies are compiled without it, so all builds share them. The names of the workspace's
//! libraries and tests contain a hash that depends on the script. Names of programs have no hash, so programs are moved
//! to a separate folder, where they are not confused with the shipped ones.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::cargo;

/// Flags that compile the workspace without optimization. Programs that mostly wait for servers and timers do not get
/// slower, and the build is faster.
pub(crate) const UNOPTIMIZED: &[&str] =
    &["--config", "profile.dev.package.quorlock-core.opt-level=0"];

/// A kind of special build.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Special {
    script: &'static str,
    folder: &'static str,
}

/// The simulator's option `--mutant` switches one mutant on.
pub(crate) const MUTANTS: Special =
    Special { script: "xtask/rustc-with-mutants.sh", folder: "target/mutants" };

/// Tests set the wall clock through a file with its offset, which `QUORLOCK_CLOCK_OFFSET_FILE` names.
pub(crate) const STEPPED: Special =
    Special { script: "xtask/rustc-with-stepped-clock.sh", folder: "target/stepped" };

impl Special {
    /// Runs cargo with these arguments and returns the built programs.
    ///
    /// # Errors
    /// A message for the user. The compiler's messages have been printed.
    pub(crate) fn build(&self, workspace: &Path, args: &[&str]) -> Result<Vec<PathBuf>, String> {
        let mut cargo = cargo(workspace);
        cargo.args(args).env("RUSTC_WORKSPACE_WRAPPER", workspace.join(self.script));
        let (succeeded, programs) = executables(&mut cargo)?;
        let folder = workspace.join(self.folder);
        let moved = |program: PathBuf| {
            // The names of test binaries contain a hash, so they need no separate folder.
            if program.parent().is_some_and(|parent| parent.ends_with("deps")) {
                return Ok(program);
            }
            let place = folder.join(program.file_name().unwrap_or_default());
            // Copies first: cargo hard-links the program, and a rename between two links of one file does nothing.
            // Cargo links the program again on the next build.
            let new = place.with_extension("new");
            fs::create_dir_all(&folder)?;
            fs::copy(&program, &new)?;
            fs::rename(&new, &place)?;
            fs::remove_file(&program)?;
            Ok::<PathBuf, io::Error>(place)
        };
        let moved: Result<Vec<PathBuf>, _> = programs.into_iter().map(moved).collect();
        let moved = moved.map_err(|error| format!("{}: {error}", folder.display()))?;
        // The error is returned last, because a failed build may have produced some programs, which have been moved.
        if succeeded { Ok(moved) } else { Err("it could not be built".to_owned()) }
    }

    /// Builds and returns the program with this name, with or without a hash in its file name.
    ///
    /// # Errors
    /// As [`build`](Self::build), or if the build does not contain the program.
    pub(crate) fn program(
        &self,
        workspace: &Path,
        args: &[&str],
        name: &str,
    ) -> Result<PathBuf, String> {
        named(&self.build(workspace, args)?, name)
    }
}

/// Runs a build. Returns whether it succeeded, and the programs that it has built or found up to date.
///
/// # Errors
/// If cargo does not start.
pub(crate) fn executables(cargo: &mut Command) -> Result<(bool, Vec<PathBuf>), String> {
    cargo.args(["--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
    let output = cargo.output().map_err(|error| format!("cargo: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let messages = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let programs = messages.filter_map(|message| Some(message["executable"].as_str()?.into()));
    Ok((output.status.success(), programs.collect()))
}

/// Returns the program with this name, with or without a hash in its file name.
///
/// # Errors
/// If there is none.
pub(crate) fn named(programs: &[PathBuf], name: &str) -> Result<PathBuf, String> {
    let is_called = |program: &&PathBuf| {
        let file = program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        file.strip_prefix(name).is_some_and(|rest| {
            rest.is_empty() || rest.strip_prefix('-').is_some_and(|hash| hash.len() == 16)
        })
    };
    let found = programs.iter().find(is_called).cloned();
    found.ok_or_else(|| format!("cargo has not built {name}"))
}
