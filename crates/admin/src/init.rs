//! Decisions about nodes that only an operator can make: that no lock is in use ([`fresh`]), and that nodes, quorum or
//! longest ttl change ([`reconfigure`]).
//!
//! Both functions write markers. A node votes for the clients whose settings its marker has; see
//! [`guarantees`](quorlock::guarantees).

mod in_use;
mod keys;
mod reconfiguration;

use std::sync::Arc;

use quorlock::admin::{Do, RedisNode, Topology, group, names};
use quorlock::{BuildError, ClientBuilder};
use quorlock_core::Counter;
use quorlock_core::display::{SETTINGS_MAX, shown};
use quorlock_core::marker::{Adoption, Cluster, Marker};

pub use self::in_use::{InUse, LiveClient, LiveLock, impatient, in_use, in_use_by_old};
use self::keys::Change;
pub use self::reconfiguration::{Reconfiguration, reconfigure};
use crate::doctor::look::{Facts, Looked, Seen, look_at_all};
use crate::doctor::unfit;

/// Result of `fresh`, `reconfigure` or `finish` for one node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChangedNode {
    /// The node's name.
    pub node: Arc<str>,
    /// The change.
    pub change: NodeChange,
}

/// The change that `fresh`, `reconfigure` or `finish` made to a node, or the reason why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeChange {
    /// The node is marked, and its votes count.
    Marked,
    /// The node is marked, but not enough of its replicas have acknowledged that. Its votes count once they have. Call
    /// again, or look with [`doctor::examine`](crate::doctor::examine).
    Unacknowledged {
        /// The cause, in words.
        why: String,
    },
    /// The node was marked for these settings before.
    WasMarked,
    /// The node votes for no client until locks of the old settings have expired.
    Waits,
    /// The node is an old node and no new one, and votes for no client any more.
    Retired,
    /// The node was not changed.
    Nothing {
        /// The cause, in words.
        why: String,
    },
    /// Whether the node was changed is unknown: the command was sent, and its answer is missing. Call again, or look
    /// with [`doctor::examine`](crate::doctor::examine).
    Unknown {
        /// The cause, in words.
        why: String,
    },
}

impl NodeChange {
    /// The cause, in words, if the change was not made or is not certain.
    pub fn why(&self) -> Option<&str> {
        match self {
            Self::Unacknowledged { why } | Self::Nothing { why } | Self::Unknown { why } => {
                Some(why)
            }
            Self::Marked | Self::WasMarked | Self::Waits | Self::Retired => None,
        }
    }
}

fn nothing(why: impl ToString) -> NodeChange {
    NodeChange::Nothing { why: why.to_string() }
}

/// Result of `fresh` or `finish` for all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Initialized {
    /// One entry per node: the new nodes in order, then old nodes that were given in addition.
    pub nodes: Vec<ChangedNode>,
    /// Number of nodes that must grant a lock.
    pub needed: usize,
}

impl Initialized {
    /// Number of nodes that vote now.
    pub fn voting(&self) -> usize {
        let votes =
            |node: &&ChangedNode| matches!(node.change, NodeChange::Marked | NodeChange::WasMarked);
        self.nodes.iter().filter(votes).count()
    }
}

