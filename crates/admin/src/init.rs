//! What an operator decides about nodes, and no client may: that no lock is in use ([`fresh`]), and
//! that nodes, quorum or longest ttl change ([`reconfigure`]).
//!
//! Both write the markers by which nodes say for whom they vote; see [`guarantees`](quorlock::guarantees).

mod in_use;
mod keys;
mod reconfiguration;

use std::sync::Arc;

use quorlock::admin::{Do, Topology, group, names};
use quorlock::node::{NodeConfig, RedisNode};
use quorlock::{BuildError, ClientBuilder};
use quorlock_core::Counter;
use quorlock_core::marker::{Adoption, Cluster, Marker};
use quorlock_core::shown::{SETTINGS_MAX, shown};

pub use self::in_use::{InUse, LiveLock, in_use};
use self::keys::Change;
use self::reconfiguration::with_others;
pub use self::reconfiguration::{Reconfiguration, reconfigure};
use crate::doctor::look::{Facts, Looked, Seen, look_at_all};
use crate::doctor::unfit;

/// What became of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChangedNode {
    /// The node's name.
    pub node: Arc<str>,
    /// What was done there, or why nothing was.
    pub change: Result<NodeChange, String>,
}

/// What was done on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeChange {
    /// It is marked: its votes count.
    Marked,
    /// It was marked for these settings before.
    WasMarked,
    /// It votes for nobody until the wait is over.
    Waits,
    /// It belongs to the old nodes alone, and votes for nobody any more.
    Retired,
}

/// What became of all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Initialized {
    /// Per node: the new ones in order, then old ones that were given besides.
    pub nodes: Vec<ChangedNode>,
    /// How many nodes must grant a lock.
    pub needed: usize,
}

impl Initialized {
    /// How many nodes vote now.
    pub fn voting(&self) -> usize {
        let votes = |node: &&ChangedNode| {
            matches!(node.change, Ok(NodeChange::Marked | NodeChange::WasMarked))
        };
        self.nodes.iter().filter(votes).count()
    }
}

/// Why nothing could be done, or not enough.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// The settings are wrong; nothing was sent.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Some nodes must not vote at all. Nothing was written.
    #[error("nothing was changed: {}", list(nodes))]
    Unfit {
        /// Each, and why.
        nodes: Vec<(Arc<str>, String)>,
    },
    /// Too few nodes were reached. Nothing was written.
    #[error(
        "nothing was changed: {reached} of {all} nodes can be used, but {needed} must; {}; then run the same command \
         again ({})",
        if *barred { "correct the user, the password, the right or the command that is named here" }
        else { "make the others reachable" },
        list(nodes)
    )]
    TooFew {
        /// How many can be used.
        reached: usize,
        /// How many there are.
        all: usize,
        /// How many must be usable.
        needed: usize,
        /// The others would be enough, but they refuse the user or lack a command.
        barred: bool,
        /// The others, and why.
        nodes: Vec<(Arc<str>, String)>,
    },
    /// Too few of the nodes that vote for the old settings were reached: the others could still make a
    /// quorum. Nothing was written.
    #[error(
        "nothing was changed: {needed} of the nodes that vote for \"{old}\" must answer, or the others \
         could still grant locks; {reached} did{}",
        advice(missing, unmarked)
    )]
    OldNodes {
        /// The old settings.
        old: String,
        /// How many of their nodes answered.
        reached: usize,
        /// How many must answer.
        needed: usize,
        /// Those that were not reached.
        missing: Vec<String>,
        /// Those in whose name a server answers that has no marker of these settings.
        unmarked: Vec<String>,
    },
    /// No node says that it voted for other settings than the new ones, nor that it was moved before:
    /// the old nodes, if there are any, are others, and would go on granting locks. Nothing was written.
    #[error(
        "nothing was changed: under this key prefix none of these nodes was ever marked for other nodes; name the old \
         ones with --old-node, or, if no lock is in use, run quorlock init --fresh, also for another key prefix"
    )]
    NothingOld,
    /// Some of the old nodes could not be taken out of use, and too few are left that were. They vote
    /// for nobody now; run the command again.
    #[error("not finished; run the same command again ({})", list(nodes))]
    Interrupted {
        /// What failed where.
        nodes: Vec<(Arc<str>, String)>,
    },
}

