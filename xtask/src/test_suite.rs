//! All tests of the workspace: built once, run as often as one likes, several binaries at a time.
//!
//! cargo runs one test binary after the other, and most of ours wait for timers and servers most of
//! the time. What a binary prints is kept until it has ended: a line and its counts where all is
//! well, everything where it is not.

#![expect(clippy::disallowed_methods, reason = "how long tests take is nobody's lock")]

use std::collections::VecDeque;
use std::fs;
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use quorlock_servers::{REQUIRE_VARIABLE, SERVER_VARIABLE, SKIP_LOG_VARIABLE};
use serde_json::Value;

use crate::summary::{Skips, Summary};
use crate::{cargo, redis_py};

/// A binary that takes longer hangs: it is killed, and that is a failure.
const TIME_OUT: Duration = Duration::from_secs(20 * 60);

/// How often somebody who looks on is told what is being waited for.
const HEARTBEAT: Duration = Duration::from_secs(30);

/// The tests, built.
#[derive(Debug)]
pub(crate) struct Suite {
    workspace: PathBuf,
    /// Where redis-py is, if it had to be fetched.
    python: Option<PathBuf>,
    programs: Vec<Program>,
}

/// Something that runs tests: a binary, or cargo with the examples in the documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Program {
    /// For people: `quorlock tests/faults`.
    name: String,
    /// The arguments with which cargo runs the same.
    cargo: Vec<String>,
    /// The package's folder, in which tests run.
    folder: PathBuf,
    /// None for the examples in the documentation, which only cargo can run.
    binary: Option<PathBuf>,
}

/// How the tests are to be run.
#[derive(Debug)]
pub(crate) struct Conditions<'a> {
    /// The one server for all of it. None: each test finds its own, and those about servers in
    /// general run with every version that is here.
    pub(crate) server: Option<&'a Path>,
    /// How many binaries run at a time.
    pub(crate) jobs: usize,
    /// How many tests of a binary run at a time. None: as many as there are cores.
    pub(crate) threads: Option<usize>,
}

/// What became of the tests.
#[derive(Debug, Default)]
pub(crate) struct Results {
    pub(crate) sum: Summary,
    pub(crate) skips: Skips,
    pub(crate) programs: usize,
    /// What failed, and the command that runs it again.
    pub(crate) failures: Vec<(String, String)>,
}

