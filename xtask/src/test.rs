//! `cargo xtask test`.

#![expect(clippy::disallowed_methods, reason = "how long the tests take is nobody's lock")]

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use quorlock_servers::{REQUIRE_VARIABLE, SKIP_LOG_VARIABLE, ServerBinary};

use crate::background::{Background, Task};
use crate::cargo;
use crate::install::server_or_exit;
use crate::summary::{Skips, Summary};
use crate::test_suite::{Conditions, Results, Suite, with_default_signals};
use crate::{chaos, mixed, mutants, redis_py, stepped};

/// How many seeds of the simulator belong to the tests.
const SEEDS: &str = "20000";

/// How long real servers are broken, in minutes.
const CHAOS: &str = "1";

/// Runs every test of the workspace with a real server. Without arguments it also runs the proofs, which are the
/// checks that are not tests: the simulator, the models, the mutants, and a minute of chaos. If a test skips itself
/// because something that it needs is missing, the run fails: what did not run was not shown to work.
pub(crate) fn run(workspace: &Path, args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.collect();
    let server = match server_or_exit(workspace) {
        Ok(server) => server,
        Err(code) => return code,
    };
    eprintln!("xtask: testing with {server}");
    if args.is_empty() {
        return all(workspace, &server);
    }
    some(workspace, &server, args).unwrap_or_else(|error| {
        eprintln!("xtask: {error}");
        ExitCode::FAILURE
    })
}

type Proof = fn(&Path, &ServerBinary) -> ExitCode;

/// What is more than a test and needs servers or the shipped code, in this order: what it is, the command
/// that runs it alone, and how it is run here.
const PROOFS: [(&str, &str, Proof); 4] = [
    ("the sweep with mistakes", "cargo xtask mutants --sweep", |workspace, _| {
        mutants::run(workspace, mutants::Parts { engine: false, sweep: true, all: false })
    }),
    ("version 0.1.0 and this one on the same nodes", "cargo xtask mixed", mixed::run),
    ("a wall clock that steps", "cargo xtask stepped", stepped::run),
    ("a minute of chaos", "cargo xtask chaos", |workspace, server| {
        chaos::minutes(workspace, server, CHAOS)
    }),
];

/// What runs in the background meanwhile. It only computes: it needs no server, and no result depends on its speed.
fn computed(workspace: &Path) -> Vec<Task> {
    let simulator = "cargo run --release --package quorlock-sim --bin quorlock-sim -- --jobs 2";
    let fresh = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros());
    println!("xtask: the new seeds of the simulator are those from {fresh} on");
    [
        (format!("{SEEDS} runs of the simulator"), format!("{simulator} --seeds {SEEDS}")),
        (
            format!("{SEEDS} runs of the simulator on new seeds, from {fresh} on"),
            format!("{simulator} --seeds {SEEDS} --from {fresh}"),
        ),
        // The models last: nothing else keeps both cores busy to the end.
        ("mistakes in the engine".to_owned(), "cargo xtask mutants --engine".to_owned()),
        (
            "the models".to_owned(),
            "cargo run --release --package quorlock-sim --bin quorlock-models".to_owned(),
        ),
    ]
    .map(|(name, again)| {
        let mut command = cargo(workspace);
        command.args(again.split(' ').skip(1));
        Task { name, again, command }
    })
    .into()
}

/// Everything, whatever fails on the way: who waits for it wants to know all that is broken. The last
/// lines name it.
fn all(workspace: &Path, server: &ServerBinary) -> ExitCode {
    let mut steps = Steps::new(3 + PROOFS.len());
    // They start before the tests are built: cargo leaves a core idle now and then, and each profile has a lock of its
    // own, so the two builds do not wait for each other.
    let background = Background::start(computed(workspace));
    steps.begin("build the tests");
    let suite = Suite::build(workspace);
    let results = suite.and_then(|suite| {
        let jobs = jobs();
        steps.begin(&format!(
            "run {} test binaries, {jobs} at a time, with simulator and models in the background",
            suite.len()
        ));
        suite.run(&Conditions { server: None, jobs, threads: None })
    });
    match &results {
        Ok(results) => {
            println!("xtask: {}, with {server}", results.told());
            steps.failed.extend(results.what_failed());
        }
        Err(why) => {
            eprintln!("xtask: {why}");
            steps.failed.push((why.clone(), "cargo test --workspace --no-run".to_owned()));
            steps.number = 2;
        }
    }
    for (name, again, proof) in PROOFS {
        steps.begin(name);
        if proof(workspace, server) != ExitCode::SUCCESS {
            eprintln!("xtask: {name}: failed");
            steps.failed.push((name.to_owned(), again.to_owned()));
        }
    }
    steps.begin("wait for what still runs in the background");
    while let Some(done) = background.next() {
        let result = if done.is_green { "" } else { ": failed" };
        println!("\nxtask: {} ({}){result}", done.name, clock(done.took));
        print!("{}", done.said);
        if !done.is_green {
            steps.failed.push((done.name.clone(), done.again));
        }
        steps.background.push((done.name, done.took));
    }
    if !background.end() {
        let what = "what runs in the background did not run to the end";
        steps.failed.push((what.to_owned(), "cargo xtask test".to_owned()));
    }
    steps.end(results.ok().as_ref())
}

