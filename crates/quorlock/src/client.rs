//! The client: a handle to one engine, its driver and its nodes.

use std::fmt;
use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt as _;
use quorlock_core::{Event, Holding, Keys, Mode, NodeOutcome};
use tokio::sync::oneshot;

use self::state::ClientState;
use crate::acquire::{Acquire, Acquiring};
use crate::driver::{DriverHandle, Inspected, NodeMetrics, ReplyTo};
use crate::error::{InvalidRequest, NodeAnswer, ShutdownError};
use crate::guard::FencedGuard;
use crate::inspect::Inspection;
use crate::node::{ClientNode, NodeState};
use crate::options::LockOptions;
use crate::resources::Resources;
use crate::stats::{NodeStats, NodeTrustState, Stats};

pub(crate) mod context;
mod leases;
#[cfg(feature = "legacy")]
pub mod legacy;
pub(crate) mod state;
mod values;

pub use self::values::Query;

/// A client of a set of nodes, which acquires locks on their majority.
///
/// Cheap to clone. All clones share one connection per node. Make one client per process and set of nodes, and call
/// [`Client::shutdown`] before the runtime ends.
///
/// When all clones and guards are dropped, the client sends the releases that it still owes in the background, for at most
/// `max_ttl` and one second. In a forked child a client does nothing and sends nothing, because connections and locks are
/// the parent's.
///
/// ```no_run
/// # async fn work() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use quorlock::Client;
///
/// let client = Client::builder()
///     .nodes(["a=redis://10.0.0.1", "b=redis://10.0.0.2", "c=redis://10.0.0.3"])
///     .build()?;
/// let guard = client.acquire("orders").await?;
/// // … work that only one process may do at a time …
/// guard.release().await;
/// client.shutdown(Duration::from_secs(1)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    state: Arc<ClientState>,
}

impl Client {
    pub(crate) fn new(state: ClientState) -> Self {
        Self { state: Arc::new(state) }
    }

    /// Acquires the lock on a resource as a writer, which excludes all other holders. Waits for at most 10 s, or as
    /// [`LockOptions::wait`] says. Await the result, or set options for this call first ([`Acquire::options`]).
    ///
    /// Several resources, as in `client.acquire(["a", "b"])`, are one lock: it is held on all of them, or on none. Two calls
    /// that name them in opposite orders therefore never wait for each other. At most 64.
    ///
    /// Callers of this process that want the same resource queue here in FIFO order, without a request to any node. A caller
    /// that acquires a lock that it holds already waits for itself.
    ///
    /// # Errors
    /// [`AcquireError`](crate::AcquireError), with every node's answer. The client gives granted votes back. If a
    /// release cannot be sent, its key expires after its ttl.
    ///
    /// # Cancel safety
    /// Safe at every point: dropping the future releases the votes and leaves the local queue. No key stays on a node
    /// that answers.
    pub fn acquire(&self, resources: impl Into<Resources>) -> Acquire {
        Acquire::new(self.state.clone(), resources.into(), Mode::Exclusive)
    }

    /// As [`Client::acquire`], but as a reader: it excludes writers, and no other readers. Every lock that is not acquired
    /// with this method is a writer's, including those of other libraries that use `SET key value NX`.
    ///
    /// Each reader has its own ttl. A waiting writer of this library goes before readers that come later. A reader that wants
    /// a second lock on the same resource may therefore wait behind a writer that waits for the first one. A reader never
    /// becomes a writer. A writer can become a reader: [`Guard::downgrade`](crate::Guard::downgrade).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use quorlock::{Client, node::MemoryNode};
    /// # let client = Client::builder().memory_nodes([MemoryNode::new("a")]).build()?;
    /// let one = client.acquire_shared("report").await?;
    /// let two = client.acquire_shared("report").await?;
    /// assert!(one.is_valid() && two.is_valid());
    /// assert!(client.try_acquire("report").await.unwrap_err().is_contended());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Readers share the lock, so they have no fencing token:
    /// ```compile_fail,E0599
    /// # async fn work(client: quorlock::Client) -> Result<(), quorlock::AcquireError> {
    /// client.acquire_shared("report").await?.fencing_token();
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire_shared(&self, resources: impl Into<Resources>) -> Acquire {
        Acquire::new(self.state.clone(), resources.into(), Mode::Shared)
    }

