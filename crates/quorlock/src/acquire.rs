//! A call for a lock: its options, and the future that waits for it.

mod waiting;

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use quorlock_core::{AttemptReport, Counter, Event, Keys, LockId, Mode, Quorum, Retry, Timing};
use quorlock_core::{Request, Wait};
use tokio::sync::watch;

use crate::client::state::ClientState;
use crate::common::Names;
use crate::driver::{PendingCall, ReplyTo};
use crate::error::{AcquireError, HoldError, InvalidRequest};
use crate::guard::{Called, CalledReceiver, Claim, Guard};
use crate::options::CallDefaults;
use crate::own_keys::{MARKER, counter, own_key};
use crate::resources::Resources;

pub use self::waiting::Waiting;

/// A call for a lock, made by [`Client::acquire`](crate::Client::acquire): set options, then await.
///
/// Each option replaces the client's default for this call alone. Nothing is sent before the first
/// poll; options that do not go together are refused then
/// ([`AcquireError::Invalid`]), before anything is sent.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// # use quorlock::{AcquireError, Client, node::MemoryNode};
/// # let client = Client::builder().custom_nodes([MemoryNode::new("a")]).build()?;
/// let ttl = Duration::from_secs(5);
/// match client.acquire("orders").ttl(ttl).wait(Duration::from_secs(2)).await {
///     Ok(guard) => assert!(guard.remaining() < ttl),
///     Err(error) if error.is_contended() => println!("somebody else is at it: {error}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "a call does nothing unless it is awaited"]
pub struct Acquire {
    client: Arc<ClientState>,
    /// For people.
    resource: Arc<str>,
    resources: Resources,
    mode: Mode,
    options: CallDefaults,
    /// The times, as long as nothing was set that is to be checked.
    checked: Option<Timing>,
    once: bool,
    progress: Option<watch::Sender<Option<Waiting>>>,
}

impl Acquire {
    pub(crate) fn new(client: Arc<ClientState>, resources: Resources) -> Self {
        let (options, checked) = (client.defaults.clone(), Some(client.timing));
        let (resource, mode) = (resources.title(), Mode::Exclusive);
        Self { client, resource, resources, mode, options, checked, once: false, progress: None }
    }

    pub(crate) fn once(mut self) -> Self {
        self.once = true;
        self
    }

