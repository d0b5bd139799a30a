//! Changes nodes, quorum or longest ttl so that no lock has two holders at any moment.
//!
//! Clients of the old settings must have lost their quorum before clients of the new settings can find one, and locks
//! that were granted before must have ended. So these steps come in this order:
//!
//! 1. Of every old list, `N − Q + 1` nodes must answer, so that the remaining nodes are no quorum.
//! 2. The markers of all nodes that answer are replaced by one that fits no client and names the old and the new
//!    settings. The new nodes get it as well, because clients of the new settings may have taken them into use while
//!    the old nodes were voting. The next step begins only after `N − Q + 1` nodes have the new marker. If the process
//!    is killed before, these nodes vote for no client, and their markers say so.
//! 3. On the new nodes an adoption, the key that begins a wait, replaces this marker. The wait is longer than any lock
//!    can still be held. From here on, any client of the new settings can finish the change.
//! 4. The new markers are written.

use std::collections::BTreeSet;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use quorlock::ClientBuilder;
use quorlock::admin::{AgreedSettings, BECOMES, Do, RedisNode, Topology, now};
use quorlock::node::NodeConfig;
use quorlock_core::display::shown_text;
use quorlock_core::marker::{Adoption, Cluster, Marker};
use quorlock_core::{BootTime, Difference, Rules};

pub(super) use self::servers::Servers;
use self::settings::{is_enough_of, is_in_force, not_enough_of, old_settings};
use super::keys::{Change, still_there};
use super::{
    ChangedNode, InitError, Initialized, NodeChange, check, floor, is_of_this_version, known,
    nothing, written,
};
use crate::doctor::look::{Looked, Seen, look_at_all};

mod servers;
mod settings;

/// Added to the wait against rounding errors, because two machines count ages in whole milliseconds.
const GRACE: Duration = Duration::from_millis(10);

/// A change of settings that has begun, and waits until the locks of the old settings have expired.
#[derive(Debug)]
pub struct Reconfiguration {
    topology: Topology,
    over_at: BootTime,
    floor: u64,
    /// One entry per node, with its change so far: the new nodes in order, then the old nodes.
    pub nodes: Vec<ChangedNode>,
}

/// Suffix of a marker that fits no client, followed by a number n: the server was not a node under the first n settings
/// in this marker. So it does not know locks of these settings, even if another server was a node by the same name.
const CAME: &str = " came=";

/// Suffix of an adoption that a reconfiguration wrote. It proves that the old nodes were out of use by then. An
/// adoption that a client writes has no such suffix, and proves nothing about old nodes.
const MOVED: &str = " moved=1";

/// Moves nodes from the settings in their markers to `settings`. Returns when the wait for old locks has begun. Call
/// [`Reconfiguration::finish`] when [`Reconfiguration::left`] is zero. `others` are nodes of the old settings under
/// their old names. They are needed only if the new list has too few of the old nodes: under the same names, or, if
/// they had no names, at the same addresses. The server of a new node may be among them, because it had another name.
///
/// # Errors
/// [`InitError`], which says for each kind what was written.
///
/// # Cancel safety
/// The future may be dropped, or the process killed, at any time. This never lets two clients hold one lock, but
/// nodes may vote for no client until this function is called again.
pub async fn reconfigure(
    settings: &ClientBuilder,
    others: &[NodeConfig],
) -> Result<Reconfiguration, InitError> {
    let Plan { topology, servers, states, old, wait, is_in_force: in_force } =
        Plan::of(settings, others).await?;
    let floor = floor(&servers.looked, 0);
    // Step 2 of the module's list: from here on, no changed node votes.
    let blocked = each(&topology, &servers.list, &states, |state, place| {
        state.blocked(&topology.rules, in_force || place >= topology.servers.len(), &old)
    });
    let blocked = blocked.await;
    let failed = || {
        let failed = servers.list.iter().zip(&blocked).filter_map(|(server, change)| {
            Some((Arc::from(server.name()), change.as_ref().err()?.why()?.to_owned()))
        });
        Err(InitError::Interrupted { nodes: failed.collect() })
    };
    // Nodes where the change failed may still vote for clients of the new settings. They must not be a quorum.
    let free = blocked[..topology.servers.len()].iter().filter(|change| change.is_err()).count();
    if in_force && free >= topology.quorum.needed() {
        return failed();
    }
    let both = states.iter().zip(&blocked);
    let before = both.clone().map(|(state, change)| state.clone().filter(|_| change.is_ok()));
    let before: Vec<Option<NodeKeys>> = before.collect();
    if old.iter().any(|old| !is_enough_of(old, &servers, &before)) {
        return failed();
    }
    // Step 3: adoptions begin the wait of the new nodes.
    let after = both.map(|(state, change)| Some(state.clone()?.after(change.as_ref().ok()?)));
    let after: Vec<Option<NodeKeys>> = after.collect();
    let adopted = each(&topology, &servers.list[..topology.servers.len()], &after, |state, _| {
        state.adopted(&topology.rules, wait)
    });
    let adopted = adopted.await;
    Ok(begun(topology, (servers.list, states), (blocked, adopted), (wait, floor)))
}

