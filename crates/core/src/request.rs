//! A caller's request for a lock.

use alloc::sync::Arc;
use core::time::Duration;

use crate::command::Counter;
use crate::keys::{Keys, Mode, Origin};
use crate::redlock::retry::Retry;
use crate::timing::Timing;

/// A caller's request for a lock.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Request {
    /// The keys to lock.
    pub keys: Keys,
    /// Writer or reader.
    pub mode: Mode,
    /// The state of the keys that an attempt expects, and the kind of value that it sets.
    pub origin: Origin,
    /// The length of the client's prefix, with which each key begins, in bytes.
    pub prefix_bytes: u16,
    /// The owner's description, stored after the token; may be empty.
    pub owner: Arc<str>,
    /// The times of this lock.
    pub timing: Timing,
    /// The time for which a call tries to get the lock.
    pub wait: Wait,
    /// The delay between attempts, and the largest number of attempts.
    pub retry: Retry,
    /// Whether the engine extends the lock automatically, every third of the ttl.
    pub automatic: bool,
    /// Whether a lost lock keeps its keys on the nodes and blocks other callers of this process until the holder
    /// releases it. This is meant for a holder that must stop its work before another caller may start.
    pub keeps_on_loss: bool,
    /// Whether the call pauses at times after it saw a client of another library, so that such clients, which poll, can
    /// acquire the lock. A call with fixed delays or a single attempt does not pause.
    pub yields_to_pollers: bool,
    /// Time after the grant beyond which the engine does not extend the lock.
    pub max_hold: Duration,
    /// Whether to emit `Effect::Waiting` after each failed attempt, and when the call waits for trusted nodes.
    pub progress: bool,
    /// The counter of the lock's fencing tokens, if the caller wants one. A reader gets none.
    pub fenced: Option<Counter>,
}

impl Request {
    /// Whether the call takes over a detached lock. Such a lock has no place in the local queue.
    pub(crate) const fn attaches(&self) -> bool {
        matches!(self.origin, Origin::Detached(_))
    }
}

/// The time for which a call tries to get the lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Wait {
    /// A single attempt. Never queues behind another caller of this process.
    Once,
    /// At most this time in total, including the time in the local queue.
    For(Duration),
    /// The call waits until it is granted or cancelled.
    Forever,
}