    /// How long a node keeps the key without an extension; 100 ms to the client's `max_ttl`,
    /// rounded down to whole milliseconds. Default 10 s.
    ///
    /// A crashed holder blocks others for this long. A short ttl costs more extensions and gives
    /// less time to bridge a hiccup.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options_to_check().timing.ttl = ttl;
        self
    }

    /// How long to try, connecting and queueing included; at the end of it the call ends, whatever
    /// is under way. Default 10 s. Zero: a single attempt without queueing, as
    /// [`Client::try_acquire`](crate::Client::try_acquire), which ignores this option.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.options.wait = Some(wait);
        self
    }

    /// Tries until the lock is granted, the future is dropped or the client is shut down; or until
    /// it turns out that the nodes do not let this user in.
    pub fn wait_forever(mut self) -> Self {
        self.options.wait = None;
        self
    }

    /// A lock with less validity left than this is not handed out. It is given back and tried for
    /// again. Default zero (there is always more than the margin); less than the ttl by the drift.
    pub fn min_validity(mut self, min_validity: Duration) -> Self {
        self.options_to_check().timing.min_validity = min_validity;
        self
    }

    /// How attempts follow each other, and how many there may be. Default: after one to three
    /// observed round trips, doubling up to 250 ms, or when the nodes say that the lock expires; as
    /// many as fit into the wait.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.options_to_check().retry = retry;
        self
    }

    /// Whether the lock is extended automatically, every third of the ttl, while its guard lives.
    /// Default true. Without it the lock is lost after its ttl, unless
    /// [`Guard::extend`](crate::Guard::extend) is called in time.
    pub fn auto_extend(mut self, automatic: bool) -> Self {
        self.options.automatic = automatic;
        self
    }

    /// If the lock is lost, nothing is released until the guard is released or dropped. For who has to
    /// stop something else first, such as a process that works under the lock: as long as that is not
    /// stopped, quorlock itself gives nobody the lock. Default: what is left of a lost lock is
    /// released at once.
    ///
    /// The keys that are left expire by themselves, so another client may have the lock a ttl after
    /// the last extension: the work must have been stopped by [`Guard::remaining`]. Other callers of
    /// this client wait until the guard is given back. If the client is shut down, or its runtime
    /// ends, before that, the keys are left to expire.
    pub fn keep_on_loss(mut self) -> Self {
        self.options.keeps_on_loss = true;
        self
    }

    /// Nothing is extended past this much time after the grant; at least the ttl. Default 24 h. A
    /// lock that is still held by then is lost, with
    /// [`LossCause::HoldLimit`](crate::LossCause::HoldLimit).
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.options_to_check().max_hold = max_hold;
        self
    }

    /// Describes the owner to clients that ask who holds the lock. It is stored behind the token, with the time since
    /// when the lock is held ([`Holder::since`](crate::Holder::since)); at most 256 bytes without control characters.
    /// Default: the client's; none, unless set.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.options_to_check().owner = owner.into().into();
        self
    }

    /// Asks for a fence: a number that grows from holder to holder, for what the lock protects to refuse
    /// writes of those that have lost it ([`Guard::fence`]).
    ///
    /// Costs no further round trip while the nodes' counters agree, as they do when nobody else wants the
    /// lock, and one more otherwise. All holders of a lock must ask for it, or none. Each node keeps the
    /// lock's counter, under `<prefix>quorlock:fence:<resource>`, for seven days after its last use, or
    /// for twice `max_hold` if that is longer.
    pub fn fenced(mut self) -> Self {
        self.options.fenced = true;
        self
    }

    /// Acquires as a reader: it excludes writers, which all other locks are, and no other readers. Default: as a writer.
    ///
    /// Readers keep their own ttl each. Clients of other libraries that lock with `SET key value NX` are writers. A
    /// writer of this library that waits is let in before readers that come later; so a reader that wants a second lock on
    /// what it reads already may wait behind it. A reader has no fencing token, and is never made a writer. A writer can
    /// become a reader: [`Guard::downgrade`](crate::Guard::downgrade).
    ///
    /// # Errors
    /// Together with [`fenced`](Self::fenced), the call is refused ([`InvalidRequest::Combination`]).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use quorlock::{Client, node::MemoryNode};
    /// # let client = Client::builder().custom_nodes([MemoryNode::new("a")]).build()?;
    /// let one = client.acquire("report").shared().await?;
    /// let two = client.acquire("report").shared().await?;
    /// assert!(one.is_valid() && two.is_valid());
    /// assert!(client.try_acquire("report").await.unwrap_err().is_contended());
    /// # Ok(())
    /// # }
    /// ```
    pub fn shared(mut self) -> Self {
        self.mode = Mode::Shared;
        self
    }

    /// Where to tell, after each failed attempt that is not the last, why it failed. Told while the
    /// call is being polled.
    pub fn progress(mut self, progress: watch::Sender<Option<Waiting>>) -> Self {
        self.progress = Some(progress);
        self
    }

    /// Acquires the lock by the options of this call, does the work, gives the lock back. If the lock is lost, the work is
    /// stopped: its future is dropped where it stands, at an await. Work that never awaits is not
    /// stopped; it must ask [`Guard::is_valid`] itself.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use quorlock::{Client, node::MemoryNode};
    /// # let client = Client::builder().custom_nodes([MemoryNode::new("a")]).build()?;
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
    /// [`HoldError::NotAcquired`] if the work was not begun, [`HoldError::Lost`] if it was stopped,
    /// or was done when the lock had already been lost. In both cases the nodes keep nothing.
    ///
    /// # Cancel safety
    /// Safe as far as the lock is concerned: it is given back. The work is dropped where it stands.
    pub async fn hold<T>(self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T, HoldError> {
        let guard = self.await?;
        let lost = |cause| guard.lost_during_work(cause);
        let result = tokio::select! {
            biased;
            cause = guard.lost() => return Err(lost(cause)),
            result = work(&guard) => result,
        };
        if let Some(cause) = guard.loss_reason() {
            return Err(lost(cause));
        }
        // How the release went is of no consequence to the work, which was done under the lock.
        let _ = guard.release().await;
        Ok(result)
    }

    /// The options, for one of them to be set that must fit the others.
    fn options_to_check(&mut self) -> &mut CallDefaults {
        self.checked = None;
        &mut self.options
    }

    fn request(&self, resources: &Keys) -> Result<Request, InvalidRequest> {
        if self.mode == Mode::Shared && self.options.fenced {
            return Err(InvalidRequest::Combination { one: "shared", other: "fenced" });
        }
        let keys = self.client.keys(resources)?;
        let timing = self.checked.map_or_else(|| self.options.check(), Ok)?;
        let wait = match self.options.wait {
            _ if self.once => Wait::Once,
            Some(Duration::ZERO) => Wait::Once,
            Some(wait) => Wait::For(wait),
            None => Wait::Forever,
        };
        Ok(Request {
            keys,
            mode: self.mode,
            // It is no longer than `PREFIX_BYTES_MAX`.
            prefix_bytes: u16::try_from(self.client.prefix.len()).unwrap_or(u16::MAX),
            owner: self.options.owner.clone(),
            timing,
            wait,
            retry: self.options.retry,
            automatic: self.options.automatic,
            keeps_on_loss: self.options.keeps_on_loss,
            max_hold: self.options.max_hold,
            progress: self.progress.is_some(),
            fenced: self.options.fenced.then(|| self.counter(resources)),
        })
    }
}

