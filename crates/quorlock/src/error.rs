//! Errors that tell the story, node by node.

mod acquire;
mod group;
mod node;

use std::sync::Arc;
use std::time::Duration;

use quorlock_core::{LossCause, QuorumError, TimingError};

use self::node::list;
use crate::node::NodeConfigError;
use crate::text::quoted;

pub(crate) use self::acquire::Impatient;
pub use self::acquire::{AcquireError, AcquireFailure};
pub use self::group::{group, names};
pub use self::node::list as list_nodes;
pub use self::node::{Holder, HolderKind, NodeAnswer};
pub(crate) use self::node::{grouped, most_frequent};

/// Why a call was refused before anything was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRequest {
    /// The resource has no name.
    #[error("the resource has no name; an empty one cannot be locked")]
    ResourceEmpty,
    /// One resource is named twice.
    #[error("the resource {} is named twice", quoted(.resource))]
    ResourceTwice {
        /// The resource's name.
        resource: String,
    },
    /// There are no resources, or too many for one lock.
    #[error("one lock is about 1 to {max} resources, not {count}")]
    ResourceCount {
        /// How many were named.
        count: usize,
        /// How many there may be.
        max: usize,
    },
    /// The resource's name is too long.
    #[error("the resource's name has {bytes} bytes; at most {max} are possible")]
    ResourceTooLong {
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        max: usize,
    },
    /// The resource's name, or the key that it makes with the prefix, might be one of the library's own.
    #[error(
        "the resource's name, with the key prefix before it, must not contain \"quorlock:\", which the library keeps for itself"
    )]
    ResourceReserved,
    /// The owner's description cannot be stored.
    #[error("the owner's description must have at most {max} bytes and no control characters")]
    Owner {
        /// How many bytes it may have.
        max: usize,
    },
    /// Two times do not go together.
    #[error(transparent)]
    Timing(#[from] TimingError),
    /// The bounds of the retry delay are the wrong way round, or no attempt is allowed.
    #[error(
        "retry: the shortest delay ({min:?}) must not be above the longest ({max:?}), and at least one attempt must be allowed"
    )]
    Retry {
        /// The shortest delay.
        min: Duration,
        /// The longest delay.
        max: Duration,
    },
}

/// Why a client could not be built. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A node's configuration is wrong.
    #[error(transparent)]
    Node(#[from] NodeConfigError),
    /// Two nodes have the same address or the same name: one server would vote twice.
    #[error("node {name} is listed twice: {hint}")]
    Duplicate {
        /// The address or name.
        name: String,
        /// What to do.
        hint: &'static str,
    },
    /// There are no nodes, too many, or the quorum does not fit them.
    #[error(transparent)]
    Quorum(#[from] QuorumError),
    /// The defaults for calls are wrong.
    #[error(transparent)]
    Defaults(#[from] InvalidRequest),
    /// The key prefix is too long.
    #[error("the key prefix has {bytes} bytes; at most {max} are possible")]
    PrefixTooLong {
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        max: usize,
    },
    /// Keys with this prefix might be the library's own.
    #[error(
        "the key prefix {} must not contain \"quorlock:\", which the library keeps for itself", quoted(.prefix)
    )]
    PrefixReserved {
        /// The prefix that was given.
        prefix: String,
    },
    /// A setting names a node that is not in the list.
    #[error("no node has the name {}; the nodes are: {known}", quoted(.name))]
    UnknownNode {
        /// The name that was given.
        name: String,
        /// The nodes' names.
        known: String,
    },
    /// A variable `QUORLOCK_…` cannot be used; see [`ClientBuilder::from_env`](crate::ClientBuilder::from_env).
    #[error("{variable}: {reason}")]
    Environment {
        /// The name of the variable, or of several between commas.
        variable: String,
        /// What is wrong with it, without a secret.
        reason: String,
    },
    /// There is no tokio runtime here to run the client's task on.
    #[error(
        "no tokio runtime here: build the client inside one, or give it a thread of its own with own_thread(true)"
    )]
    NoRuntime,
    /// The client's own thread could not be started.
    #[error("the client's thread could not be started: {reason}")]
    Thread {
        /// What the operating system said.
        reason: String,
    },
}

