//! Runs programs in parallel, and adds up the numbers in the lines `test result: …` of the test harness.
//!
//! cargo runs one test binary after the other, and most of them wait for timers and servers. The runner starts several
//! at a time. It buffers the output of each program, and prints all of it only after a failure.

#![expect(clippy::disallowed_methods, reason = "the duration of a test is not part of a lock")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use quorlock_servers::{NOT_FOR, REQUIRE_VARIABLE, SERVER_VARIABLE, SKIP_LOG_VARIABLE};
use serde_json::{Value, json};

use crate::program::{self, Ended};
use crate::{cargo, install};

/// Timeout of a program. A program that exceeds it is killed and counts as failed.
const TIME_OUT: Duration = Duration::from_secs(20 * 60);

#[derive(Debug)]
pub(crate) struct Job {
    /// The command with which a user repeats the run.
    pub(crate) again: String,
    pub(crate) command: Command,
    /// Whether the program is a test harness, which prints `test result: …`.
    pub(crate) is_harness: bool,
}

/// The totals of several runs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) ignored: usize,
    /// Tests that did not run because the machine lacks something, such as a server.
    pub(crate) skipped: usize,
    /// Tests that did not run because they are about another version of the server.
    pub(crate) not_for: usize,
    /// For each failure, the command that runs it again.
    pub(crate) failures: Vec<String>,
    /// The command and the duration of each job that is no test harness.
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
                // `next` releases the queue's lock before the run. A call in the `while let` would hold it.
                let next = || lock(&queue).next();
                while let Some((number, mut job)) = next() {
                    let job_began = Instant::now();
                    let ended = program::run(&mut job.command, TIME_OUT);
                    let mut totals = lock(&totals);
                    let (so_far, took) = (clock(began.elapsed()), job_began.elapsed());
                    let number = number + 1;
                    println!("\n[{number}/{count}, {so_far}] {} ({})", job.again, clock(took));
                    totals.add(&job, took, ended);
                }
            });
        }
    });
    totals.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl Totals {
    /// The totals of a run that could not start.
    pub(crate) fn failed(why: String) -> Self {
        Self { failures: vec![why], ..Self::default() }
    }

    /// Prints the totals. Returns whether nothing failed.
    pub(crate) fn report(&self) -> bool {
        self.failures.iter().for_each(|failure| println!("  FAILED {failure}"));
        let Self { passed, failed, ignored, skipped, not_for, .. } = self;
        println!("{ignored} tests ignored, {not_for} not for this server");
        println!("xtask: {passed} passed, {failed} failed, {skipped} skipped");
        self.failures.is_empty()
    }

    /// The totals that documents show.
    pub(crate) fn for_document(&self) -> Value {
        let Self { passed, not_for, failures, .. } = self;
        json!({"passed": passed, "not_for": not_for, "failures": failures})
    }

    fn add(&mut self, job: &Job, took: Duration, ended: Result<Ended, String>) {
        let (is_green, output) = match ended {
            Ok(ended) => (ended.is_success(), ended.output + &ended.errors),
            Err(why) => (false, why),
        };
        let mut sum = Self::default();
        let results = sum.read(&output);
        if job.is_harness && is_green && results > 0 && sum.failed == 0 {
            output.lines().filter(|line| line.starts_with("test result: ")).for_each(|line| {
                println!("{line}");
            });
        } else {
            println!("{}", output.trim_end());
            self.failures.extend(sum.failures.iter().map(|test| match test.contains(' ') {
                // cargo cannot run a single documentation example by name, so this command runs all of them.
                true => format!("{}: {test}", job.again),
                false => format!("{} -- --exact {test}", job.again),
            }));
            if sum.failures.is_empty() && (!is_green || job.is_harness) {
                self.failures.push(job.again.clone());
            }
        }
        if !job.is_harness {
            self.durations.push((job.again.clone(), took));
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
                Some(test) if in_failures => self.failures.push(test.to_owned()),
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

    /// Adds the log that `SKIP_LOG_VARIABLE` names. A skipped test counts as a failure, because it has checked nothing.
    pub(crate) fn read_skips(&mut self, log: &str) {
        print!("{log}");
        self.not_for += log.lines().filter(|line| line.starts_with(NOT_FOR)).count();
        self.skipped += log.lines().filter(|line| !line.starts_with(NOT_FOR)).count();
        if self.skipped > 0 {
            self.failures.push(format!("{} tests were skipped, see above", self.skipped));
        }
    }
}

#[derive(Debug)]
pub(crate) struct Suite {
    workspace: PathBuf,
    /// The folder of redis-py if it was fetched.
    python: Option<PathBuf>,
    binaries: Vec<Binary>,
}

/// One test binary: the command with which cargo runs it, its package's folder, and its path.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Binary {
    again: String,
    folder: PathBuf,
    path: PathBuf,
}

/// The settings of a run of the suite.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Conditions<'a> {
    /// The server for all tests. `None`: each test finds one, and tests about several versions run with each version.
    pub(crate) server: Option<&'a Path>,
    /// Test binaries in parallel.
    pub(crate) at_a_time: usize,
    /// Parallel tests per binary. `None`: one per core.
    pub(crate) threads: Option<usize>,
}

