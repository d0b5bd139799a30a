//! The commands to a node, and the three kinds of answer: yes, a definite no, and a failure.

mod answer;
mod failure;
mod holding;

use alloc::sync::Arc;

use crate::keys::{Keys, Mode};
use crate::token::{Key, Value};

pub use self::answer::Answer;
pub use self::failure::{Failure, FailureKind};
pub use self::holding::{Holding, Reader};

/// A command to one node, which executes it in one atomic step.
///
/// A command about a lock names all keys of the lock. Its conditions apply to each of the keys, unless stated
/// otherwise.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Command {
    /// Sets the keys if all of them are absent, with this ttl: `SET key value NX PX ttl_ms` for one key.
    ///
    /// Answers: [`Answer::Granted`], [`Answer::Refused`].
    Acquire {
        /// The keys on the node.
        keys: Keys,
        /// The value, which the node always compares as a whole.
        value: Value,
        /// Time to live in milliseconds.
        ttl_ms: u64,
    },
    /// Restores a lost vote. Sets a single key only if it is absent, and several keys if each of them is absent or
    /// holds this value. No key expires earlier than before.
    ///
    /// Answers: [`Answer::Granted`], or [`Answer::Refused`] if nothing is written.
    Heal {
        /// The keys on the node.
        keys: Keys,
        /// The value, which the node always compares as a whole.
        value: Value,
        /// Time to live in milliseconds.
        ttl_ms: u64,
    },
    /// Extends the keys by the ttl from now if all of them hold this value. No key expires earlier than before.
    ///
    /// Answers: [`Answer::Extended`]. If nothing is written: [`Answer::Other`] if a key holds another value, otherwise
    /// [`Answer::Absent`].
    Extend {
        /// The keys on the node.
        keys: Keys,
        /// The value, which the node always compares as a whole.
        value: Value,
        /// Time to live in milliseconds.
        ttl_ms: u64,
    },
    /// Deletes the keys that hold this value.
    ///
    /// Answers: [`Answer::Deleted`] if all keys held it. Otherwise [`Answer::Other`] if a key holds another value, or
    /// [`Answer::Absent`]. Without `tell`, a node may answer [`Answer::NotOurs`] instead of the last two.
    Release {
        /// The keys on the node.
        keys: Keys,
        /// The value, which the node always compares as a whole.
        value: Value,
        /// Whether the answer must distinguish an absent key from another value. A native compare-and-delete command
        /// does not distinguish them, so the client runs the release script after it. The script's answer shows the
        /// keys a moment after the native command.
        tell: bool,
    },
    /// Reads the keys.
    ///
    /// Answer: [`Answer::Seen`].
    Inspect {
        /// The keys on the node.
        keys: Keys,
        /// For a reader, the keys of waiting writers' intents, which keep new readers out. `None` otherwise.
        intents: Option<Keys>,
    },
    /// Reads the keys, and asks for one push at the next change of one of them.
    ///
    /// Answers: [`Answer::Watched`], or [`Answer::Seen`] if the node cannot push.
    Watch {
        /// The keys on the node.
        keys: Keys,
        /// For a reader, the keys of waiting writers' intents, which keep new readers out. `None` otherwise.
        intents: Option<Keys>,
    },
    /// Like [`Command::Acquire`]. If it is granted, the same atomic step raises the counters:
    /// `c := max(F + 1, floor, min(proposal, TIME + 1 h))`, `F := c`. F is the largest of the keys' counters, TIME the
    /// node's clock in microseconds, and the floor the smallest number that the node's marker allows.
    ///
    /// Answers: [`Answer::GrantedFenced`] with c, or [`Answer::RefusedFenced`] if nothing is written.
    AcquireFenced {
        /// The keys on the node.
        keys: Keys,
        /// The value, which the node always compares as a whole.
        value: Value,
        /// Time to live in milliseconds.
        ttl_ms: u64,
        /// The lock's counters of fencing tokens.
        counter: Counter,
        /// The client's proposal for c, the new number of the counters.
        proposal: u64,
    },
    /// Sets the counters to `to` if the keys hold this value and no counter is above `to`, in one atomic step (S19).
    ///
    /// Answers: [`Answer::Raised`] with the largest counter, [`Answer::Absent`], [`Answer::Other`].
    Raise {
        /// The keys on the node.
        keys: Keys,
        /// The value, which the node always compares as a whole.
        value: Value,
        /// The lock's counters of fencing tokens.
        counter: Counter,
        /// The new number of the counters.
        to: u64,
    },
    /// Like [`Command::Heal`], but only if no counter is above `to`. The counters are set to `to` (S23).
    ///
    /// Answers: [`Answer::GrantedFenced`] with `to`. If nothing is written: [`Answer::Refused`], or
    /// [`Answer::Superseded`] if a counter is above `to`.
    HealFenced {
        /// The keys on the node.
        keys: Keys,
        /// The value, which the node always compares as a whole.
        value: Value,
        /// Time to live in milliseconds.
        ttl_ms: u64,
        /// The lock's counters of fencing tokens.
        counter: Counter,
        /// The lock's fencing token.
        to: u64,
    },
    /// Like [`Command::Extend`], and prolongs the life of the counters.
    ExtendFenced {
        /// The keys on the node.
        keys: Keys,
        /// The value, which the node always compares as a whole.
        value: Value,
        /// Time to live in milliseconds.
        ttl_ms: u64,
        /// The lock's counters of fencing tokens.
        counter: Counter,
    },
    /// Adds a reader to the keys for the ttl. Each key must be absent or held by readers alone, no waiting writer may
    /// have an intent for any of the keys, and this value must not be among the readers.
    ///
    /// Answers: [`Answer::Granted`], or [`Answer::Refused`] if nothing is written. If the value is there already, the
    /// answer is the failure [`FailureKind::SameServer`]: each attempt has its own value, so two nodes of the list are
    /// this server.
    AcquireShared {
        /// The keys on the node.
        keys: Keys,
        /// The keys of waiting writers' intents.
        intents: Keys,
        /// The value, which the node always compares as a whole.
        value: Value,
        /// Time to live in milliseconds.
        ttl_ms: u64,
    },
    /// Like [`Command::AcquireShared`], but ignores intents. If the value is among the readers, it is extended by the
    /// ttl from now, and never shortened. If a key holds this value as a writer's, the writer becomes a reader.
    ///
    /// Answers: [`Answer::Granted`], or [`Answer::Refused`] if nothing is written.
    HealShared {
        /// The keys on the node.
        keys: Keys,
        /// The value, which the node always compares as a whole.
        value: Value,
        /// Time to live in milliseconds.
        ttl_ms: u64,
    },
    /// Extends the reader with this value by the ttl from now. The reader ends no earlier than before. If a key holds
    /// the value as a writer's, the writer becomes a reader.
    ///
    /// Answers: those of [`Command::Extend`].
    ExtendShared {
        /// The keys on the node.
        keys: Keys,
        /// The value, which the node always compares as a whole.
        value: Value,
        /// Time to live in milliseconds.
        ttl_ms: u64,
    },
    /// Removes this value from the readers of the keys, and deletes the keys that hold it as a writer's.
    ///
    /// Answers: [`Answer::Deleted`] if it was under all keys. Otherwise [`Answer::Other`] if a key is held by another
    /// value, or [`Answer::Absent`].
    ReleaseShared {
        /// The keys on the node.
        keys: Keys,
        /// The value, which the node always compares as a whole.
        value: Value,
    },
    /// Turns the writer with this value into a reader, with at least the key's remaining time. Absent keys stay absent.
    ///
    /// Answers: [`Answer::Downgraded`], also if the value is a reader's already. If nothing is written:
    /// [`Answer::Absent`] or [`Answer::Other`].
    Downgrade {
        /// The keys on the node.
        keys: Keys,
        /// The value, which the node always compares as a whole.
        value: Value,
    },
    /// Sets a waiting writer's intents where they are absent, with this ttl. With `renews`, also extends the intents
    /// that hold this value. An intent keeps new readers out, and is no vote.
    ///
    /// Answers: [`Answer::Announced`], or [`Answer::Other`] if an intent holds another value.
    Announce {
        /// The keys of the intents, one for each key of the lock.
        intents: Keys,
        /// The value, which the node always compares as a whole.
        value: Value,
        /// Time to live in milliseconds.
        ttl_ms: u64,
        /// Whether intents that hold the value are extended. After a push, a client repeats the command without this:
        /// an extension pushes to the other waiting writers, and their repetitions would push back, without end.
        renews: bool,
    },
    /// Deletes the intents that hold this value.
    ///
    /// Answer: [`Answer::Announced`].
    Withdraw {
        /// The keys of the intents, one for each key of the lock.
        intents: Keys,
        /// The value, which the node always compares as a whole.
        value: Value,
    },
    /// Replaces the value `from` of a lock by `value`, under all keys or none. The vote lasts for the ttl from now. No
    /// key expires earlier than before.
    ///
    /// Answers: [`Answer::Granted`]. If nothing is written: [`Answer::Other`] if a key is held by another value,
    /// otherwise [`Answer::Absent`].
    Attach {
        /// The keys on the node.
        keys: Keys,
        /// Whether `from` is a writer's value or a reader's.
        mode: Mode,
        /// The value that the keys must hold.
        from: Value,
        /// The new value.
        value: Value,
        /// Time to live in milliseconds.
        ttl_ms: u64,
    },
    /// Like [`Command::Attach`] for a writer. The same atomic step raises the counters, as [`Command::AcquireFenced`]
    /// does.
    ///
    /// Answers: those of [`Command::AcquireFenced`].
    AttachFenced {
        /// The keys on the node.
        keys: Keys,
        /// The value that the keys must hold.
        from: Value,
        /// The new value.
        value: Value,
        /// Time to live in milliseconds.
        ttl_ms: u64,
        /// The lock's counters of fencing tokens.
        counter: Counter,
        /// The client's proposal for the counter c, as in [`Command::AcquireFenced`].
        proposal: u64,
    },
    /// Undoes an [`Command::Attach`]: replaces `value` by `to`, under all keys or none. The expiry stays.
    ///
    /// Answers: [`Answer::Deleted`] if the keys no longer hold `value`. If nothing is written: those of
    /// [`Command::Attach`].
    GiveBack {
        /// The keys on the node.
        keys: Keys,
        /// Whether `value` is a writer's value or a reader's.
        mode: Mode,
        /// The value that the keys must hold.
        value: Value,
        /// The value from before the attach.
        to: Value,
    },
    /// Sets a lock with the caller's value, and the nonce of the attempt, if the lock's key is absent.
    ///
    /// Answers: [`Answer::Granted`], or [`Answer::Refused`] if the lock's key exists, also with an equal value.
    Take {
        /// The keys and their contents.
        taken: Taken,
        /// Time to live in milliseconds.
        ttl_ms: u64,
    },
    /// Extends a lock with the caller's value by the ttl from now. The lock's key expires no earlier than before,
    /// and the nonce at the same time. With `by_value`, the nonce on the node is not compared, and is replaced.
    ///
    /// Answers: [`Answer::Extended`]. If nothing is written: [`Answer::Absent`] if the lock's key is absent, otherwise
    /// [`Answer::Other`].
    ExtendTaken {
        /// The keys and their contents.
        taken: Taken,
        /// Time to live in milliseconds.
        ttl_ms: u64,
        /// Whether only the value is compared, and not the nonce.
        by_value: bool,
    },
    /// Deletes a lock with the caller's value, and its nonce. With `by_value`, the nonce on the node is not compared.
    ///
    /// Answers: [`Answer::Deleted`], or those of [`Command::ExtendTaken`] if nothing is written.
    ReleaseTaken {
        /// The keys and their contents.
        taken: Taken,
        /// Whether only the value is compared, and not the nonce.
        by_value: bool,
    },
    /// Asks for the node's `INFO` and its marker, the key that shows that no data was lost. Both are in the
    /// [`Evidence`](crate::Evidence) that comes with the answers.
    ///
    /// Answer: [`Answer::Identified`].
    Identify,
    /// Writes the adoption `text` if there is no adoption, or if the present one equals `replaces`. Then reads the
    /// adoption that the node has. An adoption starts the wait of a node without a valid marker. The node appends the
    /// word `since=` with its time of day in microseconds, so that a late [`Mark`](Self::Mark) for this adoption cannot
    /// end the wait of a later one. The same atomic step removes the marker, because an adopted node must wait.
    ///
    /// Answers: [`Answer::Adopting`], or [`Answer::NotMarked`] if the marker is not the one in `seen` and nothing is
    /// written.
    Adopt {
        /// The key of the adoption (the text that starts the node's wait).
        key: Key,
        /// The new text of the adoption, which starts the node's wait.
        text: Arc<str>,
        /// The text of an adoption that the new one may replace; `None` if there is no such adoption.
        replaces: Option<Arc<str>>,
        /// The key of the marker.
        marker: Key,
        /// The text of the marker that the client has seen; `None` if there was no marker.
        seen: Option<Arc<str>>,
    },
    /// Writes the marker, after which the node votes. Does so in one atomic step, and only if the present marker is
    /// `replaces` and the adoption (the text that started the node's wait) is the expected one.
    ///
    /// Answers: [`Answer::Marked`], [`Answer::NotMarked`].
    Mark {
        /// The key of the marker.
        key: Key,
        /// The new text of the marker.
        text: Arc<str>,
        /// The text that the marker must have now; `None`: there must be no marker.
        replaces: Option<Arc<str>>,
        /// The adoption that must exist and be old enough, so that the node has waited. The command deletes it. `None`
        /// if the node need not wait.
        adoption: Option<Adopted>,
    },
}

