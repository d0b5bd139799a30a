//! Searches all keys of a node for locks, in small steps: `SCAN` pages, then short reads of the few keys that may be
//! locks. One page is in flight per node, and half of the time is pauses, so other clients are served in between.
//! Memory grows with the number of locks that are found, up to a limit, and not with the number of keys.
//!
//! Every vote that exists from the beginning to the end of the scan is found. Strings are read before sorted sets,
//! because a writer that becomes a reader turns its string into a sorted set, and never the reverse. Every vote that is
//! found existed at some time during the scan.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::doctor::acl::escaped;
use quorlock::admin::{
    AdminConnection, DATABASE, RESERVED, RedisNode, Reply, failure_of, now, pause, prefix_of_marker,
};
use quorlock::node::Holding;
use quorlock::{ClientBuilder, Resources};
use quorlock_core::store::READERS_MAX;
use quorlock_core::{BootTime, Failure, FailureKind, TTL_CEILING, Value};

/// The number of keys that one `SCAN` visits. A server needs about 0.1 ms for them.
const COUNT: usize = 100;

/// The number of keys that one `SCAN` visits for a pattern that few keys match. A server needs about 0.2 ms for them.
const COUNT_OF_FEW: usize = 1000;

const KEY_BYTES_MAX: usize = ClientBuilder::PREFIX_BYTES_MAX + Resources::NAME_BYTES_MAX;

/// Number of bytes of a value that are read first: a token, and the space before the owner text.
const START_BYTES: usize = 41;

/// A scan reads for this time, and then pauses for as long. Timers are exact to 1 ms, too coarse for shorter pauses.
const PAUSE: Duration = Duration::from_millis(4);

const READERS_AT_A_TIME: i64 = 64;

/// The most key prefixes of other clients that a scan remembers.
const PREFIXES_MAX: usize = 16;

/// One vote: a value of this library under a lock's key.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Vote {
    pub(crate) value: Arc<[u8]>,
    /// Time until the vote expires. `None`: it never expires, so it is no lock but a leftover.
    pub(crate) left: Option<Duration>,
    pub(crate) shared: bool,
}

/// The votes of one node, by key.
pub(crate) type Votes = BTreeMap<Arc<str>, Vec<Vote>>;

#[derive(Clone, Copy, Default)]
pub(crate) struct Scan<'a> {
    /// Only keys that match this pattern are read.
    pub(crate) pattern: Option<&'a str>,
    /// Prefix of the client's keys. If the user may not read other keys, only keys with this prefix are read.
    pub(crate) prefix: &'a str,
    /// Prefix of the intents of waiting writers, which are read like locks; `None`: intents are not read.
    pub(crate) intents: Option<&'a str>,
    /// The database to scan; `None`: the client's own.
    pub(crate) database: Option<u32>,
    pub(crate) until: Option<BootTime>,
    /// Limit of the votes on one node, at which the scan ends.
    pub(crate) votes_max: usize,
}

#[derive(Default)]
pub(crate) struct Scanned {
    pub(crate) votes: Votes,
    /// Key prefixes of clients that have a marker on the node.
    pub(crate) prefixes: Vec<String>,
    /// The reason if not all keys were read.
    pub(crate) incomplete: Option<Incomplete>,
    pub(crate) connection: Option<AdminConnection>,
}

/// The reason why not all keys of a node were read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Incomplete {
    /// The node failed, or the user lacks a right.
    Failed(Failure),
    /// The scan reached its time limit.
    TimeIsUp,
    /// The node has more locks than are listed.
    TooMany {
        /// Number of locks that are listed per node.
        max: usize,
    },
}

impl Incomplete {
    /// Whether the user lacks a right or is not known, or the server lacks a command.
    pub fn is_about_rights(&self) -> bool {
        self.kind().is_some_and(FailureKind::is_about_rights)
    }

    /// The kind of the node's failure; `None` if the scan was incomplete for another reason.
    pub fn kind(&self) -> Option<FailureKind> {
        match self {
            Self::Failed(failure) => Some(failure.kind()),
            _ => None,
        }
    }
}

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(failure) => failure.fmt(f),
            Self::TimeIsUp => f.write_str("it has too many keys to look at all of them in time"),
            Self::TooMany { max } => write!(f, "it has more than {max} locks"),
        }
    }
}

impl From<Failure> for Incomplete {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// The pattern for `SCAN`: this prefix, then a text that matches `glob`. `None` if the pattern would match all keys.
pub(crate) fn pattern(prefix: &str, glob: Option<&str>) -> Option<String> {
    match glob {
        None if prefix.is_empty() => None,
        glob => Some(format!("{}{}", escaped(prefix), glob.unwrap_or("*"))),
    }
}

impl Scan<'_> {
    pub(crate) async fn of(&self, server: &RedisNode) -> Scanned {
        let mut scanned = Scanned::default();
        scanned.incomplete = self.run(server, &mut scanned).await.err();
        scanned
    }

