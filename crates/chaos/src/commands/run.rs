//! One `quorlock run` from start to end.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use quorlock_servers::spawn;
use quorlock_sim::time::{SECOND, Time};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::lane::RoundContext;
use super::plan::{KEYS, TTL};
use super::writer::Kind;
use crate::clock::now;

/// The longest time for a run, from the wait for the lock to its release, on a busy machine with stopped processes.
const PATIENCE: Time = 60 * SECOND;

/// The longest time for which the run's events are read after its end. If the pipe is still open then, a process that
/// is not part of the run holds it.
const EVENTS: Time = 2 * SECOND;

const LOOK: Duration = Duration::from_millis(4);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Draw {
    pub(crate) machine: usize,
    pub(crate) key: usize,
    pub(crate) kind: Kind,
    pub(crate) ms: Time,
    pub(crate) is_stalled: bool,
}

pub(crate) struct Ended {
    /// The exit status of `quorlock run` or of the script; `None` if it did not end in time and had to be killed.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) is_heard: bool,
    pub(crate) errors: String,
}

/// Runs `quorlock run`. `id` is the index of the run in `Book::runs`.
pub(crate) fn run(context: &Arc<RoundContext>, id: usize, draw: Draw) -> io::Result<Ended> {
    let (events, its_end) = pipe_with(PipeFlags::CLOEXEC)?;
    if draw.is_stalled {
        // Fills the pipe with empty lines, which are no events, so that the run blocks when it writes its first event.
        let size = fcntl_setpipe_size(&its_end, 4096)?;
        rustix::io::write(&its_end, &vec![b'\n'; size])?;
    }
    let said = context.home.join(format!("{id}.err"));
    let child = start(context, id, draw, its_end, File::create(&said)?)?;
    let is_over = Arc::new(AtomicBool::new(!draw.is_stalled));
    let reader = {
        let (context, is_over) = (context.clone(), is_over.clone());
        thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                thread::sleep(LOOK);
            }
            read(&context, id, events);
        })
    };
    context.book().runs[id].keeper = Some(Pid::from_child(&child));
    let status = wait(child, now() + PATIENCE);
    context.book().runs[id].is_over();
    is_over.store(true, Ordering::Relaxed);
    let deadline = now() + EVENTS;
    while !reader.is_finished() && now() < deadline {
        thread::sleep(LOOK);
    }
    let is_heard = reader.is_finished();
    let errors = fs::read_to_string(&said).unwrap_or_default();
    fs::remove_file(said)?;
    Ok(Ended { status, is_heard, errors })
}

fn start(
    context: &RoundContext,
    id: usize,
    draw: Draw,
    its_end: OwnedFd,
    errors: File,
) -> io::Result<Child> {
    let ttl = format!("{}ms", TTL / quorlock_sim::time::MS);
    let machine = &context.machines[draw.machine];
    let is_script = draw.kind == Kind::Script;
    let program = if is_script { Path::new("sh") } else { &*context.quorlock };
    spawn(program, |command| {
        if is_script {
            command.args(["-c", draw.kind.script()]).env("QUORLOCK", &context.quorlock);
            command.env("KEY", KEYS[draw.key]).env("LEASE_FILE", context.lease_file(id));
        } else {
            command.args(["run", KEYS[draw.key], "--ttl", &ttl, "--max-ttl", &ttl, "--wait", "4s"]);
            command.args(["--status-fd", "1", "--", "sh", "-c", draw.kind.script()]);
        }
        command.arg(&context.writer).arg(context.file(draw.key));
        command.args([id.to_string(), draw.ms.to_string()]);
        command.env("QUORLOCK_NODES", &machine.nodes);
        command.env("QUORLOCK_CLOCK_OFFSET_FILE", &machine.clock);
        command.stdin(Stdio::null()).stdout(its_end).stderr(errors);
    })
}

fn wait(mut child: Child, deadline: Time) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if now() < deadline => thread::sleep(LOOK),
            _ => {
                // The run must not outlive this function.
                let _ = kill_process(Pid::from_child(&child), Signal::KILL);
                let _ = child.wait();
                return None;
            }
        }
    }
}

fn read(context: &RoundContext, id: usize, events: OwnedFd) {
    for line in BufReader::new(File::from(events)).lines() {
        let Ok(line) = line else { return };
        let Ok(event) = serde_json::from_str::<Value>(&line) else { continue };
        let Some(name) = event["event"].as_str() else { continue };
        let with = match name {
            // Skips frequent events that no check uses.
            "waiting" | "extended" | "shortened" => continue,
            "not_acquired" => &event["contended"],
            "released" => &event["outcome"],
            "lost" => &event["cause"],
            _ => &Value::Null,
        };
        let with = match with {
            Value::Null => String::new(),
            Value::String(text) => format!(":{text}"),
            other => format!(":{other}"),
        };
        context.heard(id, name, &with);
    }
}
