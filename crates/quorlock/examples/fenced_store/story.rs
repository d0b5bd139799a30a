//! The story: two processes, one of them stopped at the worst moment.

use std::error::Error;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use quorlock_servers::{Nodes, ServerOptions, find};
use rustix::process::{Pid, Signal, kill_process};

use super::store::Store;
use super::withdraw::{DATABASE, NAME, NODES, REFUSED};

/// Runs the story. `withdraw` creates the command for each process.
pub(crate) fn run(withdraw: impl Fn() -> std::io::Result<Command>) -> Result<(), Box<dyn Error>> {
    let nodes = Nodes::start(&find()?, 3, ServerOptions::default())?;
    let folder = tempfile::tempdir()?;
    let database = folder.path().join("account.db");

    let mut first = Worker::start("first", withdraw()?, &database, &nodes.urls())?;
    println!("{}", first.line()?);
    kill_process(first.pid()?, Signal::STOP)?;
    println!("(the first process is stopped; its lock ends, and nobody can tell it)");

    // The second process waits until the key of the first one expires.
    let mut second = Worker::start("second", withdraw()?, &database, &nodes.urls())?;
    println!("{}", second.line()?);
    let (last_words, code) = second.go_on()?;
    print!("{last_words}");
    if code != Some(0) {
        return Err("the second process did not withdraw".into());
    }

    println!("(the first process goes on where it was)");
    kill_process(first.pid()?, Signal::CONT)?;
    let (last_words, code) = first.go_on()?;
    print!("{last_words}");
    if code != Some(i32::from(REFUSED)) {
        return Err("the store took a write of one that had been overtaken".into());
    }
    let balance = Store::open(&database)?.balance()?;
    println!("balance: {balance}");
    assert_eq!(balance, 70, "one withdrawal was made, and none was lost");
    Ok(())
}

/// A process, killed on drop.
struct Worker {
    name: &'static str,
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn start(
        name: &'static str,
        mut withdraw: Command,
        database: &Path,
        nodes: &[String],
    ) -> Result<Self, Box<dyn Error>> {
        let mut process = withdraw
            .env(NAME, name)
            .env(DATABASE, database)
            .env(NODES, nodes.join(","))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = process.stdout.take().ok_or("it was asked to be piped")?;
        Ok(Self { name, process, output: BufReader::new(output) })
    }

    fn line(&mut self) -> Result<String, Box<dyn Error>> {
        let beginning = format!("{}: ", self.name);
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line)? == 0 {
                return Err(format!("the {} process ended too soon", self.name).into());
            }
            if let Some(start) = line.find(&beginning) {
                return Ok(line[start..].trim_end().to_owned());
            }
        }
    }

    /// Resumes the process and waits until it ends.
    fn go_on(&mut self) -> Result<(String, Option<i32>), Box<dyn Error>> {
        drop(self.process.stdin.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest)?;
        Ok((rest, self.process.wait()?.code()))
    }

    fn pid(&self) -> Result<Pid, Box<dyn Error>> {
        Ok(Pid::from_raw(i32::try_from(self.process.id())?).ok_or("no process has the number 0")?)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
