//! The keeper of these tests, which replaces `quorlock run`.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use crate::MS;
use crate::src::child::{Child, ChildEvent, Deadlines, How, KilledBy, Signals, SpawnError};
use crate::src::guardian::clock::{Moment, boot_ns};

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
        let deadlines = Deadlines { term: now.after(self.term_ns), kill: now.after(self.kill_ns) };
        // The keeper logs the deadlines before it sends them, so the log has them before the guardian acts on them.
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
                    SpawnError::Machine(_) => 71,
                }
            }
        }
    }

    fn write(&mut self, line: &str) {
        let line = format!("{} {line}\n", boot_ns());
        self.log.write_all(line.as_bytes()).expect("the log can be written");
    }
}