/// How many test binaries run at a time. They mostly wait, but not only.
pub(crate) fn jobs() -> usize {
    std::thread::available_parallelism().map_or(2, |count| count.get().clamp(2, 4))
}

/// How far it is.
struct Steps {
    count: usize,
    number: usize,
    began: Instant,
    /// The steps so far, and when they began.
    begun: Vec<(String, Instant)>,
    /// What ran in the background, and for how long.
    background: Vec<(String, Duration)>,
    /// What failed, and the command that does it again.
    failed: Vec<(String, String)>,
}

impl Steps {
    fn new(count: usize) -> Self {
        let began = Instant::now();
        Self {
            count,
            number: 0,
            began,
            begun: Vec::new(),
            background: Vec::new(),
            failed: Vec::new(),
        }
    }

    fn begin(&mut self, what: &str) {
        self.number += 1;
        let so_far = if self.failed.is_empty() {
            String::new()
        } else {
            format!(", {} failed so far", self.failed.len())
        };
        let (number, count) = (self.number, self.count);
        println!(
            "\nxtask: step {number} of {count}, after {}{so_far}: {what}",
            clock(self.began.elapsed())
        );
        self.begun.push((what.to_owned(), Instant::now()));
    }

    /// Prints what it all comes to. `results` are those of the tests, if they could be built.
    fn end(self, results: Option<&Results>) -> ExitCode {
        let ends = self.begun.iter().skip(1).map(|(_, began)| *began).chain([Instant::now()]);
        println!("\nxtask: all of it in {}:", clock(self.began.elapsed()));
        for ((what, began), end) in self.begun.iter().zip(ends) {
            println!("  {:>7}  {what}", clock(end.duration_since(*began)));
        }
        for (what, took) in &self.background {
            println!("  {:>7}  in the background: {what}", clock(*took));
        }
        if !self.failed.is_empty() {
            println!(
                "\nxtask: {} failed; each with the command that runs it again:",
                self.failed.len()
            );
        }
        for (what, again) in &self.failed {
            println!("  FAILED {what}\n         {again}");
        }
        if let Some(Results { sum, skips, .. }) = results {
            println!(
                "xtask: {} passed, {} failed, {} skipped",
                sum.passed, sum.failed, skips.skipped
            );
        }
        if self.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// `12:07` are twelve minutes.
pub(crate) fn clock(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

/// The tests that cargo chooses with these arguments, run by cargo.
fn some(workspace: &Path, server: &ServerBinary, args: Vec<OsString>) -> io::Result<ExitCode> {
    let skip_log = tempfile::NamedTempFile::new()?;
    let mut command = with_default_signals(cargo(workspace));
    if let Some(folder) = redis_py::ensure(workspace) {
        command.env("PYTHONPATH", folder);
    }
    let names_package = |arg: &OsString| {
        let arg = arg.to_string_lossy();
        arg.starts_with("-p") || arg == "--package" || arg.starts_with("--package=")
    };
    let mut ours = args.iter().take_while(|arg| *arg != "--");
    let workspace = if ours.any(names_package) { None } else { Some("--workspace") };
    let mut tests = command
        .args(["test", "--no-fail-fast"])
        .args(workspace)
        .args(args)
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
    let noted = fs::read_to_string(skip_log.path())?;
    let skips = Skips::of(&noted);

    print!("\n{noted}");
    for test in &sum.failures {
        println!("  FAILED {test}");
    }
    println!("xtask: {sum}, {skips} in {} test binaries, with {server}", sum.results);
    let cargos = status.code().map_or(1, |code| u8::try_from(code).unwrap_or(1));
    Ok(match cargos {
        0 if skips.skipped > 0 => ExitCode::FAILURE,
        code => ExitCode::from(code),
    })
}