impl Acquire {
    /// Where the lock's fences are counted. A counter that was forgotten while the lock is held would
    /// begin anew: so it is kept for much longer than that.
    fn counter(&self, resources: &Keys) -> Counter {
        let prefix = &self.client.prefix;
        let kept = (2 * self.options.max_hold.min(HOLD_MAX)).max(COUNTER_KEPT);
        Counter {
            keys: resources.map(|resource| counter(prefix, resource)),
            ttl_ms: u64::try_from(kept.as_millis()).unwrap_or(u64::MAX),
            marker: own_key(prefix, MARKER),
        }
    }
}

/// For so long a counter is kept after its last use, at least.
const COUNTER_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Servers take no time to live beyond some hundred million years; nobody holds a lock for a thousand.
const HOLD_MAX: Duration = Duration::from_secs(1000 * 365 * 24 * 3600);

impl IntoFuture for Acquire {
    type Output = Result<Guard, AcquireError>;
    type IntoFuture = Acquiring;

    fn into_future(self) -> Acquiring {
        let span = tracing::debug_span!("acquire", resource = &*self.resource);
        let (told, reply) = Claim::begin(self.client.common.driver.process());
        let node_timeout = self.options.timing.node_timeout;
        let resources = self.resources.clone().check();
        let several = resources.as_ref().ok().filter(|it| it.single().is_none()).cloned();
        let call = resources.and_then(|resources| {
            let (request, resource) = (self.request(&resources)?, self.resource.clone());
            Ok((request, PendingCall { resource, progress: None, reply: told }))
        });
        Acquiring {
            client: self.client,
            resource: self.resource,
            several,
            node_timeout,
            span,
            progress: self.progress,
            state: State::Ready { call, reply },
        }
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").field("resource", &self.resource).finish_non_exhaustive()
    }
}

/// The future of a call for a lock, as `.await` makes it from an [`Acquire`].
///
/// `Send` and `'static`. Dropping it at any point gives back what it got, and its place in the local
/// queue; that neither blocks nor needs a runtime. May be polled on any runtime, or none.
///
/// # Panics
/// If polled again after it was done.
#[must_use = "a call does nothing unless it is awaited"]
pub struct Acquiring {
    client: Arc<ClientState>,
    resource: Arc<str>,
    /// The names of the resources, if there are several.
    several: Option<Keys>,
    /// If the caller has chosen one.
    node_timeout: Option<Duration>,
    span: tracing::Span,
    progress: Option<watch::Sender<Option<Waiting>>>,
    state: State,
}

#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each call")]
enum State {
    Ready { call: Result<(Request, PendingCall), InvalidRequest>, reply: CalledReceiver },
    Asked(Asked),
    Done,
}