impl Suite {
    /// Builds them.
    ///
    /// # Errors
    /// For people. What the compiler says has been printed.
    pub(crate) fn build(workspace: &Path) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("cargo test --no-run: {error}");
        let mut build = cargo(workspace)
            .args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"])
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut messages = String::new();
        if let Some(mut out) = build.stdout.take() {
            out.read_to_string(&mut messages).map_err(failed)?;
        }
        if !build.wait().map_err(failed)?.success() {
            return Err("the tests could not be built".to_owned());
        }
        let mut programs: Vec<Program> = messages.lines().filter_map(Program::read).collect();
        if programs.is_empty() {
            return Err("cargo has built no test".to_owned());
        }
        programs.push(Program {
            name: "examples in the documentation".to_owned(),
            cargo: ["--workspace", "--doc"].map(str::to_owned).into(),
            folder: workspace.to_owned(),
            binary: None,
        });
        // The long ones first: otherwise one of them is alone at the end.
        programs.sort_by_key(|program| !program.is_long());
        let python = redis_py::ensure(workspace);
        Ok(Self { workspace: workspace.to_owned(), python, programs })
    }

    /// How many binaries there are.
    pub(crate) fn len(&self) -> usize {
        self.programs.len()
    }

    /// Runs them all, and prints what they say.
    ///
    /// # Errors
    /// If a file for what they say cannot be had.
    pub(crate) fn run(&self, conditions: &Conditions<'_>) -> Result<Results, String> {
        let io = |error: std::io::Error| error.to_string();
        let began = Instant::now();
        let skip_log = tempfile::NamedTempFile::new().map_err(io)?;
        let queue = Mutex::new(self.programs.iter().collect::<VecDeque<_>>());
        let running = Mutex::new(Vec::new());
        let mut results = Results { programs: self.len(), ..Results::default() };
        thread::scope(|scope| {
            let (ended, ends) = mpsc::channel();
            for _ in 0..conditions.jobs.max(1) {
                let (ended, queue, running, log) = (ended.clone(), &queue, &running, &skip_log);
                scope.spawn(move || {
                    while let Some(program) = lock(queue).pop_front() {
                        let began = Instant::now();
                        lock(running).push((program, began));
                        let outcome = self.run_one(program, conditions, log.path());
                        lock(running).retain(|(other, _)| *other != program);
                        if ended.send((program, began.elapsed(), outcome)).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(ended);
            let mut count = 0;
            loop {
                let (program, took, outcome) = match ends.recv_timeout(HEARTBEAT) {
                    Ok(end) => end,
                    Err(RecvTimeoutError::Timeout) => {
                        let running = lock(&running);
                        let running = running.iter().map(|(program, since)| {
                            format!("{} ({} s)", program.name, since.elapsed().as_secs())
                        });
                        let running = running.collect::<Vec<_>>().join(", ");
                        println!("[{count:>2}/{}] still running: {running}", self.len());
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => break,
                };
                count += 1;
                let (so_far, took) = (began.elapsed().as_secs(), took.as_secs_f64());
                println!(
                    "[{count:>2}/{}, {so_far:>3} s] {} ({took:.1} s)",
                    self.len(),
                    program.name
                );
                results.add(program, outcome);
            }
        });
        let noted = fs::read_to_string(skip_log.path()).map_err(io)?;
        print!("{noted}");
        results.skips = Skips::of(&noted);
        Ok(results)
    }

    fn run_one(
        &self,
        program: &Program,
        conditions: &Conditions<'_>,
        skip_log: &Path,
    ) -> Result<(ExitStatus, String), String> {
        let io = |error: std::io::Error| error.to_string();
        let mut command = with_default_signals(match &program.binary {
            Some(binary) => Command::new(binary),
            None => {
                let mut cargo = cargo(&self.workspace);
                cargo.args(["test", "--quiet"]).args(&program.cargo);
                cargo
            }
        });
        // A file and no pipe: a server that outlives its test would keep a pipe open.
        let mut output = tempfile::tempfile().map_err(io)?;
        command
            .current_dir(&program.folder)
            .env("CARGO_MANIFEST_DIR", &program.folder)
            .env(REQUIRE_VARIABLE, "1")
            .env(SKIP_LOG_VARIABLE, skip_log)
            .stdin(Stdio::null())
            .stdout(output.try_clone().map_err(io)?)
            .stderr(output.try_clone().map_err(io)?);
        if let Some(server) = conditions.server {
            command.env(SERVER_VARIABLE, server);
        }
        if let Some(threads) = conditions.threads {
            command.env("RUST_TEST_THREADS", threads.to_string());
        }
        if let Some(python) = &self.python {
            command.env("PYTHONPATH", python);
        }
        let status = wait(&mut command.spawn().map_err(io)?).map_err(io)?;
        let mut said = Vec::new();
        output.rewind().and_then(|()| output.read_to_end(&mut said)).map_err(io)?;
        let mut said = String::from_utf8_lossy(&said).into_owned();
        if status.is_none() {
            said.push_str(&format!("\nkilled after {} s\n", TIME_OUT.as_secs()));
        }
        status.map(|status| (status, said.clone())).ok_or(said)
    }
}

/// Waits for the end; kills what does not come to one.
fn wait(child: &mut Child) -> std::io::Result<Option<ExitStatus>> {
    let began = Instant::now();
    while began.elapsed() < TIME_OUT {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(Duration::from_millis(20));
    }
    child.kill()?;
    child.wait().map(|_| None)
}

impl Program {
    /// Reads what cargo says of an executable for tests, and no other message.
    fn read(message: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(message).ok()?;
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            return None;
        }
        let binary = PathBuf::from(message["executable"].as_str()?);
        let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
        let target = message["target"]["name"].as_str()?;
        // `path+file:///…/crates/cli#quorlock-cli@0.1.0`, or without the name where the folder has it.
        let (path, package) = message["package_id"].as_str()?.rsplit_once('#')?;
        let package = match package.split_once('@') {
            Some((name, _)) => name,
            None => path.rsplit('/').next()?,
        };
        let (name, option) = match message["target"]["kind"][0].as_str()? {
            "test" => (format!("{package} tests/{target}"), vec!["--test", target]),
            "bin" => (format!("{package} program {target}"), vec!["--bin", target]),
            "lib" => (format!("{package} library"), vec!["--lib"]),
            _ => (format!("{package} {target}"), vec![]),
        };
        let cargo = [&["--package", package], &option[..]].concat();
        let cargo = cargo.into_iter().map(str::to_owned).collect();
        Some(Self { name, cargo, folder, binary: Some(binary) })
    }

    /// The examples in the documentation have to be compiled, and the sweep is much work.
    fn is_long(&self) -> bool {
        self.binary.is_none() || self.name == "quorlock tests/cancellation"
    }

    fn again(&self, test: Option<&str>) -> String {
        let test = match test {
            // The name of an example has spaces, and is not taken as it is.
            Some(test) if self.binary.is_some() => format!(" -- --exact {test}"),
            _ => String::new(),
        };
        format!("cargo test {}{test}", self.cargo.join(" "))
    }
}

impl Results {
    /// In a line.
    pub(crate) fn told(&self) -> String {
        format!("{}, {} in {} test binaries", self.sum, self.skips, self.programs)
    }

    /// What failed and how to run it again. A test that was skipped is among it.
    pub(crate) fn what_failed(&self) -> Vec<(String, String)> {
        let mut failed = self.failures.clone();
        let skipped = self.skips.skipped;
        if skipped > 0 {
            let what =
                format!("{skipped} tests were skipped for want of what they need, see above");
            failed.push((what, "cargo xtask test".to_owned()));
        }
        failed
    }

    /// Prints what a program has said, as far as that is of interest.
    fn add(&mut self, program: &Program, outcome: Result<(ExitStatus, String), String>) {
        let (ended, said) = match outcome {
            Ok((status, said)) => (Ok(status), said),
            Err(said) => (Err(()), said),
        };
        let sum = Summary::of(&said);
        let well = ended.is_ok_and(|status| status.success()) && sum.failed == 0 && sum.results > 0;
        if well {
            said.lines().filter(|line| line.starts_with("test result: ")).for_each(|line| {
                println!("{line}");
            });
        } else {
            println!("{}", said.trim_end());
            if let Ok(status) = ended {
                println!("{}: {status}", program.name);
            }
        }
        for test in &sum.failures {
            self.failures.push((format!("{}: {test}", program.name), program.again(Some(test))));
        }
        if !well && sum.failures.is_empty() {
            let what = format!("{}: ended without saying which test failed", program.name);
            self.failures.push((what, program.again(None)));
        }
        self.sum.merge(sum);
    }
}

/// Nothing is left half done by a thread that panics while it holds one of these.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Signals that this process ignores, as one started in the background by a script does, would be
/// ignored by the tests and all they start, some of which are about signals. `env` of coreutils can
/// take that back; elsewhere the command stays as it is.
pub(crate) fn with_default_signals(command: Command) -> Command {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cargo_says_of_a_test_binary() {
        let message = r#"{"reason":"compiler-artifact",
            "package_id":"path+file:///src/crates/cli#quorlock-cli@0.1.0",
            "manifest_path":"/src/crates/cli/Cargo.toml",
            "target":{"kind":["test"],"name":"faults"},
            "profile":{"test":true},"executable":"/src/target/debug/deps/faults-1"}"#;
        let program = Program::read(&message.replace('\n', "")).unwrap();
        assert_eq!(program.name, "quorlock-cli tests/faults");
        assert_eq!(program.folder, Path::new("/src/crates/cli"));
        let again = "cargo test --package quorlock-cli --test faults -- --exact a::b";
        assert_eq!(program.again(Some("a::b")), again);
        let library = message.replace("quorlock-cli@", "").replace(r#"["test"]"#, r#"["lib"]"#);
        assert_eq!(Program::read(&library).unwrap().name, "cli library");
        for other in [
            message.replace(r#""test":true"#, r#""test":false"#),
            message.replace(r#""/src/target/debug/deps/faults-1""#, "null"),
            message.replace("compiler-artifact", "build-finished"),
        ] {
            assert_eq!(Program::read(&other), None);
        }
    }

    #[test]
    fn a_binary_that_ends_without_a_word_has_failed() {
        let program = Program {
            name: "a".to_owned(),
            cargo: vec!["--lib".to_owned()],
            folder: PathBuf::new(),
            binary: None,
        };
        let status = Command::new("true").status().unwrap();
        let mut results = Results::default();
        results.add(&program, Ok((status, String::new())));
        results.add(&program, Err("test result: ok. 1 passed; 0 failed".to_owned()));
        assert_eq!(results.failures.len(), 2, "{results:?}");
        results.add(&program, Ok((status, "test result: ok. 1 passed; 0 failed\n".to_owned())));
        assert_eq!((results.failures.len(), results.sum.passed), (2, 2), "{results:?}");
    }
}
