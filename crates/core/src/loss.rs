//! Causes of a lost lock.

use core::fmt;

/// Why a lock was lost. `Display` shows the cause as a sentence about the lock.
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

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its validity ran out before enough nodes confirmed an extension",
            Self::KeyGone => "its key is gone from so many nodes that no quorum is left",
            Self::KeyOverwritten => {
                "its key holds another value on so many nodes, or is gone from them, that no quorum is left"
            }
            Self::ClockJumped => {
                "the wall clock moved ahead past the end of its validity: the clock was set, or the machine was paused"
            }
            Self::HoldLimit => "it was held for as long as max_hold allows",
            Self::Shutdown => "the client was shut down",
        })
    }
}