impl Suite {
    /// Builds the test binaries. If this fails, the compiler has printed its messages.
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
        // The longest binaries start first. Otherwise they run alone at the end.
        let longest = ["cancellation", "conformance", "replicas", "sentinel"];
        binaries.sort_by_key(|binary| !longest.iter().any(|name| binary.again.ends_with(name)));
        Ok(Self { workspace: workspace.to_owned(), python: install::redis_py(workspace), binaries })
    }

    /// Runs all test binaries and the examples in the documentation.
    pub(crate) fn run(&self, conditions: Conditions<'_>) -> Result<Totals, String> {
        let skip_log = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
        let mut examples = cargo(&self.workspace);
        examples.args(["test", "--quiet", "--workspace", "--doc"]);
        let mut jobs = vec![Job {
            again: "cargo test --workspace --doc".to_owned(),
            command: examples,
            is_harness: true,
        }];
        jobs.extend(self.binaries.iter().map(|binary| {
            let mut command = with_default_signals(&binary.path);
            command.current_dir(&binary.folder).env("CARGO_MANIFEST_DIR", &binary.folder);
            Job { again: binary.again.clone(), command, is_harness: true }
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
        // The id is `path+file:///…/crates/cli#quorlock-cli@0.1.0`, without the name if the folder has the same name.
        let (id, package) = message["package_id"].as_str()?.rsplit_once('#')?;
        let package = match package.split_once('@') {
            Some((name, _)) => name,
            None => id.rsplit('/').next()?,
        };
        let option = match message["target"]["kind"][0].as_str()? {
            kind @ ("test" | "bin" | "example") => format!("--{kind} {target}"),
            _ => "--lib".to_owned(),
        };
        let again = format!("cargo test --package {package} {option}");
        Some(Self { again, folder, path })
    }
}

/// Some tests send HUP, INT and QUIT. If xtask runs from a script in the background, it ignores these signals and its
/// children inherit that, so this command starts the program with the signals' default actions.
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

/// Formats minutes and seconds: `12:07`.
pub(crate) fn clock(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

/// Locks a mutex, even if it is poisoned. No panic leaves the guarded values half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(script: &str, is_harness: bool) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Job { again: "cargo test --lib".to_owned(), command, is_harness }
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
        let mut failures = totals.failures;
        failures.sort_unstable();
        let lib = "cargo test --lib";
        let of_test = format!("{lib} -- --exact m::broken");
        assert_eq!(failures, [lib, lib, &of_test, "cargo test --lib: the text of a test"]);
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
        assert_eq!(binary.again, "cargo test --package quorlock-cli --test faults");
        let library = message.replace("quorlock-cli@", "").replace(r#"["test"]"#, r#"["lib"]"#);
        assert_eq!(Binary::read(&library).unwrap().again, "cargo test --package cli --lib");
        assert_eq!(Binary::read(&message.replace(r#""test":true"#, r#""test":false"#)), None);
    }
}
