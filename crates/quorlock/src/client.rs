//! The client: a handle to one engine, its driver and its nodes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quorlock_core::{
    Failure, FailureKind, Keys, LockId, NodeOutcome, NodeResult, Quorum, Reading, Timing,
    TrustState, in_time,
};
use tokio::sync::oneshot;

use crate::acquire::Acquire;
use crate::builder::{CallDefaults, ClientBuilder};
use crate::clock::Clock;
use crate::driver::{DriverCommand, DriverHandle, Metrics, NodeMetrics};
use crate::env;
use crate::error::{BuildError, Impatient, InvalidRequest, NodeAnswer, ShutdownError};
use crate::inspect::Inspection;
use crate::node::{Node, NodeState};
use crate::resources::Resources;

/// The nodes' names, in the order of the client's list.
pub(crate) type Names = Arc<[Arc<str>]>;

/// A client of a set of nodes: acquires locks on their majority.
///
/// Cheap to clone; all clones share one connection per node. Make one per process and set of nodes,
/// and call [`Client::shutdown`] before the runtime ends.
///
/// When all clones and guards are gone, what is still owed is given back in the background, for a
/// second longer than `max_ttl` at most. In a forked child nothing of a client works, and nothing
/// is sent: connections and locks are the parent's.
///
/// ```no_run
/// # async fn work() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use quorlock::Client;
///
/// let client = Client::builder()
///     .nodes(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])
///     .ttl(Duration::from_secs(10))
///     .build()?;
/// let guard = client.acquire("orders").await?;
/// // … what only one may do at a time …
/// guard.release().await;
/// client.shutdown(Duration::from_secs(1)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

/// What callers, guards and the driver have in common; one per client, so that a guard need keep
/// but one pointer to it.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) driver: DriverHandle,
    pub(crate) names: Names,
    pub(crate) clock: Clock,
}

pub(crate) struct Shared {
    pub(crate) common: Arc<Common>,
    pub(crate) quorum: Quorum,
    pub(crate) prefix: Box<str>,
    pub(crate) defaults: CallDefaults,
    /// What came of checking these.
    pub(crate) timing: Timing,
    nodes: Vec<Arc<dyn Node>>,
    /// So many of them, the first ones, are servers; the others are custom ones.
    servers: usize,
    metrics: Arc<Metrics>,
    next_lock: AtomicU64,
}

impl Shared {
    pub(crate) fn new(
        common: Arc<Common>,
        quorum: Quorum,
        (prefix, defaults, timing): (Box<str>, CallDefaults, Timing),
        (nodes, servers): (Vec<Arc<dyn Node>>, usize),
        metrics: Arc<Metrics>,
    ) -> Self {
        let next_lock = AtomicU64::new(1);
        Self { common, quorum, prefix, defaults, timing, nodes, servers, metrics, next_lock }
    }

    /// The first node, if there is one, that was not waited for as long as it takes to answer.
    pub(crate) fn impatient(
        &self,
        node_timeout: Duration,
        results: &[NodeResult],
    ) -> Option<Impatient> {
        let nodes = self.common.names.iter().zip(&self.metrics.nodes).zip(results);
        nodes.into_iter().find_map(|((node, metrics), report)| {
            let round_trip = Duration::from_nanos(metrics.round_trip_ns.load(Ordering::Relaxed));
            let silent = matches!(&report.said, NodeOutcome::Failed(failure) if failure.kind() == FailureKind::Silent);
            (silent && round_trip > node_timeout)
                .then(|| Impatient { node: node.clone(), round_trip, node_timeout })
        })
    }

    pub(crate) fn new_lock(&self) -> LockId {
        LockId(self.next_lock.fetch_add(1, Ordering::Relaxed))
    }

    /// The keys under which resources are stored, whose names have been checked; without a prefix, the very same texts.
    pub(crate) fn keys(&self, resources: &Keys) -> Result<Keys, InvalidRequest> {
        if self.prefix.is_empty() {
            return Ok(resources.clone());
        }
        let keys = resources.map(|resource| format!("{}{resource}", self.prefix).into());
        // Also where one half of the word is in the prefix.
        match keys.iter().any(|key| key.contains(RESERVED)) {
            true => Err(InvalidRequest::ResourceReserved),
            false => Ok(keys),
        }
    }
}

