//! `cargo xtask matrix tests`: every test where tests are likely to fail that depend on something they
//! should not, which are a busy machine and another version of the server.

#![expect(clippy::disallowed_methods, reason = "how long tests take is nobody's lock")]

use std::env;
use std::ffi::OsString;
use std::hint;
use std::io;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use quorlock_servers::{Flavor, SERVER_VARIABLE, ServerBinary, find_all};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::install::server_or_exit;
use crate::server_wheels;
use crate::test::{clock, jobs};
use crate::test_suite::{Conditions, Results, Suite};

const USAGE: &str = "cargo xtask matrix tests [--loaded N] [--server NAME]...

  --loaded N     so many runs in a row on one core, with a busy loop beside them on that core
  --server NAME  one run with this version as the only server: redis-6.2, redis-7.0, redis-8.0,
                 redis-8.2, valkey-8.1 or valkey-9.1

Without an option: --loaded 3, and each of these servers. What is not here is fetched.
";

/// Every test is to pass with each of these.
const VERSIONS: [(Flavor, u32, u32); 6] = [
    (Flavor::Redis, 6, 2),
    (Flavor::Redis, 7, 0),
    (Flavor::Redis, 8, 0),
    (Flavor::Redis, 8, 2),
    (Flavor::Valkey, 8, 1),
    (Flavor::Valkey, 9, 1),
];

/// On one core: two binaries of two tests each want it, and the busy loop.
const JOBS: usize = 2;
const THREADS: usize = 2;

/// What is to be run.
#[derive(Debug, PartialEq, Eq)]
struct Parts {
    loaded: u32,
    servers: Vec<(Flavor, u32, u32)>,
}

/// One run of the whole suite, or why there was none.
struct Row {
    what: String,
    took: Duration,
    outcome: Result<Results, String>,
}

/// Builds once, runs each part, and prints a table.
pub(crate) fn run(workspace: &Path, args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<String> = args.map(|word| word.to_string_lossy().into_owned()).collect();
    let parts = match Parts::parse(&args) {
        Ok(parts) => parts,
        Err(why) => {
            eprint!("xtask: {why}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    if env::var_os(SERVER_VARIABLE).is_some_and(|value| !value.is_empty()) {
        eprintln!(
            "xtask: {SERVER_VARIABLE} is set, and the matrix is about all servers; use --server"
        );
        return ExitCode::from(2);
    }
    let server = match server_or_exit(workspace) {
        Ok(server) => server,
        Err(code) => return code,
    };
    let commit = commit(workspace);
    println!("xtask: the matrix of tests at {commit}");
    let suite = match Suite::build(workspace) {
        Ok(suite) => suite,
        Err(why) => {
            eprintln!("xtask: {why}");
            return ExitCode::FAILURE;
        }
    };
    let mut rows = Vec::new();
    let count = parts.loaded as usize + parts.servers.len();
    let mut part = |what: String, run: &mut dyn FnMut() -> Result<Results, String>| {
        println!("\nxtask: part {} of {count}: {what}", rows.len() + 1);
        let began = Instant::now();
        let outcome = run();
        if let Err(why) = &outcome {
            eprintln!("xtask: {why}");
        }
        rows.push(Row { what, took: began.elapsed(), outcome });
    };
    for number in 1..=parts.loaded {
        let what = format!("one core, loaded, {} {}, run {number}", server.flavor, server.version);
        part(what, &mut || {
            let conditions =
                Conditions { server: Some(&server.path), jobs: JOBS, threads: Some(THREADS) };
            on_one_loaded_core(|| suite.run(&conditions))
        });
    }
    let absent =
        if parts.servers.is_empty() { Vec::new() } else { server_wheels::fetch_all(workspace) };
    let here = find_all(Some(workspace)).unwrap_or_default();
    for wanted in parts.servers {
        let found = here.iter().find(|server| is(server, wanted));
        let what =
            found.map_or(name(wanted), |server| format!("{} {}", server.flavor, server.version));
        part(what, &mut || {
            let Some(server) = found else {
                let lines = absent.iter().map(|(line, _)| format!("\n{line}"));
                return Err(format!(
                    "there is no {} here{}",
                    name(wanted),
                    lines.collect::<String>()
                ));
            };
            suite.run(&Conditions { server: Some(&server.path), jobs: jobs(), threads: None })
        });
    }
    report(&rows, &commit)
}

impl Parts {
    fn parse(args: &[String]) -> Result<Self, String> {
        let mut words = args.iter().map(String::as_str);
        match words.next() {
            Some("tests") => {}
            Some(other) => return Err(format!("there is no matrix of {other:?}")),
            None => return Err("a matrix of what?".to_owned()),
        }
        let mut parts = Self { loaded: 0, servers: Vec::new() };
        let mut all = true;
        while let Some(option) = words.next() {
            all = false;
            let value = words.next().ok_or_else(|| format!("{option} needs a value"))?;
            match option {
                "--loaded" => {
                    parts.loaded =
                        value.parse().map_err(|_| format!("--loaded {value}: no number"))?;
                }
                "--server" => {
                    let known = VERSIONS.iter().find(|version| name(**version) == value);
                    parts
                        .servers
                        .push(*known.ok_or_else(|| format!("--server {value}: not one of these"))?);
                }
                _ => return Err(format!("there is no option {option}")),
            }
        }
        Ok(if all { Self { loaded: 3, servers: VERSIONS.to_vec() } } else { parts })
    }
}

fn name((flavor, major, minor): (Flavor, u32, u32)) -> String {
    format!("{}-{major}.{minor}", flavor.to_string().to_lowercase())
}

fn is(server: &ServerBinary, (flavor, major, minor): (Flavor, u32, u32)) -> bool {
    let ServerBinary { flavor: its, version, .. } = server;
    (*its, version.major, version.minor) == (flavor, major, minor)
}

/// Which state of the source this is about.
fn commit(workspace: &Path) -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").current_dir(workspace).args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short", "HEAD"]) else {
        return "an unknown commit".to_owned();
    };
    match git(&["status", "--porcelain", "--untracked-files=no"]) {
        Some(changes) if changes.is_empty() => commit,
        _ => format!("{commit} with uncommitted changes"),
    }
}

