//! A call for a lock: its options, and the future that waits for it.

mod waiting;

use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use quorlock_core::{Delay, Event, Keys, LockId, Mode, Origin, Request};
use tokio::sync::mpsc;

use crate::client::state::ClientState;
use crate::driver::ReplyTo;
use crate::error::{AcquireError, HoldError, LeaseError};
use crate::guard::{CallerSide, Guard, LockCell, LockGuard, Progress, Reply};
use crate::options::LockOptions;
use crate::resources::Resources;

pub use self::waiting::Waiting;

/// A call for a lock. [`Client::acquire`](crate::Client::acquire) and its siblings return one: set options if the client's
/// do not fit, then await it.
///
/// `G` is the guard that the call returns: a [`Guard`], or a [`FencedGuard`](crate::FencedGuard) for
/// [`Client::acquire_fenced`](crate::Client::acquire_fenced).
///
/// Nothing is sent before the first poll.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// # use quorlock::{AcquireError, Client, LockOptions, node::MemoryNode};
/// # let client = Client::builder().memory_nodes([MemoryNode::new("a")]).build()?;
/// let options = LockOptions::new().wait(Duration::from_secs(2));
/// match client.acquire("orders").options(options).await {
///     Ok(guard) => assert!(guard.is_valid()),
///     Err(error) if error.is_contended() => println!("another client holds it: {error}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "a call does nothing unless it is awaited"]
pub struct Acquire<G = Guard> {
    client: Arc<ClientState>,
    /// The names of the resources, as messages show them.
    resource: Arc<str>,
    resources: Resources,
    mode: Mode,
    origin: Origin,
    is_fenced: bool,
    /// The options of this call; `None` if it has the client's options.
    options: Option<LockOptions>,
    /// The reason why the call cannot be made; `None` if it can be made.
    refused: Option<AcquireError>,
    /// The lease's ttl and the time until its `max_hold` ends; `None` unless the call attaches a lease.
    lease: Option<(Duration, Duration)>,
    progress: Option<mpsc::Sender<Waiting>>,
    guard: PhantomData<fn() -> G>,
}

impl Acquire {
    pub(crate) fn new(client: Arc<ClientState>, resources: Resources, mode: Mode) -> Self {
        let resource = resources.title();
        Self {
            client,
            resource,
            resources,
            mode,
            origin: Origin::Absent,
            is_fenced: false,
            options: None,
            refused: None,
            lease: None,
            progress: None,
            guard: PhantomData,
        }
    }

    /// Sets the origin, which decides how the nodes set the keys, and options that the user can still override.
    pub(crate) fn setting(self, origin: Origin, options: LockOptions) -> Self {
        Self { origin, ..self }.options(options)
    }

    /// The same call with a fencing token.
    pub(crate) fn fenced<G>(self) -> Acquire<G> {
        Acquire { is_fenced: true, ..self.returning() }
    }
}

impl<G> Acquire<G> {
    /// The same call, with another type of guard.
    pub(crate) fn returning<H>(self) -> Acquire<H> {
        Acquire {
            client: self.client,
            resource: self.resource,
            resources: self.resources,
            mode: self.mode,
            origin: self.origin,
            is_fenced: self.is_fenced,
            options: self.options,
            refused: self.refused,
            lease: self.lease,
            progress: self.progress,
            guard: PhantomData,
        }
    }

    /// The same call for a lease with this ttl, and this time until its `max_hold` ends.
    pub(crate) fn of_lease(self, ttl: Duration, hold_left: Duration) -> Self {
        Self { lease: Some((ttl, hold_left)), ..self }
    }

    /// The same call, which fails with this error if there is one.
    pub(crate) fn refused(self, refused: Option<AcquireError>) -> Self {
        Self { refused, ..self }
    }

    /// Sets options for this call. An option that `options` does not set keeps the value of an earlier call of this
    /// method, or of the client.
    ///
    /// Awaiting the call returns [`AcquireError::Invalid`] if the options do not fit together. Nothing is sent then.
    pub fn options(mut self, options: LockOptions) -> Self {
        let fallback = self.options.as_ref().unwrap_or(&self.client.options);
        self.options = Some(options.or(fallback));
        self
    }

    /// Sends a report with the reason into `progress` after each failed attempt except the last. By default nothing is
    /// reported.
    ///
    /// A report is dropped if the channel is full, so the client never waits for the receiver. The channel closes when the
    /// call ends.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use quorlock::{Client, node::MemoryNode};
    /// # let client = Client::builder().memory_nodes([MemoryNode::new("a")]).build()?;
    /// let (progress, mut reports) = tokio::sync::mpsc::channel::<quorlock::Waiting>(8);
    /// tokio::spawn(async move {
    ///     while let Some(waiting) = reports.recv().await {
    ///         eprintln!("waiting since {:?}", waiting.elapsed);
    ///     }
    /// });
    /// let guard = client.acquire("orders").progress(progress).await?;
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    pub fn progress(mut self, progress: mpsc::Sender<Waiting>) -> Self {
        self.progress = Some(progress);
        self
    }

