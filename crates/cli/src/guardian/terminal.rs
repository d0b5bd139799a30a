//! The terminal, which the command has while it runs and quorlock has again afterwards.
//!
//! All of it happens in the guardian. It has SIGTTOU blocked, so it may set the foreground group
//! although it is never in it, and it is still there when the keeper is stopped or dead.
//!
//! A command whose input is the terminal gets it before it starts, as from a shell. But
//! in `quorlock run … | less` the terminal belongs to less; there, and when only /dev/tty is
//! used (a password prompt), the command gets it when it asks: the kernel stops a background
//! process that touches the terminal, and a stop for that reason is answered by handing it over,
//! if it was quorlock's to give.

use std::io::IsTerminal;
use std::os::fd::OwnedFd;

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process_group};
use rustix::stdio;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

use super::signals;

/// The terminal of this session, if it has one.
pub(crate) fn controlling() -> Option<OwnedFd> {
    // A serial line without a carrier would block an ordinary open.
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    open("/dev/tty", flags, Mode::empty()).ok()
}

/// The controlling terminal and the two groups that share it.
#[derive(Debug)]
pub(crate) struct Terminal {
    device: OwnedFd,
    keeper: Pid,
    command: Pid,
    modes: Option<Termios>,
    given: bool,
}

impl Terminal {
    /// The terminal of this session, if it has one.
    pub(crate) fn open(keeper: Pid, command: Pid) -> Option<Self> {
        let device = controlling()?;
        Some(Self { device, keeper, command, modes: None, given: false })
    }

    /// Gives it to a command that is about to start, if that one will want it.
    pub(crate) fn give_at_start(&mut self) {
        let piped = fstat(stdio::stdout()).is_ok_and(|out| {
            matches!(FileType::from_raw_mode(out.st_mode), FileType::Fifo | FileType::Socket)
        });
        if std::io::stdin().is_terminal() && !piped {
            self.give();
        }
    }

    /// Makes the command's group the foreground group if quorlock's own is, and says whether it
    /// did.
    pub(crate) fn give(&mut self) -> bool {
        if tcgetpgrp(&self.device) != Ok(self.keeper) {
            return false;
        }
        if self.modes.is_none() {
            self.modes = tcgetattr(&self.device).ok();
        }
        let given = tcsetpgrp(&self.device, self.command).is_ok();
        self.given |= given;
        given
    }

    /// Makes quorlock's own group the foreground group again, unless a shell has taken the
    /// terminal for another one meanwhile. Says whether the command had it.
    pub(crate) fn take_back(&mut self) -> bool {
        let Ok(foreground) = tcgetpgrp(&self.device) else {
            return false;
        };
        // A shell that was the command may have left it to a job that is dead by now.
        let deserted = || test_kill_process_group(foreground) == Err(Errno::SRCH);
        let had = self.given && (foreground == self.command || deserted());
        had && tcsetpgrp(&self.device, self.keeper).is_ok()
    }

    /// Takes it back in the keeper, after the guardian's death. Call it in a thread that ends
    /// soon: the signals stay blocked there.
    pub(crate) fn reclaim(keeper: Pid, command: Pid) {
        if let (Ok(_), Some(terminal)) = (signals::block(), Self::open(keeper, command)) {
            Self { given: true, ..terminal }.take_back();
        }
    }

    /// Puts the modes back after a death by signal: an editor that is killed leaves the terminal
    /// without echo.
    pub(crate) fn restore_modes(&self) {
        if let Some(modes) = &self.modes {
            // The terminal may have hung up; then there is nothing to restore.
            let _ = tcsetattr(&self.device, OptionalActions::Now, modes);
        }
    }
}