/// The state of the nodes before a reconfiguration that is possible.
pub(super) struct Plan {
    pub(super) topology: Topology,
    pub(super) servers: Servers,
    states: Vec<Option<NodeKeys>>,
    old: BTreeSet<AgreedSettings>,
    wait: Duration,
    /// Whether clients of the old settings may have a quorum until the reconfiguration.
    pub(super) is_in_force: bool,
}

impl Plan {
    pub(super) async fn of(
        settings: &ClientBuilder,
        others: &[NodeConfig],
    ) -> Result<Self, InitError> {
        let topology = Topology::of(settings)?;
        let servers = Servers::look(&topology, Topology::others(settings, others)?).await?;
        let looked = &servers.looked;
        check(&topology, &looked[..topology.servers.len()])?;
        in_other_databases(&topology, looked)?;
        let states: Vec<Option<NodeKeys>> =
            looked.iter().map(|node| NodeKeys::of(node, &topology.rules)).collect();
        unknown_markers(&topology, looked)?;
        same_settings_elsewhere(&servers.list, &states, topology.servers.len())?;
        let old = old_settings(&states, &topology.rules);
        if old.is_empty() && !states.iter().flatten().any(NodeKeys::is_handled) {
            return Err(InitError::NothingOld { otherwise: topology.init.fresh(false, 0) });
        }
        if let Some(short) = old.iter().find(|old| !is_enough_of(old, &servers, &states)) {
            return Err(not_enough_of(short, (&topology, &servers), &states, &old, others));
        }
        let ours = topology.rules.cluster.max_ttl_ms();
        let longest = old.iter().map(|old| old.max_ttl_ms).chain([ours]).max().unwrap_or(ours);
        let cluster = Cluster::new(["any"], 1, longest);
        let wait = Rules { cluster, ..topology.rules.clone() }.quarantine();
        // An adoption may have a longer wait, because of settings that no marker names any more. That wait still applies.
        let wait = states.iter().flatten().map(NodeKeys::waits_for).fold(wait, Duration::max);
        let is_in_force = old.iter().any(|old| is_in_force(old, &servers, &states, wait));
        Ok(Self { topology, servers, states, old, wait, is_in_force })
    }
}

/// Describes the reconfiguration after step 3, from the changes that were made.
fn begun(
    topology: Topology,
    (servers, states): (Vec<RedisNode>, Vec<Option<NodeKeys>>),
    (blocked, adopted): (Vec<Made>, Vec<Made>),
    (wait, floor): (Duration, u64),
) -> Reconfiguration {
    let mut longest = Duration::ZERO;
    let mut nodes = Vec::new();
    for (place, (server, state)) in servers.iter().zip(&states).enumerate() {
        let made = match (&blocked[place], adopted.get(place)) {
            (Err(failed), _) | (Ok(_), Some(Err(failed))) => failed.clone(),
            (Ok(_), None) => NodeChange::Retired,
            (Ok(_), Some(Ok(None))) if state.as_ref().is_some_and(NodeKeys::is_ours) => {
                NodeChange::WasMarked
            }
            (Ok(_), Some(Ok(change))) => {
                let left = match (change, state) {
                    (None, Some(state)) => state.left(),
                    _ => wait,
                };
                longest = longest.max(left + GRACE);
                NodeChange::Waits
            }
        };
        nodes.push(ChangedNode { node: server.name().into(), change: made });
    }
    Reconfiguration { over_at: now().after(longest), topology, floor, nodes }
}

impl Reconfiguration {
    /// Time until old locks have expired and [`finish`](Self::finish) may be called, by the boot clock.
    pub fn left(&self) -> Duration {
        self.over_at.remaining(now())
    }

