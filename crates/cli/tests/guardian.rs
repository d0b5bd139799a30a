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
#[path = "../src"]
#[allow(dead_code, unused_imports, reason = "their #[test] functions vanish without libtest")]
mod src {
    pub(crate) mod child;
    pub(crate) mod guardian;
}

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child as Process, ChildStdin, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use nix::sys::signal::SigSet;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use self::src::child::{Child, ChildEvent, Deadlines, How, KilledBy, Signals, SpawnError};
use self::src::guardian::clock::{Moment, boot_ns};
use self::src::guardian::{self, procfs};

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

// ---- the keeper -----------------------------------------------------------------------------

mod keeper {
    use super::*;

    struct Options {
        log: File,
        term_ns: u64,
        kill_ns: u64,
        renew_ns: Option<u64>,
        renew_times: u32,
        terminate_ns: Option<u64>,
        drop_child: bool,
        set: Vec<(OsString, OsString)>,
        unset: Vec<OsString>,
        command: Vec<OsString>,
    }

    pub(super) fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
        let mut options = parse(args);
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let code = runtime.block_on(run(&mut options));
        options.write(&format!("exit {code}"));
        ExitCode::from(code)
    }

    fn parse(mut args: impl Iterator<Item = OsString>) -> Options {
        let mut next = || args.next();
        let log = next().expect("the log");
        let log = OpenOptions::new().append(true).open(log).expect("the log can be written");
        let mut options = Options {
            log,
            term_ns: 0,
            kill_ns: 0,
            renew_ns: None,
            renew_times: 0,
            terminate_ns: None,
            drop_child: false,
            set: Vec::new(),
            unset: Vec::new(),
            command: Vec::new(),
        };
        loop {
            let name = next().expect("an option").into_string().expect("text");
            if name == "--" {
                options.command = std::iter::from_fn(&mut next).collect();
                return options;
            }
            let value = next().expect("a value").into_string().expect("text");
            let ms = || value.parse::<u64>().expect("milliseconds") * MS;
            match name.as_str() {
                "--term" => options.term_ns = ms(),
                "--kill" => options.kill_ns = ms(),
                "--renew-every" => options.renew_ns = Some(ms()),
                "--renew-times" => options.renew_times = value.parse().expect("a number"),
                "--terminate" => options.terminate_ns = Some(ms()),
                "--drop" => options.drop_child = true,
                "--unset" => options.unset.push(value.into()),
                "--set" => {
                    let (name, value) = value.split_once('=').expect("NAME=VALUE");
                    options.set.push((name.into(), value.into()));
                }
                _ => panic!("no such option: {name}"),
            }
        }
    }

    async fn run(options: &mut Options) -> u8 {
        let mut signals = Signals::catch().expect("signals can be caught");
        let deadlines = options.deadlines();
        let spawned = Child::spawn(&options.command, &options.set, &options.unset, deadlines);
        let mut child = spawned.expect("descriptors and a thread");
        let first = child.next_event().await;
        if let Some(code) = options.event(&child, first) {
            return code;
        }
        if let Some(ns) = options.terminate_ns {
            child.terminate(Moment::now().after(ns));
        }
        if options.drop_child {
            drop(child);
            options.write("dropped");
            std::future::pending::<()>().await;
            unreachable!();
        }
        let mut renew_at = options.renew_ns.map(|ns| boot_ns() + ns);
        loop {
            let pause = match renew_at.filter(|_| options.renew_times > 0) {
                Some(at) => Duration::from_nanos(at.saturating_sub(boot_ns())),
                None => Duration::from_secs(3600),
            };
            let event = tokio::select! {
                event = child.next_event() => event,
                signal = signals.next() => {
                    options.write(&format!("signal {}", signal.as_raw()));
                    child.signal(signal);
                    continue;
                }
                () = tokio::time::sleep(pause) => {
                    options.renew_times -= 1;
                    renew_at = options.renew_ns.map(|ns| boot_ns() + ns);
                    child.set_deadlines(options.deadlines());
                    continue;
                }
            };
            if let Some(code) = options.event(&child, event) {
                return code;
            }
        }
    }

    impl Options {
        fn deadlines(&mut self) -> Deadlines {
            let now = Moment::now();
            let deadlines =
                Deadlines { term: now.after(self.term_ns), kill: now.after(self.kill_ns) };
            // Written before it holds, so that a test never knows less than the guardian.
            self.write(&format!("deadlines {} {}", deadlines.term.boot_ns, deadlines.kill.boot_ns));
            deadlines
        }

        fn event(&mut self, child: &Child, event: ChildEvent) -> Option<u8> {
            Some(match event {
                ChildEvent::Started => {
                    self.write("started");
                    return None;
                }
                ChildEvent::Stopped { signal } => {
                    self.write(&format!("stopped {signal}"));
                    child.suspend(signal);
                    self.write("resumed");
                    return None;
                }
                ChildEvent::Continued => {
                    self.write("continued");
                    return None;
                }
                ChildEvent::Stubborn { left } => {
                    self.write(&format!("stubborn {left:?}"));
                    return None;
                }
                ChildEvent::OutOfSight => {
                    self.write("out of sight");
                    72
                }
                ChildEvent::Over { how, .. } => self.over(how),
            })
        }

        fn over(&mut self, how: How) -> u8 {
            let byte = |number: i32| u8::try_from(number).expect("an exit code");
            match how {
                How::Exited { code } => {
                    self.write(&format!("exited {code}"));
                    byte(code)
                }
                How::Signaled { signal } => {
                    self.write(&format!("signaled {signal}"));
                    byte(128 + signal)
                }
                How::Killed(killed) => {
                    let by = if killed.by == KilledBy::Term { "term" } else { "kill" };
                    self.write(&format!("killed {by}"));
                    79
                }
                How::Unguarded => {
                    self.write("unguarded");
                    70
                }
                How::NotStarted(error) => {
                    self.write(&format!("error {error}"));
                    match error {
                        SpawnError::NotFound { .. } => 127,
                        SpawnError::CannotRun { .. } => 126,
                        SpawnError::TooLate => 79,
                        SpawnError::Guardian(_) => 71,
                    }
                }
            }
        }

        fn write(&mut self, line: &str) {
            let line = format!("{} {line}\n", boot_ns());
            self.log.write_all(line.as_bytes()).expect("the log can be written");
        }
    }
}

