//! Lists every lock on the nodes: [`list`] reads all keys in small steps, so other clients are served in between.
//!
//! A lock that is held throughout the scan is listed, and a lock that is listed was held at some time during it. This
//! applies to the nodes that could be read; see [`Locks::complete`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::{join, join_all};
use futures_util::stream::FuturesUnordered;
use quorlock::admin::{Topology, holder, now};
use quorlock::{BuildError, ClientBuilder, Holder};
use quorlock_core::BootTime;

use crate::looks::Examiner;
pub use crate::scan::Incomplete;
use crate::scan::{Scan, Scanned, Votes, get_ranges, number, pattern, read_all, within};

/// Limit of the votes that are listed per node. More are reported as [`Incomplete::TooMany`].
pub const VOTES_MAX: usize = 50_000;

/// The longest time for which [`list`] reads the nodes.
pub const TIME_MAX: Duration = Duration::from_secs(600);

/// When a quorum of nodes has been read completely, the others have as long again, and at least this time.
const REST_MIN: Duration = Duration::from_secs(5);

const TOKEN_DIGITS: usize = 16;

const AT_A_TIME: usize = 250;

/// The kind of an entry in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockKind {
    /// No other client has the lock.
    Exclusive,
    /// A reader has the lock, and shares it with other readers.
    Shared,
    /// No lock, but the leftover intent of a writer: it never expires, and keeps readers out.
    Intent,
}

/// One holder of one lock. A lock with several keys is listed once for each key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lock {
    /// The resource's name, without the key prefix.
    pub resource: Arc<str>,
    /// Whether the holder is a writer or a reader, or has left an intent behind, which keeps readers out.
    pub kind: LockKind,
    /// The holder, and the time after which no node has the lock any more unless it is extended. The time is `None` if
    /// the key has no expiry: such a key is a leftover.
    pub holder: Holder,
    /// The nodes that have the holder's value.
    pub nodes: Vec<Arc<str>>,
    /// The last fencing token that was given out for the key, if a quorum of nodes has the same. It is the holder's, unless
    /// the holder asked for none.
    pub fencing_token: Option<u64>,
    /// Whether a node has a fencing counter for the lock: a holder within the last seven days had a fencing token, so all
    /// holders must have one.
    pub has_fencing_counter: bool,
    /// Whether fewer than a quorum of nodes can have this value: the lock is lost, being taken or being released.
    pub stale: bool,
}

/// Result of the scan of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeLook {
    /// The node's name.
    pub node: Arc<str>,
    /// The reason if not all keys were read, or if the node may have forgotten locks.
    pub incomplete: Option<Incomplete>,
}

/// Result of [`list`]: the locks, and how completely each node was read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Locks {
    /// Sorted by resource. Of one resource, the holder with the most nodes comes first.
    pub locks: Vec<Lock>,
    /// One entry per node, in the order of the nodes in the settings.
    pub nodes: Vec<NodeLook>,
    /// Number of nodes that must grant a lock.
    pub quorum: usize,
}

impl Locks {
    /// Number of nodes that were read completely, and whose answers count. If they are at least a quorum, every lock that
    /// was held throughout the scan is listed.
    pub fn complete(&self) -> usize {
        self.nodes.iter().filter(|node| node.incomplete.is_none()).count()
    }
}

