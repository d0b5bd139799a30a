//! The error of a call for a lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::{FailureKind, Keys, Refusal, RefusalKind};

use super::InvalidRequest;
use super::lease::LeaseError;
use super::node::{Holder, HolderKind, NodeAnswer, asked_nodes, most_frequent};
use crate::client::context::ClientContext;
use crate::text::quoted;

/// The reason why a lock was not acquired.
///
/// The client releases every vote that a node gave or may have given. If a release cannot be sent, its key expires
/// after its ttl.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Another client holds or wants the lock: enough nodes answered, and refused. Or another caller of this process holds
    /// or wants the lock, and the call sent nothing.
    #[error("{0}")]
    Contended(Box<AcquireFailure>),
    /// Too few nodes answered, or too few can be reached at the end of the call. Says nothing about whether the lock is
    /// held.
    #[error("{0}")]
    NoQuorum(Box<AcquireFailure>),
    /// The lease that the call attaches is over: too few nodes still have its value, because it expired or was released.
    #[error("{0}")]
    LeaseOver(Box<AcquireFailure>),
    /// A quorum granted the lock, but so late that too little validity was left.
    #[error("{0}")]
    TooSlow(Box<AcquireFailure>),
    /// Too few nodes are trusted: other nodes have just started, or are no independent masters of these clients. Says
    /// nothing about whether the lock is held. If waiting is enough, [`AcquireError::retry_after`] has the time.
    #[error("{0}")]
    NodesUntrusted(Box<AcquireFailure>),
    /// The client, or the runtime on which it was built, was shut down.
    #[error("lock {} not acquired: the client is shut down", quoted(.resource))]
    Closed {
        /// The resource's name.
        resource: Arc<str>,
    },
    /// The lease cannot be attached by this call. No command about the lock was sent.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The arguments or options of the call are invalid. Nothing was sent.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
}

impl AcquireError {
    pub(crate) fn new(
        resource: Arc<str>,
        (context, needed): (&ClientContext, usize),
        several: Option<&Keys>,
        refusal: Refusal,
    ) -> Self {
        let wrap = match refusal.kind {
            RefusalKind::Contended | RefusalKind::BusyHere => Self::Contended,
            RefusalKind::Gone => Self::LeaseOver,
            RefusalKind::TooSlow => Self::TooSlow,
            RefusalKind::NodesUntrusted => Self::NodesUntrusted,
            RefusalKind::Closed => return Self::Closed { resource },
            _ => Self::NoQuorum,
        };
        let nodes = NodeAnswer::all(&context.names, several, refusal.nodes);
        let failures = || nodes.iter().filter_map(|node| Some((&*node.node, node.failure()?)));
        wrap(Box::new(AcquireFailure {
            resource,
            attempts: refusal.attempts,
            elapsed: refusal.elapsed,
            change: context.init.as_ref().and_then(|init| init.remedy(failures())),
            nodes,
            needed,
            retry_after: refusal.retry_after,
            why: refusal.kind,
        }))
    }

    /// Whether other clients, or callers of this process, hold or want the lock. A network error is no sign of that.
    pub fn is_contended(&self) -> bool {
        matches!(self, Self::Contended(_))
    }

    /// The time from the nodes' last answers until the keys expire on a quorum; `None` if unknown. A holder may
    /// release the lock earlier, or extend it. With too few trusted nodes: the time until enough nodes are.
    pub fn retry_after(&self) -> Option<Duration> {
        self.attempts()?.retry_after
    }

    /// Returns the answer of each node in the last attempt. Empty if the call sent nothing.
    pub fn nodes(&self) -> &[NodeAnswer] {
        self.attempts().map_or(&[], |attempts| &attempts.nodes)
    }

    /// Returns the holder of the lock. If the nodes name different ones, the holder on the most nodes.
    pub fn holder(&self) -> Option<Holder> {
        let attempts = self.attempts()?;
        if attempts.why == RefusalKind::BusyHere {
            return Some(Holder::THIS_PROCESS);
        }
        most_frequent(&attempts.nodes, attempts.needed).map(|(holder, _)| holder)
    }

    /// Whether wrong passwords, missing rights or missing commands alone prevent the lock. Only a person can fix these.
    pub fn is_permission_denied(&self) -> bool {
        self.is_prevented_by(FailureKind::is_about_rights)
    }

    /// Whether this machine has too few file descriptors, threads or memory to connect to a quorum
    /// ([`FailureKind::Exhausted`]). The error then says nothing about the nodes.
    pub fn is_exhausted(&self) -> bool {
        self.is_prevented_by(|kind| kind == FailureKind::Exhausted)
    }