// ---- the runner -----------------------------------------------------------------------------

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

// ---- endings --------------------------------------------------------------------------------

fn an_exit_code_arrives() {
    for code in [0, 7, 255] {
        let mut run = Run::with(LONG, &["sh", "-c", &format!("exit {code}")]);
        assert_eq!(run.code(), code);
        run.event("exited");
        run.nobody_is_left();
    }
}

fn a_death_by_signal_arrives() {
    let mut run = Run::with(LONG, &["sh", "-c", "kill -USR1 $$"]);
    assert_eq!(run.code(), 128 + 10);
    assert_eq!(run.event("signaled").words[0], "10");
}

fn a_program_that_is_not_there_is_127() {
    for program in ["no-such-program-anywhere", "./no/such/file"] {
        let mut run = Run::with(LONG, &[program]);
        assert_eq!(run.code(), 127);
        assert!(run.event("error").words.concat().contains("Nosuchfile"));
        run.nobody_is_left();
    }
}

fn a_program_that_cannot_run_is_126() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("data");
    fs::write(&file, "data").expect("a file");
    for program in [directory.path(), &file] {
        let mut run = Run::with(LONG, &[program.to_str().expect("text")]);
        assert_eq!(run.code(), 126);
        assert!(run.event("error").words.concat().contains("Permission"));
        run.nobody_is_left();
    }
}

fn a_command_that_would_be_late_is_not_started() {
    let mut run = Run::with(&["--term", "0", "--kill", "5000"], &["sh", "-c", "echo ran"]);
    assert_eq!(run.code(), 79);
    assert!(run.event("error").words.concat().contains("timewasup"));
    assert_eq!(run.output(), "");
    run.nobody_is_left();
}

// ---- deadlines ------------------------------------------------------------------------------

fn a_term_at_the_deadline_is_enough_for_the_obedient() {
    let script = "trap 'echo cleaned; exit 0' TERM; echo up; while :; do sleep 0.01; done";
    let mut run = Run::with(&["--term", "1500", "--kill", "20000"], &["sh", "-c", script]);
    assert_eq!(run.code(), 79);
    assert_eq!(run.output(), "up\ncleaned\n");
    let killed = run.event("killed");
    assert_eq!(killed.words[0], "term");
    let (term_at, kill_at) = run.deadlines();
    assert!((term_at..kill_at).contains(&killed.at), "gone between the two");
    run.nobody_is_left();
}

fn a_family_that_ignores_term_is_gone_at_the_kill_deadline() {
    let script = "trap '' TERM; sleep 60 & sleep 60; true";
    let mut run = Run::with(SHORT, &["sh", "-c", script]);
    run.family_of(3);
    let gone_at = run.when_nobody_is_left();
    let (_, kill_at) = run.deadlines();
    assert!((kill_at..kill_at + ENDED).contains(&gone_at), "{}", gone_at - kill_at);
    assert_eq!(run.code(), 79);
    let killed = run.event("killed");
    assert_eq!(killed.words[0], "kill");
    assert!((kill_at..kill_at + ENDED).contains(&killed.at));
}

fn a_descendant_in_another_group_is_gone_too() {
    // `timeout` makes a group of its own and obeys; what job control does here ignores SIGTERM.
    let obeys = ["sh", "-c", "trap '' TERM; timeout 60 sleep 60; sleep 60"];
    let ignores = ["bash", "-c", "trap '' TERM; set -m; sleep 60 & sleep 60; true"];
    for command in [obeys, ignores] {
        let mut run = Run::with(SHORT, &command);
        let family = run.family_of(3);
        assert_ne!(family[0].group, family[1].group);
        let gone_at = run.when_nobody_is_left();
        let (_, kill_at) = run.deadlines();
        assert!((kill_at..kill_at + ENDED).contains(&gone_at));
        assert_eq!(run.code(), 79);
        assert_eq!(run.event("killed").words[0], "kill");
    }
}

fn extensions_keep_the_command_alive() {
    let lease = ["--term", "2000", "--kill", "2200"];
    let renewed = ["--renew-every", "100", "--renew-times", "40"];
    let mut run = Run::with(&[&lease[..], &renewed].concat(), &["sleep", "3"]);
    assert_eq!(run.code(), 0);
    // And without them the same command does not live so long.
    let mut run = Run::with(&lease, &["sleep", "3"]);
    assert_eq!(run.code(), 79);
}

fn a_stopped_command_is_ended_at_the_deadline() {
    let script =
        "trap 'echo woken; exit' TERM; echo up; kill -STOP $$; while :; do sleep 0.01; done";
    // As a child of nobody in particular, and as the job of a shell without a terminal, which
    // would wait for ever for a quorlock that stopped.
    let job = ["setsid", "-w", "bash", "-c", "set -m; \"$@\"; exit $?", "bash"];
    for wrapper in [&job[..0], &job] {
        let mut run = Run::new();
        run.wrapper = wrapper.iter().map(PathBuf::from).collect();
        run.start(&["--term", "2000", "--kill", "20000"], &["sh", "-c", script]);
        assert_eq!(run.event("stopped").words[0], "19");
        assert_eq!(run.code(), 79);
        assert_eq!(run.output(), "up\nwoken\n");
    }
}

// ---- deaths of quorlock's own ---------------------------------------------------------------

fn a_stopped_keeper_is_no_reprieve() {
    let options =
        ["--term", "2000", "--kill", "2300", "--renew-every", "20", "--renew-times", "999"];
    let script = "trap '' TERM; echo up; sleep 60; true";
    let mut run = Run::with(&options, &["sh", "-c", script]);
    run.family_of(2);
    run.signal(Signal::STOP);
    let gone_at = run.when_nobody_but_the_keeper_is_left();
    let (_, kill_at) = run.deadlines();
    // The last that were written may not have been sent.
    assert!((kill_at - 100 * MS..kill_at + ENDED).contains(&gone_at));
    run.signal(Signal::CONT);
    assert_eq!(run.code(), 79);
    assert_eq!(run.event("killed").words[0], "kill");
}

