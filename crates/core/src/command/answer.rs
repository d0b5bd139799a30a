//! The answer of a node to one command.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::time::Duration;

use super::{Failure, Holding};

/// A node's answer to one command. It is not a `bool`, because a failure is not a refusal.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Answer {
    /// The key was absent and holds the client's value now: a vote.
    Granted,
    /// The key exists.
    Refused,
    /// The key holds the client's value for the ttl from now.
    Extended,
    /// The key holds the client's value as a reader's. The reader's time is the time that the writer had left.
    Downgraded,
    /// A waiting writer's intent was set or deleted.
    Announced,
    /// The key held the client's value and no longer holds it.
    Deleted,
    /// The key is absent.
    Absent,
    /// The key holds another value, or is of another type.
    Other,
    /// The key is absent or holds another value; the node does not show which.
    NotOurs,
    /// The state of the keys.
    Seen(Holding),
    /// The state of the keys. The node pushes once when a key changes.
    Watched(Holding),
    /// Like [`Answer::Granted`], with the fencing counter.
    GrantedFenced {
        /// The value of the node's fencing counter.
        fence: u64,
    },
    /// Like [`Answer::Refused`], with the fencing counter and the holder.
    RefusedFenced {
        /// The value of the node's fencing counter.
        fence: u64,
        /// The state of the keys.
        holding: Box<Holding>,
    },
    /// The key holds the client's value. The counter was raised to the requested number, unless it was above that
    /// already.
    Raised {
        /// The value of the node's fencing counter.
        fence: u64,
    },
    /// The key is free, but the counter is above the client's token: a later holder has had this node's vote.
    Superseded {
        /// The value of the node's fencing counter.
        fence: u64,
    },
    /// The evidence that comes with the answers contains the node's `INFO`.
    Identified,
    /// The adoption that the node has now: the text that started its wait.
    Adopting {
        /// The text of the adoption, which started the node's wait.
        text: Arc<str>,
        /// The age of the adoption: how long the node has waited.
        age: Duration,
    },
    /// The marker was written.
    Marked,
    /// Nothing was written: the marker is not the expected one, or the adoption (the text that started the node's wait)
    /// is another one or not old enough.
    NotMarked,
    /// The reply shows nothing about the key.
    Failed(Failure),
}
