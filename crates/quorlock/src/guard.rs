//! The guard: the object by which a caller holds a lock.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use quorlock_core::{BootTime, Event, Extended, LossCause, Mode, Token, Validity};
use tokio::sync::oneshot;

pub(crate) use self::cell::LockCell;
pub use self::fenced::FencedGuard;
pub(crate) use self::fenced::LockGuard;
pub use self::health::{Health, HealthChanges};
pub use self::released::Released;
pub(crate) use self::reply::{CallerSide, DriverSide, Progress, Reply, Stage};
use crate::client::context::ClientContext;
use crate::driver::{DriverHandle, ReplyTo};
use crate::error::{DetachError, ExtendError, HoldError, NodeAnswer};
use crate::lease::Lease;

mod cell;
mod fenced;
mod health;
mod released;
pub(crate) mod reply;

/// A held lock.
///
/// While the guard lives, the client extends the lock for [`max_hold`](crate::LockOptions::max_hold) at most, unless
/// [`auto_extend`](crate::LockOptions::auto_extend) is off. [`Guard::release`] releases the lock and returns how that went.
/// Dropping the guard releases the lock too; the drop neither blocks nor needs a runtime. Call
/// [`Client::shutdown`](crate::Client::shutdown) before the client's runtime ends. Otherwise the keys of releases that are
/// still owed stay until their ttl ends.
///
/// Each lock has one guard. The guard can be moved to any thread and dropped anywhere: on a runtime, without one, and
/// while a panic unwinds.
///
/// # Guarantee
/// While [`Guard::is_valid`] returns true, no other client holds the lock, under the assumptions that
/// [`guarantees`](crate::guarantees) states. The guard cannot stop a process that was paused from writing late, because
/// time passes between the check and the write. Check right before each write, write at once, and let
/// [`Guard::lost`] stop long work. A [`FencedGuard`] closes this gap.
#[must_use = "a guard that is dropped gives its lock back at once"]
pub struct Guard {
    pub(crate) cell: Arc<LockCell>,
    /// Keeps the client alive.
    context: Arc<ClientContext>,
    token: GuardToken,
    fencing_token: Option<NonZeroU64>,
    mode: Mode,
    /// Whether the release is queued, or none is needed. The drop then queues none.
    given_back: bool,
    /// Whether the drop leaves the lock on the nodes, as for a lock of `Client::take`.
    pub(crate) stays: bool,
}

/// Identifies a guard: the token that the nodes store, and the number of times that this process handed the lock over under
/// that token.
///
/// Displayed as the token's 40 hexadecimal digits, followed by `/` and the number of hand-overs unless that is zero. `Debug`
/// shows only the first digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GuardToken {
    token: Token,
    handover_count: u32,
}

impl GuardToken {
    pub(crate) const fn new(token: Token, handover_count: u32) -> Self {
        Self { token, handover_count }
    }

    /// The token that the nodes store.
    pub const fn stored(self) -> Token {
        self.token
    }

    /// The number of times that this process handed the lock over under this token, up to this guard.
    pub const fn handover_count(self) -> u32 {
        self.handover_count
    }
}

impl fmt::Display for GuardToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.handover_count {
            0 => write!(f, "{}", self.token),
            handover_count => write!(f, "{}/{handover_count}", self.token),
        }
    }
}

impl Guard {
    /// The name of the resource. Several names are in alphabetical order, separated by a comma and a space.
    pub fn resource(&self) -> &str {
        &self.cell.resource
    }

    /// The token of this guard, which no other guard has. Treat it as a secret if others can write to the nodes.
    pub fn token(&self) -> GuardToken {
        self.token
    }

    /// Whether the lock is a writer's, which excludes all other holders, or a reader's
    /// ([`Client::acquire_shared`](crate::Client::acquire_shared), [`Guard::downgrade`]), which excludes writers.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether the lock is held now. Reads the clock at every call; sends nothing.
    ///
    /// Once false it stays false, whatever the nodes answer later. False in a forked child, because the lock is the
    /// parent's.
    pub fn is_valid(&self) -> bool {
        self.cell.remaining().is_some()
    }

    /// The time until [`Guard::is_valid`] turns false if the lock is not extended; zero once the lock is lost. The
    /// guard turns invalid earlier than the protocol requires, by the option [`margin`](crate::LockOptions::margin).
    pub fn remaining(&self) -> Duration {
        self.cell.remaining().unwrap_or_default()
    }

    /// The time at which [`Guard::is_valid`] turns false if the lock is not extended, on the boot clock, which counts while
    /// the machine sleeps (Linux: `CLOCK_BOOTTIME`). `None` once the lock is lost.
    ///
    /// Use it to pass a deadline on, such as to another process. It is not a [`std::time::Instant`], because that stops while
    /// the machine sleeps. A wall clock that is set ahead ends the lock earlier.
    pub fn valid_until(&self) -> Option<BootTime> {
        self.cell.valid_until()
    }

