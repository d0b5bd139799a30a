//! Redlock for one lock: an attempt, its votes, and the lock that it takes.

pub(crate) mod acquire;
pub(crate) mod entry_extension;
pub(crate) mod extend;
pub(crate) mod fence;
pub(crate) mod held_lock;
pub(crate) mod hold;
pub(crate) mod inspect;
pub(crate) mod quorum;
pub(crate) mod release;
pub(crate) mod retry;
pub(crate) mod vote;