    async fn run(&self, server: &RedisNode, scanned: &mut Scanned) -> Result<(), Incomplete> {
        let mut connection = self.open(server).await?;
        let (mut forbidden, mut found) = (None, 0);
        for kind in ["string", "zset"] {
            let (mut cursor, mut count) = (b"0".to_vec(), COUNT);
            let mut busy = Duration::ZERO;
            loop {
                if self.until.is_some_and(|until| until.remaining(now()).is_zero()) {
                    return Err(Incomplete::TimeIsUp);
                }
                let started = now();
                let (next, keys) = match self.page(&connection, kind, &cursor, count).await {
                    // The page was larger than a reply may be. The same cursor is used for a page of fewer names.
                    Err(failure) if failure.kind() == FailureKind::Protocol && count > 1 => {
                        connection = self.open(server).await?;
                        count = (count / 8).max(1);
                        continue;
                    }
                    page => page?,
                };
                scanned.note_prefixes(&keys);
                let may_read = |key: &Arc<str>| forbidden.is_none() || key.starts_with(self.prefix);
                let is_intent = |key: &str| self.intents.is_some_and(|it| key.starts_with(it));
                let keys = keys.into_iter();
                let keys =
                    keys.filter(|key| (may_be_a_lock(key) || is_intent(key)) && may_read(key));
                let keys: Vec<Arc<str>> = keys.collect();
                let read = match kind {
                    "string" => read_strings(&connection, &keys).await?,
                    _ => read_sets(&connection, &keys).await?,
                };
                forbidden = forbidden.or(read.forbidden);
                found += read.votes.values().map(Vec::len).sum::<usize>();
                scanned.votes.extend(read.votes);
                if found > self.votes_max {
                    return Err(Incomplete::TooMany { max: self.votes_max });
                }
                if next == b"0" {
                    break;
                }
                cursor = next;
                busy += now().elapsed_since(started);
                if busy >= PAUSE {
                    pause(std::mem::take(&mut busy).min(2 * PAUSE)).await;
                }
            }
        }
        scanned.connection = Some(connection);
        forbidden.map_or(Ok(()), |failure| Err(failure.into()))
    }

    /// Adds the databases that clients of any key prefix have registered. Registrations are in the first database.
    /// `own` is the database of this client.
    ///
    /// # Errors
    /// Some registrations could not be read. Those that could be read are in `databases`.
    pub(crate) async fn registered_by_any(
        server: &RedisNode,
        own: u32,
        until: BootTime,
        databases: &mut BTreeSet<u32>,
    ) -> Result<(), Incomplete> {
        let pattern = format!("*{RESERVED}{DATABASE}");
        let database = (own != 0).then_some(0);
        let scan = Scan { pattern: Some(&pattern), database, ..Scan::default() };
        let connection = scan.open(server).await?;
        let (mut cursor, mut forbidden) = (b"0".to_vec(), None);
        loop {
            if until.remaining(now()).is_zero() {
                return Err(Incomplete::TimeIsUp);
            }
            let started = now();
            let (next, keys) = scan.page(&connection, "string", &cursor, COUNT_OF_FEW).await?;
            let reads: Vec<_> = keys.iter().map(|key| ["GET", key]).collect();
            for reply in ask(&connection, &reads).await? {
                match &reply {
                    Reply::Error(error) if !error.starts_with("WRONGTYPE") => {
                        forbidden = Some(failure_of(error));
                    }
                    reply => databases.extend(number::<u32>(reply)),
                }
            }
            if next == b"0" {
                return forbidden.map_or(Ok(()), |failure| Err(failure.into()));
            }
            cursor = next;
            pause(now().elapsed_since(started)).await;
        }
    }

    async fn open(&self, server: &RedisNode) -> Result<AdminConnection, Failure> {
        let connection = AdminConnection::open(server).await?;
        if let Some(database) = self.database {
            answer(&connection, &["SELECT", &database.to_string()]).await?;
        }
        Ok(connection)
    }

    /// One page of key names, with the cursor of the next page.
    async fn page(
        &self,
        connection: &AdminConnection,
        kind: &str,
        cursor: &[u8],
        count: usize,
    ) -> Result<(Vec<u8>, Vec<Arc<str>>), Failure> {
        let count = count.to_string();
        let mut words: Vec<&[u8]> = vec![b"SCAN", cursor, b"COUNT", count.as_bytes(), b"TYPE"];
        words.push(kind.as_bytes());
        if let Some(pattern) = self.pattern {
            words.extend([&b"MATCH"[..], pattern.as_bytes()]);
        }
        let page = match answer(connection, &words).await? {
            Reply::List(page) => <[Reply; 2]>::try_from(page).ok(),
            _ => None,
        };
        let Some([Reply::Bytes(next), Reply::List(names)]) = page else {
            return Err(Failure::new(FailureKind::Protocol));
        };
        let text = |name| match name {
            Reply::Bytes(name) => String::from_utf8(name).ok().map(Arc::from),
            _ => None,
        };
        Ok((next, names.into_iter().filter_map(text).collect()))
    }
}

