//! `cargo xtask matrix`: runs every test on one loaded core, then with each version of the server.

mod profile;

use std::env;
use std::ffi::OsString;
use std::hint;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use quorlock_servers::{SERVER_VARIABLE, ServerBinary, find_all};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Value, json};

use crate::runner::{Conditions, Suite, Totals};
use crate::server_wheels;
use crate::test::at_a_time;
use crate::{Outcome, interop};

#[derive(Debug, PartialEq, Eq)]
struct Parts {
    loaded: u32,
    servers: Vec<String>,
    no_suite: bool,
}

/// Builds the tests once, runs each part, and prints a table.
pub(crate) fn run(workspace: &Path, server: &ServerBinary, args: &[OsString]) -> Outcome {
    let parts = Parts::parse(args, server_wheels::names(server))?;
    if env::var_os(SERVER_VARIABLE).is_some_and(|value| !value.is_empty()) {
        return Err(format!("{SERVER_VARIABLE} is set; use --server instead"));
    }
    // The suite is built last, because its tests expect their own build of `quorlock` in `target/debug`.
    let programs = interop::build(workspace)?;
    let suite = if parts.no_suite { None } else { Some(Suite::build(workspace)?) };
    let run = |conditions| suite.as_ref().map(|suite| suite.run(conditions)).transpose();
    let mut rows = Vec::new();
    for number in 1..=parts.loaded {
        let name = format!("one loaded core, run {number}");
        println!("\nxtask: {name}");
        let conditions = Conditions { server: Some(&server.path), at_a_time: 2, threads: Some(2) };
        let outcome = on_one_loaded_core(|| run(conditions)).map(Option::unwrap_or_default);
        rows.push((name, outcome.unwrap_or_else(Totals::failed)));
    }
    let absent =
        if parts.servers.is_empty() { Vec::new() } else { server_wheels::fetch_all(workspace) };
    let servers = find_all(Some(workspace)).unwrap_or_default();
    for name in parts.servers {
        println!("\nxtask: {name}");
        let totals = match servers.iter().find(|server| server_wheels::name(server) == name) {
            Some(server) => {
                let conditions = Conditions {
                    server: Some(&server.path),
                    at_a_time: at_a_time(),
                    threads: None,
                };
                let tests = run(conditions).unwrap_or_else(|why| Some(Totals::failed(why)));
                let exclusion = interop::exclusion(workspace, &programs, server);
                let profile = profile::of(&programs.quorlock, server);
                add_row(workspace, &name, server, tests, exclusion, profile)
            }
            None => Totals::failed(absent.iter().map(|(line, _)| format!("\n{line}")).collect()),
        };
        rows.push((name, totals));
    }
    Ok(report(rows))
}

/// Writes a server's row. Returns the totals of its tests plus the errors of exclusion tests, profile and writing.
fn add_row(
    workspace: &Path,
    name: &str,
    server: &ServerBinary,
    tests: Option<Totals>,
    exclusion: Result<(), String>,
    profile: Result<Value, String>,
) -> Totals {
    let mut row = json!({ "server": format!("{} {}", server.flavor, server.version) });
    row["exclusion"] = if exclusion.is_ok() { "exact" } else { "**failed**" }.into();
    if let Some(tests) = &tests {
        row["tests"] = tests.for_document();
    }
    if let Ok(profile) = &profile {
        row["profile"] = profile.clone();
    }
    let written = profile::write(workspace, name, row);
    let mut totals = tests.unwrap_or_default();
    totals.failures.extend([exclusion.err(), profile.err(), written.err()].into_iter().flatten());
    totals
}

