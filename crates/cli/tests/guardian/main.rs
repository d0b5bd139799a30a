//! The guardian against real processes, signals and terminals.
//!
//! The modules are compiled into this test, which then is the program that they re-execute: it is
//! test runner, keeper, guardian and exec step, by its first argument. The keeper here stands for
//! `quorlock run` without a lock: it takes its deadlines from the command line and writes what
//! happens into a log, line by line, each with the time of the boot clock. So a test can wait for
//! an event instead of sleeping, and can stop and kill a keeper without stopping the tests.
//!
//! Every process of a command carries a mark of its test in its environment, by which it is found
//! wherever it has gone: whoever has it when the test says "nobody" has escaped.

// Inside a module with a path of its own the files find each other as in the binary.
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

/// What cargo's own runner understands of names, and nothing else of its options.
fn run_tests() -> ExitCode {
    let mut filters = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(argument) = args.next() {
        match argument.as_str() {
            "--list" => {
                TESTS.iter().for_each(|(name, _)| println!("{name}: test"));
                return ExitCode::SUCCESS;
            }
            // Their value is no name.
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
    // Most of them wait for a deadline.
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
    an_exit_code_arrives,
    a_death_by_signal_arrives,
    a_program_that_is_not_there_is_127,
    a_program_that_cannot_run_is_126,
    a_command_that_would_be_late_is_not_started,
    a_term_at_the_deadline_is_enough_for_the_obedient,
    a_family_that_ignores_term_is_gone_at_the_kill_deadline,
    a_descendant_in_another_group_is_gone_too,
    extensions_keep_the_command_alive,
    a_stopped_command_is_ended_at_the_deadline,
    a_stopped_keeper_is_no_reprieve,
    a_killed_keeper_ends_the_command_at_once,
    a_killed_keepers_stubborn_command_lives_to_the_deadline_only,
    a_killed_guardian_takes_the_command_along,
    a_guardian_that_dies_at_the_deadline_has_told_why,
    a_killed_guardian_takes_the_command_along_without_a_keeper,
    a_killed_guardian_takes_descendants_in_other_groups_along,
    a_take_over_leaves_those_alone_who_were_there_before,
    a_stopped_guardian_is_replaced_at_the_deadline,
    what_forks_in_another_group_does_not_outlive_a_stopped_guardian,
    who_cannot_look_does_not_say_that_nobody_is_left,
    a_guardian_that_wakes_up_late_goes_by_the_newest_deadlines,
    a_kill_in_a_stopped_guardians_place_is_told_although_the_lock_lives_on,
    the_guardian_goes_by_another_name_and_hears_no_signal,
    a_proof_of_loss_ends_the_command_before_its_deadline,
    a_dropped_child_is_ended,
    a_signal_is_passed_on,
    the_second_term_kills,
    what_outlives_the_command_is_asked_to_end,
    what_outlives_the_command_and_ignores_term_is_killed,
    a_daemon_may_stay,
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
    control_z_is_no_reprieve,
    a_command_in_the_background_stops_when_it_reads,
    in_a_pipeline_the_command_gets_the_terminal_when_it_asks,
    control_z_in_a_pipeline_stops_the_command,
];

/// A pipe at which a command waits, and the option that tells it where. A shell that waits without
/// forking is stopped by Ctrl-Z for certain: in vfork it would not be, under any shell.
fn gate() -> (TempDir, File, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("go");
    mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
    // For both directions, so that neither end waits for the other to be opened.
    let pipe = File::options().read(true).write(true).open(&path).expect("a pipe");
    (directory, pipe, format!("GO={}", path.display()))
}

/// A shell that becomes "$@" in the end.
fn shell(script: &str) -> Vec<PathBuf> {
    ["sh", "-c", script, "sh"].map(PathBuf::from).to_vec()
}

/// Words for a shell.
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
    // It may have ended on its own.
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

/// Every command here lives for a minute if nobody ends it: what ended before was ended. How soon that was
/// is the machine's speed (four at once were seen half a minute late); which deadline is due when,
/// `course` tests in virtual time.
const ENDED: u64 = 50_000 * MS;

/// What the command and its guardian bear.
const MARK: &str = "QUORLOCK_TEST_MARK";

/// What everything that a test has started bears.
const KEEPER_MARK: &str = "QUORLOCK_TEST_KEEPER";
const MS: u64 = 1_000_000;
const PATIENCE: u64 = 50_000 * MS;
const LOOK_AGAIN: Duration = Duration::from_millis(2);
