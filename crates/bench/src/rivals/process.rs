//! Runs a child process with a time limit.

use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use crate::clock;

/// Runs a program to its end, without input. Returns its standard output.
///
/// # Errors
/// A message: the program cannot start, was killed after `limit`, or failed. The message of a failure quotes the last
/// line of standard error.
pub(super) fn run(command: &mut Command, limit: Duration) -> Result<String, String> {
    let mut started = || {
        // The output goes to files, because a full pipe would block the child.
        let (output, errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(errors.try_clone()?);
        Ok((command.spawn()?, output, errors))
    };
    let (mut child, output, errors) =
        started().map_err(|error: io::Error| format!("cannot be started: {error}"))?;
    let ended = wait(&mut child, limit).map_err(|error| error.to_string())?;
    let status = ended.ok_or_else(|| format!("did not end within {limit:?}"))?;
    if !status.success() {
        // The message quotes the last line, in which Python and npm write the reason.
        let errors = text(errors)?;
        let last = errors.lines().rev().find(|line| !line.trim().is_empty());
        let last = last.unwrap_or("it wrote nothing to standard error").trim();
        return Err(format!("{status}: {last}"));
    }
    text(output)
}

/// Waits for the child's end. Kills the child after `limit` and returns `None`.
fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let end = clock::now() + limit;
    while clock::now() < end {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(Duration::from_millis(10));
    }
    child.kill()?;
    child.wait().map(|_| None)
}

fn text(mut file: File) -> Result<String, String> {
    let mut text = String::new();
    let read = file.rewind().and_then(|()| file.read_to_string(&mut text));
    read.map(|_| text).map_err(|error| format!("its output: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_succeeds_fails_or_takes_too_long() {
        let shell = |script, limit| run(Command::new("sh").args(["-c", script]), limit);
        let limit = Duration::from_secs(30);
        assert_eq!(shell("echo fine", limit).unwrap(), "fine\n");
        let why = shell("echo trace >&2; echo 'the reason' >&2; exit 4", limit).unwrap_err();
        assert_eq!(why, "exit status: 4: the reason");
        assert!(run(&mut Command::new("/no/such/program"), limit).is_err());
        let why = shell("exec sleep 600", Duration::from_millis(200)).unwrap_err();
        assert_eq!(why, "did not end within 200ms");
    }
}