fn list(nodes: &[(Arc<str>, String)]) -> String {
    let groups = group(nodes.iter().map(|(node, why)| (node, why)), |one, other| one == other);
    let lines = groups.iter().map(|(nodes, why)| format!("{}: {why}", names(nodes)));
    lines.collect::<Vec<_>>().join("; ")
}

/// What nodes say of the settings that they vote for, before anything is changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Before {
    /// The new settings.
    pub new: String,
    /// Other ones, and the nodes that are marked for them. Of nodes that do not answer nothing is known.
    pub old: Vec<(String, Vec<Arc<str>>)>,
    /// [`fn@reconfigure`] makes the change: it does not change a database, a key prefix, or a marker that is not of this
    /// version.
    pub is_reconfigurable: bool,
}

/// Looks for what settings the nodes, and these others, are marked so far. Writes nothing.
///
/// # Errors
/// [`InitError::Build`] if the settings are wrong; nothing was sent.
pub async fn before(settings: &ClientBuilder, others: &[NodeConfig]) -> Result<Before, InitError> {
    let topology = Topology::of(settings)?;
    let servers = with_others(&topology, Topology::others(settings, others)?)?;
    Ok(Before::of(&topology, &look_at_all(&topology, &servers, false).await))
}

impl Before {
    fn of(topology: &Topology, looked: &[Looked]) -> Self {
        let new = &topology.rules.cluster;
        let mut facts = looked.iter().filter_map(|node| node.facts.as_ref().ok());
        let is_reconfigurable = facts.all(is_of_this_version);
        let mut before = Self { new: settings_shown(new), old: Vec::new(), is_reconfigurable };
        for node in looked {
            if let Some(settings) =
                node.facts.as_ref().ok().and_then(|facts| marked_for(facts, new))
            {
                before.add(settings, &node.name);
            }
        }
        before
    }

    /// Adds old and new values that [`fn@reconfigure`] does not change, and the other settings in the node's marker.
    fn add_changes(
        &mut self,
        node: &Arc<str>,
        cluster: Option<Cluster>,
        changes: &[(String, String)],
    ) {
        if changes.is_empty() {
            return;
        }
        let cluster = cluster.iter().map(settings_shown);
        let old: Vec<String> = cluster.chain(changes.iter().map(|(old, _)| old.clone())).collect();
        self.add(old.join(", "), node);
        for (_, new) in changes {
            if !self.new.contains(new.as_str()) {
                self.new += &format!(", {new}");
            }
        }
        self.is_reconfigurable = false;
    }

    fn add(&mut self, settings: String, node: &Arc<str>) {
        match self.old.iter_mut().find(|(other, _)| *other == settings) {
            Some((_, nodes)) => nodes.push(node.clone()),
            None => self.old.push((settings, vec![node.clone()])),
        }
    }
}

/// The node has no marker, or one that this version can read.
fn is_of_this_version(facts: &Facts) -> bool {
    match &facts.marker {
        Seen::Nothing => true,
        Seen::Text(text) => Marker::parse(text).is_some(),
        Seen::Unreadable(_) => false,
    }
}

/// The settings that a node's marker names; or its adoption, if it has none. `None`: there are neither, or
/// these.
fn marked_for(facts: &Facts, new: &Cluster) -> Option<String> {
    let other = |cluster: Cluster| (cluster != *new).then(|| settings_shown(&cluster));
    match &facts.marker {
        Seen::Text(text) => match Marker::parse(text) {
            Some(marker) => other(marker.cluster),
            None => Some("something that is not this version's".to_owned()),
        },
        Seen::Unreadable(_) => Some("something that cannot be read".to_owned()),
        Seen::Nothing => match &facts.adoption {
            Seen::Text(text) => other(Adoption::parse(text)?.cluster),
            _ => None,
        },
    }
}

fn settings_shown(cluster: &Cluster) -> String {
    shown(&cluster.to_string(), SETTINGS_MAX)
}

