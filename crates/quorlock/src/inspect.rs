//! Who holds a lock, as the nodes tell it.

use std::fmt;

use quorlock_core::{Holding, NodeOutcome, Quorum, Reader};

use crate::error::{Holder, HolderKind, NodeAnswer, most_frequent};

/// What every node says about a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// Per node, in the order of the client's list.
    pub nodes: Vec<NodeAnswer>,
    quorum: Quorum,
    /// Which of them are not believed if they say that the lock is free.
    untrusted: Vec<bool>,
}

/// What follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// One holder has a quorum: one stored value, or keys of another type, which are no lock and are never deleted.
    Held,
    /// Readers hold it, at least one of them with a quorum of its own. Other readers may have it too, writers may not.
    Shared,
    /// A quorum of nodes is free, and their votes count.
    Free,
    /// Neither: several have some votes, or the holder has lost too many.
    Split,
    /// Too few nodes answered to tell, or too few of those that say that it is free are to be
    /// believed.
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
    pub(crate) fn new(nodes: Vec<NodeAnswer>, untrusted: Vec<bool>, quorum: Quorum) -> Self {
        Self { nodes, quorum, untrusted }
    }

    /// How many nodes make a quorum.
    pub fn quorum(&self) -> usize {
        self.quorum.needed()
    }

    /// What follows from the nodes' answers. Every node is believed that somebody has the key. Only
    /// nodes whose votes count are believed that nobody has it, because others may have forgotten
    /// it.
    pub fn verdict(&self) -> Verdict {
        let untrusted = self.untrusted();
        let free = self.seen().filter(|holding| **holding == Holding::Free).count() - untrusted;
        let readers = self.named().into_iter().map(|(_, nodes)| nodes).max().unwrap_or(0);
        let writer = if self.holder_is_alone() { self.holder_nodes() } else { 0 };
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

    /// How many nodes say that the lock is free, and may have forgotten that it is not: they are in
    /// quarantine, refused or not verified. With the restart guard off, all are believed.
    pub fn untrusted(&self) -> usize {
        let says_free = |node: &NodeAnswer| node.said == NodeOutcome::Seen(Holding::Free);
        let nodes = self.nodes.iter().zip(&self.untrusted);
        nodes.filter(|(node, is_untrusted)| **is_untrusted && says_free(node)).count()
    }

    /// The holder on the most nodes: one stored value, or keys that are no lock. It has a quorum if the verdict is
    /// [`Verdict::Held`].
    pub fn holder(&self) -> Option<Holder> {
        most_frequent(&self.nodes, self.quorum.needed()).map(|(holder, _)| holder)
    }

    /// The readers that hold the lock: those that a quorum of nodes names. A reader that fewer nodes name has lost the
    /// lock, or is about to get it. Of a node with many readers not all are named.
    pub fn readers(&self) -> Vec<Holder> {
        let held = self.named().into_iter().filter(|(_, nodes)| self.quorum.is_reached(*nodes));
        held.map(|(reader, _)| Holder::of_reader(reader)).collect()
    }

    /// How many readers hold the lock: the largest number that a quorum of nodes reaches. Of a node with many readers
    /// not all are named, so this may be more than [`readers`](Self::readers) has.
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

    /// Every reader that any node names, and how many do.
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

    /// The holder on the most nodes is a writer, or no lock at all.
    fn holder_is_alone(&self) -> bool {
        !self.holder().is_some_and(|holder| matches!(holder.kind, HolderKind::Readers { .. }))
    }

    /// On how many nodes this holder has the key; of readers, the one that the most nodes name.
    pub fn holder_nodes(&self) -> usize {
        most_frequent(&self.nodes, self.quorum.needed()).map_or(0, |(_, nodes)| nodes)
    }

    fn seen(&self) -> impl Iterator<Item = &Holding> {
        self.nodes.iter().filter_map(|node| match &node.said {
            NodeOutcome::Seen(holding) => Some(holding),
            _ => None,
        })
    }
}
