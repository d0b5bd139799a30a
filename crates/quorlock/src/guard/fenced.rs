//! The guard of a lock with a fencing token.

use std::ops::Deref;

use super::{Guard, Released};
use crate::error::DetachError;
use crate::lease::Lease;

/// The trait of the guards that a call can return. It is sealed: no other crate can name it.
pub trait LockGuard: Sized {
    #[doc(hidden)]
    fn from_guard(guard: Guard) -> Self;
    #[doc(hidden)]
    fn as_guard(&self) -> &Guard;
}

impl LockGuard for Guard {
    fn from_guard(guard: Guard) -> Self {
        guard
    }

    fn as_guard(&self) -> &Guard {
        self
    }
}

impl LockGuard for FencedGuard {
    fn from_guard(guard: Guard) -> Self {
        Self(guard)
    }

    fn as_guard(&self) -> &Guard {
        &self.0
    }
}

/// A held lock with a fencing token, from [`Client::acquire_fenced`](crate::Client::acquire_fenced).
///
/// It dereferences to [`Guard`], so it has all methods of a guard. As a [`Guard`], it releases the lock when it is dropped.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use quorlock::{Client, node::MemoryNode};
/// # let client = Client::builder().memory_nodes([MemoryNode::new("a")]).build()?;
/// let guard = client.acquire_fenced("orders").await?;
/// let first = guard.fencing_token();
/// guard.release().await;
/// assert!(client.acquire_fenced("orders").await?.fencing_token() > first);
/// # Ok(())
/// # }
/// ```
#[must_use = "a guard that is dropped gives its lock back at once"]
#[derive(Debug)]
pub struct FencedGuard(Guard);

impl FencedGuard {
    /// The fencing token: above zero, larger than the token of every earlier holder of this lock, and smaller than the
    /// token of every later one.
    ///
    /// Send it with each write to the resource that the lock protects. In the atomic step of a write, the resource must
    /// refuse a token below the largest one that it has seen. Then a paused holder that does not know that it has lost
    /// the lock can do no harm. A new holder must make its token known to the resource before it reads. The promise that
    /// [`guarantees`](crate::guarantees) makes for fencing tokens needs no assumption about time, as long as a majority of
    /// the nodes keeps its data.
    pub fn fencing_token(&self) -> u64 {
        self.0.fencing_token().get()
    }

    /// Whether a node that had lost the vote of this lock has since given out a larger token. Another client may then have
    /// held the lock, and the protected resource may refuse this token. The votes of the other nodes still count.
    ///
    /// Once true it stays true. False in a forked child. [`Guard::changed`] completes when it turns true.
    pub fn is_superseded(&self) -> bool {
        self.0.cell.is_superseded()
    }

    /// As [`Guard::release`].
    ///
    /// # Cancel safety
    /// Safe: the release goes on.
    pub fn release(self) -> impl Future<Output = Released> + Send + 'static {
        self.0.release()
    }

    /// As [`Guard::detach`]. A process that attaches the lease with [`Client::attach_fenced`](crate::Client::attach_fenced)
    /// gets a larger fencing token.
    ///
    /// # Errors
    /// [`DetachError`] if the lock is lost.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock.
    pub async fn detach(self) -> Result<Lease, DetachError> {
        self.0.detach().await
    }

    /// As [`Guard::downgrade`]. A reader has no fencing token, so the result is a plain guard.
    pub fn downgrade(self) -> Guard {
        self.0.downgrade()
    }
}

impl Deref for FencedGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}

impl From<FencedGuard> for Guard {
    /// The same guard without its fencing token. The lock stays held.
    fn from(guard: FencedGuard) -> Self {
        guard.0
    }
}
