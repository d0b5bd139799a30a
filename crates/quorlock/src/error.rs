//! Errors that tell the story, node by node.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::shown::{shown, shown_value};
use quorlock_core::{
    Failure, Holding, LossCause, NodeSaid, NodeStory, QuorumError, Refusal, TimingError, Value,
};

use crate::node::NodeConfigError;

/// What one node said, and when.
///
/// `Debug` shows as little of stored values as `Display` does: they are others' tokens.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeAnswer {
    /// The node's name.
    pub node: Arc<str>,
    /// What it said.
    pub said: NodeSaid,
    /// How long after the start of the attempt.
    pub took: Duration,
}

impl NodeAnswer {
    pub(crate) fn all(names: &[Arc<str>], stories: Vec<NodeStory>) -> Vec<Self> {
        let tell = |(node, story): (&Arc<str>, NodeStory)| Self {
            node: node.clone(),
            said: story.said,
            took: story.took,
        };
        names.iter().zip(stories).map(tell).collect()
    }

    /// Who holds the lock on this node, if it was seen.
    pub fn holder(&self) -> Option<Holder> {
        match &self.said {
            NodeSaid::Refused(Some(holding)) | NodeSaid::Seen(holding) => Holder::of(holding),
            _ => None,
        }
    }

    /// Why the node failed, if it did.
    pub fn failure(&self) -> Option<&Failure> {
        match &self.said {
            NodeSaid::Failed(failure) => Some(failure),
            _ => None,
        }
    }
}

impl fmt::Debug for NodeAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeAnswer({self}; {:?})", self.took)
    }
}

impl NodeAnswer {
    fn is_disagreement(&self) -> bool {
        self.failure().is_some_and(|failure| failure.kind().is_disagreement())
    }
}

impl fmt::Display for NodeAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, said, took } = self;
        match said {
            NodeSaid::NotAsked => write!(f, "{node} was not asked"),
            NodeSaid::Nothing => write!(f, "{node} was not waited for beyond {took:.1?}"),
            NodeSaid::Granted => write!(f, "{node} granted"),
            NodeSaid::Refused(None) => write!(f, "{node} refused"),
            NodeSaid::Refused(Some(holding)) => match Holder::of(holding) {
                Some(holder) => write!(f, "{node} refused (held by {holder})"),
                None => write!(f, "{node} refused (free again since)"),
            },
            NodeSaid::Seen(holding) => match Holder::of(holding) {
                Some(holder) => write!(f, "{node} held by {holder}"),
                None => write!(f, "{node} free"),
            },
            // It answers, and well enough; only that it is not believed.
            NodeSaid::Failed(failure) if failure.kind().is_about_trust() => {
                write!(f, "{node}: {failure}")
            }
            NodeSaid::Failed(failure) => write!(f, "{node} failed: {failure}"),
            _ => write!(f, "{node}: {said:?}"),
        }
    }
}

/// Who holds a lock, as far as a stored value tells.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// What kind of holder it is.
    pub kind: HolderKind,
    /// Time until the key expires; `None`: it does not, or that is not known.
    pub remaining: Option<Duration>,
}

/// What kind of holder it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HolderKind {
    /// A quorlock client that describes itself so; empty if it does not. Escaped and cut.
    Owner(String),
    /// The beginning of another library's value, which may be a token. Escaped.
    Foreign(String),
    /// A key that is not a string: no lock of this family, and never touched.
    OtherType,
    /// Another caller of this process.
    ThisProcess,
}

/// At most so many characters of an owner's description are shown.
const OWNER_MAX: usize = 80;

impl Holder {
    pub(crate) fn of(holding: &Holding) -> Option<Self> {
        let kind = match holding {
            Holding::Held { value, .. } => match Value::owner_of(value) {
                Some(owner) => HolderKind::Owner(shown(owner, OWNER_MAX)),
                None => HolderKind::Foreign(shown_value(value)),
            },
            Holding::OtherType { .. } => HolderKind::OtherType,
            _ => return None,
        };
        let remaining = match holding {
            Holding::Held { ttl, .. } | Holding::OtherType { ttl } => *ttl,
            _ => None,
        };
        Some(Self { kind, remaining })
    }

    pub(crate) const THIS_PROCESS: Self = Self { kind: HolderKind::ThisProcess, remaining: None };
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            HolderKind::ThisProcess => return write!(f, "another caller of this process"),
            HolderKind::Owner(owner) if owner.is_empty() => write!(f, "a client without a name")?,
            HolderKind::Owner(owner) => write!(f, "{owner}")?,
            HolderKind::Foreign(value) => write!(f, "the foreign value \"{value}\"")?,
            HolderKind::OtherType => write!(f, "a key that is no lock (not a string)")?,
        }
        match self.remaining {
            Some(left) => write!(f, ", {left:.1?} left"),
            None => write!(f, ", without expiry"),
        }
    }
}

