//! The state of each node in an attempt.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};
use core::time::Duration;

use super::Attempt;
use crate::command::{Failure, Holding};
use crate::keys::Entry;
use crate::redlock::fence::FenceRequest;
use crate::redlock::quorum::{FEW, Quorum};
use crate::time::{BootTime, Reading};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Slot {
    Outstanding {
        due: BootTime,
    },
    Granted {
        sent: Reading,
        took: Duration,
    },
    Refused {
        took: Duration,
        holding: Option<Box<Holding>>,
    },
    Failed {
        failure: Failure,
        took: Duration,
    },
    /// The node does not have the key: it lost the key after its grant, or lacks the detached lock to attach.
    Gone {
        took: Duration,
    },
}

/// A slot for each node. The usual number of nodes needs no allocation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Slots {
    /// The number of nodes, and a slot for each. Unused slots hold a fixed filler, so that equal states compare equal.
    Few(usize, [Slot; FEW]),
    Many(Vec<Slot>),
}

impl Slots {
    #[inline]
    pub(super) fn new(nodes: usize, slot: impl Fn(usize) -> Slot) -> Self {
        if nodes > FEW {
            return Self::Many((0..nodes).map(slot).collect());
        }
        let filler = || Slot::Gone { took: Duration::ZERO };
        let few = |node| if node < nodes { slot(node) } else { filler() };
        Self::Few(nodes, core::array::from_fn(few))
    }
}

impl Deref for Slots {
    type Target = [Slot];

    fn deref(&self) -> &[Slot] {
        match self {
            Self::Few(count, few) => &few[..*count],
            Self::Many(many) => many,
        }
    }
}

impl DerefMut for Slots {
    fn deref_mut(&mut self) -> &mut [Slot] {
        match self {
            Self::Few(count, few) => &mut few[..*count],
            Self::Many(many) => many,
        }
    }
}

impl Attempt {
    /// The parts that the lease keeps. The attempt is not used afterwards.
    pub(crate) fn take_parts(&mut self) -> (Quorum, Entry, Option<Box<FenceRequest>>) {
        (self.quorum, self.entry.clone().held(), self.fence_request.take())
    }

    /// Moves all times so that `base` becomes zero. Models need this to compare states.
    pub(crate) fn shift(&mut self, base: Reading) {
        self.started = Reading::default();
        for slot in &mut *self.slots {
            match slot {
                Slot::Outstanding { due } => *due = due.shifted(base),
                Slot::Granted { sent, took } => {
                    (*sent, *took) = (sent.shifted(base), Duration::ZERO);
                }
                Slot::Refused { took, .. } | Slot::Failed { took, .. } | Slot::Gone { took } => {
                    *took = Duration::ZERO;
                }
            }
        }
        if let Some(fence_request) = &mut self.fence_request {
            fence_request.shift(base);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_a_slot() {
        for nodes in 0..=2 * FEW {
            let slot = |node| Slot::Gone { took: Duration::from_secs(node as u64) };
            let mut slots = Slots::new(nodes, slot);
            assert!(slots.iter().cloned().eq((0..nodes).map(slot)));
            assert_eq!(matches!(slots, Slots::Few(..)), nodes <= FEW);
            if let Some(last) = slots.last_mut() {
                *last = Slot::Outstanding { due: BootTime::from_nanos(7) };
                assert_ne!(slots, Slots::new(nodes, slot));
            }
        }
    }
}