impl BuildError {
    /// The options of the command line that the error is about, by their long names.
    #[doc(hidden)]
    pub fn settings(&self) -> &'static [&'static str] {
        match self {
            Self::Node(NodeConfigError::Tls { reason, .. })
                if reason.starts_with("tls-server-name") =>
            {
                &["tls-server-name"]
            }
            Self::Node(NodeConfigError::Tls { .. }) => &["tls-ca", "tls-cert", "tls-key"],
            Self::Node(_) | Self::Duplicate { .. } => &["node"],
            Self::Quorum(_) => &["quorum", "node"],
            Self::PrefixTooLong { .. } | Self::PrefixReserved { .. } => &["key-prefix"],
            Self::UnknownNode { .. } => &["durable"],
            Self::Defaults(InvalidRequest::Owner { .. }) => &["label"],
            Self::Defaults(InvalidRequest::Timing(error)) => match error {
                TimingError::MaxTtlTooLong { .. } => &["max-ttl"],
                TimingError::TtlTooLong { .. } => &["ttl", "max-ttl"],
                TimingError::NodeTimeout { .. } => &["node-timeout", "ttl", "max-ttl"],
                TimingError::ConnectTimeoutZero => &["connect-timeout"],
                TimingError::HoldTooShort { .. } => &["max-hold", "ttl"],
                _ => &["ttl"],
            },
            _ => &[],
        }
    }
}

impl From<TimingError> for BuildError {
    fn from(error: TimingError) -> Self {
        Self::Defaults(error.into())
    }
}

/// Why a lock was not extended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// The lock is lost, for ever. Its keys are being released everywhere.
    #[error("lock {} is lost: {}", quoted(.resource), describe(.cause))]
    Lost {
        /// The resource's name.
        resource: Arc<str>,
        /// Why it was lost.
        cause: LossCause,
    },
    /// The extension would reach past `max_hold`. Nothing was sent; the lock is held until its
    /// validity ends.
    #[error(
        "lock {} not extended: that would reach past max_hold", quoted(.resource)
    )]
    HoldLimit {
        /// The resource's name.
        resource: Arc<str>,
    },
    /// Too few nodes confirmed in time. Nothing was deleted: the lock is held as long as before,
    /// or longer where nodes did confirm.
    #[error(
        "lock {} not extended, still held: {}", quoted(.resource), list(.nodes)
    )]
    Unconfirmed {
        /// The resource's name.
        resource: Arc<str>,
        /// What each node said.
        nodes: Vec<NodeAnswer>,
    },
}

pub(crate) fn describe(cause: &LossCause) -> &'static str {
    match cause {
        LossCause::Expired => "its validity ran out before enough nodes confirmed an extension",
        LossCause::KeyGone => "its key is gone from so many nodes that no quorum is left",
        LossCause::KeyOverwritten => {
            "its key holds another value on so many nodes, or is gone from them, that no quorum is left"
        }
        LossCause::ClockJumped => {
            "the wall clock moved ahead past the end of its validity: the clock was set, or the machine \
             was paused"
        }
        LossCause::HoldLimit => "it was held for as long as max_hold allows",
        LossCause::Shutdown => "the client was shut down",
        _ => "unknown",
    }
}

/// Why work under a lock came to nothing.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HoldError {
    /// The lock was not acquired; the work was not begun.
    #[error(transparent)]
    NotAcquired(#[from] AcquireError),
    /// The lock was lost before the work was done. The work was stopped where it stood; if it was
    /// done by then, it may have been done without the lock.
    #[error(
        "lock {} was lost during the work: {}{}", quoted(.resource), describe(.cause), why(.nodes)
    )]
    Lost {
        /// The resource's name.
        resource: Arc<str>,
        /// Why it was lost.
        cause: LossCause,
        /// The nodes that did not confirm the lock when it was last extended, and what they said.
        nodes: Vec<NodeAnswer>,
    },
}

fn why(nodes: &[NodeAnswer]) -> String {
    if nodes.is_empty() { String::new() } else { format!("; {}", grouped(nodes.iter())) }
}

/// A client did not get rid of all it owed in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shut down with {owed} releases still owed; their keys are gone after their ttl")]
pub struct ShutdownError {
    /// How many tokens were still being released or owed, and how many intents of waiting writers were being taken back.
    pub owed: usize,
}