/// What the caller has said, without what a terminal or a log would take for more than text. What others
/// have said goes through [`shown`].
pub(crate) fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\'' | '"' | '\\' => printable.push(c),
            _ => printable.extend(c.escape_debug()),
        }
    }
    printable
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", printable(text))
}

/// Why a lock was not acquired.
///
/// In every case the nodes keep nothing of the call: where a vote was, or may have been, given, a
/// release is queued behind it; on a node that cannot be reached the key is gone after its ttl.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Others hold the lock, or want it too: enough nodes answered, and refused. Also: another
    /// caller of this process holds or wants it, and no node was asked.
    #[error("{0}")]
    Contended(Box<Attempts>),
    /// Too few nodes answered. Says nothing about whether the lock is held.
    #[error("{0}")]
    NoQuorum(Box<Attempts>),
    /// A quorum granted the lock, but so late that too little validity was left.
    #[error("{0}")]
    TooSlow(Box<Attempts>),
    /// So many nodes are not to be trusted, or not yet, that there is no quorum: they were started a
    /// moment ago, or are no independent masters of these clients. Says nothing about whether the lock is
    /// held. If that is only a matter of time, [`AcquireError::retry_after`] tells how long.
    #[error("{0}")]
    Unsafe(Box<Attempts>),
    /// The client has been shut down, or the runtime it was built on has.
    #[error("lock {} not acquired: the client is shut down", quoted(.resource))]
    Closed {
        /// The resource.
        resource: Arc<str>,
    },
    /// The call was wrong; nothing was sent.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
}

impl AcquireError {
    pub(crate) fn new(
        resource: Arc<str>,
        needed: usize,
        names: &[Arc<str>],
        refusal: Refusal,
        impatient: Option<Impatient>,
    ) -> Self {
        use quorlock_core::RefusalKind as Kind;
        let (why, wrap): (Why, fn(Box<Attempts>) -> Self) = match refusal.kind {
            Kind::Contended => (Why::Contended, Self::Contended),
            Kind::BusyHere => (Why::BusyHere, Self::Contended),
            Kind::TooSlow => (Why::TooSlow, Self::TooSlow),
            Kind::Unsafe => (Why::Unsafe, Self::Unsafe),
            Kind::Closed => return Self::Closed { resource },
            _ => (Why::NoQuorum, Self::NoQuorum),
        };
        wrap(Box::new(Attempts {
            resource,
            attempts: refusal.attempts,
            elapsed: refusal.elapsed,
            nodes: NodeAnswer::all(names, refusal.nodes),
            needed,
            retry_after: refusal.retry_after,
            why,
            impatient,
        }))
    }

    /// The lock is held or wanted by others. Never inferred from an error of the network.
    pub fn is_contended(&self) -> bool {
        matches!(self, Self::Contended(_))
    }

    /// When a quorum may be free by expiry alone, as far as the nodes told: counted from the last
    /// attempt. A holder may give the lock back earlier, or extend it. If there is no quorum of trusted
    /// nodes: when there will be.
    pub fn retry_after(&self) -> Option<Duration> {
        self.attempts()?.retry_after
    }

    /// What each node said in the last attempt; empty if none was asked.
    pub fn nodes(&self) -> &[NodeAnswer] {
        self.attempts().map_or(&[], |attempts| &attempts.nodes)
    }

    /// Who holds the lock: on the most nodes, if they differ.
    pub fn holder(&self) -> Option<Holder> {
        let attempts = self.attempts()?;
        if attempts.why == Why::BusyHere {
            return Some(Holder::THIS_PROCESS);
        }
        most_frequent(attempts.nodes.iter().filter_map(NodeAnswer::holder))
    }

    /// Wrong passwords or missing rights alone prevent the lock: only a person can mend that.
    pub fn lacks_rights(&self) -> bool {
        let (Self::NoQuorum(attempts) | Self::Unsafe(attempts)) = self else { return false };
        let about_rights = |node: &&NodeAnswer| {
            node.failure().is_some_and(|failure| failure.kind().is_about_rights())
        };
        let without = attempts.nodes.iter().filter(about_rights).count();
        without > 0 && attempts.nodes.len() - without < attempts.needed
    }

    fn attempts(&self) -> Option<&Attempts> {
        match self {
            Self::Contended(attempts)
            | Self::NoQuorum(attempts)
            | Self::TooSlow(attempts)
            | Self::Unsafe(attempts) => Some(attempts),
            Self::Closed { .. } | Self::Invalid(_) => None,
        }
    }
}

pub(crate) fn most_frequent(holders: impl Iterator<Item = Holder>) -> Option<Holder> {
    let mut seen: Vec<(Holder, usize)> = Vec::new();
    for holder in holders {
        match seen.iter_mut().find(|(other, _)| other.kind == holder.kind) {
            Some((_, count)) => *count += 1,
            None => seen.push((holder, 1)),
        }
    }
    // The first one wins a tie.
    seen.into_iter().rev().max_by_key(|(_, count)| *count).map(|(holder, _)| holder)
}

