//! The options of a call for a lock.

mod presets;

use std::sync::Arc;
use std::time::Duration;

use quorlock_core::{Delay, Retry, Timing, TimingError, TimingOptions, Wait};

use crate::error::InvalidRequest;

/// The options of a lock and of the call that acquires it.
///
/// A client has a set of options ([`ClientBuilder::options`](crate::ClientBuilder::options)), and a call can have its
/// own ([`Acquire::options`](crate::Acquire::options)). An option that the call does not set has the client's value.
/// An option that neither sets has the default below. Async and blocking clients use the same type.
///
/// The setters check nothing. The relations between options are checked when a client is built, and again when a call
/// with its own options starts. A set of options that do not fit together is refused with both values, and nothing is
/// sent.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use quorlock::{Client, node::MemoryNode};
/// use std::time::Duration;
/// use quorlock::LockOptions;
///
/// const BATCH: LockOptions =
///     LockOptions::new().ttl(Duration::from_secs(30)).wait(Duration::from_secs(60));
///
/// # let nodes = [MemoryNode::new("a")];
/// let client = Client::builder()
///     .memory_nodes(nodes)
///     .options(LockOptions::new().owner("api-7").wait(Duration::from_secs(2)))
///     .build()?;
/// let orders = client.acquire("orders").await?;
/// let report = client.acquire("report").options(BATCH).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "options do nothing until they are given to a builder or to a call"]
pub struct LockOptions {
    pub(crate) ttl: Option<Duration>,
    pub(crate) wait: Option<Wait>,
    pub(crate) retry: Option<Retry>,
    pub(crate) node_timeout: Option<Duration>,
    pub(crate) min_validity: Option<Duration>,
    pub(crate) drift: Option<(u32, Duration)>,
    pub(crate) margin: Option<Duration>,
    pub(crate) auto_extend: Option<bool>,
    pub(crate) keep_on_loss: Option<bool>,
    pub(crate) yield_to_pollers: Option<bool>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) owner: Option<Arc<str>>,
}

/// The times of a client that no call can change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientTimes {
    pub(crate) max_ttl: Duration,
    pub(crate) connect_timeout: Duration,
}

const WAIT: Wait = Wait::For(Duration::from_secs(10));

impl LockOptions {
    /// The longest description of an owner, in bytes.
    pub const OWNER_BYTES_MAX: usize = 256;

    /// The longest hold of a lock if none is set: 24 hours.
    pub const DEFAULT_MAX_HOLD: Duration = Duration::from_secs(24 * 3600);

    /// Options of which none is set.
    pub const fn new() -> Self {
        Self {
            ttl: None,
            wait: None,
            retry: None,
            node_timeout: None,
            min_validity: None,
            drift: None,
            margin: None,
            auto_extend: None,
            keep_on_loss: None,
            yield_to_pollers: None,
            max_hold: None,
            owner: None,
        }
    }

