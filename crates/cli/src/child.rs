//! The command of `quorlock run`, seen from the keeper: the process that holds the lock.
//!
//! The keeper starts the command through a guardian ([`super::guardian`]) and from then on only
//! sends word: new deadlines, signals, the loss of the lock. It never waits for the guardian, and
//! the guardian never waits for it.
//!
//! A thread starts the guardian and listens to it, because the keeper's runtime may be busy and the
//! one thing that must not wait is the guardian's own death: when its end of the socket closes
//! before it has told the command's end, or when it is stopped past the last deadline, the thread
//! kills all of the command itself and sees to it that nothing is left. For that the keeper is a
//! sub-reaper, too: the orphans of a dead guardian become its children.
//!
//! Who was seen to be gone is told by a [`Gone`], and only then is the lock given back.

mod job;
mod signals;
mod spawn;
mod watch;

use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use nix::unistd::getpgrp;
use rustix::net::{Shutdown, shutdown};
use rustix::process::Signal;
use tokio::sync::mpsc;

pub(crate) use self::signals::Signals;
pub(crate) use self::spawn::SpawnError;
use self::watch::ChildWatch;
pub(crate) use self::watch::Gone;
use super::guardian::clock::Moment;
use super::guardian::kill_policy::KillPolicy;
pub(crate) use super::guardian::kill_policy::{Deadlines, Killed, KilledBy, Why};
use super::guardian::own_program;
use super::guardian::process_tree::Strangers;
use super::guardian::wire::{Channel, Message};

/// A command that is starting or runs, guarded.
///
/// Dropping it before the last event makes the guardian end the command, SIGTERM at once and
/// SIGKILL at the last deadline, as if the keeper had died.
#[derive(Debug)]
pub(crate) struct Child {
    guardian: Channel,
    shared: Arc<Shared>,
    events: mpsc::UnboundedReceiver<ChildEvent>,
}

/// Finds out whether a guardian could be started here. To be called before a lock is asked for.
///
/// # Errors
/// This program or the process table cannot be read, because /proc or a file descriptor is missing.
pub(crate) fn check_machine() -> io::Result<()> {
    own_program()?;
    Strangers::look().map(drop)
}

/// What keeper and listening thread both know.
#[derive(Debug)]
struct Shared {
    kill_policy: Mutex<KillPolicy>,
    /// To wake the thread when the course has changed.
    waker: UnixStream,
    /// The [`Child`] was dropped; the closing socket is its doing.
    abandoned: AtomicBool,
}

/// What happened to the command.
#[derive(Debug)]
pub(crate) enum ChildEvent {
    /// It runs.
    Started,
    /// It was stopped by this signal (Ctrl-Z), and the terminal is the keeper's again: call
    /// [`Child::suspend`].
    Stopped {
        /// Its number.
        signal: i32,
    },
    /// It goes on.
    Continued,
    /// The guardian cannot end it, and the keeper has tried for a while, without success so far:
    /// these processes do not die, or belong to another user.
    Stubborn {
        /// Their numbers.
        left: Vec<i32>,
    },
    /// Nothing of it is left: none of its process group, and none of its descendants that stayed in
    /// the session. The last event.
    Over {
        /// How that came.
        how: How,
        /// What gives the lock back.
        gone: Gone,
    },
    /// The thread that watches it has panicked, so nobody knows. The last event.
    OutOfSight,
}

/// How a command came to its end.
#[derive(Debug)]
pub(crate) enum How {
    /// It ended with this code.
    Exited {
        /// 0 to 255.
        code: i32,
    },
    /// It ended by this signal, which was not the guardian's.
    Signaled {
        /// Its number.
        signal: i32,
    },
    /// The guardian ended it, or the keeper in its place: a deadline passed or [`Child::terminate`] was
    /// called.
    Killed(Killed),
    /// The guardian was killed, or is stopped for good, and the keeper ended what was left.
    Unguarded,
    /// It was never started.
    NotStarted(SpawnError),
}

impl Child {
    /// Starts `command` under a guardian. Does not wait until it runs.
    ///
    /// It gets this process's environment with the changes given, its standard streams and every
    /// other inherited descriptor. This process becomes a sub-reaper.
    ///
    /// # Errors
    /// If this process has no descriptor or thread left. Nothing was started then, so the lock can be given back.
    pub(crate) fn spawn(
        command: &[OsString],
        env_set: &[(OsString, OsString)],
        env_remove: &[OsString],
        deadlines: Deadlines,
    ) -> Result<Self, (io::Error, Gone)> {
        Self::start_thread(command, env_set, env_remove, deadlines)
            .map_err(|error| (error, Gone::never_started()))
    }

