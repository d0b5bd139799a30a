//! Runs a program with a timeout.

#![expect(clippy::disallowed_methods, reason = "the duration of a program is not part of a lock")]

use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Ended {
    /// `None` if the timeout killed the program.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) output: String,
    pub(crate) errors: String,
}

impl Ended {
    pub(crate) fn is_success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }
}

/// Runs a program without input, and kills it after `time_out`.
pub(crate) fn run(command: &mut Command, time_out: Duration) -> Result<Ended, String> {
    let program = command.get_program().to_owned();
    let mut run = || {
        // The output goes to files. A server that outlives its test would keep a pipe open and block the reader.
        let (output, errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(errors.try_clone()?);
        let status = wait(&mut command.spawn()?, time_out)?;
        let (output, mut errors) = (text(output)?, text(errors)?);
        if status.is_none() {
            errors.push_str(&format!("\nkilled after {} s\n", time_out.as_secs()));
        }
        Ok(Ended { status, output, errors })
    };
    run().map_err(|error: io::Error| format!("{}: {error}", program.display()))
}

fn wait(child: &mut Child, time_out: Duration) -> io::Result<Option<ExitStatus>> {
    let began = Instant::now();
    while began.elapsed() < time_out {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(Duration::from_millis(20));
    }
    child.kill()?;
    child.wait().map(|_| None)
}

fn text(mut file: File) -> io::Result<String> {
    let mut text = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
