//! Messages of quorlock itself: one line for people or one JSON object, on standard error and, if requested, on a file
//! descriptor for scripts.
//!
//! No function here waits for a reader: see [`sink`].

mod escape;
mod sink;

#[cfg(target_os = "linux")]
use std::ffi::OsString;
use std::fs;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
#[cfg(target_os = "linux")]
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use quorlock::Lease;
#[cfg(target_os = "linux")]
use rustix::fs::fcntl_setfl;
use rustix::fs::{OFlags, fcntl_getfl, fstat, stat};
#[cfg(target_os = "linux")]
use rustix::io::Errno;
use serde_json::{Value, json};

pub(crate) use self::escape::{json_line, one_line, plain};
use self::sink::Sink;
use crate::args::OutputArgs;
use crate::guardian::clock::real_ns;
use crate::options::Refused;
use crate::terminal_size::{TerminalSize, cut};

#[derive(Debug)]
pub(crate) struct Output {
    args: OutputArgs,
    stderr: Arc<Sink>,
    /// The sink of the descriptor for scripts; `None` without such a descriptor. If the descriptor is standard error,
    /// this is the same sink as `stderr`, so one queue keeps messages and events in order.
    status: Option<Arc<Sink>>,
    /// The terminal shows a line of `progress`, which the next output replaces.
    transient: bool,
    terminal: bool,
}

/// Opens the file of a descriptor again through `/dev/fd`, which needs no unsafe code. The new descriptor has its own
/// file position, so writes must append. If the file is a pipe that no process reads any more, output is dropped.
#[cfg(target_os = "linux")]
fn open_anew(fd: u32) -> io::Result<File> {
    let open = |path: &str| {
        let mut options = OpenOptions::new();
        options.append(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)
    };
    let path = format!("/dev/fd/{fd}");
    let is_pipe = || fs::metadata(&path).is_ok_and(|it| it.file_type().is_fifo());
    let file = match open(&path) {
        // A pipe without a reader gives this error. So does a socket, but no socket can be opened in this way.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) && is_pipe() => {
            open("/dev/null")?
        }
        opened => opened?,
    };
    let flags = fcntl_getfl(&file)?;
    fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
    Ok(file)
}

/// As on Linux, but the file's flags stay as they are, because here the new descriptor may share them with the old one.
#[cfg(not(target_os = "linux"))]
fn open_anew(fd: u32) -> io::Result<File> {
    OpenOptions::new().append(true).open(format!("/dev/fd/{fd}"))
}

impl Output {
    /// Opens standard error and, if given, `status_fd`.
    ///
    /// # Errors
    /// The descriptor is not open for writing, or no thread can be started.
    pub(crate) fn new(args: OutputArgs, status_fd: Option<u32>) -> io::Result<Self> {
        let dropped = if args.json { dropped_event } else { dropped_lines };
        let stderr = Arc::new(Sink::new(io::stderr(), dropped)?);
        let status = match status_fd {
            None => None,
            Some(1) => Some(Arc::new(Sink::new(io::stdout(), dropped_event)?)),
            Some(2) => Some(Arc::clone(&stderr)),
            Some(fd) => Some(Arc::new(Sink::new(open_anew(fd)?, dropped_event)?)),
        };
        Ok(Self { args, stderr, status, transient: false, terminal: io::stderr().is_terminal() })
    }

    /// Writes an event, and the line for people if there is one.
    pub(crate) fn event(&mut self, event: Value, line: Option<&str>) {
        self.status(&event);
        self.clear();
        if !self.args.quiet {
            self.write(&event, line);
        }
    }

    /// Writes the reason for a failure, even with --quiet.
    pub(crate) fn error(&mut self, event: Value, line: &str) {
        self.status(&event);
        self.clear();
        self.write(&event, Some(line));
    }

    /// A function that writes a warning. Any thread may call it, at any time; after the end of `self` it does nothing.
    pub(crate) fn warner(&self) -> impl Fn(&str) + Send + Sync + 'static {
        let OutputArgs { json, quiet } = self.args;
        let (stderr, status) =
            (Arc::downgrade(&self.stderr), self.status.as_ref().map(Arc::downgrade));
        // A line of `progress` ends here; the next one replaces nothing.
        let start = if self.terminal && !json { "\r\x1b[K" } else { "" };
        move |warning| {
            let event = json!({ "event": "warning", "message": warning });
            if let Some(sink) = status.as_ref().and_then(Weak::upgrade) {
                sink.line(json_line(&event));
            }
            let line = match json {
                true => json_line(&event),
                false => plain(&format!("quorlock: {warning}\n")),
            };
            if let Some(sink) = stderr.upgrade()
                && !quiet
            {
                sink.line(format!("{start}{line}"));
            }
        }
    }

    fn write(&self, event: &Value, line: Option<&str>) {
        if self.args.json {
            self.stderr.line(without_leases(&json_line(event)));
        } else if let Some(line) = line {
            self.stderr.line(plain(&without_leases(&format!("quorlock: {line}\n"))));
        }
    }

    /// Writes a line that the next one replaces. Where lines cannot be replaced, writes a lasting line if `is_due`.
    /// `line` makes the line with at most the given number of characters.
    pub(crate) fn progress(
        &mut self,
        event: Value,
        line: impl FnOnce(usize) -> String,
        is_due: bool,
    ) {
        if !self.terminal || self.args.json || self.args.quiet {
            if is_due {
                self.event(event, Some(&line(usize::MAX)));
            }
            return;
        }
        if is_due {
            self.status(&event);
        }
        // On Ctrl-C the terminal writes `^C` after the line. The line leaves room for `^C`, so that no text wraps.
        let room = TerminalSize::of(io::stderr()).line().saturating_sub("quorlock: ^C".len());
        let line = format!("quorlock: {}", cut(&plain(&line(room)), room));
        self.stderr.transient(format!("\r\x1b[K{line}"));
        self.transient = true;
    }

    /// Removes the line that the next call of `progress` would replace.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.transient) {
            self.stderr.transient("\r\x1b[K".to_owned());
        }
    }

    fn status(&self, event: &Value) {
        if let Some(sink) = &self.status {
            sink.line(without_leases(&json_line(event)));
        }
    }
}

