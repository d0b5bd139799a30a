//! The reference: the same commands as quorlock's, sent through plain sockets without a lock client.
//!
//! One thread has a blocking connection per node, with Nagle's algorithm off. A round writes the SETs of all lockers to
//! every node and reads all replies, then does the same with the compare-and-delete that quorlock uses. There are no
//! timers, retries or votes. The requests are encoded once.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use quorlock_servers::Server;

use super::closed_loop::keep_time;
use super::quorlock::builder;
use super::{Subject, TTL, key};
use crate::clock;
use crate::sample::{Latencies, Sample, Started, repeat};
use crate::testbed::Commands;

const NAME: &str = "raw";

/// A token as quorlock stores it: 20 bytes in hex.
const TOKEN: &str = "53cf4a701e433f4bc54ca620611a9b92f2809553";

/// The script with which quorlock releases a lock.
const RELEASE: &str = include_str!("../../../quorlock/src/node/scripts/release.lua");

/// Maximum number of pairs per round of an open loop.
const ROUND: usize = 512;

/// A command that deletes a key if the key holds our token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    Script,
    /// `DELIFEQ` of Valkey 9.
    DelIfEq,
    /// `DELEX … IFEQ` of Redis 8.4.
    DelEx,
}

impl Release {
    /// Returns the command with which quorlock releases on this server. The server's command counters show it.
    ///
    /// # Errors
    /// If quorlock fails or uses an unknown command.
    pub(crate) fn observed(server: &Server) -> Result<Self, String> {
        let client =
            builder([server.url()]).blocking().build().map_err(|error| error.to_string())?;
        let pair = || {
            let guard = client.acquire("bench:observed").call();
            guard.map_err(|error| error.to_string()).map(|guard| guard.release())
        };
        // The first pair also sends what a new connection needs, such as the marker's script.
        let _ = pair()?;
        let before = Commands::read(std::slice::from_ref(server))?;
        let _ = pair()?;
        let did = Commands::read(std::slice::from_ref(server))?.since(&before);
        let uses = |name| did.calls(name) > 0;
        match (uses("delifeq"), uses("delex"), uses("evalsha") || uses("eval")) {
            (true, _, false) => Ok(Self::DelIfEq),
            (_, true, false) => Ok(Self::DelEx),
            (false, false, true) => Ok(Self::Script),
            _ => Err(format!("quorlock released a lock in a way that raw does not know: {did:?}")),
        }
    }
}

/// Blocking connections to all servers.
#[derive(Debug)]
pub(crate) struct Raw {
    streams: Vec<TcpStream>,
    release: Release,
    sha: String,
    reply: Vec<u8>,
    batch: Batch,
}

/// Encoded requests of many lockers, in the order of the lockers. A round with fewer lockers sends only the first ones.
#[derive(Debug, Default)]
struct Batch {
    acquire: Vec<u8>,
    release: Vec<u8>,
    /// For each locker, the offsets in `acquire` and `release` at which its commands end.
    ends: Vec<(usize, usize)>,
}

/// The replies to a successful acquire and release.
const GRANTED: &[u8] = b"+OK\r\n";
const RELEASED: &[u8] = b":1\r\n";

impl Raw {
    /// Connects to all servers. If quorlock releases with a script, also loads this script into the servers.
    ///
    /// # Errors
    /// If a connection or the load fails.
    pub(crate) fn new(servers: &[Server]) -> Result<Self, String> {
        let first = servers.first().ok_or("raw needs a server")?;
        let release = Release::observed(first)?;
        let mut sha = String::new();
        let streams = connect(servers)?;
        if release == Release::Script {
            for server in servers {
                sha = load(server)?;
            }
        }
        Ok(Self { streams, release, sha, reply: Vec::new(), batch: Batch::default() })
    }

    fn prepare(&mut self, lockers: usize) {
        let ttl = TTL.as_millis().to_string();
        let mut batch = Batch::default();
        for locker in 0..lockers {
            let key = key(NAME, locker);
            command(&mut batch.acquire, &["SET", &key, TOKEN, "NX", "PX", &ttl]);
            let release = &mut batch.release;
            match self.release {
                Release::Script => command(release, &["EVALSHA", &self.sha, "1", &key, TOKEN]),
                Release::DelIfEq => command(release, &["DELIFEQ", &key, TOKEN]),
                Release::DelEx => command(release, &["DELEX", &key, "IFEQ", TOKEN]),
            }
            batch.ends.push((batch.acquire.len(), batch.release.len()));
        }
        self.batch = batch;
    }

