//! Runs programs side by side and adds up the closing lines of the test harness.
//!
//! cargo runs one test binary after the other, and most of them wait for timers and servers. The runner starts several
//! at a time. It keeps the output of each until its end, and prints all of it only after a failure.

#![expect(clippy::disallowed_methods, reason = "the duration of a test is not part of a lock")]

use std::io::{self, Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use quorlock_servers::{NOT_FOR, REQUIRE_VARIABLE, SERVER_VARIABLE, SKIP_LOG_VARIABLE};
use serde_json::Value;

use crate::{cargo, redis_py};

/// A program that runs longer is killed, and counts as failed.
const TIME_OUT: Duration = Duration::from_secs(20 * 60);

/// A program to run.
#[derive(Debug)]
pub(crate) struct Job {
    /// Name for people: `quorlock tests/faults`.
    pub(crate) name: String,
    /// The command that runs the same again.
    pub(crate) again: String,
    pub(crate) command: Command,
    /// Whether the program is a test harness, which prints `test result: …`.
    pub(crate) is_harness: bool,
}

/// The sum of several runs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) ignored: usize,
    /// Tests that did not run because something that they need is missing.
    pub(crate) skipped: usize,
    /// Tests about another version of the server.
    pub(crate) not_for: usize,
    /// What failed, each with the command that runs it again.
    pub(crate) failures: Vec<(String, String)>,
    /// The name and the duration of each job that is no harness.
    pub(crate) durations: Vec<(String, Duration)>,
}

/// Runs the jobs, at most `at_a_time` at once, and prints the result of each when it ends.
pub(crate) fn run_all(jobs: Vec<Job>, at_a_time: usize) -> Totals {
    let (count, began) = (jobs.len(), Instant::now());
    let queue = Mutex::new(jobs.into_iter().enumerate());
    let totals = Mutex::new(Totals::default());
    thread::scope(|scope| {
        for _ in 0..at_a_time.max(1) {
            scope.spawn(|| {
                // A separate statement: `while let` would hold the queue's lock during the run.
                let next = || lock(&queue).next();
                while let Some((number, mut job)) = next() {
                    let job_began = Instant::now();
                    let (is_green, output) =
                        run(&mut job.command).unwrap_or_else(|error| (false, format!("{error}\n")));
                    let mut totals = lock(&totals);
                    let (so_far, took) = (clock(began.elapsed()), job_began.elapsed());
                    let number = number + 1;
                    println!("\n[{number}/{count}, {so_far}] {} ({})", job.name, clock(took));
                    totals.add(&job, is_green, took, &output);
                }
            });
        }
    });
    totals.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a program to its end. Returns whether it succeeded, and its output.
fn run(command: &mut Command) -> io::Result<(bool, String)> {
    // A file instead of a pipe: a server that outlives its test would keep a pipe open.
    let mut file = tempfile::tempfile()?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file.try_clone()?);
    let is_green = wait(&mut command.spawn()?)?;
    let mut output = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut output)?;
    let mut output = String::from_utf8_lossy(&output).into_owned();
    if is_green.is_none() {
        output.push_str(&format!("\nkilled after {}\n", clock(TIME_OUT)));
    }
    Ok((is_green == Some(true), output))
}

/// Waits for the end of a process. Returns `None` after killing it because it took too long.
fn wait(child: &mut Child) -> io::Result<Option<bool>> {
    let began = Instant::now();
    while began.elapsed() < TIME_OUT {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.success()));
        }
        thread::sleep(Duration::from_millis(20));
    }
    child.kill()?;
    child.wait().map(|_| None)
}

impl Totals {
    /// The totals of a run that did not take place.
    pub(crate) fn failed(why: String) -> Self {
        Self { failures: vec![(why, "cargo xtask test".to_owned())], ..Self::default() }
    }

