//! What a node is asked, and the three kinds of answer: yes, a definite no, and a failure.

mod failure;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::shown::shown_value;
use crate::token::{Key, Value};

pub use self::failure::{Failure, FailureKind};

/// One command for one node.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Command {
    /// Set the key if it is absent, to expire after the ttl: `SET key value NX PX ttl_ms`.
    /// Answered by [`Answer::Granted`] or [`Answer::Refused`].
    Acquire {
        /// The key on the node.
        key: Key,
        /// The whole value.
        value: Value,
        /// Time to live in milliseconds.
        ttl_ms: u64,
    },
    /// If the key holds this value, make it live for the ttl from now, never shorter than it
    /// would. Answered by [`Answer::Extended`], [`Answer::Absent`] or [`Answer::Other`].
    Extend {
        /// The key on the node.
        key: Key,
        /// The whole value.
        value: Value,
        /// Time to live in milliseconds.
        ttl_ms: u64,
    },
    /// If the key holds this value, delete it, in one atomic step.
    /// Answered by [`Answer::Deleted`], [`Answer::Absent`] or [`Answer::Other`]; or, unless `tell`,
    /// by [`Answer::NotOurs`] for both of the latter.
    Release {
        /// The key on the node.
        key: Key,
        /// The whole value.
        value: Value,
        /// It matters whether the key is absent or another's. Servers that compare and delete with
        /// one command of their own do not say, and are asked again: the answer is then what is
        /// there a moment later.
        tell: bool,
    },
    /// Look at the key without changing it. Answered by [`Answer::Seen`].
    Inspect {
        /// The key on the node.
        key: Key,
    },
    /// Look at the key, and ask to be told, once, when it changes. Answered by
    /// [`Answer::Watched`], or by [`Answer::Seen`] if the node cannot tell.
    Watch {
        /// The key on the node.
        key: Key,
    },
    /// As [`Command::Acquire`], and if it is granted, the counter moves on:
    /// `c := max(F + 1, floor, min(proposal, TIME + 1 h))`, `F := c`, in one atomic step. The floor is
    /// that of the node's marker. Answered by [`Answer::GrantedFenced`] with c, or by
    /// [`Answer::RefusedFenced`]; then nothing is written.
    AcquireFenced {
        /// The key on the node.
        key: Key,
        /// The whole value.
        value: Value,
        /// Time to live in milliseconds.
        ttl_ms: u64,
        /// The lock's counter.
        counter: Counter,
        /// The number that the client would like to have.
        proposal: u64,
    },
    /// If the key holds this value and the counter is below `to`, set the counter to it, in one atomic
    /// step (S19). Answered by [`Answer::Raised`], [`Answer::Absent`] or [`Answer::Other`].
    Raise {
        /// The key on the node.
        key: Key,
        /// The whole value.
        value: Value,
        /// The lock's counter.
        counter: Counter,
        /// The number that it is to have.
        to: u64,
    },
    /// If the key is absent and the counter is not above `to`, set both: the vote of a node that has
    /// lost it, for a lock that has its fence already (S23). Answered by [`Answer::GrantedFenced`]
    /// with `to`, by [`Answer::Refused`] if the key exists, or, with nothing written, by
    /// [`Answer::Superseded`].
    HealFenced {
        /// The key on the node.
        key: Key,
        /// The whole value.
        value: Value,
        /// Time to live in milliseconds.
        ttl_ms: u64,
        /// The lock's counter.
        counter: Counter,
        /// The lock's fence.
        to: u64,
    },
    /// As [`Command::Extend`]; the counter lives on as well.
    ExtendFenced {
        /// The key on the node.
        key: Key,
        /// The whole value.
        value: Value,
        /// Time to live in milliseconds.
        ttl_ms: u64,
        /// The lock's counter.
        counter: Counter,
    },
    /// Say what you are: the [`Evidence`](crate::Evidence) that goes with the answers has the node's `INFO`
    /// and its marker. Answered by [`Answer::Identified`].
    Identify,
    /// Write the adoption if there is none, or if there is this other one; look at it in any case. Behind
    /// the text the node writes ` since=` and its time of day in microseconds: a [`Mark`](Self::Mark) that is
    /// late must not end an adoption that came after its own. What is adopted must wait: the marker, if there is one, is taken away in the same atomic step. Answered
    /// by [`Answer::Adopting`]; or by [`Answer::NotMarked`] if the marker is another than was seen, and
    /// then nothing is written.
    Adopt {
        /// The key on the node.
        key: Key,
        /// What to write.
        text: Arc<str>,
        /// The one that may be replaced.
        replaces: Option<Arc<str>>,
        /// Where the marker is.
        marker: Key,
        /// What was seen there: this text, or nothing.
        seen: Option<Arc<str>>,
    },
    /// Write the marker, in one atomic step with looking at what is there instead. Answered by
    /// [`Answer::Marked`] or [`Answer::NotMarked`].
    Mark {
        /// The key on the node.
        key: Key,
        /// What to write.
        text: Arc<str>,
        /// What must be there: this text, or nothing.
        replaces: Option<Arc<str>>,
        /// The adoption that must be there and old enough; it is deleted. `None`: none is needed.
        adoption: Option<Adopted>,
    },
}

