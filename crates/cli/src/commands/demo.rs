//! `quorlock demo`: five nodes, a dozen workers, one fault after the other, and a verdict.
//!
//! The workers run in processes of their own. They contend for one lock, and change a file that only the lock protects.
//! Each worker reports over a pipe when it held the lock, by the boot clock, which all processes of a machine share.
//! The verdict comes from these reports, not from the lock's own view.

mod nodes;
mod observer;
mod record;
mod screen;
mod script;
mod stage;
mod view;
mod worker;
mod workers;

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use quorlock_servers::Server;
use rustix::process::Signal;

use self::nodes::FiveNodes;
use self::observer::NodeView;
use self::record::Conclusion;
use self::screen::{Screen, style, wrapped};
use self::stage::Stage;
use self::worker::Report;
use self::workers::{WORKERS, Workers};
use crate::args::Demo;
use crate::child::Signals;
use crate::exit_code::ExitCode;
use crate::guardian::clock::boot_ns;
use crate::options::Refused;

pub(crate) const WORKER: &str = "__demo-worker";

const KEY: &str = "demo";

/// The ttl is short, because a killed node must stay down for longer than the ttl, and the demo must not take long.
const TTL: Duration = Duration::from_secs(1);

const WAIT: Duration = Duration::from_millis(1500);

enum Event {
    /// The result of a worker's call.
    Report(Report),
    /// A worker or a worker process has ended, or cannot continue.
    Left(Result<(), String>),
    Answers {
        /// Time at which the nodes were asked.
        asked: Duration,
        answers: Vec<NodeView>,
    },
    /// The result of the demo's own call for a lock.
    Answer(Result<(), String>),
    Signal(Signal),
}

/// The reason for an early end of the demo.
enum DemoEnd {
    Signal(Signal),
    Refused(Refused),
}

impl DemoEnd {
    fn failed(error: impl fmt::Display) -> Self {
        Self::Refused(Refused { message: format!("demo: {error}"), code: ExitCode::Internal })
    }
}

impl From<io::Error> for DemoEnd {
    fn from(error: io::Error) -> Self {
        Self::failed(error)
    }
}

pub(crate) fn main(args: &Demo) -> Result<ExitCode, Refused> {
    match play(args) {
        Ok(code) => Ok(code),
        Err(DemoEnd::Refused(refused)) => Err(refused),
        Err(DemoEnd::Signal(signal)) => {
            // A closed standard error cannot be reported anywhere.
            let number = signal.as_raw();
            let _ = writeln!(
                io::stderr(),
                "quorlock: demo stopped by signal {number}; its workers, nodes and files are gone"
            );
            Ok(ExitCode::Signal(number))
        }
    }
}

/// Runs the demo. When it returns, even with an error, its processes have ended and its files are deleted.
fn play(args: &Demo) -> Result<ExitCode, DemoEnd> {
    let (events, received) = channel();
    // Signals are caught from here on, even before a thread reads them.
    forward_signals(events.clone())?;
    let folder = tempfile::Builder::new().prefix("quorlock-demo-").tempdir();
    let folder =
        folder.map_err(|error| DemoEnd::failed(format!("no temporary folder: {error}")))?;
    let counter = folder.path().join("counter");
    fs::write(&counter, "0")?;
    let nodes = FiveNodes::start(args).map_err(DemoEnd::Refused)?;
    let mut screen = Screen::new(view::ROWS);
    introduce(&mut screen, &nodes, &counter);
    let in_memory = match &nodes {
        FiveNodes::Servers(..) => None,
        FiveNodes::Memory(_, why) => Some(why.clone()),
    };
    let began = now();
    let workers = Workers::start(&nodes, &counter, &events).map_err(DemoEnd::failed)?;
    observer::start(&nodes, events.clone())?;
    let mut stage = Stage::new((nodes, counter), workers, received, screen, began);
    script::play(&mut stage, &events)?;
    let (screen, conclusion) = stage.end()?;
    Ok(conclude(screen, in_memory, &conclusion))
}

pub(crate) fn worker_main(args: Vec<OsString>) -> std::process::ExitCode {
    worker::process(&args)
}

