//! What a server does, as it says itself: its `MONITOR` stream, and now and then all of its data.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use quorlock_servers::resp::RespConnection;
use quorlock_servers::{Nodes, Reply, Server};
use quorlock_sim::time::{MS, SECOND, Time};

use crate::clock::now;

/// How often it looks whether it is to end.
const TICK: Duration = Duration::from_millis(20);

/// How long a server may take to say what it was asked to, at the end.
const PATIENCE: Time = 10 * SECOND;

/// What [`Monitor::mark`] says before a server becomes a replica: what follows is its master's.
pub(crate) const REPLICA: &str = "chaos:replica";

/// What it says before a server may lose its data, or have it replaced, in a way that its stream does not
/// show. Until the next dump nobody knows what is there.
pub(crate) const LOSES: &str = "chaos:loses";

/// All strings and sorted sets of a server, at one point of its stream: `EVAL` is part of it.
const DUMP: &str = "local all = {} \
    for _, key in ipairs(redis.call('KEYS', '*')) do \
      local value = redis.pcall('GET', key) \
      if type(value) ~= 'string' then \
        value = redis.pcall('ZRANGE', key, 0, -1, 'WITHSCORES') \
      end \
      if type(value) == 'string' or not value.err then \
        table.insert(all, {key, value, redis.call('PTTL', key)}) \
      end \
    end \
    return all";

/// Something that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// A line, and when it was read.
    Line(Time, String),
    /// The stream has ended: the server is gone.
    Broken(Time),
}

/// What a server is and has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dump {
    pub(crate) run_id: String,
    /// As `second_repl_offset` says: -1 if it never was a replica.
    pub(crate) promoted: String,
    /// Keys, values, and milliseconds to live.
    pub(crate) data: Vec<(String, String, i64)>,
    pub(crate) sets: Vec<SortedSet>,
}

/// Its key, its members with their scores, and milliseconds to live.
pub(crate) type SortedSet = (String, Vec<(String, i64)>, i64);

/// All that was seen of a server, in order; and the dumps by the names that the stream has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    pub(crate) seen: Vec<Seen>,
    pub(crate) dumps: BTreeMap<String, Dump>,
}

/// Who listens to a server.
#[derive(Debug)]
pub(crate) struct Monitor {
    nodes: Arc<Nodes>,
    place: usize,
    log: Arc<Mutex<Log>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    /// Listens to a server, through all of its restarts. Returns when it does.
    ///
    /// # Errors
    /// If it cannot.
    pub(crate) fn start(nodes: &Arc<Nodes>, place: usize) -> io::Result<Self> {
        let log = Arc::new(Mutex::new(Log::default()));
        let over = Arc::new(AtomicBool::new(false));
        let first = connect(&nodes[place])?;
        dump(&nodes[place], &log)?;
        let (its_log, its_over, its_nodes) = (log.clone(), over.clone(), nodes.clone());
        let listen = move || {
            let server = &its_nodes[place];
            let mut stream = Some(first);
            while !its_over.load(Ordering::Relaxed) {
                let Some(connected) = stream.take() else {
                    thread::sleep(Duration::from_millis(2));
                    // It is down; or it cannot say yet what it has.
                    stream = connect(server).ok();
                    if stream.is_some() && dump(server, &its_log).is_err() {
                        stream = None;
                    }
                    continue;
                };
                follow(connected, &its_log, &its_over);
                lock(&its_log).seen.push(Seen::Broken(now()));
            }
        };
        let thread = Some(thread::spawn(listen));
        Ok(Self { nodes: nodes.clone(), place, log, over, thread })
    }

    /// The server's data may have been replaced by something that the stream does not show.
    ///
    /// # Errors
    /// If it does not say what it has.
    pub(crate) fn dump(&self) -> io::Result<()> {
        dump(&self.nodes[self.place], &self.log)
    }

    /// Puts a word into the stream.
    ///
    /// # Errors
    /// If the server does not answer.
    pub(crate) fn mark(&self, word: &str) -> io::Result<()> {
        self.nodes[self.place].command(&["ECHO", word]).map(drop)
    }

    /// Stops listening when all that was done so far has been heard. Returns that; nothing if it was
    /// not heard to the end.
    pub(crate) fn end(mut self) -> Option<Log> {
        let word = format!("chaos:end:{}", number());
        let is_end = |seen: &Seen| matches!(seen, Seen::Line(_, line) if line.contains(&word));
        // A server that is down has said everything.
        let heard = !self.nodes[self.place].is_running()
            || self.mark(&word).is_ok() && {
                let deadline = now() + PATIENCE;
                loop {
                    if lock(&self.log).seen.iter().rev().any(is_end) {
                        break true;
                    }
                    if now() >= deadline {
                        break false;
                    }
                    thread::sleep(Duration::from_millis(2));
                }
            };
        self.stop();
        heard.then(|| std::mem::take(&mut *lock(&self.log)))
    }

