//! The answers of the nodes to the question whether a lock is held, and the verdict that follows.

use std::fmt;

use quorlock_core::{Failure, Holding, NodeOutcome, Quorum, Reader};

use crate::error::{Holder, HolderKind, NodeAnswer, most_frequent};

/// The answers of all nodes about a lock.
///
/// If the lock has several resources, one of them decides: the first with the verdict that hinders a caller most
/// ([`Verdict`]). [`holder`](Self::holder), [`readers`](Self::readers) and the counts describe this resource.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The nodes' answers, in the order of the client's list.
    pub nodes: Vec<NodeAnswer>,
    /// The nodes' answers about the resource that decides. `None` if the lock has only one resource.
    deciding: Option<Vec<NodeAnswer>>,
    quorum: Quorum,
    /// For each node, the reason why its answer that the lock is free does not count; `None` if that answer counts.
    doubts: Vec<Option<Failure>>,
}

/// The state of a lock as its nodes' answers show it. A lock of several resources has the first of these states that
/// one of its resources has: `Held`, `Unknown`, `Split`, `Shared`. It is `Free` if all of them are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// One holder has a quorum: a writer, or a key of another type, which is no lock and is never deleted.
    Held,
    /// Readers hold the lock, at least one of them with a quorum. Further readers can acquire the lock, writers cannot.
    Shared,
    /// A quorum of nodes with votes that count reports a free lock.
    Free,
    /// No holder has a quorum, and no quorum reports a free lock: several clients have votes, or votes were lost.
    Split,
    /// Too few nodes answered, or too many of the nodes that report a free lock are not trusted.
    Unknown,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Held => "HELD",
            Self::Shared => "SHARED",
            Self::Free => "FREE",
            Self::Split => "SPLIT",
            Self::Unknown => "UNKNOWN",
        })
    }
}

impl Inspection {
    pub(crate) fn new(
        nodes: Vec<NodeAnswer>,
        doubts: Vec<Option<Failure>>,
        quorum: Quorum,
    ) -> Self {
        let mut inspection = Self { nodes, deciding: None, quorum, doubts };
        let resources = inspection.seen().map(|holding| holding.each().len()).max().unwrap_or(1);
        if resources > 1 {
            let of_one = |place| {
                let mut one = inspection.clone();
                one.deciding = Some(one.nodes.iter().map(|node| node.about(place)).collect());
                one
            };
            let hindrance = |one: &Self| match one.verdict() {
                Verdict::Held => 4,
                Verdict::Unknown => 3,
                Verdict::Split => 2,
                Verdict::Shared => 1,
                Verdict::Free => 0,
            };
            // Reversed so that the first of several equal resources wins: `max_by_key` returns the last one.
            let deciding = (0..resources).rev().map(of_one).max_by_key(hindrance);
            inspection = deciding.unwrap_or(inspection);
        }
        inspection
    }

    /// The number of nodes that make a quorum.
    pub fn quorum(&self) -> usize {
        self.quorum.needed()
    }

    /// The verdict that follows from the nodes' answers. A node that reports a holder is always believed. A node that
    /// reports a free lock is believed only if its votes count, because it may have forgotten a holder.
    pub fn verdict(&self) -> Verdict {
        let untrusted = self.untrusted();
        let free = self.seen().filter(|holding| **holding == Holding::Free).count() - untrusted;
        let readers = self.named().into_iter().map(|(_, nodes)| nodes).max().unwrap_or(0);
        let writer = match most_frequent(self.counted(), self.quorum.needed()) {
            Some((holder, nodes)) if !matches!(holder.kind, HolderKind::Readers { .. }) => nodes,
            _ => 0,
        };
        let silent = self.quorum.nodes() - self.seen().count() + untrusted;
        if self.quorum.is_reached(writer) {
            Verdict::Held
        } else if self.quorum.is_reached(readers) {
            Verdict::Shared
        } else if self.quorum.is_reached(free) {
            Verdict::Free
        } else if self.quorum.is_out_of_reach(writer.max(readers), silent)
            && self.quorum.is_out_of_reach(free, silent)
        {
            Verdict::Split
        } else {
            Verdict::Unknown
        }
    }

    /// The number of nodes that report a free lock and may have forgotten a holder: nodes whose [`doubt`](Self::doubt) is
    /// not `None`. Zero with the restart guard off.
    pub fn untrusted(&self) -> usize {
        let says_free = |node: &NodeAnswer| node.said == NodeOutcome::Seen(Holding::Free);
        let nodes = self.counted().iter().enumerate();
        nodes.filter(|(place, node)| self.doubt(*place).is_some() && says_free(node)).count()
    }

    /// The reason why the answer of the node at this place in [`nodes`](Self::nodes) does not count if it reports a free
    /// lock: the node is in quarantine, refused or not verified, its data or its server were replaced since it answered, or
    /// it has fewer replicas than the client's settings say. `None` if the answer counts, or if the node did not answer.
    pub fn doubt(&self, place: usize) -> Option<&Failure> {
        self.doubts.get(place)?.as_ref()
    }

