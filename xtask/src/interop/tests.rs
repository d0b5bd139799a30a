//! The tests of mutual exclusion between a library and quorlock. Each test uses its own lock.

#![expect(clippy::disallowed_methods, reason = "the duration of a wait is not part of a lock")]

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use quorlock_servers::Reply;
use rustix::process::Signal;
use serde_json::Value;

use super::process::{PATIENCE, Process};
use super::site::{Site, TTL_MS, Worker};

/// The ttl in ms of a holder that is stopped or killed. python-redis-lock knows whole seconds only.
const SHORT_MS: u64 = 2000;

/// The workers of each side in the test with a counter, and the increments of each worker.
const WORKERS: usize = 3;
const INCREMENTS: usize = 40;

/// Runs a test. Returns a remark for the table, or the reason of the failure.
type Run = fn(&Site<'_>) -> Result<String, String>;

#[derive(Debug)]
pub(crate) struct Test {
    /// The name in tables.
    pub(crate) name: &'static str,
    run: Run,
}

/// Tests that run one after the other.
const SEQUENTIAL: [Test; 8] = [
    Test { name: "1", run: library_holds },
    Test { name: "2", run: quorlock_holds },
    Test { name: "3a", run: quorlock_hands_over },
    Test { name: "3b", run: library_hands_over },
    Test { name: "shared", run: shared },
    Test { name: "several", run: several },
    Test { name: "take", run: take },
    Test { name: "4", run: increments },
];

/// Tests that mostly wait for a ttl, and run in parallel.
const WAITING: [Test; 4] = [
    Test { name: "5", run: library_is_killed },
    Test { name: "6", run: quorlock_is_killed },
    Test { name: "7", run: library_is_stopped },
    Test { name: "8", run: quorlock_is_stopped },
];

/// The name of a test, and its remark or the reason of its failure.
pub(crate) type Cell = (&'static str, Result<String, String>);

pub(crate) fn run_all(site: &Site<'_>) -> Vec<Cell> {
    let run = |test: &Test| (test.name, (test.run)(site));
    let mut cells: Vec<Cell> = SEQUENTIAL.iter().map(run).collect();
    thread::scope(|scope| {
        let running = WAITING.map(|test| (test.name, scope.spawn(move || (test.run)(site))));
        cells.extend(running.into_iter().map(|(name, thread)| {
            (name, thread.join().unwrap_or_else(|_| Err("the test panicked".to_owned())))
        }));
    });
    cells
}

fn library_holds(site: &Site<'_>) -> Result<String, String> {
    let key = site.key("1");
    let mut worker = held_by_library(site, "1", TTL_MS)?;
    exits_with(75, site, &["run", &key, "--wait", "1s", "--", "true"])?;
    let status = status(site, &key)?;
    let holder = status["holder"].as_str().unwrap_or_default();
    let is_foreign = holder.starts_with("value \"") || holder.contains("another type");
    ensure(status["verdict"] == "held" && is_foreign, &format!("status: {status}"))?;
    worker.release("1")?;
    exits_with(0, site, &["run", &key, "--", "true"])
}

fn quorlock_holds(site: &Site<'_>) -> Result<String, String> {
    let mut holder = Holder::start(site, &site.key("2"), &[])?;
    refused(site, "2")?;
    holder.release()
}

fn quorlock_hands_over(site: &Site<'_>) -> Result<String, String> {
    let mut worker = site.worker()?;
    let mut holder = Holder::start(site, &site.key("3a"), &[])?;
    holder.excludes(&mut worker, "3a")?;
    thread::scope(|scope| {
        let waiting = scope.spawn(|| until_held(&mut worker, "3a", TTL_MS));
        let released = Instant::now();
        holder.release()?;
        let acquired = waiting.join().map_err(|_| "a thread panicked")??;
        Ok(millis(acquired - released))
    })
}

fn library_hands_over(site: &Site<'_>) -> Result<String, String> {
    let key = site.key("3b");
    let mut worker = held_by_library(site, "3b", TTL_MS)?;
    let args = ["run", &key, "--wait", "30s", "--status-fd", "1", "--", "true"];
    let mut run = Process::start(&site.quorlock(&args))?;
    let event = |line: String, name| {
        ensure(line.contains(&format!("\"event\":\"{name}\"")), &format!("no {name}: {line}"))
    };
    event(run.line()?, "waiting")?;
    let released = Instant::now();
    worker.release("3b")?;
    event(run.line()?, "acquired")?;
    let took = millis(released.elapsed());
    ensure(run.finish()?.success(), &run.errors()).map(|()| took)
}

/// Workers of both sides increment a number in a file. Nothing but the lock prevents lost updates.
fn increments(site: &Site<'_>) -> Result<String, String> {
    let file = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
    let (path, key) = (file.path(), site.key("4"));
    fs::write(path, "0").map_err(|error| error.to_string())?;
    let workers: Result<Vec<Worker>, _> = (0..WORKERS).map(|_| site.worker()).collect();
    let script = "n=$(cat \"$0\"); sleep 0.001; echo $((n + 1)) > \"$0\"";
    let words = path.to_str().ok_or("the path of a temporary file")?;
    let args = ["run", &key, "--wait", "60s", "--", "sh", "-c", script, words];
    thread::scope(|scope| {
        let ours = (0..WORKERS).map(|_| {
            scope.spawn(|| (0..INCREMENTS).try_for_each(|_| exits_with(0, site, &args).map(drop)))
        });
        let ours: Vec<_> = ours.collect();
        let theirs = workers?.into_iter().map(|mut worker| {
            scope.spawn(move || {
                (0..INCREMENTS).try_for_each(|_| {
                    until_held(&mut worker, "4", TTL_MS)?;
                    increment(path)?;
                    worker.release("4")
                })
            })
        });
        let theirs: Vec<_> = theirs.collect();
        ours.into_iter()
            .chain(theirs)
            .try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })?;
    let sum = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let expected = (2 * WORKERS * INCREMENTS).to_string();
    ensure(sum.trim() == expected, &format!("{sum} of {expected} increments"))?;
    Ok(expected)
}

fn increment(path: &Path) -> Result<(), String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let number: usize = text.trim().parse().map_err(|_| format!("no number: {text:?}"))?;
    thread::sleep(Duration::from_millis(1));
    fs::write(path, (number + 1).to_string()).map_err(|error| error.to_string())
}

fn library_is_killed(site: &Site<'_>) -> Result<String, String> {
    let began = Instant::now();
    let mut worker = site.worker()?;
    let asked = Instant::now();
    until_held(&mut worker, "5", SHORT_MS)?;
    worker.process.signal(Signal::KILL)?;
    let mut holder = Holder::start(site, &site.key("5"), &[])?;
    let (held_for, took) = (asked.elapsed(), began.elapsed());
    // Tolerates 2 ms, because the server counts a ttl in whole milliseconds.
    let early = held_for + Duration::from_millis(2) < Duration::from_millis(SHORT_MS);
    ensure(!early, "quorlock had the lock before the ttl was over")?;
    holder.release()?;
    Ok(millis(took))
}

fn quorlock_is_killed(site: &Site<'_>) -> Result<String, String> {
    let mut worker = site.worker()?;
    let mut holder = Holder::start(site, &site.key("6"), &["--ttl", "2s"])?;
    holder.excludes(&mut worker, "6")?;
    let killed = Instant::now();
    holder.run.signal(Signal::KILL)?;
    let acquired = until_held(&mut worker, "6", TTL_MS)?;
    ensure(!holder.command_lives(), "the command of quorlock run overlaps the library")?;
    worker.release("6")?;
    Ok(millis(acquired - killed))
}

fn library_is_stopped(site: &Site<'_>) -> Result<String, String> {
    let key = site.key("7");
    let mut worker = held_by_library(site, "7", SHORT_MS)?;
    let expiring = values(site, &key)?;
    worker.process.signal(Signal::STOP)?;
    let mut holder = Holder::start(site, &key, &[])?;
    let before = values(site, &key)?;
    worker.process.signal(Signal::CONT)?;
    // Some libraries report that the lock is gone, and others say nothing.
    let told = worker.release("7");
    let kept = are_kept(&expiring, &before, &values(site, &key)?);
    ensure(kept, "the library's late release changed quorlock's lock")?;
    holder.release()?;
    Ok(if told.is_ok() { "silent" } else { "an error" }.to_owned())
}

fn quorlock_is_stopped(site: &Site<'_>) -> Result<String, String> {
    let key = site.key("8");
    let mut worker = site.worker()?;
    let mut holder = Holder::start(site, &key, &["--ttl", "2s"])?;
    holder.excludes(&mut worker, "8")?;
    let expiring = values(site, &key)?;
    holder.run.signal(Signal::STOP)?;
    until_held(&mut worker, "8", TTL_MS)?;
    ensure(!holder.command_lives(), "the command of quorlock run overlaps the library")?;
    let before = values(site, &key)?;
    holder.run.signal(Signal::CONT)?;
    let code = holder.run.finish()?.code();
    ensure(code == Some(79), &format!("exit code {code:?}: {}", holder.run.errors()))?;
    let kept = are_kept(&expiring, &before, &values(site, &key)?);
    ensure(kept, "quorlock changed the library's lock")?;
    worker.release("8").map(|()| "exit code 79".to_owned())
}

fn shared(site: &Site<'_>) -> Result<String, String> {
    let key = site.key("shared");
    let mut reader = Holder::start(site, &key, &["--shared"])?;
    let remark = refused(site, "shared")?;
    reader.release()?;
    let _worker = held_by_library(site, "shared", TTL_MS)?;
    exits_with(75, site, &["run", &key, "--shared", "--wait", "1s", "--", "true"])?;
    Ok(remark)
}

fn several(site: &Site<'_>) -> Result<String, String> {
    let (first, key) = (site.key("first"), site.key("several"));
    let mut holder = Holder::start(site, &first, &["--also", &key])?;
    refused(site, "several")?;
    holder.release()?;
    let _worker = held_by_library(site, "several", TTL_MS)?;
    exits_with(75, site, &["run", &first, "--also", &key, "--wait", "1s", "--", "true"])?;
    let status = status(site, &first)?;
    ensure(status["verdict"] == "free", &format!("the other key: {status}"))?;
    Ok(String::new())
}

fn take(site: &Site<'_>) -> Result<String, String> {
    let key = site.key("take");
    exits_with(0, site, &["acquire", &key, "--value", "order-7", "--wait", "30s"])?;
    refused(site, "take")?;
    exits_with(0, site, &["release", &key, "--value", "order-7"])?;
    let _worker = held_by_library(site, "take", TTL_MS)?;
    exits_with(75, site, &["acquire", &key, "--value", "order-7", "--wait", "1s"])
}

/// `quorlock run` with a command that lasts until its input ends.
struct Holder {
    run: Process,
    command: String,
}

impl Holder {
    /// Starts `quorlock run`. Waits for the first line of its command, which starts only when quorlock has the lock.
    fn start(site: &Site<'_>, key: &str, options: &[&str]) -> Result<Self, String> {
        let mut args = vec!["run", key, "--wait", "30s"];
        args.extend(options);
        args.extend(["--", "sh", "-c", "echo $$; exec cat"]);
        let mut run = Process::start(&site.quorlock(&args))?;
        let command = run.line()?;
        Ok(Self { run, command })
    }

    /// Checks that the library does not get the lock. On an overloaded machine, quorlock may lose a lock with a short
    /// ttl; then its command must be dead by the time the library has the lock.
    fn excludes(&mut self, worker: &mut Worker, name: &str) -> Result<(), String> {
        if !worker.acquire(name, TTL_MS)? {
            return Ok(());
        }
        ensure(!self.command_lives(), "the library has a lock that quorlock holds")?;
        let status = self.run.finish()?;
        Err(format!("quorlock lost the lock too early ({status}): {}", self.run.errors()))
    }

    fn command_lives(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.command));
        stat.is_ok_and(|stat| stat.contains("(cat) ") && !stat.contains("(cat) Z"))
    }

    fn release(&mut self) -> Result<String, String> {
        let status = self.run.finish()?;
        ensure(status.success(), &self.run.errors()).map(|()| String::new())
    }
}

