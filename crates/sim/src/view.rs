//! What the invariants may look at, beside the fact itself; the same for the simulator's world and
//! for the models'.

use quorlock_core::{Quorum, Reading};

use crate::fact::{ClientId, NodeIndex};
use crate::guard::Guards;
use crate::ledger::Ledger;
use crate::node::ModelNode;
use crate::plan::Outside;
use crate::time::Time;

/// What invariants may look at.
pub(crate) struct View<'a> {
    /// The true time.
    pub(crate) now: Time,
    /// What may be expected.
    pub(crate) terms: Terms<'a>,
    /// The guards.
    pub(crate) guards: &'a Guards,
    /// What went over the wire.
    pub(crate) ledger: &'a Ledger,
    /// The rest of the world.
    pub(crate) around: &'a dyn Surroundings,
}

/// What may be expected in a world.
#[derive(Clone, Copy)]
pub(crate) struct Terms<'a> {
    /// How many nodes there are, and how many must agree.
    pub(crate) quorum: Quorum,
    /// Where things stand outside of what mutual exclusion assumes, if they do.
    pub(crate) outside: Option<Outside>,
    /// So many nodes may have lost their counters, and fences must grow all the same.
    pub(crate) spare_counters: usize,
    /// How long a node must have been waited for before its votes count, if anybody looks.
    pub(crate) quarantine: Time,
    /// The nodes that forget nothing when they stop, and were declared so.
    pub(crate) durable: &'a [NodeIndex],
}

impl Terms<'_> {
    /// Nodes lose nothing, and nobody asks what they are.
    pub(crate) const fn sound(quorum: Quorum) -> Self {
        Self { quorum, outside: None, spare_counters: 0, quarantine: 0, durable: &[] }
    }
}

/// The clocks and nodes of a world.
pub(crate) trait Surroundings {
    /// What a client's clocks show now.
    fn reading(&self, client: ClientId) -> Reading;

    /// The reading that the client's present turn ought to be judged by: made when all that it deals
    /// with had come in.
    fn tick_reading(&self, client: ClientId) -> Reading;

    /// Whether anybody on this client's machine could look at a guard now.
    fn can_look(&self, client: ClientId) -> bool;

    /// A node.
    fn node(&self, node: NodeIndex) -> &ModelNode;
}

impl View<'_> {
    /// See [`Surroundings::reading`].
    pub(crate) fn reading(&self, client: ClientId) -> Reading {
        self.around.reading(client)
    }

    /// See [`Surroundings::tick_reading`].
    pub(crate) fn tick_reading(&self, client: ClientId) -> Reading {
        self.around.tick_reading(client)
    }

    /// See [`Surroundings::can_look`].
    pub(crate) fn can_look(&self, client: ClientId) -> bool {
        self.around.can_look(client)
    }

    /// See [`Surroundings::node`].
    pub(crate) fn node(&self, node: NodeIndex) -> &ModelNode {
        self.around.node(node)
    }
}
