//! The command of `quorlock run`, as the keeper sees it. The keeper is the process that holds the lock.
//!
//! The keeper starts the command through a guardian ([`super::guardian`]). From then on it only sends messages: new
//! deadlines, signals, the loss of the lock. Neither process waits for the other.
//!
//! A thread starts the guardian and reads its messages, because the keeper's runtime may be busy, and the death of the
//! guardian must be handled at once. If the guardian's end of the socket closes before the guardian has reported the
//! end of the command, or if the guardian is stopped past the last deadline, the thread kills the whole command itself.
//! For that the keeper is also a sub-reaper: the orphans of a dead guardian become its children.
//!
//! A [`Gone`] proves that no process of the command is left. The keeper releases the lock only with this proof.

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

pub(crate) use self::signals::{Signals, ends_a_wait};
pub(crate) use self::spawn::SpawnError;
use self::watch::ChildWatch;
pub(crate) use self::watch::Gone;
use super::guardian::clock::Moment;
use super::guardian::kill_policy::KillPolicy;
pub(crate) use super::guardian::kill_policy::{Deadlines, Killed, KilledBy, Why};
use super::guardian::own_program;
use super::guardian::process_tree::Strangers;
use super::guardian::wire::{Channel, Message};

/// A command that a guardian starts and watches.
///
/// If it is dropped before the last event, the guardian ends the command as if the keeper had died: SIGTERM at once,
/// and SIGKILL at the last deadline.
#[derive(Debug)]
pub(crate) struct Child {
    guardian: Channel,
    shared: Arc<WatchState>,
    events: mpsc::UnboundedReceiver<ChildEvent>,
}

/// Checks whether this machine can start a guardian. Call this before acquiring the lock.
///
/// # Errors
/// This program or the process table cannot be read, because /proc or a file descriptor is missing.
pub(crate) fn check_machine() -> io::Result<()> {
    own_program()?;
    Strangers::look().map(drop)
}

/// State that the keeper shares with the thread that reads the guardian's messages.
#[derive(Debug)]
struct WatchState {
    kill_policy: Mutex<KillPolicy>,
    /// Wakes the thread after a change of `kill_policy`.
    waker: UnixStream,
    /// The [`Child`] was dropped, and closed the socket.
    abandoned: AtomicBool,
}

#[derive(Debug)]
pub(crate) enum ChildEvent {
    Started,
    /// This signal stopped the command (as Ctrl-Z does), and quorlock has the terminal again: call [`Child::suspend`].
    Stopped {
        signal: i32,
    },
    Continued,
    /// Neither the guardian nor the keeper could kill these processes for a while: they do not die, or belong to
    /// another user.
    Stubborn {
        left: Vec<i32>,
    },
    /// All processes of the command have ended: its group, and its descendants in the same session. The last event.
    Over {
        how: How,
        gone: Gone,
    },
    /// The thread that watches the command has panicked, so its state is not known. The last event.
    OutOfSight,
}

/// The end of a command.
#[derive(Debug)]
pub(crate) enum How {
    Exited {
        code: i32,
    },
    /// A signal ended the command. The signal was not sent to protect the lock.
    Signaled {
        signal: i32,
    },
    /// The guardian, or the keeper in its place, ended the command: a deadline passed or [`Child::terminate`] was
    /// called.
    Killed(Killed),
    /// The guardian was killed or is stopped for good, and the keeper ended the remaining processes.
    Unguarded,
    NotStarted(SpawnError),
}

impl Child {
    /// Starts `command` under a guardian. Does not wait until the command runs.
    ///
    /// The command inherits this process's environment with the changes `env_set` and `env_remove`, its standard
    /// streams and its other descriptors. This process becomes a sub-reaper.
    ///
    /// # Errors
    /// This process has no descriptor or thread left. No process was started, so the lock can be released.
    pub(crate) fn spawn(
        command: &[OsString],
        env_set: &[(OsString, OsString)],
        env_remove: &[OsString],
        deadlines: Deadlines,
    ) -> Result<Self, (io::Error, Gone)> {
        let launch = |theirs| spawn::GuardianLaunch::new(command, env_set, env_remove, theirs);
        Self::start_thread(launch, deadlines).map_err(|error| (error, Gone::never_started()))
    }

