//! `cargo xtask test`: every test with a real server, then the checks that are not tests.

#![expect(clippy::disallowed_methods, reason = "the duration of the tests is not part of a lock")]

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use quorlock_servers::{REQUIRE_VARIABLE, SERVER_VARIABLE, ServerBinary};

use crate::runner::{Conditions, Job, Suite, Totals, clock, run_all, with_default_signals};
use crate::{Outcome, cargo, install};

/// The number of simulator runs with pinned seeds. The same number of runs has fresh seeds, which the clock gives.
const SEEDS: &str = "10000";

const SIMULATOR: &str =
    "cargo run --profile proof --package quorlock-sim --bin quorlock-sim -- --jobs 2";

/// Runs every test. Arguments go to `cargo test`; without them the other checks run too. A test that is skipped fails
/// the run.
pub(crate) fn run(workspace: &Path, server: &ServerBinary, args: &[OsString]) -> Outcome {
    eprintln!("xtask: testing with {server}");
    if args.is_empty() { all(workspace, server) } else { some(workspace, server, args) }
}

/// Builds and runs everything. A test that fails does not stop the rest; the last lines name everything that failed.
fn all(workspace: &Path, server: &ServerBinary) -> Outcome {
    let began = Instant::now();
    let fresh = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros());
    println!("xtask: the simulator's fresh seeds begin at {fresh}");
    let job = |again: String, nice: &[&str]| {
        let words: Vec<&str> = nice.iter().copied().chain(again.split(' ')).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(workspace).env(SERVER_VARIABLE, &server.path);
        Job { again, command, is_harness: false }
    };
    // These jobs need no server, and a slow machine does not change their results. They run beside the tests and the
    // proofs, which mostly wait, and not beside the build of the tests, which does not.
    let computed = [
        format!("{SIMULATOR} --seeds {SEEDS}"),
        format!("{SIMULATOR} --seeds {SEEDS} --from {fresh}"),
        "cargo xtask mutants".to_owned(),
        "cargo run --profile proof --package quorlock-sim --bin quorlock-models -- --size small"
            .to_owned(),
    ];
    // These jobs use servers. They run after the tests, because they build the program `quorlock` of the tests again, in
    // another form and in the same place.
    let proofs = [
        "cargo xtask mixed",
        "cargo xtask interop --only redlock-py,rslock --no-shares --check",
        "cargo xtask stepped",
        "cargo xtask sentinel --failovers 2",
        "cargo xtask chaos",
    ];
    let nice = ["nice", "-n", "19"];
    let computed = computed.map(|again| job(again, &nice)).into();
    let proofs = proofs.map(|again| job(again.to_owned(), &[])).into();
    let suite = Suite::build(workspace)?;
    let (mut tests, others) = thread::scope(|scope| {
        let background = scope.spawn(|| run_all(computed, 1));
        let conditions = Conditions { at_a_time: at_a_time(), ..Conditions::default() };
        let tests = suite.run(conditions);
        let proofs = run_all(proofs, 1);
        let computed = background.join().expect("no job panics");
        (tests.unwrap_or_else(Totals::failed), [proofs, computed])
    });
    for other in others {
        tests.failures.extend(other.failures);
        tests.durations.extend(other.durations);
    }
    println!("\nxtask: all of it in {}, with {server}", clock(began.elapsed()));
    for (command, took) in &tests.durations {
        println!("  {:>6}  {command}", clock(*took));
    }
    Ok(tests.report())
}

/// The number of test binaries that run in parallel: at least two, even on one core, because tests mostly wait.
pub(crate) fn at_a_time() -> usize {
    thread::available_parallelism().map_or(2, |count| count.get().clamp(2, 4))
}

/// Runs the tests that cargo selects with these arguments.
fn some(workspace: &Path, server: &ServerBinary, args: &[OsString]) -> Outcome {
    let names_package = |arg: &OsString| {
        let arg = arg.to_string_lossy();
        arg.starts_with("-p") || arg.starts_with("--package")
    };
    let has_package = args.iter().take_while(|arg| *arg != "--").any(names_package);
    let cargo = cargo(workspace);
    let mut command = with_default_signals(Path::new(cargo.get_program()));
    command.current_dir(workspace).args(["test", "--no-fail-fast"]);
    command.args((!has_package).then_some("--workspace")).args(args);
    command.env(REQUIRE_VARIABLE, "1").env(SERVER_VARIABLE, &server.path);
    command.envs(install::redis_py(workspace).map(|folder| ("PYTHONPATH", folder)));
    let status = command.status().map_err(|error| format!("cargo: {error}"))?;
    Ok(status.success())
}
