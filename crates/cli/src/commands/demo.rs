//! `quorlock demo`: five nodes, a dozen workers, one fault after the other, and a verdict.
//!
//! The workers run in processes of their own. They contend for one lock, and change a file that only the lock protects.
//! Each worker reports over a pipe when it held the lock, by the boot clock, which all processes of a machine share.
//! The verdict comes from these reports, not from the lock's own view.

mod nodes;
mod observer;
mod result;
mod screen;
mod script;
mod stage;
mod tally;
mod view;
mod worker;
mod workers;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use quorlock_servers::{Listen, NotFound, ServerBinary, find};
use rustix::process::Signal;

use self::nodes::FiveNodes;
use self::observer::NodeView;
use self::result::DemoResult;
use self::screen::{Screen, style, wrapped};
use self::stage::{DemoEnd, Stage};
use self::worker::Report;
use self::workers::{WORKERS, Workers};
use crate::args::Demo;
use crate::child::Signals;
use crate::exit_code::ExitCode;
use crate::guardian::clock::boot_ns;
use crate::options::Refused;

pub(crate) const WORKER: &str = "__demo-worker";

const KEY: &str = "demo";

/// Short, so that nodes need not stay down for long.
const TTL: Duration = Duration::from_secs(1);

const WAIT: Duration = Duration::from_millis(1500);

enum Event {
    /// The result of a worker's call.
    Report(Report),
    /// A worker or a worker process has ended, or cannot continue.
    Left(Result<(), String>),
    Seen {
        /// Time at which the nodes were asked.
        asked: Duration,
        seen: Box<[NodeView; 5]>,
    },
    /// The result of the demo's own call for a lock.
    Answer(Result<(), String>),
    Signal(Signal),
}

enum NodeKind {
    Servers(ServerBinary, Listen),
    /// The nodes are in memory; the text is the reason.
    Memory(String),
}

pub(crate) fn main(args: &Demo) -> Result<ExitCode, Refused> {
    let kind = NodeKind::of(args)?;
    match play(&kind) {
        Ok(code) => Ok(code),
        Err(DemoEnd::Refused(refused)) => Err(refused),
        Err(DemoEnd::Failed(why)) => {
            Err(Refused { message: format!("demo: {why}"), code: ExitCode::Internal })
        }
        Err(DemoEnd::Signal(signal)) => {
            // A closed standard error cannot be reported anywhere.
            let number = signal.as_raw();
            let _ = writeln!(
                io::stderr(),
                "quorlock: demo stopped by signal {number}; its workers, nodes and files are gone"
            );
            Ok(ExitCode::Signal(signal.as_raw()))
        }
    }
}

/// Runs the demo. When it returns, even with an error, its processes have ended and its files are deleted.
fn play(kind: &NodeKind) -> Result<ExitCode, DemoEnd> {
    let (events, received) = channel();
    // Signals are caught from here on, even before a thread reads them.
    hear_signals(events.clone()).map_err(DemoEnd::failed)?;
    let folder = tempfile::Builder::new().prefix("quorlock-demo-").tempdir();
    let folder =
        folder.map_err(|error| DemoEnd::Failed(format!("no temporary folder: {error}")))?;
    let counter = folder.path().join("counter");
    fs::write(&counter, "0").map_err(DemoEnd::failed)?;
    let nodes = kind.start().map_err(DemoEnd::Refused)?;
    let mut screen = Screen::new(view::ROWS);
    introduce(&mut screen, kind, &nodes, &counter);
    let began = now();
    let workers = Workers::start(&nodes, &counter, &events).map_err(DemoEnd::Failed)?;
    observer::start(&nodes, events.clone()).map_err(DemoEnd::Failed)?;
    let mut stage = Stage::new((nodes, counter), workers, received, screen, began);
    script::play(&mut stage, &events)?;
    let result = stage.end()?;
    Ok(conclude(stage.into_screen(), kind, &result))
}

pub(crate) fn worker_main(args: Vec<OsString>) -> std::process::ExitCode {
    worker::process(&args)
}

impl NodeKind {
    fn of(args: &Demo) -> Result<Self, Refused> {
        let listen = if args.tcp { Listen::Tcp } else { Listen::UnixSocket };
        if args.memory && args.tcp {
            return Err(Refused::usage("--memory and --tcp: nodes in memory have no ports"));
        }
        if args.memory {
            return Ok(Self::Memory("as --memory demands".to_owned()));
        }
        match find() {
            Ok(binary) => Ok(Self::Servers(binary, listen)),
            Err(help) if args.tcp => {
                let message = format!("--tcp needs a server: {help}");
                Err(Refused { message, code: ExitCode::NoQuorum })
            }
            Err(help @ NotFound::Nowhere) => Ok(Self::Memory(help.to_string())),
            // The user has named a server, so the demo does not use nodes in memory instead.
            Err(help) => Err(Refused::config(help.to_string())),
        }
    }

    fn start(&self) -> Result<FiveNodes, Refused> {
        match self {
            Self::Memory(_) => Ok(FiveNodes::in_memory()),
            Self::Servers(binary, listen) => FiveNodes::servers(binary, *listen).map_err(|error| {
                let message = format!("the demo's servers do not start: {error}");
                Refused { message, code: ExitCode::NoQuorum }
            }),
        }
    }
}

fn introduce(screen: &mut Screen, kind: &NodeKind, nodes: &FiveNodes, counter: &Path) {
    screen.line(style::BOLD, &format!("One lock, five nodes, {WORKERS} workers."));
    let mut say = |text: &str| screen.line(style::PLAIN, text);
    match kind {
        NodeKind::Memory(why) => {
            say("  nodes    in memory, not real servers:");
            wrapped(why, 68).iter().for_each(|line| say(&format!("           {line}")));
        }
        NodeKind::Servers(binary, _) => {
            say(&format!("  nodes    {binary}"));
            say(&format!("           {}", in_braces(&nodes.addresses())));
            say("           Restart guard off: they are new, and would not vote for 3 s at first;");
            say("           one that is killed here stays down for longer than the ttl instead.");
        }
    }
    let file = counter.display();
    say(&format!(
        "  workers  Each acquires \"{KEY}\" (ttl {TTL:?}), reads a number from a file, sleeps"
    ));
    say("           1 to 10 ms, writes the number + 1, releases. Nothing but the lock");
    say(&format!("           protects the file, {file}"));
    say("");
}

fn conclude(mut screen: Screen, kind: &NodeKind, result: &DemoResult) -> ExitCode {
    let mut say = |style, text: &str| screen.line(style, text);
    say(style::PLAIN, "");
    result.lines.iter().for_each(|line| say(style::PLAIN, line));
    let mut on = "";
    if let NodeKind::Memory(why) = kind {
        on = " (nodes in memory)";
        for line in wrapped(&format!("nodes in memory, {why}"), 77) {
            say(style::ODD, &format!("  {line}"));
        }
    }
    result.faults.iter().for_each(|fault| say(style::BAD, &format!("  WRONG: {fault}")));
    if result.faults.is_empty() {
        say(style::GOOD, &format!("VERDICT: {}{on}", result.summary));
        ExitCode::Success
    } else {
        say(style::BAD, &format!("VERDICT: FAILED, {}{on}", result.summary));
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

fn hear_signals(events: Sender<Event>) -> io::Result<()> {
    let mut signals = Signals::catch()?;
    let runtime = super::runtime()?;
    let listen = move || {
        runtime
            .block_on(async { while events.send(Event::Signal(signals.next().await)).is_ok() {} });
    };
    thread::Builder::new().name("listen".into()).spawn(listen).map(drop)
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