/// A lock with a value that the caller chose.
///
/// Several callers may use the same value. So each attempt also sets a nonce of its own under a second key, and its
/// later commands compare both.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Taken {
    /// The lock's key.
    pub key: Key,
    /// The key of the nonce.
    pub nonce_key: Key,
    /// The caller's value.
    pub value: Value,
    /// The nonce of the attempt.
    pub nonce: Value,
}

/// The counters of a lock's fencing tokens on each node.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Counter {
    /// The counters' keys: one for each of the lock's keys, in the same order.
    pub keys: Keys,
    /// Life of a counter after its last use, in milliseconds.
    pub ttl_ms: u64,
    /// The key of the marker, which contains the floor: the smallest fencing token that the node gives out.
    pub marker: Key,
}

impl Counter {
    /// Fencing tokens are below this limit, so Lua scripts, which compute with doubles, represent them exactly (S20).
    pub const LIMIT: u64 = 1 << 53;
}

/// The adoption that a node must have before its marker is written: the text that started the node's wait, unchanged
/// and old enough.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Adopted {
    /// The key of the adoption (the text that starts the node's wait).
    pub key: Key,
    /// The text that the adoption must have.
    pub text: Arc<str>,
    /// Smallest age of the adoption in milliseconds: the length of the wait.
    pub age_ms: u64,
}

