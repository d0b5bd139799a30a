//! A caller's request for a lock.

use alloc::sync::Arc;
use core::time::Duration;

use crate::command::Counter;
use crate::keys::{Keys, Mode};
use crate::redlock::retry::Retry;
use crate::timing::Timing;

/// A caller's request for a lock.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Request {
    /// The keys to lock.
    pub keys: Keys,
    /// Writer or reader.
    pub mode: Mode,
    /// The length of the client's prefix, with which each key begins, in bytes.
    pub prefix_bytes: u16,
    /// The owner's description, stored behind the token; may be empty.
    pub owner: Arc<str>,
    /// The times of this lock.
    pub timing: Timing,
    /// How long to try.
    pub wait: Wait,
    /// How attempts follow each other.
    pub retry: Retry,
    /// Extend automatically, every third of the ttl.
    pub automatic: bool,
    /// After a loss, keep the key on the nodes, and the lock from other callers of this process, until the holder
    /// gives the lock back. A caller uses it that must stop something first.
    pub keeps_on_loss: bool,
    /// Nothing is extended past this much time after the grant.
    pub max_hold: Duration,
    /// Emit `Effect::Waiting` after each failed attempt, and when no attempt follows for now.
    pub progress: bool,
    /// The counter of the lock's fencing tokens, if the caller wants one. A reader gets none.
    pub fenced: Option<Counter>,
}

/// How long to try.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Wait {
    /// A single attempt. Never queues behind another caller of this process.
    Once,
    /// For as long as this, everything included.
    For(Duration),
    /// Until granted or cancelled.
    Forever,
}
