//! Causes of a lost lock.

/// Why a lock was lost.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum LossCause {
    /// The validity ended: too few nodes confirmed an extension in time, or there was no extension.
    Expired,
    /// Answers show that fewer than a quorum of nodes have the key. It was deleted, or the nodes' clocks run fast.
    KeyGone,
    /// Like [`Self::KeyGone`], but at least one node has another value under the key. So another client has the lock,
    /// or will have it soon.
    KeyOverwritten,
    /// The wall clock moved ahead of the boot clock, past the end of the validity. Either somebody set the wall clock,
    /// or the virtual machine was paused. The client cannot know which, so the lock counts as expired.
    ClockJumped,
    /// The holder kept the lock as long as `max_hold` allows.
    HoldLimit,
    /// The client closed.
    Shutdown,
}
