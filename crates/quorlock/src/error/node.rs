//! The answer of a node, and the holder of a lock that the answer names.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use quorlock_core::display::{shown, shown_value};
use quorlock_core::{Failure, FailureKind, Holding, Keys, NodeOutcome, NodeResult, Reader, Value};

use super::{group, names};

/// The answer of one node.
///
/// `Debug` shows as little of stored values as `Display` does, because the values are tokens of other clients.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeAnswer {
    /// The node's name.
    pub node: Arc<str>,
    /// The answer.
    pub said: NodeOutcome,
    /// Time from the start of the attempt until the answer.
    pub took: Duration,
    /// The names of the resources if the lock has several, so that messages can name each one.
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

    /// This answer, reduced to one of several resources: the one at the index `place`.
    pub(crate) fn about(&self, place: usize) -> Self {
        let said = match &self.said {
            NodeOutcome::Seen(Holding::Several(each)) => {
                NodeOutcome::Seen(each.get(place).cloned().unwrap_or(Holding::Free))
            }
            said => said.clone(),
        };
        Self { said, several: None, ..self.clone() }
    }

    /// Returns the holder of the lock on this node; `None` if the node named none.
    pub fn holder(&self) -> Option<Holder> {
        self.holding().and_then(Holder::of)
    }

    /// Returns the state of the key on this node; `None` if the key is free or the node did not say.
    pub(crate) fn holding(&self) -> Option<&Holding> {
        match &self.said {
            NodeOutcome::Refused(Some(holding)) | NodeOutcome::Seen(holding) => {
                (*holding != Holding::Free).then_some(holding)
            }
            _ => None,
        }
    }

    /// Returns the failure, if the node failed.
    pub fn failure(&self) -> Option<&Failure> {
        match &self.said {
            NodeOutcome::Failed(failure) => Some(failure),
            _ => None,
        }
    }

    /// Writes the holder. Of several resources, writes the holder of each held one.
    fn write_holders(&self, f: &mut impl fmt::Write, holding: &Holding) -> fmt::Result {
        let (Holding::Several(holdings), Some(names)) = (holding, &self.several) else {
            let Some(holder) = Holder::of(holding) else { return f.write_str("free") };
            return write!(f, "{}", holder.describe());
        };
        let held = names.iter().zip(holdings);
        let held = held.filter_map(|(name, holding)| Some((name, Holder::of(holding)?)));
        for (place, (name, holder)) in held.enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            write!(f, "{comma}{} {}", crate::text::quoted(name), holder.describe())?;
        }
        Ok(())
    }

    /// Returns the reason why this node, in the [`Health`](crate::Health) of a guard, does not confirm the held lock. `None` if
    /// the node confirmed the lock, or has not answered.
    pub fn denial(&self) -> Option<String> {
        match &self.said {
            NodeOutcome::Failed(failure) => Some(failure.to_string()),
            NodeOutcome::Seen(_) => Some("the key is not there".to_owned()),
            NodeOutcome::Refused(_) => Some("the key has another value".to_owned()),
            _ => None,
        }
    }

    pub(super) fn is_disagreement(&self) -> bool {
        self.failure().is_some_and(|failure| failure.kind().is_disagreement())
    }

    /// Writes the answer without the node's name.
    fn write_said(&self, f: &mut impl fmt::Write) -> fmt::Result {
        match &self.said {
            NodeOutcome::NotAsked => f.write_str(": not asked"),
            NodeOutcome::Nothing => write!(f, " had not answered after {:.1?}", self.took),
            NodeOutcome::Granted => f.write_str(" granted"),
            NodeOutcome::Refused(None) => f.write_str(" refused"),
            NodeOutcome::Refused(Some(Holding::Free)) => f.write_str(" refused (free again since)"),
            NodeOutcome::Refused(Some(holding)) => {
                f.write_str(" refused (")?;
                self.write_holders(f, holding)?;
                f.write_str(")")
            }
            NodeOutcome::Seen(Holding::Free) => f.write_str(" free"),
            NodeOutcome::Seen(holding) => {
                f.write_str(" ")?;
                self.write_holders(f, holding)
            }
            // The node works, so the text does not say "failed".
            NodeOutcome::Failed(failure)
                if failure.kind().is_about_trust()
                    || failure.kind() == FailureKind::MissingCommand =>
            {
                write!(f, ": {failure}")
            }
            NodeOutcome::Failed(failure) => write!(f, " failed: {failure}"),
            said => write!(f, ": {said:?}"),
        }
    }

    /// Whether both answers mean the same to a person. Times are ignored: a holder's remaining time and the time of an
    /// answer differ from node to node.
    fn says_the_same(&self, other: &Self) -> bool {
        use NodeOutcome::{Failed, Refused, Seen};
        match (&self.said, &other.said) {
            (Refused(Some(one)), Refused(Some(other))) | (Seen(one), Seen(other)) => {
                is_same(one, other)
            }
            (Failed(one), Failed(other)) => {
                one.kind() == other.kind() && one.detail() == other.detail()
            }
            (one, other) => one == other,
        }
    }
}

