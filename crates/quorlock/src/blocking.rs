//! The same client without async: for threads, scripts and tests.
//!
//! Not a twin: a façade. A blocking client is an async one on a [thread of its
//! own](crate::ClientBuilder::own_thread), and each method here waits for what the driver answers. The thread that
//! waits does the client's work meanwhile, in the place of the client's own thread: custom nodes and `tracing` see it
//! there.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use quorlock::{blocking::Client, node::MemoryNode};
//!
//! let client = Client::builder().custom_nodes(["a", "b", "c"].map(MemoryNode::new)).build()?;
//! let guard = client.acquire("orders").wait(Duration::from_secs(5)).call()?;
//! assert!(guard.is_valid());
//! guard.release();
//! client.shutdown(Duration::from_secs(1))?;
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::future::IntoFuture;
use std::time::{Duration, Instant};

use quorlock_core::{BootTime, LossCause, Mode, Retry};

use crate::builder::ClientBuilder;
use crate::env;
use crate::error::{
    AcquireError, BuildError, ExtendError, HoldError, InvalidRequest, ShutdownError,
};
use crate::guard::{GuardToken, Health, Released};
use crate::inspect::Inspection;
use crate::resources::Resources;
use crate::stats::Stats;

/// A client whose methods block. See [`crate::Client`].
///
/// # Panics
/// Its methods that wait panic inside an async runtime, where they would block other tasks.
#[derive(Clone, Debug)]
pub struct Client(crate::Client);

impl Client {
    pub(crate) fn new(client: crate::Client) -> Self {
        Self(client)
    }

    /// What a client is made from. Its `build` starts the client on a thread of its own.
    pub fn builder() -> ClientBuilder<Self> {
        crate::Client::builder().blocking()
    }

    /// Starts the client that the environment describes; see [`ClientBuilder::from_env`].
    ///
    /// # Errors
    /// As the async client's [`from_env`](crate::Client::from_env).
    pub fn from_env() -> Result<Self, BuildError> {
        ClientBuilder::from_env()?.blocking().build().map_err(env::blamed)
    }

    /// A call for the lock on a resource, or on several at once: set options, then [`Acquire::call`].
    pub fn acquire(&self, resources: impl Into<Resources>) -> Acquire {
        Acquire(self.0.acquire(resources))
    }

    /// As [`Client::acquire`], but with a single attempt, and without queueing behind other
    /// callers of this process.
    pub fn try_acquire(&self, resources: impl Into<Resources>) -> Acquire {
        Acquire(self.0.try_acquire(resources))
    }

    /// Asks every node who holds the lock on `resource`; see [`crate::Client::inspect`].
    ///
    /// # Errors
    /// If the resource's name is not one; nothing was sent.
    ///
    /// # Panics
    /// Inside an async runtime.
    pub fn inspect(&self, resource: impl AsRef<str>) -> Result<Inspection, InvalidRequest> {
        let caller = self.0.driver().caller();
        let nodes = caller.wait(self.0.ask_inspect(resource.as_ref())?).unwrap_or_default();
        Ok(self.0.inspected(nodes))
    }

    /// Figures of this client, as of now.
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// Shuts the client down, for all its clones; see [`crate::Client::shutdown`].
    ///
    /// # Errors
    /// [`ShutdownError`] if the time was not enough for all that is owed.
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

impl ClientBuilder {
    /// Turns these settings into those of a blocking client.
    pub fn blocking(self) -> ClientBuilder<Client> {
        ClientBuilder::of(self.settings)
    }
}

impl ClientBuilder<Client> {
    /// Checks everything and starts the client on a thread of its own; needs no runtime here.
    ///
    /// # Errors
    /// As the async client's [`build`](ClientBuilder::build).
    pub fn build(self) -> Result<Client, BuildError> {
        self.own_thread().settings.build().map(Client::new)
    }
}

/// A call for a lock; see [`crate::Acquire`] for the options.
#[must_use = "a call does nothing until call()"]
#[derive(Debug)]
pub struct Acquire(crate::Acquire);

impl Acquire {
    /// Sets the ttl; see [`crate::Acquire::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// Sets how long to try; see [`crate::Acquire::wait`].
    pub fn wait(self, wait: Duration) -> Self {
        Self(self.0.wait(wait))
    }

    /// Tries without a bound; see [`crate::Acquire::wait_forever`].
    pub fn wait_forever(self) -> Self {
        Self(self.0.wait_forever())
    }

    /// Sets the smallest validity; see [`crate::Acquire::min_validity`].
    pub fn min_validity(self, min_validity: Duration) -> Self {
        Self(self.0.min_validity(min_validity))
    }

    /// Sets the delays between attempts; see [`crate::Acquire::retry`].
    pub fn retry(self, retry: Retry) -> Self {
        Self(self.0.retry(retry))
    }

    /// Switches automatic extension on or off; see [`crate::Acquire::auto_extend`].
    pub fn auto_extend(self, automatic: bool) -> Self {
        Self(self.0.auto_extend(automatic))
    }

