//! Starts and controls worker processes.

use std::fmt::Display;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::clock;
use crate::worker::Job;

/// The hidden subcommand of a worker process.
pub(crate) const WORKER: &str = "worker";

/// Worker processes. Dropping the value kills them.
pub(crate) struct Workers(Vec<Process>);

struct Process {
    child: Child,
    orders: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Workers {
    /// Starts workers and returns when all are ready.
    ///
    /// # Errors
    /// If a worker does not become ready.
    pub(crate) fn start(job: &Job, count: usize) -> Result<Self, String> {
        Self::of(|| this_program(job), count)
    }

    /// Starts workers from any program.
    ///
    /// # Errors
    /// If a worker does not become ready.
    pub(crate) fn of(
        worker: impl Fn() -> Result<Command, String>,
        count: usize,
    ) -> Result<Self, String> {
        let started: Result<Vec<_>, _> = (0..count).map(|_| Process::start(worker()?)).collect();
        let mut workers = Self(started?);
        for process in &mut workers.0 {
            let line = process.output.next();
            if !matches!(&line, Some(Ok(word)) if word == "ready") {
                return Err(format!("a worker process did not get ready: {line:?}"));
            }
        }
        Ok(workers)
    }

    /// Lets the workers run for `time`, and collects the results of each.
    ///
    /// # Errors
    /// If a worker fails.
    pub(crate) fn work<T: DeserializeOwned>(
        mut self,
        time: Duration,
    ) -> Result<Vec<Vec<T>>, String> {
        let end = clock::nanos(clock::now() + time);
        for process in &mut self.0 {
            writeln!(process.orders, "go {end}").map_err(failed)?;
        }
        // The results exceed the capacity of a pipe, so a worker waits until its pipe is read. All workers have
        // finished their measurements by then, so the pipes are read one after the other.
        self.0.iter_mut().map(Process::results).collect()
    }
}

fn failed(what: impl Display) -> String {
    format!("a worker process: {what}")
}

fn this_program(job: &Job) -> Result<Command, String> {
    let program = std::env::current_exe().map_err(failed)?;
    let job = serde_json::to_string(job).map_err(failed)?;
    let mut command = Command::new(program);
    command.args([WORKER, &job]);
    Ok(command)
}

impl Process {
    fn start(mut command: Command) -> Result<Self, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (orders, output) = pipes.ok_or_else(|| failed("it has no pipes"))?;
        Ok(Self { child, orders, output: BufReader::new(output).lines() })
    }

    fn results<T: DeserializeOwned>(&mut self) -> Result<Vec<T>, String> {
        let parse = |line: std::io::Result<String>| {
            let line = line.map_err(|error| error.to_string())?;
            serde_json::from_str(&line).map_err(|error| format!("{error}: {line}"))
        };
        let results: Result<Vec<T>, String> = self.output.by_ref().map(parse).collect();
        let results = results.map_err(|why| format!("the output of a worker process: {why}"))?;
        let status = self.child.wait().map_err(failed)?;
        if status.success() {
            Ok(results)
        } else {
            Err(format!("a worker process ended: {status}"))
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already, and `drop` cannot return an error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
