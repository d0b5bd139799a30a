#![expect(
    clippy::disallowed_methods,
    reason = "how long a mistake takes to be found is nobody's lock"
)]

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use quorlock_servers::{SERVER_VARIABLE, ServerBinary};

use crate::Outcome;
use crate::program;
use crate::runner::clock;
use crate::special_build::{MUTANTS, STEPPED, Special, UNOPTIMIZED};

/// Build arguments. The small test `proxy` is built too, because cargo then chooses the same features of dependencies
/// as for all tests, and does not compile the dependencies again. In this dev build, debug assertions are on.
const PROGRAMS: &[&str] =
    &["--workspace", "--bin", "quorlock-chaos", "--bin", "quorlock", "--test", "proxy"];

/// Chaos must find each mutant (deliberate bug) in `KNOWN` within this time, in minutes.
const MINUTES: u32 = 10;

/// Time in minutes per mutant with `--all`. It is short, because chaos cannot find many of the mutants anyway.
const MINUTES_OF_ALL: u32 = 1;

/// If chaos exceeds its given minutes by this time, chaos counts as hanging, and the mutant as found.
const GRACE: Duration = Duration::from_secs(180);

/// Replaces this process by chaos (exec), so that chaos gets the signals. Returns only if exec fails.
pub(crate) fn run(workspace: &Path, server: &ServerBinary, args: &[OsString]) -> Outcome {
    if args.first().is_some_and(|first| first == "--mutants") {
        return mutants(workspace, server, &args[1..]);
    }
    let program = build(workspace)?;
    let error = Command::new(&program).args(args).env(SERVER_VARIABLE, &server.path).exec();
    Err(format!("{}: {error}", program.display()))
}

/// Builds chaos and the program `quorlock` that it tests, both with a wall clock that tests can set forward or back.
pub(crate) fn build(workspace: &Path) -> Result<PathBuf, String> {
    build_so(workspace, &STEPPED)
}

fn build_so(workspace: &Path, so: &Special) -> Result<PathBuf, String> {
    let build = [&["build", "--quiet"], UNOPTIMIZED, PROGRAMS].concat();
    so.program(workspace, &build, "quorlock-chaos")
}

/// Mutants that chaos must find, each with the kind of round (`--only`) that finds it.
const KNOWN: [(&str, &str); 6] = [
    ("deadlines only grow", "commands"),
    ("terminate only unless expired", "commands"),
    ("take-over of the leader's group only", "commands"),
    ("one kill in a guardian's place", "commands"),
    ("release before the group is gone", "commands"),
    ("counts a vote without the replica's acknowledgement", "replicas"),
];

/// Runs chaos with one mutant after the other on new seeds, and prints the time until chaos finds each. Chaos must find
/// the mutants in `KNOWN`. With `--all` it runs all mutants of library and engine instead.
fn mutants(workspace: &Path, server: &ServerBinary, words: &[OsString]) -> Outcome {
    let program = build_so(workspace, &MUTANTS)?;
    let (options, only): (Vec<&OsString>, Vec<&OsString>) =
        words.iter().partition(|word| *word == "--all");
    let is_all = !options.is_empty();
    let wanted = |name: &str| only.is_empty() || only.iter().any(|it| *it == name);
    let list = match is_all {
        true => program::run(Command::new(&program).arg("--list-mutants"), GRACE)?.output,
        false => String::new(),
    };
    let listed = list.lines().filter_map(|line| Some((line.split_once('\t')?.0, "library")));
    let minutes = if is_all { MINUTES_OF_ALL } else { MINUTES };
    let hunts: Vec<(&str, &str)> = if is_all { listed.collect() } else { KNOWN.to_vec() };
    let hunts = hunts.into_iter().filter(|(name, _)| wanted(name));
    let rows: Vec<MutantResult> =
        hunts.map(|(name, sort)| hunt(&program, server, name, sort, minutes)).collect();
    if rows.is_empty() {
        return Err("no mistake has that name".to_owned());
    }
    println!("\n| mistake | found after | by |\n|---|---|---|");
    for MutantResult { mutant, after, by } in &rows {
        let by = match by {
            Ok(by) => by.as_deref().unwrap_or("**not found**"),
            Err(_) => "chaos failed, see above",
        };
        println!("| {mutant} | {} | {by} |", clock(*after));
    }
    let is_found = |row: &MutantResult| row.by.as_ref().is_ok_and(|by| is_all || by.is_some());
    Ok(rows.iter().all(is_found))
}

struct MutantResult {
    mutant: String,
    after: Duration,
    /// The first violation, `None` if chaos found none, or an error if chaos could not run.
    by: Result<Option<String>, String>,
}

fn hunt(
    program: &Path,
    server: &ServerBinary,
    mutant: &str,
    sort: &str,
    minutes: u32,
) -> MutantResult {
    eprintln!("xtask: {mutant}");
    let began = Instant::now();
    let mut chaos = Command::new(program);
    chaos.args(["--stop-at-first", "--only", sort, "--minutes", &minutes.to_string()]);
    chaos.env("QUORLOCK_MUTANT", mutant).env(SERVER_VARIABLE, &server.path);
    let by = found(&mut chaos, minutes);
    if let Err(why) = &by {
        eprintln!("xtask: with {mutant:?} {why}");
    }
    MutantResult { mutant: mutant.to_owned(), after: began.elapsed(), by }
}

fn found(chaos: &mut Command, minutes: u32) -> Result<Option<String>, String> {
    let ended = program::run(chaos, Duration::from_secs(60) * minutes + GRACE)?;
    let Some(status) = ended.status else {
        return Ok(Some("a round that does not end".to_owned()));
    };
    let wrong =
        ended.output.lines().find_map(|line| Some(line.split_once("VIOLATION: ")?.1.to_owned()));
    match status.code() {
        // Exit code 1 without a violation: a kind of fault never occurred. A minute may be too short for all kinds.
        Some(0 | 1) => {
            ended
                .output
                .lines()
                .filter(|line| line.contains("NEVER "))
                .for_each(|line| eprintln!("{line}"));
            Ok(wrong)
        }
        _ => Err(format!("chaos has ended with {status}\n{}{}", ended.output, ended.errors)),
    }
}