/// Where a lock's fences are counted, per node.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Counter {
    /// Under which key.
    pub key: Key,
    /// For how long it is kept after its last use, in milliseconds.
    pub ttl_ms: u64,
    /// Under which key the node's marker is, whose floor counts.
    pub marker: Key,
}

impl Counter {
    /// No fence is as large: every smaller one is exact in the scripts' arithmetic (S20).
    pub const LIMIT: u64 = 1 << 53;
}

/// An adoption that must be there, unchanged, and so old.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Adopted {
    /// The key on the node.
    pub key: Key,
    /// What must be there.
    pub text: Arc<str>,
    /// How old it must be, in milliseconds.
    pub age_ms: u64,
}

impl Command {
    /// A release changes nothing but our own key, so it may be sent where nothing else may: to a
    /// suspended node, and again after a failure.
    pub const fn is_release(&self) -> bool {
        matches!(self, Self::Release { .. })
    }

    /// The value of the lock that it is about, if it names one.
    pub const fn value(&self) -> Option<&Value> {
        match self {
            Self::Acquire { value, .. }
            | Self::AcquireFenced { value, .. }
            | Self::Raise { value, .. }
            | Self::HealFenced { value, .. }
            | Self::Extend { value, .. }
            | Self::ExtendFenced { value, .. }
            | Self::Release { value, .. } => Some(value),
            _ => None,
        }
    }

    /// It may be answered by a vote, or by news of one, which count only if the node's marker is
    /// there afterwards (S9).
    pub const fn is_about_votes(&self) -> bool {
        matches!(
            self,
            Self::Acquire { .. }
                | Self::AcquireFenced { .. }
                | Self::Raise { .. }
                | Self::HealFenced { .. }
                | Self::Extend { .. }
                | Self::ExtendFenced { .. }
        )
    }
}

/// A node's answer to one command. Never a `bool`: a failure is not a refusal.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Answer {
    /// The key was absent and is now ours: a vote.
    Granted,
    /// The key exists already.
    Refused,
    /// The key holds our value and lives for the ttl from now.
    Extended,
    /// The key held our value and is gone.
    Deleted,
    /// There is no such key.
    Absent,
    /// The key holds another value, or is of another type.
    Other,
    /// The key does not hold our value: it is absent or another's.
    NotOurs,
    /// What an inspection saw.
    Seen(Holding),
    /// What an inspection saw; when that changes, the node says so, once.
    Watched(Holding),
    /// As [`Answer::Granted`]; the counter is now this.
    GrantedFenced {
        /// The counter's value.
        fence: u64,
    },
    /// As [`Answer::Refused`]; the counter, and who holds the lock.
    RefusedFenced {
        /// The counter's value.
        fence: u64,
        /// What the key holds.
        holding: Box<Holding>,
    },
    /// The key holds our value, and the counter is now this: what it was to be, unless it was above.
    Raised {
        /// The counter's value.
        fence: u64,
    },
    /// The key is free, but the counter is above our fence: somebody with a larger one has had this
    /// node's vote since.
    Superseded {
        /// The counter's value.
        fence: u64,
    },
    /// What the node is has been said beside the answers.
    Identified,
    /// The adoption as it is now.
    Adopting {
        /// What it says.
        text: Arc<str>,
        /// How old it is.
        age: Duration,
    },
    /// The marker has been written.
    Marked,
    /// It has not: what was to be there was not, or the adoption is not old enough.
    NotMarked,
    /// No answer that says anything about the key.
    Failed(Failure),
}

/// What a key looks like from outside.
///
/// `Debug` shows the beginning of a value: it may be a holder's token.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Holding {
    /// There is no such key: the lock is free on this node.
    Free,
    /// The key holds a value.
    Held {
        /// The value; cut to [`Holding::VALUE_BYTES_MAX`] bytes.
        value: Vec<u8>,
        /// Time until it expires; `None`: never, so it is no lock of this family.
        ttl: Option<Duration>,
    },
    /// The key is not a string. Something foreign holds the name; it is never deleted.
    OtherType {
        /// Time until it expires; `None`: never.
        ttl: Option<Duration>,
    },
}

impl fmt::Debug for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Free => f.write_str("Free"),
            Self::Held { value, ttl } => {
                let value = shown_value(value);
                f.debug_struct("Held").field("value", &value).field("ttl", ttl).finish()
            }
            Self::OtherType { ttl } => f.debug_struct("OtherType").field("ttl", ttl).finish(),
        }
    }
}

impl Holding {
    /// More of a foreign value than this is not kept.
    pub const VALUE_BYTES_MAX: usize = 512;

    /// Time until the key is gone by itself: zero if it is free, `None` if never.
    pub const fn free_in(&self) -> Option<Duration> {
        match self {
            Self::Free => Some(Duration::ZERO),
            Self::Held { ttl, .. } | Self::OtherType { ttl } => *ttl,
        }
    }
}
