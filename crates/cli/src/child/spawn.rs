//! From a command line to a guarded command, or to the reason why not.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{self, Command, Stdio};

use rustix::io::Errno;
use rustix::process::Pid;
use thiserror::Error;

use super::super::guardian::clock::{Alarm, boot_ns};
use super::super::guardian::wire::{Channel, Message, Next};
use super::super::guardian::{GUARDIAN, own_program};
use super::Deadlines;
use super::watch::GIVE_UP_NS;

/// Why the command was not started. Nothing runs then.
#[derive(Debug, Error)]
pub(crate) enum SpawnError {
    /// There is no such program (exit code 127).
    #[error("{}: {source}", program.display())]
    NotFound {
        /// As the user named it.
        program: OsString,
        /// What exec said.
        source: io::Error,
    },
    /// It cannot be executed (exit code 126).
    #[error("{}: {source}", program.display())]
    CannotRun {
        /// As the user named it.
        program: OsString,
        /// What exec said.
        source: io::Error,
    },
    /// The lock's time was up before the command could start.
    #[error("the lock's time was up before the command could start")]
    TooLate,
    /// There is no guardian, and without one no command is started.
    #[error("the guardian process: {0}")]
    Guardian(#[from] io::Error),
}

/// Starts this program again, as the guardian of `command`.
pub(super) fn start_guardian(
    command: &[OsString],
    env_set: &[(OsString, OsString)],
    env_remove: &[OsString],
    socket: UnixStream,
) -> io::Result<process::Child> {
    // The guardian's environment is the command's; its arguments are the command's alone, since
    // everybody can read them.
    let mut guardian = Command::new(own_program()?);
    for name in env_remove {
        guardian.env_remove(name);
    }
    guardian
        .envs(env_set.iter().map(|(name, value)| (name, value)))
        .arg0(GUARDIAN_NAME)
        .arg(GUARDIAN)
        .args(command)
        .process_group(0)
        .stdin(Stdio::from(OwnedFd::from(socket)))
        .spawn()
    // The builder, and with it this process's copy of the guardian's end, is dropped here: the
    // end must close when the guardian dies.
}

/// Waits for the guardian's first word, at most until it must have killed everything.
pub(super) fn await_start(
    listener: &mut Channel,
    command: &[OsString],
    deadlines: Deadlines,
) -> Result<Pid, SpawnError> {
    let alarm = Alarm::new();
    let until = deadlines.kill_at_boot_ns.saturating_add(GIVE_UP_NS);
    loop {
        match listener.next() {
            Next::Message(Message::Started { group }) => {
                return Pid::from_raw(group).ok_or(io::Error::from(Errno::SRCH).into());
            }
            Next::Message(Message::CannotRun { errno }) => return Err(cannot_run(command, errno)),
            Next::Message(Message::TooLate) => return Err(SpawnError::TooLate),
            Next::Message(Message::Broken { errno }) => {
                return Err(io::Error::from_raw_os_error(errno).into());
            }
            Next::Message(_) => return Err(io::Error::from(Errno::PROTO).into()),
            Next::Closed => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Next::Nothing if boot_ns() >= until => {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            Next::Nothing => {
                alarm.wait(until, &[listener.as_fd()]);
            }
        }
    }
}

fn cannot_run(command: &[OsString], errno: i32) -> SpawnError {
    let program = command.first().map_or(OsStr::new(""), OsString::as_os_str).to_owned();
    let source = io::Error::from_raw_os_error(errno);
    match source.kind() {
        io::ErrorKind::NotFound => SpawnError::NotFound { program, source },
        _ => SpawnError::CannotRun { program, source },
    }
}

/// What `ps` shows and `pkill -f quorlock` does not match.
const GUARDIAN_NAME: &str = "lock-guardian";