fn a_killed_keeper_ends_the_command_at_once() {
    let mut run = Run::with(LONG, &["sh", "-c", "sleep 60; true"]);
    run.family_of(2);
    run.signal(Signal::KILL);
    let killed_at = boot_ns();
    let gone_at = run.when_nobody_is_left();
    assert!(gone_at < killed_at + ENDED, "{}", gone_at - killed_at);
}

fn a_killed_keepers_stubborn_command_lives_to_the_deadline_only() {
    let options = ["--term", "2000", "--kill", "2300"];
    let mut run = Run::with(&options, &["sh", "-c", "trap '' TERM; echo up; sleep 60; true"]);
    run.family_of(2);
    run.signal(Signal::KILL);
    let gone_at = run.when_nobody_is_left();
    let (_, kill_at) = run.deadlines();
    assert!((kill_at..kill_at + ENDED).contains(&gone_at));
}

fn a_killed_guardian_takes_the_command_along() {
    let mut run =
        Run::with(LONG, &["sh", "-c", "trap '' TERM; echo up; sleep 60 & sleep 60; true"]);
    run.family_of(3);
    kill(run.guardian(), Signal::KILL);
    let killed_at = boot_ns();
    let gone_at = run.when_nobody_is_left();
    assert!(gone_at < killed_at + ENDED);
    assert_eq!(run.code(), 70);
    assert!(run.event("unguarded").at < killed_at + ENDED);
}

fn a_killed_guardian_takes_the_command_along_without_a_keeper() {
    let mut run = Run::with(LONG, &["sleep", "60"]);
    run.family_of(1);
    // Stopped, it can do as little as a dead one.
    run.signal(Signal::STOP);
    kill(run.guardian(), Signal::KILL);
    run.when_nobody_but_the_keeper_is_left();
    run.signal(Signal::KILL);
    run.when_nobody_is_left();
}

fn a_killed_guardian_takes_descendants_in_other_groups_along() {
    let in_groups = "trap '' TERM; timeout 60 sh -c 'sleep 60; true'; sleep 60";
    let mut run = Run::with(LONG, &["sh", "-c", in_groups]);
    let is_there = |processes: Vec<procfs::Process>| {
        processes.iter().filter(|process| name(process.pid) == "sleep").count() == 1
    };
    run.event("started");
    wait_for("the command's family", || is_there(run.marked()));
    kill(run.guardian(), Signal::KILL);
    run.when_nobody_but_the_keeper_is_left();
    assert_eq!(run.code(), 70);
}

/// What a shell started before it became quorlock is none of the command's.
fn a_take_over_leaves_those_alone_who_were_there_before() {
    let mut run = Run::new();
    let mine = run.path("mine");
    run.wrapper = shell(&format!("sleep 60 & echo $! > {}; exec \"$@\"", mine.display()));
    run.start(LONG, &["sh", "-c", "sleep 60; true"]);
    run.family_of(2);
    kill(run.guardian(), Signal::KILL);
    assert_eq!(run.code(), 70);
    run.nobody_is_left();
    let mine: i32 = fs::read_to_string(mine).expect("a file").trim().parse().expect("a number");
    assert!(procfs::process(mine).is_some_and(|process| process.alive));
}

fn a_stopped_guardian_is_replaced_at_the_deadline() {
    for script in ["sleep 60; true", "timeout 60 sleep 60"] {
        is_replaced_at_the_deadline(script);
    }
}

fn is_replaced_at_the_deadline(script: &str) {
    let mut run = Run::with(SHORT, &["sh", "-c", &format!("{script}; true")]);
    let family = run.family_of(if script.contains("timeout") { 3 } else { 2 });
    kill(run.guardian(), Signal::STOP);
    let is_dead = |pid| !procfs::process(pid).is_some_and(|process| process.alive);
    wait_for("the command's death", || family.iter().all(|process| is_dead(process.pid)));
    let (_, kill_at) = run.deadlines();
    assert!((kill_at..kill_at + ENDED).contains(&boot_ns()));
    assert_eq!(run.code(), 79);
    assert_eq!(run.event("killed").words[0], "kill");
    run.nobody_is_left();
}

/// It forks while it is being killed, so one SIGKILL for all who are seen is not enough: the keeper, in the place
/// of a stopped guardian, sends more, and does not first wait for as long as it has patience.
fn what_forks_in_another_group_does_not_outlive_a_stopped_guardian() {
    // All in one group, which is killed as a whole; and each in one of its own.
    let forks = "while :; do sleep 60 & sleep 0.01; done";
    for shell in ["sh -c", "bash -m -c"] {
        let one = format!("timeout 60 {shell} '{forks}' 2>/dev/null &");
        let script = format!("for _ in 1 2 3 4 5 6 7 8; do {one} done; wait; true");
        // A machine that stands still for longer than the keeper has patience shows nothing.
        let is_in_time = (0..3).any(|_| is_done_before_a_stopped_guardian_is(&script));
        assert!(is_in_time, "{shell}");
    }
}

fn is_done_before_a_stopped_guardian_is(script: &str) -> bool {
    let soon = ["--term", "700", "--kill", "1000"];
    let mut run = Run::with(&soon, &["sh", "-c", script]);
    run.event("started");
    let guardian = run.guardian();
    let guards = || run.marked().iter().any(|process| process.pid == guardian);
    kill(guardian, Signal::STOP);
    wait_for("the command's end", || run.marked().len() <= usize::from(guards()));
    // Those who were left until then have died with the guardian.
    thread::sleep(50 * LOOK_AGAIN);
    let is_done = guards();
    assert_eq!(run.code(), 79);
    run.nobody_is_left();
    is_done
}

