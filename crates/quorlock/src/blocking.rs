//! The client without async, for threads, scripts and tests.
//!
//! A blocking client is an async client on a [thread of its own](crate::ClientBuilder::own_thread). Each method here waits
//! for the driver's answer. Meanwhile the waiting thread does the client's work in place of the client's own thread, so
//! `tracing` subscribers run there.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use quorlock::{blocking::Client, node::MemoryNode};
//!
//! let client = Client::builder().memory_nodes(["a", "b", "c"].map(MemoryNode::new)).build()?;
//! let guard = client.acquire("orders").call()?;
//! assert!(guard.is_valid());
//! guard.release();
//! client.shutdown(Duration::from_secs(1))?;
//! # Ok(())
//! # }
//! ```

mod taken;

use std::fmt;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::ops::Deref;
use std::time::{Duration, Instant};

use quorlock_core::{BootTime, LossCause, Mode};

pub use self::taken::{Take, Taken};
use crate::client::Query;
use crate::error::{
    AcquireError, BuildError, DetachError, ExtendError, HoldError, InvalidRequest, LeaseError,
    ShutdownError,
};
use crate::guard::{GuardToken, Health, LockGuard, Released};
use crate::inspect::Inspection;
use crate::lease::Lease;
use crate::options::LockOptions;
use crate::resources::Resources;
use crate::settings::Values;
use crate::stats::Stats;

/// A client whose methods block. See [`crate::Client`].
///
/// # Panics
/// Its methods that wait panic inside an async runtime, where they would block other tasks.
#[derive(Clone, Debug)]
pub struct Client(crate::Client);

impl Client {
    /// A builder with the default settings. Its `build` starts the client on a thread of its own.
    pub fn builder() -> ClientBuilder {
        crate::Client::builder().blocking()
    }

    /// Starts the client that the environment describes; see [`ClientBuilder::from_env`](crate::ClientBuilder::from_env).
    ///
    /// # Errors
    /// As the async client's [`from_env`](crate::Client::from_env).
    pub fn from_env() -> Result<Self, BuildError> {
        Values::of_environment()?.start(|builder| builder.blocking().build())
    }

    /// Starts the client that the environment and the configuration file describe; see
    /// [`ClientBuilder::from_settings`](crate::ClientBuilder::from_settings).
    ///
    /// # Errors
    /// As the async client's [`from_settings`](crate::Client::from_settings).
    #[cfg(feature = "config-file")]
    pub fn from_settings() -> Result<Self, BuildError> {
        Values::of_environment_or_file()?.start(|builder| builder.blocking().build())
    }

    /// A call for the lock on a resource, or on several at once. Set options if needed, then [`Acquire::call`]. See
    /// [`crate::Client::acquire`].
    pub fn acquire(&self, resources: impl Into<Resources>) -> Acquire {
        Acquire::new(self.0.acquire(resources))
    }

    /// A call for the lock as a reader; see [`crate::Client::acquire_shared`].
    pub fn acquire_shared(&self, resources: impl Into<Resources>) -> Acquire {
        Acquire::new(self.0.acquire_shared(resources))
    }

    /// A call for the lock and a fencing token; see [`crate::Client::acquire_fenced`].
    pub fn acquire_fenced(&self, resources: impl Into<Resources>) -> Acquire<FencedGuard> {
        Acquire::new(self.0.acquire_fenced(resources).returning())
    }

    /// Makes a single attempt, without queueing behind other callers of this process; see [`crate::Client::try_acquire`].
    ///
    /// # Errors
    /// [`AcquireError`], with every node's answer.
    ///
    /// # Panics
    /// Inside an async runtime; the call is cancelled then.
    pub fn try_acquire(&self, resources: impl Into<Resources>) -> Result<Guard, AcquireError> {
        self.0.try_acquire(resources).wait().map(Guard)
    }

