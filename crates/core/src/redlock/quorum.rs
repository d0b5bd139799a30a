//! The number of votes that make a lock: at least a majority of the *configured* nodes.

use core::fmt;

/// The largest number of nodes one client may have.
pub const NODE_COUNT_MAX: usize = 31;

/// Largest usual number of nodes. Records for so few nodes need no allocation.
pub(crate) const FEW: usize = 5;

/// A node's place in the client's list, counted from zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(u8);

impl NodeId {
    /// The node at `index` of the list.
    ///
    /// # Panics
    /// If `index` is not below [`NODE_COUNT_MAX`].
    pub fn new(index: usize) -> Self {
        assert!(index < NODE_COUNT_MAX, "a client has at most {NODE_COUNT_MAX} nodes");
        Self(index as u8)
    }

    /// The node's place in the list.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A set of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct NodeSet(u32);

impl NodeSet {
    /// The set of one node.
    pub const fn only(node: NodeId) -> Self {
        Self(1 << node.0)
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The number of nodes in the set.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether the node is in the set.
    pub const fn contains(self, node: NodeId) -> bool {
        self.0 & (1 << node.0) != 0
    }

    /// The nodes in order.
    pub fn iter(self) -> impl Iterator<Item = NodeId> {
        let mut rest = self.0;
        core::iter::from_fn(move || {
            let first = rest.trailing_zeros();
            rest &= rest.wrapping_sub(1);
            (first < u32::BITS).then_some(NodeId(first as u8))
        })
    }

    pub(crate) const fn insert(&mut self, node: NodeId) {
        self.0 |= 1 << node.0;
    }

    pub(crate) const fn remove(&mut self, node: NodeId) {
        self.0 &= !(1 << node.0);
    }
}

impl FromIterator<NodeId> for NodeSet {
    fn from_iter<T: IntoIterator<Item = NodeId>>(nodes: T) -> Self {
        let mut set = Self::default();
        nodes.into_iter().for_each(|node| set.insert(node));
        set
    }
}

/// The number of nodes, and the number of votes that make a lock.
///
/// The quorum counts configured nodes, never connected ones, and is at least a majority: two
/// quorums always share a node (invariant S3). It may be raised, never lowered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Quorum {
    nodes: u8,
    needed: u8,
}

impl Quorum {
    /// The smallest legal quorum of `nodes` nodes: the majority, ⌊N/2⌋+1.
    ///
    /// # Errors
    /// If there are no nodes, or more than [`NODE_COUNT_MAX`].
    pub fn majority(nodes: usize) -> Result<Self, QuorumError> {
        Self::new(nodes, nodes / 2 + 1)
    }

    /// A quorum of `needed` out of `nodes`.
    ///
    /// # Errors
    /// If there are no nodes or too many, or `needed` is less than a majority or more than all.
    pub fn new(nodes: usize, needed: usize) -> Result<Self, QuorumError> {
        if nodes == 0 {
            return Err(QuorumError::NoNodes);
        }
        if nodes > NODE_COUNT_MAX {
            return Err(QuorumError::TooManyNodes { nodes });
        }
        let majority = nodes / 2 + 1;
        if needed < majority || needed > nodes {
            return Err(QuorumError::OutOfBounds { nodes, needed, majority });
        }
        Ok(Self { nodes: nodes as u8, needed: needed as u8 })
    }

    /// The number of nodes.
    pub const fn nodes(self) -> usize {
        self.nodes as usize
    }

    /// The number of votes that make a lock.
    pub const fn needed(self) -> usize {
        self.needed as usize
    }

    /// The set of every node.
    pub const fn all(self) -> NodeSet {
        NodeSet((1 << self.nodes) - 1)
    }

    /// Every node, in order.
    pub fn node_ids(self) -> impl Iterator<Item = NodeId> {
        (0..self.nodes).map(NodeId)
    }

    /// The number of nodes to ask for the state of a lock: at least a quorum, because only a quorum can show that the
    /// lock is free, and enough to include a node with a vote for the holder if the lock is held.
    pub(crate) const fn nodes_to_ask(self) -> usize {
        let for_held = self.nodes() - self.needed() + 1;
        if self.needed() > for_held { self.needed() } else { for_held }
    }

    /// Whether there are enough votes.
    pub const fn is_reached(self, votes: usize) -> bool {
        votes >= self.needed()
    }

    /// Whether there are too few votes even if all outstanding nodes grant.
    ///
    /// "A majority refused" is not equivalent: with an even number of nodes, a tie already rules a quorum out.
    /// (node-redlock waited forever in this case.)
    pub const fn is_out_of_reach(self, votes: usize, outstanding: usize) -> bool {
        votes + outstanding < self.needed()
    }
}

/// The reason why a quorum is not legal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum QuorumError {
    /// The list of nodes is empty.
    NoNodes,
    /// More than [`NODE_COUNT_MAX`] nodes.
    TooManyNodes {
        /// Number of nodes given.
        nodes: usize,
    },
    /// Less than a majority, or more than there are nodes.
    OutOfBounds {
        /// Number of nodes.
        nodes: usize,
        /// The requested quorum.
        needed: usize,
        /// The smallest legal quorum.
        majority: usize,
    },
}

impl fmt::Display for QuorumError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNodes => write!(f, "no nodes were given"),
            Self::TooManyNodes { nodes } => {
                write!(f, "{nodes} nodes were given; at most {NODE_COUNT_MAX} are possible")
            }
            Self::OutOfBounds { nodes, needed, majority } => write!(
                f,
                "a quorum of {needed} of {nodes} nodes is not possible: it must be between \
                 {majority} (the majority) and {nodes}"
            ),
        }
    }
}

impl core::error::Error for QuorumError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_nodes_gives_them_in_order() {
        let indices = |set: NodeSet| set.iter().map(NodeId::index).collect::<std::vec::Vec<_>>();
        let set: NodeSet = [30, 0, 7].map(NodeId::new).into_iter().collect();
        assert_eq!((indices(set), set.len()), (std::vec![0, 7, 30], 3));
        assert_eq!(indices(NodeSet::only(NodeId::new(30))), [30]);
        let all = Quorum::majority(NODE_COUNT_MAX).unwrap().all();
        assert_eq!((all.len(), indices(all).len()), (31, 31));
        assert!(NodeSet::default().is_empty() && indices(NodeSet::default()).is_empty());
    }

    #[test]
    fn two_quorums_always_share_a_node() {
        for nodes in 1..=NODE_COUNT_MAX {
            let quorum = Quorum::majority(nodes).unwrap();
            assert!(2 * quorum.needed() > nodes);
            assert!(2 * (quorum.needed() - 1) <= nodes, "the quorum is the smallest");
        }
    }

    #[test]
    fn a_quorum_is_never_below_the_majority_nor_above_all_nodes() {
        assert!(Quorum::new(5, 2).is_err());
        assert!(Quorum::new(5, 6).is_err());
        assert_eq!(Quorum::new(5, 4).unwrap().needed(), 4);
        assert_eq!(Quorum::majority(0), Err(QuorumError::NoNodes));
        assert!(Quorum::majority(NODE_COUNT_MAX + 1).is_err());
    }

    #[test]
    fn a_tie_of_an_even_number_of_nodes_is_out_of_reach() {
        let quorum = Quorum::majority(4).unwrap();
        assert!(quorum.is_out_of_reach(2, 0));
        assert!(!quorum.is_out_of_reach(2, 1));
        assert!(!quorum.is_reached(2));
    }
}