/// Whether this can be the name of a resource: what [`Client::acquire`] checks first. It has 1 to
/// [`RESOURCE_BYTES_MAX`] bytes, any of them. It does not contain `quorlock:`, also not together
/// with the key prefix before it. All keys of the library's own contain that, whatever their
/// clients' prefixes, so none of them is a lock's.
///
/// # Errors
/// What is wrong with it.
pub fn check_resource(resource: &str) -> Result<(), InvalidRequest> {
    if resource.is_empty() {
        return Err(InvalidRequest::ResourceEmpty);
    }
    if resource.len() > RESOURCE_BYTES_MAX {
        let bytes = resource.len();
        return Err(InvalidRequest::ResourceTooLong { bytes, max: RESOURCE_BYTES_MAX });
    }
    if resource.contains(RESERVED) {
        return Err(InvalidRequest::ResourceReserved);
    }
    Ok(())
}

/// What the library's own keys begin with, behind the prefix. No prefix and no lock's key contains it: else a
/// key `app:quorlock:node` would be the marker of those with the prefix `app:`.
pub const RESERVED: &str = "quorlock:";

/// One lock is about no more resources than this.
pub const RESOURCES_MAX: usize = Keys::MAX;

/// The longest name of a resource, in bytes.
pub const RESOURCE_BYTES_MAX: usize = 4096;