    /// As [`Client::acquire`], and gets a fencing token: a number that grows from holder to holder. The resource that the
    /// lock protects refuses writes with a smaller number than it has seen
    /// ([`FencedGuard::fencing_token`](crate::FencedGuard::fencing_token)).
    ///
    /// Takes no further round trip while the nodes' counters agree, which they do unless several clients want the lock, and
    /// one more otherwise. All holders of a lock must use this method, or none. Each node keeps the lock's counter under
    /// `<prefix>quorlock:fence:<resource>` for seven days after its last use, or for twice
    /// [`max_hold`](LockOptions::max_hold) if that is longer.
    ///
    /// ```no_run
    /// # async fn work(client: quorlock::Client) -> Result<(), quorlock::AcquireError> {
    /// client.acquire_fenced("report").await?.fencing_token();
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire_fenced(&self, resources: impl Into<Resources>) -> Acquire<FencedGuard> {
        self.acquire(resources).fenced()
    }

    /// As [`Client::acquire`] with the client's options, but makes a single attempt and does not queue behind other callers
    /// of this process.
    ///
    /// For a single attempt with other options, or of another kind, set [`LockOptions::wait`] to zero:
    /// `client.acquire_shared("orders").options(LockOptions::new().wait(Duration::ZERO))`.
    ///
    /// Takes one round trip, or one node timeout if nodes do not answer. Connections that are still being made add what is
    /// left of [`connect_timeout`](crate::ClientBuilder::connect_timeout).
    ///
    /// # Errors
    /// As [`Client::acquire`]. If another caller of this process holds or wants the lock, no node is asked.
    ///
    /// # Cancel safety
    /// As [`Client::acquire`].
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use quorlock::{Client, node::MemoryNode};
    /// # let client = Client::builder().memory_nodes([MemoryNode::new("a")]).build()?;
    /// let guard = client.try_acquire("orders").await?;
    /// let error = client.try_acquire("orders").await.unwrap_err();
    /// assert!(error.is_contended());
    /// # guard.release().await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The call does not wait, so it takes no options:
    /// ```compile_fail,E0599
    /// # fn work(client: quorlock::Client, options: quorlock::LockOptions) {
    /// client.try_acquire("orders").options(options);
    /// # }
    /// ```
    pub fn try_acquire(&self, resources: impl Into<Resources>) -> Acquiring {
        self.acquire(resources).options(LockOptions::new().wait(Duration::ZERO)).into_future()
    }

