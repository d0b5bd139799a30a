//! The commands to a node, and the three kinds of answer: yes, a definite no, and a failure.

mod failure;
mod holding;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::time::Duration;

use crate::keys::Keys;
use crate::token::{Key, Value};

pub use self::failure::{Failure, FailureKind};
pub use self::holding::{Holding, Reader};

/// One command for one node. Each is carried out in one atomic step.
///
/// A command about a lock names all keys of the lock. Its conditions apply to each of the keys, unless stated otherwise.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Command {
    /// Set the keys if all of them are absent, to expire after the ttl: `SET key value NX PX ttl_ms` for one key.
    /// Answered by [`Answer::Granted`] or [`Answer::Refused`].
    Acquire {
        /// The keys on the node.
        keys: Keys,
        /// The whole value.
        value: Value,
        /// Time to live in milliseconds.
        ttl_ms: u64,
    },
    /// Give a lost vote again: if each of the keys is absent or holds this value, make all of them hold it for the
    /// ttl, never shorter than they would. A single key must be absent. Answered by [`Answer::Granted`] or
    /// [`Answer::Refused`]; then nothing is written.
    Heal {
        /// The keys on the node.
        keys: Keys,
        /// The whole value.
        value: Value,
        /// Time to live in milliseconds.
        ttl_ms: u64,
    },
    /// If the keys hold this value, make them live for the ttl from now, never shorter than they would. Answered by
    /// [`Answer::Extended`]; if not, by [`Answer::Other`] if any key holds something else, or by [`Answer::Absent`],
    /// and nothing is changed.
    Extend {
        /// The keys on the node.
        keys: Keys,
        /// The whole value.
        value: Value,
        /// Time to live in milliseconds.
        ttl_ms: u64,
    },
    /// Delete those of the keys that hold this value. Answered by [`Answer::Deleted`] if all did; else by
    /// [`Answer::Other`] if any holds something else, or [`Answer::Absent`]; or, unless `tell`, by
    /// [`Answer::NotOurs`] for both of the latter.
    Release {
        /// The keys on the node.
        keys: Keys,
        /// The whole value.
        value: Value,
        /// It matters whether the key is absent or another's. Servers that compare and delete with
        /// one command of their own do not say, and are asked again: the answer is then what is
        /// there a moment later.
        tell: bool,
    },
    /// Look at the keys without changing them. Answered by [`Answer::Seen`].
    Inspect {
        /// The keys on the node.
        keys: Keys,
        /// The keys of waiting writers' intents, for readers.
        intents: Option<Keys>,
    },
    /// Look at the keys, and ask for one push when one of them changes. Answered by
    /// [`Answer::Watched`], or by [`Answer::Seen`] if the node cannot tell.
    Watch {
        /// The keys on the node.
        keys: Keys,
        /// The keys of waiting writers' intents, for readers.
        intents: Option<Keys>,
    },
    /// As [`Command::Acquire`], and if it is granted, the counters move on:
    /// `c := max(F + 1, floor, min(proposal, TIME + 1 h))`, `F := c`, in one atomic step; F is the largest of the
    /// counters of the keys. The floor is
    /// that of the node's marker. Answered by [`Answer::GrantedFenced`] with c, or by
    /// [`Answer::RefusedFenced`]; then nothing is written.
    AcquireFenced {
        /// The keys on the node.
        keys: Keys,
        /// The whole value.
        value: Value,
        /// Time to live in milliseconds.
        ttl_ms: u64,
        /// The lock's counters.
        counter: Counter,
        /// The number that the client would like to have.
        proposal: u64,
    },
    /// If the keys hold this value and no counter is above `to`, set the counters to it, in one atomic
    /// step (S19). Answered by [`Answer::Raised`] with the largest counter, [`Answer::Absent`] or [`Answer::Other`].
    Raise {
        /// The keys on the node.
        keys: Keys,
        /// The whole value.
        value: Value,
        /// The lock's counters.
        counter: Counter,
        /// The number that they are to have.
        to: u64,
    },
    /// As [`Command::Heal`], for a lock that has its fence already: only if no counter is above `to`, and the counters
    /// are set to it (S23). Answered by [`Answer::GrantedFenced`]
    /// with `to`, by [`Answer::Refused`], or by [`Answer::Superseded`]; then nothing is written.
    HealFenced {
        /// The keys on the node.
        keys: Keys,
        /// The whole value.
        value: Value,
        /// Time to live in milliseconds.
        ttl_ms: u64,
        /// The lock's counters.
        counter: Counter,
        /// The lock's fence.
        to: u64,
    },
    /// As [`Command::Extend`]; the counters live on as well.
    ExtendFenced {
        /// The keys on the node.
        keys: Keys,
        /// The whole value.
        value: Value,
        /// Time to live in milliseconds.
        ttl_ms: u64,
        /// The lock's counters.
        counter: Counter,
    },
    /// Add a reader to the keys: if each of them is absent or held by readers alone, none is announced to a writer, and
    /// this value is not among the readers. It counts for the ttl from now. Answered by [`Answer::Granted`] or
    /// [`Answer::Refused`]; or by a failure, [`FailureKind::SameServer`], if the value is there already: each attempt
    /// has its own, so this server has been asked twice. Unless it is granted, nothing is written.
    AcquireShared {
        /// The keys on the node.
        keys: Keys,
        /// The keys of waiting writers' intents.
        intents: Keys,
        /// The whole value.
        value: Value,
        /// For how long it counts, in milliseconds.
        ttl_ms: u64,
    },
    /// As [`Command::AcquireShared`], whatever is announced; a value that is there already counts for the ttl from now,
    /// never shorter than it would. A key that holds this value as a writer's becomes a reader's. Answered by
    /// [`Answer::Granted`] or [`Answer::Refused`]; then nothing is written.
    HealShared {
        /// The keys on the node.
        keys: Keys,
        /// The whole value.
        value: Value,
        /// For how long it counts, in milliseconds.
        ttl_ms: u64,
    },
    /// If this value is among the readers of the keys, it counts for the ttl from now, never shorter than it would. A
    /// key that holds it as a writer's becomes a reader's. Answered as [`Command::Extend`].
    ExtendShared {
        /// The keys on the node.
        keys: Keys,
        /// The whole value.
        value: Value,
        /// For how long it counts, in milliseconds.
        ttl_ms: u64,
    },
    /// Take this value from the readers of the keys, and delete those of the keys that hold it as a writer's. Answered
    /// by [`Answer::Deleted`] if it was there under all; else by [`Answer::Other`] if any is held by something else, or
    /// [`Answer::Absent`].
    ReleaseShared {
        /// The keys on the node.
        keys: Keys,
        /// The whole value.
        value: Value,
    },
    /// If the keys hold this value as a writer's, make it a reader's that counts as long as the key would have lived, never
    /// shorter.
    /// Creates nothing from nothing. Answered by [`Answer::Downgraded`], also if it is a reader's already;
    /// [`Answer::Absent`] or [`Answer::Other`], and then nothing is written.
    Downgrade {
        /// The keys on the node.
        keys: Keys,
        /// The whole value.
        value: Value,
    },
    /// Say that a writer waits: set those of these keys that are absent to expire after the ttl, and with `renews` those
    /// that hold this value. No vote. Answered by [`Answer::Announced`], or by [`Answer::Other`] if any of them holds
    /// something else.
    Announce {
        /// The keys for that, of the keys of the lock.
        intents: Keys,
        /// The whole value.
        value: Value,
        /// Time to live in milliseconds.
        ttl_ms: u64,
        /// Whether keys that hold the value live longer. A repeat that a push caused does not: it would cause a push to
        /// other writers in turn, and so on.
        renews: bool,
    },
    /// Take that back: delete those of these keys that hold this value. Answered by [`Answer::Announced`].
    Withdraw {
        /// The keys for that, of the keys of the lock.
        intents: Keys,
        /// The whole value.
        value: Value,
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
        /// The new text.
        text: Arc<str>,
        /// The one that may be replaced.
        replaces: Option<Arc<str>>,
        /// Where the marker is.
        marker: Key,
        /// The text that was seen there, if any.
        seen: Option<Arc<str>>,
    },
    /// Write the marker, in one atomic step with looking at what is there instead. Answered by
    /// [`Answer::Marked`] or [`Answer::NotMarked`].
    Mark {
        /// The key on the node.
        key: Key,
        /// The new text.
        text: Arc<str>,
        /// The text that must be there, if any.
        replaces: Option<Arc<str>>,
        /// The adoption that must be there and old enough; it is deleted. `None`: none is needed.
        adoption: Option<Adopted>,
    },
}