/// What to do about old nodes that were not found.
fn advice(missing: &[String], unmarked: &[String]) -> String {
    let mut advice = String::new();
    if !missing.is_empty() {
        advice = format!("; give the URLs of {} as old nodes", missing.join(", "));
    }
    if !unmarked.is_empty() {
        advice += &format!(
            "; what answers as {} has no marker of theirs: if the old server of that name is another \
             one, give its URL as an old node; if this one has lost its data, have a client of the old \
             settings look at it first",
            unmarked.join(", ")
        );
    }
    advice
}

/// Marks all nodes for clients of these settings, **on the word of the operator that no lock is in
/// use**: their votes count from now on, without a wait. It does not look for locks; [`fn@in_use`] does.
///
/// Whatever markers there were are replaced; fences go on from above theirs. Nodes that cannot be
/// reached are told in the result; they join later, after a wait.
///
/// # Errors
/// [`InitError::Unfit`] if a node must not vote, [`InitError::TooFew`] if fewer than a quorum
/// answered; nothing was written.
///
/// # Cancel safety
/// Some nodes may be marked, others not. It can be called again.
pub async fn fresh(settings: &ClientBuilder) -> Result<Initialized, InitError> {
    let topology = Topology::of(settings)?;
    let looked = look_at_all(&topology, &topology.servers, false).await;
    check(&topology, &looked)?;
    let floor = floor(&looked, 0);
    let marks = topology.servers.iter().zip(&looked);
    let marks = marks.map(|(server, node)| {
        let (name, marked) = (node.name.clone(), mark_fresh(&topology, server, node, floor));
        async move { ChangedNode { node: name, change: marked.await } }
    });
    let nodes = futures_util::future::join_all(marks).await;
    Ok(Initialized { nodes, needed: topology.quorum.needed() })
}

async fn mark_fresh(
    topology: &Topology,
    server: &RedisNode,
    node: &Looked,
    floor: u64,
) -> Result<NodeChange, String> {
    let (facts, run_id, promoted_at) = known(node)?;
    let cluster = topology.rules.cluster.clone();
    let marker = Marker { cluster, run_id, promoted_at, floor };
    let change = Change {
        from: (written(&facts.marker), written(&facts.adoption)),
        to: (marker.to_string(), String::new()),
        age_ms: None,
    };
    change.make(topology, server, Do::Replace).await.map(|()| NodeChange::Marked)
}

/// What must still be there when it is changed; see [`Change`].
fn written(seen: &Seen) -> String {
    match seen {
        Seen::Nothing => String::new(),
        Seen::Text(text) => text.clone(),
        Seen::Unreadable(_) => "*".to_owned(),
    }
}

/// Whether all that answered may vote, and a quorum did.
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

/// The node answers, but refuses the user or lacks a command.
fn is_barred(node: &Looked) -> bool {
    match &node.facts {
        Err(failure) => failure.kind().is_about_rights(),
        Ok(facts) => facts.refusal().is_some(),
    }
}

/// What is known of a node: facts, its run, and when it was promoted.
fn known(node: &Looked) -> Result<(&Facts, Box<str>, i64), String> {
    let facts = node.facts.as_ref().map_err(ToString::to_string)?;
    if let Some(error) = facts.refusal() {
        return Err(error.to_owned());
    }
    let info = facts.info.as_ref().map_err(Clone::clone)?;
    Ok((facts, info.run_id.clone(), info.promoted_at.unwrap_or(-1)))
}

/// Above every clock, and every floor that was; no lower than `least`.
fn floor(looked: &[Looked], least: u64) -> u64 {
    let facts = || looked.iter().filter_map(|node| node.facts.as_ref().ok());
    let times = facts().filter_map(|facts| u64::try_from(facts.times.last_us?).ok());
    let floors = facts().filter_map(|facts| match (&facts.marker, &facts.adoption) {
        (Seen::Text(text), _) => Some(Marker::parse(text)?.floor),
        // That of the marker that was there before.
        (_, Seen::Text(text)) => Some(Adoption::parse(text)?.floor),
        _ => None,
    });
    let ahead = times.max().map_or(0, |time| time.saturating_add(Marker::FLOOR_AHEAD_US));
    let floor = ahead.max(floors.max().unwrap_or(0)).max(least);
    // A clock that is far off must not leave room for no fence at all.
    floor.min(Counter::LIMIT - 1)
}