    /// Asks every node for the holder of the lock; see [`crate::Client::inspect`].
    ///
    /// # Errors
    /// [`InvalidRequest`] if a name cannot be locked. Nothing was sent then.
    ///
    /// # Panics
    /// Inside an async runtime.
    pub fn inspect(&self, resources: impl Into<Resources>) -> Result<Inspection, InvalidRequest> {
        let caller = self.0.driver().caller();
        Ok(caller.wait(self.0.start_inspect(resources.into())?))
    }

    /// A call that takes over the lock of a lease; see [`crate::Client::attach`].
    pub fn attach(&self, lease: &Lease) -> Acquire {
        Acquire::new(self.0.attach(lease))
    }

    /// A call that takes over the lock of a lease, and gets a fencing token; see [`crate::Client::attach_fenced`].
    pub fn attach_fenced(&self, lease: &Lease) -> Acquire<FencedGuard> {
        Acquire::new(self.0.attach_fenced(lease).returning())
    }

    /// Extends the lock of a lease; see [`crate::Client::extend_lease`].
    ///
    /// # Errors
    /// [`LeaseError`].
    ///
    /// # Panics
    /// Inside an async runtime.
    pub fn extend_lease(&self, lease: &Lease) -> Result<Lease, LeaseError> {
        let caller = self.0.driver().caller();
        caller.wait(self.0.start_extend_lease(lease)?)
    }

    /// Releases the lock of a lease; see [`crate::Client::release_lease`].
    ///
    /// # Errors
    /// [`LeaseError::OtherCluster`] if the lease is of other nodes.
    ///
    /// # Panics
    /// Inside an async runtime.
    pub fn release_lease(&self, lease: &Lease) -> Result<Released, LeaseError> {
        let caller = self.0.driver().caller();
        Ok(caller.wait(self.0.start_release_lease(lease)?))
    }

    /// A call for the lock with a value of the caller; see [`crate::Client::take`].
    pub fn take(&self, resource: impl AsRef<str>, value: impl AsRef<[u8]>, ttl: Duration) -> Take {
        Take::new(self.0.take(resource, value, ttl))
    }

    /// Extends a lock by its value alone, with the hazard that [`crate::Client::extend_value`] states.
    ///
    /// # Errors
    /// As [`crate::Client::extend_value`].
    ///
    /// # Panics
    /// Inside an async runtime.
    pub fn extend_value(
        &self,
        resource: impl AsRef<str>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<Duration, LeaseError> {
        let caller = self.0.driver().caller();
        caller.wait(self.0.start_extend_value(resource.as_ref(), value.as_ref(), ttl)?)
    }

    /// Releases a lock by its value alone, with the hazard that [`crate::Client::release_value`] states.
    ///
    /// # Errors
    /// [`InvalidRequest`] if an argument is invalid.
    ///
    /// # Panics
    /// Inside an async runtime.
    pub fn release_value(
        &self,
        resource: impl AsRef<str>,
        value: impl AsRef<[u8]>,
    ) -> Result<Released, InvalidRequest> {
        let caller = self.0.driver().caller();
        Ok(caller.wait(self.0.start_release_value(resource.as_ref(), value.as_ref())?))
    }

    /// Reads the value of the lock on a resource; see [`crate::Client::query`].
    ///
    /// # Errors
    /// [`InvalidRequest`] if the name cannot be locked.
    ///
    /// # Panics
    /// Inside an async runtime.
    pub fn query(&self, resource: impl AsRef<str>) -> Result<Query, InvalidRequest> {
        let caller = self.0.driver().caller();
        Ok(caller.wait(self.0.start_query(resource.as_ref())?))
    }

    /// The current counters and measurements of this client; see [`crate::Client::stats`].
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// Shuts the client down, for all its clones; see [`crate::Client::shutdown`].
    ///
    /// # Errors
    /// [`ShutdownError`] if releases are still owed after `timeout`.
    pub fn shutdown(&self, timeout: Duration) -> Result<(), ShutdownError> {
        let mut closed = self.0.ask_close();
        #[expect(clippy::disallowed_methods, reason = "a bound on waiting, no validity")]
        let started = Instant::now();
        let mut pause = Duration::from_micros(200);
        loop {
            use tokio::sync::oneshot::error::TryRecvError;
            let left = timeout.saturating_sub(started.elapsed());
            match closed.try_recv() {
                Err(TryRecvError::Empty) if left.is_zero() => {
                    return Err(ShutdownError { owed: self.stats().releases_owed });
                }
                Err(TryRecvError::Empty) => std::thread::sleep(pause.min(left)),
                _ => return Ok(()),
            }
            pause = (pause * 2).min(Duration::from_millis(10));
        }
    }
}

/// Builds a blocking client; see [`Client::builder`].
pub type ClientBuilder = crate::ClientBuilder<Client>;

impl crate::ClientBuilder {
    /// Turns this builder into that of a blocking client with the same settings.
    pub fn blocking(self) -> ClientBuilder {
        ClientBuilder::of(self.settings)
    }
}

impl ClientBuilder {
    /// Checks all settings and starts the client on a thread of its own. Needs no runtime.
    ///
    /// # Errors
    /// As the async client's [`build`](crate::ClientBuilder::build).
    pub fn build(self) -> Result<Client, BuildError> {
        self.own_thread(true).settings.build().map(Client)
    }
}

/// A call for a lock; see [`crate::Acquire`]. `G` is the guard that the call returns.
#[must_use = "a call does nothing until call()"]
#[derive(Debug)]
pub struct Acquire<G = Guard>(crate::Acquire, PhantomData<fn() -> G>);

impl<G> Acquire<G> {
    fn new(call: crate::Acquire) -> Self {
        Self(call, PhantomData)
    }