fn ensure(holds: bool, otherwise: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise.to_owned()) }
}

fn millis(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1000.0)
}

fn exits_with(code: i32, site: &Site<'_>, args: &[&str]) -> Result<String, String> {
    let mut run = Process::start(&site.quorlock(args))?;
    let status = run.finish()?;
    let right = status.code() == Some(code);
    ensure(right, &format!("{args:?}: {status}, not {code}: {}", run.errors()))?;
    Ok(String::new())
}

fn status(site: &Site<'_>, key: &str) -> Result<Value, String> {
    let line = Process::start(&site.quorlock(&["status", key, "--json"]))?.line()?;
    serde_json::from_str(&line).map_err(|error| error.to_string())
}

/// The stored form of the key on each node, of any type and without its ttl.
fn values(site: &Site<'_>, key: &str) -> Result<Vec<Reply>, String> {
    let dump = |node: &quorlock_servers::Server| node.command(&["DUMP", key]);
    site.nodes.iter().map(dump).collect::<Result<_, _>>().map_err(|error| error.to_string())
}

/// Whether the earlier holder changed no key of the new holder, which may have only a majority of the nodes. On another
/// node a change is fine: the earlier holder deletes its own key, or the new holder sets a key that was absent before.
fn are_kept(expiring: &[Reply], before: &[Reply], after: &[Reply]) -> bool {
    let mut nodes = expiring.iter().zip(before).zip(after);
    nodes.all(|((expiring, before), after)| {
        before == after || before == expiring || *before == Reply::Bulk(None)
    })
}