    /// Prints the failures and the counts.
    pub(crate) fn report(&self) -> ExitCode {
        for (what, again) in &self.failures {
            println!("  FAILED {what}\n         {again}");
        }
        let Self { passed, failed, ignored, skipped, not_for, .. } = self;
        println!("{ignored} tests ignored, {not_for} not for this server");
        println!("xtask: {passed} passed, {failed} failed, {skipped} skipped");
        if self.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn add(&mut self, job: &Job, is_green: bool, took: Duration, output: &str) {
        let mut sum = Self::default();
        let results = sum.read(output);
        if job.is_harness && is_green && results > 0 && sum.failed == 0 {
            output.lines().filter(|line| line.starts_with("test result: ")).for_each(|line| {
                println!("{line}");
            });
        } else {
            println!("{}", output.trim_end());
            for (test, _) in &sum.failures {
                self.failures.push((format!("{}: {test}", job.name), job.run_again(test)));
            }
            if sum.failures.is_empty() && (!is_green || job.is_harness) {
                self.failures.push((job.name.clone(), job.again.clone()));
            }
        }
        if !job.is_harness {
            self.durations.push((job.name.clone(), took));
        } else {
            self.passed += sum.passed;
            self.failed += sum.failed;
            self.ignored += sum.ignored;
        }
    }

    /// Adds the lines `test result: ok. 3 passed; 0 failed; 1 ignored; …` and the names below `failures:`. Returns the
    /// number of such result lines.
    pub(crate) fn read(&mut self, output: &str) -> usize {
        let (mut results, mut in_failures) = (0, false);
        for line in output.lines() {
            match line.strip_prefix("    ") {
                Some(test) if in_failures => self.failures.push((test.to_owned(), String::new())),
                _ => in_failures = line == "failures:",
            }
            let Some((_, counts)) =
                line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". "))
            else {
                continue;
            };
            results += 1;
            for count in counts.split(';') {
                let mut words = count.split_whitespace();
                let number = words.next().and_then(|number| number.parse().ok()).unwrap_or(0);
                match words.next() {
                    Some("passed") => self.passed += number,
                    Some("failed") => self.failed += number,
                    Some("ignored") => self.ignored += number,
                    _ => {}
                }
            }
        }
        results
    }

    /// Adds the log that `SKIP_LOG_VARIABLE` names. A skipped test counts as a failure: it has shown nothing.
    pub(crate) fn read_skips(&mut self, log: &str) {
        print!("{log}");
        self.not_for += log.lines().filter(|line| line.starts_with(NOT_FOR)).count();
        self.skipped += log.lines().filter(|line| !line.starts_with(NOT_FOR)).count();
        if self.skipped > 0 {
            let what = format!("{} tests were skipped, see above", self.skipped);
            self.failures.push((what, "cargo xtask test".to_owned()));
        }
    }
}

impl Job {
    /// The command that runs one test again. The name of an example in the documentation cannot be passed.
    fn run_again(&self, test: &str) -> String {
        if test.contains(' ') {
            return self.again.clone();
        }
        format!("{} -- --exact {test}", self.again)
    }
}

/// The test binaries of the workspace.
#[derive(Debug)]
pub(crate) struct Suite {
    workspace: PathBuf,
    /// The folder of redis-py if it was fetched.
    python: Option<PathBuf>,
    binaries: Vec<Binary>,
}

/// One test binary: its name, the arguments with which cargo runs it, its package's folder, and its path.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Binary {
    name: String,
    cargo: String,
    folder: PathBuf,
    path: PathBuf,
}

/// The conditions of one run of the suite.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Conditions<'a> {
    /// The only server. `None`: each test finds its own, and tests about servers in general run with every version.
    pub(crate) server: Option<&'a Path>,
    /// Test binaries at a time.
    pub(crate) at_a_time: usize,
    /// Tests of one binary at a time. `None`: one per core.
    pub(crate) threads: Option<usize>,
}

impl Suite {
    /// Builds the test binaries. The compiler's messages have been printed when this fails.
    pub(crate) fn build(workspace: &Path) -> Result<Self, String> {
        let output = cargo(workspace)
            .args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"])
            .stderr(Stdio::inherit())
            .output()
            .map_err(|error| format!("cargo test --no-run: {error}"))?;
        let messages = String::from_utf8_lossy(&output.stdout);
        let mut binaries: Vec<Binary> = messages.lines().filter_map(Binary::read).collect();
        if !output.status.success() || binaries.is_empty() {
            return Err("the tests could not be built".to_owned());
        }
        // The longest binary starts first. Otherwise it runs alone at the end.
        binaries.sort_by_key(|binary| binary.name != "quorlock tests/cancellation");
        Ok(Self { workspace: workspace.to_owned(), python: redis_py::ensure(workspace), binaries })
    }

    /// Runs all test binaries and the examples in the documentation.
    pub(crate) fn run(&self, conditions: Conditions<'_>) -> Result<Totals, String> {
        let skip_log = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
        let mut examples = cargo(&self.workspace);
        examples.args(["test", "--quiet", "--workspace", "--doc"]);
        let mut jobs = vec![Job {
            name: "examples in the documentation".to_owned(),
            again: "cargo test --workspace --doc".to_owned(),
            command: examples,
            is_harness: true,
        }];
        jobs.extend(self.binaries.iter().map(|binary| {
            let mut command = with_default_signals(&binary.path);
            command.current_dir(&binary.folder).env("CARGO_MANIFEST_DIR", &binary.folder);
            let again = format!("cargo test {}", binary.cargo);
            Job { name: binary.name.clone(), again, command, is_harness: true }
        }));
        for Job { command, .. } in &mut jobs {
            command.env(REQUIRE_VARIABLE, "1").env(SKIP_LOG_VARIABLE, skip_log.path());
            command.envs(conditions.server.map(|server| (SERVER_VARIABLE, server)));
            command.envs(conditions.threads.map(|count| ("RUST_TEST_THREADS", count.to_string())));
            command.envs(self.python.as_ref().map(|folder| ("PYTHONPATH", folder)));
        }
        let mut totals = run_all(jobs, conditions.at_a_time);
        let log = std::fs::read_to_string(skip_log.path()).map_err(|error| error.to_string())?;
        totals.read_skips(&log);
        Ok(totals)
    }
}