    /// Keeps the keys after a loss; see [`crate::Acquire::keep_on_loss`].
    pub fn keep_on_loss(self) -> Self {
        Self(self.0.keep_on_loss())
    }

    /// Bounds how long the lock is held; see [`crate::Acquire::max_hold`].
    pub fn max_hold(self, max_hold: Duration) -> Self {
        Self(self.0.max_hold(max_hold))
    }

    /// Describes the owner; see [`crate::Acquire::owner`].
    pub fn owner(self, owner: impl Into<String>) -> Self {
        Self(self.0.owner(owner))
    }

    /// Asks for a fencing token; see [`crate::Acquire::fenced`].
    pub fn fenced(self) -> Self {
        Self(self.0.fenced())
    }

    /// Acquires as a reader; see [`crate::Acquire::shared`].
    pub fn shared(self) -> Self {
        Self(self.0.shared())
    }

    /// Waits for the lock.
    ///
    /// # Errors
    /// [`AcquireError`], with every node's answer. The nodes keep nothing.
    ///
    /// # Panics
    /// Inside an async runtime; the call is cancelled then.
    pub fn call(self) -> Result<Guard, AcquireError> {
        self.0.into_future().wait().map(Guard)
    }

    /// Acquires the lock, does the work, gives the lock back.
    ///
    /// Nothing can stop a thread from outside: the work itself must ask the guard whether the lock
    /// is still held before what matters.
    ///
    /// # Errors
    /// [`HoldError::NotAcquired`] if the work was not begun, [`HoldError::Lost`] if the lock was
    /// lost before the work was done.
    ///
    /// # Panics
    /// Inside an async runtime; the call is cancelled then.
    pub fn hold<T>(self, work: impl FnOnce(&Guard) -> T) -> Result<T, HoldError> {
        let guard = self.call()?;
        let result = work(&guard);
        if let Some(cause) = guard.loss_reason() {
            return Err(guard.0.lost_during_work(cause));
        }
        // How the release went is of no consequence to the work, which was done under the lock.
        let _ = guard.release();
        Ok(result)
    }
}

/// A held lock; see [`crate::Guard`].
#[must_use = "a guard that is dropped gives its lock back at once"]
pub struct Guard(crate::Guard);

impl Guard {
    /// The resource that is locked.
    pub fn resource(&self) -> &str {
        self.0.resource()
    }

    /// The lock's token; see [`crate::Guard::token`].
    pub fn token(&self) -> GuardToken {
        self.0.token()
    }

    /// Whom the lock excludes; see [`crate::Guard::mode`].
    pub fn mode(&self) -> Mode {
        self.0.mode()
    }

    /// Makes a writer a reader; see [`crate::Guard::downgrade`].
    ///
    /// # Errors
    /// As [`Guard::extend`]. The lock is a reader's in any case.
    ///
    /// # Panics
    /// Inside an async runtime; the downgrade goes on then.
    pub fn downgrade(&self) -> Result<Duration, ExtendError> {
        let caller = self.0.driver().caller();
        let (mut outcome, span) = self.0.ask_downgrade();
        self.0.extended(caller.wait(&mut outcome).ok(), &span)
    }

    /// The fencing token; see [`crate::Guard::fence`].
    pub fn fence(&self) -> Option<u64> {
        self.0.fence()
    }

    /// Whether a later holder may exist; see [`crate::Guard::is_superseded`].
    pub fn is_superseded(&self) -> bool {
        self.0.is_superseded()
    }

    /// Whether the lock is held now; see [`crate::Guard::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.0.is_valid()
    }

    /// When the validity ends; see [`crate::Guard::valid_until`].
    pub fn valid_until(&self) -> Option<BootTime> {
        self.0.valid_until()
    }

    /// How long the lock is held from now; see [`crate::Guard::remaining`].
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// The number of votes that count; see [`crate::Guard::votes`].
    pub fn votes(&self) -> usize {
        self.0.votes()
    }

    /// Why the lock is not held any more, once it is not.
    pub fn loss_reason(&self) -> Option<LossCause> {
        self.0.loss_reason()
    }

    /// Blocks until the lock is lost.
    pub fn lost(&self) -> LossCause {
        self.0.wait_lost()
    }

    /// How the nodes confirm the lock, as of now; see [`crate::Guard::health`].
    pub fn health(&self) -> Health {
        self.0.health().borrow().clone()
    }

    /// Extends the lock now; see [`crate::Guard::extend`].
    ///
    /// # Errors
    /// [`ExtendError`]; none of them deletes anything.
    ///
    /// # Panics
    /// Inside an async runtime.
    pub fn extend(&self) -> Result<Duration, ExtendError> {
        let caller = self.0.driver().caller();
        let (outcome, span) = self.0.ask_extend();
        self.0.extended(caller.wait(outcome).ok(), &span)
    }

    /// Gives the lock back on every node, and tells how that went; see [`crate::Guard::release`].
    ///
    /// # Panics
    /// Inside an async runtime. The release is queued even then.
    pub fn release(self) -> Released {
        let caller = self.0.driver().caller();
        let (report, releasing) = self.0.ask_release();
        releasing.conclude(caller.wait(report))
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
