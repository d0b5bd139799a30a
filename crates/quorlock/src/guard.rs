//! The guard: what a caller holds while it holds a lock.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use quorlock_core::{
    BootTime, Event, Extended, LossCause, Mode, NodeReleased, Outcome, ReleaseReport, Token,
};
use tokio::sync::{oneshot, watch};

pub(crate) use self::claim::{
    CallReply, Called, CalledReceiver, Claim, Granted, ReportReceiver, ReportSender,
};
pub use self::health::Health;
pub(crate) use self::held::Held;
use crate::common::{Common, Names};
use crate::driver::{DriverHandle, ReplyTo};
use crate::error::{ExtendError, HoldError, NodeAnswer};

pub(crate) mod claim;
mod health;
mod held;

/// A held lock. Before the runtime it was built on ends, call
/// [`Client::shutdown`](crate::Client::shutdown), or releases that are owed are left to the ttl.
///
/// While the guard lives the lock is extended automatically (unless that was switched off), for
/// `max_hold` at most. The lock is given back by [`Guard::release`], which tells how that went, or
/// by dropping the guard, which neither blocks nor needs a runtime.
///
/// A guard is no handle to copy, and no two guards share a lock. It may be moved to any thread and
/// dropped anywhere, on a runtime or off it, also while a panic unwinds.
///
/// # What it promises
/// While [`Guard::is_valid`] says so, no other client holds the lock, under the assumptions that
/// [`guarantees`](crate::guarantees) states. It cannot stop a process that was paused from writing late: between the
/// question and the write, time passes. Ask right before what matters, keep that short, and let
/// [`Guard::lost`] stop long work.
#[must_use = "a guard that is dropped gives its lock back at once"]
pub struct Guard {
    held: Granted,
    /// Keeps the client alive.
    common: Arc<Common>,
    /// [`Guard::release`] has seen to it: nothing is left for the drop.
    given_back: bool,
}

/// What makes a guard unlike any other: the token that the nodes store, and, if the lock was handed
/// over within this process, the turn.
///
/// Printed as the token's 40 hexadecimal digits, followed by `/` and the turn unless it is the first.
/// `Debug` shows only the first digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GuardToken {
    token: Token,
    handover_count: u32,
}

impl GuardToken {
    pub(crate) const fn new(token: Token, handover_count: u32) -> Self {
        Self { token, handover_count }
    }

    /// What the nodes store.
    pub const fn stored(self) -> Token {
        self.token
    }

    /// How often the lock was handed over under this token before.
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
    pub(crate) fn new(held: Granted, common: Arc<Common>) -> Self {
        Self { held, common, given_back: false }
    }

    /// The resource that is locked. Of several, their names in alphabetical order, separated by a comma and a space.
    pub fn resource(&self) -> &str {
        &self.held.resource
    }

    /// The token under which the lock is stored on the nodes, and how often the lock was handed over
    /// under it. Unique to this guard; treat it as a secret where others may write to the nodes.
    pub fn token(&self) -> GuardToken {
        self.held.token
    }

    /// Whom the lock excludes: as a writer (the default) all others, as a reader
    /// ([`Acquire::shared`](crate::Acquire::shared)) the writers.
    pub fn mode(&self) -> Mode {
        self.held.mode()
    }

    /// The fencing token: larger than that of every earlier holder of this lock, and smaller than that of every
    /// later one, and above zero. `None` if none was asked for ([`Acquire::fenced`](crate::Acquire::fenced)), and once the
    /// lock is a reader's ([`Guard::downgrade`]).
    ///
    /// Send it with every write to what the lock protects. Let that refuse, in the same atomic
    /// step, any number below the largest that it has seen. A holder that was paused, and does not
    /// know that it has lost the lock, can then do no harm. A new holder must make its number known
    /// there before it reads. What [`guarantees`](crate::guarantees) says of fences is true without
    /// any assumption about time while a majority of the nodes keeps its data.
    pub fn fence(&self) -> Option<u64> {
        let fence = self.held.fence.filter(|_| self.mode() == Mode::Exclusive);
        fence.map(NonZeroU64::get)
    }

    /// A node that had lost this lock's vote has given a larger fence out since: somebody may have had
    /// the lock after us, and what the lock protects may refuse our number. The votes of others are held
    /// as before. Once true it stays true; in a forked child it is false, as [`Guard::is_valid`].
    pub fn is_superseded(&self) -> bool {
        self.held.is_superseded()
    }

