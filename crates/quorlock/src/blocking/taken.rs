//! Locks with a value of the caller, without async.

use std::time::Duration;

use quorlock_core::Token;

use super::Guard;
use crate::error::{AcquireError, DetachError, ExtendError};
use crate::guard::Released;
use crate::lease::Lease;
use crate::options::LockOptions;

/// A call for a lock with a value of the caller; see [`crate::Take`].
#[must_use = "a call does nothing until call()"]
#[derive(Debug)]
pub struct Take(crate::Take);

impl Take {
    pub(super) fn new(call: crate::Take) -> Self {
        Self(call)
    }

    /// Sets options for this call; see [`crate::Take::options`].
    pub fn options(self, options: LockOptions) -> Self {
        Self(self.0.options(options))
    }

    /// Waits for the lock.
    ///
    /// # Errors
    /// [`AcquireError`], with every node's answer. The client releases what was granted.
    ///
    /// # Panics
    /// Inside an async runtime; the call is cancelled then.
    pub fn call(self) -> Result<Taken, AcquireError> {
        self.0.wait().map(Taken)
    }
}

/// A lock with a value of the caller; see [`crate::Taken`].
#[must_use = "the lock stays on the nodes until its ttl ends"]
#[derive(Debug)]
pub struct Taken(crate::Taken);

impl Taken {
    /// The name of the resource.
    pub fn resource(&self) -> &str {
        self.0.resource()
    }

    /// The value that the nodes store under the lock's key.
    pub fn value(&self) -> &[u8] {
        self.0.value()
    }

    /// The nonce of this call; see [`crate::Taken::nonce`].
    pub fn nonce(&self) -> Token {
        self.0.nonce()
    }

    /// Whether the lock is held now; see [`crate::Taken::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.0.is_valid()
    }

    /// The time until the lock ends unless it is extended; see [`crate::Taken::remaining`].
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// Extends the lock to its full ttl; see [`crate::Taken::extend`].
    ///
    /// # Errors
    /// As the async [`extend`](crate::Taken::extend).
    ///
    /// # Panics
    /// Inside an async runtime.
    pub fn extend(&self) -> Result<Duration, ExtendError> {
        let guard = self.0.guard();
        guard.driver().caller().wait(guard.start_extend())
    }

    /// Releases the lock on every node; see [`crate::Taken::release`].
    ///
    /// # Panics
    /// Inside an async runtime. The release is queued even then.
    pub fn release(self) -> Released {
        Guard(self.0.into_guard()).release()
    }

    /// Makes the lock independent of this process; see [`crate::Taken::detach`].
    ///
    /// # Errors
    /// [`DetachError`] if the lock is lost.
    ///
    /// # Panics
    /// Inside an async runtime. The lock is released then.
    pub fn detach(self) -> Result<Lease, DetachError> {
        Guard(self.0.into_guard()).detach()
    }
}