/// What cannot be looked at has not ended: the guardian can open no file for a while.
fn who_cannot_look_does_not_say_that_nobody_is_left() {
    use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
    let stays = "trap \"\" TERM; while :; do sleep 0.01; done";
    let script = format!("timeout 60 sh -c '{stays}' & read _ < \"$GO\"; exit 0");
    let (_directory, mut gate, set) = gate();
    let mut run = Run::with(&[LONG, &["--set", &set]].concat(), &["sh", "-c", &script]);
    run.event("started");
    let is_there = |name_of: &str| run.marked().iter().any(|process| name(process.pid) == name_of);
    wait_for("what stays", || is_there("timeout"));
    let guardian = Pid::from_raw(run.guardian());
    let few = Rlimit { current: Some(3), ..getrlimit(Resource::Nofile) };
    let before = prlimit(guardian, Resource::Nofile, few).expect("our child's child");
    gate.write_all(b"\n").expect("a pipe");
    // It is asked to end a moment after the command's own process has; a second later it is killed.
    thread::sleep(Duration::from_millis(1500));
    assert!(is_there("timeout"), "its group is not known to be");
    assert!(!run.log().contains("exited"), "{}", run.log());
    prlimit(guardian, Resource::Nofile, before).expect("our child's child");
    assert_eq!(run.code(), 0);
    run.nobody_is_left();
}

fn a_guardian_that_wakes_up_late_goes_by_the_newest_deadlines() {
    // On a machine that stands still for longer than the lease, the keeper kills the command with good reason.
    assert!((0..3).any(|_| a_late_guardian_goes_by_the_newest_deadlines()));
}

/// Meanwhile the lock was extended, and then somebody killed the command: that is its own end.
fn a_late_guardian_goes_by_the_newest_deadlines() -> bool {
    let lease = ["--term", "1500", "--kill", "1700"];
    let renewed = ["--renew-every", "100", "--renew-times", "600"];
    let mut run = Run::with(&[&lease[..], &renewed].concat(), &["sh", "-c", "sleep 60; true"]);
    let family = run.family_of(2);
    let guardian = run.guardian();
    kill(guardian, Signal::STOP);
    let (_, kill_at) = run.deadlines();
    wait_for("the last deadline that it knows", || boot_ns() > kill_at + 200 * MS);
    kill(family[0].pid, Signal::KILL);
    kill(guardian, Signal::CONT);
    let code = run.code();
    run.nobody_is_left();
    if code == 79 {
        return false;
    }
    assert_eq!(code, 128 + 9);
    assert_eq!(run.event("signaled").words[0], "9");
    true
}

/// The keeper killed the command while the guardian stood still; an extension came too late for the command.
fn a_kill_in_a_stopped_guardians_place_is_told_although_the_lock_lives_on() {
    let lease = ["--term", "2500", "--kill", "2500"];
    let renewed = ["--renew-every", "3000", "--renew-times", "1"];
    let mut run = Run::with(&[&lease[..], &renewed].concat(), &["sh", "-c", "sleep 60; true"]);
    let family = run.family_of(2);
    let guardian = run.guardian();
    kill(guardian, Signal::STOP);
    let is_dead = |pid| !procfs::process(pid).is_some_and(|process| process.alive);
    wait_for("the command's death", || family.iter().all(|process| is_dead(process.pid)));
    run.events("deadlines", 2);
    kill(guardian, Signal::CONT);
    assert_eq!(run.code(), 79);
    assert_eq!(run.event("killed").words[0], "kill");
    run.nobody_is_left();
}

fn the_guardian_goes_by_another_name_and_hears_no_signal() {
    let script = "echo up; read _ < \"$GO\"; exit 5";
    let (_directory, mut gate, set) = gate();
    let mut run = Run::with(&[LONG, &["--set", &set]].concat(), &["sh", "-c", script]);
    run.wait_output("up");
    let guardian = run.guardian();
    let name = |file| fs::read(format!("/proc/{guardian}/{file}")).expect("it is there");
    assert_eq!(name("comm"), b"lock-guardian\n");
    assert!(name("cmdline").starts_with(b"lock-guardian\0"));
    for signal in [
        Signal::TERM,
        Signal::INT,
        Signal::HUP,
        Signal::QUIT,
        Signal::TSTP,
        Signal::TTIN,
        Signal::USR1,
        Signal::PIPE,
        Signal::ALARM,
    ] {
        kill(guardian, signal);
    }
    gate.write_all(b"\n").expect("a pipe");
    assert_eq!(run.code(), 5);
}

fn a_proof_of_loss_ends_the_command_before_its_deadline() {
    let mut run = Run::with(&[LONG, &["--terminate", "60000"]].concat(), &["sleep", "60"]);
    assert_eq!(run.code(), 79);
    assert_eq!(run.event("killed").words[0], "term");
    let mut run = Run::new();
    // Ignored from the start, or the SIGTERM would come before the trap.
    run.wrapper = shell("trap '' TERM; exec \"$@\"");
    run.start(&[LONG, &["--terminate", "300"]].concat(), &["sh", "-c", "sleep 60; true"]);
    let started_at = run.event("started").at;
    assert_eq!(run.code(), 79);
    let gone_after = run.event("killed").at - started_at;
    assert!((300 * MS..ENDED).contains(&gone_after), "{gone_after}");
    run.nobody_is_left();
}

fn a_dropped_child_is_ended() {
    let run = Run::with(&[LONG, &["--drop", "yes"]].concat(), &["sleep", "60"]);
    run.event("dropped");
    run.when_nobody_but_the_keeper_is_left();
}

// ---- signals --------------------------------------------------------------------------------

fn a_signal_is_passed_on() {
    let script = "trap 'echo usr1' USR1; trap 'echo hup; exit 4' HUP; echo up; \
        while :; do sleep 0.01; done";
    let mut run = Run::with(LONG, &["sh", "-c", script]);
    run.wait_output("up");
    run.signal(Signal::USR1);
    run.wait_output("usr1");
    run.signal(Signal::HUP);
    assert_eq!(run.code(), 4);
    assert_eq!(run.output(), "up\nusr1\nhup\n");
}

