//! The errors of the public API.

mod acquire;
mod lease;
mod node;

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::{LossCause, QuorumError, TimingError};

use self::node::list;
use crate::node::NodeConfigError;
use crate::os_limits::explained;
use crate::text::quoted;

pub use self::acquire::{AcquireError, AcquireFailure};
pub use self::lease::{DetachError, LeaseError};
pub use self::node::list as list_nodes;
pub use self::node::{Holder, HolderKind, NodeAnswer, confirmations};
pub(crate) use self::node::{grouped, most_frequent};

/// The reason why a call was refused before anything was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRequest {
    /// The resource has no name.
    #[error("the resource has no name; an empty one cannot be locked")]
    ResourceEmpty,
    /// The call names one resource twice.
    #[error("the resource {} is named twice", quoted(.resource))]
    ResourceTwice {
        /// The resource's name.
        resource: String,
    },
    /// There are no resources, or too many for one lock.
    #[error("one lock is about 1 to {max} resources, not {count}")]
    ResourceCount {
        /// Number of resources that the call names.
        count: usize,
        /// The largest number of resources.
        max: usize,
    },
    /// The resource's name is too long.
    #[error("the resource's name has {bytes} bytes; at most {max} are possible")]
    ResourceTooLong {
        /// Bytes in the name.
        bytes: usize,
        /// The largest number of bytes.
        max: usize,
    },
    /// The resource's name, or its key, contains `quorlock:`, as the library's own keys do.
    #[error(
        "the resource's name, with the key prefix before it, must not contain \"quorlock:\", which the library keeps for itself"
    )]
    ResourceReserved,
    /// The owner's description cannot be stored.
    #[error("the owner's description must have at most {max} bytes and no control characters")]
    Owner {
        /// The largest number of bytes.
        max: usize,
    },
    /// The value is empty or too long.
    #[error("the value has {bytes} bytes; 1 to {max} are possible")]
    Value {
        /// Bytes in the value.
        bytes: usize,
        /// The largest number of bytes.
        max: usize,
    },
    /// Two times, such as the ttl and the node timeout, do not fit each other.
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

/// The cause of an error in words, and the underlying error.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text}")]
pub struct Reason {
    pub(crate) text: String,
    pub(crate) source: Option<Source>,
}

/// The error that caused another error.
pub(crate) type Source = Arc<dyn Error + Send + Sync>;

impl Reason {
    pub(crate) fn new(text: String, source: impl Error + Send + Sync + 'static) -> Self {
        Self { text, source: Some(Arc::new(source)) }
    }
}

impl<T: Into<String>> From<T> for Reason {
    fn from(text: T) -> Self {
        Self { text: text.into(), source: None }
    }
}

/// The reason why a client was not built. Nothing was sent.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A node's configuration is wrong.
    #[error(transparent)]
    Node(#[from] NodeConfigError),
    /// Two nodes have the same address, so one server would vote twice.
    #[error(
        "node {address} is listed twice: two nodes have this address; every node must be a server of its own"
    )]
    DuplicateAddress {
        /// The address that both nodes have.
        address: String,
    },
    /// Two nodes have the same name.
    #[error(
        "node {name} is listed twice: two nodes have this name; give each a name of its own, as in NAME=redis://HOST"
    )]
    DuplicateName {
        /// The name that both nodes have.
        name: String,
    },
    /// There are no nodes, too many, or the quorum does not fit them.
    #[error(transparent)]
    Quorum(#[from] QuorumError),
    /// The default options that the builder sets for calls are invalid.
    #[error(transparent)]
    Defaults(#[from] InvalidRequest),
    /// The key prefix is too long.
    #[error("the key prefix has {bytes} bytes; at most {max} are possible")]
    PrefixTooLong {
        /// Bytes in the prefix.
        bytes: usize,
        /// The largest number of bytes.
        max: usize,
    },
    /// The key prefix contains `quorlock:`, as the library's own keys do.
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
        /// The name in the setting.
        name: String,
        /// The names of all nodes, as the message lists them.
        known: String,
    },
    /// A node has replicas ([`NodeConfig::replicas`](crate::node::NodeConfig::replicas)), and another setting does not
    /// allow that.
    #[error("node {node} has replicas={replicas}, {reason}")]
    Replicas {
        /// The node's name.
        node: String,
        /// The number of the node's replicas.
        replicas: u32,
        /// The setting that does not allow replicas, and the remedy.
        reason: &'static str,
    },
    /// A setting of the environment or of the configuration file cannot be used; see
    /// [`ClientBuilder::from_env`](crate::ClientBuilder::from_env).
    #[error("{origin}: {reason}")]
    Setting {
        /// The origin of the value: the name of a variable, or a key and its file, such as
        /// `max-ttl in /etc/quorlock/config.toml`. Commas separate several.
        origin: String,
        /// The reason in words. It never contains a password.
        reason: String,
        /// The underlying error: about the file that the setting names, or about the setting.
        source: Option<Arc<dyn Error + Send + Sync>>,
    },
    /// The client's task needs a tokio runtime, and `build` was called outside of one.
    #[error(
        "no tokio runtime here: build the client inside one, or give it a thread of its own with own_thread(true)"
    )]
    NoRuntime,
    /// The client's own thread could not be started.
    #[error("the client's thread could not be started: {}", explained(.source))]
    Thread {
        /// The error of the operating system.
        source: Arc<io::Error>,
    },
}

