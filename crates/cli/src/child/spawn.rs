//! Starts the guardian, or says why the command cannot start.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{self, Command, Stdio};

use quorlock::admin::{exhausted, explained};
use thiserror::Error;

use super::super::guardian::wire::Message;
use super::super::guardian::{GUARDIAN, own_program};

/// The reason why the command was not started. No process was left behind.
#[derive(Debug, Error)]
pub(crate) enum SpawnError {
    /// There is no such program (exit code 127).
    #[error("{}: {}", program.display(), if *is_there {
        "the interpreter that its first line names, or its loader, was not found"
    } else {
        "command not found"
    })]
    NotFound {
        program: OsString,
        /// The program's file exists, so its interpreter or loader is missing.
        is_there: bool,
    },
    /// The program cannot be executed (exit code 126).
    #[error("{}: not executable: {source}", program.display())]
    CannotRun { program: OsString, source: io::Error },
    #[error("the lock's time was up before the command could start")]
    TooLate,
    /// The machine lacks a resource for the guardian or the command.
    #[error("cannot start the command: {}", explained(.0))]
    Machine(#[from] io::Error),
}

#[derive(Debug)]
pub(super) struct GuardianLaunch {
    guardian: Command,
    program: OsString,
}

impl GuardianLaunch {
    /// Prepares to start this program as the guardian of `command`. `socket` is the guardian's end of the connection.
    pub(super) fn new(
        command: &[OsString],
        env_set: &[(OsString, OsString)],
        env_remove: &[OsString],
        socket: UnixStream,
    ) -> io::Result<Self> {
        // The guardian gets the command's environment. It gets no arguments except the command's, because all users can
        // read the arguments of a process.
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
            .stdin(Stdio::from(OwnedFd::from(socket)));
        let program = command.first().map_or(OsStr::new(""), OsString::as_os_str).to_owned();
        Ok(Self { guardian, program })
    }

    /// Starts the guardian. Also returns the command's name. This drops the builder and with it this process's copy of
    /// the guardian's end of the socket, which must close when the guardian dies.
    pub(super) fn start(mut self) -> io::Result<(process::Child, OsString)> {
        Ok((self.guardian.spawn()?, self.program))
    }
}

/// The error in a message of the guardian; `None` if the command was started.
pub(super) fn not_started(word: Message, program: &OsStr) -> Option<SpawnError> {
    match word {
        Message::CannotRun { errno } => Some(cannot_run(program.to_owned(), errno)),
        Message::TooLate => Some(SpawnError::TooLate),
        _ => None,
    }
}

fn cannot_run(program: OsString, errno: i32) -> SpawnError {
    let source = io::Error::from_raw_os_error(errno);
    match source.kind() {
        io::ErrorKind::NotFound => {
            let is_there = is_there(&program);
            SpawnError::NotFound { program, is_there }
        }
        _ if exhausted(&source).is_some() => SpawnError::Machine(source),
        _ => SpawnError::CannotRun { program, source },
    }
}

/// Whether the program's file exists where exec looks for it.
fn is_there(program: &OsStr) -> bool {
    let path = Path::new(program);
    if program.as_encoded_bytes().contains(&b'/') {
        return path.is_file();
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(path).is_file())
}

/// The guardian's name in `ps`. `pkill -f quorlock` does not match it.
const GUARDIAN_NAME: &str = "lock-guardian";
