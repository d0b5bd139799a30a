//! The guardian with real processes, signals and terminals.
//!
//! The guardian executes its own program again, so this test contains the modules. The first argument selects the role:
//! test runner, keeper, guardian or exec step. The keeper replaces `quorlock run`, and has no lock: it takes its
//! deadlines from the command line and writes each event with the time of the boot clock to a log. A test waits for an
//! event in the log instead of sleeping, and can stop or kill the keeper.
//!
//! Every process of a command has a mark of its test in its environment. A marked process that runs after the end of
//! the command has escaped.

// With this path, the source files find each other's modules as in the program `quorlock`.
#[path = "../../src"]
#[allow(dead_code, unused_imports, reason = "their #[test] functions vanish without libtest")]
mod src {
    pub(crate) mod child;
    pub(crate) mod guardian;
}

mod command;
mod deadlines;
mod deaths;
mod keeper;
mod run;
mod terminals;
mod tty;

use std::ffi::OsString;
use std::fs::{self, File};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use self::command::*;
use self::deadlines::*;
use self::deaths::*;
use self::src::guardian;
use self::src::guardian::clock::boot_ns;
use self::terminals::*;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let first = args.next().unwrap_or_default();
    match first.to_str() {
        Some(guardian::GUARDIAN) => guardian::main(args.collect()),
        Some(guardian::EXEC_STEP) => guardian::exec_step::main(args.collect()),
        Some(KEEPER) => keeper::main(args),
        _ => run_tests(),
    }
}

const KEEPER: &str = "__keeper";

/// A runner that accepts test names as libtest does, and ignores most options.
fn run_tests() -> ExitCode {
    let mut filters = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(argument) = args.next() {
        match argument.as_str() {
            "--list" => {
                TESTS.iter().for_each(|(name, _)| println!("{name}: test"));
                return ExitCode::SUCCESS;
            }
            // The next argument is the option's value.
            "--test-threads" | "--format" | "--color" | "--logfile" | "--skip" => drop(args.next()),
            option if option.starts_with('-') => {}
            _ => filters.push(argument),
        }
    }
    let chosen = |name: &str| filters.is_empty() || filters.iter().any(|part| name.contains(part));
    let tests: Vec<&Test> = TESTS.iter().filter(|(name, _)| chosen(name)).collect();
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    let run_some = || {
        while let Some((name, test)) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
            let began = boot_ns();
            let ok = catch_unwind(AssertUnwindSafe(test)).is_ok();
            let took_ms = (boot_ns() - began) / MS;
            println!("test {name} ... {} ({took_ms} ms)", if ok { "ok" } else { "FAILED" });
            if !ok {
                failed.lock().expect("no panic").push(name);
            }
        }
    };
    // Several tests run at a time, because most of them wait for a deadline.
    thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(run_some))));
    let failed = failed.into_inner().expect("no panic");
    let passed = tests.len() - failed.len();
    if !failed.is_empty() {
        println!("\nfailures:");
        failed.iter().for_each(|name| println!("    {name}"));
    }
    let result = if failed.is_empty() { "ok" } else { "FAILED" };
    let filtered = TESTS.len() - tests.len();
    println!(
        "\ntest result: {result}. {passed} passed; {} failed; 0 ignored; 0 measured; \
        {filtered} filtered out\n",
        failed.len()
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

type Test = (&'static str, fn());

macro_rules! tests {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name as fn())),*] };
}

const TESTS: &[Test] = tests![
    a_command_does_not_start_after_its_deadline,
    a_command_that_obeys_sigterm_is_not_killed,
    a_stopped_command_ends_at_the_deadline,
    the_command_ends_before_its_deadline_if_the_keeper_is_killed,
    a_guardian_reports_the_deadline_before_it_dies,
    the_command_ends_if_guardian_and_keeper_are_killed,
    the_keeper_does_not_kill_earlier_children_of_its_process,
    processes_that_fork_do_not_outlive_a_stopped_guardian,
    a_guardian_without_proc_does_not_report_the_end,
    a_guardian_that_continues_late_applies_the_newest_deadlines,
    a_kill_by_the_keeper_is_reported_although_the_lock_was_extended,
    the_guardian_has_a_name_of_its_own_and_ignores_signals,
    a_lost_lock_ends_the_command_before_its_deadline,
    a_dropped_child_ends,
    a_signal_is_passed_on,
    the_second_term_kills,
    children_of_an_ended_command_get_sigterm,
    children_of_an_ended_command_that_ignore_sigterm_are_killed,
    a_daemon_may_outlive_the_command,
    the_command_has_the_users_descriptors_and_no_others,
    the_command_has_the_users_signal_settings,
    the_command_has_the_users_environment_and_the_changes,
    the_command_reads_the_users_input,
    a_command_reads_from_the_terminal,
    control_c_reaches_the_command_once,
    the_terminal_comes_back_after_a_kill,
    the_terminal_comes_back_after_the_guardians_death,
    the_terminals_modes_come_back_after_a_kill,
    control_z_without_a_shell_is_undone,
    control_z_and_fg,
    after_control_z_and_fg_control_c_reaches_the_command,
    control_z_and_bg,
    the_deadline_applies_to_a_command_stopped_by_control_z,
    a_command_in_the_background_stops_when_it_reads,
    in_a_pipeline_the_command_gets_the_terminal_when_it_asks,
    control_z_in_a_pipeline_stops_the_command,
];

/// Returns a pipe, and the variable `GO` with its path. A command waits until it can read from the pipe. It uses the
/// shell's own `read`, which needs no fork: Ctrl-Z does not stop a shell that is in vfork.
fn gate() -> (TempDir, File, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("go");
    mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
    // Opened for both directions, so that no open call blocks.
    let pipe = File::options().read(true).write(true).open(&path).expect("a pipe");
    (directory, pipe, format!("GO={}", path.display()))
}

/// A shell with this script, which executes "$@" at its end.
fn shell(script: &str) -> Vec<PathBuf> {
    ["sh", "-c", script, "sh"].map(PathBuf::from).to_vec()
}

fn quoted(words: &[OsString]) -> String {
    let word =
        |word: &OsString| format!("'{}'", word.to_str().expect("text").replace('\'', "'\\''"));
    words.iter().map(word).collect::<Vec<_>>().join(" ")
}

fn name(pid: i32) -> String {
    let name = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("comm"));
    name.unwrap_or_default().trim_end().to_owned()
}

fn kill(pid: i32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(pid).expect("a process"), signal);
}

fn wait_for(what: &str, mut happened: impl FnMut() -> bool) {
    let began = boot_ns();
    while !happened() {
        assert!(boot_ns() - began < PATIENCE, "no sign of {what}");
        thread::sleep(LOOK_AGAIN);
    }
}

/// Deadlines that no test reaches.
const LONG: &[&str] = &["--term", "60000", "--kill", "90000"];

/// Deadlines that a test waits for.
const SHORT: &[&str] = &["--term", "2000", "--kill", "2300"];

/// Limit of the time until a command ends. Every command lives for a minute unless the guardian ends it, and a busy
/// machine may take half a minute to end it. The tests of `kill_policy` check the deadlines in virtual time.
const ENDED: u64 = 50_000 * MS;

/// This variable marks the command and its guardian, so that the tests find their processes.
const MARK: &str = "QUORLOCK_TEST_MARK";

/// This variable marks every process of a test, so that the processes of a failed test can be killed.
const KEEPER_MARK: &str = "QUORLOCK_TEST_KEEPER";
const MS: u64 = 1_000_000;
const PATIENCE: u64 = 50_000 * MS;
const LOOK_AGAIN: Duration = Duration::from_millis(2);