fn the_second_term_kills() {
    let script = "trap 'echo term' TERM; echo up; while :; do sleep 0.01; done";
    let mut run = Run::with(LONG, &["sh", "-c", script]);
    run.wait_output("up");
    run.signal(Signal::TERM);
    run.wait_output("term");
    run.signal(Signal::TERM);
    assert_eq!(run.code(), 128 + 9);
    assert_eq!(run.event("signaled").words[0], "9");
    run.nobody_is_left();
}

// ---- what outlives the command --------------------------------------------------------------

fn what_outlives_the_command_is_asked_to_end() {
    // One in the command's group and one in another; each says what it is asked.
    let child = "trap 'echo asked; exit' TERM; echo up; while :; do sleep 0.01; done";
    let script =
        format!("set -m; sh -c \"{child}\" & set +m; sh -c \"{child}\" & read _ < $GO; exit 3");
    let (_directory, mut gate, set) = gate();
    let mut run = Run::with(&[LONG, &["--set", &set]].concat(), &["bash", "-c", &script]);
    wait_for("the children", || run.output().matches("up\n").count() == 2);
    gate.write_all(b"\n").expect("a pipe");
    assert_eq!(run.code(), 3);
    assert_eq!(run.output(), "up\nup\nasked\nasked\n");
    run.nobody_is_left();
}

fn what_outlives_the_command_and_ignores_term_is_killed() {
    let in_the_group = ["sh", "-c", "trap '' TERM; sleep 60 & exit 3"];
    let in_another = ["bash", "-c", "trap '' TERM; set -m; sleep 60 & exit 3"];
    for command in [in_the_group, in_another] {
        let mut run = Run::with(LONG, &command);
        assert_eq!(run.code(), 3);
        // Before it was started.
        let began = run.event("deadlines").at;
        let took = run.event("exited").at - began;
        assert!((1_000 * MS..ENDED).contains(&took), "{took}");
        run.nobody_is_left();
    }
}

fn a_daemon_may_stay() {
    // It says its number when it has left the session, not before.
    let script = "mkfifo \"$PIPE\"; setsid sh -c 'echo $$ > \"$PIPE\"; exec sleep 60' & \
        cat \"$PIPE\"; exit 6";
    let directory = tempfile::tempdir().expect("a directory");
    let set = format!("PIPE={}", directory.path().join("pipe").display());
    let mut run = Run::with(&[LONG, &["--set", &set]].concat(), &["sh", "-c", script]);
    assert_eq!(run.code(), 6);
    let daemon: i32 = run.output().trim().parse().expect("a number");
    let left: Vec<_> = run.marked().iter().map(|process| process.pid).collect();
    assert_eq!(left, [daemon]);
    kill(daemon, Signal::KILL);
    run.when_nobody_is_left();
}

// ---- what the command inherits --------------------------------------------------------------

fn the_command_has_the_users_descriptors_and_no_others() {
    let list = ["ls", "-l", "/proc/self/fd"];
    let mut run = Run::new();
    let file = run.path("extra");
    fs::write(&file, "").expect("a file");
    run.wrapper = shell(&format!("exec \"$@\" 7<{}", file.display()));
    run.start(LONG, &list);
    assert_eq!(run.code(), 0);
    // The one that ls opened for itself aside.
    let descriptors = |text: &str| {
        let arrows = text.lines().filter(|line| line.contains(" -> ") && !line.contains("/proc/"));
        let targets = arrows.map(|line| line.rsplitn(4, ' ').take(3).map(str::to_owned).collect());
        targets.collect::<Vec<Vec<String>>>()
    };
    let guarded = descriptors(&run.output());
    assert_eq!(guarded, descriptors(&run.direct(&list)));
    assert!(guarded.contains(&vec![file.display().to_string(), "->".into(), "7".into()]));
}

fn the_command_has_the_users_signal_settings() {
    let show = ["grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"];
    for wrapper in ["exec \"$@\"", "trap '' HUP USR1; exec \"$@\"", "trap '' CHLD; exec \"$@\""] {
        let mut run = Run::new();
        run.wrapper = shell(wrapper);
        let mut blocked = SigSet::empty();
        blocked.add(nix::sys::signal::Signal::SIGUSR2);
        blocked.thread_block().expect("a mask");
        run.start(LONG, &show);
        let direct = run.direct(&show);
        blocked.thread_unblock().expect("a mask");
        assert_eq!(run.code(), 0);
        assert_eq!(run.output(), direct, "{wrapper}");
        assert!(direct.contains("SigBlk:\t0000000000000800"), "{direct}");
    }
}

fn the_command_has_the_users_environment_and_the_changes() {
    let mut run = Run::new();
    run.environment.extend([("SECRET".into(), "s".into()), ("KEPT".into(), "k".into())]);
    run.start(&[LONG, &["--set", "KEY=v", "--unset", "SECRET"]].concat(), &["env"]);
    assert_eq!(run.code(), 0);
    let sorted = |text: &str| {
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.retain(|line| !line.starts_with("_="));
        lines.sort();
        lines
    };
    let mut expected = sorted(&run.direct(&["env"]));
    expected.retain(|line| line != "SECRET=s");
    expected.extend(["KEY=v".into(), format!("{MARK}={}", run.mark)]);
    expected.sort();
    assert!(expected.contains(&"KEPT=k".to_owned()));
    assert_eq!(sorted(&run.output()), expected);
}

fn the_command_reads_the_users_input() {
    let mut run = Run::new();
    run.pipe_input = true;
    run.start(LONG, &["cat"]);
    run.input().write_all(b"first\nsecond\n").expect("it reads");
    drop(run.input.take());
    assert_eq!(run.code(), 0);
    assert_eq!(run.output(), "first\nsecond\n");
}

// ---- terminals ------------------------------------------------------------------------------

fn a_command_reads_from_the_terminal() {
    let mut tty = Tty::new(&["sh", "-c", "read x; echo got:$x"], LONG, "KEEPER");
    tty.run.event("started");
    tty.types("hello\n");
    tty.shows("got:hello");
    assert_eq!(tty.run.logged_code(), 0);
    assert!(!tty.run.log().contains("stopped"), "it had the terminal from the start");
}