/// What happened in a call that ended without the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempts {
    /// The resource.
    pub resource: Arc<str>,
    /// How many attempts there were. None, if this process had just had the lock and others wanted it
    /// too: then it looks first, and one of them held it, or had its turn, until the wait was over.
    pub attempts: u32,
    /// Time since the call.
    pub elapsed: Duration,
    /// What each node said last; empty if none was asked.
    pub nodes: Vec<NodeAnswer>,
    /// How many nodes must grant.
    pub needed: usize,
    /// When a quorum may be free by expiry alone, or will be trusted, counted from the last attempt.
    pub retry_after: Option<Duration>,
    why: Why,
    impatient: Option<Impatient>,
}

/// A node takes longer to answer than the caller has chosen to wait for one: it never gets a lock so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Impatient {
    pub(crate) node: Arc<str>,
    pub(crate) round_trip: Duration,
    pub(crate) node_timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Contended,
    BusyHere,
    NoQuorum,
    TooSlow,
    Unsafe,
}

impl fmt::Display for Attempts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource, attempts, elapsed, nodes, needed, why, impatient, .. } = self;
        write!(f, "lock {} not acquired", quoted(resource))?;
        if *why == Why::BusyHere {
            if !elapsed.is_zero() {
                write!(f, " in {elapsed:.1?}")?;
            }
            return write!(f, ": held or wanted by another caller of this process");
        }
        match attempts {
            0 => {}
            1 => write!(f, " after 1 attempt")?,
            _ => write!(f, " after {attempts} attempts")?,
        }
        write!(f, " in {elapsed:.1?}: ")?;
        match why {
            Why::NoQuorum => {
                write!(f, "no quorum, {needed} of {} nodes must grant: ", nodes.len())?
            }
            Why::Unsafe if nodes.iter().any(NodeAnswer::is_disagreement) => {
                write!(f, "clients do not agree about the nodes, so nobody may have it: ")?
            }
            Why::Unsafe => {
                let count = nodes.len();
                write!(f, "too few nodes can be trusted, {needed} of {count} must grant: ")?
            }
            Why::TooSlow => write!(f, "granted too late, too little validity was left: ")?,
            Why::Contended | Why::BusyHere => {}
        }
        write_nodes(f, nodes)?;
        if let Some(Impatient { node, round_trip, node_timeout }) = impatient {
            write!(
                f,
                "; the node timeout of {node_timeout:.1?} is shorter than the usual {round_trip:.1?} of node \
                 {node}: choose a longer one, or none, for it then follows the round trip"
            )?;
        }
        Ok(())
    }
}

fn write_nodes(f: &mut fmt::Formatter<'_>, nodes: &[NodeAnswer]) -> fmt::Result {
    for (place, node) in nodes.iter().enumerate() {
        let comma = if place == 0 { "" } else { ", " };
        write!(f, "{comma}node {node}")?;
    }
    Ok(())
}

/// Why a call was refused before anything was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRequest {
    /// The resource has no name.
    #[error("the resource must have a name; an empty one cannot be locked")]
    ResourceEmpty,
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
    #[error("node {name} is listed twice; {hint}")]
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
        /// The prefix.
        prefix: String,
    },
    /// A node that is spoken of is not in the list.
    #[error("there is no node {} in the list; there are {known}", quoted(.name))]
    UnknownNode {
        /// Its name.
        name: String,
        /// The nodes' names.
        known: String,
    },
    /// There is no tokio runtime here to run the client's task on.
    #[error(
        "no tokio runtime here: build the client inside one, or give it a thread of its own with own_thread()"
    )]
    NoRuntime,
    /// The client's own thread could not be started.
    #[error("the client's thread could not be started: {reason}")]
    Thread {
        /// What the operating system said.
        reason: String,
    },
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
        /// The resource.
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
        /// The resource.
        resource: Arc<str>,
    },
    /// Too few nodes confirmed in time. Nothing was deleted: the lock is held as long as before,
    /// or longer where nodes did confirm.
    #[error(
        "lock {} not extended, still held: {}", quoted(.resource), list(.nodes)
    )]
    Unconfirmed {
        /// The resource.
        resource: Arc<str>,
        /// What each node said.
        nodes: Vec<NodeAnswer>,
    },
}

fn list(nodes: &[NodeAnswer]) -> String {
    struct Nodes<'a>(&'a [NodeAnswer]);
    impl fmt::Display for Nodes<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write_nodes(f, self.0)
        }
    }
    Nodes(nodes).to_string()
}

/// A loss in words.
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
        "lock {} was lost during the work: {}", quoted(.resource), describe(.cause)
    )]
    Lost {
        /// The resource.
        resource: Arc<str>,
        /// Why it was lost.
        cause: LossCause,
    },
}

/// A client did not get rid of all it owed in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shut down with {owed} releases still owed; their keys are gone after their ttl")]
pub struct ShutdownError {
    /// How many tokens were still being released or owed.
    pub owed: usize,
}