    /// The holder on the most nodes: a writer, readers, or a key of another type, which is no lock. It has a quorum if
    /// the verdict is [`Verdict::Held`].
    pub fn holder(&self) -> Option<Holder> {
        most_frequent(self.counted(), self.quorum.needed()).map(|(holder, _)| holder)
    }

    /// The value that a quorum of nodes has; `None` if no value has a quorum.
    pub(crate) fn value(&self) -> Option<&[u8]> {
        let values = || {
            self.seen().filter_map(|holding| match holding {
                Holding::Held { value, .. } => Some(&**value),
                _ => None,
            })
        };
        values().find(|value| self.quorum.is_reached(values().filter(|it| it == value).count()))
    }

    /// The readers that hold the lock: those that a quorum of nodes names. A reader that fewer nodes name has lost the
    /// lock, or is about to get it. A node with many readers does not name all of them.
    pub fn readers(&self) -> Vec<Holder> {
        let held = self.named().into_iter().filter(|(_, nodes)| self.quorum.is_reached(*nodes));
        held.map(|(reader, _)| Holder::of_reader(reader)).collect()
    }

    /// The number of readers that hold the lock: a quorum of nodes reports this number or more. A node with many
    /// readers does not name all of them, so this number may be larger than that of [`readers`](Self::readers).
    pub fn reader_count(&self) -> usize {
        let count = |holding: &Holding| match holding {
            Holding::Shared { count, .. } => *count,
            _ => 0,
        };
        let mut counts: Vec<usize> = self.seen().map(count).collect();
        counts.sort_unstable_by(|one, other| other.cmp(one));
        let by_quorum = counts.get(self.quorum.needed() - 1).copied().unwrap_or_default();
        by_quorum.max(self.readers().len())
    }

    /// Every reader that a node names, with the number of nodes that name this reader.
    fn named(&self) -> Vec<(&Reader, usize)> {
        let readers = self.seen().flat_map(|holding| match holding {
            Holding::Shared { readers, .. } => &readers[..],
            _ => &[],
        });
        let mut named: Vec<(&Reader, usize)> = Vec::new();
        for reader in readers {
            match named.iter_mut().find(|(other, _)| other.value == reader.value) {
                Some((_, nodes)) => *nodes += 1,
                None => named.push((reader, 1)),
            }
        }
        named
    }

    /// The number of nodes on which the [`holder`](Self::holder) has the key. If readers hold the lock, the largest
    /// number of nodes that name the same reader.
    pub fn holder_nodes(&self) -> usize {
        most_frequent(self.counted(), self.quorum.needed()).map_or(0, |(_, nodes)| nodes)
    }

    fn counted(&self) -> &[NodeAnswer] {
        self.deciding.as_ref().unwrap_or(&self.nodes)
    }

    fn seen(&self) -> impl Iterator<Item = &Holding> {
        self.counted().iter().filter_map(|node| match &node.said {
            NodeOutcome::Seen(holding) => Some(holding),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use quorlock_core::{Keys, NodeResult};

    use super::*;

    /// An inspection of two resources by three nodes. `r` is a reader, `-` is free, and other letters are writers.
    fn inspection(nodes: [&str; 3]) -> Inspection {
        let ttl = Duration::from_secs(1);
        let holding = |holder| match holder {
            '-' => Holding::Free,
            'r' => {
                Holding::Shared { readers: vec![Reader { value: vec![b'r'], ttl }], count: 1, ttl }
            }
            writer => Holding::Held { value: writer.to_string().into_bytes(), ttl: Some(ttl) },
        };
        let said = |node: &str| match node {
            "" => NodeOutcome::Nothing,
            node => NodeOutcome::Seen(Holding::of_all(node.chars().map(holding).collect())),
        };
        let results = nodes.map(|node| NodeResult { said: said(node), took: ttl }).into();
        let keys = Keys::new(["a", "b"].map(Into::into));
        let nodes = NodeAnswer::all(&["n", "o", "p"].map(Into::into), keys.as_ref(), results);
        Inspection::new(nodes, vec![None; 3], Quorum::majority(3).unwrap())
    }

    #[test]
    fn of_several_resources_the_one_decides_that_hinders_most() {
        for (nodes, verdict, holder_nodes) in [
            (["--", "--", "--"], Verdict::Free, 0),
            (["-w", "-w", "--"], Verdict::Held, 2),
            (["rw", "rw", "rw"], Verdict::Held, 3),
            (["ww", "wx", "x-"], Verdict::Held, 2),
            (["r-", "r-", ""], Verdict::Shared, 2),
            (["rw", "r-", "rx"], Verdict::Split, 1),
            (["w-", "x-", ""], Verdict::Unknown, 1),
        ] {
            let seen = inspection(nodes);
            assert_eq!((seen.verdict(), seen.holder_nodes()), (verdict, holder_nodes), "{nodes:?}");
        }
    }
}