impl Parts {
    fn parse(args: &[OsString], known: Vec<String>) -> Result<Self, String> {
        let (flags, pairs): (Vec<_>, Vec<_>) = args.iter().partition(|arg| *arg == "--no-suite");
        let no_suite = !flags.is_empty();
        let mut parts = Self { loaded: 0, servers: Vec::new(), no_suite };
        for pair in pairs.chunks(2) {
            match pair.iter().map(|word| word.to_str()).collect::<Vec<_>>()[..] {
                [Some("--loaded"), Some(count)] => {
                    parts.loaded = count.parse().map_err(|_| format!("{count}: not a number"))?;
                }
                [Some("--server"), Some(server)] if known.iter().any(|name| name == server) => {
                    parts.servers.push(server.to_owned());
                }
                [Some("--server"), server] => {
                    return Err(format!("{server:?}: not among {}", known.join(", ")));
                }
                _ => return Err(format!("{pair:?}: not an option and its value")),
            }
        }
        if parts.no_suite && parts.loaded > 0 {
            return Err("--loaded runs the suite, and --no-suite does not".to_owned());
        }
        if parts.servers.is_empty() && (args.is_empty() || no_suite) {
            parts.servers = known;
            parts.loaded = if no_suite { parts.loaded } else { 3 };
        }
        Ok(parts)
    }
}

/// Runs the work on one core, together with a busy loop. All processes that the work starts stay on that core.
fn on_one_loaded_core<T: Send>(
    work: impl FnOnce() -> Result<T, String> + Send,
) -> Result<T, String> {
    // Only this thread and its children are bound to the core, so that the main thread can still use all cores.
    thread::scope(|scope| {
        let bound = scope.spawn(|| {
            bind_to_one_core().map_err(|error| format!("no core can be chosen: {error}"))?;
            let is_over = AtomicBool::new(false);
            thread::scope(|beside| {
                beside.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        hint::spin_loop();
                    }
                });
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
                is_over.store(true, Ordering::Relaxed);
                outcome.unwrap_or_else(|_| Err("the run of the tests panicked".to_owned()))
            })
        });
        bound.join().unwrap_or_else(|_| Err("the run of the tests panicked".to_owned()))
    })
}

fn bind_to_one_core() -> io::Result<()> {
    let allowed = sched_getaffinity(None)?;
    let core = (0..CpuSet::MAX_CPU).rfind(|core| allowed.is_set(*core));
    let mut one = CpuSet::new();
    one.set(core.ok_or(io::ErrorKind::NotFound)?);
    Ok(sched_setaffinity(None, &one)?)
}

/// Prints the table. Returns whether nothing failed.
fn report(rows: Vec<(String, Totals)>) -> bool {
    println!("\n| run | result | passed | failed | not for it |\n|---|---|---|---|---|");
    let mut failures = Vec::new();
    for (name, totals) in rows {
        let result = if totals.failures.is_empty() { "passed" } else { "**failed**" };
        let Totals { passed, failed, not_for, .. } = totals;
        println!("| {name} | {result} | {passed} | {failed} | {not_for} |");
        failures.extend(totals.failures.into_iter().map(|what| format!("{name}: {what}")));
    }
    failures.iter().for_each(|line| println!("FAILED {line}"));
    failures.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_chosen_or_all_run() {
        let known = ["redis-6.2", "redis-7.0", "valkey-9.1"].map(str::to_owned);
        let parse = |line: &str| {
            let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            Parts::parse(&words, known.to_vec())
        };
        let all = |loaded, no_suite| Parts { loaded, servers: known.to_vec(), no_suite };
        assert_eq!(parse("").unwrap(), all(3, false));
        assert_eq!(parse("--no-suite").unwrap(), all(0, true));
        let servers = vec!["valkey-9.1".to_owned(), "redis-6.2".to_owned()];
        let chosen = parse("--server valkey-9.1 --loaded 1 --server redis-6.2").unwrap();
        assert_eq!(chosen, Parts { loaded: 1, servers, no_suite: false });
        for wrong in ["seeds", "--loaded", "--loaded 1 --no-suite", "--server redis-5.0"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_work_has_one_core() {
        let cores = || thread::available_parallelism().map_err(|error| error.to_string());
        let before = cores();
        assert_eq!(on_one_loaded_core(cores).unwrap().get(), 1);
        assert_eq!(cores(), before);
    }
}