impl Client {
    /// What a client is made from.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::new()
    }

    /// Starts the client that the environment describes: `QUORLOCK_NODES` and the other variables of
    /// [`ClientBuilder::from_env`], which also lets you change settings.
    ///
    /// # Errors
    /// As [`ClientBuilder::from_env`] and [`ClientBuilder::build`]. An error about a value names its variable.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = quorlock::Client::from_env()?;
    /// let guard = client.acquire("orders").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_env() -> Result<Self, BuildError> {
        ClientBuilder::from_env()?.build().map_err(env::blamed)
    }

    pub(crate) fn new(shared: Shared) -> Self {
        Self { shared: Arc::new(shared) }
    }

    /// Acquires the lock on a resource, waiting for it as long as `wait` says (10 s by default).
    ///
    /// Await the result, or set options first: `client.acquire("orders").ttl(..).wait(..).await`.
    ///
    /// Several resources, as in `client.acquire(["a", "b"])`, are one lock: it is held on all of them, or on none. So
    /// two calls that name them in opposite orders never wait for each other. At most 64.
    ///
    /// Callers of this process that want the same resource queue up here, first come, first
    /// served, and burden no node. There is no re-entrancy: acquiring again what one holds waits.
    ///
    /// # Errors
    /// [`AcquireError`](crate::AcquireError), with every node's answer. The nodes keep nothing: what
    /// was granted is given back, and on a node that cannot be reached it is gone after the ttl.
    ///
    /// # Cancel safety
    /// Safe at every point: dropping the future gives back what it got, and one's place in the
    /// local queue. No key is left on any node that answers.
    pub fn acquire(&self, resources: impl Into<Resources>) -> Acquire {
        Acquire::new(self.shared.clone(), resources.into())
    }

    /// As [`Client::acquire`], but with a single attempt, and without queueing behind other
    /// callers of this process.
    ///
    /// Takes one round trip, or one node timeout if nodes do not answer; in front of connections
    /// that are still being made, what is left of `connect_timeout` as well.
    ///
    /// # Errors
    /// As [`Client::acquire`]; if another caller of this process holds or wants the lock, no node
    /// is asked.
    ///
    /// # Cancel safety
    /// As [`Client::acquire`].
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use quorlock::{Client, node::MemoryNode};
    /// # let client = Client::builder().custom_nodes([MemoryNode::new("a")]).build()?;
    /// let guard = client.try_acquire("orders").await?;
    /// let error = client.try_acquire("orders").await.unwrap_err();
    /// assert!(error.is_contended());
    /// # guard.release().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_acquire(&self, resources: impl Into<Resources>) -> Acquire {
        self.acquire(resources).once()
    }

    /// Asks every node who holds the lock on `resource`, without wanting it.
    ///
    /// Takes one round trip; one second at most if nodes do not answer.
    ///
    /// # Errors
    /// If the resource's name is not one; nothing was sent. A node's failure is part of the result;
    /// after a shutdown there are no nodes in it.
    ///
    /// # Cancel safety
    /// Safe: nothing is changed on any node.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use quorlock::{Client, Verdict, node::MemoryNode};
    /// # let client = Client::builder().custom_nodes([MemoryNode::new("a")]).build()?;
    /// let guard = client.acquire("orders").owner("api-7").await?;
    /// let seen = client.inspect("orders").await?;
    /// assert_eq!(seen.verdict(), Verdict::Held);
    /// assert!(seen.holder().unwrap().to_string().starts_with("api-7, "));
    /// # guard.release().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn inspect(&self, resource: impl AsRef<str>) -> Result<Inspection, InvalidRequest> {
        let nodes = self.ask_inspect(resource.as_ref())?.await.unwrap_or_default();
        Ok(self.inspected(nodes))
    }

    pub(crate) fn ask_inspect(
        &self,
        resource: &str,
    ) -> Result<oneshot::Receiver<Vec<quorlock_core::NodeResult>>, InvalidRequest> {
        let keys = self.shared.keys(&Resources::from(resource).check()?)?;
        let (reply, nodes) = oneshot::channel();
        let lock = self.shared.new_lock();
        self.shared.common.driver.send(DriverCommand::Inspect {
            lock,
            keys,
            timeout: INSPECT_TIMEOUT,
            reply,
        });
        Ok(nodes)
    }

    pub(crate) fn inspected(&self, results: Vec<quorlock_core::NodeResult>) -> Inspection {
        let is_untrusted = |(place, node): (usize, &NodeStats)| match node.trust_state {
            // A node whose wait is over has no earlier lock to forget.
            NodeTrustState::Quarantined { remaining, .. } => !remaining.is_zero(),
            NodeTrustState::Refused(_) => true,
            // What a server is, it says with its first answer. Nodes of others' making need not say it.
            NodeTrustState::Unverified => place < self.shared.servers,
            NodeTrustState::Unguarded | NodeTrustState::Trusted => false,
        };
        let untrusted = self.stats().nodes.iter().enumerate().map(is_untrusted).collect();
        let nodes = NodeAnswer::all(&self.shared.common.names, None, results);
        Inspection::new(nodes, untrusted, self.shared.quorum)
    }

    /// Figures of this client, as of now.
    pub fn stats(&self) -> Stats {
        let metrics = &self.shared.metrics;
        let now = self.shared.common.clock.now();
        let node = |((name, node), metrics): ((&Arc<str>, &Arc<dyn Node>), &NodeMetrics)| {
            let nanos = metrics.round_trip_ns.load(Ordering::Relaxed);
            NodeStats {
                name: name.clone(),
                state: node.state(),
                round_trip: (nanos > 0).then(|| Duration::from_nanos(nanos)),
                timeouts: metrics.timeouts.load(Ordering::Relaxed),
                commands: metrics.commands.load(Ordering::Relaxed),
                trust_state: metrics.trust_state(now),
            }
        };
        let nodes = self.shared.common.names.iter().zip(&self.shared.nodes).zip(&metrics.nodes);
        Stats {
            nodes: nodes.map(node).collect(),
            locks_held: metrics.locks_held.load(Ordering::Relaxed),
            calls_waiting: metrics.calls_waiting.load(Ordering::Relaxed),
            releases_owed: metrics.releases_owed.load(Ordering::Relaxed),
            wakeups: metrics.wakeups.load(Ordering::Relaxed),
        }
    }

    /// Shuts the client down, for all its clones. Calls that wait, and all later ones, end with
    /// [`AcquireError::Closed`](crate::AcquireError::Closed). Locks still held are lost
    /// ([`LossCause::Shutdown`](crate::LossCause::Shutdown)) and given back. Releases that are owed
    /// are waited for, for `timeout` at most. If writers were waiting, nodes are told that readers need not wait for them
    /// any more. The answers are waited for as well, for a quarter of a second of that time.
    ///
    /// To shut down again is no error: it waits for what is still owed.
    ///
    /// # Errors
    /// [`ShutdownError`] if the time was not enough. What is owed goes on being given back while the
    /// runtime lives; the keys are gone after their ttl in any case.
    ///
    /// # Cancel safety
    /// Safe: once polled, the shutdown goes on.
    pub async fn shutdown(&self, timeout: Duration) -> Result<(), ShutdownError> {
        match tokio::time::timeout(timeout, self.ask_close()).await {
            // Closed without a word: the driver was gone already, and owes nothing any more.
            Ok(_) => Ok(()),
            Err(_) => Err(ShutdownError { owed: self.stats().releases_owed }),
        }
    }

    pub(crate) fn driver(&self) -> &DriverHandle {
        &self.shared.common.driver
    }

    pub(crate) fn ask_close(&self) -> oneshot::Receiver<()> {
        let (reply, closed) = oneshot::channel();
        self.shared.common.driver.send(DriverCommand::Close { reply });
        closed
    }
}