impl BuildError {
    pub(crate) fn setting(origin: impl Into<String>, reason: impl Into<Reason>) -> Self {
        let Reason { text: reason, source } = reason.into();
        Self::Setting { origin: origin.into(), reason, source }
    }

    /// Returns the options that caused the error, by their long names on the command line.
    #[doc(hidden)]
    pub fn settings(&self) -> &'static [&'static str] {
        match self {
            Self::Node(NodeConfigError::Tls { reason, .. })
                if reason.starts_with("tls-server-name") =>
            {
                &["tls-server-name"]
            }
            Self::Node(NodeConfigError::Tls { .. }) => &["tls-ca", "tls-cert", "tls-key"],
            Self::Node(NodeConfigError::PasswordFile { .. }) => &["password-file"],
            Self::Node(_) | Self::DuplicateAddress { .. } | Self::DuplicateName { .. } => &["node"],
            Self::Quorum(_) => &["quorum", "node"],
            Self::PrefixTooLong { .. } | Self::PrefixReserved { .. } => &["key-prefix"],
            Self::UnknownNode { .. } => &["durable"],
            Self::Replicas { .. } => &["node"],
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

/// The reason why a lock was not extended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// The lock is lost and never becomes valid again. The client releases its keys on all nodes.
    #[error("lock {} is lost: {cause}", quoted(.resource))]
    Lost {
        /// The resource's name.
        resource: Arc<str>,
        /// The cause of the loss.
        cause: LossCause,
    },
    /// The extension would reach past `max_hold`, so nothing was sent. The lock is held until its validity ends.
    #[error(
        "lock {} not extended: that would reach past max_hold", quoted(.resource)
    )]
    HoldLimit {
        /// The resource's name.
        resource: Arc<str>,
    },
    /// Too few nodes confirmed the extension in time. No key was deleted. The lock is held for as long as before, or
    /// longer if some nodes confirmed.
    #[error(
        "lock {} not extended, still held: {}", quoted(.resource), list(.nodes)
    )]
    Unconfirmed {
        /// The resource's name.
        resource: Arc<str>,
        /// The answer of each node.
        nodes: Vec<NodeAnswer>,
    },
}

/// The reason why work under a lock was not completed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HoldError {
    /// The lock was not acquired, so the work did not start.
    #[error(transparent)]
    NotAcquired(#[from] AcquireError),
    /// The lock was lost during the work. The work was stopped at its current `await`, or it ran to its end without
    /// another `await`, and a part of it may have been done without the lock.
    #[error(
        "lock {} was lost during the work: {cause}{}", quoted(.resource), why(.nodes)
    )]
    Lost {
        /// The resource's name.
        resource: Arc<str>,
        /// The cause of the loss.
        cause: LossCause,
        /// The nodes that did not confirm the last extension, with their answers.
        nodes: Vec<NodeAnswer>,
    },
}

fn why(nodes: &[NodeAnswer]) -> String {
    if nodes.is_empty() { String::new() } else { format!("; {}", grouped(nodes.iter())) }
}

/// A shutdown ended before the nodes had confirmed all releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shut down with {owed} releases still owed; their keys are gone after their ttl")]
pub struct ShutdownError {
    /// Number of releases, of locks and of failed attempts, that are in flight or are to be sent again. Includes the
    /// withdrawals of the intents of waiting writers.
    pub owed: usize,
}

/// Groups nodes by their answers, in the order of each group's first node. A group has the names of the nodes with the
/// same answer, and the answer of its first node. Errors and the command line list nodes with this function.
pub fn group<N, T>(
    nodes: impl IntoIterator<Item = (N, T)>,
    is_same: impl Fn(&T, &T) -> bool,
) -> Vec<(Vec<N>, T)> {
    let mut groups: Vec<(Vec<N>, T)> = Vec::new();
    for (node, said) in nodes {
        match groups.iter_mut().find(|(_, other)| is_same(other, &said)) {
            Some((nodes, _)) => nodes.push(node),
            None => groups.push((vec![node], said)),
        }
    }
    groups
}

/// Names nodes in a message: `node a`, or `nodes a, b`.
pub fn names<N: AsRef<str>>(nodes: &[N]) -> String {
    let plural = if nodes.len() == 1 { "" } else { "s" };
    let names: Vec<&str> = nodes.iter().map(AsRef::as_ref).collect();
    format!("node{plural} {}", names.join(", "))
}