    /// Acquires and releases once for each of the first `lockers` prepared lockers.
    fn round(&mut self, lockers: usize) -> Result<(), String> {
        let Self { streams, reply, batch, .. } = self;
        let (acquire, release) = batch.ends[lockers - 1];
        exchange(streams, &batch.acquire[..acquire], (GRANTED, lockers), reply)?;
        exchange(streams, &batch.release[..release], (RELEASED, lockers), reply)
    }
}

fn connect(servers: &[Server]) -> Result<Vec<TcpStream>, String> {
    let connect = |server: &Server| {
        let stream = TcpStream::connect(server.address())?;
        stream.set_nodelay(true)?;
        Ok(stream)
    };
    let named = |server: &Server| {
        let failed = |error: std::io::Error| format!("raw, {}: {error}", server.address());
        connect(server).map_err(failed)
    };
    servers.iter().map(named).collect()
}

/// Writes the same requests to all nodes, then reads the replies of all nodes.
fn exchange(
    streams: &mut [TcpStream],
    request: &[u8],
    expected: (&[u8], usize),
    reply: &mut Vec<u8>,
) -> Result<(), String> {
    write(streams, request)?;
    read(streams, expected, reply)
}

fn write(streams: &mut [TcpStream], request: &[u8]) -> Result<(), String> {
    let mut streams = streams.iter_mut();
    streams.try_for_each(|stream| stream.write_all(request)).map_err(|error| failed(&error))
}

/// Reads the replies of all nodes. Each node must send the expected reply this number of times.
fn read(
    streams: &mut [TcpStream],
    (expected, times): (&[u8], usize),
    reply: &mut Vec<u8>,
) -> Result<(), String> {
    reply.resize(expected.len() * times, 0);
    for stream in &mut *streams {
        stream.read_exact(reply).map_err(|error| failed(&error))?;
        if reply.chunks(expected.len()).any(|one| one != expected) {
            let start = String::from_utf8_lossy(&reply[..reply.len().min(200)]);
            return Err(format!("raw: not what was expected: {start:?}"));
        }
    }
    Ok(())
}

fn failed(error: &std::io::Error) -> String {
    format!("raw: {error}")
}

fn command(to: &mut Vec<u8>, args: &[&str]) {
    to.extend(format!("*{}\r\n", args.len()).bytes());
    for arg in args {
        to.extend(format!("${}\r\n{arg}\r\n", arg.len()).bytes());
    }
}

fn load(server: &Server) -> Result<String, String> {
    match server.command(&["SCRIPT", "LOAD", RELEASE]) {
        Ok(quorlock_servers::Reply::Bulk(Some(sha))) => Ok(String::from_utf8_lossy(&sha).into()),
        other => Err(format!("raw: SCRIPT LOAD: {other:?}")),
    }
}

impl Subject for Raw {
    fn name(&self) -> &'static str {
        NAME
    }

    fn pairs(&mut self, lockers: usize, time: Duration) -> Result<Sample, String> {
        self.prepare(lockers);
        let started = Started::now();
        let until = clock::now() + time;
        let latencies = repeat(until, lockers as u64, || self.round(lockers))?;
        started.end(&latencies)
    }

    /// A round contains the pairs that are due, at most [`ROUND`]. Later pairs wait for the next round.
    fn open_loop(&mut self, rate: usize, time: Duration) -> Result<Sample, String> {
        self.prepare(ROUND);
        let (due, schedule) = std::sync::mpsc::channel();
        let clock = std::thread::spawn(move || keep_time(rate, time, |_, at| due.send(at).is_ok()));
        let mut latencies = Latencies::default();
        let started = Started::now();
        while let Ok(first) = schedule.recv() {
            let mut round = vec![first];
            round.extend(schedule.try_iter().take(ROUND - 1));
            self.round(round.len())?;
            let done = clock::now();
            round.iter().for_each(|&at| latencies.record(done.saturating_sub(at)));
        }
        // The closed channel shows that the thread that keeps the schedule is ending, so `join` returns at once.
        let _ = clock.join();
        started.end(&latencies)
    }
}