impl Scanned {
    fn note_prefixes(&mut self, keys: &[Arc<str>]) {
        for key in keys {
            if let Some(prefix) = prefix_of_marker(key)
                && self.prefixes.len() < PREFIXES_MAX
                && !self.prefixes.iter().any(|other| other == prefix)
            {
                self.prefixes.push(prefix.to_owned());
            }
        }
    }
}

/// Whether a key may be a lock: it is not one of the library's own keys, and a lock can have its name.
fn may_be_a_lock(key: &str) -> bool {
    !key.is_empty() && key.len() <= KEY_BYTES_MAX && !key.contains(RESERVED)
}

#[derive(Default)]
pub(crate) struct Read {
    pub(crate) votes: Votes,
    /// The server's refusal if the user may not read one of the keys.
    pub(crate) forbidden: Option<Failure>,
}

impl Read {
    /// Returns the reply; `None` if the value has expired or has another type, or if the user may not read it.
    fn take(&mut self, reply: Option<Reply>) -> Result<Option<Reply>, Failure> {
        match reply {
            Some(Reply::Error(error)) if error.starts_with("WRONGTYPE") => Ok(None),
            Some(Reply::Error(error)) => {
                let failure = failure_of(&error);
                if failure.kind() != FailureKind::Forbidden {
                    return Err(failure);
                }
                self.forbidden.get_or_insert(failure);
                Ok(None)
            }
            reply => Ok(reply),
        }
    }
}

/// The votes of writers (strings) and of readers (sorted sets) under these keys.
pub(crate) async fn read_all(
    connection: &AdminConnection,
    keys: &[Arc<str>],
) -> Result<Votes, Failure> {
    let mut votes = Votes::new();
    for keys in keys.chunks(COUNT) {
        votes.extend(read_strings(connection, keys).await?.votes);
        votes.extend(read_sets(connection, keys).await?.votes);
    }
    Ok(votes)
}

/// The writers' votes under these keys.
async fn read_strings(connection: &AdminConnection, keys: &[Arc<str>]) -> Result<Read, Failure> {
    let mut read = Read::default();
    let mut some = Vec::new();
    let replies = get_ranges(connection, keys, START_BYTES).await?;
    for (key, reply) in keys.iter().zip(replies) {
        if let Some(Reply::Bytes(start)) = read.take(Some(reply))?
            && Value::owner_of(&start).is_some()
        {
            some.push(key.clone());
        }
    }
    let values = get_ranges(connection, &some, Holding::VALUE_BYTES_MAX).await?;
    let ttls: Vec<[&str; 2]> = some.iter().map(|key| ["PTTL", &**key]).collect();
    let ttls = ask(connection, &ttls).await?;
    for ((key, value), ttl) in some.into_iter().zip(values).zip(ttls) {
        // A value of this library is shorter than this limit, so a longer one is no vote.
        if let Some(Reply::Bytes(value)) = read.take(Some(value))?
            && value.len() < Holding::VALUE_BYTES_MAX
            && Value::owner_of(&value).is_some()
            && let Some(left) = time_left(&ttl)
        {
            read.votes.insert(key, vec![Vote { value: value.into(), left, shared: false }]);
        }
    }
    Ok(read)
}

/// The first bytes of the values under these keys.
pub(crate) async fn get_ranges(
    connection: &AdminConnection,
    keys: &[Arc<str>],
    bytes: usize,
) -> Result<Vec<Reply>, Failure> {
    let last = (bytes - 1).to_string();
    let words: Vec<[&str; 4]> = keys.iter().map(|key| ["GETRANGE", &**key, "0", &last]).collect();
    ask(connection, &words).await
}

