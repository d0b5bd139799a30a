//! `cargo xtask interop`: lock libraries of other projects beside quorlock on the same keys.

mod libraries;
mod page;
mod process;
mod share;
mod site;
mod tests;

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use quorlock_servers::ServerBinary;
use serde_json::Value;

use crate::generated::Rows;
use crate::{Outcome, cargo, succeed};
use libraries::{LIBRARIES, Library};
use share::{Form, Share};
pub(crate) use site::Programs;
use site::Site;

/// The options of `cargo xtask interop`.
#[derive(Debug)]
struct Options {
    only: Vec<String>,
    /// Whether the tests of mutual exclusion run.
    exclusion: bool,
    /// The duration of each measurement of shares; `None` if shares are not measured.
    share: Option<Duration>,
    /// Whether the run fails if its rows differ from those of the page.
    check: bool,
}

impl Options {
    fn parse(args: &[OsString]) -> Result<Self, String> {
        let share = Some(Duration::from_secs(10));
        let mut options = Self { only: Vec::new(), exclusion: true, share, check: false };
        let mut words = args.iter().map(|word| word.to_string_lossy());
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match &*word {
                "--check" => options.check = true,
                "--no-shares" => options.share = None,
                "--only" => options.only.extend(value()?.split(',').map(str::to_owned)),
                "--share" => {
                    let text = value()?;
                    let seconds = text.strip_suffix('s').and_then(|number| number.parse().ok());
                    let seconds = seconds.ok_or_else(|| format!("--share {text}: such as 30s"))?;
                    options.share = Some(Duration::from_secs(seconds));
                    options.exclusion = false;
                }
                _ => return Err(format!("no option {word}")),
            }
        }
        if options.check && !options.exclusion {
            return Err("--check compares exclusion, which --share does not measure".to_owned());
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

pub(crate) fn run(workspace: &Path, server: &ServerBinary, args: &[OsString]) -> Outcome {
    if args.iter().any(|word| word == "--list") {
        for Library { name, language, prefix, value, .. } in &LIBRARIES {
            println!("{name:18} {language:8} key {prefix}K, value: {value}");
        }
        return Ok(true);
    }
    let options = Options::parse(args)?;
    compare(workspace, server, &build(workspace)?, &options)
}

/// Runs the selected libraries. Returns whether all tests passed and, with `--check`, docs/interop.md shows the same.
fn compare(
    workspace: &Path,
    server: &ServerBinary,
    programs: &Programs,
    options: &Options,
) -> Outcome {
    println!("xtask: {server}: five servers for each library, or one if it locks on one server");
    let (mut rows, mut absent) = (Rows::new(), 0);
    for library in LIBRARIES.iter().filter(|library| options.selects(library)) {
        let row = measure(workspace, library, programs, server, options).unwrap_or_else(|why| {
            println!("{:18} not run: {}", library.name, why.trim());
            absent += 1;
            page::not_run(&why)
        });
        rows.insert(library.name.to_owned(), row);
    }
    if !options.exclusion {
        return Ok(absent == 0);
    }
    println!("\n{}", page::tables(&rows));
    let exact = rows.values().filter(|row| page::inexact(row).is_empty()).count();
    let count = rows.len() - absent;
    println!("xtask: exclusion is exact with {exact} of {count} libraries, {absent} not run");
    let mut agrees = true;
    if options.check {
        let differing = page::differing(workspace, &rows)?;
        differing.iter().for_each(|row| print!("xtask: docs/interop.md does not have: {row}"));
        // A library that did not run shows nothing, so the check fails.
        agrees = differing.is_empty() && absent == 0;
    } else if options.share.is_some() {
        page::write(workspace, rows)?;
    }
    Ok(agrees && exact == count)
}

/// Runs the tests of mutual exclusion between redlock-py and quorlock on five servers.
///
/// # Errors
/// The tests that failed, or the reason why none ran.
pub(crate) fn exclusion(
    workspace: &Path,
    programs: &Programs,
    server: &ServerBinary,
) -> Result<(), String> {
    let options = Options { only: Vec::new(), exclusion: true, share: None, check: false };
    let library = &LIBRARIES[0];
    let inexact = page::inexact(&measure(workspace, library, programs, server, &options)?);
    let failed = || format!("beside {}: {}", library.name, inexact.join("; "));
    if inexact.is_empty() { Ok(()) } else { Err(failed()) }
}

fn measure(
    workspace: &Path,
    library: &Library,
    programs: &Programs,
    server: &ServerBinary,
    options: &Options,
) -> Result<Value, String> {
    let worker = library.install(workspace, &programs.bench)?;
    let site = Site::start(library, programs, server, worker)?;
    let version = site.worker()?.version;
    let name = format!("{:18} {version:14}", library.name);
    let mut cells = Vec::new();
    if options.exclusion {
        cells = tests::run_all(&site);
        let wrong = cells.iter().filter(|(_, cell)| cell.is_err());
        let wrong: String = wrong.map(|(name, _)| format!(" {name}")).collect();
        println!(
            "{name} {}",
            if wrong.is_empty() { "exact" } else { "NOT EXACT:" }.to_owned() + &wrong
        );
    }
    let mut shares = Vec::new();
    for form in [Form::Library, Form::Command] {
        let Some(time) = options.share else { break };
        let share = match share::measure(&site, form, time) {
            Ok(share) => share,
            // An error during a measurement of shares does not count as a failed test of mutual exclusion.
            Err(why) => {
                println!("{name} beside quorlock as a {form:?}: not measured: {}", why.trim());
                continue;
            }
        };
        let Share { library: theirs, quorlock: ours } = share;
        println!(
            "{name} beside quorlock as a {form:?}: {:4.1} % to {:4.1} %, {} to {} grants, \
             longest wait {:.1} s to {:.1} s",
            share.percent(),
            100.0 - share.percent(),
            theirs.grants,
            ours.grants,
            theirs.longest_wait.as_secs_f64(),
            ours.longest_wait.as_secs_f64(),
        );
        shares.push((form, share));
    }
    Ok(page::row(&version, &cells, &shares))
}

/// Builds the programs `quorlock` and `quorlock-bench`. The latter also contains the workers of quorlock and rslock.
///
/// # Errors
/// A message for the user.
pub(crate) fn build(workspace: &Path) -> Result<Programs, String> {
    let mut cargo = cargo(workspace);
    cargo.args(["build", "--quiet", "--package", "quorlock-cli", "--package", "quorlock-bench"]);
    succeed(&mut cargo, "cargo build")?;
    let folder = workspace.join("target/debug");
    Ok(Programs { quorlock: folder.join("quorlock"), bench: folder.join("quorlock-bench") })
}