/// What commands say when they have begun. The name of a temporary folder, which is on the screen before, has no such
/// word in it; "up" it had now and then.
const UP: &str = "is-up";

fn control_c_reaches_the_command_once() {
    let script =
        "trap 'echo int' INT; trap 'exit 9' QUIT; echo is-up; while :; do sleep 0.01; done";
    let mut tty = Tty::new(&["sh", "-c", script], LONG, "KEEPER");
    tty.shows(UP);
    tty.types("\x03");
    tty.shows("int");
    tty.types("\x1c");
    assert_eq!(tty.run.logged_code(), 9);
    assert_eq!(tty.screen().matches("int\n").count(), 1);
    assert!(!tty.run.log().contains("signal "), "quorlock itself got none");
    let mut tty = Tty::new(&["sleep", "60"], LONG, "KEEPER");
    tty.run.family_of(1);
    tty.types("\x03");
    assert_eq!(tty.run.logged_code(), 128 + 2);
}

fn the_terminal_comes_back_after_a_kill() {
    let mut tty = Tty::new(
        &["sh", "-c", "trap '' TERM; sleep 60; true"],
        SHORT,
        "KEEPER; read y; echo back:$y",
    );
    assert_eq!(tty.run.logged_code(), 79);
    tty.types("home\n");
    tty.shows("back:home");
}

fn the_terminal_comes_back_after_the_guardians_death() {
    let mut tty = Tty::new(&["sh", "-c", "sleep 60; true"], LONG, "KEEPER; read y; echo back:$y");
    tty.run.family_of(2);
    kill(tty.run.guardian(), Signal::KILL);
    assert_eq!(tty.run.logged_code(), 70);
    tty.types("home\n");
    tty.shows("back:home");
}

fn the_terminals_modes_come_back_after_a_kill() {
    let script = "trap '' TERM; stty -echo; echo is-up; sleep 60; true";
    let tty = Tty::new(&["sh", "-c", script], SHORT, "KEEPER; stty -a");
    assert_eq!(tty.run.logged_code(), 79);
    tty.shows(" echo ");
}

fn control_z_without_a_shell_is_undone() {
    let script = "echo is-up; while read x; do echo got:$x; done";
    let mut tty = Tty::new(&["sh", "-c", script], LONG, "exec KEEPER");
    tty.shows(UP);
    tty.types("\x1a");
    tty.run.event("continued");
    tty.types("more\n");
    tty.shows("got:more");
    tty.types("\x04");
    assert_eq!(tty.run.logged_code(), 0);
}

fn control_z_and_fg() {
    let script = "echo is-up; while read x; do echo got:$x; done; exit 8";
    let mut tty = Tty::interactive(&["sh", "-c", script], LONG, "KEEPER");
    for round in 1..=2 {
        tty.run.event("started");
        tty.types("\x1a");
        tty.shows_times("Stopped", round);
        tty.types("fg\n");
        tty.run.events("continued", round);
        tty.types(&format!("line{round}\n"));
        tty.shows(&format!("got:line{round}"));
    }
    tty.types("\x04");
    assert_eq!(tty.run.logged_code(), 8);
    tty.types("echo status:$?\n");
    tty.shows("status:8");
}

fn after_control_z_and_fg_control_c_reaches_the_command() {
    let mut tty = Tty::interactive(&["sleep", "60"], LONG, "KEEPER");
    tty.run.family_of(1);
    tty.types("\x1a");
    tty.shows("Stopped");
    tty.types("fg\n");
    tty.run.event("continued");
    tty.types("\x03");
    assert_eq!(tty.run.logged_code(), 128 + 2);
    assert!(!tty.run.log().contains("signal 2"), "it had the terminal before it woke up");
}

fn control_z_and_bg() {
    let script = "echo is-up; read _ < \"$GO\"; read x; echo got:$x";
    let (_directory, mut gate, set) = gate();
    let options = [LONG, &["--set", &set]].concat();
    let mut tty = Tty::interactive(&["sh", "-c", script], &options, "KEEPER");
    tty.shows(UP);
    tty.types("\x1a");
    tty.shows("Stopped");
    tty.types("bg\n");
    tty.run.event("continued");
    // It runs and has not got the terminal: the shell has, and a read stops the command.
    tty.types("echo shell:$((1+1))\n");
    tty.shows("shell:2");
    gate.write_all(b"\n").expect("a pipe");
    assert_eq!(tty.run.events("stopped", 2)[1].words[0], "21");
    tty.prompts_until("Stopped", 2);
    tty.types("fg\n");
    tty.run.events("continued", 2);
    tty.types("now\n");
    tty.shows("got:now");
    assert_eq!(tty.run.logged_code(), 0);
}

fn control_z_is_no_reprieve() {
    let options = ["--term", "3000", "--kill", "3300"];
    let script = "trap '' TERM; echo is-up; sleep 60; true";
    let mut tty = Tty::interactive(&["sh", "-c", script], &options, "KEEPER");
    tty.shows(UP);
    tty.run.family_of(2);
    tty.types("\x1a");
    tty.shows("Stopped");
    let keeper = procfs::process(tty.run.guardian()).expect("it lives").parent;
    let gone_at = tty.run.when_nobody_but_the_keeper_is_left();
    let (_, kill_at) = tty.run.deadlines();
    assert!((kill_at..kill_at + ENDED).contains(&gone_at));
    // The terminal is the shell's and stays so.
    let stat = fs::read_to_string(format!("/proc/{keeper}/stat")).expect("it is stopped");
    let fields: Vec<_> = stat.rsplit(')').next().expect("fields").split(' ').collect();
    let (group, foreground) = (fields[3], fields[6]);
    assert_ne!(group, foreground);
    tty.types("fg\n");
    assert_eq!(tty.run.logged_code(), 79);
    tty.types("echo status:$?\n");
    tty.shows("status:79");
}