    /// Writes the new markers. The result reports failures. A node that was restarted meanwhile waits once more, and
    /// joins by itself.
    ///
    /// # Cancel safety
    /// As [`reconfigure`].
    pub async fn finish(self) -> Initialized {
        let Self { topology, floor: least, nodes, .. } = &self;
        let looked = look_at_all(topology, &topology.servers, false).await;
        let floor = floor(&looked, *least);
        let marks = topology.servers.iter().zip(&looked).zip(nodes).map(
            |((server, node), before)| async move {
                let change = match &before.change {
                    NodeChange::Waits => match mark(topology, server, node, floor).await {
                        Ok(()) => NodeChange::Marked,
                        Err(failed) => {
                            // A client that waited may have written the marker between the look and the change.
                            let again = look_at_all(topology, slice::from_ref(server), false).await;
                            let is_ours = again.iter().any(|node| is_marked(topology, node));
                            if is_ours { NodeChange::Marked } else { failed }
                        }
                    },
                    change => change.clone(),
                };
                ChangedNode { node: node.name.clone(), change }
            },
        );
        let mut change = futures_util::future::join_all(marks).await;
        change.extend(nodes[topology.servers.len()..].iter().cloned());
        Initialized { nodes: change, needed: topology.quorum.needed() }
    }
}

/// Whether the marker has the new settings: a client has finished the change on this node.
fn is_marked(topology: &Topology, node: &Looked) -> bool {
    known(node).is_ok_and(|(facts, ..)| match &facts.marker {
        Seen::Text(text) => {
            Marker::parse(text).is_some_and(|marker| marker.cluster == topology.rules.cluster)
        }
        _ => false,
    })
}

async fn mark(
    topology: &Topology,
    server: &RedisNode,
    node: &Looked,
    floor: u64,
) -> Result<(), NodeChange> {
    let (facts, run_id, promoted_at) = known(node).map_err(nothing)?;
    if is_marked(topology, node) {
        return Ok(());
    }
    if let Seen::Text(text) = &facts.marker {
        return Err(nothing(format!("it says \"{}\" now", shown_text(text))));
    }
    let cluster = &topology.rules.cluster;
    let marker = Marker { cluster: cluster.clone(), run_id, promoted_at, floor };
    let Seen::Text(text) = &facts.adoption else {
        let why = "its data was deleted meanwhile; it waits once more, and joins by itself";
        return Err(nothing(why));
    };
    let adoption = Adoption::parse(text)
        .filter(|it| it.marker.cluster == *cluster && it.marker.run_id == marker.run_id)
        .filter(|it| it.marker.promoted_at == marker.promoted_at);
    let Some(adoption) = adoption else {
        let why = "it was restarted meanwhile; it waits once more, and joins by itself";
        return Err(nothing(why));
    };
    let change = Change {
        from: (String::new(), text.clone()),
        to: (marker.to_string(), String::new()),
        age_ms: Some(adoption.wait_ms),
    };
    change.make(topology, server, Do::Register).await
}

#[derive(Clone, Debug)]
struct NodeKeys {
    run_id: Box<str>,
    promoted_at: i64,
    marker: String,
    adoption: String,
    adopted_for: Duration,
    /// Settings in the node's marker or adoption, except the new ones. Their clients get the node's vote now or later.
    settings: Vec<AgreedSettings>,
    /// The server was not a node under the first `came` of these settings; see [`CAME`].
    came: usize,
    ours: Ours,
}

/// The progress of the node towards the new settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ours {
    No,
    /// The node has an adoption for the new settings, with a wait of this many milliseconds.
    Adopted(u64),
    Marked,
}

/// The change that was made to a node's keys (`None` if none was needed), or the error if it could not be made.
type Made = Result<Option<Change>, NodeChange>;

