//! The twelve workers: three threads in each of four processes. If the nodes are in memory, the workers are threads of
//! this process, because no other process can reach such nodes.

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

const PROCESSES: usize = 4;

const EACH: usize = 3;

pub(super) const WORKERS: usize = PROCESSES * EACH;

/// The workers. Dropping this ends their processes at once.
pub(super) struct Workers {
    processes: Vec<Process>,
    stop: Arc<AtomicBool>,
    /// Number of workers or processes that have not sent [`Event::Left`] yet.
    at_work: usize,
}

struct Process {
    child: Child,
    /// Pipe for the order to stop. If it closes without an order, for example because this process was killed, the
    /// worker process ends at once.
    orders: Option<ChildStdin>,
}

impl Workers {
    /// Starts the workers. Their reports become events.
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

    pub(super) fn places(&self) -> String {
        match self.processes.len() {
            0 => "threads of this process".to_owned(),
            count => format!("{count} processes"),
        }
    }

    pub(super) fn dismiss(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for process in &mut self.processes {
            if let Some(mut orders) = process.orders.take() {
                // A process that has already ended is reported by [`Event::Left`].
                let _ = writeln!(orders, "{STOP}");
            }
        }
    }

    /// Handles an [`Event::Left`]. Returns the reason if the worker did not end as planned.
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

    pub(super) fn is_gone(&self) -> bool {
        self.at_work == 0
    }

    /// Whether each process succeeded. Call this when all workers have ended.
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
            // Ctrl-C must reach only the demo, which ends its workers in order.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let no_pipe = || io::Error::other("it has no output");
        let (orders, reports) = (child.stdin.take(), child.stdout.take().ok_or_else(no_pipe)?);
        let process = Self { child, orders };
        let listen = move || {
            let result = forward(reports, &events);
            let _ = events.send(Event::Left(result));
        };
        thread::Builder::new().name("reports".into()).spawn(listen)?;
        Ok(process)
    }
}

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
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
