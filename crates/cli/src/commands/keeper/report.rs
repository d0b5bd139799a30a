//! The report of a keeper about the loss of its lock: a line on the script's standard error and in the file of `--log`.

use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use humantime::format_rfc3339_seconds;
use rustix::fs::OFlags;
use serde_json::{Value, json};

use super::Watched;
use crate::args::NodeArgs;
use crate::commands::caller::unix_ms;
use crate::guardian::clock::real_ns;
use crate::options::Refused;
use crate::output::{json_line, plain};

/// The places of a keeper's messages. Nothing is open before there is a message.
pub(super) struct Report {
    log: Option<PathBuf>,
    json: bool,
}

/// A message that is being written.
pub(super) struct Writing(Receiver<Infallible>);

/// Refuses a file that cannot be written.
pub(in crate::commands) fn check_log(path: &Path, nodes: &NodeArgs) -> Result<(), Refused> {
    let refuse = |error| Refused::about(&["log"], format!("{}: {error}", path.display()), nodes);
    open(path, true).map(drop).map_err(refuse)
}

/// Opens a file for appending. The open and the writes wait for no reader, and a terminal does not become the keeper's.
fn open(path: &Path, create: bool) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    OpenOptions::new().append(true).create(create).custom_flags(flags).open(path)
}

impl Report {
    /// The path stays good when the keeper changes its folder.
    pub(super) fn new(log: Option<&Path>, json: bool) -> io::Result<Self> {
        Ok(Self { log: log.map(std::path::absolute).transpose()?, json })
    }

    /// Starts to write a message. Threads write to files, because a hung file system must not delay the signal to the
    /// script.
    pub(super) fn say(&self, mut event: Value, message: &str, process: &Watched) -> Writing {
        event["message"] = json!(message);
        event["unix_ms"] = json!(unix_ms());
        let time = format_rfc3339_seconds(UNIX_EPOCH + Duration::from_nanos(real_ns()));
        let [said, logged] = match self.json {
            true => [json_line(&event), json_line(&event)],
            false => {
                let line = plain(&format!("quorlock: {message}\n"));
                [line.clone(), format!("{time} {line}")]
            }
        };
        let (sender, written) = channel();
        // The process is alive until the caller signals it, so the number is still its own.
        if !process.has_ended() {
            let stderr = PathBuf::from(format!("/proc/{}/fd/2", process.pid));
            // A pipe or a terminal does not hang, so the message is there before the signal, however busy the machine is.
            match std::fs::read_link(&stderr) {
                Ok(target) if target.starts_with("/dev") || is_pipe(&target) => {
                    write(&stderr, false, &said);
                }
                _ => start_to_write(stderr, false, said, sender.clone()),
            }
        }
        if let Some(log) = &self.log {
            start_to_write(log.clone(), true, logged, sender);
        }
        Writing(written)
    }
}

/// Whether the target of a link in `/proc/PID/fd` is a pipe, such as `pipe:[4711]`.
fn is_pipe(target: &Path) -> bool {
    target.to_str().is_some_and(|target| target.starts_with("pipe:"))
}

/// Writes the text. A message that cannot be written has no other place.
fn write(path: &Path, create: bool, text: &str) {
    let _ = open(path, create).and_then(|mut file| file.write_all(text.as_bytes()));
}

/// Drops `done` when the text is written, or cannot be.
fn start_to_write(path: PathBuf, create: bool, text: String, done: Sender<Infallible>) {
    let _ = thread::Builder::new().name("report".into()).spawn(move || {
        write(&path, create, &text);
        drop(done);
    });
}

impl Writing {
    /// Waits until the message is written, but at most for this time.
    pub(super) fn wait(&self, patience: Duration) {
        let _ = self.0.recv_timeout(patience);
    }
}
