//! `cargo xtask package`: everything that people use can be published.
//!
//! cargo packs the crates, and builds each of them from its package alone, beside the packages of the others. Here is
//! checked what cargo does not ask for: what describes a crate, what is in its package, and what it depends on.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use serde_json::Value;

use crate::cargo;
use crate::dependencies::metadata;

const LICENCES: [&str; 2] = ["LICENSE-MIT", "LICENSE-APACHE"];

/// What is in every package beside its sources.
const NEEDED: [&str; 4] = ["Cargo.toml", "README.md", LICENCES[0], LICENCES[1]];

/// What may be in a package: folders, and the files beside them.
const FOLDERS: [&str; 3] = ["src/", "examples/", "rivals/"];
const FILES: [&str; 4] = ["Cargo.lock", "Cargo.toml.orig", ".cargo_vcs_info.json", "GUARANTEES.md"];

/// No package is larger, packed.
const BYTES_MAX: u64 = 512 * 1024;

pub(crate) fn run(workspace: &Path) -> ExitCode {
    match check(workspace) {
        Ok(told) => {
            println!("{told}");
            ExitCode::SUCCESS
        }
        Err(wrong) => {
            eprintln!("xtask: the packages are not fit to be published:\n{wrong}");
            ExitCode::FAILURE
        }
    }
}

fn check(workspace: &Path) -> Result<String, String> {
    let metadata = metadata(workspace)?;
    let published = published(&metadata);
    let names: Vec<&str> = published.iter().filter_map(|it| it["name"].as_str()).collect();
    let wrong: Vec<String> =
        published.iter().flat_map(|it| described(it, &names, workspace)).collect();
    if !wrong.is_empty() {
        return Err(wrong.join("\n"));
    }
    let target = Path::new(metadata["target_directory"].as_str().unwrap_or("target"));
    forget_packages(&published, target)?;
    let mut command = cargo(workspace);
    command.args(["package", "--locked", "--quiet"]);
    command.args(names.iter().flat_map(|name| ["-p", name]));
    let status = command.status().map_err(|error| format!("cargo package: {error}"))?;
    if !status.success() {
        return Err("cargo package failed; what it said is above".to_owned());
    }
    let mut lines = Vec::new();
    for it in &published {
        let (name, version) = (text(it, "name"), text(it, "version"));
        let file = target.join(format!("package/{name}-{version}.crate"));
        let bytes = fs::metadata(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let files = list(&file)?;
        let wrong = misplaced(&files);
        if bytes.len() > BYTES_MAX || !wrong.is_empty() {
            let wrong = wrong.join(", ");
            return Err(format!("{name}: {} bytes of {BYTES_MAX}; {wrong}", bytes.len()));
        }
        lines.push(format!("{name} {version}: {} files, {} KiB", files.len(), bytes.len() / 1024));
    }
    Ok(lines.join("\n"))
}

/// Removes what cargo unpacked and built of these packages when they were last checked. It takes a package of the same
/// name and version for the same, and would build the others beside the code of that time.
fn forget_packages(published: &[&Value], target: &Path) -> Result<(), String> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    // The registry of `cargo package` is a folder of this machine, and has no host that its name could begin with.
    let is_local = |name: &OsStr| name.to_string_lossy().starts_with('-');
    let sources = home.map(|home| entries(&home.join("registry/src"))).unwrap_or_default();
    for registry in sources.iter().filter(|it| it.file_name().is_some_and(is_local)) {
        for it in published {
            let folder = format!("{}-{}", text(it, "name"), text(it, "version"));
            remove(&registry.join(folder))?;
        }
    }
    for made_from in entries(&target.join("debug/deps")) {
        let name = made_from.file_name().unwrap_or_default().to_string_lossy();
        let Some((library, hash)) = name.strip_suffix(".d").and_then(|it| it.rsplit_once('-'))
        else {
            continue;
        };
        let package = library.replace('_', "-");
        let is_ours = published.iter().any(|it| text(it, "name") == package);
        let is_local =
            || fs::read_to_string(&made_from).is_ok_and(|it| it.contains("registry/src/-"));
        if is_ours && is_local() {
            remove(&target.join(format!("debug/.fingerprint/{package}-{hash}")))?;
        }
    }
    Ok(())
}

/// What is in a folder; nothing if there is none.
fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|it| it.path()).collect()
}

