//! Searches all keys of a node for locks, in small steps: `SCAN` pages, then short reads of the few keys that may be
//! locks. One page is in flight per node, and half of the time is pauses, so other clients are served in between.
//! Memory grows with the number of locks that are found, up to a limit, and not with the number of keys.
//!
//! Every vote that exists from the beginning to the end of the scan is found. Strings are read before sorted sets,
//! because a writer that becomes a reader turns its string into a sorted set, and never the reverse. Every vote that is
//! found existed at some time during the scan.

mod reading;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use self::reading::{answer, ask, read_sets, read_strings};
pub(crate) use self::reading::{get_ranges, number, read_all, time_us};
use crate::doctor::acl::escaped;
use futures_util::future::{Either, select};
use quorlock::admin::{
    AdminConnection, DATABASE, RESERVED, RedisNode, Reply, failure_of, now, pause, prefix_of_marker,
};
use quorlock::{ClientBuilder, Resources};
use quorlock_core::{BootTime, Failure, FailureKind};

/// The number of keys that one `SCAN` visits. A server needs about 0.1 ms for them.
const COUNT: usize = 100;

/// The number of keys that one `SCAN` visits for a pattern that few keys match, or on a distant node. A server needs about
/// 0.2 ms for them, or 1 ms if many match.
const COUNT_OF_FEW: usize = 1000;

/// A node whose page takes this long is distant. It answers few pages a second, so each visits more keys.
const DISTANT: Duration = Duration::from_millis(10);

const KEY_BYTES_MAX: usize = ClientBuilder::PREFIX_BYTES_MAX + Resources::NAME_BYTES_MAX;

/// A scan reads for this time, and then pauses for as long. Timers are exact to 1 ms, too coarse for shorter pauses.
const PAUSE: Duration = Duration::from_millis(4);

/// The most key prefixes of other clients that a scan remembers.
const PREFIXES_MAX: usize = 16;

/// The most fencing counters that a scan remembers.
pub(crate) const COUNTERS_MAX: usize = 1000;

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
    /// Prefix of the fencing counters, whose names are collected; `None`: they are not.
    pub(crate) counters: Option<&'a str>,
    /// The database to scan; `None`: the client's own.
    pub(crate) database: Option<u32>,
    /// The end of the scan, even while an answer is outstanding; `None`: the caller ends it.
    pub(crate) until: Option<BootTime>,
    /// Limit of the votes on one node, at which the scan ends.
    pub(crate) votes_max: usize,
}

#[derive(Default)]
pub(crate) struct Scanned {
    pub(crate) votes: Votes,
    /// Key prefixes of clients that have a marker on the node.
    pub(crate) prefixes: Vec<String>,
    /// Resources with a fencing counter, at most [`COUNTERS_MAX`].
    pub(crate) fenced: BTreeSet<Arc<str>>,
    /// The reason if not all keys were read. [`Incomplete::TimeIsUp`] until the scan ends.
    pub(crate) incomplete: Option<Incomplete>,
    pub(crate) connection: Option<AdminConnection>,
}

/// The reason why not all keys of a node were read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Incomplete {
    /// The node failed, or the user lacks a right.
    Failed(Failure),
    /// All keys were read, but the node may have forgotten locks, or its votes do not count at all, for this reason.
    Doubtful(Failure),
    /// The scan reached its time limit: the node has very many keys, or its `SCAN` does not end.
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
            Self::Failed(failure) | Self::Doubtful(failure) => Some(failure.kind()),
            Self::TimeIsUp | Self::TooMany { .. } => None,
        }
    }
}

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(failure) => failure.fmt(f),
            Self::Doubtful(failure) if failure.kind().is_for_good() => {
                write!(f, "its answer does not count: {failure}")
            }
            Self::Doubtful(failure) => write!(f, "it may have forgotten locks: {failure}"),
            Self::TimeIsUp => f.write_str(
                "it has too many keys for the time that they may take, or its SCAN does not end",
            ),
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
        within(self.until, self.read(server, &mut scanned)).await;
        scanned
    }

    /// Scans the node. `scanned` has what was read so far if the future is dropped. Returns whether all keys were read.
    pub(crate) async fn read(&self, server: &RedisNode, scanned: &mut Scanned) -> bool {
        scanned.incomplete = Some(Incomplete::TimeIsUp);
        scanned.incomplete = self.run(server, scanned).await.err();
        scanned.incomplete.is_none()
    }

    async fn run(&self, server: &RedisNode, scanned: &mut Scanned) -> Result<(), Incomplete> {
        let mut connection = self.open(server).await?;
        let (mut forbidden, mut found) = (None, 0);
        for kind in ["string", "zset"] {
            let (mut cursor, mut count, mut count_max) = (b"0".to_vec(), COUNT, COUNT_OF_FEW);
            let mut busy = Duration::ZERO;
            loop {
                let started = now();
                let (next, keys) = match self.page(&connection, kind, &cursor, count).await {
                    // The page was larger than a reply may be. The same cursor is used for a page of fewer names.
                    Err(failure) if failure.kind() == FailureKind::Protocol && count > 1 => {
                        connection = self.open(server).await?;
                        count = (count / 8).max(1);
                        count_max = count;
                        continue;
                    }
                    page => page?,
                };
                if now().elapsed_since(started) >= DISTANT {
                    count = count_max;
                }
                scanned.note_prefixes(&keys);
                scanned.note_counters(&keys, self.counters);
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
                // Each cursor of a scan that ends is another one.
                if next == cursor {
                    return Err(Incomplete::TimeIsUp);
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
            // On a distant node most of this time is the way.
            pause(now().elapsed_since(started).min(2 * PAUSE)).await;
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
    fn note_counters(&mut self, keys: &[Arc<str>], prefix: Option<&str>) {
        let resources = keys.iter().filter_map(|key| key.strip_prefix(prefix?));
        for resource in resources {
            let is_name = resource.len() <= Resources::NAME_BYTES_MAX;
            if is_name && self.fenced.len() < COUNTERS_MAX {
                self.fenced.insert(resource.into());
            }
        }
    }

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

/// The result of the future; `None` if it is not ready by this time.
pub(crate) async fn within<T>(until: Option<BootTime>, work: impl Future<Output = T>) -> Option<T> {
    let Some(until) = until else { return Some(work.await) };
    match select(pin!(work), pin!(pause(until.remaining(now())))).await {
        Either::Left((result, _)) => Some(result),
        Either::Right(_) => None,
    }
}

/// Whether a key may be a lock: it is not one of the library's own keys, and a lock can have its name.
fn may_be_a_lock(key: &str) -> bool {
    !key.is_empty() && key.len() <= KEY_BYTES_MAX && !key.contains(RESERVED)
}