impl fmt::Debug for NodeAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeAnswer({self}; {:?})", self.took)
    }
}

impl fmt::Display for NodeAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.node)?;
        self.write_said(f)
    }
}

/// The holder of a lock, as far as the stored value describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The kind of holder.
    pub kind: HolderKind,
    /// Time until the key expires unless the holder extends the lock. `None`: never, or unknown.
    pub remaining: Option<Duration>,
    /// The start of the attempt that acquired the lock, by the holder's wall clock. After a hand-over within a process, the
    /// time of the first holder. `None`: unknown. Only holders with a description store this time
    /// ([`LockOptions::owner`](crate::LockOptions::owner)), and not those of version 0.1.0.
    pub since: Option<SystemTime>,
}

/// The kind of a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HolderKind {
    /// A quorlock client with its description, escaped and cut after 80 characters; empty if the client has none.
    Owner(String),
    /// The beginning of a value that is not one of this library's tokens, escaped: a caller of
    /// [`Client::take`](crate::Client::take) or of another library chose the value. It may be a secret.
    Foreign(String),
    /// Readers: clients that share the lock.
    Readers {
        /// Number of readers.
        count: usize,
        /// The descriptions of the readers that the node named, escaped and cut; empty for a reader without one.
        owners: Vec<String>,
    },
    /// No writer holds the lock, but the writer with this description waits, so the node refuses new readers.
    WaitingWriter(String),
    /// A key of another type, which is no lock. quorlock never changes such a key.
    OtherType,
    /// Another caller of this process.
    ThisProcess,
}

/// The longest description that messages show, in characters. A longer one is cut.
const OWNER_MAX: usize = 80;

impl Holder {
    pub(crate) fn of(holding: &Holding) -> Option<Self> {
        let (kind, remaining, since) = match holding {
            Holding::Held { value, ttl } => {
                let kind = match Value::owner_of(value) {
                    Some(owner) => HolderKind::Owner(shown(owner, OWNER_MAX)),
                    None => HolderKind::Foreign(shown_value(value)),
                };
                (kind, *ttl, since(value))
            }
            Holding::OtherType { ttl } => (HolderKind::OtherType, *ttl, None),
            Holding::Shared { readers, count, ttl } => {
                let owners = readers.iter().map(|reader| owner_shown(&reader.value)).collect();
                (HolderKind::Readers { count: *count, owners }, Some(*ttl), None)
            }
            Holding::Announced { value, ttl } => {
                (HolderKind::WaitingWriter(owner_shown(value)), *ttl, None)
            }
            Holding::Several(holdings) => return holdings.iter().find_map(Self::of),
            _ => return None,
        };
        Some(Self { kind, remaining, since })
    }

    pub(crate) fn of_reader(reader: &Reader) -> Self {
        let kind = HolderKind::Owner(owner_shown(&reader.value));
        Self { kind, remaining: Some(reader.ttl), since: since(&reader.value) }
    }

    /// Describes the holder's effect on the lock: `held by host:7, ends in 9.5s unless extended`, or
    /// `host:7 waits as a writer`.
    pub fn describe(&self) -> String {
        match self.kind {
            HolderKind::WaitingWriter(_) => self.to_string(),
            _ => format!("held by {self}"),
        }
    }

    pub(crate) const THIS_PROCESS: Self =
        Self { kind: HolderKind::ThisProcess, remaining: None, since: None };
}

impl fmt::Display for HolderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ThisProcess => write!(f, "another caller of this process"),
            Self::Owner(owner) if owner.is_empty() => write!(f, "a client without a name"),
            Self::Owner(owner) => write!(f, "{owner}"),
            Self::Foreign(value) => {
                write!(f, "the value \"{value}\", which is not one of quorlock's tokens")
            }
            Self::OtherType => write!(f, "something that is no lock (a key of another type)"),
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
            Some(left) => write!(f, ", ends in {left:.1?} unless extended"),
            None => write!(f, ", without expiry"),
        }
    }
}

