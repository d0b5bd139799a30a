//! Starts the exec step, and sends the message after which the exec step becomes the command.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, getpid};

use super::EXEC_STEP;
use super::kill_policy::Deadlines;
use super::process_tree::ProcessTree;
use super::terminal::Terminal;
use super::wire::{Channel, Message};

/// Handles for the guardian after the start of the command.
pub(super) struct StartedCommand {
    /// Readable when a child has changed its state.
    pub(super) child_signal: UnixStream,
    /// The channel to the exec step. It closes when the exec step has become the command.
    pub(super) exec_step: Channel,
    pub(super) process_tree: ProcessTree,
    pub(super) terminal: Option<Terminal>,
}

impl StartedCommand {
    /// Starts the exec step in its own process group, and sends it [`Message::Go`]. `unblock`: the signals that the
    /// guardian has blocked for itself.
    pub(super) fn new(
        command: &[OsString],
        (keeper_group, deadlines): (i32, Deadlines),
        unblock: u64,
    ) -> io::Result<Self> {
        let (child_signal, on_child) = UnixStream::pair()?;
        child_signal.set_nonblocking(true)?;
        // SIGCHLD is caught and not ignored. A parent may have left it ignored. Then the kernel would reap the command,
        // and its exit code would be lost.
        signal_hook::low_level::pipe::register(signal_hook::consts::SIGCHLD, on_child)?;
        #[cfg(target_os = "linux")]
        rustix::process::set_child_subreaper(Some(getpid()))?;
        let (ours, theirs) = UnixStream::pair()?;
        // This statement drops the builder, and with it the guardian's copy of the exec step's end of the socket. That
        // end must close when the exec step becomes the command.
        let child = Command::new(own_program()?)
            .arg(EXEC_STEP)
            .args(command)
            .process_group(0)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()?;
        let process_tree = ProcessTree::led_by(&child);
        let keeper = Pid::from_raw(keeper_group);
        let mut terminal =
            keeper.and_then(|keeper| Terminal::open(keeper, Pid::from_child(&child)));
        if let Some(terminal) = &mut terminal {
            terminal.give_at_start();
        }
        let exec_step = Channel::new(ours);
        let guardian = getpid().as_raw_nonzero().get();
        exec_step.send_with_stdin(Message::Go { guardian, unblock, deadlines })?;
        Ok(Self { child_signal, exec_step, process_tree, terminal })
    }
}

/// A path that starts this program again, even if a newer version has replaced its file.
pub(crate) fn own_program() -> io::Result<PathBuf> {
    let running = Path::new("/proc/self/exe");
    if cfg!(target_os = "linux") && running.exists() {
        return Ok(running.to_owned());
    }
    std::env::current_exe()
}