fn dropped_event(count: u64) -> String {
    json_line(json!({ "event": "dropped", "count": count }))
}

fn dropped_lines(count: u64) -> String {
    format!("quorlock: {count} messages are missing here: nobody read for a while\n")
}

/// Whether standard output was closed when this process started. The runtime of Rust then opens `/dev/null` for reading
/// and writing in its place. A shell opens `> /dev/null` for writing only.
pub(crate) fn is_stdout_closed() -> bool {
    let stdout = rustix::stdio::stdout();
    let (found, null) = (fstat(stdout), stat("/dev/null"));
    let is_null = found.is_ok_and(|found| null.is_ok_and(|null| found.st_rdev == null.st_rdev));
    is_null && fcntl_getfl(stdout).is_ok_and(|flags| flags.contains(OFlags::RDWR))
}

/// Writes the text to standard output as it is.
pub(crate) fn write(text: impl AsRef<[u8]>) -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(text.as_ref()).and_then(|()| out.flush())
}

/// Writes the result to standard output, without what a terminal would obey. It is no error if the reader has closed
/// the pipe.
///
/// # Errors
/// Standard output cannot be written for another reason, such as a full disk.
pub(crate) fn print(text: &str) -> Result<(), Refused> {
    print_as_is(plain(text))
}

/// As [`print`], but a terminal obeys what is in the text.
pub(crate) fn print_as_is(text: impl AsRef<[u8]>) -> Result<(), Refused> {
    match write(text) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Refused::internal(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

fn without_leases(text: &str) -> String {
    let mut parts = text.split(Lease::START);
    let mut shown = parts.next().unwrap_or_default().to_owned();
    let is_of_lease = |c: char| c.is_ascii_alphanumeric() || "=,%._:@/-".contains(c);
    for part in parts {
        let rest = part.trim_start_matches(is_of_lease);
        let mark = if rest.len() < part.len() { "…" } else { "" };
        shown.extend([Lease::START, mark, rest]);
    }
    shown
}

/// Prints an error of clap, or the help.
pub(crate) fn clap(error: &clap::Error) {
    let text = error.render().to_string();
    let safe = plain(&without_leases(&text));
    // Without foreign control characters and leases, the text may have its colors. Without its colors the text also
    // lacks control sequences of arguments. A closed standard error cannot be reported anywhere.
    let is_plain = |arg: OsString| matches!(arg.to_str(), Some(arg) if plain(arg) == arg);
    let _ = match safe == text && std::env::args_os().all(is_plain) {
        true => error.print(),
        false => io::stderr().write_all(safe.as_bytes()),
    };
}

/// Writes an event that has only a message.
pub(crate) fn say(json: bool, event: &str, message: &str) {
    let message = without_leases(message);
    // A closed standard error cannot be reported anywhere.
    let _ = if json {
        write!(io::stderr(), "{}", json_line(json!({ "event": event, "message": message })))
    } else {
        writeln!(io::stderr(), "quorlock: {}", plain(&message))
    };
}

/// A duration for people: one decimal, in the unit that fits.
pub(crate) fn time(duration: Duration) -> String {
    if duration >= Duration::from_secs(3600) {
        humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string()
    } else if duration >= Duration::from_secs(1) {
        format!("{:.1}s", duration.as_secs_f64())
    } else {
        format!("{}ms", duration.as_millis())
    }
}

/// A time and its distance from now, such as `12:03:11Z (4m 10s)`. A time of another day has its date.
pub(crate) fn since(then: SystemTime) -> String {
    let now = SystemTime::UNIX_EPOCH + Duration::from_nanos(real_ns());
    let [text, today] = [then, now].map(|it| humantime::format_rfc3339_seconds(it).to_string());
    let text = match text.split_once('T') {
        Some((date, time)) if today.starts_with(date) => time.to_owned(),
        _ => text,
    };
    // If the time is in the future, because another machine wrote it, the text does not say how long ago it was.
    let Ok(held) = now.duration_since(then) else { return text };
    let held = humantime::format_duration(Duration::from_secs(held.as_secs()));
    format!("{text} ({held})")
}

pub(crate) fn unix_millis(then: SystemTime) -> u64 {
    then.duration_since(SystemTime::UNIX_EPOCH).map_or(0, millis)
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Formats rows as lines of columns. The columns in `right` are aligned to the right.
pub(crate) fn columns<const N: usize>(
    head: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
    right: &[usize],
) -> Vec<String> {
    let rows: Vec<[String; N]> = std::iter::once(head.map(str::to_owned)).chain(rows).collect();
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
            if right.contains(&column) {
                format!("{cell:>width$}")
            } else {
                format!("{cell:width$}")
            }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}
