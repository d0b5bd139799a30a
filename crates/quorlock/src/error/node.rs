//! What a node said, and who holds a lock on it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::shown::{shown, shown_value};
use quorlock_core::{Failure, FailureKind, Holding, Keys, NodeOutcome, NodeResult, Reader, Value};

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
    /// The names of the resources, if there are several.
    several: Option<Keys>,
}

impl NodeAnswer {
    pub(crate) fn all(
        names: &[Arc<str>],
        several: Option<&Keys>,
        results: Vec<NodeResult>,
    ) -> Vec<Self> {
        let tell = |(node, story): (&Arc<str>, NodeResult)| Self {
            node: node.clone(),
            said: story.said,
            took: story.took,
            several: several.cloned(),
        };
        names.iter().zip(results).map(tell).collect()
    }

    /// Who holds the lock on this node, if it was seen.
    pub fn holder(&self) -> Option<Holder> {
        self.holding().and_then(Holder::of)
    }

    /// What holds the key on this node, if it was seen.
    pub(crate) fn holding(&self) -> Option<&Holding> {
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
    /// Who holds it; of several resources, each that is held.
    fn write_holders(&self, f: &mut fmt::Formatter<'_>, holding: &Holding) -> fmt::Result {
        let (Holding::Several(holdings), Some(names)) = (holding, &self.several) else {
            let Some(holder) = Holder::of(holding) else { return f.write_str("free") };
            return write!(f, "{}", holder.describe());
        };
        let held = names.iter().zip(holdings);
        let held = held.filter_map(|(name, holding)| Some((name, Holder::of(holding)?)));
        for (place, (name, holder)) in held.enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            write!(f, "{comma}{} {}", super::quoted(name), holder.describe())?;
        }
        Ok(())
    }

    /// What it said instead of confirming a held lock.
    fn denial(&self) -> String {
        match &self.said {
            NodeOutcome::Failed(failure) => failure.to_string(),
            NodeOutcome::Seen(Holding::Free) => "does not have the key any more".to_owned(),
            NodeOutcome::Refused(_) => "has another value under the key".to_owned(),
            _ => "no answer yet".to_owned(),
        }
    }

    pub(super) fn is_disagreement(&self) -> bool {
        self.failure().is_some_and(|failure| failure.kind().is_disagreement())
    }
}

impl fmt::Display for NodeAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, said, took, .. } = self;
        match said {
            NodeOutcome::NotAsked => write!(f, "{node} was not asked"),
            NodeOutcome::Nothing => write!(f, "{node} had not answered after {took:.1?}"),
            NodeOutcome::Granted => write!(f, "{node} granted"),
            NodeOutcome::Refused(None) => write!(f, "{node} refused"),
            NodeOutcome::Refused(Some(Holding::Free)) => {
                write!(f, "{node} refused (free again since)")
            }
            NodeOutcome::Refused(Some(holding)) => {
                write!(f, "{node} refused (")?;
                self.write_holders(f, holding)?;
                f.write_str(")")
            }
            NodeOutcome::Seen(Holding::Free) => write!(f, "{node} free"),
            NodeOutcome::Seen(holding) => {
                write!(f, "{node} ")?;
                self.write_holders(f, holding)
            }
            // It answers, and well enough; only that it is not believed.
            NodeOutcome::Failed(failure)
                if failure.kind().is_about_trust()
                    || failure.kind() == FailureKind::MissingCommand =>
            {
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
    /// Readers: clients that share the lock.
    Readers {
        /// How many there are.
        count: usize,
        /// How they describe themselves, as far as they were told; empty texts for those that do not. Escaped and cut.
        owners: Vec<String>,
    },
    /// Nobody, or readers alone; but a writer that describes itself so waits, and no more readers are let in.
    WaitingWriter(String),
    /// A key of another type: no lock of this family, and never touched.
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
            Holding::Shared { readers, count, .. } => {
                let owners = readers.iter().map(|reader| owner_shown(&reader.value)).collect();
                HolderKind::Readers { count: *count, owners }
            }
            Holding::Announced { value, .. } => HolderKind::WaitingWriter(owner_shown(value)),
            Holding::Several(holdings) => return holdings.iter().find_map(Self::of),
            _ => return None,
        };
        let remaining = match holding {
            Holding::Held { ttl, .. }
            | Holding::OtherType { ttl }
            | Holding::Announced { ttl, .. } => *ttl,
            Holding::Shared { ttl, .. } => Some(*ttl),
            _ => None,
        };
        Some(Self { kind, remaining })
    }

    /// One reader of a lock.
    pub(crate) fn of_reader(reader: &Reader) -> Self {
        Self { kind: HolderKind::Owner(owner_shown(&reader.value)), remaining: Some(reader.ttl) }
    }

    /// What it does to the lock, in words: `held by host:7, 9.5s left`, or `host:7 waits as a writer`.
    pub fn describe(&self) -> String {
        match self.kind {
            HolderKind::WaitingWriter(_) => self.to_string(),
            _ => format!("held by {self}"),
        }
    }

    pub(crate) const THIS_PROCESS: Self = Self { kind: HolderKind::ThisProcess, remaining: None };
}

