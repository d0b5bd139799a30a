//! What is known of each node in an attempt.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};
use core::time::Duration;

use crate::command::{Failure, Holding};
use crate::redlock::quorum::FEW;
use crate::time::{BootTime, Reading};

/// What is known of one node in this attempt.
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
    /// It had granted, and the key is gone.
    Gone {
        took: Duration,
    },
}

/// A slot for each node. Without an allocation where there are as few nodes as usual.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::large_enum_variant, reason = "few nodes are the rule")]
pub(super) enum Slots {
    /// So many nodes, and places that are alike behind theirs.
    Few(usize, [Slot; FEW]),
    Many(Vec<Slot>),
}

impl FromIterator<Slot> for Slots {
    fn from_iter<T: IntoIterator<Item = Slot>>(slots: T) -> Self {
        let (mut few, mut count) = ([const { Slot::Gone { took: Duration::ZERO } }; FEW], 0);
        let mut slots = slots.into_iter();
        while let Some(slot) = slots.next() {
            if count == FEW {
                return Self::Many(few.into_iter().chain([slot]).chain(slots).collect());
            }
            few[count] = slot;
            count += 1;
        }
        Self::Few(count, few)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_for_each_node_however_many() {
        for nodes in 0..=2 * FEW {
            let all = (0..nodes).map(|node| Slot::Gone { took: Duration::from_secs(node as u64) });
            let mut slots: Slots = all.clone().collect();
            assert!(slots.iter().cloned().eq(all.clone()));
            assert_eq!(matches!(slots, Slots::Few(..)), nodes <= FEW);
            if let Some(last) = slots.last_mut() {
                *last = Slot::Outstanding { due: BootTime::from_nanos(7) };
                assert_ne!(slots, all.collect());
            }
        }
    }
}
