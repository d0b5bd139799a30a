//! The dozen workers: three threads in each of four processes, or, on nodes in memory, which no
//! other process can reach, threads of this one.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread;

use super::worker::{STOP, Worker};
use super::{Event, FiveNodes, WORKER};
use crate::guardian::own_program;

/// How many processes there are.
const PROCESSES: usize = 4;

/// How many workers each of them has.
const EACH: usize = 3;

/// How many workers there are.
pub(super) const WORKERS: usize = PROCESSES * EACH;

/// The workers. Dropping it ends their processes at once.
pub(super) struct Workers {
    processes: Vec<Process>,
    stop: Arc<AtomicBool>,
    /// How many ends are yet to be told, each by an [`Event::Left`].
    at_work: usize,
}

struct Process {
    child: Child,
    /// Taken to tell it to stop. When it closes without a word, the process ends at once: so it
    /// does when this process is killed.
    orders: Option<ChildStdin>,
}

impl Workers {
    /// Sets the workers to work. What they tell becomes events.
    pub(super) fn start(
        nodes: &FiveNodes,
        counter: &Path,
        events: &Sender<Event>,
    ) -> Result<Self, String> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut workers = Self { processes: Vec::new(), stop, at_work: 0 };
        match nodes {
            FiveNodes::Servers(_) => {
                let urls = nodes.urls();
                for place in 0..PROCESSES {
                    let process = Process::start(place * EACH + 1, counter, &urls, events.clone());
                    let process = process
                        .map_err(|error| format!("cannot start a worker process: {error}"))?;
                    workers.processes.push(process);
                    workers.at_work += 1;
                }
            }
            FiveNodes::Memory(_) => {
                for number in 1..=WORKERS {
                    workers.start_thread(number, nodes, counter, events.clone())?;
                    workers.at_work += 1;
                }
            }
        }
        Ok(workers)
    }

    /// Where they are, for people.
    pub(super) fn places(&self) -> String {
        match self.processes.len() {
            0 => "threads of this process".to_owned(),
            count => format!("{count} processes"),
        }
    }

    /// Tells all of them to finish what they are at.
    pub(super) fn dismiss(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for process in &mut self.processes {
            if let Some(mut orders) = process.orders.take() {
                // One that has ended already has told so by its end.
                let _ = writeln!(orders, "{STOP}");
            }
        }
    }

    /// Takes note of an [`Event::Left`]. Returns what is wrong with it, if something is.
    pub(super) fn left(&mut self, result: Result<(), String>) -> Option<String> {
        self.at_work -= 1;
        match result {
            Err(why) => Some(why),
            Ok(()) if !self.stop.load(Ordering::Relaxed) => {
                Some("a worker process ended before its time: what it did is not known".to_owned())
            }
            Ok(()) => None,
        }
    }

    /// All have told their end.
    pub(super) fn is_gone(&self) -> bool {
        self.at_work == 0
    }

    /// Whether each process ended well; to be asked once all are gone.
    pub(super) fn ended_well(&mut self) -> bool {
        self.processes
            .iter_mut()
            .all(|process| process.child.wait().is_ok_and(|status| status.success()))
    }

    fn start_thread(
        &self,
        number: usize,
        nodes: &FiveNodes,
        counter: &Path,
        events: Sender<Event>,
    ) -> Result<(), String> {
        let worker = Worker::new(number, counter.to_owned(), nodes.client())?;
        let stop = self.stop.clone();
        let work = move || {
            let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
            let result =
                worker.work(&stop, |report| events.send(Event::Report(report)).map_err(gone));
            // Nobody listens any more when the demo ends before its time.
            let _ = events.send(Event::Left(result));
        };
        let thread = thread::Builder::new().name(format!("w{number:02}")).spawn(work);
        thread.map(drop).map_err(|error| format!("cannot start a worker: {error}"))
    }
}

impl Process {
    fn start(
        first: usize,
        counter: &Path,
        urls: &[String],
        events: Sender<Event>,
    ) -> io::Result<Self> {
        let mut child = Command::new(own_program()?)
            .arg(WORKER)
            .args([first.to_string(), EACH.to_string()])
            .arg(counter)
            .args(urls)
            // Ctrl-C is for the demo, which ends its workers in order.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let no_pipe = || io::Error::other("it has no output");
        let (orders, reports) = (child.stdin.take(), child.stdout.take().ok_or_else(no_pipe)?);
        let process = Self { child, orders };
        let listen = move || {
            let result = forward(reports, &events);
            // Nobody listens any more when the demo ends before its time.
            let _ = events.send(Event::Left(result));
        };
        thread::Builder::new().name("reports".into()).spawn(listen)?;
        Ok(process)
    }
}

/// Passes on what a worker process tells, until it ends.
fn forward(reports: ChildStdout, events: &Sender<Event>) -> Result<(), String> {
    for line in BufReader::new(reports).lines() {
        let report = line.and_then(|line| Ok(serde_json::from_str(&line)?));
        let report = report.map_err(|error| format!("a worker's report: {error}"))?;
        if events.send(Event::Report(report)).is_err() {
            break;
        }
    }
    Ok(())
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already; there is nobody here to tell an error to.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