    /// Sets the time for which a node keeps the key without an extension: 100 ms to the client's
    /// [`max_ttl`](crate::ClientBuilder::max_ttl), rounded down to whole milliseconds. Default 10 s.
    ///
    /// A crashed holder blocks other clients for this long. A short ttl costs more extensions and leaves less time to
    /// survive an interruption.
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Sets the time after which a call gives up, connecting and queueing included. Default 10 s.
    ///
    /// With zero the call makes a single attempt and does not queue behind other callers of this process, as
    /// [`Client::try_acquire`](crate::Client::try_acquire) does.
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(if wait.is_zero() { Wait::Once } else { Wait::For(wait) });
        self
    }

    /// Removes the bound on the wait. The call ends only when the lock is granted, the future is dropped, the client is
    /// shut down, or the nodes deny this user the commands of a lock.
    pub const fn wait_forever(mut self) -> Self {
        self.wait = Some(Wait::Forever);
        self
    }

    /// Sets the delay between attempts and the largest number of attempts. By default the delay is one to three
    /// observed round trips and doubles up to 250 ms. The delay ends earlier if the nodes report that the lock expires
    /// during it. The number of attempts is unlimited.
    ///
    /// The longest delay must be above zero and not below the shortest one. At least one attempt must be allowed.
    pub const fn retry(mut self, retry: Retry) -> Self {
        self.retry = Some(retry);
        self
    }

    /// Sets the time that an attempt waits for a node's answer: above zero, at most a quarter of the ttl. Default: 5 %
    /// of the ttl and at most 50 ms, but at least four observed round trips.
    ///
    /// If a slower node grants later, its vote is counted or released. The client's value also bounds the silence of a
    /// server: after three node timeouts without an answer, commands fail at once until the server answers a probe.
    pub const fn node_timeout(mut self, node_timeout: Duration) -> Self {
        self.node_timeout = Some(node_timeout);
        self
    }

    /// Sets the smallest validity with which a lock is granted. If less is left, the client releases the lock and tries
    /// again. The value must be less than the ttl minus the drift. Default zero, but a granted lock always has more
    /// than the [`margin`](Self::margin).
    pub const fn min_validity(mut self, min_validity: Duration) -> Self {
        self.min_validity = Some(min_validity);
        self
    }

    /// Sets the allowed error of clocks, by which a vote counts for less time than the ttl: `ppm` parts per million of
    /// the ttl, and `constant` for steps and rounding; together less than the ttl. Default 10 000 ppm (1 %) and 2 ms,
    /// which is the Redlock paper's ttl × 0.01 + 2 ms.
    pub const fn drift(mut self, ppm: u32, constant: Duration) -> Self {
        self.drift = Some((ppm, constant));
        self
    }

    /// Sets the time by which [`Guard::is_valid`](crate::Guard::is_valid) ends before the protocol's validity, so that
    /// the holder can stop in time; less than the ttl minus the drift. Default 2 % of the ttl, at least 5 ms.
    pub const fn margin(mut self, margin: Duration) -> Self {
        self.margin = Some(margin);
        self
    }

    /// Whether the client extends the lock every third of the ttl while its guard lives. Default true.
    ///
    /// With false, the lock is lost after its ttl unless [`Guard::extend`](crate::Guard::extend) is called in time.
    pub const fn auto_extend(mut self, auto_extend: bool) -> Self {
        self.auto_extend = Some(auto_extend);
        self
    }

    /// Whether the keys of a lost lock stay on the nodes until the guard is released or dropped. Default false: the
    /// client releases what is left of a lost lock at once.
    ///
    /// Set this if other work must stop before the next holder starts, such as a process that runs under the lock. The
    /// remaining keys still expire, so another client can hold the lock one ttl after the last extension. The work must
    /// have stopped when the time of [`Guard::remaining`](crate::Guard::remaining) before the loss is over. Other
    /// callers of this client wait until the guard is released or dropped. If the client is shut down or its runtime
    /// ends first, the keys expire.
    pub const fn keep_on_loss(mut self, keep_on_loss: bool) -> Self {
        self.keep_on_loss = Some(keep_on_loss);
        self
    }

    /// Whether a waiting call leaves gaps for clients that poll, as those of other lock libraries do. Default true.
    ///
    /// The servers wake a call of this library as soon as a lock is released, so a client that tries every 200 ms would
    /// hardly ever find the lock free. While values of another library were seen on a key in the last 10 s, waiting
    /// calls leave the free key alone for 250 ms at a time, up to two thirds of the time. A call gives up at most half
    /// of its remaining [`wait`](Self::wait) for a gap. A call with a single attempt, a call with fixed delays, and a
    /// key on which no foreign value was seen are not affected. The wall clocks of the machines must agree within some
    /// tens of milliseconds, or the gaps get shorter.
    ///
    /// With false, this call leaves no gaps. Set it for all clients of a lock or for none, because a client without
    /// gaps takes the lock in the gaps of the other clients.
    pub const fn yield_to_pollers(mut self, yield_to_pollers: bool) -> Self {
        self.yield_to_pollers = Some(yield_to_pollers);
        self
    }

    /// Sets the time after the grant beyond which the lock is not extended; at least the ttl. Default 24 h. A lock that
    /// is still held then is lost with [`LossCause::HoldLimit`](crate::LossCause::HoldLimit).
    pub const fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Sets the description of the owner that other clients read: in errors, with
    /// [`Client::inspect`](crate::Client::inspect) and with `quorlock status`. At most
    /// [`OWNER_BYTES_MAX`](Self::OWNER_BYTES_MAX) bytes without control characters. Default: none.
    ///
    /// The nodes store the description after the token, together with the time at which the lock was acquired
    /// ([`Holder::since`](crate::Holder::since)). See [`LockOptions::process_owner`].
    pub fn owner(mut self, owner: impl Into<Arc<str>>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Sets a description of this process as the [`owner`](Self::owner): `host:pid`, and the label if it is not empty.
    /// The text is cut after [`OWNER_BYTES_MAX`](Self::OWNER_BYTES_MAX) bytes, and control characters of the label are
    /// left out.
    pub fn process_owner(self, label: &str) -> Self {
        let system = rustix::system::uname();
        let host = system.nodename().to_string_lossy();
        let pid = std::process::id();
        let mut owner = format!("{host}:{pid}");
        if !label.is_empty() {
            owner.push(' ');
            owner.extend(label.chars().filter(|c| !c.is_control()));
        }
        while owner.len() > Self::OWNER_BYTES_MAX {
            owner.pop();
        }
        self.owner(owner)
    }

    /// These options, and those of `fallback` where these are not set.
    pub(crate) fn or(self, fallback: &Self) -> Self {
        Self {
            ttl: self.ttl.or(fallback.ttl),
            wait: self.wait.or(fallback.wait),
            retry: self.retry.or(fallback.retry),
            node_timeout: self.node_timeout.or(fallback.node_timeout),
            min_validity: self.min_validity.or(fallback.min_validity),
            drift: self.drift.or(fallback.drift),
            margin: self.margin.or(fallback.margin),
            auto_extend: self.auto_extend.or(fallback.auto_extend),
            keep_on_loss: self.keep_on_loss.or(fallback.keep_on_loss),
            yield_to_pollers: self.yield_to_pollers.or(fallback.yield_to_pollers),
            max_hold: self.max_hold.or(fallback.max_hold),
            owner: self.owner.or_else(|| fallback.owner.clone()),
        }
    }

    pub(crate) fn ttl_or_default(&self) -> Duration {
        self.ttl.unwrap_or_else(|| TimingOptions::default().ttl)
    }

    pub(crate) fn wait_or_default(&self) -> Wait {
        self.wait.unwrap_or(WAIT)
    }

    pub(crate) fn max_hold_or_default(&self) -> Duration {
        self.max_hold.unwrap_or(Self::DEFAULT_MAX_HOLD)
    }

    /// Checks that the options fit each other and the client's times. Returns the times of the lock.
    pub(crate) fn check(&self, client: ClientTimes) -> Result<Timing, InvalidRequest> {
        let default = TimingOptions::default();
        let (drift_ppm, drift_constant) =
            self.drift.unwrap_or((default.drift_ppm, default.drift_constant));
        let timing = Timing::new(TimingOptions {
            ttl: self.ttl_or_default(),
            max_ttl: client.max_ttl,
            drift_ppm,
            drift_constant,
            margin: self.margin,
            min_validity: self.min_validity.unwrap_or(default.min_validity),
            node_timeout: self.node_timeout,
            connect_timeout: client.connect_timeout,
        })?;
        let (max_hold, ttl) = (self.max_hold_or_default(), timing.ttl());
        if max_hold < ttl {
            return Err(TimingError::HoldTooShort { max_hold, ttl }.into());
        }
        let owner = self.owner.as_deref().unwrap_or_default();
        if owner.len() > Self::OWNER_BYTES_MAX || owner.chars().any(char::is_control) {
            return Err(InvalidRequest::Owner { max: Self::OWNER_BYTES_MAX });
        }
        let retry = self.retry.unwrap_or_default();
        let (min, max) = match retry.delay {
            Delay::Between { min, max } => (min, max),
            Delay::Adaptive { ceiling } => (Duration::ZERO, ceiling),
            Delay::Custom(_) => (Duration::ZERO, Duration::MAX),
        };
        if min > max || max.is_zero() || retry.attempts_max == Some(0) {
            return Err(InvalidRequest::Retry { min, max });
        }
        Ok(timing)
    }
}

impl Default for ClientTimes {
    fn default() -> Self {
        let TimingOptions { max_ttl, connect_timeout, .. } = TimingOptions::default();
        Self { max_ttl, connect_timeout }
    }
}
