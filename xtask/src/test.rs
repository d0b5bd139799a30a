//! `cargo xtask test`.

#![expect(clippy::disallowed_methods, reason = "how long the tests take is nobody's lock")]

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use quorlock_servers::{REQUIRE_VARIABLE, SERVER_VARIABLE, SKIP_LOG_VARIABLE, ServerBinary};

use crate::cargo;
use crate::install::server_or_exit;
use crate::{mutants, redis_py};

/// How many seeds of the simulator belong to the tests.
const SEEDS: &str = "20000";

/// How long real servers are broken, in minutes.
const CHAOS: &str = "1";

/// Runs every test of the workspace with a real server, and if all tests were asked for, the proofs:
/// the simulator, the models, the mutants, and a minute of chaos. A test that skips itself, because
/// the server cannot do what it needs, fails the run: what did not run was not shown to work.
pub(crate) fn run(workspace: &Path, args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.collect();
    let server = match server_or_exit(workspace) {
        Ok(server) => server,
        Err(code) => return code,
    };
    eprintln!("xtask: testing with {server}");
    let began = Instant::now();
    let all = args.is_empty();
    let mut times = Vec::new();
    match run_with(workspace, &server, args.into_iter()) {
        Ok(ExitCode::SUCCESS) if all => times.push(("tests", began.elapsed())),
        Ok(code) => return code,
        Err(error) => {
            eprintln!("xtask: {error}");
            return ExitCode::FAILURE;
        }
    }
    for (name, proof) in PROOFS {
        eprintln!("\nxtask: {name}");
        let began = Instant::now();
        let code = proof(workspace, &server);
        times.push((name, began.elapsed()));
        if code != ExitCode::SUCCESS {
            eprintln!("xtask: {name}: failed");
            return code;
        }
    }
    println!("\nxtask: all of it in {:.0?}:", began.elapsed());
    for (name, time) in times {
        println!("  {:>4.0} s  {name}", time.as_secs_f64());
    }
    ExitCode::SUCCESS
}

type Proof = fn(&Path, &ServerBinary) -> ExitCode;

/// What is more than a test, in this order, and how it is run.
const PROOFS: [(&str, Proof); 4] = [
    ("20 000 runs of the simulator", |workspace, _| {
        prove(
            workspace,
            &["quorlock-sim", "--bin", "quorlock-sim", "--", "--jobs", "2", "--seeds", SEEDS],
            None,
        )
    }),
    ("the models", |workspace, _| {
        prove(workspace, &["quorlock-sim", "--bin", "quorlock-models"], None)
    }),
    ("the mutants", |workspace, _| mutants::run(workspace)),
    ("a minute of chaos", |workspace, server| {
        prove(workspace, &["quorlock-chaos", "--", "--minutes", CHAOS], Some(server))
    }),
];

fn prove(workspace: &Path, program: &[&str], server: Option<&ServerBinary>) -> ExitCode {
    let mut command = cargo(workspace);
    command.args(["run", "--release", "--package"]).args(program);
    if let Some(server) = server {
        command.env(SERVER_VARIABLE, &server.path);
    }
    match command.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_with(
    workspace: &Path,
    server: &ServerBinary,
    args: impl Iterator<Item = OsString>,
) -> io::Result<ExitCode> {
    let skip_log = tempfile::NamedTempFile::new()?;
    let mut command = with_default_signals(cargo(workspace));
    if let Some(folder) = redis_py::ensure(workspace) {
        command.env("PYTHONPATH", folder);
    }
    let mut tests = command
        .args(["test", "--workspace", "--no-fail-fast"])
        .args(args)
        .env(SERVER_VARIABLE, &server.path)
        .env(REQUIRE_VARIABLE, "1")
        .env(SKIP_LOG_VARIABLE, skip_log.path())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut sum = Summary::default();
    let output = tests.stdout.take().into_iter().flat_map(|out| BufReader::new(out).split(b'\n'));
    for line in output {
        let line = line?;
        io::stdout().write_all(&line)?;
        io::stdout().write_all(b"\n")?;
        sum.add(&String::from_utf8_lossy(&line));
    }
    let status = tests.wait()?;
    let skipped = fs::read_to_string(skip_log.path())?;
    sum.skipped = skipped.lines().count();

    print!("\n{skipped}");
    println!("xtask: {sum}, with {server}");
    let cargos = status.code().map_or(1, |code| u8::try_from(code).unwrap_or(1));
    Ok(match cargos {
        0 if sum.skipped > 0 => ExitCode::FAILURE,
        code => ExitCode::from(code),
    })
}

/// Signals that this process ignores, as one started in the background by a script does, would be
/// ignored by the tests and all they start, some of which are about signals. `env` of coreutils can
/// take that back; elsewhere the command stays as it is.
fn with_default_signals(command: Command) -> Command {
    const RESET: &str = "--default-signal=HUP,INT,QUIT";
    let works = Command::new("env").args([RESET, "true"]).stderr(Stdio::null()).status();
    if !works.is_ok_and(|status| status.success()) {
        return command;
    }
    let mut wrapped = Command::new("env");
    wrapped.arg(RESET).arg(command.get_program()).args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        wrapped.current_dir(folder);
    }
    wrapped
}

/// The sum of the lines with which each test binary closes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Summary {
    binaries: usize,
    passed: usize,
    failed: usize,
    ignored: usize,
    skipped: usize,
}

impl Summary {
    /// Reads `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; …` and no other line.
    fn add(&mut self, line: &str) {
        let Some((_, counts)) =
            line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        self.binaries += 1;
        for count in counts.split(';') {
            let mut words = count.split_whitespace();
            let Some(number) = words.next().and_then(|number| number.parse::<usize>().ok()) else {
                continue;
            };
            match words.next() {
                Some("passed") => self.passed += number,
                Some("failed") => self.failed += number,
                Some("ignored") => self.ignored += number,
                _ => {}
            }
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { binaries, passed, failed, ignored, skipped } = self;
        write!(
            f,
            "{passed} tests passed, {failed} failed, {ignored} ignored, {skipped} skipped \
             in {binaries} test binaries"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_lines_add_up() {
        let mut sum = Summary::default();
        for line in [
            "running 3 tests",
            "test result_of_a_test: 9 passed; ... ok",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test result: FAILED. 11 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.63s",
        ] {
            sum.add(line);
        }
        assert_eq!(sum, Summary { binaries: 2, passed: 14, failed: 2, ignored: 1, skipped: 0 });
    }
}