impl Command {
    /// Whether this is a release. A release changes only the client's own key, so it may also be sent to a suspended
    /// node, and again after a failure.
    pub const fn is_release(&self) -> bool {
        matches!(
            self,
            Self::Release { .. }
                | Self::ReleaseShared { .. }
                | Self::GiveBack { .. }
                | Self::ReleaseTaken { .. }
                | Self::Withdraw { .. }
        )
    }

    /// The value that is unique to the attempt behind this command; `None` if the command has no such value.
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
            | Self::Release { value, .. }
            | Self::Attach { value, .. }
            | Self::AttachFenced { value, .. }
            | Self::GiveBack { value, .. } => Some(value),
            Self::Take { taken, .. }
            | Self::ExtendTaken { taken, .. }
            | Self::ReleaseTaken { taken, .. } => Some(&taken.nonce),
            _ => None,
        }
    }

    /// Whether the answer may be a vote, or may prolong or end one. Such answers count only if the node has its marker
    /// afterwards (S9).
    pub const fn is_about_votes(&self) -> bool {
        let changes_a_vote = matches!(
            self,
            Self::Raise { .. }
                | Self::Extend { .. }
                | Self::ExtendFenced { .. }
                | Self::ExtendShared { .. }
                | Self::Downgrade { .. }
                | Self::ExtendTaken { .. }
        );
        changes_a_vote || self.sets_a_lock()
    }

    /// Whether the command sets a lock. Such a command must not follow the lock's release, because no later command
    /// would delete the key.
    pub const fn sets_a_lock(&self) -> bool {
        matches!(
            self,
            Self::Acquire { .. }
                | Self::Heal { .. }
                | Self::AcquireFenced { .. }
                | Self::HealFenced { .. }
                | Self::AcquireShared { .. }
                | Self::HealShared { .. }
                | Self::Attach { .. }
                | Self::AttachFenced { .. }
                | Self::Take { .. }
        )
    }
}