fn introduce(screen: &mut Screen, nodes: &FiveNodes, counter: &Path) {
    screen.line(style::BOLD, &format!("One lock, five nodes, {WORKERS} workers."));
    let mut write = |text: &str| screen.line(style::PLAIN, text);
    match nodes {
        FiveNodes::Memory(_, why) => {
            write("  nodes    in memory, not real servers:");
            wrapped(why, 68).iter().for_each(|line| write(&format!("           {line}")));
        }
        FiveNodes::Servers(binary, servers) => {
            let addresses: Vec<String> = servers.iter().map(Server::address).collect();
            write(&format!("  nodes    {binary}"));
            write(&format!("           {}", in_braces(&addresses)));
            write(
                "           Restart guard off: they are new, and would not vote for 3 s at first;",
            );
            write("           one that is killed here stays down for longer than the ttl instead.");
        }
    }
    let file = counter.display();
    write(&format!(
        "  workers  Each acquires \"{KEY}\" (ttl {TTL:?}), reads a number from a file, sleeps"
    ));
    write("           1 to 10 ms, writes the number + 1, releases. Nothing but the lock");
    write(&format!("           protects the file, {file}"));
    write("");
}

/// Writes the verdict. `in_memory` is the reason why the nodes are in memory.
fn conclude(mut screen: Screen, in_memory: Option<String>, conclusion: &Conclusion) -> ExitCode {
    let mut write = |style, text: &str| screen.line(style, text);
    write(style::PLAIN, "");
    conclusion.lines.iter().for_each(|line| write(style::PLAIN, line));
    let on = if in_memory.is_some() { " (nodes in memory)" } else { "" };
    if let Some(why) = in_memory {
        for line in wrapped(&format!("nodes in memory, {why}"), 77) {
            write(style::ODD, &format!("  {line}"));
        }
    }
    conclusion.faults.iter().for_each(|fault| write(style::BAD, &format!("  WRONG: {fault}")));
    let summary = &conclusion.summary;
    if conclusion.faults.is_empty() {
        write(style::GOOD, &format!("VERDICT: {summary}{on}"));
        ExitCode::Success
    } else {
        write(style::BAD, &format!("VERDICT: FAILED, {summary}{on}"));
        ExitCode::Internal
    }
}

/// The servers' addresses as a shell abbreviates them: `/tmp/quorlock-{x,y}/socket`.
fn in_braces(addresses: &[String]) -> String {
    fn parts(text: &str) -> (&str, &str, &str) {
        let (start, tail) = text.split_at(text.rfind('/').unwrap_or(text.len()));
        let (head, middle) = start.split_at(start.rfind(['-', ':']).map_or(0, |at| at + 1));
        (head, middle, tail)
    }
    let Some((head, _, tail)) = addresses.first().map(|first| parts(first)) else {
        return String::new();
    };
    let middle = |text| match parts(text) {
        (same_head, middle, same_tail) if (same_head, same_tail) == (head, tail) => Some(middle),
        _ => None,
    };
    match addresses.iter().map(|text| middle(text)).collect::<Option<Vec<_>>>() {
        Some(middles) => format!("{head}{{{}}}{tail}", middles.join(",")),
        None => addresses.join(" "),
    }
}

fn forward_signals(events: Sender<Event>) -> io::Result<()> {
    let mut signals = Signals::catch()?;
    let runtime = super::runtime()?;
    let forward = move || {
        runtime
            .block_on(async { while events.send(Event::Signal(signals.next().await)).is_ok() {} });
    };
    thread::Builder::new().name("forward".into()).spawn(forward).map(drop)
}

/// Time since the start of the machine.
fn now() -> Duration {
    Duration::from_nanos(boot_ns())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_abbreviated_as_a_shell_expands_them() {
        let of =
            |texts: &[&str]| in_braces(&texts.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(of(&["/t/q-ab/socket", "/t/q-ac/socket"]), "/t/q-{ab,ac}/socket");
        assert_eq!(of(&["127.0.0.1:20001", "127.0.0.1:31"]), "127.0.0.1:{20001,31}");
        assert_eq!(of(&["/t/q-ab/socket", "/u/q-ac/socket"]), "/t/q-ab/socket /u/q-ac/socket");
        assert_eq!(of(&[]), "");
    }
}
