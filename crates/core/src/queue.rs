//! The local queue: one contender per process and key, first come, first served.
//!
//! The nodes are not burdened with what a mutex can do. Of all callers in this process that want
//! the same key, one talks to the nodes, or holds the lock. The others wait here, in order. A
//! caller that pauses for reasons of its own, and not because the lock is taken, steps aside while
//! others wait.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use crate::engine::LockId;

/// The callers of this process that want one key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LocalQueue {
    active: LockId,
    /// There only while somebody waits.
    #[expect(
        clippy::box_collection,
        reason = "most locks that are held are wanted by nobody else"
    )]
    waiting: Option<Box<VecDeque<LockId>>>,
}

impl LocalQueue {
    /// The queue of a key that `first` is the first to want: it may go ahead.
    pub const fn new(first: LockId) -> Self {
        Self { active: first, waiting: None }
    }

    /// The one that contends for the key or holds it.
    pub const fn active(&self) -> LockId {
        self.active
    }

    /// Whose turn is next.
    pub fn next(&self) -> Option<LockId> {
        self.waiting.as_ref()?.front().copied()
    }

    /// Joins the queue: at its end, or, after it has stepped aside, before the calls that came later.
    pub fn join(&mut self, lock: LockId) {
        let waiting = self.waiting.get_or_insert_default();
        let place = waiting.partition_point(|other| *other < lock);
        waiting.insert(place, lock);
    }

    /// Leaves the queue before one's turn has come.
    pub fn leave(&mut self, lock: LockId) {
        if let Some(waiting) = &mut self.waiting {
            waiting.retain(|waiting| *waiting != lock);
        }
        self.waiting.take_if(|waiting| waiting.is_empty());
    }

    /// The active one is done: the next one's turn has come. `None`: nobody wants the key.
    pub fn advance(&mut self) -> Option<LockId> {
        self.active = self.waiting.as_mut()?.pop_front()?;
        self.waiting.take_if(|waiting| waiting.is_empty());
        Some(self.active)
    }

    pub(crate) fn renumber(&mut self, to: impl Fn(LockId) -> LockId) {
        self.active = to(self.active);
        for lock in self.waiting.iter_mut().flat_map(|waiting| waiting.iter_mut()) {
            *lock = to(*lock);
        }
    }
}
