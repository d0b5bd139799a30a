//! The commands to a node, and the three kinds of answer: yes, a definite no, and a failure.

mod answer;
mod failure;
mod holding;
mod script;

use alloc::sync::Arc;

use crate::ids::Ticket;
use crate::keys::{Keys, Mode, TakenFrom};
use crate::token::{Key, Value};

pub use self::answer::Answer;
pub use self::failure::{Difference, Failure, FailureKind};
pub use self::holding::{Holding, Reader};
pub use self::script::Script;

/// A command to one node, which executes it in one atomic step.
///
/// A command about a lock names all keys of the lock. Its conditions apply to each of the keys, unless stated
/// otherwise. A command has a form for each kind of lock that it exists for. The form's description says how it differs
/// from the plain form.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Command {
    /// Sets the keys if all of them are absent, with this ttl: `SET key value NX PX ttl_ms` for one key.
    ///
    /// Answers: [`Answer::Granted`], or [`Answer::Refused`] if nothing is written.
    Acquire {
        /// The keys on the node.
        keys: Keys,
        /// The value, which the node always compares as a whole.
        value: Value,
        /// Time to live in milliseconds.
        ttl_ms: u64,
        /// The kind of lock.
        form: AcquireForm,
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
        /// The kind of lock.
        form: HealForm,
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
        /// The kind of lock.
        form: ExtendForm,
    },
    /// Deletes the keys that hold this value.
    ///
    /// Answers: [`Answer::Deleted`] if all keys held it. Otherwise [`Answer::Other`] if a key holds another value, or
    /// [`Answer::Absent`].
    Release {
        /// The keys on the node.
        keys: Keys,
        /// The value, which the node always compares as a whole.
        value: Value,
        /// The kind of lock.
        form: ReleaseForm,
    },
    /// Replaces the value `from` of a lock by `value`, under all keys or none. The vote lasts for the ttl from now. No
    /// key expires earlier than before.
    ///
    /// Answers: [`Answer::Granted`]. If nothing is written: [`Answer::Other`] if a key is held by another value,
    /// otherwise [`Answer::Absent`].
    Attach {
        /// The keys on the node.
        keys: Keys,
        /// The value that the keys must hold.
        from: Value,
        /// The new value.
        value: Value,
        /// Time to live in milliseconds.
        ttl_ms: u64,
        /// The kind of lock.
        form: AttachForm,
    },
    /// Undoes an [`Command::Attach`]: replaces `value` by `to`, under all keys or none. The expiry stays.
    ///
    /// Answers: [`Answer::Deleted`] if the keys no longer hold `value`. If nothing is written: [`Answer::Other`] or
    /// [`Answer::Absent`].
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

/// The kind of lock that [`Command::Acquire`] sets.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AcquireForm {
    /// A writer.
    Plain,
    /// If the lock is granted, the same atomic step raises the counters: `c := max(F + 1, floor, min(proposal,
    /// TIME + 1 h))`, `F := c`. F is the largest of the keys' counters, TIME the node's clock in microseconds, and the
    /// floor the smallest number that the node's marker allows.
    ///
    /// Answers: [`Answer::GrantedFenced`] with c, or [`Answer::RefusedFenced`].
    Fenced {
        /// The lock's counters of fencing tokens.
        counter: Counter,
        /// The client's proposal for c, the new number of the counters.
        proposal: u64,
    },
    /// Adds a reader to the keys for the ttl. Each key must be absent or held by readers alone, no waiting writer may
    /// have an intent for any of the keys, and this value must not be among the readers.
    ///
    /// If the value is there already, the answer is the failure [`FailureKind::SameServer`]: each attempt has its own
    /// value, so two nodes of the list are this server.
    Shared {
        /// The keys of waiting writers' intents.
        intents: Keys,
    },
    /// Sets the lock's key to the caller's value, and the key of the nonce to `value`, if the lock's key is absent. An
    /// equal value in the lock's key refuses the lock, too.
    Taken(Arc<TakenFrom>),
}

/// The kind of lock that [`Command::Heal`] restores. A lock with a value that the caller chose is not healed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum HealForm {
    /// A writer.
    Plain,
    /// Only if no counter is above `to`. The counters are set to `to` (S23).
    ///
    /// Answers: [`Answer::GrantedFenced`] with `to`. If nothing is written: [`Answer::Refused`], or
    /// [`Answer::Superseded`] if a counter is above `to`.
    Fenced {
        /// The lock's counters of fencing tokens.
        counter: Counter,
        /// The lock's fencing token.
        to: u64,
    },
    /// Adds a reader as [`AcquireForm::Shared`] does, but ignores intents. If the value is among the readers, it is
    /// extended by the ttl from now, and never shortened. If a key holds this value as a writer's, the writer becomes a
    /// reader.
    Shared,
}

