//! What a node said, and who holds a lock on it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::shown::{shown, shown_value};
use quorlock_core::{Failure, Holding, NodeOutcome, NodeResult, Value};

/// What one node said, and when.
///
/// `Debug` shows as little of stored values as `Display` does: they are others' tokens.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeAnswer {
    /// The node's name.
    pub node: Arc<str>,
    /// What it said.
    pub said: NodeOutcome,
    /// How long after the start of the attempt.
    pub took: Duration,
}

impl NodeAnswer {
    pub(crate) fn all(names: &[Arc<str>], results: Vec<NodeResult>) -> Vec<Self> {
        let tell = |(node, story): (&Arc<str>, NodeResult)| Self {
            node: node.clone(),
            said: story.said,
            took: story.took,
        };
        names.iter().zip(results).map(tell).collect()
    }

    /// Who holds the lock on this node, if it was seen.
    pub fn holder(&self) -> Option<Holder> {
        self.holding().and_then(Holder::of)
    }

    /// What holds the key on this node, if it was seen.
    fn holding(&self) -> Option<&Holding> {
        match &self.said {
            NodeOutcome::Refused(Some(holding)) | NodeOutcome::Seen(holding) => {
                (*holding != Holding::Free).then_some(holding)
            }
            _ => None,
        }
    }

    /// Why the node failed, if it did.
    pub fn failure(&self) -> Option<&Failure> {
        match &self.said {
            NodeOutcome::Failed(failure) => Some(failure),
            _ => None,
        }
    }
}

impl fmt::Debug for NodeAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeAnswer({self}; {:?})", self.took)
    }
}

impl NodeAnswer {
    pub(super) fn is_disagreement(&self) -> bool {
        self.failure().is_some_and(|failure| failure.kind().is_disagreement())
    }
}

impl fmt::Display for NodeAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, said, took } = self;
        match said {
            NodeOutcome::NotAsked => write!(f, "{node} was not asked"),
            NodeOutcome::Nothing => write!(f, "{node} had not answered after {took:.1?}"),
            NodeOutcome::Granted => write!(f, "{node} granted"),
            NodeOutcome::Refused(None) => write!(f, "{node} refused"),
            NodeOutcome::Refused(Some(holding)) => match Holder::of(holding) {
                Some(holder) => write!(f, "{node} refused (held by {holder})"),
                None => write!(f, "{node} refused (free again since)"),
            },
            NodeOutcome::Seen(holding) => match Holder::of(holding) {
                Some(holder) => write!(f, "{node} held by {holder}"),
                None => write!(f, "{node} free"),
            },
            // It answers, and well enough; only that it is not believed.
            NodeOutcome::Failed(failure) if failure.kind().is_about_trust() => {
                write!(f, "{node}: {failure}")
            }
            NodeOutcome::Failed(failure) => write!(f, "{node} failed: {failure}"),
            _ => write!(f, "{node}: {said:?}"),
        }
    }
}

/// Who holds a lock, as far as a stored value tells.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// What kind of holder it is.
    pub kind: HolderKind,
    /// Time until the key expires; `None`: it does not, or that is not known.
    pub remaining: Option<Duration>,
}

/// What kind of holder it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HolderKind {
    /// A quorlock client that describes itself so; empty if it does not. Escaped and cut.
    Owner(String),
    /// The beginning of another library's value, which may be a token. Escaped.
    Foreign(String),
    /// A key that is not a string: no lock of this family, and never touched.
    OtherType,
    /// Another caller of this process.
    ThisProcess,
}

/// At most so many characters of an owner's description are shown.
const OWNER_MAX: usize = 80;

impl Holder {
    pub(crate) fn of(holding: &Holding) -> Option<Self> {
        let kind = match holding {
            Holding::Held { value, .. } => match Value::owner_of(value) {
                Some(owner) => HolderKind::Owner(shown(owner, OWNER_MAX)),
                None => HolderKind::Foreign(shown_value(value)),
            },
            Holding::OtherType { .. } => HolderKind::OtherType,
            _ => return None,
        };
        let remaining = match holding {
            Holding::Held { ttl, .. } | Holding::OtherType { ttl } => *ttl,
            _ => None,
        };
        Some(Self { kind, remaining })
    }

    pub(crate) const THIS_PROCESS: Self = Self { kind: HolderKind::ThisProcess, remaining: None };
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            HolderKind::ThisProcess => return write!(f, "another caller of this process"),
            HolderKind::Owner(owner) if owner.is_empty() => write!(f, "a client without a name")?,
            HolderKind::Owner(owner) => write!(f, "{owner}")?,
            HolderKind::Foreign(value) => {
                write!(f, "the foreign value \"{value}\", which quorlock did not write")?;
            }
            HolderKind::OtherType => write!(f, "a key that is no lock (not a string)")?,
        }
        match self.remaining {
            Some(left) => write!(f, ", {left:.1?} left"),
            None => write!(f, ", without expiry"),
        }
    }
}

/// The holder of the most nodes, and of how many: who has the same value on them, or keys that are no lock. The first one
/// wins a tie.
pub(crate) fn most_frequent(nodes: &[NodeAnswer]) -> Option<(Holder, usize)> {
    let seen = || nodes.iter().filter_map(NodeAnswer::holding);
    let count = |holding: &Holding| seen().filter(|other| is_same(holding, other)).count();
    let counted = seen().map(|holding| (holding, count(holding)));
    // Of several largest ones the last is taken, so they are looked at from behind.
    let most = counted.collect::<Vec<_>>().into_iter().rev().max_by_key(|(_, count)| *count);
    most.and_then(|(holding, count)| Some((Holder::of(holding)?, count)))
}

/// Whether two nodes are held by the same: two clients may describe themselves alike, but no two have one value.
fn is_same(one: &Holding, other: &Holding) -> bool {
    match (one, other) {
        (Holding::Held { value: one, .. }, Holding::Held { value: other, .. }) => one == other,
        (Holding::OtherType { .. }, Holding::OtherType { .. }) => true,
        _ => false,
    }
}

pub(super) fn write_nodes(f: &mut fmt::Formatter<'_>, nodes: &[NodeAnswer]) -> fmt::Result {
    for (place, node) in nodes.iter().enumerate() {
        let comma = if place == 0 { "" } else { ", " };
        write!(f, "{comma}node {node}")?;
    }
    Ok(())
}

pub(super) fn list(nodes: &[NodeAnswer]) -> String {
    struct Nodes<'a>(&'a [NodeAnswer]);
    impl fmt::Display for Nodes<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write_nodes(f, self.0)
        }
    }
    Nodes(nodes).to_string()
}