    fn request(&self, resources: &Keys) -> Result<Request, AcquireError> {
        if let Some(refused) = &self.refused {
            return Err(refused.clone());
        }
        let keys = self.client.keys(resources)?;
        let (options, timing) = match &self.options {
            Some(options) => (options, options.check(self.client.times)?),
            None => (&self.client.options, self.client.timing),
        };
        let (mut max_hold, mut retry) =
            (options.max_hold_or_default(), options.retry.unwrap_or_default());
        if let Some((lease_ttl, hold_left)) = self.lease {
            let (resource, ttl) = (self.resource.clone(), timing.ttl());
            if ttl < lease_ttl {
                return Err(LeaseError::TtlTooShort { resource, ttl, lease_ttl }.into());
            }
            if ttl > hold_left {
                return Err(LeaseError::HoldLimit { resource }.into());
            }
            max_hold = max_hold.min(hold_left);
            if let Delay::Adaptive { .. } = retry.delay {
                retry.delay = ATTACH_DELAY;
            }
        }
        // The options `auto_extend` and `keep_on_loss` have no effect on a lock with the caller's value.
        let is_taken = matches!(self.origin, Origin::Taken(_));
        Ok(Request {
            keys,
            mode: self.mode,
            origin: self.origin.clone(),
            // The builder limits the prefix to `ClientBuilder::PREFIX_BYTES_MAX` bytes, so its length fits.
            prefix_bytes: u16::try_from(self.client.context.prefix.len()).unwrap_or(u16::MAX),
            owner: options.owner.clone().unwrap_or_default(),
            timing,
            wait: options.wait_or_default(),
            retry,
            automatic: options.auto_extend.unwrap_or(true) && !is_taken,
            keeps_on_loss: options.keep_on_loss.unwrap_or(false) && !is_taken,
            yields_to_pollers: options.yield_to_pollers.unwrap_or(true),
            max_hold,
            progress: self.progress.is_some(),
            fenced: self
                .is_fenced
                .then(|| self.client.counter(resources, options.max_hold_or_default())),
        })
    }
}

/// The delays between the attempts to attach a lease. Attempts that collide give the votes back, and the random delay
/// keeps the next attempts apart.
const ATTACH_DELAY: Delay =
    Delay::Between { min: Duration::from_millis(5), max: Duration::from_millis(50) };

impl<G: LockGuard + Into<Guard>> Acquire<G> {
    /// Acquires the lock, runs `work` with the guard, and releases the lock.
    ///
    /// If the lock is lost, the work's future is dropped at its current `await`. Work that never awaits is not stopped
    /// and must ask [`Guard::is_valid`] itself.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use quorlock::{Client, node::MemoryNode};
    /// # let client = Client::builder().memory_nodes([MemoryNode::new("a")]).build()?;
    /// let sum = client.acquire("orders").hold(async |guard| {
    ///     assert!(guard.is_valid());
    ///     1 + 1
    /// });
    /// assert_eq!(sum.await?, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`HoldError::NotAcquired`] if the work did not start. [`HoldError::Lost`] if the lock was lost before the work was
    /// done; the work may have been done without the lock. In both cases the lock's keys are released, or expire.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work at its current `await` and releases the lock.
    pub async fn hold<T>(self, work: impl AsyncFnOnce(&G) -> T) -> Result<T, HoldError> {
        let guard = self.await?;
        let held = guard.as_guard();
        let lost = |cause| held.lost_during_work(cause);
        let result = tokio::select! {
            biased;
            cause = held.lost() => return Err(lost(cause)),
            result = work(&guard) => result,
        };
        if let Some(cause) = held.loss_cause() {
            return Err(lost(cause));
        }
        // The work has ended under a valid lock, so its result does not depend on the outcome of the release.
        let _ = guard.into().release().await;
        Ok(result)
    }
}

impl<G: LockGuard> IntoFuture for Acquire<G> {
    type Output = Result<G, AcquireError>;
    type IntoFuture = Acquiring<G>;

    fn into_future(self) -> Acquiring<G> {
        let span = tracing::debug_span!("acquire", resource = &*self.resource);
        let resources = self.resources.clone().check();
        let several = resources.as_ref().ok().filter(|it| it.single().is_none()).cloned();
        let request = match resources {
            Ok(resources) => self.request(&resources),
            Err(invalid) => Err(invalid.into()),
        };
        Acquiring {
            client: self.client,
            resource: self.resource,
            several,
            span,
            progress: self.progress,
            state: State::Ready(request),
            guard: PhantomData,
        }
    }
}

