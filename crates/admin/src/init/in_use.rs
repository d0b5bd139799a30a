//! Reasons against `init --fresh`: locks that are held, and clients with other settings.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use quorlock::admin::{
    AdminConnection, MARKER, Node as _, RESERVED, RedisNode, Reply, Topology, holder, now,
};
use quorlock::{ClientBuilder, Holder};
use quorlock_core::marker::Marker;
use quorlock_core::shown::{WORD_MAX, shown};
use quorlock_core::{BootTime, Failure, FailureKind};

use super::{Before, InitError, check};
use crate::doctor::look::look_at_all;
use crate::locks::merged;
use crate::scan::{Incomplete, Scan, Scanned};

/// Time limit of the search.
const LOOK_MAX: Duration = Duration::from_secs(30);

/// Limit of the votes that are read from one node. More are not needed: one lock is enough to refuse `init --fresh`.
const VOTES_MAX: usize = 1000;

/// A lock that a client may still hold, because its key has an expiry.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveLock {
    /// The key with its prefix.
    pub key: Arc<str>,
    /// Number of the key's database.
    pub database: u32,
    /// The holder, and the time after which no node has the lock any more unless the holder extends it.
    pub holder: Holder,
    /// The nodes that have the holder's value.
    pub nodes: Vec<Arc<str>>,
}

/// Reasons not to call `fresh`, which marks the nodes without a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InUse {
    /// Locks under any prefix, in the database of these settings and in all databases that clients have registered.
    pub locks: Vec<LiveLock>,
    /// Nodes whose keys could not all be read, with the reasons.
    pub incomplete: Vec<(Arc<str>, Incomplete)>,
    /// The settings for which the nodes are marked. Another database counts as another setting, and so does another key
    /// prefix if no node is marked for the new prefix.
    pub before: Before,
}

/// Looks for locks that are held, and for the settings of other clients. Takes at most half a minute, and writes
/// nothing. A node that does not answer is left out: a held lock has a quorum of nodes, so another node shows it.
///
/// # Errors
/// [`InitError::Build`] if the settings are wrong; nothing was sent. [`InitError::Unfit`] and [`InitError::TooFew`] as
/// from [`fresh`](super::fresh).
///
/// # Cancel safety
/// The future may be dropped at any time.
pub async fn in_use(settings: &ClientBuilder) -> Result<InUse, InitError> {
    let topology = Topology::of(settings)?;
    let looked = look_at_all(&topology, &topology.servers, false).await;
    check(&topology, &looked)?;
    let mut before = Before::of(&topology, &looked);
    let until = now().after(LOOK_MAX);
    let looks = topology.servers.iter().map(|server| databases(&topology, server, until));
    let looks = join_all(looks).await;
    // A server that lacks a command has granted no lock, so it does not matter whether its keys could be searched.
    let may_vote = |place: usize| match &looked[place].facts {
        Err(failure) => failure.kind() != FailureKind::MissingCommand,
        Ok(_) => true,
    };

    let names: Vec<Arc<str>> = topology.servers.iter().map(|server| server.name().into()).collect();
    let mut scans: BTreeMap<u32, Vec<(usize, DatabaseScan)>> = BTreeMap::new();
    let mut incomplete = Vec::new();
    for (place, look) in looks.into_iter().enumerate().filter(|(place, _)| may_vote(*place)) {
        let reason = match look {
            Err(why) if why.kind().is_some_and(FailureKind::is_about_reach) => None,
            Err(why) => Some(why),
            Ok((looks, mut reason)) => {
                for mut scan in looks {
                    reason = scan.scanned.incomplete.take().or(reason);
                    scans.entry(scan.database).or_default().push((place, scan));
                }
                reason
            }
        };
        incomplete.extend(reason.map(|why| (names[place].clone(), why)));
    }
    let prefix = &*topology.prefix;
    let all = || scans.values().flatten();
    let is_new = !all().any(|(_, scan)| scan.markers.iter().any(|(other, _)| other == prefix));
    let is_registered = all().any(|(_, scan)| scan.registered.is_some());
    for (place, scan) in all() {
        let mut changes = Vec::new();
        // Clients of this prefix have used the registered database or, without a registration, any of the scanned ones.
        let is_former = scan.registered == Some(scan.database) || !is_registered;
        if scan.database != scan.own && is_former {
            changes.push((format!("database {}", scan.database), format!("database {}", scan.own)));
        }
        if let Some((other, _)) = scan.markers.first().filter(|_| is_new) {
            let text = |prefix| format!("key prefix \"{}\"", shown(prefix, WORD_MAX));
            changes.push((text(other), text(prefix)));
        }
        let marker = scan.markers.iter().find(|(other, _)| other == prefix);
        let marker = marker.or(scan.markers.first()).and_then(|(_, text)| Marker::parse(text));
        before.add_changes(&names[*place], marker.map(|marker| marker.cluster), &changes);
    }
    let mut locks = Vec::new();
    for (database, scans) in &mut scans {
        // Every lock expires, so a key without expiry is no lock.
        for (_, scan) in scans.iter_mut() {
            scan.scanned
                .votes
                .values_mut()
                .for_each(|votes| votes.retain(|vote| vote.left.is_some()));
        }
        let found = merged(scans.iter().map(|(place, scan)| (*place, &scan.scanned.votes)));
        locks.extend(found.into_iter().filter_map(|((key, value), found)| {
            let holder = holder(&value, found.left)?;
            let nodes = found.nodes.into_iter().map(|place| names[place].clone()).collect();
            Some(LiveLock { key, database: *database, holder, nodes })
        }));
    }
    Ok(InUse { locks, incomplete, before })
}