    /// Whether the lock is held right now. Reads the clock at every call, and asks nobody.
    ///
    /// Once false it stays false, whatever the nodes answer later. False also in a forked child: the
    /// lock is the parent's.
    pub fn is_valid(&self) -> bool {
        self.held.remaining().is_some()
    }

    /// For how long the lock is held if it is not extended any more; zero once it is lost.
    ///
    /// Ends `margin` before the protocol's validity does, together with [`Guard::is_valid`].
    pub fn remaining(&self) -> Duration {
        self.held.remaining().unwrap_or_default()
    }

    /// When [`Guard::is_valid`] turns, if the lock is not extended any more: a point on the boot clock, which counts
    /// while the machine sleeps (Linux: `CLOCK_BOOTTIME`). `None` once the lock is lost.
    ///
    /// For a deadline that is handed on, to another process for example. It is no [`std::time::Instant`], because that
    /// stops while the machine sleeps. A wall clock that is set ahead ends the lock before this point.
    pub fn valid_until(&self) -> Option<BootTime> {
        self.held.valid_until()
    }

    /// How many nodes' votes are held; zero once the lock is lost. A holder of all N votes survives
    /// the early loss of Q−1 of them; one of exactly Q survives 2Q−N−1.
    pub fn votes(&self) -> usize {
        match self.held.remaining() {
            Some(_) => self.held.state().hold.validity().votes(self.common.clock.now()),
            None => 0,
        }
    }

    /// Why the lock is not held any more, once it is not; `None` while it is held.
    pub fn loss_reason(&self) -> Option<LossCause> {
        self.held.loss_reason()
    }

