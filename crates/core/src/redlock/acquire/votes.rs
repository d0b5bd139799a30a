//! The vote of each node in an attempt.

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
pub(super) enum Vote {
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

/// A vote for each node. The usual number of nodes needs no allocation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Votes {
    /// The number of nodes, and their votes. Unused places hold a fixed filler, so that equal states compare equal.
    Few(usize, [Vote; FEW]),
    Many(Vec<Vote>),
}

impl Votes {
    #[inline]
    pub(super) fn new(nodes: usize, mut vote: impl FnMut(usize) -> Vote) -> Self {
        if nodes > FEW {
            return Self::Many((0..nodes).map(vote).collect());
        }
        let filler = || Vote::Gone { took: Duration::ZERO };
        let few = |node| if node < nodes { vote(node) } else { filler() };
        Self::Few(nodes, core::array::from_fn(few))
    }
}

impl Deref for Votes {
    type Target = [Vote];

    fn deref(&self) -> &[Vote] {
        match self {
            Self::Few(count, few) => &few[..*count],
            Self::Many(many) => many,
        }
    }
}

impl DerefMut for Votes {
    fn deref_mut(&mut self) -> &mut [Vote] {
        match self {
            Self::Few(count, few) => &mut few[..*count],
            Self::Many(many) => many,
        }
    }
}

impl Attempt {
    /// The parts that the held lock keeps. The attempt is not used afterwards.
    pub(crate) fn take_parts(&mut self) -> (Quorum, Entry, Option<Box<FenceRequest>>) {
        (self.quorum, self.entry.clone().held(), self.fence_request.take())
    }

    /// Moves all times so that `base` becomes zero. Models need this to compare states.
    pub(crate) fn shift(&mut self, base: Reading) {
        self.started = Reading::default();
        for vote in &mut *self.votes {
            match vote {
                Vote::Outstanding { due } => *due = due.shifted(base),
                Vote::Granted { sent, took } => {
                    (*sent, *took) = (sent.shifted(base), Duration::ZERO);
                }
                Vote::Refused { took, .. } | Vote::Failed { took, .. } | Vote::Gone { took } => {
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
    fn each_node_has_a_vote() {
        for nodes in 0..=2 * FEW {
            let vote = |node| Vote::Gone { took: Duration::from_secs(node as u64) };
            let mut votes = Votes::new(nodes, vote);
            assert!(votes.iter().cloned().eq((0..nodes).map(vote)));
            assert_eq!(matches!(votes, Votes::Few(..)), nodes <= FEW);
            if let Some(last) = votes.last_mut() {
                *last = Vote::Outstanding { due: BootTime::from_nanos(7) };
                assert_ne!(votes, Votes::new(nodes, vote));
            }
        }
    }
}
