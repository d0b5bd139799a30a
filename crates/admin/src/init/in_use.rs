//! Reasons against a change of nodes: locks that are held, clients that are connected, and clients with other settings.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use quorlock::admin::{
    AdminConnection, MARKER, RESERVED, RedisNode, Reply, Topology, holder, now, pause,
};
use quorlock::node::NodeConfig;
use quorlock::{ClientBuilder, Holder};
use quorlock_core::display::{WORD_MAX, shown};
use quorlock_core::marker::Marker;
use quorlock_core::{BootTime, Failure, FailureKind};

use super::reconfiguration::Plan;
use super::{Before, InitError, check};
use crate::doctor::look::{Looked, look_at_all};
use crate::locks::merged;
use crate::looks::Examiner;
use crate::scan::{Incomplete, Scan, Scanned};

/// Time limit of the search.
const LOOK_MAX: Duration = Duration::from_secs(30);

/// The connect timeout after a look in which a node was silent.
const AGAIN: Duration = Duration::from_secs(1);

/// Time until the second search, if the first one has found clients or locks that a reconfiguration would stop.
const BRIEFLY: Duration = Duration::from_millis(500);

/// Limit of the votes that are read from one node. More are not needed: one lock is enough to refuse the change.
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

/// A client that takes locks, and is connected to nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveClient {
    /// Host and number of the process, as the connection's name says: `HOST:PID`.
    pub process: String,
    /// The nodes that have a connection of this process.
    pub nodes: Vec<Arc<str>>,
}

/// Reasons not to call `fresh`, which marks the nodes without a wait, or `reconfigure`, which ends the clients' locks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InUse {
    /// Locks under any prefix, in the database of these settings and in all databases that clients have registered.
    pub locks: Vec<LiveLock>,
    /// Nodes whose keys could not all be read, with the reasons.
    pub incomplete: Vec<(Arc<str>, Incomplete)>,
    /// Clients that take locks and are connected now, also those of other key prefixes and databases. Not found are clients
    /// of earlier versions, whose connections have no name, and clients that connect later.
    pub clients: Vec<LiveClient>,
    /// Nodes on which it is not known whether clients are connected, with the reasons: most often a missing right.
    pub unlisted: Vec<(Arc<str>, Failure)>,
    /// Nodes that may have forgotten locks, with the reasons. New nodes are among them. Empty before `reconfigure`, which
    /// waits until such locks have ended.
    pub doubtful: Vec<(Arc<str>, Failure)>,
    /// Nodes that cannot be reached, or did not answer in time.
    pub silent: Vec<Arc<str>>,
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
    let mut found = search(&topology, &topology.servers, &looked).await;
    let examiner = match found.silent.is_empty() {
        true => Examiner::new(settings, &topology)?,
        false => Examiner::new(&impatient(settings.clone()), &topology)?,
    };
    examiner.doubts().await;
    let doubts = examiner.doubts().await;
    let names = topology.servers.iter().map(|server| server.name().into());
    let doubtful = names.zip(doubts).filter_map(|(name, doubt)| {
        // `before` has the nodes with other settings.
        let doubt = doubt.filter(|it| !it.kind().is_about_reach() && !it.kind().is_disagreement());
        Some((name, doubt?))
    });
    found.doubtful = doubtful.collect();
    Ok(found)
}

/// As [`in_use`], before [`fn@super::reconfigure`] with the same arguments: the clients that it would stop, and their
/// locks. None are found if the old settings are out of use already.
///
/// # Errors
/// As from [`fn@super::reconfigure`], if it would write nothing.
///
/// # Cancel safety
/// The future may be dropped at any time.
pub async fn in_use_by_old(
    settings: &ClientBuilder,
    others: &[NodeConfig],
) -> Result<InUse, InitError> {
    let Plan { topology, servers, is_in_force, .. } = Plan::of(settings, others).await?;
    let list = if is_in_force { &servers.list[..] } else { &[] };
    let found = search(&topology, list, &servers.looked).await;
    if found.locks.is_empty() && found.clients.is_empty() {
        return Ok(found);
    }
    // A job that has just ended may have left a connection or a vote for a moment.
    pause(BRIEFLY).await;
    Ok(search(&topology, list, &servers.looked).await)
}