/// Scans this client's database, and those that clients of any key prefix have registered. Also returns the reason if
/// not all registrations could be read.
async fn databases(
    topology: &Topology,
    server: &RedisNode,
    until: BootTime,
) -> Result<(Vec<DatabaseScan>, Option<Incomplete>), Incomplete> {
    let connection = AdminConnection::open(server).await?;
    let own = connection.database();
    let registered = connection.registered(&topology.rules.marker).await?;
    drop(connection);
    let mut databases: BTreeSet<u32> = registered.into_iter().chain([own]).collect();
    let by_any = Scan::registered_by_any(server, own, until, &mut databases).await;
    let scans = databases.into_iter().map(async |database| {
        let scan = Scan {
            prefix: &topology.prefix,
            database: (database != own).then_some(database),
            until: Some(until),
            votes_max: VOTES_MAX,
            ..Scan::default()
        };
        let scanned = scan.of(server).await;
        let markers = match &scanned.connection {
            Some(connection) => markers(connection, &scanned.prefixes).await?,
            None => Vec::new(),
        };
        Ok(DatabaseScan { database, own, registered, markers, scanned })
    });
    let scans: Result<_, Failure> = join_all(scans).await.into_iter().collect();
    Ok((scans?, by_any.err()))
}

/// The markers of clients with these key prefixes, as far as this user may read them.
async fn markers(
    connection: &AdminConnection,
    prefixes: &[String],
) -> Result<Vec<(String, String)>, Failure> {
    if prefixes.is_empty() {
        return Ok(Vec::new());
    }
    let keys: Vec<String> =
        prefixes.iter().map(|prefix| format!("{prefix}{RESERVED}{MARKER}")).collect();
    let reads: Vec<[&str; 2]> = keys.iter().map(|key| ["GET", key]).collect();
    let replies = connection.ask(&reads).await?;
    let text = |reply| match reply {
        Reply::Bytes(text) => String::from_utf8(text).unwrap_or_default(),
        _ => String::new(),
    };
    Ok(prefixes.iter().cloned().zip(replies.into_iter().map(text)).collect())
}

struct DatabaseScan {
    database: u32,
    /// The number of the database in these settings.
    own: u32,
    /// The database that is registered on the node for the key prefix of these settings.
    registered: Option<u32>,
    /// Key prefixes, and the texts of their markers.
    markers: Vec<(String, String)>,
    scanned: Scanned,
}