/// Where a lock's fences are counted, per node.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Counter {
    /// Under which keys: one for each of the lock's, in the same order.
    pub keys: Keys,
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
    /// The text that must be there.
    pub text: Arc<str>,
    /// How old it must be, in milliseconds.
    pub age_ms: u64,
}

impl Command {
    /// A release changes nothing but our own key, so it may be sent where nothing else may: to a
    /// suspended node, and again after a failure.
    pub const fn is_release(&self) -> bool {
        matches!(self, Self::Release { .. } | Self::ReleaseShared { .. } | Self::Withdraw { .. })
    }

    /// The value of the lock that it is about, if it names one.
    pub const fn value(&self) -> Option<&Value> {
        match self {
            Self::Acquire { value, .. }
            | Self::Heal { value, .. }
            | Self::AcquireShared { value, .. }
            | Self::HealShared { value, .. }
            | Self::ExtendShared { value, .. }
            | Self::ReleaseShared { value, .. }
            | Self::Downgrade { value, .. }
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
                | Self::Heal { .. }
                | Self::AcquireShared { .. }
                | Self::HealShared { .. }
                | Self::ExtendShared { .. }
                | Self::Downgrade { .. }
        )
    }

    /// It sets a lock, so it must not come behind the lock's release: nobody would take back what it sets.
    pub const fn sets_a_lock(&self) -> bool {
        matches!(
            self,
            Self::Acquire { .. }
                | Self::Heal { .. }
                | Self::AcquireFenced { .. }
                | Self::HealFenced { .. }
                | Self::AcquireShared { .. }
                | Self::HealShared { .. }
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
    /// The key holds our value as a reader's, for as long as it would have lived.
    Downgraded,
    /// A waiting writer's intent was set or deleted.
    Announced,
    /// The key held our value and is gone.
    Deleted,
    /// There is no such key.
    Absent,
    /// The key holds another value, or is of another type.
    Other,
    /// The key does not hold our value: it is absent or another's.
    NotOurs,
    /// The state of the keys.
    Seen(Holding),
    /// The state of the keys. The node pushes once when it changes.
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
        /// The state of the keys.
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
    /// The evidence beside the answers has the node's `INFO`.
    Identified,
    /// The adoption as it is now.
    Adopting {
        /// The text of the adoption.
        text: Arc<str>,
        /// How old it is.
        age: Duration,
    },
    /// The marker has been written.
    Marked,
    /// The marker has not been written: another text was there, or the adoption is not old enough.
    NotMarked,
    /// No answer that says anything about the key.
    Failed(Failure),
}
