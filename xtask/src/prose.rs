//! `cargo xtask prose`: whether what people read is plain English.
//!
//! Read are all Markdown files, the documentation of public items, and the help texts of the command
//! line. Spelling is checked by the program `typos`.

mod markdown;
mod phrases;
mod rules;
mod rustdoc;

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use crate::typos;
use rules::{Finding, check};
use rustdoc::Scope;

/// History, and what a program writes.
const NOT_READ: [&str; 2] = ["CHANGELOG.md", "docs/soak.md"];

/// Crates whose public items are documented for people outside.
const LIBRARIES: [&str; 5] = ["core", "quorlock", "admin", "servers", "bench"];

/// Runs the command. With `--check`, it fails if there is anything to say.
pub(crate) fn run(workspace: &Path, args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.collect();
    let is_check = args == ["--check"];
    if !is_check && !args.is_empty() {
        eprintln!("cargo xtask prose [--check]");
        return ExitCode::from(2);
    }
    let found = match findings(workspace) {
        Ok(found) => found,
        Err(why) => {
            eprintln!("xtask: {why}");
            return ExitCode::FAILURE;
        }
    };
    for (file, Finding { line, sentence, rule, advice }) in &found {
        println!("{file}:{}: {rule}: {advice}\n    {sentence}", line + 1);
    }
    println!("{} sentences to change", found.len());
    let spelling = typos::check(workspace);
    if let Err(why) = &spelling {
        eprintln!("xtask: {why}");
    }
    let is_well = found.is_empty() && spelling.is_ok();
    if is_check && !is_well { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// What is found in all files, with the file.
fn findings(workspace: &Path) -> Result<Vec<(String, Finding)>, String> {
    let mut all = Vec::new();
    for file in tracked(workspace)? {
        let scope = scope(&file);
        let is_page = file.ends_with(".md") && !NOT_READ.contains(&file.as_str());
        if scope.is_none() && !is_page {
            continue;
        }
        let text =
            fs::read_to_string(workspace.join(&file)).map_err(|why| format!("{file}: {why}"))?;
        let Some(scope) = scope else {
            all.extend(check(&text, false).into_iter().map(|found| (file.clone(), found)));
            continue;
        };
        let docs = rustdoc::docs(&text, scope).map_err(|why| format!("{file}: {why}"))?;
        for doc in docs {
            let in_file = |found: Finding| {
                let line = doc.lines.get(found.line).or(doc.lines.last());
                Finding { line: line.map_or(0, |line| line - 1), ..found }
            };
            let found = check(&doc.text, true).into_iter().map(in_file);
            all.extend(found.map(|found| (file.clone(), found)));
        }
    }
    Ok(all)
}

/// What is read of a Rust file.
fn scope(file: &str) -> Option<Scope> {
    let (name, rest) = file.strip_prefix("crates/")?.split_once('/')?;
    if !rest.starts_with("src/") || !rest.ends_with(".rs") {
        return None;
    }
    if name == "cli" {
        return Some(Scope::Help);
    }
    LIBRARIES.contains(&name).then_some(Scope::Public)
}

/// The files that git knows.
fn tracked(workspace: &Path) -> Result<Vec<String>, String> {
    let output = Command::new("git").args(["ls-files", "-z"]).current_dir(workspace).output();
    let output = output.map_err(|error| format!("git: {error}"))?;
    if !output.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let names = String::from_utf8_lossy(&output.stdout);
    Ok(names.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect())
}