impl<G> fmt::Debug for Acquire<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").field("resource", &self.resource).finish_non_exhaustive()
    }
}

/// The future of a call for a lock: `.await` makes it from an [`Acquire`], and
/// [`Client::try_acquire`](crate::Client::try_acquire) returns it.
///
/// `Send` and `'static`. May be polled on any runtime, or none.
///
/// # Cancel safety
/// Dropping the future at any point releases its votes and leaves the local queue. The drop neither blocks nor
/// needs a runtime.
///
/// # Panics
/// If polled again after it has returned.
#[must_use = "a call does nothing unless it is awaited"]
pub struct Acquiring<G = Guard> {
    client: Arc<ClientState>,
    resource: Arc<str>,
    /// The names of the resources; `None` if there is only one.
    several: Option<Keys>,
    span: tracing::Span,
    progress: Option<mpsc::Sender<Waiting>>,
    state: State,
    guard: PhantomData<fn() -> G>,
}

enum State {
    Ready(Result<Request, AcquireError>),
    Asked(Asked),
    Done,
}

struct Asked {
    lock: LockId,
    caller_side: CallerSide,
}

impl<G: LockGuard> Acquiring<G> {
    /// Sends the request to the driver.
    pub(crate) fn start(&mut self) -> Result<(), AcquireError> {
        let State::Ready(request) = std::mem::replace(&mut self.state, State::Done) else {
            return Ok(());
        };
        let request = request?;
        let lock = self.client.new_lock();
        let (mut driver_side, caller_side) =
            LockCell::call(lock, self.resource.clone(), &self.client.context);
        driver_side.progress = self.progress.take().map(|progress| {
            let (names, several) = (self.client.context.names.clone(), self.several.clone());
            let quorum = self.client.quorum;
            Box::new(move |report| {
                let waiting = Waiting::new((&names, several.as_ref()), quorum, report);
                // Neither a full channel nor a closed one may delay the driver.
                let _ = progress.try_send(waiting);
            }) as Progress
        });
        let event = Event::Acquire { lock, request };
        self.client.context.driver.send_and_drive(event, ReplyTo::Acquire(driver_side));
        self.state = State::Asked(Asked { lock, caller_side });
        Ok(())
    }

    /// The result of the call. `reply` is the driver's reply, or `None` if the driver has ended.
    fn result_of(&mut self, reply: Option<Reply>) -> Result<G, AcquireError> {
        self.state = State::Done;
        let _entered = self.span.enter();
        let resource = self.resource.clone();
        match reply {
            Some(Reply::Granted(guard)) => {
                tracing::debug!(votes = guard.votes(), "acquired");
                Ok(G::from_guard(guard))
            }
            Some(Reply::Refused(refusal)) => {
                let attempts = refusal.attempts;
                let needed = self.client.quorum.needed();
                let (context, several) = (&self.client.context, self.several.as_ref());
                let error = AcquireError::new(resource, (context, needed), several, *refusal);
                // The log line leaves out the error, because the error quotes values that other libraries stored.
                tracing::debug!(attempts, contended = error.is_contended(), "not acquired");
                Err(error)
            }
            Some(Reply::Released(_)) | None => Err(AcquireError::Closed { resource }),
        }
    }

    /// Blocks until the call is done.
    ///
    /// # Panics
    /// Inside an async runtime. The call is cancelled then, as any dropped future is.
    pub(crate) fn wait(mut self) -> Result<G, AcquireError> {
        let caller = self.client.context.driver.caller();
        self.start()?;
        let State::Asked(asked) = &mut self.state else { unreachable!("started just now") };
        let reply = caller.wait(&mut asked.caller_side);
        self.result_of(reply)
    }
}

impl<G: LockGuard> Future for Acquiring<G> {
    type Output = Result<G, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let State::Ready(_) = this.state {
            this.start()?;
        }
        let State::Asked(asked) = &mut this.state else {
            panic!("polled after it was done");
        };
        let reply = Pin::new(&mut asked.caller_side).poll(cx);
        reply.map(|reply| this.result_of(reply))
    }
}

impl<G> Drop for Acquiring<G> {
    fn drop(&mut self) {
        if let State::Asked(asked) = &self.state {
            let event = Event::Cancel { lock: asked.lock };
            self.client.context.driver.send(event, ReplyTo::Nobody);
        }
    }
}

impl<G> fmt::Debug for Acquiring<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquiring").field("resource", &self.resource).finish_non_exhaustive()
    }
}
