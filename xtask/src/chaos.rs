//! `cargo xtask chaos`.

#![expect(
    clippy::disallowed_methods,
    reason = "how long a mistake takes to be found is nobody's lock"
)]

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use quorlock_servers::{SERVER_VARIABLE, ServerBinary};

use crate::install::server_or_exit;
use crate::special::{MUTANTS, STEPPED, Special};
use crate::test::clock;

/// With a test, the smallest: so the packages of others have the features with which they are built for
/// the tests, and are not built again. Without optimization more is asserted.
const PROGRAMS: &[&str] =
    &["--workspace", "--bin", "quorlock-chaos", "--bin", "quorlock", "--test", "proxy"];

/// How long each mistake has to be found.
const MINUTES: u32 = 10;

/// Becomes the chaos: from here on its signals and its exit code are ours. Returns only if that
/// fails.
pub(crate) fn run(workspace: &Path, args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.collect();
    let server = match server_or_exit(workspace) {
        Ok(server) => server,
        Err(code) => return code,
    };
    if args.first().is_some_and(|first| first == "--mutants") {
        return mutants(workspace, &server, &args[1..]);
    }
    let program = match build(workspace) {
        Ok(program) => program,
        Err(code) => return code,
    };
    let error = Command::new(&program).args(args).env(SERVER_VARIABLE, server.path).exec();
    eprintln!("xtask: {}: {error}", program.display());
    ExitCode::from(2)
}

/// Builds chaos and the command line that it runs, with a wall clock that it can step.
pub(crate) fn build(workspace: &Path) -> Result<PathBuf, ExitCode> {
    build_so(workspace, &STEPPED)
}

fn build_so(workspace: &Path, so: &Special) -> Result<PathBuf, ExitCode> {
    let build = [&["build", "--quiet"], PROGRAMS].concat();
    so.program(workspace, &build, "quorlock-chaos").map_err(|why| {
        eprintln!("xtask: {why}");
        ExitCode::FAILURE
    })
}

/// As `cargo xtask test` does it.
pub(crate) fn minutes(workspace: &Path, server: &ServerBinary, minutes: &str) -> ExitCode {
    let program = match build(workspace) {
        Ok(program) => program,
        Err(code) => return code,
    };
    let chaos = Command::new(program)
        .args(["--minutes", minutes])
        .env(SERVER_VARIABLE, &server.path)
        .status();
    if chaos.is_ok_and(|status| status.success()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Mistakes that chaos must find, and the sort of rounds in which it does.
const KNOWN: [(&str, &str); 4] = [
    ("deadlines only grow", "commands"),
    ("terminate only unless expired", "commands"),
    ("take-over of the leader's group only", "commands"),
    ("release before the group is gone", "commands"),
];

/// Makes one mistake after the other, and sees how long chaos takes to find it, from seeds that nobody has
/// run.
fn mutants(workspace: &Path, server: &ServerBinary, only: &[OsString]) -> ExitCode {
    let program = match build_so(workspace, &MUTANTS) {
        Ok(program) => program,
        Err(code) => return code,
    };
    let mut rows = Vec::new();
    let known =
        KNOWN.iter().filter(|(name, _)| only.is_empty() || only.iter().any(|it| it == name));
    for (name, sort) in known {
        eprintln!("xtask: {name}");
        match hunt(&program, server, name, sort) {
            Ok(row) => rows.push((name, row)),
            Err(why) => {
                eprintln!("xtask: with {name:?}: {why}");
                return ExitCode::from(2);
            }
        }
    }
    println!("\n| mistake | found after | by |\n|---|---|---|");
    for (name, (time, by)) in &rows {
        println!("| {name} | {} | {} |", clock(*time), by.as_deref().unwrap_or("**not found**"));
    }
    let all = !rows.is_empty() && rows.iter().all(|(_, (_, by))| by.is_some());
    if all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// How long it took, and the first thing that was wrong, if anything was.
fn hunt(
    program: &Path,
    server: &ServerBinary,
    mutant: &str,
    sort: &str,
) -> Result<(Duration, Option<String>), String> {
    let began = Instant::now();
    let mut chaos = Command::new(program);
    chaos.args(["--stop-at-first", "--only", sort, "--minutes", &MINUTES.to_string()]);
    chaos.env("QUORLOCK_MUTANT", mutant).env(SERVER_VARIABLE, &server.path);
    let output = chaos.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout);
    let wrong = said.lines().find_map(|line| line.split_once("VIOLATION: "));
    match output.status.code() {
        Some(0) => Ok((began.elapsed(), None)),
        Some(1) if wrong.is_some() => Ok((began.elapsed(), wrong.map(|(_, what)| what.to_owned()))),
        _ => Err(format!("chaos has ended with {}\n{said}", output.status)),
    }
}
