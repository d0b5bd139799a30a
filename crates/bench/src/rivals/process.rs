//! A child process with a time limit, which does not outlive this process.

use std::io;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// A child that was started and whose output is being collected.
#[derive(Debug)]
pub(super) struct Running {
    event: Receiver<RivalEvent>,
}

#[derive(Debug)]
enum RivalEvent {
    Started(u32),
    Ended(io::Result<Output>),
}

/// Runs to the end and returns what it wrote to standard output.
///
/// # Errors
/// In words: that it cannot be started, took longer than `limit` (it was killed), or failed, with
/// the end of what it wrote to standard error.
pub(super) fn run(command: Command, limit: Duration) -> Result<String, String> {
    start(command).output(limit)
}

/// Starts it, with no input.
pub(super) fn start(mut command: Command) -> Running {
    let (sender, event) = mpsc::channel();
    // The kernel takes the thread that starts a child for its parent (see `command`). This one
    // stays until the child has ended.
    thread::spawn(move || {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let ended = command.spawn().and_then(|child| {
            // Whoever does not listen any more gets the child killed at the end of this process.
            let _ = sender.send(RivalEvent::Started(child.id()));
            child.wait_with_output()
        });
        let _ = sender.send(RivalEvent::Ended(ended));
    });
    Running { event }
}

impl Running {
    /// Waits for the end; see [`run`].
    pub(super) fn output(self, limit: Duration) -> Result<String, String> {
        let mut pid = None;
        let ended = loop {
            match self.event.recv_timeout(limit) {
                Ok(RivalEvent::Started(id)) => pid = i32::try_from(id).ok().and_then(Pid::from_raw),
                Ok(RivalEvent::Ended(ended)) => break ended,
                Err(RecvTimeoutError::Timeout) => {
                    // Not reaped yet, or the thread would have said so: the number is still its own.
                    if let Some(pid) = pid {
                        let _ = kill_process(pid, Signal::KILL);
                    }
                    return Err(format!("did not end within {limit:?}"));
                }
                Err(RecvTimeoutError::Disconnected) => return Err("its thread died".to_owned()),
            }
        };
        let output = ended.map_err(|why| format!("cannot be started: {why}"))?;
        if !output.status.success() {
            let end = last_line(&output.stderr);
            return Err(format!("{}: {end}", output.status));
        }
        String::from_utf8(output.stdout).map_err(|_| "its output is not UTF-8".to_owned())
    }
}

/// The last line that says something: Python and npm put the reason there.
fn last_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let line = text.lines().rev().find(|line| !line.trim().is_empty());
    line.unwrap_or("it wrote nothing to standard error").trim().to_owned()
}

/// A command that the kernel ends if this process dies, where util-linux's `setpriv` can arrange
/// that. Elsewhere the rivals' programs end by themselves.
pub(super) fn command(program: &str) -> Command {
    static WORKS: LazyLock<bool> = LazyLock::new(|| {
        Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", "true"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    });
    if !*WORKS {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", program]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = command("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_is_returned_and_failure_says_why() {
        let limit = Duration::from_secs(30);
        assert_eq!(run(shell("echo fine"), limit).unwrap(), "fine\n");
        let why = run(shell("echo trace >&2; echo 'the reason' >&2; exit 4"), limit).unwrap_err();
        assert_eq!(why, "exit status: 4: the reason");
        assert!(run(command("/no/such/program"), limit).is_err());
    }

    #[test]
    fn what_takes_too_long_is_killed() {
        let running = start(shell("exec sleep 600"));
        let why = running.output(Duration::from_millis(200)).unwrap_err();
        assert_eq!(why, "did not end within 200ms");
    }
}