/// The reason why nothing was changed, or not enough.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// The settings are wrong; nothing was sent.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Two old nodes are the same server. Nothing was written.
    #[error(
        "nodes {other} and {name} are the same server, which cannot have been two nodes: give it one name"
    )]
    OldNodeListed {
        /// The name of the old node.
        name: String,
        /// The other name of the same server.
        other: String,
    },
    /// An old node votes for the new settings already, under the name of a new node. Nothing was written.
    #[error(
        "node {name} is listed twice: nodes cannot tell its clients from those of the new one: give the new one another name"
    )]
    OldNodeVotes {
        /// The name of the old node.
        name: String,
    },
    /// Some nodes must not vote. Nothing was written.
    #[error("nothing was changed: {}", list(nodes))]
    Unfit {
        /// Name of each node that must not vote, with the reason.
        nodes: Vec<(Arc<str>, String)>,
    },
    /// Too few nodes can be used. Nothing was written.
    #[error(
        "nothing was changed: {reached} of {all} nodes can be used, but {needed} must; {}; then run the same command \
         again ({})",
        if *barred { "correct the user, the password, the right or the command that is named here" }
        else { "make the others usable" },
        list(nodes)
    )]
    TooFew {
        /// Number of nodes that can be used.
        reached: usize,
        /// Number of all nodes.
        all: usize,
        /// Number of nodes that are needed.
        needed: usize,
        /// Whether there would be enough nodes if no node refused the user or lacked a command.
        barred: bool,
        /// Name of each node that cannot be used, with the reason.
        nodes: Vec<(Arc<str>, String)>,
    },
    /// Too few of the nodes that vote for the old settings were reached, so the other nodes could still form a quorum.
    /// Nothing was written.
    #[error(
        "nothing was changed: {needed} of the nodes that vote for \"{old}\" must answer, or the others \
         could still grant locks; {reached} did; {advice}"
    )]
    OldNodes {
        /// The old settings, as a marker has them.
        old: String,
        /// Number of old nodes that answered.
        reached: usize,
        /// Number of old nodes that must answer.
        needed: usize,
        /// The advice that the message ends with.
        advice: String,
    },
    /// The locks are in another database of the nodes. Nothing was written.
    #[error("nothing was changed: {}; or, to use this database, {otherwise}", list(nodes))]
    OtherDatabase {
        /// Name of each node with another database, with the numbers of both.
        nodes: Vec<(Arc<str>, String)>,
        /// How to use the other database.
        otherwise: String,
    },
    /// No given node has a marker of other settings or a trace of an earlier reconfiguration. So old nodes, if there
    /// are any, are not among the given servers and would continue to grant locks. Nothing was written.
    #[error(
        "nothing was changed: under this key prefix none of these nodes was ever marked for other nodes; name the old \
         ones with --old-node; or, for new nodes and for another key prefix, {otherwise}"
    )]
    NothingOld {
        /// How to take the nodes into use if there are no old ones.
        otherwise: String,
    },
    /// Too many nodes could not be taken out of use, so the change has stopped. The nodes that were taken out of use
    /// vote for no client now. Call again.
    #[error("not finished; run the same command again ({})", list(nodes))]
    Interrupted {
        /// Name of each node that could not be taken out of use, with the reason.
        nodes: Vec<(Arc<str>, String)>,
    },
}

fn list(nodes: &[(Arc<str>, String)]) -> String {
    let groups = group(nodes.iter().map(|(node, why)| (node, why)), |one, other| one == other);
    let lines = groups.iter().map(|(nodes, why)| format!("{}: {why}", names(nodes)));
    lines.collect::<Vec<_>>().join("; ")
}

/// The settings in the markers of nodes before a change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Before {
    /// The new settings.
    pub new: String,
    /// Other settings, with the nodes that are marked for them. Nodes that do not answer are left out.
    pub old: Vec<(String, Vec<Arc<str>>)>,
    /// Whether [`fn@reconfigure`] can make the change. It cannot change a database, a key prefix, or a marker that is
    /// not of this version.
    pub is_reconfigurable: bool,
    /// How to make the change, if the nodes have other settings.
    pub remedy: String,
}

impl Before {
    fn of(topology: &Topology, looked: &[Looked]) -> Self {
        let new = &topology.rules.cluster;
        let mut facts = looked.iter().filter_map(|node| node.facts.as_ref().ok());
        let is_reconfigurable = facts.all(is_of_this_version);
        let theirs = Looked::settings(looked);
        let theirs = theirs.iter().map(|(node, text)| (*node, &**text));
        let longest_ms = looked.iter().filter_map(Looked::cluster).map(|it| it.max_ttl_ms()).max();
        let longest_ms = longest_ms.unwrap_or(0);
        let remedy = match is_reconfigurable {
            true => topology.init.reconfigure(theirs, &[]),
            false => topology.init.fresh(true, longest_ms),
        };
        let new_shown = settings_shown(new);
        let mut before = Self { new: new_shown, old: Vec::new(), is_reconfigurable, remedy };
        for node in looked {
            if let Some(settings) =
                node.facts.as_ref().ok().and_then(|facts| marked_for(facts, new))
            {
                before.add(settings, &node.name);
            }
        }
        before
    }