    /// Starts the thread that starts the guardian. After an error no thread exists.
    fn start_thread(
        launch: impl FnOnce(UnixStream) -> io::Result<spawn::GuardianLaunch>,
        deadlines: Deadlines,
    ) -> io::Result<Self> {
        // SIGCHLD is caught and not ignored. If it were ignored, the kernel would reap children by itself, and their
        // death would not be noticed.
        signal_hook::flag::register(signal_hook::consts::SIGCHLD, Arc::default())?;
        let strangers = Strangers::look()?;
        #[cfg(target_os = "linux")]
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(io::Error::from)?;
        let (ours, theirs) = UnixStream::pair()?;
        let listener = Channel::new(ours.try_clone()?);
        let guardian = Channel::new(ours);
        // The guardian gets the user's standard input with its first message, so this message precedes all others.
        let keeper_group = getpgrp().as_raw();
        guardian.send_with_stdin(Message::Start { keeper_group, deadlines })?;
        let (waker, woken) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let kill_policy = Mutex::new(KillPolicy::new(deadlines));
        let shared = Arc::new(WatchState { kill_policy, waker, abandoned: AtomicBool::new(false) });
        let (sender, events) = mpsc::unbounded_channel();
        let launch = launch(theirs)?;
        let watch = ChildWatch::new((listener, woken), strangers, Arc::clone(&shared), sender);
        thread::Builder::new().name("guardian".into()).spawn(move || watch.run(launch))?;
        Ok(Self { guardian, shared, events })
    }

    /// Sends the deadlines after the validity has grown or shrunk. Never blocks. Returns false if the socket is full,
    /// because the guardian is stopped and does not read; then call again.
    pub(crate) fn set_deadlines(&self, deadlines: Deadlines) -> bool {
        self.shared.change(|kill_policy| kill_policy.set(deadlines));
        self.send(Message::Deadlines(deadlines))
    }

    /// The lock is lost: SIGTERM is due now, SIGKILL at `kill` or at the last deadline, whichever is earlier. Later
    /// deadlines no longer count. Returns the same as [`set_deadlines`](Self::set_deadlines).
    pub(crate) fn terminate(&self, kill: Moment) -> bool {
        self.shared.change(|kill_policy| kill_policy.terminate(kill));
        self.send(Message::Terminate { kill })
    }

    /// Sends a signal to the command's group. A second SIGTERM becomes a SIGKILL. SIGCONT also gives the terminal back
    /// to a command that had it when it was stopped.
    pub(crate) fn signal(&self, signal: Signal) {
        self.send(Message::Signal(signal.as_raw()));
    }

    /// Stops quorlock's own process group, as a shell expects after [`ChildEvent::Stopped`] with this `signal`. Returns
    /// when a SIGCONT continues the group. The caller passes this SIGCONT on to the command ([`Child::signal`]).
    ///
    /// If no shell can continue the group, the command is treated like an orphaned group: it gets SIGCONT after a
    /// Ctrl-Z, SIGHUP and SIGCONT after a use of the terminal, and stays stopped after a SIGSTOP.
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

    /// Waits for the next change of the command. Do not call this after `Over` or `OutOfSight`.
    ///
    /// # Cancel safety
    /// No event is lost.
    pub(crate) async fn next_event(&mut self) -> ChildEvent {
        self.events.recv().await.unwrap_or(ChildEvent::OutOfSight)
    }

    /// Returns false if the socket is full. A dead guardian counts as true: the watching thread then ends the command.
    fn send(&self, message: Message) -> bool {
        !matches!(self.guardian.send(message), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

impl WatchState {
    fn change(&self, change: impl FnOnce(&mut KillPolicy)) {
        change(&mut self.kill_policy());
        // If the socket is full, a wake-up is already pending.
        let _ = rustix::io::write(&self.waker, &[0]);
    }

    fn kill_policy(&self) -> std::sync::MutexGuard<'_, KillPolicy> {
        self.kill_policy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.shared.abandoned.store(true, Ordering::Relaxed);
        // The thread has a clone of this socket. The shutdown ends the stream for the guardian and for the thread.
        let _ = shutdown(&self.guardian, Shutdown::Both);
    }
}
