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
    /// Locks, under any prefix, in the database of these settings and in the one that the node has registered.
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
    // By database, and whether it is another one than this client's.
    let mut scans: BTreeMap<(u32, bool), Vec<(usize, Scanned)>> = BTreeMap::new();
    let mut incomplete = Vec::new();
    for (place, look) in looks.into_iter().enumerate().filter(|(place, _)| may_vote(*place)) {
        match look {
            Err(why) if why.kind().is_some_and(FailureKind::is_about_reach) => {}
            Err(why) => incomplete.push((names[place].clone(), why)),
            Ok(looks) => {
                for (database, mut scan) in looks {
                    let why = scan.incomplete.take();
                    incomplete.extend(why.map(|why| (names[place].clone(), why)));
                    scans.entry(database).or_default().push((place, scan));
                }
            }
        }
    }
    let named = |places: &mut dyn Iterator<Item = usize>| -> Vec<Arc<str>> {
        places.map(|place| names[place].clone()).collect()
    };
    let is_marked = |(_, scan): &&(usize, Scanned), prefix: &str| {
        scan.prefixes.iter().any(|other| other == prefix)
    };
    let mut locks = Vec::new();
    let prefix = &*topology.prefix;
    let is_new = !scans.values().flatten().any(|scan| is_marked(&scan, prefix));
    let own = scans.keys().find(|(_, is_other)| !is_other).map(|(database, _)| *database);
    for ((database, is_other), scans) in &mut scans {
        if *is_other {
            let nodes = named(&mut scans.iter().map(|(place, _)| *place));
            before.old.push((format!("database {database}"), nodes));
            let new = own.map(|own| format!(", database {own}")).unwrap_or_default();
            if !before.new.contains(&new) {
                before.new += &new;
            }
            before.is_reconfigurable = false;
        }
        let other = scans.iter().flat_map(|(_, scan)| scan.prefixes.first()).next().cloned();
        if let Some(other) = other.filter(|_| is_new) {
            let marked = scans.iter().filter(|scan| is_marked(scan, &other));
            let nodes = named(&mut marked.map(|(place, _)| *place));
            before.old.push((format!("key prefix \"{}\"", shown(&other, WORD_MAX)), nodes));
            let new = format!(", key prefix \"{}\"", shown(prefix, WORD_MAX));
            if !before.new.contains(&new) {
                before.new += &new;
            }
            before.is_reconfigurable = false;
        }
        // What has no end is no lock.
        for (_, scan) in scans.iter_mut() {
            scan.votes.values_mut().for_each(|votes| votes.retain(|vote| vote.left.is_some()));
        }
        let found = merged(scans.iter().map(|(place, scan)| (*place, &scan.votes)));
        locks.extend(found.into_iter().filter_map(|((key, value), found)| {
            let holder = holder(&value, found.left)?;
            let nodes = named(&mut found.nodes.into_iter());
            Some(LiveLock { key, database: *database, holder, nodes })
        }));
    }
    Ok(InUse { locks, incomplete, before })
}

/// Looks at this client's database, and at the one that is registered if that is another one. If none is registered for
/// this client's key prefix, looks at those that clients with other prefixes have registered.
async fn databases(
    topology: &Topology,
    server: &RedisNode,
    until: BootTime,
) -> Result<Vec<((u32, bool), Scanned)>, Incomplete> {
    let connection = AdminConnection::open(server).await?;
    let own = connection.database();
    let registered = connection.registered(&topology.rules.marker).await?;
    drop(connection);
    let mut databases = match registered {
        Some(registered) => BTreeSet::from([registered]),
        None => Scan::registered_by_any(server, own, until).await?,
    };
    databases.insert(own);
    let mut scans = Vec::new();
    for database in databases {
        let is_other = database != own;
        let scan = Scan {
            prefix: &topology.prefix,
            database: is_other.then_some(database),
            until: Some(until),
            votes_max: VOTES_MAX,
            ..Scan::default()
        };
        scans.push(((database, is_other), scan.of(server).await));
    }
    Ok(scans)
}