/// The readers' votes under these keys.
async fn read_sets(connection: &AdminConnection, keys: &[Arc<str>]) -> Result<Read, Failure> {
    let mut read = Read::default();
    let words = keys.iter().flat_map(|key| {
        let key = &**key;
        [
            vec!["ZRANGE", key, "-1", "-1"],
            vec!["ZCOUNT", key, "-inf", "+inf"],
            vec!["PTTL", key],
            vec!["TIME"],
        ]
    });
    let words: Vec<Vec<&str>> = words.collect();
    let mut replies = ask(connection, &words).await?.into_iter();
    for key in keys {
        let [last, count, ttl, time] = std::array::from_fn(|_| replies.next());
        let (last, count) = (read.take(last)?, read.take(count)?);
        let (Some(Reply::List(last)), Some(Reply::Int(count))) = (last, count) else { continue };
        let is_ours = matches!(&last[..], [Reply::Bytes(last)] if Value::owner_of(last).is_some());
        let now_us = time.as_ref().and_then(time_us);
        let (Some(left), Some(now_us)) = (time_left(&ttl.unwrap_or(Reply::Nil)), now_us) else {
            continue;
        };
        if is_ours && (1..=READERS_MAX).contains(&usize::try_from(count).unwrap_or(0)) {
            let mut votes = readers(connection, key, count, (now_us / 1000) as f64).await?;
            if left.is_none() {
                votes.iter_mut().for_each(|vote| vote.left = None);
            } else {
                votes.retain(|vote| vote.left.is_some());
            }
            if !votes.is_empty() {
                read.votes.insert(key.clone(), votes);
            }
        }
    }
    Ok(read)
}

/// All readers of one key. `now_ms` is the server's time. Here a `left` of `None` means that the lock has expired.
async fn readers(
    connection: &AdminConnection,
    key: &str,
    count: i64,
    now_ms: f64,
) -> Result<Vec<Vote>, Failure> {
    let starts = (0..count).step_by(READERS_AT_A_TIME as usize);
    let words = starts.map(|start| {
        let bounds = [start.to_string(), (start + READERS_AT_A_TIME - 1).to_string()];
        let [from, to] = bounds;
        vec!["ZRANGE".to_owned(), key.to_owned(), from, to, "WITHSCORES".to_owned()]
    });
    let mut votes = Vec::new();
    for reply in ask(connection, &words.collect::<Vec<_>>()).await? {
        let Reply::List(members) = reply else { continue };
        // RESP3 has a list of pairs, RESP2 one flat list.
        let flat: Vec<Reply> = members
            .into_iter()
            .flat_map(|member| match member {
                Reply::List(pair) => pair,
                one => vec![one],
            })
            .collect();
        for pair in flat.chunks_exact(2) {
            let (Reply::Bytes(value), Some(end_ms)) = (&pair[0], number::<f64>(&pair[1])) else {
                continue;
            };
            if Value::owner_of(value).is_none() {
                continue;
            }
            let left = (end_ms - now_ms).clamp(-1.0, TTL_CEILING.as_millis() as f64);
            let left = (left >= 0.0).then(|| Duration::from_millis(left as u64));
            votes.push(Vote { value: value.as_slice().into(), left, shared: true });
        }
    }
    Ok(votes)
}

/// The remaining time in a reply to `PTTL`. `Some(None)`: the key never expires. `None`: there is no key, or one that
/// lives longer than any lock.
fn time_left(reply: &Reply) -> Option<Option<Duration>> {
    match reply {
        Reply::Int(-1) => Some(None),
        Reply::Int(ms) => {
            let left = Duration::from_millis(u64::try_from(*ms).ok()?);
            (left <= TTL_CEILING).then_some(Some(left))
        }
        _ => None,
    }
}

/// The server's clock in microseconds, from a reply to `TIME`.
pub(crate) fn time_us(reply: &Reply) -> Option<i64> {
    let Reply::List(parts) = reply else { return None };
    let seconds: i64 = number(parts.first()?)?;
    seconds.checked_mul(1_000_000)?.checked_add(number(parts.get(1)?)?)
}

/// The number in a reply, which a server may write as text.
pub(crate) fn number<T: FromStr>(reply: &Reply) -> Option<T> {
    match reply {
        Reply::Bytes(digits) => std::str::from_utf8(digits).ok()?.parse().ok(),
        Reply::Text(digits) => digits.parse().ok(),
        Reply::Int(number) => number.to_string().parse().ok(),
        _ => None,
    }
}

/// Sends these commands. The replies may be errors of the server.
async fn ask<C: AsRef<[W]>, W: AsRef<[u8]>>(
    connection: &AdminConnection,
    commands: &[C],
) -> Result<Vec<Reply>, Failure> {
    if commands.is_empty() { Ok(Vec::new()) } else { connection.ask(commands).await }
}

/// Sends one command. Fails if the reply is an error of the server.
async fn answer<W: AsRef<[u8]>>(
    connection: &AdminConnection,
    command: &[W],
) -> Result<Reply, Failure> {
    match connection.ask(&[command]).await?.into_iter().next() {
        Some(Reply::Error(error)) => Err(failure_of(&error)),
        Some(reply) => Ok(reply),
        None => Err(Failure::new(FailureKind::Protocol)),
    }
}
