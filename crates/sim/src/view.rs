//! The state that an invariant can use besides the fact that it checks. Both the simulator and the models provide it.

use std::ops::Deref;

use quorlock_core::{Quorum, Reading};

use crate::fact::{ClientId, NodeIndex};
use crate::guard::Guards;
use crate::ledger::Ledger;
use crate::node::ModelNode;
use crate::plan::Outside;
use crate::time::Time;

pub(crate) struct View<'a> {
    pub(crate) now: Time,
    pub(crate) terms: Terms<'a>,
    pub(crate) guards: &'a Guards,
    pub(crate) ledger: &'a Ledger,
    pub(crate) around: &'a dyn Surroundings,
}

#[derive(Clone, Copy)]
pub(crate) struct Terms<'a> {
    pub(crate) quorum: Quorum,
    /// The assumption of mutual exclusion that the run violates, if any.
    pub(crate) outside: Option<Outside>,
    /// The number of nodes that may lose their counters without breaking the order of fencing tokens.
    pub(crate) spare_counters: usize,
    /// The time for which a restarted node does not vote if its clients have the restart guard.
    pub(crate) quarantine: Time,
    /// The nodes that are declared durable and keep their data.
    pub(crate) durable: &'a [NodeIndex],
}

impl Terms<'_> {
    /// The conditions of runs in which no node loses data, so clients need no quarantine, and no node is durable.
    pub(crate) const fn sound(quorum: Quorum) -> Self {
        Self { quorum, outside: None, spare_counters: 0, quarantine: 0, durable: &[] }
    }
}

pub(crate) trait Surroundings {
    fn reading(&self, client: ClientId) -> Reading;

    /// The reading that the client's present tick must use: taken after all of its input had arrived.
    fn tick_reading(&self, client: ClientId) -> Reading;

    /// Whether a process on this client's machine could check a guard now.
    fn can_look(&self, client: ClientId) -> bool;

    fn node(&self, node: NodeIndex) -> &ModelNode;
}

impl<'a> Deref for View<'a> {
    type Target = dyn Surroundings + 'a;

    fn deref(&self) -> &Self::Target {
        self.around
    }
}
