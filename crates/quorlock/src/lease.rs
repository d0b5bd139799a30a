//! A detached lock, which another process can attach: names, value, end, and the nodes that may still write it.

mod end;
mod format;
#[cfg(any(test, fuzzing))]
#[allow(unreachable_pub, reason = "public where cargo-fuzz builds it, and nowhere else")]
pub(crate) mod fuzzing;
#[cfg(feature = "serde")]
mod serde;
#[cfg(test)]
pub(crate) mod tests;

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use percent_encoding::percent_encode;
use quorlock_core::{Keys, NodeSet, Quorum, Value};

use crate::clock::Clock;
use crate::node::ClientNode;

pub(crate) use self::end::LeaseEnd;
pub use self::format::LeaseTextError;

/// A lock that no process guards: [`Guard::detach`](crate::Guard::detach) makes it, and any process can attach, extend or
/// release it.
///
/// `Display` writes a lease as one line of printable ASCII without spaces, and `FromStr` reads it again. The line is safe
/// without quotes in a shell. With the feature `serde` a lease is serialized as this line.
///
/// The text is a **secret**: until a process attaches the lock, anybody who has the text can extend or release it. `Debug`
/// does not show the value.
///
/// A lease proves nothing, because the lock may have ended since. [`Client::attach`](crate::Client::attach) and
/// [`Client::extend_lease`](crate::Client::extend_lease) ask the nodes.
#[derive(Clone, PartialEq, Eq)]
pub struct Lease {
    pub(crate) kind: LeaseKind,
    /// The names of the resources, without the client's key prefix.
    pub(crate) resources: Keys,
    /// The names of the resources, as messages show them.
    pub(crate) title: Arc<str>,
    /// The value of the lock on the nodes. For [`LeaseKind::Taken`]: the nonce, which has a key of its own.
    pub(crate) value: Value,
    /// The caller's value; `None` unless the kind is [`LeaseKind::Taken`].
    pub(crate) taken: Option<Value>,
    pub(crate) ttl: Duration,
    pub(crate) end: LeaseEnd,
    /// End of `max_hold`, in milliseconds since the Unix epoch.
    pub(crate) hold_until_ms: u64,
    /// Nodes on which a command in flight may still write the value.
    pub(crate) unanswered: NodeSet,
    pub(crate) cluster: ClusterId,
    /// `Some` exactly if the kind is [`LeaseKind::Fenced`].
    pub(crate) fencing_token: Option<NonZeroU64>,
    pub(crate) keeper: Option<Keeper>,
}

/// The kind of a detached lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum LeaseKind {
    /// A writer's lock.
    Exclusive,
    /// A writer's lock with a fencing token.
    Fenced,
    /// A reader's lock.
    Shared,
    /// A lock with a value of the caller.
    Taken,
}

/// A process that extends a detached lock in place of the process that uses the lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Keeper {
    /// The process id.
    pub pid: u32,
    /// The start time of the process in clock ticks since boot, which is field 22 of `/proc/PID/stat`. A later process
    /// with the same id has another start time.
    pub started: u64,
}

impl Lease {
    /// The start of each lease's text.
    #[doc(hidden)]
    pub const START: &str = format::START;

    /// Returns the name of the locked resource. Several names are sorted and separated by commas.
    pub fn resource(&self) -> &str {
        &self.title
    }

    /// Returns the names of the locked resources in byte order.
    pub fn resources(&self) -> impl Iterator<Item = &str> {
        self.resources.iter().map(|name| &**name)
    }

    /// Returns the kind of the lock.
    pub fn kind(&self) -> LeaseKind {
        self.kind
    }

    /// Returns the time to live that each extension gives the lock.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Returns the time until an unextended lock ends, by this machine's clocks; zero after the end. On another
    /// machine, and after a reboot, the wall clock alone decides.
    pub fn remaining(&self) -> Duration {
        self.end.remaining(Clock::System.now())
    }

    /// Returns the time at which an unextended lock ends, by the wall clock of the machine that wrote the lease.
    pub fn valid_until(&self) -> SystemTime {
        UNIX_EPOCH + self.end.since_epoch()
    }

    /// Returns the fencing token. `None` unless the kind is [`LeaseKind::Fenced`].
    pub fn fencing_token(&self) -> Option<NonZeroU64> {
        self.fencing_token
    }

    /// Returns the value that the caller chose. `None` unless the kind is [`LeaseKind::Taken`].
    pub fn value(&self) -> Option<&[u8]> {
        self.taken.as_ref().map(Value::as_bytes)
    }

    /// Returns the process that extends the lock. `None` if no process does.
    pub fn keeper(&self) -> Option<Keeper> {
        self.keeper
    }

    /// Returns the same lease, which also names `keeper` as the process that extends the lock from now on.
    #[must_use]
    pub fn kept_by(self, keeper: Keeper) -> Self {
        Self { keeper: Some(keeper), ..self }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("kind", &self.kind)
            .field("resource", &self.title)
            .field("ttl", &self.ttl)
            .field("valid_until", &self.valid_until())
            .finish_non_exhaustive()
    }
}

/// The identity of a client's configuration. A lease is valid only for clients with the same identity.
///
/// The order of the nodes counts, because a lease names nodes by their positions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ClusterId {
    quorum: Quorum,
    /// The start of the SHA-1 of the nodes' names and databases, in order, and the key prefix.
    digest: u64,
}

impl ClusterId {
    pub(crate) fn of(quorum: Quorum, nodes: &[ClientNode], prefix: &str) -> Self {
        Self::new(quorum, nodes.iter().map(|node| (node.name(), node.database())), prefix)
    }

    fn new<'a>(quorum: Quorum, nodes: impl Iterator<Item = (&'a str, u32)>, prefix: &str) -> Self {
        let mut hash = sha1_smol::Sha1::new();
        hash.update(
            format!("prefix={}", percent_encode(prefix.as_bytes(), format::ESCAPED)).as_bytes(),
        );
        for (name, database) in nodes {
            let name = percent_encode(name.as_bytes(), format::ESCAPED);
            hash.update(format!(",node={name},database={database}").as_bytes());
        }
        let [a, b, c, d, e, f, g, h, ..] = hash.digest().bytes();
        Self { quorum, digest: u64::from_be_bytes([a, b, c, d, e, f, g, h]) }
    }

    /// Describes the difference between a lease's configuration and the client's (`ours`). `None` if they are the same.
    pub(crate) fn difference(&self, ours: &Self) -> Option<String> {
        if self == ours {
            return None;
        }
        let (theirs, ours) = (self.quorum, ours.quorum);
        Some(if theirs == ours {
            "the names, order or databases of the nodes, or the key prefix, differ".to_owned()
        } else {
            format!(
                "it was made with {} of {} nodes as the quorum, and this client needs {} of {}",
                theirs.needed(),
                theirs.nodes(),
                ours.needed(),
                ours.nodes(),
            )
        })
    }
}