/// The description of the client that stored this value. If another library stored it, the beginning of the value.
fn owner_shown(value: &[u8]) -> String {
    match Value::owner_of(value) {
        Some(owner) => shown(owner, OWNER_MAX),
        None => shown_value(value),
    }
}

fn since(value: &[u8]) -> Option<SystemTime> {
    let since = Duration::from_millis(Value::since_ms_of(value)?);
    SystemTime::UNIX_EPOCH.checked_add(since)
}

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

/// The holder that the most nodes name, in a tie the first one, and the number of these nodes. If readers hold the
/// lock: the readers that `needed` nodes name, or, if there are none, the readers that the most nodes name.
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
    // Reversed so that the first of several largest counts wins: `max_by_key` returns the last one.
    let most = counted.collect::<Vec<_>>().into_iter().rev().max_by_key(|(_, count)| *count);
    let (holding, most) = most?;
    let mut holding = holding.clone();
    if let Holding::Shared { readers, count, .. } = &mut holding {
        let before = readers.len();
        readers.retain(|reader| named(reader) >= most.min(needed));
        // `count` includes readers that the node does not name, so only the readers removed here are subtracted.
        *count = (*count + readers.len()).saturating_sub(before);
    }
    Some((Holder::of(&holding)?, most))
}

/// Whether two nodes have the same holder. Two clients may have the same description, but not the same value.
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

/// Lists a failed attempt's answers. If refusals and failures rule out a quorum, a silent node is listed as not needed.
pub(super) fn asked_nodes(nodes: &[NodeAnswer], needed: usize) -> String {
    let without =
        |node: &&NodeAnswer| matches!(node.said, NodeOutcome::Refused(_) | NodeOutcome::Failed(_));
    let is_decided = nodes.len() - nodes.iter().filter(without).count() < needed;
    list_with(nodes, |node| NOT_NEEDED.filter(|_| is_decided && node.said == NodeOutcome::Nothing))
}

/// Lists the answers to an extension. If other nodes' answers rule out a quorum, a silent node is listed as not needed.
pub fn confirmations(nodes: &[NodeAnswer], needed: usize) -> String {
    let may_confirm =
        |node: &&NodeAnswer| matches!(node.said, NodeOutcome::Granted | NodeOutcome::Nothing);
    let is_decided = nodes.iter().filter(may_confirm).count() < needed;
    list_with(nodes, |node| match node.said {
        NodeOutcome::Granted => Some(" confirmed"),
        NodeOutcome::Refused(_) => Some(": the key has another value"),
        NodeOutcome::Nothing => NOT_NEEDED.filter(|_| is_decided),
        _ => None,
    })
}

const NOT_NEEDED: Option<&str> = Some(": no answer was needed");

/// Lists the answers of the nodes. Nodes with the same answer are one entry.
pub fn list<'a>(nodes: impl IntoIterator<Item = &'a NodeAnswer>) -> String {
    list_with(nodes, |_| None)
}

/// Lists the nodes that do not confirm a held lock, grouped by their answers: `b, c: unreachable; d: …`.
pub(crate) fn grouped<'a>(nodes: impl Iterator<Item = &'a NodeAnswer>) -> String {
    let denials = nodes.filter_map(|node| Some((&*node.node, node.denial()?)));
    let groups = group(denials, |one, other| one == other);
    let groups = groups.iter().map(|(names, denial)| format!("{}: {denial}", names.join(", ")));
    groups.collect::<Vec<_>>().join("; ")
}

fn list_with<'a>(
    nodes: impl IntoIterator<Item = &'a NodeAnswer>,
    in_words: impl Fn(&NodeAnswer) -> Option<&'static str>,
) -> String {
    let named = nodes.into_iter().map(|node| (&*node.node, node));
    let groups = group(named, |one, other| one.says_the_same(other));
    let told = groups.iter().map(|(nodes, node)| {
        let mut text = names(nodes);
        // Writing to a string never fails.
        let _ = match in_words(node) {
            Some(words) => text.write_str(words),
            None => node.write_said(&mut text),
        };
        text
    });
    told.collect::<Vec<_>>().join("; ")
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

    /// Several readers are not one holder: for each reader, only the nodes that name this reader count.
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