    /// Asks every node for the holder of the lock, without acquiring it. Several resources are one lock, as in
    /// [`Client::acquire`].
    ///
    /// Takes one round trip. If nodes do not answer, it takes one second, or four round trips to a node that is more than
    /// 250 ms away. A node that is being connected to is awaited for the connect timeout as well.
    ///
    /// # Errors
    /// [`InvalidRequest`] if a name cannot be locked. Nothing was sent then. The failure of a node is part of the result.
    /// After a shutdown the result has no nodes.
    ///
    /// # Cancel safety
    /// Safe: an inspection changes nothing on the nodes.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use quorlock::{Client, Verdict, node::MemoryNode};
    /// # let client = Client::builder().memory_nodes([MemoryNode::new("a")]).build()?;
    /// let guard = client.acquire("orders").await?;
    /// assert_eq!(client.inspect("orders").await?.verdict(), Verdict::Held);
    /// assert_eq!(client.inspect(["orders", "stock"]).await?.verdict(), Verdict::Held);
    /// assert_eq!(client.inspect("stock").await?.verdict(), Verdict::Free);
    /// # guard.release().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn inspect(
        &self,
        resources: impl Into<Resources>,
    ) -> Result<Inspection, InvalidRequest> {
        Ok(self.start_inspect(resources.into())?.await)
    }

    /// [`Client::inspect`] with a future that a blocking caller can poll.
    pub(crate) fn start_inspect(
        &self,
        resources: Resources,
    ) -> Result<impl Future<Output = Inspection> + Send + Unpin, InvalidRequest> {
        let resources = resources.check()?;
        let nodes = self.look_at(self.state.keys(&resources)?);
        Ok(nodes.map(move |nodes| self.inspected(&resources, nodes.unwrap_or_default())))
    }

    /// Asks every node what these keys hold.
    fn look_at(&self, keys: Keys) -> oneshot::Receiver<Inspected> {
        let (reply, nodes) = oneshot::channel();
        let lock = self.state.new_lock();
        let (timeout, connect_timeout) = (INSPECT_TIMEOUT, self.state.times.connect_timeout);
        let event = Event::Inspect { lock, keys, timeout, connect_timeout };
        self.state.context.driver.send(event, ReplyTo::Inspect(reply));
        nodes
    }

    /// Those of these resources for which a node has a fencing counter, so that all holders of them must have fencing tokens.
    /// Takes as long as [`Client::inspect`].
    pub(crate) async fn with_fencing_counter(
        &self,
        resources: Resources,
    ) -> Result<Vec<String>, InvalidRequest> {
        let resources = resources.check()?;
        self.state.keys(&resources)?;
        let counters = self.state.counter(&resources, Duration::ZERO).keys;
        let (nodes, _) = self.look_at(counters).await.unwrap_or_default();
        let is_there = |place: usize| {
            nodes.iter().any(|node| match &node.said {
                NodeOutcome::Seen(holding) => {
                    matches!(holding.each().get(place), Some(Holding::Held { .. }))
                }
                _ => false,
            })
        };
        let fenced = resources.iter().enumerate().filter(|(place, _)| is_there(*place));
        Ok(fenced.map(|(_, resource)| resource.to_string()).collect())
    }

    fn inspected(&self, resources: &Keys, (results, doubts): Inspected) -> Inspection {
        let several = resources.single().is_none().then_some(resources);
        let nodes = NodeAnswer::all(&self.state.context.names, several, results);
        Inspection::new(nodes, doubts, self.state.quorum)
    }

    /// Returns the current figures of this client.
    pub fn stats(&self) -> Stats {
        let metrics = &self.state.metrics;
        let now = self.state.context.clock.now();
        let node = |((name, node), metrics): ((&Arc<str>, &ClientNode), &NodeMetrics)| {
            let nanos = metrics.round_trip_ns.load(Ordering::Relaxed);
            let state = node.state();
            let trust_state = metrics.trust_state(&state, now);
            let counts = match trust_state {
                NodeTrustState::Trusted | NodeTrustState::Unguarded => true,
                // A node in memory need not prove anything.
                NodeTrustState::Unverified => matches!(node, ClientNode::Memory(_)),
                NodeTrustState::Quarantined { .. } | NodeTrustState::Refused(_) => false,
            };
            NodeStats {
                name: name.clone(),
                would_vote: counts && state == NodeState::Up,
                trust_state,
                state,
                round_trip: (nanos > 0).then(|| Duration::from_nanos(nanos)),
                timeouts: metrics.timeouts.load(Ordering::Relaxed),
                commands: metrics.commands.load(Ordering::Relaxed),
            }
        };
        let nodes = self.state.context.names.iter().zip(&self.state.nodes).zip(&metrics.nodes);
        Stats {
            nodes: nodes.map(node).collect(),
            quorum: self.state.quorum.needed(),
            locks_held: metrics.locks_held.load(Ordering::Relaxed),
            calls_waiting: metrics.calls_waiting.load(Ordering::Relaxed),
            releases_owed: metrics.releases_owed.load(Ordering::Relaxed),
            wakeups: metrics.wakeups.load(Ordering::Relaxed),
        }
    }

    /// Shuts the client down, with all its clones. Waiting and later calls fail with
    /// [`AcquireError::Closed`](crate::AcquireError::Closed). Locks that are held are lost
    /// ([`LossCause::Shutdown`](crate::LossCause::Shutdown)) and released. The method waits until the nodes have confirmed
    /// the releases that the client owes, for at most `timeout`. If writers were waiting, it also tells the nodes that readers
    /// need not wait for them, and waits for the answers for at most a quarter of a second of that time.
    ///
    /// A second shutdown waits for the releases that are still owed.
    ///
    /// # Errors
    /// [`ShutdownError`] if releases are still owed after `timeout`. The client goes on sending them while its runtime runs.
    /// The keys expire after their ttl in any case.
    ///
    /// # Cancel safety
    /// Safe: after the first poll the shutdown goes on.
    pub async fn shutdown(&self, timeout: Duration) -> Result<(), ShutdownError> {
        match tokio::time::timeout(timeout, self.ask_close()).await {
            // A closed channel also means success, because a driver that has ended owes nothing.
            Ok(_) => Ok(()),
            Err(_) => Err(ShutdownError { owed: self.stats().releases_owed }),
        }
    }

    /// The longest timeout of any node's answer about a lock with this ttl, by the round trips so far.
    #[doc(hidden)]
    pub fn longest_node_timeout(&self, ttl: Duration) -> Duration {
        let nanos = |node: &NodeMetrics| node.round_trip_ns.load(Ordering::Relaxed);
        let longest = self.state.metrics.nodes.iter().map(nanos).max().unwrap_or_default();
        let timing = self.state.timing_with(ttl).unwrap_or(self.state.timing);
        timing.node_timeout(Duration::from_nanos(longest))
    }

    pub(crate) fn driver(&self) -> &DriverHandle {
        &self.state.context.driver
    }

    pub(crate) fn ask_close(&self) -> oneshot::Receiver<()> {
        let (reply, closed) = oneshot::channel();
        self.state.context.driver.send(Event::Close, ReplyTo::Close(reply));
        closed
    }
}

/// The timeout of an inspection. It is longer than that of an attempt, because a person waits for the result.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(1);

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("nodes", &self.state.nodes)
            .field("quorum", &self.state.quorum.needed())
            .finish_non_exhaustive()
    }
}