impl fmt::Display for HolderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ThisProcess => write!(f, "another caller of this process"),
            Self::Owner(owner) if owner.is_empty() => write!(f, "a client without a name"),
            Self::Owner(owner) => write!(f, "{owner}"),
            Self::Foreign(value) => {
                write!(f, "the foreign value \"{value}\", which quorlock did not write")
            }
            Self::OtherType => write!(f, "a key that is no lock (not a string)"),
            Self::Readers { count, owners } => write_readers(f, *count, owners),
            Self::WaitingWriter(owner) if owner.is_empty() => {
                write!(f, "a writer without a name waits")
            }
            Self::WaitingWriter(owner) => write!(f, "{owner} waits as a writer"),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        match self.remaining {
            _ if matches!(self.kind, HolderKind::ThisProcess | HolderKind::WaitingWriter(_)) => {
                Ok(())
            }
            Some(left) => write!(f, ", {left:.1?} left"),
            None => write!(f, ", without expiry"),
        }
    }
}

/// How a client describes itself that stored this value; of another library, the beginning of the value.
fn owner_shown(value: &[u8]) -> String {
    match Value::owner_of(value) {
        Some(owner) => shown(owner, OWNER_MAX),
        None => shown_value(value),
    }
}

/// No more readers than this are named.
const READERS_NAMED: usize = 3;

fn write_readers(f: &mut fmt::Formatter<'_>, count: usize, owners: &[String]) -> fmt::Result {
    let plural = if count == 1 { "" } else { "s" };
    write!(f, "{count} reader{plural}")?;
    let named: Vec<&str> =
        owners.iter().map(|owner| &**owner).filter(|it| !it.is_empty()).collect();
    if named.is_empty() {
        return Ok(());
    }
    let shown = named.len().min(READERS_NAMED);
    let more = if count > shown { ", …" } else { "" };
    write!(f, " ({}{more})", named[..shown].join(", "))
}

/// The holder of the most nodes, and of how many: who has the same value on them, or keys that are no lock. The first one
/// wins a tie. Of readers of one key, those that `needed` nodes name; or if there is none, those that the most nodes name.
pub(crate) fn most_frequent(nodes: &[NodeAnswer], needed: usize) -> Option<(Holder, usize)> {
    let seen = || nodes.iter().filter_map(NodeAnswer::holding);
    let names = |holding: &Holding, reader: &Reader| match holding {
        Holding::Shared { readers, .. } => readers.iter().any(|it| it.value == reader.value),
        _ => false,
    };
    let named = |reader: &Reader| seen().filter(|holding| names(holding, reader)).count();
    let count = |holding: &Holding| match holding {
        Holding::Shared { readers, .. } if !readers.is_empty() => {
            readers.iter().map(named).max().unwrap_or_default()
        }
        _ => seen().filter(|other| is_same(holding, other)).count(),
    };
    let counted = seen().map(|holding| (holding, count(holding)));
    // Of several largest ones the last is taken, so they are looked at from behind.
    let most = counted.collect::<Vec<_>>().into_iter().rev().max_by_key(|(_, count)| *count);
    let (holding, most) = most?;
    let mut holding = holding.clone();
    if let Holding::Shared { readers, count, .. } = &mut holding {
        let before = readers.len();
        readers.retain(|reader| named(reader) >= most.min(needed));
        // Of a node with many readers not all are told.
        *count = (*count + readers.len()).saturating_sub(before);
    }
    Some((Holder::of(&holding)?, most))
}