    fn stop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.stop();
    }
}

fn lock(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A stream that has begun.
fn connect(server: &Server) -> io::Result<RespConnection> {
    let mut stream = server.connect()?;
    stream.wait(Duration::from_secs(2))?;
    match stream.command(&["MONITOR"])? {
        Reply::Simple(_) => Ok(stream),
        other => Err(odd(&other)),
    }
}

fn odd(reply: &Reply) -> io::Error {
    io::Error::other(format!("{reply:?}"))
}

fn follow(mut stream: RespConnection, log: &Mutex<Log>, over: &AtomicBool) {
    if stream.wait(TICK).is_err() {
        return;
    }
    while !over.load(Ordering::Relaxed) {
        match stream.reply() {
            Ok(Reply::Simple(line)) => lock(log).seen.push(Seen::Line(now(), line)),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            _ => return,
        }
    }
}

fn dump(server: &Server, log: &Mutex<Log>) -> io::Result<()> {
    let info = match server.command(&["INFO"])? {
        Reply::Bulk(Some(info)) => String::from_utf8_lossy(&info).into_owned(),
        other => return Err(odd(&other)),
    };
    let field = |name| {
        let mut lines = info.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.unwrap_or_default().to_owned()
    };
    let word = format!("chaos:dump:{}", number());
    let entries = match server.command(&["EVAL", DUMP, "0", &word])? {
        Reply::Array(entries) => entries,
        other => return Err(odd(&other)),
    };
    let text = |reply: &Reply| match reply {
        Reply::Bulk(Some(text)) => Some(String::from_utf8_lossy(text).into_owned()),
        _ => None,
    };
    let (mut data, mut sets) = (Vec::new(), Vec::new());
    for entry in &entries {
        let Reply::Array(parts) = entry else { continue };
        match &parts[..] {
            [key, Reply::Array(words), Reply::Int(ttl)] => {
                let words: Vec<String> = words.iter().filter_map(text).collect();
                let pairs = words.chunks_exact(2);
                let scored =
                    pairs.filter_map(|pair| Some((pair[0].clone(), pair[1].parse().ok()?)));
                sets.extend(text(key).map(|key| (key, scored.collect(), *ttl)));
            }
            [key, value, Reply::Int(ttl)] => {
                data.extend(text(key).zip(text(value)).map(|(key, value)| (key, value, *ttl)));
            }
            _ => {}
        }
    }
    let (run_id, promoted) = (field("run_id"), field("second_repl_offset"));
    lock(log).dumps.insert(word, Dump { run_id, promoted, data, sets });
    Ok(())
}

/// One line of a stream, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    /// By the server's wall clock.
    pub(crate) at: Time,
    /// A script did it.
    pub(crate) by_script: bool,
    pub(crate) words: Vec<String>,
}

impl Command {
    /// `1795297560.825393 [0 lua] "SET" "k" "v" "PX" "500"`; nothing if it is none.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (time, rest) = line.split_once(" [")?;
        let (seconds, micros) = time.split_once('.')?;
        let at = seconds.parse::<i64>().ok()? * SECOND + micros.parse::<i64>().ok()? * MS / 1000;
        let (from, rest) = rest.split_once("] ")?;
        Some(Self { at, by_script: from.ends_with(" lua"), words: words(rest) })
    }
}

/// What is in quotes. What is escaped in there matters to nobody here, but where it ends.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (letter, &mut word) {
            ('"', None) => word = Some(String::new()),
            ('"', Some(_)) => words.extend(word.take()),
            ('\\', Some(word)) => word.extend(letters.next()),
            (letter, Some(word)) => word.push(letter),
            (_, None) => {}
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_apart() {
        let line = r#"1795297560.000093 [0 unix:/tmp/a b/s] "SET" "a" "tok x\"\\" "NX""#;
        let command = Command::parse(line).unwrap();
        assert_eq!(command.at, 1_795_297_560_000_093_000);
        assert_eq!(
            (command.by_script, command.words.join("|")),
            (false, r#"SET|a|tok x"\|NX"#.into())
        );
        let line = r#"1.5 [0 lua] "PEXPIRE" "" "900""#;
        let command = Command::parse(line).unwrap();
        assert!(command.by_script);
        assert_eq!(command.words, ["PEXPIRE", "", "900"]);
        assert_eq!(Command::parse("OK"), None);
    }
}
