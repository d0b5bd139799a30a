//! Collects the facts about a node, without evaluating them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use quorlock::admin::{AdminConnection, Do, RedisCli, RedisNode, Reply, Topology, now};
use quorlock_core::Failure;
use quorlock_core::display::{LINE_MAX, WORD_MAX, shown};
use quorlock_core::info::Info;
use quorlock_core::marker::{Adoption, Cluster, Marker};

use super::ClockOffset;
use super::rights::{self, Rights};
use crate::locks::VOTES_MAX;
use crate::scan::{Incomplete, Scan, Vote, pattern, time_us};

/// Time limit of a scan of the keys.
const SCAN_MAX: Duration = Duration::from_secs(1);

/// Number of round trips that are measured. It is odd, so the median is one of them.
const ROUND_TRIPS: usize = 7;

pub(crate) struct Looked {
    pub(crate) name: Arc<str>,
    pub(crate) address: String,
    /// Whether a Sentinel gave the address.
    pub(crate) is_located: bool,
    pub(crate) redis_cli: RedisCli,
    /// The number of replicas that the client's settings give the node.
    pub(crate) replicas: u32,
    /// The facts, or the failure if the node could not be examined.
    pub(crate) facts: Result<Facts, Failure>,
}

impl Looked {
    /// The settings in the node's marker or, during a wait, in its adoption.
    /// The name of each node with its settings.
    pub(crate) fn settings(all: &[Self]) -> Vec<(&str, String)> {
        all.iter().filter_map(|node| Some((&*node.name, node.cluster()?.to_string()))).collect()
    }

