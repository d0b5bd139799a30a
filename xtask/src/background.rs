//! Commands that run in the background while the tests run, because the tests mostly wait. They run one after the
//! other, with the lowest priority. A thread waits for them and keeps what they print until it is asked for.

#![expect(clippy::disallowed_methods, reason = "how long proofs take is nobody's lock")]

use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A command to run, and what it is called.
pub(crate) struct Task {
    pub(crate) name: String,
    /// What people type to do it again.
    pub(crate) again: String,
    pub(crate) command: Command,
}

/// How a task ended.
pub(crate) struct Done {
    pub(crate) name: String,
    pub(crate) again: String,
    pub(crate) took: Duration,
    pub(crate) is_green: bool,
    pub(crate) said: String,
}

/// Tasks that run in the background.
pub(crate) struct Background {
    done: Receiver<Done>,
    thread: JoinHandle<()>,
}

impl Background {
    pub(crate) fn start(tasks: Vec<Task>) -> Self {
        let (done, receiver) = mpsc::channel();
        let work = move || {
            for task in tasks {
                if done.send(run(task)).is_err() {
                    return;
                }
            }
        };
        Self { done: receiver, thread: thread::spawn(work) }
    }

    /// Waits for the next task to end. `None`: all have ended.
    pub(crate) fn next(&self) -> Option<Done> {
        self.done.recv().ok()
    }

    /// Call it after [`next`](Self::next) has returned `None`. Returns whether all tasks were run.
    pub(crate) fn end(self) -> bool {
        self.thread.join().is_ok()
    }
}

fn run(task: Task) -> Done {
    let began = Instant::now();
    let Task { name, again, command } = task;
    let (is_green, said) = match output(&command) {
        Ok(outcome) => outcome,
        Err(error) => (false, format!("{}: {error}\n", command.get_program().display())),
    };
    Done { name, again, took: began.elapsed(), is_green, said }
}

fn output(command: &Command) -> io::Result<(bool, String)> {
    let mut file = tempfile::tempfile()?;
    let mut child = spawn(command, &file)?;
    let status = child.wait()?;
    let mut said = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut said)?;
    Ok((status.success(), String::from_utf8_lossy(&said).into_owned()))
}

/// Starts it with the lowest priority, if the machine has the command `nice`.
fn spawn(command: &Command, file: &File) -> io::Result<Child> {
    let spawn = |mut with: Command| {
        if let Some(folder) = command.get_current_dir() {
            with.current_dir(folder);
        }
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => with.env(name, value),
                None => with.env_remove(name),
            };
        }
        with.args(command.get_args()).stdin(Stdio::null());
        with.stdout(file.try_clone()?).stderr(file.try_clone()?).spawn()
    };
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]).arg(command.get_program());
    spawn(nice).or_else(|_| spawn(Command::new(command.get_program())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_run_and_heard() {
        let task = |name: &str, script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).env("WORD", "said");
            Task { name: name.to_owned(), again: script.to_owned(), command }
        };
        let mut absent = task("absent", "");
        absent.command = Command::new("/no/such/program");
        let background = Background::start(vec![
            task("green", "echo $WORD"),
            task("red", "echo out; echo err >&2; exit 3"),
            absent,
        ]);
        let next = || background.next().map(|done| (done.name, done.is_green, done.said));
        assert_eq!(next(), Some(("green".to_owned(), true, "said\n".to_owned())));
        assert_eq!(next(), Some(("red".to_owned(), false, "out\nerr\n".to_owned())));
        assert!(next().is_some_and(|(_, is_green, _)| !is_green));
        assert_eq!(next(), None);
        assert!(background.end());
    }
}