struct Asked {
    lock: LockId,
    reply: CalledReceiver,
    progress_feed: Option<ProgressFeed>,
}

/// What the driver tells, and what of it has been passed on.
struct ProgressFeed(Pin<Box<dyn Future<Output = ()> + Send>>);

impl Acquiring {
    /// Asks the driver. The call has begun.
    pub(crate) fn start(&mut self) -> Result<(), AcquireError> {
        let State::Ready { call, reply } = std::mem::replace(&mut self.state, State::Done) else {
            return Ok(());
        };
        let (request, mut call) = call?;
        let lock = self.client.new_lock();
        let progress_feed = self.progress.take().map(|progress| {
            let (told, seen) = watch::channel(None);
            call.progress = Some(told);
            let several = self.several.clone();
            ProgressFeed::new(
                (seen, progress),
                (self.client.common.names.clone(), several),
                self.client.quorum,
            )
        });
        let event = Event::Acquire { lock, request };
        self.client.common.driver.send_and_drive(event, ReplyTo::Acquire(call));
        self.state = State::Asked(Asked { lock, reply, progress_feed });
        Ok(())
    }

    /// `None`: the driver is gone.
    fn conclude(&mut self, reply: Option<Called>) -> Result<Guard, AcquireError> {
        self.state = State::Done;
        let _entered = self.span.enter();
        let resource = self.resource.clone();
        match reply {
            Some(Ok(guard)) => {
                tracing::debug!(votes = guard.votes(), "acquired");
                Ok(guard)
            }
            Some(Err(refusal)) => {
                let attempts = refusal.attempts;
                let needed = self.client.quorum.needed();
                let names = &self.client.common.names;
                let impatient = self
                    .node_timeout
                    .and_then(|node_timeout| self.client.impatient(node_timeout, &refusal.nodes));
                let names = (&**names, self.several.as_ref());
                let error = AcquireError::new(resource, needed, names, *refusal, impatient);
                // Not the error itself: it quotes what other libraries have stored.
                tracing::debug!(attempts, contended = error.is_contended(), "not acquired");
                Err(error)
            }
            None => Err(AcquireError::Closed { resource }),
        }
    }

    /// Blocks until the call is done.
    ///
    /// # Panics
    /// Inside an async runtime; the call is cancelled then, as any future that is dropped.
    pub(crate) fn wait(mut self) -> Result<Guard, AcquireError> {
        let caller = self.client.common.driver.caller();
        self.start()?;
        let State::Asked(asked) = &mut self.state else { unreachable!("started just now") };
        let reply = caller.wait(&mut asked.reply);
        self.conclude(reply)
    }
}

impl Future for Acquiring {
    type Output = Result<Guard, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let State::Ready { .. } = this.state {
            this.start()?;
        }
        let State::Asked(asked) = &mut this.state else {
            panic!("polled after it was done");
        };
        // First the reply: whatever was told of the wait before it is then passed on with it.
        let reply = Pin::new(&mut asked.reply).poll(cx);
        if let Some(progress_feed) = &mut asked.progress_feed
            && progress_feed.0.as_mut().poll(cx).is_ready()
        {
            asked.progress_feed = None;
        }
        match reply {
            Poll::Pending => Poll::Pending,
            Poll::Ready(reply) => Poll::Ready(this.conclude(reply)),
        }
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        if let State::Asked(asked) = &self.state
            && !mutant!(CancelUnsent)
        {
            let event = Event::Cancel { lock: asked.lock };
            self.client.common.driver.send(event, ReplyTo::Nobody);
        }
    }
}

impl fmt::Debug for Acquiring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquiring").field("resource", &self.resource).finish_non_exhaustive()
    }
}

impl ProgressFeed {
    fn new(
        (mut seen, progress): (
            watch::Receiver<Option<AttemptReport>>,
            watch::Sender<Option<Waiting>>,
        ),
        (names, several): (Names, Option<Keys>),
        quorum: Quorum,
    ) -> Self {
        Self(Box::pin(async move {
            while seen.changed().await.is_ok() {
                let report = seen.borrow_and_update().clone();
                let names = (&*names, several.as_ref());
                progress.send_replace(report.map(|report| Waiting::new(names, quorum, report)));
            }
        }))
    }
}
