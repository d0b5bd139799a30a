//! The reasons why a reply, or its absence, shows nothing about the key.

use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;

/// The reason why a reply, or its absence, shows nothing about the key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Failure {
    kind: FailureKind,
    /// The detail has its own allocation, so that a failure stays small, because each record of an attempt has room for
    /// a failure of each node.
    detail: Option<Arc<Detail>>,
    sent: bool,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
struct Detail {
    message: Option<Arc<str>>,
    clears_in: Option<Duration>,
    difference: Option<Difference>,
}

/// A setting in which the clients that use a node differ.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Difference {
    /// The other clients have other nodes, another quorum or another longest ttl: the text of their settings, which
    /// other clients wrote.
    Settings(Arc<str>),
    /// The other clients use another database.
    Database,
}

impl Failure {
    /// A failure of a command that may have reached the node.
    pub const fn new(kind: FailureKind) -> Self {
        Self { kind, detail: None, sent: true }
    }

    /// A failure of a command that was certainly not executed: the command never left this process, or the node refused
    /// it.
    pub const fn unsent(kind: FailureKind) -> Self {
        Self { kind, detail: None, sent: false }
    }

    /// Adds the message of the node or the operating system, which must not contain a secret.
    #[must_use]
    pub fn with_detail(mut self, message: impl Into<Arc<str>>) -> Self {
        self.detail_mut().message = Some(message.into());
        self
    }

    /// Adds the time after which the cause ends by itself.
    #[must_use]
    pub fn clearing_in(mut self, time: Duration) -> Self {
        self.detail_mut().clears_in = Some(time);
        self
    }

    /// Adds the setting in which the clients differ.
    #[must_use]
    pub fn with_difference(mut self, difference: Difference) -> Self {
        self.detail_mut().difference = Some(difference);
        self
    }

    /// The setting in which this client and the other clients of the node differ; `None` if they do not, or if the
    /// node's key is not one that this version writes.
    pub fn difference(&self) -> Option<&Difference> {
        self.detail.as_ref()?.difference.as_ref()
    }

    fn detail_mut(&mut self) -> &mut Detail {
        Arc::make_mut(self.detail.get_or_insert_default())
    }

    /// The time from the failure until the cause ends by itself, if that is known. If the node is in quarantine, this
    /// is the time until its votes count.
    pub fn clears_in(&self) -> Option<Duration> {
        self.detail.as_ref()?.clears_in
    }

    /// Returns the same failure for a command that was certainly not executed.
    pub(crate) fn unexecuted(self) -> Self {
        Self { sent: false, ..self }
    }

    /// Returns the same failure for a command that may have been executed.
    pub(crate) fn executed(self) -> Self {
        Self { sent: true, ..self }
    }

    /// The kind of failure.
    pub const fn kind(&self) -> FailureKind {
        self.kind
    }

    /// The message of the node or the operating system; `None` without a message.
    pub fn detail(&self) -> Option<&str> {
        self.detail.as_ref()?.message.as_deref()
    }

    /// Whether the node may have executed the command.
    pub const fn may_have_been_executed(&self) -> bool {
        self.sent
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        match self.detail() {
            Some(name) if self.kind == FailureKind::MissingCommand => write!(f, " {name}"),
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

/// The kinds of failure that callers distinguish.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum FailureKind {
    /// There is no connection, or the connection broke.
    Unreachable,
    /// No connection can be opened, because this process or machine has no file descriptor, thread or memory left.
    Exhausted,
    /// The connection was not opened within the connect timeout.
    ConnectTimeout,
    /// There was no reply within the node timeout.
    Silent,
    /// The node is suspended, because it was silent for too long: only probes and releases are sent.
    Suspended,
    /// The queue of commands to this node is full.
    QueueFull,
    /// The user name or the password is wrong or missing.
    Unauthenticated,
    /// The user lacks a right.
    Forbidden,
    /// The node lacks a command, because it was renamed or disabled.
    MissingCommand,
    /// The node is a replica.
    ReadOnly,
    /// The node is loading data.
    Loading,
    /// The node is a replica that lost its master.
    MasterDown,
    /// The node is out of memory.
    OutOfMemory,
    /// The node refuses writes because it cannot persist them.
    CannotPersist,
    /// The node runs a long script.
    Busy,
    /// The node's cluster or a proxy redirects or refuses the key.
    Redirected,
    /// The reply does not fit the command.
    Protocol,
    /// The node has pushed too much, so the client has closed the connection. The client connects again later.
    Flooding,
    /// The node replied with another error.
    Rejected,
    /// The node was started, lost its data, or came into use recently, so clients may hold locks that are not in its
    /// data (S10).
    Quarantined,
    /// The node's votes are worthless: it is a replica, part of a cluster, or evicts keys.
    UnsafeNode,
    /// The node's marker names other nodes, another quorum or another `max_ttl` than this client has (S17).
    OtherConfiguration,
    /// The node is the same server as another node of the list (S3).
    SameServer,
    /// The client does not know yet whether the node's votes count (S9).
    Unverified,
    /// Too few replicas of the node have acknowledged the vote in time (S35).
    Unacknowledged,
}

impl FailureKind {
    /// Whether the node could not be reached.
    pub const fn is_about_reach(self) -> bool {
        matches!(self, Self::Unreachable | Self::Exhausted | Self::ConnectTimeout | Self::Suspended)
    }

    /// Whether only a person can fix this, so an immediate retry is useless.
    pub const fn is_about_rights(self) -> bool {
        matches!(self, Self::Unauthenticated | Self::Forbidden | Self::MissingCommand)
    }

    /// Whether the node answers, but its votes do not count.
    pub const fn is_about_trust(self) -> bool {
        matches!(
            self,
            Self::Quarantined
                | Self::UnsafeNode
                | Self::OtherConfiguration
                | Self::SameServer
                | Self::Unverified
        )
    }

    /// Whether the node's votes do not count, and waiting does not change that.
    pub const fn is_for_good(self) -> bool {
        matches!(self, Self::UnsafeNode | Self::OtherConfiguration | Self::SameServer)
    }

    /// Whether the clients of a lock have different settings. No vote of any node counts until a person corrects that.
    pub const fn is_disagreement(self) -> bool {
        matches!(self, Self::OtherConfiguration | Self::SameServer)
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // In a message these words follow the name of one node or of several nodes, so they must fit both.
        f.write_str(match self {
            Self::Unreachable => "unreachable",
            Self::Exhausted => "no connection",
            Self::ConnectTimeout => "no connection in time",
            Self::Silent => "no answer in time",
            Self::Suspended => "suspended",
            Self::QueueFull => "queue is full",
            Self::Unauthenticated => "not authenticated",
            Self::Forbidden => "not allowed",
            Self::MissingCommand => "the server has no command",
            Self::ReadOnly => "read-only replica",
            Self::Loading => "loading data",
            Self::MasterDown => "replica without its master",
            Self::OutOfMemory => "out of memory",
            Self::CannotPersist => "cannot persist, writes refused",
            Self::Busy => "busy with a script",
            Self::Redirected => "key redirected",
            Self::Protocol => "answered out of protocol",
            Self::Flooding => "shut out for flooding",
            Self::Rejected => "answered with an error",
            Self::Quarantined => "quarantined",
            Self::UnsafeNode => "refused as unsafe",
            Self::OtherConfiguration => "another configuration",
            Self::SameServer => "the same server as another node",
            Self::Unverified => "not verified",
            Self::Unacknowledged => "not acknowledged by its replicas in time",
        })
    }
}