/// Lists the locks whose resources match `glob`, a pattern in the syntax of `KEYS`. Without `glob`, lists all locks
/// under the key prefix, and also intents that never expire.
///
/// The user needs the right to `SCAN` in addition to the rights of a client. Values that this library would not store
/// are left out. Of each node, the scan holds in memory one page of names, and at most [`VOTES_MAX`] votes.
///
/// The scan takes at most [`TIME_MAX`]. It ends sooner if it waits for a minority of nodes alone: when a quorum has been
/// read completely, the others have as long again, and at least 5 s. A node that is not read completely by then is
/// [`Incomplete::TimeIsUp`].
///
/// # Errors
/// [`BuildError`], as from [`ClientBuilder::build`]; nothing was sent. A node that fails is reported in
/// [`Locks::nodes`].
///
/// # Cancel safety
/// The future may be dropped at any time, because nothing is written.
pub async fn list(settings: &ClientBuilder, glob: Option<&str>) -> Result<Locks, BuildError> {
    let topology = Topology::of(settings)?;
    let prefix = &*topology.prefix;
    let pattern = pattern(prefix, glob);
    let intent = topology.intent("");
    let scan = Scan {
        pattern: pattern.as_deref(),
        prefix,
        intents: Some(&intent),
        votes_max: VOTES_MAX,
        ..Scan::default()
    };
    let examiner = Examiner::new(settings, &topology)?;
    let needed = topology.quorum.needed();
    let started = now();
    let (mut scans, _) = join(scan_all(scan, &topology, needed), examiner.doubts()).await;
    let rest = || now().after(now().elapsed_since(started).max(REST_MIN));
    look_again(&mut scans, rest()).await;
    let merged = merged(scans.iter().map(|scan| &scan.votes).enumerate());
    let fences = fences(&topology, &scans, &merged, rest()).await;
    for (scan, doubt) in scans.iter_mut().zip(examiner.doubts().await) {
        scan.incomplete = scan.incomplete.take().or(doubt.map(Incomplete::Doubtful));
    }
    let names: Vec<Arc<str>> = topology.servers.iter().map(|server| server.name().into()).collect();
    let unseen = scans.iter().filter(|scan| scan.incomplete.is_some()).count();
    let mut locks: Vec<Lock> = merged
        .into_iter()
        .filter_map(|((key, value), found)| {
            let tokens = fences.iter().enumerate().filter_map(|(place, tokens)| {
                tokens.get(&key).filter(|_| found.nodes.contains(&place))
            });
            let has_fencing_counter =
                !found.shared && fences.iter().any(|tokens| tokens.contains_key(&key));
            let (resource, kind) = match key.strip_prefix(&*intent) {
                // An intent that expires belongs to a waiting writer, and is not listed.
                Some(_) if found.left.is_some() => return None,
                Some(resource) => (resource, LockKind::Intent),
                None if found.shared => (key.strip_prefix(prefix)?, LockKind::Shared),
                None => (key.strip_prefix(prefix)?, LockKind::Exclusive),
            };
            Some(Lock {
                resource: resource.into(),
                kind,
                holder: holder(&value, found.left)?,
                fencing_token: agreed(tokens, needed).filter(|_| !found.shared),
                has_fencing_counter,
                stale: found.nodes.len() + unseen < needed,
                nodes: found.nodes.iter().map(|place| names[*place].clone()).collect(),
            })
        })
        .collect();
    locks.sort_by(|one, other| {
        let nodes = |lock: &Lock| std::cmp::Reverse(lock.nodes.len());
        (&one.resource, nodes(one)).cmp(&(&other.resource, nodes(other)))
    });
    let nodes = names.into_iter().zip(scans);
    let nodes = nodes.map(|(node, scan)| NodeLook { node, incomplete: scan.incomplete }).collect();
    Ok(Locks { locks, nodes, quorum: needed })
}

/// Scans all nodes at once, within the times that [`list`] documents.
async fn scan_all(scan: Scan<'_>, topology: &Topology, needed: usize) -> Vec<Scanned> {
    let started = now();
    let mut until = started.after(TIME_MAX);
    let mut scans: Vec<Scanned> = topology.servers.iter().map(|_| Scanned::default()).collect();
    let reads = topology.servers.iter().zip(&mut scans);
    let mut reads: FuturesUnordered<_> =
        reads.map(|(server, scanned)| scan.read(server, scanned)).collect();
    let mut complete = 0;
    while let Some(Some(is_complete)) = within(Some(until), reads.next()).await {
        complete += usize::from(is_complete);
        if is_complete && complete == needed {
            until = until.min(now().after(now().elapsed_since(started).max(REST_MIN)));
        }
    }
    drop(reads);
    scans
}

