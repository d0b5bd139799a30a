//! The keeper of `quorlock acquire --hold-by PID`: a process that extends the lock while process PID lives.
//!
//! `acquire` starts the keeper as `quorlock __keeper`, and writes a [`Job`] to its standard input: the words of the
//! command line and the lease. So no other user reads them with `ps`. The keeper answers on its standard output when it
//! can do its work, and then detaches itself from session, folder and all descriptors of the script. Its standard
//! input stays open until `acquire` has printed the lease. If `acquire` ends before that, the keeper releases the lock,
//! because no process has the lease.
//!
//! ```text
//!  script ──$( )── acquire ──pipes── keeper
//!    ╰────────── watched by pidfd ──────╯
//! ```
//!
//! The keeper has no socket and no file. It opens the script's standard error and the file of `--log` only to report a
//! loss. It extends by the lease, as `quorlock extend` does. `quorlock release` sends
//! SIGTERM to the keeper, which ends the keeper without a release, and then releases the lock itself.

mod report;
mod watched;

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{self, ChildStdin, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quorlock::{Client, Keeper, Lease, LeaseError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::runtime::Runtime;

use self::report::Report;
pub(super) use self::report::check_log;
pub(super) use self::watched::Watched;
use super::events::lock_event;
use super::lease::{cause, quoted};
use crate::args::{Command as Parsed, OnLost};
use crate::guardian::clock::{Alarm, Moment};
use crate::guardian::{own_program, procfs};
use crate::options;
use crate::output::{nanos, time};
use crate::settings::{self, Stop};

/// The first argument that makes this program a keeper.
pub(super) const KEEPER: &str = "__keeper";

/// The name for `ps` and `pkill`. `pkill -f quorlock` does not match it.
const NAME: &str = "lock-keeper";

/// The longest time for which `acquire` waits for the keeper's answer.
const START_MAX: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// A keeper that notices the loss of its lock later than this after the lock's end has stood still.
const LATE: Duration = Duration::from_millis(500);

/// The longest time for which the signal of a loss waits for the report of the loss.
const REPORT_MAX: Duration = Duration::from_millis(100);

/// The message from `acquire` to its keeper.
#[derive(Serialize, Deserialize)]
struct Job {
    /// The command line of `acquire`, which names the nodes.
    typed: Vec<OsString>,
    lease: String,
    pid: i32,
    started: u64,
    on_lost: Option<i32>,
}

/// The keeper's message to `acquire`: its start time, or the reason why it cannot do its work.
type Answer = Result<u64, String>;

/// Starts a keeper, and waits until the keeper can do its work. After an error no keeper is left. If the returned pipe
/// closes before a byte is written to it, the keeper releases the lock.
pub(super) fn start(
    lease: &Lease,
    watched: &Watched,
    on_lost: OnLost,
) -> Result<(Keeper, ChildStdin), String> {
    let job = Job {
        typed: std::env::args_os().collect(),
        lease: lease.to_string(),
        pid: watched.pid,
        started: watched.started,
        on_lost: on_lost.0.map(Signal::as_raw),
    };
    let mut child = spawn().map_err(|error| error.to_string())?;
    match ask(&mut child, &job) {
        Ok((started, input)) => Ok((Keeper { pid: child.id(), started }, input)),
        Err(why) => {
            // The keeper is a child and was not reaped, so its number belongs to no other process.
            let _ = child.kill();
            let _ = child.wait();
            Err(why.to_string())
        }
    }
}

fn spawn() -> io::Result<process::Child> {
    Command::new(own_program()?)
        .arg0(NAME)
        .arg(KEEPER)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
}

fn ask(child: &mut process::Child, job: &Job) -> Result<(u64, ChildStdin), Box<dyn Error>> {
    let (Some(mut input), Some(mut output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err("it has no pipes".into());
    };
    writeln!(input, "{}", serde_json::to_string(job)?)?;
    let mut answer = [PollFd::new(&output, PollFlags::IN)];
    if retry_on_intr(|| poll(&mut answer, Some(&START_MAX)))? == 0 {
        return Err("it does not answer".into());
    }
    let mut text = String::new();
    output.read_to_string(&mut text)?;
    let answer: Answer = serde_json::from_str(&text).map_err(|_| "it was killed")?;
    Ok((answer?, input))
}

/// How long another process waits for the end of a keeper.
const END_WITHIN: Duration = Duration::from_millis(250);

/// Ends the keeper of a lease, if the lease has one that still runs. Waits at most [`END_WITHIN`] for the keeper's end.
pub(super) fn end(lease: &Lease) {
    let keeper = lease.keeper().and_then(|keeper| {
        let pid = i32::try_from(keeper.pid).ok()?;
        let found = Watched::open(pid).ok().flatten()?;
        // A forged lease must not end another process than a keeper.
        (found.started == keeper.started && is_keeper(pid)).then_some(found)
    });
    if let Some(keeper) = keeper {
        keeper.signal(Signal::TERM);
        keeper.await_end(END_WITHIN);
    }
}

fn is_keeper(pid: i32) -> bool {
    let name = std::fs::read(format!("/proc/{pid}/comm"));
    name.is_ok_and(|name| name.trim_ascii_end() == NAME.as_bytes())
}

pub(super) fn main() -> process::ExitCode {
    match leave_the_script().map_err(Into::into).and_then(|()| Watch::new()) {
        Ok((watch, started)) => {
            answer(&Ok(started));
            if detach().is_ok() {
                watch.keep();
            }
            process::ExitCode::SUCCESS
        }
        Err(why) => {
            answer(&Err(why.to_string()));
            process::ExitCode::FAILURE
        }
    }
}

fn answer(answer: &Answer) {
    let mut out = io::stdout();
    // The write fails if `acquire` was killed. `keep` notices that by standard input, which is then closed as well.
    let _ = serde_json::to_writer(&mut out, answer).map(|()| out.flush());
}

/// Leaves the session of the script, and closes all descriptors that the script has left open. The standard streams are
/// pipes to `acquire`.
fn leave_the_script() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::thread::set_name(c"lock-keeper")?;
    let open: Vec<i32> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for descriptor in open.into_iter().filter(|it| *it > 2) {
        // This fails for the descriptor of the folder /proc/self/fd, which is closed already.
        let _ = nix::unistd::close(descriptor);
    }
    rustix::process::setsid()?;
    // `quorlock release` ends the keeper by SIGTERM, which the keeper would ignore if the script ignores it.
    signal_hook::flag::register_conditional_shutdown(
        Signal::TERM.as_raw(),
        0,
        Arc::new(AtomicBool::new(true)),
    )?;
    Ok(())
}

/// Closes the pipes to `acquire`, except for standard input, and makes reads from standard input non-blocking.
fn detach() -> io::Result<()> {
    let null = std::fs::File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(rustix::io::ioctl_fionbio(rustix::stdio::stdin(), true)?)
}

/// Whether `acquire` has printed the lease; `None` until it has printed the lease or ended.
fn is_printed() -> Option<bool> {
    match rustix::io::read(rustix::stdio::stdin(), &mut [0]) {
        Err(Errno::AGAIN | Errno::INTR) => None,
        read => Some(read == Ok(1)),
    }
}

/// A lock that is extended while a process lives.
struct Watch {
    client: Client,
    runtime: Runtime,
    lease: Lease,
    process: Watched,
    on_lost: Option<Signal>,
    report: Report,
    /// Why the last extension was not confirmed, as cause and message; `None` if it was, or if none was tried.
    failure: Option<(&'static str, String)>,
    /// Warnings of the client about files that it cannot use.
    warnings: Arc<Mutex<Vec<String>>>,
}

impl Watch {
    /// Reads the job. Also returns this process's start time.
    fn new() -> Result<(Self, u64), Box<dyn Error>> {
        let mut job = String::new();
        io::stdin().read_line(&mut job)?;
        let job: Job = serde_json::from_str(&job)
            .map_err(|_| "only `quorlock acquire` starts this program")?;
        let lease = job.lease.parse::<Lease>()?;
        let process = Watched::open(job.pid)?;
        let process = process.filter(|process| process.started == job.started);
        let process = process.ok_or_else(|| format!("process {} has ended", job.pid))?;
        let cli = settings::parse(&job.typed).map_err(|stop| match stop {
            Stop::Clap(error) => error.to_string(),
            Stop::Refused(refused, _) => refused.message,
        })?;
        let Parsed::Acquire(args) = cli.command else {
            return Err("the command line is not that of acquire".into());
        };
        let builder = options::builder(&args.nodes).map_err(|refused| refused.message)?;
        let warnings = Arc::new(Mutex::new(Vec::new()));
        let builder = builder.on_warning({
            let warnings = Arc::clone(&warnings);
            move |warning| {
                warnings.lock().unwrap_or_else(PoisonError::into_inner).push(warning.to_owned());
            }
        });
        let client = options::build(builder, &args.nodes).map_err(|refused| refused.message)?;
        client.accepts(&lease)?;
        let runtime = super::runtime()?;
        let report = Report::new(args.log.as_deref(), cli.output.json)?;
        // The paths of the files that the client reads again are absolute, so this folder may be unmounted.
        rustix::process::chdir("/")?;
        let me = procfs::process(process::id().cast_signed());
        let me = me.ok_or("/proc does not show this process")?;
        let on_lost = job.on_lost.and_then(Signal::from_named_raw);
        let failure = None;
        let watch = Self { client, runtime, lease, process, on_lost, report, failure, warnings };
        Ok((watch, me.started))
    }

    /// Extends the lock until the process ends, `acquire` fails to print the lease, or the lock is lost.
    fn keep(mut self) {
        let alarm = Alarm::new();
        let ttl = self.lease.ttl();
        let notice = self.notice();
        let mut end = self.end();
        let mut next = end.before(nanos(ttl * 2 / 3));
        let mut printed = None;
        loop {
            let is_over = |now: Moment| end.before(nanos(notice)).has_come(now);
            let sources = [self.process.descriptor(), rustix::stdio::stdin()];
            // Standard input is polled only until its byte or end is read: a closed pipe would end each poll at once.
            let count = if printed.is_none() { 2 } else { 1 };
            alarm.wait(next.min(end.before(nanos(notice))), &sources[..count]);
            let now = Moment::now();
            printed = printed.or_else(is_printed);
            if self.process.has_ended() || printed == Some(false) {
                return self.release();
            }
            if is_over(now) {
                return self.lose(end);
            }
            if !next.has_come(now) {
                continue;
            }
            let rest = Duration::from_nanos(now.distance(end.before(nanos(notice))));
            let call =
                async { tokio::time::timeout(rest, self.client.extend_lease(&self.lease)).await };
            let extended = self.runtime.block_on(call);
            self.warn();
            match extended {
                Ok(Ok(lease)) => {
                    self.lease = lease;
                    self.failure = None;
                    end = self.end();
                    next = end.before(nanos(ttl * 2 / 3));
                }
                // The time for the signal has come.
                Err(_) => {
                    let names = quoted(&self.lease);
                    self.failure.get_or_insert_with(|| {
                        (
                            "expired",
                            format!("lock {names} is not confirmed: too few nodes answer in time"),
                        )
                    });
                }
                Ok(Err(error)) => {
                    let is_lost =
                        matches!(error, LeaseError::Over { .. } | LeaseError::Lost { .. });
                    self.failure = Some((cause(&error), error.to_string()));
                    if is_lost {
                        return self.lose(end);
                    }
                    next = Moment::now().after(nanos(ttl / 10));
                }
            }
        }
    }

    fn warn(&self) {
        let warnings =
            std::mem::take(&mut *self.warnings.lock().unwrap_or_else(PoisonError::into_inner));
        for warning in warnings {
            let event = lock_event("warning", self.lease.resources());
            // Threads write the message, and nothing waits for them.
            let _ = self.report.say(event, &warning, &self.process);
        }
    }

    /// The end of the lock if nothing extends it.
    fn end(&self) -> Moment {
        // The clocks are read before the remaining time, so the end is not too late.
        let now = Moment::now();
        now.after(nanos(self.lease.remaining()))
    }

    /// Reports the loss to the process. The lock that some nodes still have is not released, but ends by its ttl: the
    /// signal may end a shell at once, while the command that the shell was running goes on.
    fn lose(self, end: Moment) {
        let now = Moment::now();
        let late = Duration::from_nanos(if end.has_come(now) { now.distance(end) } else { 0 });
        let (cause, why) = match self.failure {
            // A keeper that runs tries to extend the lock long before this, and ends each try in time.
            Some((cause, why)) if late < LATE => (cause, why),
            _ => {
                let names = quoted(&self.lease);
                let late = match late.is_zero() {
                    true => "too long to extend it".to_owned(),
                    false => format!("until {} after the end of the lock", time(late)),
                };
                let why = format!(
                    "lock {names} is lost: its keeper stood still {late}, because it was stopped or the machine was \
                     suspended or overloaded; another client may have held the lock since"
                );
                ("stopped", why)
            }
        };
        let signal = self.on_lost.map(|signal| {
            let named = nix::sys::signal::Signal::try_from(signal.as_raw());
            named.map_or_else(|_| signal.as_raw().to_string(), |named| named.to_string())
        });
        let (pid, sent) = (self.process.pid, signal.as_deref().unwrap_or("no signal"));
        let mut event = lock_event("lost", self.lease.resources());
        event["cause"] = json!(cause);
        event["pid"] = json!(pid);
        event["signal"] = json!(signal);
        let message = format!("{why}; process {pid} gets {sent}");
        // The signal may end the script and close its terminal, so the report comes first.
        let report = self.report.say(event, &message, &self.process);
        report.wait(REPORT_MAX);
        if let Some(signal) = self.on_lost {
            self.process.signal(signal);
        }
        report.wait(10 * REPORT_MAX);
    }

    /// The signal of --on-lost comes early, so that the script can end while it still holds the lock.
    fn notice(&self) -> Duration {
        self.on_lost.map_or(Duration::ZERO, |_| self.lease.ttl() / 5)
    }

    fn release(self) {
        let Self { client, runtime, lease, .. } = self;
        let rest = lease.remaining();
        let _ = runtime.block_on(client.release_lease(&lease));
        // The client sends the release again to a node that did not answer, as long as the node can have the lock.
        let _ = runtime.block_on(client.shutdown(rest));
    }
}