fn a_command_in_the_background_stops_when_it_reads() {
    let mut tty = Tty::interactive(&["sh", "-c", "read x; echo got:$x"], LONG, "KEEPER &");
    assert_eq!(tty.run.event("stopped").words[0], "21");
    tty.prompts_until("Stopped", 1);
    tty.types("fg\n");
    tty.run.event("continued");
    tty.types("late\n");
    tty.shows("got:late");
    assert_eq!(tty.run.logged_code(), 0);
}

fn in_a_pipeline_the_command_gets_the_terminal_when_it_asks() {
    let script = "read x < /dev/tty; echo got:$x";
    let mut tty = Tty::interactive(&["sh", "-c", script], LONG, "KEEPER | cat");
    tty.run.event("started");
    tty.types("please\n");
    tty.shows("got:please");
    assert_eq!(tty.run.logged_code(), 0);
    assert!(!tty.run.log().contains("continued"), "the stop was between kernel and guardian");
    tty.types("echo alive:$((1+1))\n");
    tty.shows("alive:2");
}

fn control_z_in_a_pipeline_stops_the_command() {
    let script = "echo is-up; read _ < \"$GO\"; echo done";
    let (_directory, mut gate, set) = gate();
    let options = [LONG, &["--set", &set]].concat();
    let mut tty = Tty::interactive(&["sh", "-c", script], &options, "KEEPER | cat");
    tty.shows(UP);
    tty.types("\x1a");
    tty.run.event("stopped");
    tty.shows("Stopped");
    gate.write_all(b"\n").expect("a pipe");
    tty.types("fg\n");
    tty.shows("\ndone");
    assert_eq!(tty.run.logged_code(), 0);
}

// ---- a keeper and its command ---------------------------------------------------------------

struct Run {
    directory: TempDir,
    mark: String,
    wrapper: Vec<PathBuf>,
    environment: Vec<(String, String)>,
    pipe_input: bool,
    input: Option<ChildStdin>,
    keeper: Option<Process>,
}

/// A line of the keeper's log.
#[derive(Clone, Debug)]
struct Event {
    at: u64,
    words: Vec<String>,
}

impl Event {
    fn number(&self, index: usize) -> u64 {
        self.words[index].parse().expect("a number")
    }
}

impl Run {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mark = format!("{}.{number}", std::process::id());
        let run = Self {
            directory: tempfile::tempdir().expect("a directory"),
            wrapper: Vec::new(),
            environment: vec![(KEEPER_MARK.into(), mark.clone())],
            mark,
            pipe_input: false,
            input: None,
            keeper: None,
        };
        File::create(run.path("log")).expect("a log");
        run
    }

    fn with(options: &[&str], command: &[&str]) -> Self {
        let mut run = Self::new();
        run.start(options, command);
        run
    }

    fn start(&mut self, options: &[&str], command: &[&str]) {
        // Out of the terminal from which the tests may be run: some of them stop their job.
        let mut words: Vec<OsString> = vec!["setsid".into()];
        words.extend(self.wrapper.iter().map(Into::into));
        words.extend(self.words(options, command));
        let out = File::create(self.path("out")).expect("a file");
        let mut keeper = Command::new(&words[0])
            .args(&words[1..])
            .envs(self.environment.iter().cloned())
            .stdin(if self.pipe_input { Stdio::piped() } else { Stdio::null() })
            .stdout(out)
            .stderr(File::create(self.path("err")).expect("a file"))
            .spawn()
            .expect("the keeper starts");
        self.input = keeper.stdin.take();
        self.keeper = Some(keeper);
    }

    /// The keeper's command line.
    fn words(&self, options: &[&str], command: &[&str]) -> Vec<OsString> {
        let program = std::env::current_exe().expect("this program");
        let mut words = vec![program.into(), KEEPER.into(), self.path("log").into()];
        words.extend(options.iter().map(Into::into));
        words.extend(["--set".into(), format!("{MARK}={}", self.mark).into(), "--".into()]);
        words.extend(command.iter().map(Into::into));
        words
    }

    /// What the same command says when nobody guards it.
    fn direct(&self, command: &[&str]) -> String {
        let words: Vec<PathBuf> =
            [self.wrapper.clone(), command.iter().map(PathBuf::from).collect()].concat();
        let out = File::create(self.path("direct")).expect("a file");
        let mut direct = Command::new(&words[0])
            .args(&words[1..])
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(File::options().append(true).open(self.path("err")).expect("a file"))
            .spawn()
            .expect("it starts");
        direct.wait().expect("it ends");
        let text = fs::read_to_string(self.path("direct")).expect("a file");
        // The one thing that must differ.
        text.replace("/direct", "/out")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn output(&self) -> String {
        fs::read_to_string(self.path("out")).expect("a file")
    }

    fn wait_output(&self, line: &str) {
        wait_for(line, || self.output().lines().any(|found| found == line));
    }

    fn input(&mut self) -> &mut ChildStdin {
        self.input.as_mut().expect("a pipe")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).expect("a log")
    }

    /// All events of a kind, at least `count` of them.
    fn events(&self, kind: &str, count: usize) -> Vec<Event> {
        let events = || {
            let log = self.log();
            let complete = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            let events = complete.filter_map(|line| {
                let mut words = line.split_whitespace().map(str::to_owned);
                let at = words.next()?.parse().ok()?;
                (words.next()? == kind).then(|| Event { at, words: words.collect() })
            });
            events.collect::<Vec<_>>()
        };
        wait_for(&format!("{kind} in {}", self.path("log").display()), || events().len() >= count);
        events()
    }

    fn event(&self, kind: &str) -> Event {
        self.events(kind, 1).remove(0)
    }

    /// The newest deadlines.
    fn deadlines(&self) -> (u64, u64) {
        let newest = self.events("deadlines", 1).pop().expect("at least one");
        (newest.number(0), newest.number(1))
    }

    /// Waits for the keeper's end.
    fn code(&mut self) -> i32 {
        let keeper = self.keeper.as_mut().expect("it was started");
        let mut status = None;
        wait_for("the keeper's end", || {
            status = keeper.try_wait().expect("our child");
            status.is_some()
        });
        status.expect("just seen").code().expect("an exit code")
    }

    /// The same for a keeper that is not our child.
    fn logged_code(&self) -> u64 {
        self.event("exit").number(0)
    }

    fn signal(&self, signal: Signal) {
        let keeper = self.keeper.as_ref().expect("it was started");
        kill_process(Pid::from_child(keeper), signal).expect("our child");
    }

    /// Every process that bears our mark, guardian included.
    fn marked(&self) -> Vec<procfs::Process> {
        self.bearing(MARK)
    }

    fn bearing(&self, name: &str) -> Vec<procfs::Process> {
        let mark = format!("{name}={}", self.mark);
        let processes = procfs::processes().expect("it can be read").expect("a process table");
        let bears_it = |process: &procfs::Process| {
            let environment = fs::read(format!("/proc/{}/environ", process.pid));
            let environment = environment.unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        };
        processes.into_iter().filter(|process| process.alive && bears_it(process)).collect()
    }

    fn guardian(&self) -> i32 {
        let is_guardian = |process: &procfs::Process| name(process.pid) == "lock-guardian";
        self.marked().into_iter().find(is_guardian).expect("a guardian").pid
    }

    /// Waits until the command consists of that many processes; the first is its leader.
    fn family_of(&self, size: usize) -> Vec<procfs::Process> {
        self.event("started");
        let family = || {
            let mut family = self.marked();
            family.retain(|process| !["lock-guardian", "exe"].contains(&&*name(process.pid)));
            // A shell that has forked and not yet executed looks like the shell.
            let shells = family.iter().filter(|process| name(process.pid) == "sh").count();
            if shells > 1 { Vec::new() } else { family }
        };
        wait_for("the command's family", || family().len() == size);
        family()
    }

    fn nobody_is_left(&self) {
        let left: Vec<_> = self.marked().iter().map(|process| name(process.pid)).collect();
        assert!(left.is_empty(), "left over: {left:?}");
    }

    /// Waits until the command and its guardian are gone and returns when that was.
    fn when_nobody_but_the_keeper_is_left(&self) -> u64 {
        wait_for("the command's end", || self.marked().is_empty());
        boot_ns()
    }

    fn when_nobody_is_left(&mut self) -> u64 {
        let gone_at = self.when_nobody_but_the_keeper_is_left();
        let keeper = self.keeper.as_mut().expect("it was started");
        wait_for("the keeper's end", || keeper.try_wait().expect("our child").is_some());
        gone_at
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(keeper) = &mut self.keeper {
            let _ = keeper.kill();
            let _ = keeper.wait();
        }
        // Whatever a failed test has left; each was started by us, since it bears our mark.
        for process in [self.bearing(KEEPER_MARK), self.marked()].concat() {
            kill(process.pid, Signal::KILL);
        }
    }
}

