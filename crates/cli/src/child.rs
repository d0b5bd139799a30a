//! The command of `quorlock run`, seen from the keeper: the process that holds the lock.
//!
//! The keeper starts the command through a guardian ([`super::guardian`]) and from then on only
//! sends word: new deadlines, signals, the loss of the lock. It never waits for the guardian, and
//! the guardian never waits for it.
//!
//! A thread listens to the guardian, because the keeper's runtime may be busy and the one thing
//! that must not wait is the guardian's own death: when its end of the socket closes before it
//! has told the command's end, or when it is stopped past the last deadline, the thread kills the
//! command's group itself and sees to it that nothing is left. For that the keeper is a
//! sub-reaper, too: the orphans of a dead guardian become its children.

mod job;
mod signals;
mod spawn;
mod watch;

use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use nix::unistd::getpgrp;
use rustix::net::{Shutdown, shutdown};
use rustix::process::Signal;
use tokio::sync::mpsc;

pub(crate) use self::signals::Signals;
pub(crate) use self::spawn::SpawnError;
use self::spawn::{await_start, start_guardian};
use self::watch::Watch;
use super::guardian::clock::boot_ns;
pub(crate) use super::guardian::course::{Deadlines, KilledBy};
use super::guardian::wire::{Channel, Message};

/// A running command, guarded.
///
/// Dropping it before the last event makes the guardian end the command, SIGTERM at once and
/// SIGKILL at the last deadline, as if the keeper had died.
#[derive(Debug)]
pub(crate) struct Child {
    guardian: Channel,
    shared: Arc<Shared>,
    events: mpsc::UnboundedReceiver<ChildEvent>,
    last: Option<ChildEvent>,
}

/// What keeper and listening thread both know.
#[derive(Debug)]
struct Shared {
    kill_at_boot_ns: AtomicU64,
    /// The [`Child`] was dropped; the closing socket is its doing.
    abandoned: AtomicBool,
}

/// What happened to the command. All but the first two are final: nothing of the command's family
/// is left then (its process group, and those of its descendants that stayed in the session).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildEvent {
    /// It was stopped by this signal (Ctrl-Z), and the terminal is the keeper's again: call
    /// [`Child::suspend`].
    Stopped {
        /// Its number.
        signal: i32,
    },
    /// It goes on.
    Continued,
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
    /// The guardian ended it: a deadline passed or [`Child::terminate`] was called.
    Killed {
        /// What it took.
        by: KilledBy,
        /// When nothing of it was left.
        gone_at_boot_ns: u64,
    },
    /// The guardian was killed, or stopped past the deadline, and the keeper killed the command's
    /// group. Descendants in other groups may be left.
    Unguarded {
        /// When nothing of the group was left.
        gone_at_boot_ns: u64,
    },
}

impl Child {
    /// Starts `command` under a guardian and waits until it runs, which takes a few milliseconds.
    ///
    /// It gets this process's environment with the changes given, its standard streams and every
    /// other inherited descriptor. Call it in the main thread of a process that has no other
    /// children to lose: the process becomes a sub-reaper.
    ///
    /// # Errors
    /// See [`SpawnError`].
    pub(crate) fn spawn(
        command: &[OsString],
        env_set: &[(OsString, OsString)],
        env_remove: &[OsString],
        deadlines: Deadlines,
    ) -> Result<Self, SpawnError> {
        #[cfg(target_os = "linux")]
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(io::Error::from)?;
        let (ours, theirs) = UnixStream::pair()?;
        let mut guardian = start_guardian(command, env_set, env_remove, theirs)?;
        let mut listener = Channel::new(ours.try_clone()?);
        let channel = Channel::new(ours);
        let keeper_group = getpgrp().as_raw();
        let started = channel
            .send_with_stdin(Message::Start { keeper_group, deadlines })
            .map_err(SpawnError::from)
            .and_then(|()| await_start(&mut listener, command, deadlines));
        let group = match started {
            Ok(group) => group,
            Err(error) => {
                // It has said its last word or will never say one.
                let _ = guardian.kill();
                let _ = guardian.wait();
                return Err(error);
            }
        };
        let shared = Arc::new(Shared {
            kill_at_boot_ns: AtomicU64::new(deadlines.kill_at_boot_ns),
            abandoned: AtomicBool::new(false),
        });
        let (sender, events) = mpsc::unbounded_channel();
        let watch = Watch::new(listener, guardian, group, Arc::clone(&shared), sender);
        // If this fails the channel is dropped, and the guardian ends the command.
        thread::Builder::new().name("guardian".into()).spawn(move || watch.run())?;
        Ok(Self { guardian: channel, shared, events, last: None })
    }

    /// The lock was extended. Never blocks; a guardian that cannot be reached keeps to the old
    /// deadlines.
    pub(crate) fn set_deadlines(&self, deadlines: Deadlines) {
        self.shared.kill_at_boot_ns.store(deadlines.kill_at_boot_ns, Ordering::Relaxed);
        self.send(Message::Extend(deadlines));
    }

    /// Sends a signal to the command's group; a second SIGTERM becomes a SIGKILL. SIGCONT also
    /// hands the terminal back to a command that was stopped while it had it.
    pub(crate) fn signal(&self, signal: Signal) {
        self.send(Message::Signal(signal.as_raw()));
    }

    /// The lock is lost by proof: SIGTERM now, SIGKILL at the time given. Later deadlines no
    /// longer count.
    pub(crate) fn terminate(&self, kill_at_boot_ns: u64) {
        self.shared.kill_at_boot_ns.store(kill_at_boot_ns, Ordering::Relaxed);
        self.send(Message::Terminate { kill_at_boot_ns });
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

    /// The next thing that happens to the command. After a final event, that event again.
    ///
    /// # Cancel safety
    /// An event is lost only by being returned.
    pub(crate) async fn next_event(&mut self) -> ChildEvent {
        loop {
            match (self.events.recv().await, self.last) {
                (Some(event), _) | (None, Some(event)) => {
                    self.last = Some(event);
                    return event;
                }
                // The thread ends only after a final event, unless it panicked; then the caller
                // must not go on as if the command ran under a guardian's eye.
                (None, None) => {
                    self.last = Some(ChildEvent::Unguarded { gone_at_boot_ns: boot_ns() });
                }
            }
        }
    }

    fn send(&self, message: Message) {
        // A dead guardian is the listening thread's concern, a stopped one the deadline's.
        let _ = self.guardian.send(message);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.shared.abandoned.store(true, Ordering::Relaxed);
        // Both ends of both clones: the guardian sees the keeper's end, the thread sees its own.
        let _ = shutdown(&self.guardian, Shutdown::Both);
    }
}
