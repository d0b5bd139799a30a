//! What a node is asked, and the three kinds of answer: yes, a definite no, and a failure.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::token::{Key, Value};

/// One command for one node.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Command {
    /// Set the key if it is absent, to expire after the ttl: `SET key value NX PX ttl_ms`.
    /// Answered by [`Answer::Granted`] or [`Answer::Refused`].
    Acquire {
        /// Where.
        key: Key,
        /// The whole value.
        value: Value,
        /// Time to live in milliseconds.
        ttl_ms: u64,
    },
    /// If the key holds this value, make it live for the ttl from now, never shorter than it
    /// would. Answered by [`Answer::Extended`], [`Answer::Absent`] or [`Answer::Other`].
    Extend {
        /// Where.
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
        /// Where.
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
        /// Where.
        key: Key,
    },
    /// Look at the key, and ask to be told, once, when it changes. Answered by
    /// [`Answer::Watched`], or by [`Answer::Seen`] if the node cannot tell.
    Watch {
        /// Where.
        key: Key,
    },
}

impl Command {
    /// A release changes nothing but our own key, so it may be sent where nothing else may: to a
    /// suspended node, and again after a failure.
    pub const fn is_release(&self) -> bool {
        matches!(self, Self::Release { .. })
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
    /// No answer that says anything about the key.
    Failed(Failure),
}

/// What a key looks like from outside.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
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

/// Why a node gave no answer that says anything about the key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Failure {
    kind: FailureKind,
    detail: Option<Arc<str>>,
    sent: bool,
}

impl Failure {
    /// A failure of a command that may have reached the node.
    pub const fn new(kind: FailureKind) -> Self {
        Self { kind, detail: None, sent: true }
    }

    /// A failure of a command that certainly was not executed: it never left this process, or the
    /// node itself declined it.
    pub const fn unsent(kind: FailureKind) -> Self {
        Self { kind, detail: None, sent: false }
    }

    /// Adds what the node or the operating system said. It must not contain a secret.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<Arc<str>>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// What kind of failure it was.
    pub const fn kind(&self) -> FailureKind {
        self.kind
    }

    /// What the node or the operating system said.
    pub fn detail(&self) -> Option<&str> {
        self.detail.as_deref()
    }

    /// The command may have reached the node, and may have been executed there.
    pub const fn may_have_been_executed(&self) -> bool {
        self.sent
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        match &self.detail {
            Some(detail) => write!(f, ": {detail}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Failure({self}, {})", if self.sent { "sent" } else { "unsent" })
    }
}

/// The kinds of failure a caller may want to tell apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum FailureKind {
    /// There is no connection, or it broke.
    Unreachable,
    /// The connection was not made within its bound.
    ConnectTimeout,
    /// No answer within the node timeout.
    Silent,
    /// The node has been silent for so long that nothing is sent to it but a probe.
    Suspended,
    /// More commands wait for this node than its queue holds.
    QueueFull,
    /// Wrong or missing user name or password.
    Unauthenticated,
    /// The user lacks a right that is needed.
    Forbidden,
    /// The node is a replica.
    ReadOnly,
    /// The node is loading its data.
    Loading,
    /// A replica that has lost its master.
    MasterDown,
    /// The node is out of memory.
    OutOfMemory,
    /// The node refuses writes because it cannot persist them.
    CannotPersist,
    /// A script keeps the node busy.
    Busy,
    /// The node's cluster or another layer redirects or refuses the key.
    Redirected,
    /// An answer that does not fit the command.
    Protocol,
    /// Any other error that the node answered.
    Rejected,
}

impl FailureKind {
    /// The node could not be reached at all.
    pub const fn is_about_reach(self) -> bool {
        matches!(self, Self::Unreachable | Self::ConnectTimeout | Self::Suspended)
    }

    /// Only a person can mend this; to try again at once is useless.
    pub const fn is_about_rights(self) -> bool {
        matches!(self, Self::Unauthenticated | Self::Forbidden)
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreachable => "unreachable",
            Self::ConnectTimeout => "no connection in time",
            Self::Silent => "no answer in time",
            Self::Suspended => "suspended for being silent",
            Self::QueueFull => "its queue is full",
            Self::Unauthenticated => "not authenticated",
            Self::Forbidden => "not allowed",
            Self::ReadOnly => "is a read-only replica",
            Self::Loading => "is loading its data",
            Self::MasterDown => "is a replica without its master",
            Self::OutOfMemory => "is out of memory",
            Self::CannotPersist => "cannot persist and refuses writes",
            Self::Busy => "is busy with a script",
            Self::Redirected => "redirects the key",
            Self::Protocol => "answered out of protocol",
            Self::Rejected => "answered with an error",
        })
    }
}