fn held_by_library(site: &Site<'_>, name: &str, ttl_ms: u64) -> Result<Worker, String> {
    let mut worker = site.worker()?;
    until_held(&mut worker, name, ttl_ms).map(|_| worker)
}

/// Checks that the library does not get the lock. Returns a remark.
fn refused(site: &Site<'_>, name: &str) -> Result<String, String> {
    match site.worker()?.acquire(name, TTL_MS) {
        Ok(true) => Err("the library has a lock that quorlock holds".to_owned()),
        Ok(false) => Ok(String::new()),
        // Some libraries read the key as a text, and quorlock's readers are a sorted set.
        Err(why) if why.contains("WRONGTYPE") => Ok("WRONGTYPE".to_owned()),
        Err(why) => Err(why),
    }
}

/// Calls the library until it has the lock. Returns the time of the grant.
fn until_held(worker: &mut Worker, name: &str, ttl_ms: u64) -> Result<Instant, String> {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if worker.acquire(name, ttl_ms)? {
            return Ok(Instant::now());
        }
    }
    Err("the library did not get the lock".to_owned())
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn a_holder_may_gain_a_key_and_lose_none_of_its_own() {
        let one = |value: Option<&str>| [Reply::Bulk(value.map(|text| text.into()))];
        let (old, new, none) = (one(Some("old")), one(Some("new")), one(None));
        let kept = |before, after| are_kept(&old, before, after);
        assert!(kept(&new, &new) && kept(&none, &new) && kept(&old, &none));
        assert!(!kept(&new, &none) && !kept(&new, &old));
    }
}
