//! Why a node gave no answer that says anything about the key.

use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;

/// Why a node gave no answer that says anything about the key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Failure {
    kind: FailureKind,
    detail: Option<Arc<str>>,
    sent: bool,
    clears_in: Option<Duration>,
}

impl Failure {
    /// A failure of a command that may have reached the node.
    pub const fn new(kind: FailureKind) -> Self {
        Self { kind, detail: None, sent: true, clears_in: None }
    }

    /// A failure of a command that certainly was not executed: it never left this process, or the
    /// node itself declined it.
    pub const fn unsent(kind: FailureKind) -> Self {
        Self { kind, detail: None, sent: false, clears_in: None }
    }

    /// Adds what the node or the operating system said. It must not contain a secret.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<Arc<str>>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Adds in what time the cause will be gone by itself.
    #[must_use]
    pub const fn clearing_in(mut self, time: Duration) -> Self {
        self.clears_in = Some(time);
        self
    }

    /// In what time the cause will be gone by itself, counted from the failure, if that is known: of a
    /// node in quarantine, when its votes count.
    pub const fn clears_in(&self) -> Option<Duration> {
        self.clears_in
    }

    /// The same, of a command that was not executed for certain.
    pub(crate) fn unexecuted(self) -> Self {
        Self { sent: false, ..self }
    }

    /// The same, of a command that may have been executed.
    pub(crate) fn executed(self) -> Self {
        Self { sent: true, ..self }
    }

    /// The kind of failure.
    pub const fn kind(&self) -> FailureKind {
        self.kind
    }

    /// The message of the node or the operating system.
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

/// The kinds of failure a caller may want to tell apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum FailureKind {
    /// There is no connection, or it broke.
    Unreachable,
    /// No connection can be made, because this process or machine has no file descriptor, thread or memory left.
    Exhausted,
    /// The connection was not made within its bound.
    ConnectTimeout,
    /// No answer within the node timeout.
    Silent,
    /// The node has been silent too long: only probes and releases are sent.
    Suspended,
    /// More commands wait for this node than its queue holds.
    QueueFull,
    /// Wrong or missing user name or password.
    Unauthenticated,
    /// The user lacks a right that is needed.
    Forbidden,
    /// The node does not have a command that is needed: it was renamed or disabled.
    MissingCommand,
    /// The node is a replica.
    ReadOnly,
    /// The node loading data.
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
    /// The node has pushed too much, so the client has closed the connection. The client connects again later.
    Flooding,
    /// Any other error that the node answered.
    Rejected,
    /// The node was started, or lost its data, or was taken into use, so short a time ago that locks
    /// may be held of which it knows nothing (S10).
    Quarantined,
    /// The node's role or settings make its votes worthless: a replica, part of a cluster, or a server that evicts keys.
    UnsafeNode,
    /// The node is marked for clients with other nodes, another quorum or another longest ttl (S17).
    OtherConfiguration,
    /// The node is the same server as another one of the list (S3).
    SameServer,
    /// It is not known at the moment whether the node's votes count (S9).
    Unverified,
}

impl FailureKind {
    /// The node could not be reached at all.
    pub const fn is_about_reach(self) -> bool {
        matches!(self, Self::Unreachable | Self::Exhausted | Self::ConnectTimeout | Self::Suspended)
    }

    /// Only a person can fix this; to try again at once is useless.
    pub const fn is_about_rights(self) -> bool {
        matches!(self, Self::Unauthenticated | Self::Forbidden | Self::MissingCommand)
    }

    /// The node answers, but its votes do not count.
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

    /// The node's votes do not count, and waiting does not change that.
    pub const fn is_for_good(self) -> bool {
        matches!(self, Self::UnsafeNode | Self::OtherConfiguration | Self::SameServer)
    }

    /// The clients of a lock do not agree about its nodes: no vote of any node is worth anything
    /// until a person has corrected that.
    pub const fn is_disagreement(self) -> bool {
        matches!(self, Self::OtherConfiguration | Self::SameServer)
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Behind the name of one node or of several.
        f.write_str(match self {
            Self::Unreachable => "unreachable",
            Self::Exhausted => "no connection",
            Self::ConnectTimeout => "no connection in time",
            Self::Silent => "no answer in time",
            Self::Suspended => "not asked for now",
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
        })
    }
}
