//! `cargo xtask dependencies`: where every dependency comes from, its licence, and the Rust that it needs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;
use spdx::{Expression, LicenseItem, ParseMode};

use crate::cargo;
use crate::package::published;

/// What a dependency may be under. None of them asks anything of who uses quorlock but to name its authors.
const LICENCES: [&str; 9] = [
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

pub(crate) fn run(workspace: &Path) -> ExitCode {
    match metadata(workspace) {
        Ok(metadata) => {
            let wrong = findings(&metadata);
            if wrong.is_empty() {
                println!("{}", told(&metadata));
                return ExitCode::SUCCESS;
            }
            eprintln!("xtask: {} findings about dependencies:\n{}", wrong.len(), wrong.join("\n"));
        }
        Err(error) => eprintln!("xtask: {error}"),
    }
    ExitCode::FAILURE
}

/// What cargo says of the workspace and its dependencies, as they are locked.
pub(crate) fn metadata(workspace: &Path) -> Result<Value, String> {
    let output = cargo(workspace)
        .args(["metadata", "--locked", "--format-version", "1"])
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

fn packages(metadata: &Value) -> impl Iterator<Item = &Value> {
    metadata["packages"].as_array().into_iter().flatten()
}

/// A package as people call it.
fn name(package: &Value) -> String {
    let text = |field: &str| package[field].as_str().unwrap_or("?").to_owned();
    format!("{} {}", text("name"), text("version"))
}

fn findings(metadata: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let registries: BTreeSet<&str> =
        packages(metadata).filter_map(|it| it["source"].as_str()).collect();
    if registries.len() > 1 {
        wrong.push(format!("{} different sources; all must be one registry", registries.len()));
    }
    let root = metadata["workspace_root"].as_str().unwrap_or("?");
    for package in packages(metadata) {
        match package["source"].as_str() {
            Some(source) if !source.starts_with("registry+") => {
                wrong.push(format!("{} comes from {source}, not from a registry", name(package)));
            }
            None if !package["manifest_path"].as_str().is_some_and(|it| it.starts_with(root)) => {
                wrong.push(format!("{} lies outside of the repository", name(package)));
            }
            _ => {}
        }
        if let Err(why) = licence(package["license"].as_str().unwrap_or_default()) {
            wrong.push(format!("{}: {why}", name(package)));
        }
    }
    wrong.extend(too_new(metadata));
    wrong
}

/// Whether a licence may be chosen that is on the list.
fn licence(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("it has no licence".to_owned());
    }
    // Older packages write MIT/Apache-2.0.
    let parsed = Expression::parse_mode(text, ParseMode::LAX);
    let parsed = parsed.map_err(|error| format!("its licence {text:?} cannot be read: {error}"))?;
    let is_fit = parsed.evaluate(|asked| match &asked.license {
        LicenseItem::Spdx { id, .. } => LICENCES.contains(&id.name),
        LicenseItem::Other { .. } => false,
    });
    if is_fit { Ok(()) } else { Err(format!("its licence {text:?} is not on the list")) }
}

/// What a published crate is built with, and needs a newer Rust than it says itself.
fn too_new(metadata: &Value) -> Vec<String> {
    let by_id: BTreeMap<&str, &Value> =
        packages(metadata).filter_map(|it| Some((it["id"].as_str()?, it))).collect();
    let needed: BTreeMap<&str, &Value> = metadata["resolve"]["nodes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|node| Some((node["id"].as_str()?, &node["deps"])))
        .collect();
    let mut left: Vec<&str> =
        published(metadata).into_iter().filter_map(|it| it["id"].as_str()).collect();
    let minimum = left.first().and_then(|id| version(by_id.get(id)?));
    let Some(minimum) = minimum else { return vec!["no package says its rust-version".to_owned()] };
    let (mut seen, mut wrong) = (BTreeSet::new(), Vec::new());
    while let Some(id) = left.pop() {
        if !seen.insert(id) {
            continue;
        }
        if let Some(package) = by_id.get(id)
            && let Some(needs) = version(package).filter(|needs| *needs > minimum)
        {
            wrong.push(format!("{} needs Rust {needs:?}, we say {minimum:?}", name(package)));
        }
        let deps = needed.get(id).and_then(|deps| deps.as_array()).into_iter().flatten();
        // A dependency for development is none of those who build a published crate.
        let is_shipped = |dep: &&Value| {
            let kinds = dep["dep_kinds"].as_array().into_iter().flatten();
            kinds.into_iter().any(|it| it["kind"] != "dev")
        };
        left.extend(deps.filter(is_shipped).filter_map(|dep| dep["pkg"].as_str()));
    }
    wrong
}

/// `1.88` as numbers; none if the package does not say.
fn version(package: &Value) -> Option<Vec<u32>> {
    let text = package["rust_version"].as_str()?;
    let mut numbers: Vec<u32> = text.split('.').filter_map(|it| it.parse().ok()).collect();
    numbers.resize(3, 0);
    Some(numbers)
}

fn told(metadata: &Value) -> String {
    let others = packages(metadata).filter(|it| !it["source"].is_null()).count();
    format!(
        "{others} packages by others, all from one registry, under licences of the list; none that is \
         shipped needs a newer Rust than ours"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_licence_is_read_as_an_expression() {
        for fit in
            ["MIT", "MIT/Apache-2.0", "GPL-3.0-only OR MIT", "(MIT OR Apache-2.0) AND Unicode-3.0"]
        {
            assert_eq!(licence(fit), Ok(()), "{fit}");
        }
        for unfit in ["", "GPL-3.0-only", "MIT AND GPL-3.0-only", "LicenseRef-ours", "hm"] {
            assert!(licence(unfit).is_err(), "{unfit}");
        }
    }

    #[test]
    fn what_comes_from_elsewhere_or_is_too_new_is_found() {
        let package = |name: &str, source: Option<&str>, rust: &str| {
            json!({
                "name": name, "version": "1.0.0", "id": name, "source": source, "license": "MIT",
                "rust_version": rust, "manifest_path": "/here/Cargo.toml", "publish": null,
            })
        };
        let dep = |name: &str, kind: Option<&str>| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let with = |source: &str, rust: &str, kind: Option<&str>| {
            findings(&json!({
                "workspace_root": "/here",
                "packages": [package("ours", None, "1.88"), package("theirs", Some(source), rust)],
                "resolve": { "nodes": [
                    { "id": "ours", "deps": [dep("theirs", kind)] },
                    { "id": "theirs", "deps": [] },
                ] },
            }))
        };
        assert!(with("registry+one", "1.88.0", None).is_empty());
        assert!(with("registry+one", "1.90", Some("dev")).is_empty(), "not shipped");
        assert_eq!(with("registry+one", "1.90", None).len(), 1);
        assert_eq!(with("git+https://example.org", "1.60", None).len(), 1);
    }
}