    /// Sets options for this call; see [`crate::Acquire::options`].
    pub fn options(self, options: LockOptions) -> Self {
        Self::new(self.0.options(options))
    }
}

impl<G: LockGuard + Into<Guard>> Acquire<G> {
    /// Waits for the lock.
    ///
    /// # Errors
    /// [`AcquireError`], with every node's answer. The client releases what was granted.
    ///
    /// # Panics
    /// Inside an async runtime; the call is cancelled then.
    pub fn call(self) -> Result<G, AcquireError> {
        self.0.into_future().wait().map(G::from_guard)
    }

    /// Acquires the lock, runs `work` with the guard, and releases the lock.
    ///
    /// Nothing can stop a thread from outside. The work itself must ask [`Guard::is_valid`] before each step that needs the
    /// lock.
    ///
    /// # Errors
    /// [`HoldError::NotAcquired`] if the work did not start, [`HoldError::Lost`] if the lock was lost before the work was
    /// done.
    ///
    /// # Panics
    /// Inside an async runtime; the call is cancelled then.
    pub fn hold<T>(self, work: impl FnOnce(&G) -> T) -> Result<T, HoldError> {
        let guard = self.call()?;
        let result = work(&guard);
        if let Some(cause) = guard.as_guard().loss_cause() {
            return Err(guard.as_guard().lost_during_work(cause));
        }
        // The work has ended under a valid lock, so its result does not depend on the outcome of the release.
        let _ = guard.into().release();
        Ok(result)
    }
}

/// A held lock; see [`crate::Guard`].
#[must_use = "a guard that is dropped gives its lock back at once"]
pub struct Guard(crate::Guard);

impl Guard {
    /// The name of the resource; see [`crate::Guard::resource`].
    pub fn resource(&self) -> &str {
        self.0.resource()
    }

    /// The token of this guard; see [`crate::Guard::token`].
    pub fn token(&self) -> GuardToken {
        self.0.token()
    }

    /// Whether the lock is a writer's or a reader's; see [`crate::Guard::mode`].
    pub fn mode(&self) -> Mode {
        self.0.mode()
    }

    /// Makes a writer a reader. Does not wait; see [`crate::Guard::downgrade`].
    pub fn downgrade(self) -> Self {
        Self(self.0.downgrade())
    }

