//! Gives the terminal to the command while it runs, and takes it back afterwards.
//!
//! The guardian does this. It has SIGTTOU blocked, so it may set the foreground group although it is never in it, and
//! it still runs when the keeper is stopped or dead.
//!
//! A command whose input is the terminal gets the terminal before it starts, as from a shell. In `quorlock run … |
//! less` the terminal belongs to less. In that case, and if only /dev/tty is used (a password prompt), the command gets
//! the terminal on demand: the kernel stops a background process that uses the terminal, and the guardian then hands
//! the terminal over if quorlock has it.

use std::io::IsTerminal;
use std::os::fd::OwnedFd;

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process_group};
use rustix::stdio;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

use super::signals;

pub(crate) fn controlling() -> Option<OwnedFd> {
    // An ordinary open would block on a serial line without a carrier.
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    open("/dev/tty", flags, Mode::empty()).ok()
}

/// The controlling terminal, and the process groups of keeper and command, which have it in turn.
#[derive(Debug)]
pub(crate) struct Terminal {
    device: OwnedFd,
    keeper: Pid,
    command: Pid,
    modes: Option<Termios>,
    given: bool,
}

impl Terminal {
    pub(crate) fn open(keeper: Pid, command: Pid) -> Option<Self> {
        let device = controlling()?;
        Some(Self { device, keeper, command, modes: None, given: false })
    }

    /// Gives the terminal to a command that is about to start and will use it.
    pub(crate) fn give_at_start(&mut self) {
        let piped = fstat(stdio::stdout()).is_ok_and(|out| {
            matches!(FileType::from_raw_mode(out.st_mode), FileType::Fifo | FileType::Socket)
        });
        if std::io::stdin().is_terminal() && !piped {
            self.give();
        }
    }

    /// Passes the foreground from quorlock's own group to the command's group. Returns false if that was not possible.
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

    /// Makes quorlock's own group the foreground group again, unless a shell has given the terminal to a third group.
    /// Returns whether this took the terminal from the command.
    pub(crate) fn take_back(&mut self) -> bool {
        let Ok(foreground) = tcgetpgrp(&self.device) else {
            return false;
        };
        // If the command is a shell, a job of it may have the foreground. Once this job is dead, the terminal is free.
        let deserted = || test_kill_process_group(foreground) == Err(Errno::SRCH);
        let had = self.given && (foreground == self.command || deserted());
        had && tcsetpgrp(&self.device, self.keeper).is_ok()
    }

    /// Takes the terminal back in the keeper, after the guardian's death. Call this in a thread that ends soon, because
    /// the signals stay blocked there.
    pub(crate) fn reclaim(keeper: Pid, command: Pid) {
        if let (Ok(_), Some(terminal)) = (signals::block(), Self::open(keeper, command)) {
            Self { given: true, ..terminal }.take_back();
        }
    }

    /// Restores the terminal's modes after a signal has killed the command: a killed editor leaves the echo off.
    pub(crate) fn restore_modes(&self) {
        if let Some(modes) = &self.modes {
            // If the terminal has hung up, there is nothing to restore.
            let _ = tcsetattr(&self.device, OptionalActions::Now, modes);
        }
    }
}