    /// The thread starts the guardian. If this fails, there is no thread.
    fn start_thread(
        command: &[OsString],
        env_set: &[(OsString, OsString)],
        env_remove: &[OsString],
        deadlines: Deadlines,
    ) -> io::Result<Self> {
        // Caught, not ignored: with an ignored SIGCHLD the kernel buries children by itself, and nobody sees
        // that one has died.
        signal_hook::flag::register(signal_hook::consts::SIGCHLD, Arc::default())?;
        let strangers = Strangers::look()?;
        #[cfg(target_os = "linux")]
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(io::Error::from)?;
        let (ours, theirs) = UnixStream::pair()?;
        let listener = Channel::new(ours.try_clone()?);
        let guardian = Channel::new(ours);
        // The first word lies in the socket before anything else can be said.
        let keeper_group = getpgrp().as_raw();
        guardian.send_with_stdin(Message::Start { keeper_group, deadlines })?;
        let (waker, woken) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let kill_policy = Mutex::new(KillPolicy::new(deadlines));
        let shared = Arc::new(Shared { kill_policy, waker, abandoned: AtomicBool::new(false) });
        let (sender, events) = mpsc::unbounded_channel();
        let launch = spawn::Launch::new(command, env_set, env_remove, theirs)?;
        let watch = ChildWatch::new((listener, woken), strangers, Arc::clone(&shared), sender);
        thread::Builder::new().name("guardian".into()).spawn(move || watch.run(launch))?;
        Ok(Self { guardian, shared, events })
    }

    /// The lock is valid for longer now, or for a shorter time. Never blocks. Says whether the
    /// guardian will hear of it; one that is stopped may have no room for another word, and is to be
    /// told again.
    pub(crate) fn set_deadlines(&self, deadlines: Deadlines) -> bool {
        self.shared.change(|kill_policy| kill_policy.set(deadlines));
        self.send(Message::Deadlines(deadlines))
    }

    /// The lock is lost: SIGTERM now, SIGKILL at the time given, or earlier if it is due then. Later
    /// deadlines no longer count. Says the same as [`set_deadlines`](Self::set_deadlines).
    pub(crate) fn terminate(&self, kill: Moment) -> bool {
        self.shared.change(|kill_policy| kill_policy.terminate(kill));
        self.send(Message::Terminate { kill })
    }

    /// Sends a signal to the command's group; a second SIGTERM becomes a SIGKILL. SIGCONT also
    /// hands the terminal back to a command that was stopped while it had it.
    pub(crate) fn signal(&self, signal: Signal) {
        self.send(Message::Signal(signal.as_raw()));
    }

    /// Stops quorlock's own process group, as a shell expects when [`ChildEvent::Stopped`] says
    /// that `signal` stopped the command, and returns when it was continued. The SIGCONT that
    /// does so has to be passed on like every other ([`Child::signal`]).
    ///
    /// Where no shell could ever continue it, the command is treated the way the kernel treats
    /// an orphaned group: a Ctrl-Z is undone, touching the terminal is a hang-up, and an
    /// administrator's SIGSTOP is left to the administrator.
    pub(crate) fn suspend(&self, signal: i32) {
        if job::has_shell() {
            return job::stop();
        }
        let asked_for_terminal = [Signal::TTIN, Signal::TTOU].map(Signal::as_raw).contains(&signal);
        if asked_for_terminal {
            self.signal(Signal::HUP);
        }
        if signal != Signal::STOP.as_raw() {
            self.signal(Signal::CONT);
        }
    }

    /// The next thing that happens to the command. Not to be called after a last event.
    ///
    /// # Cancel safety
    /// An event is lost only by being returned.
    pub(crate) async fn next_event(&mut self) -> ChildEvent {
        self.events.recv().await.unwrap_or(ChildEvent::OutOfSight)
    }

    /// A dead guardian is the listening thread's concern, a stopped one the deadline's.
    fn send(&self, message: Message) -> bool {
        !matches!(self.guardian.send(message), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

impl Shared {
    fn change(&self, change: impl FnOnce(&mut KillPolicy)) {
        change(&mut self.kill_policy());
        // No room means that the thread is to be woken already.
        let _ = rustix::io::write(&self.waker, &[0]);
    }

    fn kill_policy(&self) -> std::sync::MutexGuard<'_, KillPolicy> {
        self.kill_policy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.shared.abandoned.store(true, Ordering::Relaxed);
        // Both ends of both clones: the guardian sees the keeper's end, the thread sees its own.
        let _ = shutdown(&self.guardian, Shutdown::Both);
    }
}