    /// Adds a node whose settings change in ways that [`fn@reconfigure`] cannot make. Each of `changes` is an old and a
    /// new setting as text. The settings in the node's marker (`cluster`) are listed before the old ones.
    fn add_changes(
        &mut self,
        topology: &Topology,
        node: &Arc<str>,
        cluster: Option<Cluster>,
        changes: &[(String, String)],
    ) {
        if changes.is_empty() {
            return;
        }
        let longest_ms = cluster.as_ref().map_or(0, Cluster::max_ttl_ms);
        let cluster = cluster.iter().map(settings_shown);
        let old: Vec<String> = cluster.chain(changes.iter().map(|(old, _)| old.clone())).collect();
        self.add(old.join(", "), node);
        for (_, new) in changes {
            if !self.new.contains(new.as_str()) {
                self.new += &format!(", {new}");
            }
        }
        self.is_reconfigurable = false;
        self.remedy = topology.init.fresh(true, longest_ms);
    }

    fn add(&mut self, settings: String, node: &Arc<str>) {
        match self.old.iter_mut().find(|(other, _)| *other == settings) {
            Some((_, nodes)) => nodes.push(node.clone()),
            None => self.old.push((settings, vec![node.clone()])),
        }
    }
}

/// Whether the node has no marker, or a marker that this version of the library can read.
fn is_of_this_version(facts: &Facts) -> bool {
    match &facts.marker {
        Seen::Nothing => true,
        Seen::Text(text) => Marker::parse(text).is_some(),
        Seen::Unreadable(_) => false,
    }
}

/// The settings in a node's marker or, during a wait, in its adoption. `None`: the node has neither key, or has the
/// new settings.
fn marked_for(facts: &Facts, new: &Cluster) -> Option<String> {
    let other = |cluster: Cluster| (cluster != *new).then(|| settings_shown(&cluster));
    match &facts.marker {
        Seen::Text(text) => match Marker::parse(text) {
            Some(marker) => other(marker.cluster),
            None => Some("something that is not this version's".to_owned()),
        },
        Seen::Unreadable(_) => Some("something that cannot be read".to_owned()),
        Seen::Nothing => match &facts.adoption {
            Seen::Text(text) => other(Adoption::parse(text)?.marker.cluster),
            _ => None,
        },
    }
}

fn settings_shown(cluster: &Cluster) -> String {
    shown(&cluster.to_string(), SETTINGS_MAX)
}

/// Marks all nodes for clients of these settings, **because the operator says that no lock is in use**: their votes
/// count from now on, without a wait. This function does not look for locks; [`fn@in_use`] does.
///
/// All markers are replaced, and fencing tokens continue above the old ones. Nodes that cannot be reached are listed in
/// the result. They join later, after a wait.
///
/// # Errors
/// [`InitError::Unfit`] if a node must not vote, [`InitError::TooFew`] if fewer than a quorum answered; nothing was
/// written.
///
/// # Cancel safety
/// Some nodes may be marked and others not. Call again.
pub async fn fresh(settings: &ClientBuilder) -> Result<Initialized, InitError> {
    let topology = Topology::of(settings)?;
    let looked = look_at_all(&topology, &topology.servers, false).await;
    check(&topology, &looked)?;
    let floor = floor(&looked, 0);
    let marks = topology.servers.iter().zip(&looked);
    let marks = marks.map(|(server, node)| {
        let (name, marked) = (node.name.clone(), mark_fresh(&topology, server, node, floor));
        async move {
            ChangedNode { node: name, change: marked.await.err().unwrap_or(NodeChange::Marked) }
        }
    });
    let nodes = futures_util::future::join_all(marks).await;
    Ok(Initialized { nodes, needed: topology.quorum.needed() })
}