impl Binary {
    /// Reads cargo's message about a test binary. Returns `None` for any other message.
    fn read(message: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(message).ok()?;
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            return None;
        }
        let path = PathBuf::from(message["executable"].as_str()?);
        let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
        let target = message["target"]["name"].as_str()?;
        // `path+file:///…/crates/cli#quorlock-cli@0.1.0`, or without the name if the folder has the same.
        let (id, package) = message["package_id"].as_str()?.rsplit_once('#')?;
        let package = match package.split_once('@') {
            Some((name, _)) => name,
            None => id.rsplit('/').next()?,
        };
        let (name, option) = match message["target"]["kind"][0].as_str()? {
            "test" => (format!("{package} tests/{target}"), format!(" --test {target}")),
            "bin" => (format!("{package} program {target}"), format!(" --bin {target}")),
            "lib" => (format!("{package} library"), " --lib".to_owned()),
            _ => (format!("{package} {target}"), String::new()),
        };
        Some(Self { name, cargo: format!("--package {package}{option}"), folder, path })
    }
}

/// A command for a program that starts with the default actions for HUP, INT and QUIT. A script that runs in the
/// background ignores them, and its descendants inherit that; some tests are about these signals.
pub(crate) fn with_default_signals(program: &Path) -> Command {
    const RESET: &str = "--default-signal=HUP,INT,QUIT";
    let works = Command::new("env").args([RESET, "true"]).stderr(Stdio::null()).status();
    if !works.is_ok_and(|status| status.success()) {
        return Command::new(program);
    }
    let mut command = Command::new("env");
    command.arg(RESET).arg(program);
    command
}

/// Minutes and seconds: `12:07`.
pub(crate) fn clock(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

/// No panic leaves the guarded values half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(script: &str, is_harness: bool) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Job { name: "a".to_owned(), again: "cargo test --lib".to_owned(), command, is_harness }
    }

    #[test]
    fn results_failures_and_silent_programs_are_counted() {
        let failing = "printf 'failures:\\n    the text of a test\\n\\nfailures:\\n    m::broken\\n\\n\
                       test result: FAILED. 11 passed; 1 failed; 2 ignored; 0 measured\\n'; exit 101";
        let totals = run_all(
            vec![
                job("echo 'test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured'", true),
                job(failing, true),
                job("true", true),
                job("echo test result; false", false),
            ],
            2,
        );
        assert_eq!((totals.passed, totals.failed, totals.ignored), (14, 1, 3), "{totals:?}");
        let mut again: Vec<&str> = totals.failures.iter().map(|(_, again)| &**again).collect();
        again.sort_unstable();
        let lib = "cargo test --lib";
        assert_eq!(again, [lib, lib, lib, "cargo test --lib -- --exact m::broken"]);
        assert_eq!(totals.durations.len(), 1);
    }

    #[test]
    fn a_skipped_test_is_a_failure_and_one_for_another_server_is_not() {
        let mut totals = Totals::default();
        totals.read_skips("NOT FOR Valkey 9.1.2 (it forgets no script): b\n");
        assert_eq!((totals.not_for, totals.failures.len()), (1, 0));
        totals.read_skips("SKIPPED (no Redis or Valkey server found): a\n");
        assert_eq!((totals.skipped, totals.failures.len()), (1, 1));
    }

    #[test]
    fn cargo_names_the_binaries() {
        let message = r#"{"reason":"compiler-artifact",
            "package_id":"path+file:///src/crates/cli#quorlock-cli@0.1.0",
            "manifest_path":"/src/crates/cli/Cargo.toml",
            "target":{"kind":["test"],"name":"faults"},
            "profile":{"test":true},"executable":"/src/target/debug/deps/faults-1"}"#;
        let binary = Binary::read(message).unwrap();
        assert_eq!(binary.name, "quorlock-cli tests/faults");
        assert_eq!(binary.cargo, "--package quorlock-cli --test faults");
        let library = message.replace("quorlock-cli@", "").replace(r#"["test"]"#, r#"["lib"]"#);
        assert_eq!(Binary::read(&library).unwrap().name, "cli library");
        assert_eq!(Binary::read(&message.replace(r#""test":true"#, r#""test":false"#)), None);
    }
}
