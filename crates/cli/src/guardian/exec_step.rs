//! `quorlock __exec …`: the steps of the command's process before it becomes the command.
//!
//! A process can do some things only to itself: ask for a signal when its parent dies, and restore its signal mask.
//! Between fork and exec that would need unsafe code; a separate program does not need it. The exec step is the same
//! binary. It already leads the command's process group. It waits for the guardian's message, because the command must
//! have the terminal before it can use it.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, getppid};

use super::clock::Moment;
use super::errno;
use super::kill_policy::KillPolicy;
use super::signals;
use super::wire::{Channel, Message};

/// Becomes `command`, or reports the error to the guardian.
pub(crate) fn main(command: Vec<OsString>) -> ExitCode {
    // An error is ignored: only the guardian could handle it, and this signal matters only when the guardian is dead.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let Ok((guardian, message)) = Channel::from_stdin() else {
        return ExitCode::FAILURE;
    };
    let Message::Go { guardian: pid, unblock, deadlines } = message else {
        return ExitCode::FAILURE;
    };
    // If the guardian died before this process asked for the signal, no signal will come, so the command must not run.
    if getppid() != Pid::from_raw(pid) {
        return ExitCode::FAILURE;
    }
    // The deadlines are checked again, because both processes may have been stopped since the guardian checked them.
    if KillPolicy::new(deadlines).too_late(Moment::now()) {
        let _ = guardian.send(Message::TooLate);
        return ExitCode::FAILURE;
    }
    let error = become_command(&command, unblock);
    let _ = guardian.send(Message::CannotRun { errno: errno(&error) });
    ExitCode::FAILURE
}

/// Returns only if exec failed. A successful exec closes the channel, by which the guardian notices that the command
/// runs.
fn become_command(command: &[OsString], unblock: u64) -> io::Error {
    let Some((program, arguments)) = command.split_first() else {
        return io::ErrorKind::InvalidInput.into();
    };
    match signals::unblock(unblock) {
        Ok(()) => Command::new(program).args(arguments).exec(),
        Err(error) => error,
    }
}
