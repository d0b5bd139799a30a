//! `cargo xtask matrix`: runs every test on one loaded core, then with each version of the server.

mod profile;

use std::env;
use std::ffi::OsString;
use std::hint;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use quorlock_servers::{SERVER_VARIABLE, ServerBinary, find_all};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::runner::{Conditions, Suite, Totals};
use crate::server_wheels;
use crate::test::at_a_time;

const USAGE: &str = "cargo xtask matrix [--loaded N] [--server NAME]... [--commands]

  --loaded N     run every test N times on one core that a busy loop shares
  --server NAME  run every test with this version as the only server, such as redis-7.0. It is the one that
                 is installed, or one of `cargo xtask servers`
  --commands     run no test with the servers: only find out which commands locks use on them

Without an option: --loaded 3, and each of these servers. A missing server is fetched. The results of the servers go
into target/matrix.json, and into the table of docs/servers.md.
";

#[derive(Debug, PartialEq, Eq)]
struct Parts {
    loaded: u32,
    servers: Vec<String>,
    only_commands: bool,
}

/// Builds the tests once, runs each part, and prints a table.
pub(crate) fn run(workspace: &Path, server: &ServerBinary, args: &[OsString]) -> ExitCode {
    let parts = match Parts::parse(args, server_wheels::names(server)) {
        Ok(_) if env::var_os(SERVER_VARIABLE).is_some_and(|value| !value.is_empty()) => {
            eprintln!("xtask: {SERVER_VARIABLE} is set; use --server instead");
            return ExitCode::from(2);
        }
        Ok(parts) => parts,
        Err(why) => {
            eprint!("xtask: {why}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let built = match parts.only_commands {
        true => profile::build(workspace).map(|()| None),
        false => Suite::build(workspace).map(Some),
    };
    let suite = match built {
        Ok(suite) => suite,
        Err(why) => {
            eprintln!("xtask: {why}");
            return ExitCode::FAILURE;
        }
    };
    let run = |conditions| suite.as_ref().map(|suite| suite.run(conditions)).transpose();
    let mut profiles = Vec::new();
    let mut rows = Vec::new();
    for number in 1..=parts.loaded {
        let name = format!("one loaded core, run {number}");
        println!("\nxtask: {name}");
        let conditions = Conditions { server: Some(&server.path), at_a_time: 2, threads: Some(2) };
        rows.push((name, on_one_loaded_core(|| run(conditions)).map(Option::unwrap_or_default)));
    }
    let absent =
        if parts.servers.is_empty() { Vec::new() } else { server_wheels::fetch_all(workspace) };
    let servers = find_all(Some(workspace)).unwrap_or_default();
    for name in parts.servers {
        println!("\nxtask: {name}");
        let outcome = match servers.iter().find(|server| server_wheels::name(server) == name) {
            Some(server) => {
                let conditions = Conditions {
                    server: Some(&server.path),
                    at_a_time: at_a_time(),
                    threads: None,
                };
                run(conditions).and_then(|totals| {
                    let profile = profile::of(workspace, server)?;
                    profiles.push((name.clone(), profile, totals.as_ref().map(Totals::counts)));
                    Ok(totals.unwrap_or_default())
                })
            }
            None => Err(absent.iter().map(|(line, _)| format!("\n{line}")).collect()),
        };
        rows.push((name, outcome));
    }
    if let Err(why) = profile::write(workspace, profiles) {
        rows.push(("docs/servers.md".to_owned(), Err(why)));
    }
    report(rows)
}

impl Parts {
    fn parse(args: &[OsString], known: Vec<String>) -> Result<Self, String> {
        let (flags, pairs): (Vec<_>, Vec<_>) = args.iter().partition(|arg| *arg == "--commands");
        let only_commands = !flags.is_empty();
        let mut parts = Self { loaded: 0, servers: Vec::new(), only_commands };
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
        if parts.servers.is_empty() && (args.is_empty() || only_commands) {
            parts.servers = known;
            parts.loaded = if only_commands { parts.loaded } else { 3 };
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

fn report(rows: Vec<(String, Result<Totals, String>)>) -> ExitCode {
    println!("\n| run | result | passed | failed | not for it |\n|---|---|---|---|---|");
    let mut failures = Vec::new();
    for (name, outcome) in rows {
        let totals = outcome.unwrap_or_else(Totals::failed);
        let result = if totals.failures.is_empty() { "passed" } else { "**failed**" };
        let Totals { passed, failed, not_for, .. } = totals;
        println!("| {name} | {result} | {passed} | {failed} | {not_for} |");
        failures.extend(totals.failures.into_iter().map(|what| format!("{name}: {what}")));
    }
    failures.iter().for_each(|line| println!("FAILED {line}"));
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
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
        let all = |loaded, only_commands| Parts { loaded, servers: known.to_vec(), only_commands };
        assert_eq!(parse("").unwrap(), all(3, false));
        assert_eq!(parse("--commands").unwrap(), all(0, true));
        let servers = vec!["valkey-9.1".to_owned(), "redis-6.2".to_owned()];
        let chosen = parse("--server valkey-9.1 --loaded 1 --server redis-6.2").unwrap();
        assert_eq!(chosen, Parts { loaded: 1, servers, only_commands: false });
        for wrong in ["seeds", "--loaded", "--loaded x", "--server redis-5.0"] {
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
