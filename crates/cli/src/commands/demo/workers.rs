//! The twelve workers: three threads in each of four processes. If the nodes are in memory, the workers are threads of
//! this process, because no other process can reach such nodes.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread;

use super::nodes::NAMES;
use super::worker::{EACH, STOP, Worker};
use super::{Event, FiveNodes, WORKER};
use crate::guardian::own_program;

const PROCESSES: usize = 4;

pub(super) const WORKERS: usize = PROCESSES * EACH;

/// The workers. Dropping this ends their processes at once.
pub(super) struct Workers {
    /// The worker processes. If the standard input of one closes without an order, for example because this process was
    /// killed, that worker process ends at once.
    processes: Vec<Child>,
    stop: Arc<AtomicBool>,
    /// Number of workers or processes that have not sent [`Event::Left`] yet.
    at_work: usize,
}

impl Workers {
    /// Starts the workers. Their reports become events.
    pub(super) fn start(
        nodes: &FiveNodes,
        counter: &Path,
        events: &Sender<Event>,
    ) -> Result<Self, String> {
        let mut workers = Self { processes: Vec::new(), stop: Arc::default(), at_work: 0 };
        match nodes {
            FiveNodes::Servers(..) => {
                for place in 0..PROCESSES {
                    workers
                        .start_process(place * EACH + 1, counter, &nodes.urls(), events.clone())
                        .map_err(|error| format!("cannot start a worker process: {error}"))?;
                    workers.at_work += 1;
                }
            }
            FiveNodes::Memory(..) => {
                for number in 1..=WORKERS {
                    let client = nodes.client(0..NAMES.len());
                    let worker = Worker::new(number, counter.to_owned(), client)?;
                    workers
                        .start_thread(worker, events.clone())
                        .map_err(|error| format!("cannot start a worker: {error}"))?;
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
            if let Some(mut orders) = process.stdin.take() {
                // A process that has already ended is reported by [`Event::Left`].
                let _ = writeln!(orders, "{STOP}");
            }
        }
    }

    /// Handles an [`Event::Left`].
    ///
    /// # Errors
    /// The worker did not end as planned.
    pub(super) fn left(&mut self, result: Result<(), String>) -> Result<(), String> {
        self.at_work -= 1;
        if result.is_ok() && !self.stop.load(Ordering::Relaxed) {
            return Err("a worker process ended before its time: what it did is not known".into());
        }
        result
    }

    pub(super) fn are_gone(&self) -> bool {
        self.at_work == 0
    }

    /// Whether each process succeeded. Call this when all workers have ended.
    pub(super) fn ended_well(&mut self) -> bool {
        self.processes.iter_mut().all(|process| process.wait().is_ok_and(|it| it.success()))
    }

    fn start_thread(&self, worker: Worker, events: Sender<Event>) -> io::Result<()> {
        let stop = self.stop.clone();
        let work = move || {
            let result = worker.work(&stop, |report| events.send(Event::Report(report)).is_ok());
            let _ = events.send(Event::Left(result));
        };
        thread::Builder::new().name("worker".into()).spawn(work).map(drop)
    }

    fn start_process(
        &mut self,
        first: usize,
        counter: &Path,
        urls: &[String],
        events: Sender<Event>,
    ) -> io::Result<()> {
        let mut process = Command::new(own_program()?)
            .args([WORKER, &first.to_string()])
            .arg(counter)
            .args(urls)
            // Ctrl-C must reach only the demo, which ends its workers in order.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let reports = process.stdout.take();
        self.processes.push(process);
        let reports = reports.ok_or_else(|| io::Error::other("it has no output"))?;
        let listen = move || {
            let result = forward(reports, &events);
            let _ = events.send(Event::Left(result));
        };
        thread::Builder::new().name("reports".into()).spawn(listen).map(drop)
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

impl Drop for Workers {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // An error means that the process has already ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
