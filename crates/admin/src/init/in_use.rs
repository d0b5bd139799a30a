//! What speaks against `init --fresh`: locks that are held, and clients with other settings.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use quorlock::admin::{AdminConnection, Topology, holder, now};
use quorlock::node::{Node as _, RedisNode};
use quorlock::{ClientBuilder, Holder};
use quorlock_core::shown::{WORD_MAX, shown};
use quorlock_core::{BootTime, FailureKind};

use super::{Before, InitError, check};
use crate::doctor::look::look_at_all;
use crate::locks::merged;
use crate::scan::{Incomplete, Scan, Scanned};

/// The look ends after this time, complete or not.
const LOOK_MAX: Duration = Duration::from_secs(30);

/// At most this number of votes is looked at on one node: any lock is a reason to refuse.
const VOTES_MAX: usize = 1000;

/// A lock that ends by itself, and that may be held until then.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveLock {
    /// The key, with whatever prefix it has.
    pub key: Arc<str>,
    /// The database that it is in.
    pub database: u32,
    /// The holder, and the time after which no node has the lock any more unless it is extended.
    pub holder: Holder,
    /// The nodes that have the holder's value.
    pub nodes: Vec<Arc<str>>,
}

/// What speaks against marking the nodes at once.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InUse {
    /// Locks, under any prefix, in the database of these settings and in those that the node has registered.
    pub locks: Vec<LiveLock>,
    /// Nodes that answer, but whose keys could not all be looked at.
    pub incomplete: Vec<(Arc<str>, Incomplete)>,
    /// For what settings the nodes are marked so far; also another database, and another key prefix if no node is
    /// marked for that of these settings.
    pub before: Before,
}

/// Looks for locks that are held, and for the settings of other clients. Takes at most half a minute, and writes
/// nothing. A node that does not answer is left out: a lock has a quorum of nodes, so it is seen on another one.
///
/// # Errors
/// [`InitError::Build`] if the settings are wrong; nothing was sent. [`InitError::Unfit`] and [`InitError::TooFew`] as
/// from [`fresh`](super::fresh).
///
/// # Cancel safety
/// It may be dropped at any time.
pub async fn in_use(settings: &ClientBuilder) -> Result<InUse, InitError> {
    let topology = Topology::of(settings)?;
    let looked = look_at_all(&topology, &topology.servers, false).await;
    check(&topology, &looked)?;
    let mut before = Before::of(&topology, &looked);
    let until = now().after(LOOK_MAX);
    let looks = topology.servers.iter().map(|server| databases(&topology, server, until));
    let looks = join_all(looks).await;
    // A server that lacks a command has granted no lock.
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
    let named = |places: &mut dyn Iterator<Item = usize>| -> Vec<Arc<str>> {
        places.map(|place| names[place].clone()).collect()
    };
    let is_marked = |scan: &DatabaseScan, prefix: &str| {
        scan.scanned.prefixes.iter().any(|other| other == prefix)
    };
    let mut locks = Vec::new();
    let prefix = &*topology.prefix;
    let is_new = !scans.values().flatten().any(|(_, scan)| is_marked(scan, prefix));
    for (database, scans) in &mut scans {
        if let Some(new) = scans.iter().find_map(|(_, scan)| scan.replaced_by) {
            let former = scans.iter().filter(|(_, scan)| scan.replaced_by.is_some());
            let nodes = named(&mut former.map(|(place, _)| *place));
            before.differs(format!("database {database}"), nodes, &format!(", database {new}"));
        }
        let other =
            scans.iter().flat_map(|(_, scan)| scan.scanned.prefixes.first()).next().cloned();
        if let Some(other) = other.filter(|_| is_new) {
            let marked = scans.iter().filter(|(_, scan)| is_marked(scan, &other));
            let nodes = named(&mut marked.map(|(place, _)| *place));
            let old = format!("key prefix \"{}\"", shown(&other, WORD_MAX));
            let new = format!(", key prefix \"{}\"", shown(prefix, WORD_MAX));
            before.differs(old, nodes, &new);
        }
        // What has no end is no lock.
        for (_, scan) in scans.iter_mut() {
            scan.scanned
                .votes
                .values_mut()
                .for_each(|votes| votes.retain(|vote| vote.left.is_some()));
        }
        let found = merged(scans.iter().map(|(place, scan)| (*place, &scan.scanned.votes)));
        locks.extend(found.into_iter().filter_map(|((key, value), found)| {
            let holder = holder(&value, found.left)?;
            let nodes = named(&mut found.nodes.into_iter());
            Some(LiveLock { key, database: *database, holder, nodes })
        }));
    }
    Ok(InUse { locks, incomplete, before })
}

/// Looks at this client's database, and at those that clients of any key prefix have registered. Also returns why not
/// all registrations could be read.
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
        let is_other = database != own;
        let scan = Scan {
            prefix: &topology.prefix,
            database: is_other.then_some(database),
            until: Some(until),
            votes_max: VOTES_MAX,
            ..Scan::default()
        };
        // While this client's key prefix has another database, those of other prefixes are other clients'.
        let is_former = is_other && registered.is_none_or(|registered| registered == database);
        let replaced_by = is_former.then_some(own);
        DatabaseScan { database, replaced_by, scanned: scan.of(server).await }
    });
    Ok((join_all(scans).await, by_any.err()))
}

/// The scan of one database of one node.
struct DatabaseScan {
    database: u32,
    /// The database that clients will use instead of this one.
    replaced_by: Option<u32>,
    scanned: Scanned,
}
