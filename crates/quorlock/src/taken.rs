//! Locks with a value that the caller chose, as `LockTake` and `LockRelease` of StackExchange.Redis have them.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use quorlock_core::{Token, Value};
use tokio::sync::mpsc;

use crate::acquire::{Acquire, Acquiring, Waiting};
use crate::error::{AcquireError, DetachError, ExtendError};
use crate::guard::{Guard, Released};
use crate::lease::Lease;
use crate::options::LockOptions;

/// A call for a lock with the caller's value; see [`Client::take`](crate::Client::take). Await it.
#[must_use = "a call does nothing unless it is awaited"]
#[derive(Debug)]
pub struct Take {
    pub(crate) call: Acquire,
    pub(crate) value: Value,
}

impl Take {
    /// Sets options for this call; see [`Acquire::options`]. [`LockOptions::auto_extend`] has no effect, because the
    /// client never extends such a lock by itself.
    pub fn options(self, options: LockOptions) -> Self {
        Self { call: self.call.options(options), ..self }
    }

    /// Sends a report into `progress` after each failed attempt except the last; see [`Acquire::progress`].
    pub fn progress(self, progress: mpsc::Sender<Waiting>) -> Self {
        Self { call: self.call.progress(progress), ..self }
    }

    /// Blocks until the call is done.
    pub(crate) fn wait(self) -> Result<Taken, AcquireError> {
        self.call.into_future().wait().map(|guard| Taken::new(guard, self.value))
    }
}

impl IntoFuture for Take {
    type Output = Result<Taken, AcquireError>;
    type IntoFuture = Taking;

    fn into_future(self) -> Taking {
        Taking { call: self.call.into_future(), value: self.value }
    }
}

/// The future of a [`Take`].
///
/// # Cancel safety
/// As [`Acquiring`].
///
/// # Panics
/// If polled again after it has returned.
#[must_use = "a call does nothing unless it is awaited"]
#[derive(Debug)]
pub struct Taking {
    call: Acquiring,
    value: Value,
}

impl Future for Taking {
    type Output = Result<Taken, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let guard = ready!(Pin::new(&mut self.call).poll(cx))?;
        Poll::Ready(Ok(Taken::new(guard, self.value.clone())))
    }
}

/// A lock with a value that the caller chose.
///
/// The nodes store the value under the lock's key, and a nonce of this call under `<prefix>quorlock:take:<resource>`.
/// [`Taken::extend`] and [`Taken::release`] compare both. So another lock with an equal value is never extended or
/// released by mistake.
///
/// The client does not extend the lock by itself. Dropping a `Taken` does not release the lock: it stays until its ttl
/// ends, or until [`Client::release_value`](crate::Client::release_value).
#[must_use = "the lock stays on the nodes until its ttl ends"]
pub struct Taken {
    guard: Guard,
    value: Value,
}

impl Taken {
    fn new(mut guard: Guard, value: Value) -> Self {
        guard.stays = true;
        Self { guard, value }
    }

    /// The name of the resource.
    pub fn resource(&self) -> &str {
        self.guard.resource()
    }

    /// The value that the nodes store under the lock's key.
    pub fn value(&self) -> &[u8] {
        self.value.as_bytes()
    }

    /// The nonce of this call, a random token that no other call has.
    pub fn nonce(&self) -> Token {
        self.guard.token().stored()
    }

    /// Whether the lock is held now; see [`Guard::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.guard.is_valid()
    }

    /// The time until [`Taken::is_valid`] turns false if the lock is not extended; zero once the lock is lost.
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// Extends the lock to its full ttl, and returns [`Taken::remaining`]; see [`Guard::extend`]. Nodes that lost the
    /// lock do not store it again.
    ///
    /// # Errors
    /// As [`Guard::extend`].
    ///
    /// # Cancel safety
    /// Safe: the extension goes on, and only its outcome is dropped.
    pub async fn extend(&self) -> Result<Duration, ExtendError> {
        self.guard.extend().await
    }

    /// Releases the lock on every node, if the value and the nonce are those of this call; see [`Guard::release`].
    ///
    /// # Cancel safety
    /// Safe: the release goes on.
    pub fn release(self) -> impl Future<Output = Released> + Send + 'static {
        self.guard.release()
    }

    /// Makes the lock independent of this process, and returns it as a lease, which has the value and the nonce.
    ///
    /// # Errors
    /// [`DetachError`] if the lock is lost.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock.
    pub fn detach(self) -> impl Future<Output = Result<Lease, DetachError>> + Send + 'static {
        // The guard releases the lock if the future is dropped before its first poll.
        self.into_guard().start_detach()
    }

    /// The guard, whose drop releases the lock.
    pub(crate) fn into_guard(mut self) -> Guard {
        self.guard.stays = false;
        self.guard
    }

    pub(crate) const fn guard(&self) -> &Guard {
        &self.guard
    }
}

impl fmt::Debug for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Taken")
            .field("resource", &self.resource())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
