//! Programs that are not what is shipped: they can make mistakes, or their wall clock can be stepped.
//!
//! cargo runs a script instead of rustc for our own packages (`RUSTC_WORKSPACE_WRAPPER`), which adds a
//! `--cfg`. So the packages of others are built once for all. What comes of ours has names of its own, but
//! for the programs themselves: those are moved to a folder of their own, for nobody must take them for
//! what is shipped.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::cargo;

/// To compile these of our packages takes longest, and where it is servers and timers that are waited for nothing is
/// won by optimizing them.
pub(crate) const UNOPTIMIZED: &[&str] = &[
    "--config",
    "profile.dev.package.quorlock-core.opt-level=0",
    "--config",
    "profile.dev.package.quorlock.opt-level=0",
    "--config",
    "profile.dev.package.quorlock-sim.opt-level=0",
];

/// A way to build.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Special {
    script: &'static str,
    folder: &'static str,
}

/// `QUORLOCK_MUTANT` names a mistake to be made; the wall clock can be stepped as well.
pub(crate) const MUTANTS: Special =
    Special { script: "xtask/rustc-with-mutants.sh", folder: "target/mutants" };

/// `QUORLOCK_CLOCK_OFFSET_FILE` names a file that says how far the wall clock is ahead.
pub(crate) const STEPPED: Special =
    Special { script: "xtask/rustc-with-stepped-clock.sh", folder: "target/stepped" };

impl Special {
    /// Lets cargo build, with these arguments, and returns the programs that it has built.
    ///
    /// # Errors
    /// For people. What the compiler says has been printed.
    pub(crate) fn build(&self, workspace: &Path, args: &[&str]) -> Result<Vec<PathBuf>, String> {
        let mut cargo = cargo(workspace);
        cargo.args(args).args(["--message-format", "json-render-diagnostics"]);
        cargo.env("RUSTC_WORKSPACE_WRAPPER", workspace.join(self.script));
        let (said, is_built) = output(&mut cargo)?;
        let messages = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let folder = workspace.join(self.folder);
        let moved = |program: PathBuf| {
            // The programs of tests: their names are their own.
            if program.parent().is_some_and(|parent| parent.ends_with("deps")) {
                return Ok(program);
            }
            let place = folder.join(program.file_name().unwrap_or_default());
            // Not by `rename`: cargo makes links, and where both names are the same file that does nothing.
            // Cargo creates the other name again when asked.
            let new = place.with_extension("new");
            fs::create_dir_all(&folder)?;
            fs::copy(&program, &new)?;
            fs::rename(&new, &place)?;
            fs::remove_file(&program)?;
            Ok::<PathBuf, io::Error>(place)
        };
        let programs = messages.filter_map(|message| Some(message["executable"].as_str()?.into()));
        let moved: Result<Vec<PathBuf>, _> = programs.map(moved).collect();
        let moved = moved.map_err(|error| format!("{}: {error}", folder.display()))?;
        // Only now: some may have been built.
        if is_built { Ok(moved) } else { Err("it could not be built".to_owned()) }
    }

    /// The one that is called so, or so and by a hash.
    ///
    /// # Errors
    /// As [`build`](Self::build), or if it is not among what was built.
    pub(crate) fn program(
        &self,
        workspace: &Path,
        args: &[&str],
        name: &str,
    ) -> Result<PathBuf, String> {
        let found = self.build(workspace, args)?.into_iter().find(|it| is_called(it, name));
        found.ok_or_else(|| format!("cargo {} has not built {name}", args.join(" ")))
    }
}

/// Whether the program has that name, or that and a hash.
pub(crate) fn is_called(program: &Path, name: &str) -> bool {
    let file = program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    file.strip_prefix(name).is_some_and(|rest| {
        rest.is_empty() || rest.strip_prefix('-').is_some_and(|hash| hash.len() == 16)
    })
}

/// The output of cargo, and whether it succeeded.
fn output(cargo: &mut Command) -> Result<(String, bool), String> {
    let output = cargo.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cargo: {error}"))?;
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), output.status.success()))
}
