//! A process that is not mistaken for a later one with the same number.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, Signal, test_kill_process};
#[cfg(target_os = "linux")]
use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};

use crate::args::{NodeArgs, OnLost};
#[cfg(target_os = "linux")]
use crate::guardian::procfs;
use crate::options::Refused;

/// A descriptor of a process, and its number and start time, by which other processes identify it.
pub(crate) struct Watched {
    descriptor: OwnedFd,
    pub(super) pid: i32,
    pub(super) started: u64,
}

impl Watched {
    /// Finds the process of `--hold-by`. If the lock is lost, it gets the signal of `--on-lost`.
    pub(crate) fn find(pid: i32, on_lost: OnLost, nodes: &NodeArgs) -> Result<Self, Refused> {
        let refuse = |message| Err(Refused::about(&["hold-by"], message, nodes));
        let may_signal = || Pid::from_raw(pid).map(test_kill_process) != Some(Err(Errno::PERM));
        match Self::open(pid) {
            Ok(Some(_)) if on_lost.0.is_some() && !may_signal() => refuse(format!(
                "process {pid} belongs to another user, so the keeper cannot signal the loss of the lock; \
                 --on-lost none sends no signal"
            )),
            Ok(Some(found)) => Ok(found),
            Ok(None) => refuse(format!("there is no process {pid}")),
            Err(error) => {
                Err(Refused::internal(format!("--hold-by: cannot watch process {pid}: {error}")))
            }
        }
    }

    /// `None`: no such process lives.
    #[cfg(target_os = "linux")]
    pub(super) fn open(pid: i32) -> io::Result<Option<Self>> {
        let Some(number) = Pid::from_raw(pid) else { return Ok(None) };
        let descriptor = match pidfd_open(number, PidfdFlags::empty()) {
            Ok(descriptor) => descriptor,
            Err(Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let found = procfs::process(pid).filter(|found| found.alive);
        let Some(found) = found else { return Ok(None) };
        let opened = Self { descriptor, pid, started: found.started };
        // If the process still lives, its number was not reused before the process table was read.
        Ok(Some(opened).filter(|opened| !opened.has_ended()))
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn open(_: i32) -> io::Result<Option<Self>> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this needs Linux"))
    }

    /// Readable when the process has ended.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.await_end(Duration::ZERO)
    }

    /// Waits for the end of the process for at most this time. Returns whether it has ended.
    pub(super) fn await_end(&self, patience: Duration) -> bool {
        let timeout = Timespec::try_from(patience).ok();
        let mut descriptors = [PollFd::new(&self.descriptor, PollFlags::IN)];
        retry_on_intr(|| poll(&mut descriptors, timeout.as_ref())).is_ok_and(|ready| ready > 0)
    }

    /// Signals the process. A process that has ended, or belongs to another user, gets no signal.
    pub(super) fn signal(&self, signal: Signal) {
        #[cfg(target_os = "linux")]
        let _ = pidfd_send_signal(&self.descriptor, signal);
        #[cfg(not(target_os = "linux"))]
        let _ = signal;
    }
}