    /// Whether the lock is held now; see [`crate::Guard::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.0.is_valid()
    }

    /// The time at which the validity ends; see [`crate::Guard::valid_until`].
    pub fn valid_until(&self) -> Option<BootTime> {
        self.0.valid_until()
    }

    /// The time until the lock ends unless it is extended; see [`crate::Guard::remaining`].
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// The number of votes that count; see [`crate::Guard::votes`].
    pub fn votes(&self) -> usize {
        self.0.votes()
    }

    /// The number of votes that last as long as the lock; see [`crate::Guard::confirmed_votes`].
    pub fn confirmed_votes(&self) -> usize {
        self.0.confirmed_votes()
    }

    /// The cause of the loss; `None` while the lock is held.
    pub fn loss_cause(&self) -> Option<LossCause> {
        self.0.loss_cause()
    }

    /// Blocks until the lock is lost, and returns the cause.
    pub fn lost(&self) -> LossCause {
        self.0.cell.wait_lost()
    }

    /// The state of the lock on the nodes; see [`crate::Guard::health`].
    pub fn health(&self) -> Health {
        self.0.health()
    }

    /// Extends the lock now; see [`crate::Guard::extend`].
    ///
    /// # Errors
    /// As the async [`extend`](crate::Guard::extend).
    ///
    /// # Panics
    /// Inside an async runtime.
    pub fn extend(&self) -> Result<Duration, ExtendError> {
        let caller = self.0.driver().caller();
        caller.wait(self.0.start_extend())
    }

    /// Releases the lock on every node, and returns how that went; see [`crate::Guard::release`].
    ///
    /// # Panics
    /// Inside an async runtime. The release is queued even then.
    pub fn release(self) -> Released {
        let caller = self.0.driver().caller();
        caller.wait(self.0.start_release())
    }
}

impl Guard {
    /// Makes the lock independent of this process, and returns it as a lease; see [`crate::Guard::detach`].
    ///
    /// # Errors
    /// [`DetachError`] if the lock is lost.
    ///
    /// # Panics
    /// Inside an async runtime. The lock is released then.
    pub fn detach(self) -> Result<Lease, DetachError> {
        let caller = self.0.driver().caller();
        caller.wait(self.0.start_detach())
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A held lock with a fencing token; see [`crate::FencedGuard`]. Dereferences to [`Guard`].
#[must_use = "a guard that is dropped gives its lock back at once"]
#[derive(Debug)]
pub struct FencedGuard(Guard);

impl FencedGuard {
    /// The fencing token; see [`crate::FencedGuard::fencing_token`].
    pub fn fencing_token(&self) -> u64 {
        self.0.0.fencing_token().get()
    }

    /// Whether another client may have got the lock after this guard; see [`crate::FencedGuard::is_superseded`].
    pub fn is_superseded(&self) -> bool {
        self.0.0.cell.is_superseded()
    }

    /// Releases the lock on every node, and returns how that went; see [`crate::Guard::release`].
    ///
    /// # Panics
    /// Inside an async runtime. The release is queued even then.
    pub fn release(self) -> Released {
        self.0.release()
    }

    /// Makes the lock independent of this process, and returns it as a lease; see [`crate::FencedGuard::detach`].
    ///
    /// # Errors
    /// [`DetachError`] if the lock is lost.
    ///
    /// # Panics
    /// Inside an async runtime. The lock is released then.
    pub fn detach(self) -> Result<Lease, DetachError> {
        self.0.detach()
    }

    /// Makes a writer a reader, which has no fencing token. Does not wait; see [`crate::Guard::downgrade`].
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

impl LockGuard for Guard {
    fn from_guard(guard: crate::Guard) -> Self {
        Self(guard)
    }

    fn as_guard(&self) -> &crate::Guard {
        &self.0
    }
}

impl LockGuard for FencedGuard {
    fn from_guard(guard: crate::Guard) -> Self {
        Self(Guard(guard))
    }

    fn as_guard(&self) -> &crate::Guard {
        &self.0.0
    }
}
