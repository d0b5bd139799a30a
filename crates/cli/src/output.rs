//! What quorlock itself says: one line for people, or one JSON object, on standard error and,
//! if wanted, on a file descriptor for scripts.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use serde_json::{Value, json};

use crate::args::OutputArgs;
use crate::window::{Window, cut};

/// Where messages go.
#[derive(Debug)]
pub(crate) struct Output {
    args: OutputArgs,
    status: Option<Status>,
    /// A line that is being rewritten stands on the terminal.
    transient: bool,
    terminal: bool,
}

/// Where events go.
#[derive(Debug)]
enum Status {
    Stdout,
    Stderr,
    /// The descriptor opened anew by its name, which needs no unsafe code but is another file
    /// position: it writes at the end.
    File(File),
}

impl Status {
    fn open(fd: u32) -> io::Result<Self> {
        Ok(match fd {
            1 => Self::Stdout,
            2 => Self::Stderr,
            _ => {
                let path = format!("/dev/fd/{fd}");
                Self::File(OpenOptions::new().append(true).open(path)?)
            }
        })
    }

    fn write(&mut self, event: &Value) {
        // Whoever wanted to read has gone: no reason to stop the work.
        let _ = match self {
            Self::Stdout => writeln!(io::stdout(), "{event}"),
            Self::Stderr => writeln!(io::stderr(), "{event}"),
            Self::File(file) => writeln!(file, "{event}"),
        };
    }
}

impl Output {
    /// Messages as the arguments demand, and events to `status_fd` if it is given.
    ///
    /// # Errors
    /// If the descriptor is not open for writing.
    pub(crate) fn new(args: OutputArgs, status_fd: Option<u32>) -> io::Result<Self> {
        let status = status_fd.map(Status::open).transpose()?;
        Ok(Self { args, status, transient: false, terminal: io::stderr().is_terminal() })
    }

    /// An event, and the line that tells people of it, unless nothing is to be said.
    pub(crate) fn event(&mut self, event: Value, line: Option<&str>) {
        if let Some(status) = &mut self.status {
            status.write(&event);
        }
        self.clear();
        if self.args.json && !self.args.quiet {
            let _ = writeln!(io::stderr(), "{event}");
        } else if let Some(line) = line
            && !self.args.quiet
        {
            let _ = writeln!(io::stderr(), "quorlock: {line}");
        }
    }

    /// The end without success; said also if nothing else is.
    pub(crate) fn error(&mut self, event: Value, line: &str) {
        if let Some(status) = &mut self.status {
            status.write(&event);
        }
        self.clear();
        let _ = if self.args.json {
            writeln!(io::stderr(), "{event}")
        } else {
            writeln!(io::stderr(), "quorlock: {line}")
        };
    }

    /// A line that the next one replaces; only on a terminal. Elsewhere only the first is said.
    pub(crate) fn progress(&mut self, event: Value, line: &str, first: bool) {
        if !self.terminal || self.args.json || self.args.quiet {
            if first {
                self.event(event, Some(line));
            }
            return;
        }
        if let Some(status) = &mut self.status
            && first
        {
            status.write(&event);
        }
        let line = cut(&format!("quorlock: {line}"), Window::of(io::stderr()).line());
        let _ = write!(io::stderr(), "\r\x1b[K{line}");
        let _ = io::stderr().flush();
        self.transient = true;
    }

    /// Takes away the line that was to be replaced.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.transient) {
            let _ = write!(io::stderr(), "\r\x1b[K");
            let _ = io::stderr().flush();
        }
    }
}

/// A refusal before anything began, in the form that was asked for.
pub(crate) fn refused(json: bool, message: &str) {
    let _ = if json {
        writeln!(io::stderr(), "{}", json!({ "event": "refused", "message": message }))
    } else {
        writeln!(io::stderr(), "quorlock: {message}")
    };
}

/// A duration for people: one decimal, the unit that fits.
pub(crate) fn time(duration: Duration) -> String {
    if duration >= Duration::from_secs(3600) {
        humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string()
    } else if duration >= Duration::from_secs(1) {
        format!("{:.1}s", duration.as_secs_f64())
    } else {
        format!("{}ms", duration.as_millis())
    }
}

/// A duration for scripts.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