    pub(crate) fn cluster(&self) -> Option<Cluster> {
        let facts = self.facts.as_ref().ok()?;
        match (&facts.marker, &facts.adoption) {
            (Seen::Text(text), _) => Some(Marker::parse(text)?.cluster),
            (Seen::Nothing, Seen::Text(text)) => Some(Adoption::parse(text)?.marker.cluster),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) speaks_resp3: bool,
    /// The part of `INFO` that decides whether votes count; the error if it is not known.
    pub(crate) info: Result<Info, String>,
    pub(crate) more: More,
    pub(crate) marker: Seen,
    pub(crate) adoption: Seen,
    /// The failure if the locks are in another database than that of the settings, or if their database is unknown.
    pub(crate) elsewhere: Option<Failure>,
    /// Age of the adoption, the key that begins a node's wait: how long the node has waited for a new marker.
    pub(crate) adopted_for: Duration,
    /// Whether the server lets everybody send `DEBUG`. False also if the user may not read the server's settings.
    pub(crate) may_debug: bool,
    pub(crate) rights: Rights,
    pub(crate) times: Times,
    /// Failures of Sentinels, each with the Sentinel's address. Only a thorough examination asks all Sentinels.
    pub(crate) sentinels: Vec<Failure>,
    /// Keys that have a lock's value and never expire. Only a thorough examination searches for them.
    pub(crate) leftovers: Vec<Arc<str>>,
    /// Resources with a fencing counter. Only a thorough examination searches for them.
    pub(crate) fenced: BTreeSet<Arc<str>>,
    /// The reason why the search for `leftovers` did not read all keys. `None`: it did, or there was no search.
    pub(crate) unscanned: Option<Incomplete>,
}

impl Facts {
    /// The server's first error that is due to missing rights.
    pub(crate) fn refusal(&self) -> Option<&str> {
        let keys = [&self.marker, &self.adoption].into_iter().filter_map(|seen| match seen {
            Seen::Unreadable(error) => Some(error),
            _ => None,
        });
        let mut errors = self.info.as_ref().err().into_iter().chain(keys);
        errors.find(|error| error.starts_with("NOPERM")).map(String::as_str)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Times {
    pub(crate) round_trips: Vec<Duration>,
    pub(crate) offset: Option<ClockOffset>,
    /// Whether all readings of the server's wall clock were the same, so that the clock seems to stand still.
    pub(crate) clock_stands: bool,
    /// The last reading of the server's wall clock, in microseconds.
    pub(crate) last_us: Option<i64>,
}

/// The value of a key of the library's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Nothing,
    Text(String),
    /// The value is no text, or the server answered with an error.
    Unreadable(String),
}

/// Facts from `INFO` that do not decide whether votes count.
#[derive(Clone, Debug, Default)]
pub(crate) struct More {
    pub(crate) software: Option<String>,
    pub(crate) version: Option<(u32, u32)>,
    pub(crate) evicted_keys: u64,
    pub(crate) replicas: u64,
    /// Addresses of replicas, as far as the server knows them.
    pub(crate) replica_addresses: Vec<String>,
    /// Number of connected replicas that are not synchronised, or have acknowledged nothing for some seconds.
    pub(crate) silent_replicas: usize,
    pub(crate) master: Option<String>,
}

impl Times {
    pub(crate) fn latency(&self) -> Option<Duration> {
        self.round_trips.get(self.round_trips.len() / 2).copied()
    }
}

pub(crate) async fn look_at_all(
    topology: &Topology,
    servers: &[RedisNode],
    thorough: bool,
) -> Vec<Looked> {
    let looks = servers.iter().map(|server| async move {
        let facts = look(topology, server, thorough).await;
        let address = server.located();
        Looked {
            name: server.name().into(),
            is_located: address != server.address(),
            address,
            redis_cli: server.redis_cli(),
            replicas: server.replicas(),
            facts,
        }
    });
    futures_util::future::join_all(looks).await
}

async fn look(topology: &Topology, server: &RedisNode, thorough: bool) -> Result<Facts, Failure> {
    let connection = AdminConnection::open(server).await?;
    // A thorough examination, as for `doctor`, reports each missing command itself. Any other examination fails here.
    if !thorough && let Some(failure) = connection.no_locks() {
        return Err(failure);
    }
    let questions = [
        &["INFO"][..],
        &["GET", &topology.rules.marker],
        &["GET", &topology.rules.adoption],
        &["PTTL", &topology.rules.adoption],
        &["CONFIG", "GET", "appendfsync"],
        &["CONFIG", "GET", "no-appendfsync-on-rewrite"],
        &["CONFIG", "GET", "enable-debug-command"],
    ];
    let mut replies = connection.ask(&questions).await?.into_iter();
    let mut next = || replies.next().unwrap_or(Reply::Nil);
    let info = text(next());
    let (marker, adoption) = (seen(next()), seen(next()));
    let adopted_for = match next() {
        Reply::Int(left_ms) => {
            let left_ms = u64::try_from(left_ms).unwrap_or(Adoption::TTL_MS);
            Duration::from_millis(Adoption::TTL_MS.saturating_sub(left_ms))
        }
        _ => Duration::ZERO,
    };
    let appendfsync = setting(next()).map(Into::into);
    let rests_on_rewrite = setting(next()).map(|rests| rests == "yes");
    let may_debug = setting(next()).as_deref() == Some("yes");
    let elsewhere = connection.register(&topology.rules.marker, Do::Look).await.err();
    let times = times(&connection).await?;
    let (mut rights, mut leftovers, mut fenced, mut sentinels) = Default::default();
    let mut unscanned = None;
    if thorough {
        rights = rights::test(&connection, topology, server.replicas() > 0).await?;
        (leftovers, fenced, unscanned) = find_leftovers(topology, server).await;
        sentinels = server.sentinel_failures().await;
    }
    Ok(Facts {
        speaks_resp3: connection.speaks_resp3(),
        more: info.as_deref().map(More::parse).unwrap_or_default(),
        info: info.and_then(|info| {
            let info = Info::parse(&info).map_err(|missing| missing.to_string())?;
            // A client adds these settings to `INFO` in the same way, so the examination decides as a client does.
            Ok(Info { appendfsync, rests_on_rewrite, ..info })
        }),
        marker,
        adoption,
        elsewhere,
        adopted_for,
        may_debug,
        rights,
        times,
        sentinels,
        leftovers,
        fenced,
        unscanned,
    })
}

/// Searches for keys that have a lock's value and never expire, and for fencing counters.
async fn find_leftovers(
    topology: &Topology,
    server: &RedisNode,
) -> (Vec<Arc<str>>, BTreeSet<Arc<str>>, Option<Incomplete>) {
    let pattern = pattern(&topology.prefix, None);
    let (intents, counters) = (topology.intent(""), topology.counter(""));
    let scan = Scan {
        pattern: pattern.as_deref(),
        prefix: &topology.prefix,
        intents: Some(&intents),
        counters: Some(&counters),
        until: Some(now().after(SCAN_MAX)),
        votes_max: VOTES_MAX,
        ..Scan::default()
    };
    let found = scan.of(server).await;
    let never_ends = |votes: &Vec<Vote>| votes.iter().any(|vote| vote.left.is_none());
    let keys = found.votes.into_iter().filter(|(_, votes)| never_ends(votes));
    (keys.map(|(key, _)| key).collect(), found.fenced, found.incomplete)
}

/// Measures round trips, one at a time, and reads the clock with each. The reading with the shortest round trip has the
/// smallest error.
async fn times(connection: &AdminConnection) -> Result<Times, Failure> {
    let question = [vec!["PING"], vec!["TIME"]];
    let mut samples = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let before = now();
        let replies = connection.ask(&question).await?;
        let after = now();
        let took = after.elapsed_since(before);
        let middle_us = (before.real_ns() / 2 + after.real_ns() / 2) / 1000;
        let time_us = replies.get(1).and_then(time_us);
        samples.push((took, time_us, middle_us));
    }
    let clock: Vec<i64> = samples.iter().filter_map(|(_, time_us, _)| *time_us).collect();
    let clock_stands = clock.len() > 1 && clock.iter().all(|time| *time == clock[0]);
    samples.sort_unstable();
    let offset = samples.iter().find_map(|(took, time_us, middle_us)| {
        let ahead_us = (*time_us)?.saturating_sub(*middle_us);
        Some(ClockOffset { ahead_us, error: *took / 2 })
    });
    Ok(Times {
        round_trips: samples.into_iter().map(|(took, ..)| took).collect(),
        offset,
        clock_stands,
        last_us: clock.last().copied(),
    })
}

fn seen(reply: Reply) -> Seen {
    match reply {
        Reply::Nil => Seen::Nothing,
        reply => text(reply).map_or_else(Seen::Unreadable, Seen::Text),
    }
}

/// The text of a reply, or the error in words.
fn text(reply: Reply) -> Result<String, String> {
    match reply {
        Reply::Bytes(bytes) => {
            String::from_utf8(bytes).map_err(|_| "what is there is not text".to_owned())
        }
        Reply::Text(text) => Ok(text),
        Reply::Error(error) => Err(shown(&error, LINE_MAX)),
        _ => Err("an answer that does not fit the question".to_owned()),
    }
}

/// The value of one setting in a reply to `CONFIG GET`.
fn setting(reply: Reply) -> Option<String> {
    let Reply::List(parts) = reply else { return None };
    text(parts.into_iter().nth(1)?).ok()
}

/// A field of a line of `INFO` such as `slave0:ip=127.0.0.1,port=6380,state=online,offset=14,lag=0`.
fn of_replica<'a>(line: &'a str, field: &str) -> Option<&'a str> {
    let (number, told) = line.strip_prefix("slave")?.split_once(':')?;
    number.parse::<u32>().ok()?;
    told.split(',').find_map(|part| part.trim().strip_prefix(field)?.strip_prefix('='))
}