/// Whether two nodes are held by the same: two clients may describe themselves alike, but no two have one value.
fn is_same(one: &Holding, other: &Holding) -> bool {
    match (one, other) {
        (Holding::Held { value: one, .. }, Holding::Held { value: other, .. }) => one == other,
        (Holding::OtherType { .. }, Holding::OtherType { .. }) | (Holding::Free, Holding::Free) => {
            true
        }
        (Holding::Shared { readers: one, .. }, Holding::Shared { readers: other, .. }) => {
            let is_there = |it: &Reader| other.iter().any(|other| other.value == it.value);
            one.is_empty() || other.is_empty() || one.iter().any(is_there)
        }
        (Holding::Announced { value: one, .. }, Holding::Announced { value: other, .. }) => {
            one == other
        }
        (Holding::Several(one), Holding::Several(other)) => {
            one.len() == other.len()
                && one.iter().zip(other).all(|(one, other)| is_same(one, other))
        }
        _ => false,
    }
}

/// What was said in an attempt without success. Nodes that have not answered are no fault if the others had
/// decided it.
pub(super) fn write_asked_nodes(
    f: &mut fmt::Formatter<'_>,
    nodes: &[NodeAnswer],
    needed: usize,
) -> fmt::Result {
    let without =
        |node: &&NodeAnswer| matches!(node.said, NodeOutcome::Refused(_) | NodeOutcome::Failed(_));
    let is_decided = nodes.len() - nodes.iter().filter(without).count() < needed;
    write_each(f, nodes, |f, node| match node.said {
        NodeOutcome::Nothing if is_decided => {
            write!(f, "{}: its answer was not needed", node.node)
        }
        _ => write!(f, "{node}"),
    })
}

fn write_each(
    f: &mut fmt::Formatter<'_>,
    nodes: &[NodeAnswer],
    write: impl Fn(&mut fmt::Formatter<'_>, &NodeAnswer) -> fmt::Result,
) -> fmt::Result {
    for (place, node) in nodes.iter().enumerate() {
        f.write_str(if place == 0 { "node " } else { ", node " })?;
        write(f, node)?;
    }
    Ok(())
}

/// Nodes that do not confirm a held lock, those with the same answer together: `b, c: unreachable; d: …`.
pub(crate) fn grouped<'a>(nodes: impl Iterator<Item = &'a NodeAnswer>) -> String {
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for node in nodes {
        let denial = node.denial();
        match groups.iter_mut().find(|(other, _)| *other == denial) {
            Some((_, names)) => names.push(&node.node),
            None => groups.push((denial, vec![&node.node])),
        }
    }
    let groups = groups.iter().map(|(denial, names)| format!("{}: {denial}", names.join(", ")));
    groups.collect::<Vec<_>>().join("; ")
}

pub(super) fn list(nodes: &[NodeAnswer]) -> String {
    struct Nodes<'a>(&'a [NodeAnswer]);
    impl fmt::Display for Nodes<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write_each(f, self.0, |f, node| write!(f, "{node}"))
        }
    }
    Nodes(nodes).to_string()
}

#[cfg(test)]
mod tests {
    use quorlock_core::Token;

    use super::*;

    fn answers(nodes: &[&[u8]]) -> Vec<NodeAnswer> {
        let second = Duration::from_secs(1);
        let reader = |name: &u8| Reader {
            value: Value::new(&Token::new([*name; 20]), &char::from(*name).to_string())
                .as_bytes()
                .to_vec(),
            ttl: second,
        };
        let said = |readers: &&[u8]| match readers {
            [] => Holding::Free,
            readers => Holding::Shared {
                readers: readers.iter().map(reader).collect(),
                count: readers.len(),
                ttl: second,
            },
        };
        let answer = |readers| NodeAnswer {
            node: "a".into(),
            said: NodeOutcome::Seen(said(readers)),
            took: second,
            several: None,
        };
        nodes.iter().map(answer).collect()
    }

    /// Readers are not one holder: each has the nodes that name it.
    #[test]
    fn of_readers_those_hold_the_lock_that_a_quorum_names() {
        let named = |nodes: &[&[u8]]| {
            let (holder, nodes) = most_frequent(&answers(nodes), 3).expect("somebody reads");
            (holder.kind.to_string(), nodes)
        };
        let one = |name: &str| format!("1 reader ({name})");
        assert_eq!(named(&[b"x", b"x", b"y", b"y", b""]), (one("x"), 2));
        assert_eq!(named(&[b"xy", b"x", b"y", b"y", b""]), (one("y"), 3));
        assert_eq!(named(&[b"xy", b"xyz", b"xy", b"x", b"z"]), ("2 readers (x, y)".to_owned(), 4));
        assert_eq!(most_frequent(&answers(&[b"", b""]), 2), None);
    }
}
