//! The local queue: one contender per process and key, first come, first served.
//!
//! What a mutex can do, the nodes are not burdened with: of all callers in this process that want
//! the same key, one talks to the nodes, or holds the lock; the others wait here, in order.

use alloc::collections::VecDeque;

use crate::engine::LockId;

/// The callers of this process that want one key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LocalQueue {
    active: LockId,
    waiting: VecDeque<LockId>,
}

impl LocalQueue {
    /// The queue of a key that `first` is the first to want: it may go ahead.
    pub const fn new(first: LockId) -> Self {
        Self { active: first, waiting: VecDeque::new() }
    }

    /// The one that contends for the key or holds it.
    pub const fn active(&self) -> LockId {
        self.active
    }

    /// Whose turn is next.
    pub fn next(&self) -> Option<LockId> {
        self.waiting.front().copied()
    }

    /// Joins the end of the queue.
    pub fn join(&mut self, lock: LockId) {
        self.waiting.push_back(lock);
    }

    /// Leaves the queue before one's turn has come.
    pub fn leave(&mut self, lock: LockId) {
        self.waiting.retain(|waiting| *waiting != lock);
    }

    /// The active one is done: the next one's turn has come. `None`: nobody wants the key.
    pub fn advance(&mut self) -> Option<LockId> {
        let next = self.waiting.pop_front()?;
        self.active = next;
        Some(next)
    }

    pub(crate) fn renumber(&mut self, to: impl Fn(LockId) -> LockId) {
        self.active = to(self.active);
        for lock in &mut self.waiting {
            *lock = to(*lock);
        }
    }
}