impl NodeKeys {
    /// The keys of a node. `None` if the node does not answer, refuses the user or does not report its `INFO`.
    fn of(node: &Looked, rules: &Rules) -> Option<Self> {
        let (facts, run_id, promoted_at) = known(node).ok()?;
        let (marker, adoption) = (written(&facts.marker), written(&facts.adoption));
        let cluster_of = |marker: &str, adoption: &str| match Marker::parse(marker) {
            Some(marker) => Some((marker.cluster, Ours::Marked)),
            None => Adoption::parse(adoption).map(|Adoption { marker, wait_ms }| {
                let is_of_this_run = marker.run_id == run_id && marker.promoted_at == promoted_at;
                let ours = if is_of_this_run { Ours::Adopted(wait_ms) } else { Ours::No };
                (marker.cluster, ours)
            }),
        };
        let found = cluster_of(&marker, &adoption);
        let is_ours = found.as_ref().is_some_and(|(cluster, _)| *cluster == rules.cluster);
        let ours = found.as_ref().filter(|_| is_ours).map_or(Ours::No, |(_, ours)| *ours);
        let settings = match found {
            Some((cluster, _)) if !is_ours => AgreedSettings::all_of(&cluster.to_string()),
            _ => Vec::new(),
        };
        let came = marker.rsplit_once(CAME).and_then(|(_, came)| came.parse().ok()).unwrap_or(0);
        let adopted_for = facts.adopted_for;
        Some(Self { run_id, promoted_at, marker, adoption, adopted_for, settings, came, ours })
    }

    /// The floor of the node's fencing tokens, from its marker or from the adoption that replaced the marker.
    fn floor(&self) -> u64 {
        let marked = Marker::parse(&self.marker).map(|marker| marker.floor);
        marked.or_else(|| Some(Adoption::parse(&self.adoption)?.marker.floor)).unwrap_or(0)
    }

    /// The whole wait of the node's adoption for the new settings; zero if there is no such adoption.
    fn waits_for(&self) -> Duration {
        let Ours::Adopted(wait_ms) = self.ours else { return Duration::ZERO };
        Duration::from_millis(wait_ms)
    }

    /// Whether a reconfiguration wrote the node's adoption, after it had taken the old nodes out of use.
    fn was_moved(&self) -> bool {
        matches!(self.ours, Ours::Adopted(_)) && self.adoption.ends_with(MOVED)
    }

    /// Whether the node has the marker of the new settings, or an adoption that a reconfiguration wrote.
    fn is_handled(&self) -> bool {
        self.is_ours() || self.was_moved()
    }

    /// Whether this server itself is a node of the old settings. A server that only has the name of such a node does
    /// not know the locks that the node granted.
    fn is_of(&self, old: &AgreedSettings) -> bool {
        // A marker of other settings proves that the server was a node when the marker was written.
        let was_a_node = self.came == 0 && !self.marker.is_empty();
        self.is_handled() || was_a_node || self.names(old)
    }

    /// Whether the server's own keys say that it was a node of the old settings.
    fn names(&self, old: &AgreedSettings) -> bool {
        self.settings.iter().skip(self.came).any(|own| own == old)
    }

    fn is_ours(&self) -> bool {
        self.ours == Ours::Marked
    }

    /// Rest of the wait of the node's adoption; zero if the node has no adoption for the new settings.
    fn left(&self) -> Duration {
        self.waits_for().saturating_sub(self.adopted_for)
    }

    /// The change to a marker that fits no client. `None` if the node already has such a marker. A node with keys that
    /// name no old settings is changed only if `somebody` is true: clients may take the node into use.
    fn blocked(
        &self,
        rules: &Rules,
        somebody: bool,
        old: &BTreeSet<AgreedSettings>,
    ) -> Option<Change> {
        let last = self.settings.last();
        let ours = rules.cluster.to_string();
        let becomes_ours = last.is_some_and(|last| last.text == ours);
        let chain = match (&*self.settings, old.first()) {
            ([], Some(old)) if somebody => old.text.clone(),
            ([], _) => return None,
            // The node already has a marker that fits no client, and its last settings are the new ones.
            (_, _) if becomes_ours && !self.marker.is_empty() => return None,
            (settings, _) => {
                let texts: Vec<&str> = settings.iter().map(|settings| &*settings.text).collect();
                texts.join(BECOMES)
            }
        };
        let floor = self.floor();
        let (cluster, run_id) = (rules.cluster.clone(), self.run_id.clone());
        // This marker fits no client, because a chain of old and new settings stands in the place of the new settings.
        let marker = Marker { cluster, run_id, promoted_at: -1, floor }.to_string();
        let mut marker = marker.replacen(&ours, &format!("{chain}{BECOMES}{ours}"), 1);
        let is_new = self.settings.is_empty() && !self.is_handled();
        let came = if is_new { 1 } else { self.came };
        if came > 0 {
            marker += &format!("{CAME}{came}");
        }
        Some(Change {
            from: (self.marker.clone(), self.adoption.clone()),
            to: (marker, String::new()),
            age_ms: None,
        })
    }