pub(crate) struct Found {
    pub(crate) shared: bool,
    /// The longest remaining time on any node; `None` if a node's key never expires.
    pub(crate) left: Option<Duration>,
    /// The nodes that have this vote, as indexes into the list of nodes.
    pub(crate) nodes: Vec<usize>,
}

/// The votes of all nodes, by key and value. `nodes` has a node's index in the list of nodes, and the node's votes.
pub(crate) fn merged<'a>(
    nodes: impl Iterator<Item = (usize, &'a Votes)>,
) -> BTreeMap<(Arc<str>, Arc<[u8]>), Found> {
    let mut merged: BTreeMap<_, Found> = BTreeMap::new();
    for (place, votes) in nodes {
        for (key, votes) in votes {
            for vote in votes {
                let found = merged.entry((key.clone(), vote.value.clone()));
                let found = found.or_insert_with(|| Found {
                    shared: vote.shared,
                    left: Some(Duration::ZERO),
                    nodes: Vec::new(),
                });
                found.left = found.left.zip(vote.left).map(|(one, other)| one.max(other));
                found.nodes.push(place);
            }
        }
    }
    merged
}

/// Reads again, on all nodes at once, those keys that not all nodes have with the same value. The scans reach a key at
/// different times, so a lock that is acquired or released meanwhile seems to have too few votes. A node that does not
/// answer by `until` keeps what its scan has read.
async fn look_again(scans: &mut [Scanned], until: BootTime) {
    let whole = scans.iter().filter(|scan| scan.connection.is_some()).count();
    let found = merged(scans.iter().map(|scan| &scan.votes).enumerate());
    let mut differ: Vec<Arc<str>> = found
        .into_iter()
        .filter(|(_, found)| found.nodes.len() < whole)
        .map(|((key, _), _)| key)
        .collect();
    differ.dedup();
    let reads = scans.iter().map(|scan| async {
        let connection = scan.connection.as_ref()?;
        within(Some(until), read_all(connection, &differ)).await?.ok()
    });
    for (scan, read) in join_all(reads).await.into_iter().enumerate() {
        let (Some(read), votes) = (read, &mut scans[scan].votes) else { continue };
        differ.iter().for_each(|key| {
            votes.remove(key);
        });
        votes.extend(read);
    }
}

/// The fencing counters of each node for the keys that have a writer, as far as the node tells them by `until`.
async fn fences(
    topology: &Topology,
    scans: &[Scanned],
    merged: &BTreeMap<(Arc<str>, Arc<[u8]>), Found>,
    until: BootTime,
) -> Vec<BTreeMap<Arc<str>, u64>> {
    let keys = merged.iter().filter(|(_, found)| !found.shared).map(|((key, _), _)| key.clone());
    let keys: Vec<Arc<str>> = keys.collect();
    join_all(scans.iter().map(|scan| async {
        let mut tokens = BTreeMap::new();
        let Some(connection) = &scan.connection else { return tokens };
        for keys in keys.chunks(AT_A_TIME) {
            let counters: Vec<_> = keys.iter().map(|key| topology.counter(key)).collect();
            let read = get_ranges(connection, &counters, TOKEN_DIGITS);
            let Some(Ok(replies)) = within(Some(until), read).await else { break };
            let counters = keys.iter().zip(replies);
            tokens.extend(counters.filter_map(|(key, reply)| Some((key.clone(), number(&reply)?))));
        }
        tokens
    }))
    .await
}

/// The fencing token that a quorum of nodes has; `None` if no token is on a quorum of nodes.
fn agreed<'a>(tokens: impl Iterator<Item = &'a u64>, needed: usize) -> Option<u64> {
    let mut count: BTreeMap<u64, usize> = BTreeMap::new();
    tokens.for_each(|token| *count.entry(*token).or_default() += 1);
    count.into_iter().find(|(_, nodes)| *nodes >= needed).map(|(token, _)| token)
}