/// # Errors
/// The node is not marked, or whether it is marked is unknown, or not enough replicas have acknowledged the marker.
async fn mark_fresh(
    topology: &Topology,
    server: &RedisNode,
    node: &Looked,
    floor: u64,
) -> Result<(), NodeChange> {
    let (facts, run_id, promoted_at) = known(node).map_err(nothing)?;
    let cluster = topology.rules.cluster.clone();
    let marker = Marker { cluster, run_id, promoted_at, floor };
    let change = Change {
        from: (written(&facts.marker), written(&facts.adoption)),
        to: (marker.to_string(), String::new()),
        age_ms: None,
    };
    change.make(topology, server, Do::Replace).await
}

/// The text that a marker or adoption must still have when a [`Change`] is made; `*` (any) if it was not readable.
fn written(seen: &Seen) -> String {
    match seen {
        Seen::Nothing => String::new(),
        Seen::Text(text) => text.clone(),
        Seen::Unreadable(_) => "*".to_owned(),
    }
}

/// Checks that no node is unfit to vote, and that the nodes that can be used are a quorum.
fn check(topology: &Topology, looked: &[Looked]) -> Result<(), InitError> {
    let nodes = unfit(topology, looked);
    if !nodes.is_empty() {
        return Err(InitError::Unfit { nodes });
    }
    let silent: Vec<_> =
        looked.iter().filter_map(|node| Some((node, known(node).err()?))).collect();
    let reached = looked.len() - silent.len();
    let needed = topology.quorum.needed();
    if reached < needed {
        let barred = looked.iter().filter(|node| is_barred(node)).count();
        return Err(InitError::TooFew {
            reached,
            all: looked.len(),
            needed,
            barred: reached + barred >= needed,
            nodes: silent.into_iter().map(|(node, why)| (node.name.clone(), why)).collect(),
        });
    }
    Ok(())
}

/// Whether the node answers, but refuses the user or lacks a command.
fn is_barred(node: &Looked) -> bool {
    match &node.facts {
        Err(failure) => failure.kind().is_about_rights(),
        Ok(facts) => facts.refusal().is_some(),
    }
}

/// The facts about a node, its server's `run_id`, and the replication offset of its promotion (-1: never a replica).
fn known(node: &Looked) -> Result<(&Facts, Box<str>, i64), String> {
    let facts = node.facts.as_ref().map_err(ToString::to_string)?;
    if let Some(error) = facts.refusal() {
        return Err(error.to_owned());
    }
    let info = facts.info.as_ref().map_err(|why| match why.starts_with("BUSY ") {
        true => format!(
            "busy with a script: {why} Wait until the script has ended, or end it: SCRIPT KILL"
        ),
        false => why.clone(),
    })?;
    Ok((facts, info.run_id.clone(), info.promoted_at.unwrap_or(-1)))
}

/// A floor (the smallest fencing token) above every node's clock, and not below an earlier floor or `least`.
fn floor(looked: &[Looked], least: u64) -> u64 {
    let facts = || looked.iter().filter_map(|node| node.facts.as_ref().ok());
    let times = facts().filter_map(|facts| u64::try_from(facts.times.last_us?).ok());
    let floors = facts().filter_map(|facts| match (&facts.marker, &facts.adoption) {
        (Seen::Text(text), _) => Some(Marker::parse(text)?.floor),
        // The adoption, the key that begins a wait, replaces the marker and keeps its floor.
        (_, Seen::Text(text)) => Some(Adoption::parse(text)?.marker.floor),
        _ => None,
    });
    let ahead = times.max().map_or(0, |time| time.saturating_add(Marker::FLOOR_AHEAD_US));
    let floor = ahead.max(floors.max().unwrap_or(0)).max(least);
    // Even if a clock is far ahead, the floor must leave room for fencing tokens above the floor.
    floor.min(Counter::LIMIT - 1)
}
