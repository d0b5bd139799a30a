//! `cargo xtask api`: the public API of the libraries, written down, so that a change of it is seen and wanted.
//!
//! A snapshot is made from the sources, not from the compiler: every public item with its signature, under the path by
//! which people reach it. Bodies, private fields and documentation are left out.

mod krate;
mod shown;

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use similar::TextDiff;

use krate::Krate;

/// The libraries that people write code against.
const LIBRARIES: [(&str, &str); 3] = [
    ("quorlock", "crates/quorlock"),
    ("quorlock-core", "crates/core"),
    ("quorlock-admin", "crates/admin"),
];

/// Writes the snapshots. With `--check`, it compares them instead, and fails if one differs.
pub(crate) fn run(workspace: &Path, args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.collect();
    let is_check = args == ["--check"];
    if !is_check && !args.is_empty() {
        eprintln!("cargo xtask api [--check]");
        return ExitCode::from(2);
    }
    match LIBRARIES.iter().try_fold(0, |changed, (name, folder)| {
        Ok::<_, String>(changed + usize::from(one(workspace, name, folder, is_check)?))
    }) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) if is_check => {
            eprintln!(
                "xtask: the public API has changed. If that is meant: cargo xtask api, commit what it writes, and \
                 say in CHANGELOG.md what users must change"
            );
            ExitCode::FAILURE
        }
        Ok(_) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the snapshot of this library differs from what is written down.
fn one(workspace: &Path, name: &str, folder: &str, is_check: bool) -> Result<bool, String> {
    let read = |path: &Path| {
        fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let krate = Krate::read(&workspace.join(folder).join("src/lib.rs"), &read)?;
    let api = format!("// The public API of {name}, by `cargo xtask api`.\n\n{}", krate.api());
    let file = workspace.join(format!("docs/api/{name}.txt"));
    let before = fs::read_to_string(&file).unwrap_or_default();
    if before == api {
        return Ok(false);
    }
    if is_check {
        let diff = TextDiff::from_lines(&before, &api);
        eprintln!("{}", diff.unified_diff().header(&format!("docs/api/{name}.txt"), "now"));
    } else {
        let folder = workspace.join("docs/api");
        fs::create_dir_all(folder).map_err(|error| format!("docs/api: {error}"))?;
        fs::write(&file, api).map_err(|error| format!("{}: {error}", file.display()))?;
        println!("docs/api/{name}.txt");
    }
    Ok(true)
}