/// How long an inspection waits for the nodes: longer than an attempt, because a person asks.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(1);

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("nodes", &self.shared.nodes)
            .field("quorum", &self.shared.quorum.needed())
            .finish_non_exhaustive()
    }
}

/// Figures of a client, as [`Client::stats`] reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Per node, in the order of the client's list.
    pub nodes: Vec<NodeStats>,
    /// Guards alive, those whose lock was lost included; none once the client's task has ended.
    pub locks_held: usize,
    /// Calls waiting for a lock: for their turn, for answers or for the next attempt.
    pub calls_waiting: usize,
    /// Tokens being released right now, or owed to a node that cannot be reached: those for the
    /// ttl at most, because then the key has expired. Intents of waiting writers that are being taken back count too.
    pub releases_owed: usize,
    /// How often a call that was waiting went on because nodes said that its lock had changed, since
    /// the client was built.
    pub wakeups: u64,
}

/// Figures of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStats {
    /// The node's name.
    pub name: Arc<str>,
    /// Whether it can be used.
    pub state: NodeState,
    /// The smoothed round trip, waiting in the server's and our own queues included; `None` before
    /// the first answer.
    pub round_trip: Option<Duration>,
    /// How often it did not answer an attempt in time, since the client was built.
    pub timeouts: u64,
    /// How many commands were given to it, since the client was built.
    pub commands: u64,
    /// Whether its votes count, as of now.
    pub trust_state: NodeTrustState,
}

/// Whether a node's votes count: see [`ClientBuilder::restart_guard`]. Printed, it says why not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeTrustState {
    /// The restart guard is off: nobody looks.
    Unguarded,
    /// It has not been looked at on this connection yet, or need not be, as a
    /// [`MemoryNode`](crate::node::MemoryNode).
    Unverified,
    /// Its votes count.
    Trusted,
    /// They do not yet.
    Quarantined {
        /// In what time they do, if nothing comes between.
        remaining: Duration,
        /// Why they do not.
        why: Arc<str>,
    },
    /// They do not, until a person has corrected this.
    Refused(Failure),
}

impl NodeTrustState {
    pub(crate) fn new(trust_state: &TrustState, now: Reading) -> Self {
        match trust_state {
            TrustState::Trusted => Self::Trusted,
            TrustState::Quarantined { until, why } => {
                Self::Quarantined { remaining: until.remaining(now), why: why.clone() }
            }
            TrustState::Refused(failure) => Self::Refused(failure.clone()),
            _ => Self::Unverified,
        }
    }
}

impl fmt::Display for NodeTrustState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unguarded => f.write_str("not looked at"),
            Self::Unverified => f.write_str("not verified"),
            Self::Trusted => f.write_str("votes"),
            Self::Quarantined { remaining, why } => {
                write!(f, "quarantined: {why}, its votes count {}", in_time(*remaining))
            }
            Self::Refused(failure) => write!(f, "{failure}"),
        }
    }
}