    /// Whether the failures that `such` selects leave fewer nodes than a quorum.
    fn is_prevented_by(&self, such: impl Fn(FailureKind) -> bool) -> bool {
        let (Self::NoQuorum(attempts) | Self::NodesUntrusted(attempts)) = self else {
            return false;
        };
        let failed =
            |node: &&NodeAnswer| node.failure().is_some_and(|failure| such(failure.kind()));
        let without = attempts.nodes.iter().filter(failed).count();
        without > 0 && attempts.nodes.len() - without < attempts.needed
    }

    /// Returns the text of `Display` with this remedy before the answers of the nodes.
    #[doc(hidden)]
    pub fn told_with(&self, remedy: &str) -> String {
        let Some(attempts) = self.attempts() else { return self.to_string() };
        let mut text = String::new();
        // Writing to a string never fails.
        let _ = attempts.write(&mut text, remedy);
        text
    }

    fn attempts(&self) -> Option<&AcquireFailure> {
        match self {
            Self::Contended(attempts)
            | Self::LeaseOver(attempts)
            | Self::NoQuorum(attempts)
            | Self::TooSlow(attempts)
            | Self::NodesUntrusted(attempts) => Some(attempts),
            Self::Closed { .. } | Self::Lease(_) | Self::Invalid(_) => None,
        }
    }
}

/// The history of a call that ended without the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AcquireFailure {
    /// The resource's name.
    pub resource: Arc<str>,
    /// Number of attempts. Zero if this process had just released the lock while other clients wanted the lock: the call
    /// then let them go first, until its wait was over.
    pub attempts: u32,
    /// Time from the beginning of the call until its failure.
    pub elapsed: Duration,
    /// The last answer of each node. Empty if the call sent nothing.
    pub nodes: Vec<NodeAnswer>,
    /// Number of nodes that must grant the lock.
    pub needed: usize,
    /// See [`AcquireError::retry_after`].
    pub retry_after: Option<Duration>,
    why: RefusalKind,
    /// How to give the nodes this client's settings, if they have others.
    change: Option<String>,
}

impl fmt::Display for AcquireFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, "")
    }
}

impl AcquireFailure {
    /// Writes the cause, the remedies, and the answers of the nodes. `remedy` is a further remedy, or empty.
    fn write(&self, f: &mut impl fmt::Write, remedy: &str) -> fmt::Result {
        let Self { resource, attempts, elapsed, nodes, needed, why, .. } = self;
        write!(f, "lock {} not acquired", quoted(resource))?;
        if *why == RefusalKind::BusyHere {
            if !elapsed.is_zero() {
                write!(f, " in {elapsed:.1?}")?;
            }
            return write!(f, ": held or wanted by another caller of this process");
        }
        // A call that is refused by what is known already takes no time on the clock.
        let elapsed = (*elapsed).max(Duration::from_micros(1));
        write!(f, " in {elapsed:.1?}")?;
        match attempts {
            0 => {}
            1 => write!(f, " (1 attempt)")?,
            _ => write!(f, " ({attempts} attempts)")?,
        }
        f.write_str(": ")?;
        let count = nodes.len();
        match why {
            RefusalKind::NodesUntrusted if nodes.iter().any(NodeAnswer::is_disagreement) => f
                .write_str(
                    "this client's settings do not fit the nodes, so it may not have the lock; ",
                )?,
            RefusalKind::NodesUntrusted => {
                write!(f, "too few nodes vote, {needed} of {count} must grant; ")?
            }
            RefusalKind::TooSlow => {
                f.write_str("granted too late, too little validity was left; ")?;
            }
            RefusalKind::Contended => {}
            RefusalKind::Gone => f.write_str("the lease is over; ")?,
            _ => write!(f, "no quorum, {needed} of {count} nodes must grant; ")?,
        }
        if !remedy.is_empty() && self.change.is_none() {
            write!(f, "{remedy}; ")?;
        }
        let never_expires = |node: &NodeAnswer| {
            node.holder().is_some_and(|holder| {
                let is_no_lock = matches!(
                    holder.kind,
                    HolderKind::Foreign(_) | HolderKind::OtherType | HolderKind::WaitingWriter(_)
                );
                is_no_lock && holder.remaining.is_none()
            })
        };
        if nodes.iter().any(never_expires) {
            f.write_str(
                "a key without expiry blocks the lock until somebody deletes it: quorlock status prints the command, if no program uses the key; ",
            )?;
        }
        f.write_str(&asked_nodes(nodes, *needed))?;
        match &self.change {
            // The command is the end of the text, so that it can be copied.
            Some(change) => write!(f, "; {change}"),
            None => Ok(()),
        }
    }
}
