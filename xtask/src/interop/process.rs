//! A process with which a test talks line by line.

use std::env;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// A step that takes longer than this counts as hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A process with pipes. It is killed when the value is dropped, and when this program ends.
pub(crate) struct Process {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    errors: File,
}

impl Process {
    /// Starts the command without the variables `QUORLOCK_…` of this process.
    ///
    /// # Errors
    /// A message for the user.
    pub(crate) fn start(recipe: &Command) -> Result<Self, String> {
        let program = Path::new(recipe.get_program());
        let failed = |error: std::io::Error| format!("{}: {error}", program.display());
        let errors = tempfile::tempfile().map_err(failed)?;
        let stderr = errors.try_clone().map_err(failed)?;
        let mut child = quorlock_servers::spawn(program, |command| {
            let ours = env::vars_os().map(|(name, _)| name);
            ours.filter(|name| name.as_encoded_bytes().starts_with(b"QUORLOCK_")).for_each(
                |name| {
                    command.env_remove(name);
                },
            );
            let set = recipe.get_envs().filter_map(|(name, value)| Some((name, value?)));
            command.args(recipe.get_args()).envs(set);
            recipe.get_current_dir().map(|folder| command.current_dir(folder));
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        })
        .map_err(failed)?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or("a process without its pipe")?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            let mut read = BufReader::new(output).lines().map_while(Result::ok);
            read.try_for_each(|line| sender.send(line))
        });
        Ok(Self { child, input, lines, errors })
    }

    /// Waits for the next line of the output.
    ///
    /// # Errors
    /// The last line of standard error, if the process has ended or is silent for [`PATIENCE`].
    pub(crate) fn line(&mut self) -> Result<String, String> {
        self.lines.recv_timeout(PATIENCE).map_err(|_| {
            let errors = self.errors();
            errors.lines().last().unwrap_or("a process gave no answer").to_owned()
        })
    }

    /// Everything that the process has written to standard error.
    pub(crate) fn errors(&mut self) -> String {
        let mut text = Vec::new();
        let read = self.errors.rewind().and_then(|()| self.errors.read_to_end(&mut text));
        read.map_or_else(|error| error.to_string(), |_| String::from_utf8_lossy(&text).into_owned())
    }

    pub(crate) fn send(&mut self, line: &str) -> Result<(), String> {
        let input = self.input.as_mut().ok_or("the input is closed")?;
        writeln!(input, "{line}").map_err(|error| error.to_string())
    }

    /// Closes the input and waits for the end of the process.
    pub(crate) fn finish(&mut self) -> Result<ExitStatus, String> {
        self.input = None;
        self.child.wait().map_err(|error| error.to_string())
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<(), String> {
        kill_process(Pid::from_child(&self.child), signal).map_err(|error| error.to_string())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already, and `drop` cannot return an error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
