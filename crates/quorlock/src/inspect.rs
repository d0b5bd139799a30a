//! Who holds a lock, as the nodes tell it.

use std::fmt;

use quorlock_core::{Holding, NodeOutcome, Quorum};

use crate::error::{Holder, NodeAnswer, most_frequent};

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
        let largest = self.holder_nodes();
        let silent = self.quorum.nodes() - self.seen().count() + untrusted;
        if self.quorum.is_reached(largest) {
            Verdict::Held
        } else if self.quorum.is_reached(free) {
            Verdict::Free
        } else if self.quorum.is_out_of_reach(largest, silent)
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
        most_frequent(&self.nodes).map(|(holder, _)| holder)
    }

    /// On how many nodes this holder has the key.
    pub fn holder_nodes(&self) -> usize {
        most_frequent(&self.nodes).map_or(0, |(_, nodes)| nodes)
    }

    fn seen(&self) -> impl Iterator<Item = &Holding> {
        self.nodes.iter().filter_map(|node| match &node.said {
            NodeOutcome::Seen(holding) => Some(holding),
            _ => None,
        })
    }
}