/// Does the work on one of the cores that we may use, together with a loop that does nothing and wants
/// all of it. All that is started meanwhile stays on that core; the loop ends with the work.
fn on_one_loaded_core(
    work: impl FnOnce() -> Result<Results, String> + Send,
) -> Result<Results, String> {
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    // A thread of its own, so that what comes after has all cores again.
    thread::scope(|scope| {
        let bound = scope.spawn(|| {
            bind_to_one_core().map_err(|error| format!("no core can be chosen: {error}"))?;
            let ended = AtomicBool::new(false);
            thread::scope(|beside| {
                beside.spawn(|| {
                    while !ended.load(Ordering::Relaxed) {
                        hint::spin_loop();
                    }
                });
                let _end = End(&ended);
                work()
            })
        });
        bound.join().unwrap_or_else(|_| Err("the run of the tests has panicked".to_owned()))
    })
}

fn bind_to_one_core() -> io::Result<()> {
    let allowed = sched_getaffinity(None)?;
    let core = (0..CpuSet::MAX_CPU).rfind(|core| allowed.is_set(*core));
    let mut one = CpuSet::new();
    one.set(core.ok_or(io::ErrorKind::NotFound)?);
    Ok(sched_setaffinity(None, &one)?)
}

fn report(rows: &[Row], commit: &str) -> ExitCode {
    println!("\nThe matrix of tests at {commit}:\n");
    println!("| run | result | passed | failed | not for it | time |");
    println!("|---|---|---|---|---|---|");
    let mut green = 0;
    for Row { what, took, outcome } in rows {
        let took = clock(*took);
        match outcome {
            Ok(results) => {
                let good = results.what_failed().is_empty();
                green += usize::from(good);
                let good = if good { "green" } else { "**failed**" };
                let (sum, elsewhere) = (&results.sum, results.skips.elsewhere);
                let (passed, failed) = (sum.passed, sum.failed);
                println!("| {what} | {good} | {passed} | {failed} | {elsewhere} | {took} |");
            }
            Err(_) => println!("| {what} | **not run** | | | | {took} |"),
        }
    }
    println!();
    for Row { what, outcome, .. } in rows {
        match outcome {
            Ok(results) => results.what_failed().iter().for_each(|(failed, _)| {
                println!("FAILED with {what}: {failed}");
            }),
            Err(why) => println!("NOT RUN with {what}: {why}"),
        }
    }
    println!("xtask: {green} of {} runs are green", rows.len());
    if green == rows.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Parts, String> {
        Parts::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn parts_are_chosen_or_all_are_run() {
        assert_eq!(parse("tests").unwrap(), Parts { loaded: 3, servers: VERSIONS.to_vec() });
        let chosen = parse("tests --server valkey-9.1 --loaded 1 --server redis-6.2").unwrap();
        let servers = vec![(Flavor::Valkey, 9, 1), (Flavor::Redis, 6, 2)];
        assert_eq!(chosen, Parts { loaded: 1, servers });
        for wrong in ["", "seeds", "tests --loaded", "tests --loaded x", "tests --server redis-5.0"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_loaded_core_is_one_core_for_the_work_and_nobody_else() {
        let cores = || thread::available_parallelism().unwrap().get();
        let before = cores();
        let seen = on_one_loaded_core(|| {
            let inherited = thread::scope(|scope| scope.spawn(cores).join().unwrap());
            Err(format!("{} {inherited}", cores()))
        });
        assert_eq!(seen.unwrap_err(), "1 1");
        assert_eq!(cores(), before);
    }
}
