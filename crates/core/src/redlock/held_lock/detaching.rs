//! Detaching a held lock: it stays on the nodes, and the engine forgets it.
//!
//! Another process may attach the lock later, because the nodes that hold its value prove that no other client held the
//! lock in between. The proof fails if a late command sets the value on a node that lacks it. So a detach waits for the
//! nodes' answers to acquires and heals, and reports the nodes that have not answered. It also waits for the answers to
//! an attach: a node that executes this attach after that of the next process would keep the wrong value, and give
//! the next process no vote.

use core::time::Duration;

use super::HeldLock;
use crate::keys::Entry;
use crate::redlock::quorum::NodeSet;
use crate::redlock::vote::Validity;
use crate::time::{BootTime, Reading};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Detaching {
    /// End of the wait for the nodes' answers.
    due: BootTime,
    is_reported: bool,
}

impl Detaching {
    pub(super) fn deadline(&self) -> Option<BootTime> {
        (!self.is_reported).then_some(self.due)
    }

    pub(super) fn shift(&mut self, base: Reading) {
        self.due = self.due.shifted(base);
    }
}

/// A lock that this process no longer holds, and that another process may take over.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Detached {
    /// The keys, mode, origin and value of the lock.
    pub entry: Entry,
    /// The lock's ttl.
    pub ttl: Duration,
    /// The votes of the lock. The validity follows from them.
    pub validity: Validity,
    /// Nodes that have not answered a command which sets the lock's value. Such a command may be executed later, after
    /// another client's lock, so a vote of such a node does not count for the next holder.
    pub unanswered: NodeSet,
    /// Time beyond which the lock must not be extended (`max_hold`).
    pub hold_until: BootTime,
}

impl HeldLock {
    /// Stops the automatic extension, and begins the wait for the nodes' answers to earlier commands.
    /// `longest` is the longest round trip to any node.
    pub(crate) fn detach(&mut self, longest: Duration, now: Reading) {
        let due = now.after(self.timing.node_timeout(longest));
        self.guard.automatic = false;
        self.stop_extending();
        self.detaching.get_or_insert(Detaching { due, is_reported: false });
    }

    pub(crate) const fn is_detaching(&self) -> bool {
        self.detaching.is_some()
    }

    /// Whether the caller has received the [`Detached`] lock. From then on, only the caller ends the lock.
    pub(crate) const fn is_detached(&self) -> bool {
        matches!(&self.detaching, Some(detaching) if detaching.is_reported)
    }

    /// Returns the detached lock once, when all nodes have answered or the wait is over. Returns `Some(None)` if no
    /// other process could attach the lock, because too few nodes have answered.
    pub(crate) fn poll_detached(&mut self, now: Reading) -> Option<Option<Detached>> {
        let unanswered = self.unanswered();
        let is_answered = unanswered.is_empty() && self.votes.attaching.is_empty();
        let detaching = self.detaching.as_mut().filter(|it| !it.is_reported)?;
        if !is_answered && !detaching.due.has_come(now) {
            return None;
        }
        if self.quorum.is_out_of_reach(self.quorum.nodes() - unanswered.len(), 0) {
            self.detaching = None;
            return Some(None);
        }
        detaching.is_reported = true;
        Some(Some(Detached {
            entry: self.entry.clone(),
            ttl: self.timing.ttl(),
            validity: self.votes.validity.clone(),
            unanswered: if mutant!(DetachListsNone) { NodeSet::default() } else { unanswered },
            hold_until: self.guard.hold_until,
        }))
    }
}