/// Another library's lock client, reduced to what the workload `woken` needs.
pub(crate) struct Stranger {
    streams: Vec<TcpStream>,
    reply: Vec<u8>,
}

impl Stranger {
    pub(crate) const KEY: &'static str = "bench:stranger";

    /// Connects to all servers.
    ///
    /// # Errors
    /// If a connection fails.
    pub(crate) fn new(servers: &[Server]) -> Result<Self, String> {
        Ok(Self { streams: connect(servers)?, reply: Vec::new() })
    }

    pub(crate) fn acquire(&mut self) -> Result<(), String> {
        let mut set = Vec::new();
        command(&mut set, &["SET", Self::KEY, TOKEN, "NX", "PX", "60000"]);
        exchange(&mut self.streams, &set, (GRANTED, 1), &mut self.reply)
    }

    pub(crate) fn release(&mut self) -> Result<(), String> {
        let mut delete = Vec::new();
        command(&mut delete, &["DEL", Self::KEY]);
        exchange(&mut self.streams, &delete, (RELEASED, 1), &mut self.reply)
    }
}

/// Measures `PING`, the lower bound of other times: no call is faster than a `PING` to one server, and no attempt is
/// faster than a `PING` to a majority of its servers.
pub(crate) struct Ping {
    streams: Vec<TcpStream>,
}

impl Ping {
    pub(crate) fn new(servers: &[Server]) -> Result<Self, String> {
        Ok(Self { streams: connect(servers)? })
    }

    /// Sends pings again and again, each after a pause and to all servers at once. The measured time ends when the
    /// first servers of the list, as many as a majority, have answered.
    pub(crate) fn measure(&mut self, time: Duration, pause: Duration) -> Result<Sample, String> {
        const PING: (&[u8], (&[u8], usize)) = (b"*1\r\n$4\r\nPING\r\n", (b"+PONG\r\n", 1));
        let mut latencies = Latencies::default();
        let mut reply = Vec::new();
        let majority = self.streams.len() / 2 + 1;
        let started = Started::now();
        let until = clock::now() + time;
        loop {
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
            let now = clock::now();
            if now >= until {
                return started.end(&latencies);
            }
            let (first, rest) = self.streams.split_at_mut(majority);
            write(first, PING.0)?;
            write(rest, PING.0)?;
            read(first, PING.1, &mut reply)?;
            latencies.record(clock::now() - now);
            read(rest, PING.1, &mut reply)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use quorlock_servers::find_or_skip;

    use super::*;
    use crate::subjects::closed_loop::Locker as _;
    use crate::subjects::{Flavor, quorlock};
    use crate::testbed;

    #[test]
    fn raw_executes_what_quorlock_executes() {
        let Some(binary) = find_or_skip("raw_executes_what_quorlock_executes") else { return };
        let testbed = testbed::start(&binary, 1, &[]).unwrap();
        let servers = &testbed[..1];
        let mut raw = Raw::new(servers).unwrap();
        raw.prepare(10);
        let quorlock = quorlock::new(servers, Flavor::CurrentThread).unwrap();
        let pairs = |count| {
            quorlock.runtime.block_on(async {
                for _ in 0..count {
                    quorlock.locker.pair("bench:counted").await.unwrap();
                }
            });
        };
        // The first pair opens the connections, so that the counters below contain only commands of pairs.
        pairs(1);

        let start = Commands::read(servers).unwrap();
        for _ in 0..10 {
            raw.round(10).unwrap();
        }
        let between = Commands::read(servers).unwrap();
        pairs(100);
        let end = Commands::read(servers).unwrap();

        let (by_raw, by_quorlock) = (between.since(&start), end.since(&between));
        assert_eq!(by_raw.calls("set"), 100, "{by_raw:?}");
        assert_eq!(by_raw.sent(), 200, "{by_raw:?}");
        assert_eq!(by_raw, by_quorlock);
    }
}
