//! A process that counts under the lock.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use quorlock::{Client, LockOptions};

use super::said;
use crate::clock::now;

/// A holder writes only if the lock is valid for this long, so that the write ends before the lock does.
const MARGIN: Duration = Duration::from_millis(500);

/// A python3 script, because python's standard library has SQLite. It answers each line of its input with one line.
const SQLITE: &str = "\
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
db.execute('PRAGMA synchronous = OFF')
for line in sys.stdin:
    verb, *number = line.split()
    if verb == 'create':
        db.executescript('CREATE TABLE counter(value); INSERT INTO counter VALUES (0); CREATE TABLE done(value)')
    elif verb == 'write':
        db.execute('BEGIN IMMEDIATE')
        db.execute('UPDATE counter SET value = ?', number)
        db.execute('INSERT INTO done VALUES (?)', number)
        db.execute('COMMIT')
    print(*db.execute('SELECT (SELECT count(*) FROM done), value FROM counter').fetchone(), flush=True)
";

#[derive(Debug, clap::Args)]
pub(crate) struct Job {
    url: String,
    database: String,
    ttl_ms: u64,
    /// Make one attempt per call, so that the start of a call is the start of its attempt.
    #[arg(long)]
    once: bool,
}

/// Creates the database.
pub(super) fn create(database: &str) -> Result<(), String> {
    Sqlite::open(database)?.ask("create").map(drop)
}

/// Returns the number of committed writes and the value of the counter. They differ if an update was lost.
pub(super) fn count(database: &str) -> Result<(u64, u64), String> {
    Sqlite::open(database)?.ask("read")
}

pub(crate) fn main(job: &Job) -> Result<(), String> {
    let mut sqlite = Sqlite::open(&job.database)?;
    let ttl = Duration::from_millis(job.ttl_ms);
    let wait = if job.once { Duration::ZERO } else { ttl };
    let client = Client::builder()
        .nodes([&job.url])
        .max_ttl(ttl)
        .options(LockOptions::new().ttl(ttl).wait(wait))
        .blocking()
        .build()
        .map_err(said)?;
    loop {
        let started = now();
        let Ok(guard) = client.acquire("counter").call() else {
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        println!("{started} {}", now());
        let (_, value) = sqlite.ask("read")?;
        thread::sleep(Duration::from_millis(5));
        if guard.remaining() > MARGIN {
            sqlite.ask(&format!("write {}", value + 1))?;
        }
        // The result is ignored, because the counter shows whether the lock excluded the other workers.
        let _ = guard.release();
    }
}

struct Sqlite {
    input: std::process::ChildStdin,
    output: BufReader<std::process::ChildStdout>,
}

impl Sqlite {
    fn open(database: &str) -> Result<Self, String> {
        let mut python = Command::new("python3");
        python.args(["-c", SQLITE, database]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut python = python.spawn().map_err(|error| format!("python3: {error}"))?;
        let (input, output) = (python.stdin.take(), python.stdout.take());
        let (input, output) = input.zip(output).ok_or("python3 has no pipes")?;
        Ok(Self { input, output: BufReader::new(output) })
    }

    /// Sends one line to the script. Returns the number of committed writes and the value of the counter.
    fn ask(&mut self, what: &str) -> Result<(u64, u64), String> {
        let mut line = String::new();
        writeln!(self.input, "{what}").map_err(said)?;
        self.output.read_line(&mut line).map_err(said)?;
        let numbers = line.trim().split_once(' ');
        let numbers = numbers.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        numbers.ok_or_else(|| format!("python3 answered {line:?}"))
    }
}