    /// Completes when the lock is lost, with the reason; at once if it has been lost.
    ///
    /// Comes at the instant at which [`Guard::is_valid`] turns, also when the machine has slept or its
    /// wall clock was set: the client's task hears of that from the kernel (Linux). If that task is
    /// blocked or gone, the end of the validity is waited for right here, by the monotonic clock.
    ///
    /// # Cancel safety
    /// Safe: nothing is lost by dropping this future.
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
    /// # let client = Client::builder().custom_nodes([MemoryNode::new("a")]).build()?;
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
            let changed = self.held.changed.notified();
            if let Some(cause) = self.held.loss_reason() {
                return cause;
            }
            let remaining = self.held.remaining().unwrap_or_default();
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep(remaining) => {}
            }
        }
    }

    /// Completes when [`Guard::remaining`], [`Guard::votes`] or [`Guard::is_superseded`] has changed
    /// other than by the passing of time: after an extension, a healed or a lost vote, or the loss of the
    /// lock.
    ///
    /// Counts from the call, not from the first poll: make the future, ask `remaining()`, then await
    /// it, and no change goes unnoticed. Completes at once if the lock is not held any more.
    ///
    /// # Cancel safety
    /// Safe.
    pub fn changed(&self) -> impl Future<Output = ()> + Send {
        let changed = self.held.changed.notified();
        async move {
            if self.held.remaining().is_some() {
                changed.await;
            }
        }
    }

    /// How the nodes confirm the lock, as it changes: whether a quorum confirmed the last extension, and what each node
    /// answered. This announces a loss: as soon as an extension fails, some two thirds of the ttl are left.
    ///
    /// Changes when a quorum does not confirm an extension, when a quorum confirms again, when another node stops or
    /// starts to confirm, and when the lock is lost. A refused connection is noticed at once, a silent node after one node timeout. Extensions are
    /// a third of the ttl apart, and a tenth of it after one that failed. The channel closes when the lock has been
    /// given back and the client has taken note of that. The last value stays after a loss: it shows what the nodes
    /// answered while the lock was being lost.
    ///
    /// While all nodes confirm, this costs nothing, whether or not anybody listens. In a forked child the channel is
    /// closed, and its value has no nodes.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use quorlock::{Client, node::MemoryNode};
    /// # let client = Client::builder().custom_nodes([MemoryNode::new("a")]).build()?;
    /// let guard = client.acquire("orders").await?;
    /// let mut health = guard.health();
    /// assert!(health.borrow().is_confirmed());
    /// tokio::spawn(async move {
    ///     while health.changed().await.is_ok() {
    ///         eprintln!("orders: {}", *health.borrow_and_update());
    ///     }
    /// });
    /// # Ok(())
    /// # }
    /// ```
    pub fn health(&self) -> watch::Receiver<Health> {
        self.held.health(&self.common.names)
    }

    /// Extends the lock to its full ttl now, beside the automatic extension. Returns the time for
    /// which it is held. Nodes that have lost the key get it back on this occasion.
    ///
    /// Takes one round trip; at most one node timeout if nodes do not answer. If an extension is
    /// under way already, its outcome is told.
    ///
    /// # Errors
    /// [`ExtendError::Lost`] if the lock is lost: what is left of it is given back everywhere. The
    /// others delete nothing: the lock is held as long as before, or longer.
    ///
    /// # Cancel safety
    /// Safe: the extension goes on; only its outcome is not told.
    pub async fn extend(&self) -> Result<Duration, ExtendError> {
        let (outcome, span) = self.ask_extend();
        self.extended(outcome.await.ok(), &span)
    }

    /// Makes a writer a reader, without a moment in which another writer could have the lock. Other readers may have it
    /// as well from then on. Returns the time for which it is held.
    ///
    /// [`Guard::mode`] turns and [`Guard::fence`] is gone before anything is sent, and for good: a writer does not come
    /// back, whatever the nodes answer. A reader is never made a writer: two that wanted that would wait for each other.
    /// A guard that is a reader's already stays as it is, and the lock is extended.
    ///
    /// Takes one round trip; at most one node timeout if nodes do not answer.
    ///
    /// # Errors
    /// As [`Guard::extend`]. With [`ExtendError::Unconfirmed`] the lock is held, as a reader's; nodes that did not confirm
    /// let other readers in only when they are asked again by the next extension, or when the vote has ended there.
    ///
    /// # Cancel safety
    /// Safe: the downgrade goes on; only its outcome is not told.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use quorlock::{Client, Mode, node::MemoryNode};
    /// # let client = Client::builder().custom_nodes([MemoryNode::new("a")]).build()?;
    /// let guard = client.acquire("report").await?;
    /// // … write the report; from here on it is only read …
    /// guard.downgrade().await?;
    /// assert_eq!(guard.mode(), Mode::Shared);
    /// let other = client.acquire("report").shared().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn downgrade(&self) -> Result<Duration, ExtendError> {
        let (outcome, span) = self.ask_downgrade();
        let outcome = outcome.await.ok();
        if mutant!(ModeTurnedLate) {
            self.held.downgrade();
        }
        self.extended(outcome, &span)
    }

    pub(crate) fn ask_downgrade(&self) -> (oneshot::Receiver<Extended>, tracing::Span) {
        let is_own = self.held.is_own_process();
        if !is_own || !(mutant!(ModeTurnedLate) || self.held.downgrade()) {
            return self.ask_extend();
        }
        let span = tracing::debug_span!(parent: self.held.span(), "downgrade");
        let (reply, outcome) = oneshot::channel();
        let lock = self.held.lock;
        self.common.driver.send_and_drive(Event::Downgrade { lock }, ReplyTo::Extend(reply));
        (outcome, span)
    }

    pub(crate) fn driver(&self) -> &DriverHandle {
        &self.common.driver
    }

    pub(crate) fn ask_extend(&self) -> (oneshot::Receiver<Extended>, tracing::Span) {
        let span = tracing::debug_span!(parent: self.held.span(), "extend");
        let (reply, outcome) = oneshot::channel();
        if self.is_valid() {
            let event = Event::Extend { lock: self.held.lock };
            self.common.driver.send_and_drive(event, ReplyTo::Extend(reply));
        } else {
            let cause = self.held.loss_reason().unwrap_or(LossCause::Expired);
            // The receiver is right here.
            let _ = reply.send(Extended::Lost(cause));
        }
        (outcome, span)
    }

    /// `None`: the driver is gone, and with it the lock.
    pub(crate) fn extended(
        &self,
        outcome: Option<Extended>,
        span: &tracing::Span,
    ) -> Result<Duration, ExtendError> {
        let confirmed = outcome == Some(Extended::Confirmed);
        span.in_scope(|| tracing::debug!(confirmed, "extended"));
        let resource = self.held.resource.clone();
        match outcome.unwrap_or(Extended::Lost(LossCause::Shutdown)) {
            Extended::Confirmed => match self.held.remaining() {
                Some(remaining) => Ok(remaining),
                None => Err(self.lost_as(LossCause::Expired)),
            },
            Extended::Lost(cause) => Err(self.lost_as(cause)),
            Extended::HoldLimit => Err(ExtendError::HoldLimit { resource }),
            Extended::Unconfirmed(results) => {
                let nodes = NodeAnswer::all(&self.common.names, None, results);
                Err(ExtendError::Unconfirmed { resource, nodes })
            }
        }
    }

    /// The lock was lost while work was done under it.
    pub(crate) fn lost_during_work(&self, cause: LossCause) -> HoldError {
        let health = self.held.last_health();
        let nodes = health.map(|health| health.unconfirmed().cloned().collect());
        HoldError::Lost {
            resource: self.held.resource.clone(),
            cause,
            nodes: nodes.unwrap_or_default(),
        }
    }

    /// Who is told that the lock is lost must find it so, although the driver, on a thread of its
    /// own, may be just about to say it here.
    fn lost_as(&self, cause: LossCause) -> ExtendError {
        self.held.lose(cause);
        let cause = self.held.loss_reason().unwrap_or(cause);
        ExtendError::Lost { resource: self.held.resource.clone(), cause }
    }

    /// Gives the lock back on every node, and tells how that went.
    ///
    /// The release is queued by the call itself: the guard is invalid from then on, whether or not
    /// the future is awaited. It is never an error that a lock had expired.
    ///
    /// Takes one round trip; at most one node timeout if nodes do not answer. What is owed to a node
    /// then is given back when it answers again.
    ///
    /// # Cancel safety
    /// Safe: the release goes on.
    pub fn release(self) -> impl Future<Output = Released> + Send + 'static {
        let (report, releasing) = self.ask_release();
        async move { releasing.conclude(report.await) }
    }

    /// Marks the guard invalid first, then queues the release (S14).
    pub(crate) fn ask_release(mut self) -> (ReportReceiver, Releasing) {
        let span = tracing::debug_span!(parent: self.held.span(), "release");
        let releasing = Releasing { names: self.common.names.clone(), span };
        let (reply, report) = self.held.release_report();
        self.held.release();
        self.given_back = true;
        if !mutant!(ReleaseUnsent) {
            let event = Event::Release { lock: self.held.lock, report: true };
            self.common.driver.send_and_drive(event, ReplyTo::Release(reply));
        }
        (report, releasing)
    }

    /// Blocks until the lock is lost.
    pub(crate) fn wait_lost(&self) -> LossCause {
        loop {
            if let Some(cause) = self.held.loss_reason() {
                return cause;
            }
            let mut state = self.held.state();
            let Some(remaining) = state.hold.remaining(self.common.clock.now()) else {
                continue;
            };
            state.blocked += 1;
            let waited = self.held.changed_blocking.wait_timeout(state, remaining);
            let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            state.blocked -= 1;
        }
    }
}