/// The settings for a further look, if nodes were [silent](InUse::silent): the connect timeout is at most 1 s, because each of
/// these nodes was waited for already.
pub fn impatient(settings: ClientBuilder) -> ClientBuilder {
    let given = Topology::of(&settings).map(|topology| topology.timing.connect_timeout());
    settings.connect_timeout(given.map_or(AGAIN, |given| given.min(AGAIN)))
}

/// Looks for locks and clients on these servers. `looked` has these servers first.
async fn search(topology: &Topology, servers: &[RedisNode], looked: &[Looked]) -> InUse {
    let mut before = Before::of(topology, looked);
    let until = now().after(LOOK_MAX);
    let is_silent = |node: &Looked| {
        let kind = node.facts.as_ref().err().map(Failure::kind);
        kind.is_some_and(|kind| kind.is_about_reach() || kind == FailureKind::Silent)
    };
    let looks = servers.iter().zip(looked).map(|(server, node)| async {
        match &node.facts {
            Err(failure) if is_silent(node) => Err(Incomplete::Failed(failure.clone())),
            _ => databases(topology, server, until).await,
        }
    });
    let looks = join_all(looks).await;
    let silent = looked.iter().filter(|node| is_silent(node)).map(|node| node.name.clone());
    let silent = silent.collect();
    // A server that lacks a command has granted no lock, so it does not matter whether its keys could be searched.
    let may_vote = |place: usize| match &looked[place].facts {
        Err(failure) => failure.kind() != FailureKind::MissingCommand,
        Ok(_) => true,
    };

    let names: Vec<Arc<str>> = servers.iter().map(|server| server.name().into()).collect();
    let mut scans: BTreeMap<u32, Vec<(usize, DatabaseScan)>> = BTreeMap::new();
    let (mut incomplete, mut unlisted) = (Vec::new(), Vec::new());
    let mut clients: BTreeMap<String, Vec<Arc<str>>> = BTreeMap::new();
    for (place, look) in looks.into_iter().enumerate().filter(|(place, _)| may_vote(*place)) {
        let reason = match look {
            Err(why) if why.kind().is_some_and(FailureKind::is_about_reach) => None,
            Err(why) => Some(why),
            Ok(Found { lockers, scans: looks, unregistered: mut reason }) => {
                match lockers {
                    Err(failure) => unlisted.push((names[place].clone(), failure)),
                    Ok(lockers) => lockers.into_iter().for_each(|process| {
                        clients.entry(process).or_default().push(names[place].clone());
                    }),
                }
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
        let cluster = marker.map(|marker| marker.cluster);
        before.add_changes(topology, &names[*place], cluster, &changes);
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
    let clients = clients.into_iter().map(|(process, nodes)| LiveClient { process, nodes });
    let (clients, doubtful) = (clients.collect(), Vec::new());
    InUse { locks, incomplete, clients, unlisted, doubtful, silent, before }
}

/// Scans this client's database, and those that clients of any key prefix have registered, and lists the clients.
async fn databases(
    topology: &Topology,
    server: &RedisNode,
    until: BootTime,
) -> Result<Found, Incomplete> {
    let connection = AdminConnection::open(server).await?;
    let own = connection.database();
    let registered = connection.registered(&topology.rules.marker).await?;
    let lockers = connection.lockers().await;
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
    Ok(Found { lockers, scans: scans?, unregistered: by_any.err() })
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

/// The clients and the locks of one server.
struct Found {
    /// The clients that take locks, each as `HOST:PID`; the failure if the server did not list its clients.
    lockers: Result<BTreeSet<String>, Failure>,
    scans: Vec<DatabaseScan>,
    /// The reason if not all registrations could be read.
    unregistered: Option<Incomplete>,
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