fn replica_address(line: &str) -> Option<String> {
    address(of_replica(line, "ip")?, of_replica(line, "port")?)
}

/// A replica acknowledges once per second, so a lag of several seconds means that it does not run or is cut off.
fn is_silent_replica(line: &str) -> bool {
    let lag = of_replica(line, "lag").and_then(|lag| lag.parse().ok()).unwrap_or(0_u64);
    of_replica(line, "state").is_some_and(|state| state != "online" || lag > 3)
}

/// The address that a server has reported. `None` for any other text, because people paste commands with the address.
fn address(host: &str, port: &str) -> Option<String> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%');
    let is_host =
        (1..=255).contains(&host.len()) && host.chars().all(good) && !host.starts_with('-');
    let port = port.parse::<u16>().ok()?;
    is_host.then(|| format!("{host}:{port}"))
}

impl More {
    fn parse(info: &str) -> Self {
        let find = |name: &str| {
            info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
        };
        let number = |name| find(name).and_then(|number| number.parse().ok()).unwrap_or(0);
        // Valkey reports two versions: its own, and the version of Redis that it is compatible with.
        let (name, version) = match (find("valkey_version"), find("redis_version")) {
            (Some(version), _) => ("Valkey", Some(version)),
            (None, version) => ("Redis", version),
        };
        let parts = version.map(|version| {
            let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
            (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
        });
        Self {
            software: version.map(|version| format!("{name} {}", shown(version, WORD_MAX))),
            version: parts,
            evicted_keys: number("evicted_keys"),
            replicas: number("connected_slaves"),
            replica_addresses: info.lines().filter_map(replica_address).collect(),
            silent_replicas: info.lines().filter(|line| is_silent_replica(line)).count(),
            master: find("master_host")
                .zip(find("master_port"))
                .and_then(|(host, port)| address(host, port)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// People paste commands with addresses that servers report. So no command may contain a text that is no address.
    #[test]
    fn an_address_that_is_none_is_not_repeated() {
        let more = More::parse(
            "redis_version:7.0\u{1b}]0;x\r\nslave0:ip=$(reboot),port=1\r\nslave1:ip=::1,port=6380,state=online\r\n\
             slave2:ip=-x,port=7\r\nslave3:ip=a,port=7;reboot\r\nmaster_host:a`reboot`\r\nmaster_port:6379\r\n",
        );
        assert_eq!(more.replica_addresses, ["::1:6380"]);
        let silent = |line: &str| More::parse(line).silent_replicas;
        assert_eq!(silent("slave0:ip=::1,port=1,state=online,offset=5,lag=1"), 0);
        assert_eq!(silent("slave0:ip=::1,port=1,state=online,offset=5,lag=21"), 1);
        assert_eq!(silent("slave0:ip=::1,port=1,state=send_bulk,offset=5,lag=0"), 1);
        assert_eq!(more.master, None);
        assert_eq!(more.software.as_deref(), Some("Redis 7.0\\u{1b}]0;x"));
    }
}