impl Drop for Guard {
    /// Gives the lock back: pushes the release into the client's queue. Never blocks, never panics,
    /// needs no runtime; in a forked child it does nothing, for the lock is the parent's.
    fn drop(&mut self) {
        if mutant!(DropKeeps)
            || self.given_back
            || !self.held.is_own_process()
            || !self.held.release()
        {
            return;
        }
        tracing::debug!(parent: self.held.span(), "dropped");
        let event = Event::Release { lock: self.held.lock, report: false };
        self.common.driver.send(event, ReplyTo::Nobody);
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("resource", &self.held.resource)
            .field("remaining", &self.remaining())
            .field("votes", &self.votes())
            .finish_non_exhaustive()
    }
}

/// A release under way.
pub(crate) struct Releasing {
    names: Names,
    span: tracing::Span,
}

impl Releasing {
    /// Without a report the driver is gone, and so nobody knows.
    pub(crate) fn conclude(self, report: Option<ReleaseReport>) -> Released {
        let unknown =
            || ReleaseReport { outcome: Outcome::Unknown, handed_over: false, nodes: Vec::new() };
        let ReleaseReport { outcome, handed_over, nodes } = report.unwrap_or_else(unknown);
        let names = self.names;
        self.span.in_scope(|| tracing::debug!(?outcome, handed_over, "released"));
        Released { outcome, handed_over, names, nodes }
    }
}

/// How a release went. Never an error: a lock that had expired is as free as one that was released.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct Released {
    /// The outcome, by our clock and the nodes' answers.
    pub outcome: Outcome,
    /// The lock was passed on to the next caller of this client that waited for it, without a word
    /// to the nodes: for others it is still held.
    pub handed_over: bool,
    names: Names,
    nodes: Vec<NodeReleased>,
}

impl Released {
    /// What each node said, with its name; in the order of the client's list. Empty if the client
    /// was shut down, or its runtime gone.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, &NodeReleased)> {
        self.names.iter().map(|name| &**name).zip(&self.nodes)
    }

    /// The lock was valid until it was given back, and is free now, or the next caller's.
    pub fn is_released(&self) -> bool {
        self.outcome == Outcome::Released
    }
}

#[cfg(test)]
mod tests;
