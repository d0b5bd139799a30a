//! `quorlock __exec …`: what the command's process does before it becomes the command.
//!
//! Some things a process can only do to itself: ask to be killed when its parent dies, take back
//! a signal mask. Between fork and exec that would take unsafe code; in a program of its own it
//! does not. The step is the same binary, already leads the command's process group, and waits
//! for the guardian's word, so that the terminal is the command's before it can look at it.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::io::Errno;
use rustix::process::{Pid, getppid};

use super::clock::Moment;
use super::kill_policy::KillPolicy;
use super::signals;
use super::wire::{Channel, Message};

/// Becomes `command`, or tells the guardian why not.
pub(crate) fn main(command: Vec<OsString>) -> ExitCode {
    // Whoever is killed here was to be killed at once anyway, so there is nobody to tell but the
    // guardian, and without it nobody at all.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let Ok((guardian, message)) = Channel::from_stdin() else {
        return ExitCode::FAILURE;
    };
    let Message::Go { guardian: pid, unblock, deadlines } = message else {
        return ExitCode::FAILURE;
    };
    // It may have died before its death could be watched.
    if getppid() != Pid::from_raw(pid) {
        return ExitCode::FAILURE;
    }
    // The last look: guardian and step may have stood still since theirs.
    if KillPolicy::new(deadlines).too_late(Moment::now()) {
        let _ = guardian.send(Message::TooLate);
        return ExitCode::FAILURE;
    }
    let error = become_command(&command, unblock);
    let errno = error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error());
    let _ = guardian.send(Message::CannotRun { errno });
    ExitCode::FAILURE
}

/// Returns only if it failed. The channel closes itself on exec: that is how the guardian knows.
fn become_command(command: &[OsString], unblock: u64) -> io::Error {
    let Some((program, arguments)) = command.split_first() else {
        return io::ErrorKind::InvalidInput.into();
    };
    match signals::unblock(unblock) {
        Ok(()) => Command::new(program).args(arguments).exec(),
        Err(error) => error,
    }
}