    fn after(mut self, change: &Option<Change>) -> Self {
        if let Some(change) = change {
            (self.marker, self.adoption) = change.to.clone();
            self.ours = Ours::No;
        }
        self
    }

    /// The change to an adoption. `None` if the node's adoption has a long enough wait, or the node has the new marker.
    fn adopted(&self, rules: &Rules, wait: Duration) -> Option<Change> {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        match self.ours {
            Ours::Marked => return None,
            Ours::Adopted(so_long) if so_long >= wait_ms => return None,
            _ => {}
        }
        let (cluster, run_id) = (rules.cluster.clone(), self.run_id.clone());
        let (promoted_at, floor) = (self.promoted_at, self.floor());
        let marker = Marker { cluster, run_id, promoted_at, floor };
        let adoption = Adoption { marker, wait_ms };
        // The time of day makes the text of each adoption unique. It is added here, because a node adds it only to an
        // adoption that a client writes.
        let now_us = now().real_ns() / 1000;
        Some(Change {
            from: (self.marker.clone(), self.adoption.clone()),
            to: (String::new(), format!("{adoption} since={now_us}{MOVED}")),
            age_ms: None,
        })
    }
}

/// Makes on all nodes at once the changes that `change` returns. A node that did not answer gets an error instead.
async fn each(
    topology: &Topology,
    servers: &[RedisNode],
    states: &[Option<NodeKeys>],
    change: impl Fn(&NodeKeys, usize) -> Option<Change>,
) -> Vec<Made> {
    let changes = servers.iter().zip(states).enumerate().map(|(place, (server, state))| {
        let change = state.as_ref().map(|state| (state, change(state, place)));
        async move {
            match change {
                None => Err(nothing("it did not answer; it joins later, by a second run")),
                // An earlier process may have ended before the replicas had its change.
                Some((state, None)) => {
                    let keys = [&*state.marker, &*state.adoption];
                    still_there(topology, server, keys).await?;
                    Ok(None)
                }
                Some((_, Some(change))) => {
                    change.make(topology, server, Do::Register).await?;
                    Ok(Some(change))
                }
            }
        }
    });
    futures_util::future::join_all(changes).await
}

/// Refuses an old node that is marked for the new settings. It votes for the clients of the new node with its name, so
/// the reconfiguration cannot take it out of use.
fn same_settings_elsewhere(
    servers: &[RedisNode],
    states: &[Option<NodeKeys>],
    new: usize,
) -> Result<(), InitError> {
    let all = servers.iter().zip(states);
    let is_ours = |state: &Option<NodeKeys>| state.as_ref().is_some_and(|it| it.ours != Ours::No);
    match all.skip(new).find(|(_, state)| is_ours(state)) {
        None => Ok(()),
        Some((old, _)) => Err(InitError::OldNodeVotes { name: old.name().to_owned() }),
    }
}

/// Refuses nodes whose locks are in another database, which this change cannot move.
fn in_other_databases(topology: &Topology, looked: &[Looked]) -> Result<(), InitError> {
    let elsewhere = |node: &Looked| {
        let failure = node.facts.as_ref().ok()?.elsewhere.clone()?;
        failure.kind().is_disagreement().then(|| (node.name.clone(), failure))
    };
    let nodes: Vec<_> = looked.iter().filter_map(elsewhere).collect();
    if nodes.is_empty() {
        return Ok(());
    }
    let is_database =
        nodes.iter().any(|(_, failure)| failure.difference() == Some(&Difference::Database));
    let nodes = nodes.into_iter().map(|(name, failure)| (name, failure.to_string())).collect();
    Err(match is_database {
        true => InitError::OtherDatabase { nodes, otherwise: topology.init.fresh(true, 0) },
        false => InitError::Unfit { nodes },
    })
}

/// Refuses markers that this version cannot read.
fn unknown_markers(topology: &Topology, looked: &[Looked]) -> Result<(), InitError> {
    let unknown = looked.iter().filter_map(|node| {
        let (facts, ..) = known(node).ok()?;
        let key = &topology.rules.marker;
        let why = format!("its key {key} is not this version's; see quorlock doctor");
        (!is_of_this_version(facts)).then(|| (node.name.clone(), why))
    });
    let nodes: Vec<_> = unknown.collect();
    if nodes.is_empty() { Ok(()) } else { Err(InitError::Unfit { nodes }) }
}