fn remove(folder: &Path) -> Result<(), String> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(format!("{}: {error}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// The packages of the workspace that may be published.
pub(crate) fn published(metadata: &Value) -> Vec<&Value> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    packages.filter(|it| it["source"].is_null() && it["publish"].is_null()).collect()
}

fn text<'a>(package: &'a Value, field: &str) -> &'a str {
    package[field].as_str().unwrap_or_default()
}

/// What is missing in what describes a package, and what it depends on that is not published.
fn described(package: &Value, published: &[&str], workspace: &Path) -> Vec<String> {
    let name = text(package, "name");
    let mut wrong = Vec::new();
    let texts = ["description", "license", "repository", "readme", "rust_version"];
    for field in texts.into_iter().filter(|field| text(package, field).is_empty()) {
        wrong.push(format!("{name} has no {field}"));
    }
    for field in ["keywords", "categories"] {
        if package[field].as_array().is_none_or(Vec::is_empty) {
            wrong.push(format!("{name} has no {field}"));
        }
    }
    let has_library = package["targets"]
        .as_array()
        .is_some_and(|targets| targets.iter().any(|it| it["kind"][0] == "lib"));
    if has_library && package["metadata"]["docs"]["rs"].is_null() {
        wrong.push(format!("{name} does not say how docs.rs is to build it"));
    }
    let folder = Path::new(text(package, "manifest_path")).parent();
    for licence in LICENCES {
        let copy = folder.map(|folder| fs::read(folder.join(licence)));
        let is_same =
            matches!((copy, fs::read(workspace.join(licence))), (Some(Ok(a)), Ok(b)) if a == b);
        if !is_same {
            wrong.push(format!("{name}: its {licence} is not that of the repository"));
        }
    }
    for it in package["dependencies"].as_array().into_iter().flatten() {
        let ours = text(it, "name");
        let is_shipped = it["kind"] != "dev" && !it["path"].is_null();
        if is_shipped && !published.contains(&ours) {
            wrong.push(format!("{name} depends on {ours}, which is not published"));
        }
    }
    wrong
}

/// The files of a package.
fn list(file: &Path) -> Result<BTreeSet<String>, String> {
    let output = Command::new("tar").arg("-tzf").arg(file).output();
    let output = output.map_err(|error| format!("tar: {error}"))?;
    let names = String::from_utf8_lossy(&output.stdout);
    let inside = names.lines().filter_map(|name| Some(name.split_once('/')?.1.to_owned()));
    Ok(inside.collect())
}

/// What should be in a package and is not, and what is and should not be.
fn misplaced(files: &BTreeSet<String>) -> Vec<String> {
    let missing = NEEDED.iter().filter(|needed| !files.contains(**needed));
    let is_fit = |file: &str| {
        let is_source = FOLDERS.iter().any(|folder| file.starts_with(folder));
        is_source && !file.ends_with(".pem") && !file.ends_with(".key")
            || NEEDED.contains(&file)
            || FILES.contains(&file)
    };
    let spare = files.iter().filter(|file| !is_fit(file));
    let missing = missing.map(|file| format!("{file} is missing"));
    missing.chain(spare.map(|file| format!("{file} does not belong there"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_with_a_key_or_without_a_licence_is_refused() {
        let files = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let whole = ["Cargo.toml", "README.md", "LICENSE-MIT", "LICENSE-APACHE", "src/lib.rs"];
        assert!(misplaced(&files(&whole)).is_empty());
        assert_eq!(misplaced(&files(&whole[..3])), ["LICENSE-APACHE is missing"]);
        for stray in ["src/node.key", "tests/a.rs", "notes.txt"] {
            let wrong = misplaced(&files(&[&whole[..], &[stray]].concat()));
            assert_eq!(wrong, [format!("{stray} does not belong there")]);
        }
    }

    #[test]
    fn what_describes_a_package_is_asked_for() {
        let package = serde_json::json!({
            "name": "a",
            "dependencies": [{ "name": "b", "kind": null, "path": "/b" }],
            "targets": [{ "kind": ["lib"] }],
            "manifest_path": "/nowhere/Cargo.toml",
        });
        let wrong = described(&package, &["a"], Path::new("/nowhere")).join("\n");
        for what in ["description", "categories", "docs.rs", "LICENSE-MIT", "depends on b"] {
            assert!(wrong.contains(what), "{what} in {wrong}");
        }
    }
}