    /// The number of nodes whose vote counts; zero once the lock is lost. With a quorum Q of N nodes, a holder of all N
    /// votes survives the early loss of Q−1 of them, and a holder of Q votes survives the early loss of 2Q−N−1.
    pub fn votes(&self) -> usize {
        self.cell.votes(Validity::votes)
    }

    /// The number of nodes that have confirmed the lock since its last extension began, or that granted it; zero once the
    /// lock is lost. Their votes last for as long as the lock is valid now. [`Guard::votes`] also counts earlier votes, of
    /// nodes that have not answered since, until these end.
    pub fn confirmed_votes(&self) -> usize {
        self.cell.votes(Validity::lasting_votes)
    }

    /// The cause of the loss; `None` while the lock is held.
    pub fn loss_cause(&self) -> Option<LossCause> {
        self.cell.loss_cause()
    }

    /// Completes when the lock is lost, and returns the cause. Completes at once if the lock is lost already.
    ///
    /// It completes when [`Guard::is_valid`] turns false, also after the machine slept or its wall clock was set, because
    /// the kernel notifies the client's task of both (Linux). If that task is blocked or has ended, this future itself
    /// waits for the end of the validity, by the monotonic clock.
    ///
    /// # Cancel safety
    /// Safe: the guard is unchanged.
    ///
    /// # Panics
    /// If polled outside a tokio runtime with time enabled.
    ///
    /// # Examples
    /// ```
    /// # async fn work() {}
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use quorlock::{Client, node::MemoryNode};
    /// # let client = Client::builder().memory_nodes([MemoryNode::new("a")]).build()?;
    /// # let guard = client.acquire("orders").await?;
    /// tokio::select! {
    ///     () = work() => println!("done under the lock: {}", guard.is_valid()),
    ///     cause = guard.lost() => println!("stopped: {cause:?}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lost(&self) -> LossCause {
        loop {
            let changed = self.cell.changed.notified();
            if let Some(cause) = self.cell.loss_cause() {
                return cause;
            }
            let remaining = self.cell.remaining().unwrap_or_default();
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep(remaining) => {}
            }
        }
    }

    /// Completes when [`Guard::remaining`], [`Guard::votes`] or [`FencedGuard::is_superseded`] changes by anything other than
    /// the passing of time: an extension, a vote that is lost or restored, or the loss of the lock. Completes at once if the
    /// lock is not held.
    ///
    /// The future covers every change after this method is called, even before its first poll. Make the future, read
    /// `remaining()`, then await the future, and no change is missed.
    ///
    /// # Cancel safety
    /// Safe.
    pub fn changed(&self) -> impl Future<Output = ()> + Send {
        let changed = self.cell.changed.notified();
        async move {
            if self.cell.remaining().is_some() {
                changed.await;
            }
        }
    }

    /// The state of the lock on the nodes: whether a quorum confirmed the last extension, and the last answer of each
    /// node. It warns of a loss: when an extension fails, about two thirds of the ttl are still left.
    ///
    /// The value stays after a loss, with the answers that led to it. In a forked child it has no nodes.
    pub fn health(&self) -> Health {
        self.cell.health(&self.context.names).borrow().clone()
    }

    /// Returns a receiver of each later [`health`](Self::health).
    ///
    /// The health changes when a quorum fails to confirm an extension, when a quorum confirms again, when another node starts
    /// or stops confirming, and when the lock is lost. A refused connection shows at once, and a silent node after one node
    /// timeout. Extensions are a third of the ttl apart, and a tenth of it after a failure.
    ///
    /// While all nodes confirm, the receiver costs nothing.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use quorlock::{Client, node::MemoryNode};
    /// # let client = Client::builder().memory_nodes([MemoryNode::new("a")]).build()?;
    /// let guard = client.acquire("orders").await?;
    /// assert!(guard.health().is_confirmed());
    /// let mut changes = guard.health_changes();
    /// tokio::spawn(async move {
    ///     while let Some(health) = changes.next().await {
    ///         eprintln!("orders: {health}");
    ///     }
    /// });
    /// # Ok(())
    /// # }
    /// ```
    pub fn health_changes(&self) -> HealthChanges {
        HealthChanges(self.cell.health(&self.context.names))
    }

    /// Extends the lock to its full ttl now, in addition to the automatic extension, and returns [`Guard::remaining`]. Nodes
    /// that have lost the key store it again.
    ///
    /// Takes one round trip, or one node timeout if nodes do not answer. Joins an extension that is in flight. After
    /// [`Guard::downgrade`] it returns when a quorum lets readers in.
    ///
    /// # Errors
    /// [`ExtendError::Lost`] if the lock is lost; the client then releases the keys that are left. After
    /// [`ExtendError::HoldLimit`] and [`ExtendError::Unconfirmed`] no key is deleted, and the lock is held for as long as
    /// before, or longer.
    ///
    /// # Cancel safety
    /// Safe: the extension goes on, and only its outcome is dropped.
    pub async fn extend(&self) -> Result<Duration, ExtendError> {
        self.start_extend().await
    }

    /// [`Guard::extend`] with a future that a blocking caller can poll.
    pub(crate) fn start_extend(
        &self,
    ) -> impl Future<Output = Result<Duration, ExtendError>> + Send + Unpin {
        let span = tracing::debug_span!(parent: self.cell.span(), "extend");
        let (reply, outcome) = oneshot::channel();
        if self.is_valid() {
            let event = Event::Extend { lock: self.cell.lock };
            self.context.driver.send_and_drive(event, ReplyTo::Extend(reply));
        } else {
            let cause = self.cell.loss_cause().unwrap_or(LossCause::Expired);
            // `outcome`, the receiver, still exists, so this cannot fail.
            let _ = reply.send(Extended::Lost(cause));
        }
        // If the driver has ended, the lock ended with it.
        outcome.map(move |outcome| {
            let outcome = outcome.unwrap_or(Extended::Lost(LossCause::Shutdown));
            let confirmed = outcome == Extended::Confirmed;
            span.in_scope(|| tracing::debug!(confirmed, "extended"));
            self.extended(outcome)
        })
    }

    /// Makes a writer a reader. No other writer can hold the lock in between, and other readers can hold it too from then
    /// on. A guard of a reader stays as it is.
    ///
    /// The guard is a reader's when this method returns, before any node has answered, and it never becomes a writer's
    /// again, because two readers that wanted that would wait for each other. The client sends the downgrade in the
    /// background. [`Guard::extend`] then waits until a quorum has confirmed it. A node that does not confirm lets other
    /// readers in after the next extension, or when its vote ends.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use quorlock::{Client, Mode, node::MemoryNode};
    /// # let client = Client::builder().memory_nodes([MemoryNode::new("a")]).build()?;
    /// let guard = client.acquire("report").await?;
    /// // … write the report; from here on it is only read …
    /// let guard = guard.downgrade();
    /// assert_eq!(guard.mode(), Mode::Shared);
    /// let other = client.acquire_shared("report").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn downgrade(mut self) -> Self {
        if !self.cell.is_own_process() {
            return self;
        }
        let is_to_send = self.cell.downgrade();
        self.mode = Mode::Shared;
        if is_to_send {
            tracing::debug!(parent: self.cell.span(), "downgraded");
            let lock = self.cell.lock;
            self.context.driver.send_and_drive(Event::Downgrade { lock }, ReplyTo::Nobody);
        }
        self
    }

    /// Makes the lock independent of this process, and returns it as a lease. The lock stays on the nodes until the lease
    /// ends. Any process with the text of the lease can attach it ([`Client::attach`](crate::Client::attach)), extend it
    /// ([`Client::extend_lease`](crate::Client::extend_lease)) or release it
    /// ([`Client::release_lease`](crate::Client::release_lease)), on any machine.
    ///
    /// The client no longer extends the lock. It waits for the nodes' answers to commands that are in flight, for at most
    /// one node timeout, because a node that has not answered does not vote for the next holder of the lease.
    ///
    /// # Errors
    /// [`DetachError`] if the lock is lost, or too few nodes have answered. The client then releases the lock.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use quorlock::{Client, Lease, node::MemoryNode};
    /// # let client = Client::builder().memory_nodes([MemoryNode::new("a")]).build()?;
    /// let text = client.acquire("orders").await?.detach().await?.to_string();
    /// // … another process …
    /// let guard = client.attach(&text.parse::<Lease>()?).await?;
    /// assert!(guard.is_valid());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn detach(self) -> Result<Lease, DetachError> {
        self.start_detach().await
    }

    /// [`Guard::detach`] with a future that a blocking caller can poll.
    pub(crate) fn start_detach(
        mut self,
    ) -> impl Future<Output = Result<Lease, DetachError>> + Send + Unpin + 'static {
        Box::pin(async move {
            let (reply, detached) = oneshot::channel();
            let resource = self.cell.resource.clone();
            if self.is_valid() {
                let event = Event::Detach { lock: self.cell.lock };
                self.context.driver.send_and_drive(event, ReplyTo::Detach(reply));
            } else {
                // `detached`, the receiver, still exists, so this cannot fail.
                let _ = reply.send(None);
            }
            let Ok(detached) = detached.await else {
                return Err(DetachError::Closed { resource });
            };
            let Some(detached) = detached else {
                return Err(match self.cell.loss_cause() {
                    Some(cause) => DetachError::Lost { resource, cause },
                    None => DetachError::Unanswered { resource },
                });
            };
            self.forget();
            tracing::debug!(parent: self.cell.span(), "detached");
            Ok(Lease::new(&self.context, resource, *detached, self.fencing_token))
        })
    }

    /// Leaves the lock on the nodes. The drop of the guard then releases nothing.
    fn forget(&mut self) {
        self.given_back = true;
        if self.cell.is_own_process() && self.cell.release(false) {
            self.context.driver.send(Event::Forget { lock: self.cell.lock }, ReplyTo::Nobody);
        }
    }

    /// The fencing token of the lock of a [`FencedGuard`].
    pub(crate) fn fencing_token(&self) -> NonZeroU64 {
        let Some(fencing_token) = self.fencing_token else {
            unreachable!("the engine grants a fenced call only with a token")
        };
        fencing_token
    }

    pub(crate) fn driver(&self) -> &DriverHandle {
        &self.context.driver
    }

    fn extended(&self, outcome: Extended) -> Result<Duration, ExtendError> {
        let resource = self.cell.resource.clone();
        match outcome {
            Extended::Confirmed => {
                self.cell.remaining().ok_or_else(|| self.lost_as(LossCause::Expired))
            }
            Extended::Lost(cause) => Err(self.lost_as(cause)),
            Extended::HoldLimit => Err(ExtendError::HoldLimit { resource }),
            Extended::Unconfirmed(results) => {
                let nodes = NodeAnswer::all(&self.context.names, None, results);
                Err(ExtendError::Unconfirmed { resource, nodes })
            }
        }
    }

    pub(crate) fn lost_during_work(&self, cause: LossCause) -> HoldError {
        let health = self.cell.last_health();
        let nodes = health.map(|health| health.unconfirmed().cloned().collect());
        HoldError::Lost {
            resource: self.cell.resource.clone(),
            cause,
            nodes: nodes.unwrap_or_default(),
        }
    }

    /// Records the loss in the cell now. The driver may record it later, on another thread, but a caller that gets the
    /// error must find the guard invalid.
    fn lost_as(&self, cause: LossCause) -> ExtendError {
        self.cell.lose(cause);
        let cause = self.cell.loss_cause().unwrap_or(cause);
        ExtendError::Lost { resource: self.cell.resource.clone(), cause }
    }

    /// Releases the lock on every node, and returns how that went. A lock that had expired is not an error.
    ///
    /// The guard is invalid and the release queued when this method returns, whether or not the future is awaited. Takes one
    /// round trip. If nodes do not answer, the client sends the release again, and the future waits until a quorum has
    /// confirmed, the lock is over, or five seconds have passed. Then, or if too few nodes may still confirm, it reports
    /// [`Outcome::Unknown`](crate::Outcome::Unknown).
    ///
    /// # Cancel safety
    /// Safe: the release goes on.
    pub fn release(self) -> impl Future<Output = Released> + Send + 'static {
        self.start_release()
    }

    /// [`Guard::release`] with a future that a blocking caller can poll.
    pub(crate) fn start_release(
        mut self,
    ) -> impl Future<Output = Released> + Send + Unpin + 'static {
        let span = tracing::debug_span!(parent: self.cell.span(), "release");
        let names = self.context.names.clone();
        self.cell.release(true);
        self.given_back = true;
        let event = Event::Release { lock: self.cell.lock, report: true };
        let reply = match self.context.driver.send_and_drive(event, ReplyTo::Nobody) {
            true => CallerSide::new(self.cell.clone()),
            false => CallerSide::without_driver(),
        };
        reply.map(move |reply| {
            let released = Released::new(reply, names);
            let Released { outcome, handed_over, .. } = released;
            span.in_scope(|| tracing::debug!(?outcome, handed_over, "released"));
            released
        })
    }
}

impl Drop for Guard {
    /// Queues the release. Never blocks, never panics, and needs no runtime. Does nothing in a forked child, because the
    /// lock is the parent's.
    fn drop(&mut self) {
        if self.stays && !self.given_back {
            return self.forget();
        }
        if self.given_back || !self.cell.is_own_process() || !self.cell.release(false) {
            return;
        }
        tracing::debug!(parent: self.cell.span(), "dropped");
        let event = Event::Release { lock: self.cell.lock, report: false };
        self.context.driver.send(event, ReplyTo::Nobody);
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("resource", &self.cell.resource)
            .field("remaining", &self.remaining())
            .field("votes", &self.votes())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
