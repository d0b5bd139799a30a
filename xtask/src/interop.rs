//! `cargo xtask interop`: lock libraries of other projects beside quorlock on the same keys.

mod libraries;
mod process;
mod share;
mod site;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use quorlock_servers::ServerBinary;

use crate::cargo;
use libraries::{LIBRARIES, Library};
use share::Form;
use site::{Programs, Site};

/// The options of the command line.
#[derive(Debug, Default)]
struct Options {
    only: Vec<String>,
    /// Measure nothing but the shares, for this long.
    share: Option<Duration>,
}

impl Options {
    fn parse(args: &[OsString]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut words = args.iter().map(|word| word.to_string_lossy());
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match &*word {
                "--only" => options.only.extend(value()?.split(',').map(str::to_owned)),
                "--share" => {
                    let text = value()?;
                    let seconds = text.strip_suffix('s').and_then(|number| number.parse().ok());
                    let seconds = seconds.ok_or_else(|| format!("--share {text}: such as 30s"))?;
                    options.share = Some(Duration::from_secs(seconds));
                }
                _ => return Err(format!("no option {word}")),
            }
        }
        let known = |name: &String| LIBRARIES.iter().any(|library| library.name == name);
        match options.only.iter().find(|name| !known(name)) {
            Some(name) => Err(format!("no library {name}; --list prints all of them")),
            None => Ok(options),
        }
    }

    fn selects(&self, library: &Library) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == library.name)
    }
}

pub(crate) fn run(workspace: &Path, server: &ServerBinary, args: &[OsString]) -> ExitCode {
    if args.iter().any(|word| word == "--list") {
        for Library { name, language, prefix, value, .. } in &LIBRARIES {
            println!("{name:18} {language:8} key {prefix}K, value: {value}");
        }
        return ExitCode::SUCCESS;
    }
    let options = match Options::parse(args) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("xtask interop: {why}");
            return ExitCode::from(2);
        }
    };
    let programs = match build(workspace) {
        Ok(programs) => programs,
        Err(why) => {
            eprintln!("xtask interop: {why}");
            return ExitCode::FAILURE;
        }
    };
    println!("xtask: {server}, five of them for each library, and one for a library of one server");
    let time = options.share.unwrap_or(Duration::from_secs(10));
    let mut failed = false;
    for library in LIBRARIES.iter().filter(|library| options.selects(library)) {
        let measured = shares(workspace, library, &programs, server, time);
        if let Err(why) = measured {
            println!("{:18} not run: {why}", library.name);
            failed = true;
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn shares(
    workspace: &Path,
    library: &Library,
    programs: &Programs,
    server: &ServerBinary,
    time: Duration,
) -> Result<(), String> {
    let worker = library.install(workspace, &programs.bench)?;
    let site = Site::start(library, programs, server, worker)?;
    let version = site.worker()?.version;
    for form in [Form::Library, Form::Command] {
        let share = share::measure(&site, form, time)?;
        println!(
            "{:18} {version:14} beside quorlock as a {form:?}: {:4.1} % to {:4.1} %, {} to {} grants, \
             longest wait {:.1} s to {:.1} s",
            library.name,
            share.percent(),
            100.0 - share.percent(),
            share.library.grants,
            share.quorlock.grants,
            share.library.longest_wait.as_secs_f64(),
            share.quorlock.longest_wait.as_secs_f64(),
        );
    }
    Ok(())
}

/// Builds the command line, and the benchmark, which contains workers.
fn build(workspace: &Path) -> Result<Programs, String> {
    let mut cargo = cargo(workspace);
    cargo.args(["build", "--quiet", "--package", "quorlock-cli", "--package", "quorlock-bench"]);
    match cargo.status().map_err(|error| format!("cargo: {error}"))? {
        status if status.success() => {
            let folder = workspace.join("target/debug");
            Ok(Programs { quorlock: folder.join("quorlock"), bench: folder.join("quorlock-bench") })
        }
        status => Err(format!("cargo build: {status}")),
    }
}