// ---- a terminal -----------------------------------------------------------------------------

/// A keeper under script(1), which makes a terminal of two pipes.
struct Tty {
    run: Run,
    script: Process,
    screen: Arc<Mutex<String>>,
}

impl Tty {
    /// Runs `line` in a shell without job control; KEEPER in it stands for the keeper.
    fn new(command: &[&str], options: &[&str], line: &str) -> Self {
        let run = Run::new();
        let line = line.replace("KEEPER", &quoted(&run.words(options, command)));
        Self::script(run, &quoted(&["sh".into(), "-c".into(), line.into()]))
    }

    /// Types `line` into an interactive bash.
    fn interactive(command: &[&str], options: &[&str], line: &str) -> Self {
        let run = Run::new();
        // A short name, since the terminal echoes what is typed and wraps it.
        let words = quoted(&run.words(options, command));
        fs::write(run.path("k"), format!("exec {words}\n")).expect("a file");
        let line = line.replace("KEEPER", &format!("sh {}", run.path("k").display()));
        let mut tty = Self::script(run, "env PS1='$ ' bash --norc --noprofile -i");
        tty.shows("$ ");
        tty.types(&format!("{line}\n"));
        tty
    }

    fn script(run: Run, command: &str) -> Self {
        let mut script = Command::new("script")
            .args(["-qec", command, "/dev/null"])
            .env(KEEPER_MARK, &run.mark)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script(1) of util-linux");
        let mut output = script.stdout.take().expect("a pipe");
        let screen = Arc::new(Mutex::new(String::new()));
        let shown = Arc::clone(&screen);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..count]).replace('\r', "");
                shown.lock().expect("no panic").push_str(&text);
            }
        });
        Self { run, script, screen }
    }

    fn types(&mut self, keys: &str) {
        let stdin = self.script.stdin.as_mut().expect("a pipe");
        stdin.write_all(keys.as_bytes()).expect("script reads");
    }

    /// The shell tells of a background job only with a prompt, and not always with the next one.
    fn prompts_until(&mut self, text: &str, times: usize) {
        let prompts = |screen: String| screen.matches("$ ").count();
        let began = boot_ns();
        while self.screen().matches(text).count() < times {
            assert!(boot_ns() - began < PATIENCE, "no sign of {text}:\n{}", self.screen());
            let before = prompts(self.screen());
            self.types("\n");
            wait_for(text, || prompts(self.screen()) > before);
        }
    }

    fn screen(&self) -> String {
        self.screen.lock().expect("no panic").clone()
    }

    fn shows(&self, text: &str) {
        self.shows_times(text, 1);
    }

    fn shows_times(&self, text: &str, times: usize) {
        let shown = || self.screen().matches(text).count() >= times;
        let began = boot_ns();
        while !shown() {
            assert!(
                boot_ns() - began < PATIENCE,
                "{text:?} is not on the screen:\n{}\nlog:\n{}",
                self.screen(),
                self.run.log()
            );
            thread::sleep(LOOK_AGAIN);
        }
    }
}

impl Drop for Tty {
    fn drop(&mut self) {
        // The shell under it gets a hang-up, and the keeper from the shell.
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

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