/// The kind of lock that [`Command::Extend`] extends.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ExtendForm {
    /// A writer.
    Plain,
    /// Also prolongs the life of the counters.
    Fenced {
        /// The lock's counters of fencing tokens.
        counter: Counter,
    },
    /// Extends the reader with this value. The reader ends no earlier than before. If a key holds the value as a
    /// writer's, the writer becomes a reader.
    Shared,
    /// Extends the key with the caller's value, and the nonce with it: afterwards the key expires no earlier than
    /// before, and the nonce at the same time. With `by_value`, the nonce on the node is not compared, and is replaced.
    /// If nothing is written, the answer is [`Answer::Absent`] if the lock's key is absent, otherwise
    /// [`Answer::Other`], also if the nonce is absent or another one.
    Taken(Arc<TakenFrom>),
}

/// The kind of lock that [`Command::Release`] removes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ReleaseForm {
    /// A writer, with a fencing token or without. Without `tell`, a node may answer [`Answer::NotOurs`] instead of
    /// [`Answer::Other`] and [`Answer::Absent`].
    Plain {
        /// Whether the answer must distinguish an absent key from another value. A native compare-and-delete command
        /// does not distinguish them, so the client runs the release script after it. The script's answer shows the
        /// keys a moment after the native command.
        tell: bool,
    },
    /// Removes this value from the readers of the keys, and deletes the keys that hold it as a writer's.
    ///
    /// Answers: [`Answer::Deleted`] if it was under all keys. Otherwise [`Answer::Other`] if a key is held by another
    /// value, or [`Answer::Absent`].
    Shared,
    /// Deletes the key with the caller's value, and the nonce. With `by_value`, the nonce on the node is not compared.
    /// If nothing is deleted, the answer is as for [`ExtendForm::Taken`].
    Taken(Arc<TakenFrom>),
}

/// The kind of lock that [`Command::Attach`] takes over.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AttachForm {
    /// A writer.
    Plain,
    /// The same atomic step raises the counters, as that of [`AcquireForm::Fenced`] does. The answers are the same,
    /// too.
    Fenced {
        /// The lock's counters of fencing tokens.
        counter: Counter,
        /// The client's proposal for the new number of the counters.
        proposal: u64,
    },
    /// A reader.
    Shared,
}

impl From<Mode> for AttachForm {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => Self::Plain,
            Mode::Shared => Self::Shared,
        }
    }
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
        matches!(self, Self::Release { .. } | Self::GiveBack { .. } | Self::Withdraw { .. })
    }

    /// Whether the command prolongs, or restores, a lock that no guard of this client holds: an extension by text, an
    /// attach, or a give-back. An extension of a held lock has a round above zero.
    pub const fn prolongs_without_guard(&self, ticket: &Ticket) -> bool {
        matches!(self, Self::Attach { .. } | Self::GiveBack { .. })
            || matches!(self, Self::Extend { .. }) && ticket.round == 0
    }

    /// The keys of the lock that this command is about, and the value that is unique to the attempt behind it. `None`
    /// if the command has no such value.
    pub const fn subject(&self) -> Option<(&Keys, &Value)> {
        match self {
            Self::Acquire { keys, value, .. }
            | Self::Heal { keys, value, .. }
            | Self::Extend { keys, value, .. }
            | Self::Release { keys, value, .. }
            | Self::Attach { keys, value, .. }
            | Self::GiveBack { keys, value, .. }
            | Self::Raise { keys, value, .. }
            | Self::Downgrade { keys, value } => Some((keys, value)),
            Self::Inspect { .. }
            | Self::Watch { .. }
            | Self::Announce { .. }
            | Self::Withdraw { .. }
            | Self::Identify
            | Self::Adopt { .. }
            | Self::Mark { .. } => None,
        }
    }

    /// For a lock with the caller's value: the value, and the key of the nonce.
    pub fn taken(&self) -> Option<&TakenFrom> {
        if let Self::Acquire { form: AcquireForm::Taken(from), .. }
        | Self::Extend { form: ExtendForm::Taken(from), .. }
        | Self::Release { form: ReleaseForm::Taken(from), .. } = self
        {
            Some(from)
        } else {
            None
        }
    }

    /// Whether the answer may be a vote, or may prolong or end one. Such answers count only if the node has its marker
    /// afterwards (S9).
    pub const fn is_about_votes(&self) -> bool {
        matches!(self, Self::Raise { .. } | Self::Extend { .. } | Self::Downgrade { .. })
            || self.sets_a_lock()
    }

    /// Whether the command sets a lock. Such a command must not follow the lock's release, because no later command
    /// would delete the key.
    pub const fn sets_a_lock(&self) -> bool {
        matches!(self, Self::Acquire { .. } | Self::Heal { .. } | Self::Attach { .. })
    }
}
