//! The client: a handle to one engine, its driver and its nodes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quorlock_core::Event;
use tokio::sync::oneshot;

use self::state::ClientState;
use crate::acquire::Acquire;
use crate::driver::{DriverHandle, NodeMetrics, ReplyTo};
use crate::error::{InvalidRequest, NodeAnswer, ShutdownError};
use crate::inspect::Inspection;
use crate::node::ClientNode;
use crate::resources::Resources;
use crate::stats::{NodeStats, NodeTrustState, Stats};

pub(crate) mod state;

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
    state: Arc<ClientState>,
}

impl Client {
    pub(crate) fn new(state: ClientState) -> Self {
        Self { state: Arc::new(state) }
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
        Acquire::new(self.state.clone(), resources.into())
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
        let keys = self.state.keys(&Resources::from(resource).check()?)?;
        let (reply, nodes) = oneshot::channel();
        let lock = self.state.new_lock();
        let event = Event::Inspect { lock, keys, timeout: INSPECT_TIMEOUT };
        self.state.common.driver.send(event, ReplyTo::Inspect(reply));
        Ok(nodes)
    }

    pub(crate) fn inspected(&self, results: Vec<quorlock_core::NodeResult>) -> Inspection {
        let is_untrusted = |(place, node): (usize, &NodeStats)| match node.trust_state {
            // A node whose wait is over has no earlier lock to forget.
            NodeTrustState::Quarantined { remaining, .. } => !remaining.is_zero(),
            NodeTrustState::Refused(_) => true,
            // What a server is, it says with its first answer. Nodes of others' making need not say it.
            NodeTrustState::Unverified => place < self.state.servers,
            NodeTrustState::Unguarded | NodeTrustState::Trusted => false,
        };
        let untrusted = self.stats().nodes.iter().enumerate().map(is_untrusted).collect();
        let nodes = NodeAnswer::all(&self.state.common.names, None, results);
        Inspection::new(nodes, untrusted, self.state.quorum)
    }

    /// Figures of this client, as of now.
    pub fn stats(&self) -> Stats {
        let metrics = &self.state.metrics;
        let now = self.state.common.clock.now();
        let node = |((name, node), metrics): ((&Arc<str>, &ClientNode), &NodeMetrics)| {
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
        let nodes = self.state.common.names.iter().zip(&self.state.nodes).zip(&metrics.nodes);
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
        &self.state.common.driver
    }

    pub(crate) fn ask_close(&self) -> oneshot::Receiver<()> {
        let (reply, closed) = oneshot::channel();
        self.state.common.driver.send(Event::Close, ReplyTo::Close(reply));
        closed
    }
}

/// How long an inspection waits for the nodes: longer than an attempt, because a person asks.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(1);

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("nodes", &self.state.nodes)
            .field("quorum", &self.state.quorum.needed())
            .finish_non_exhaustive()
    }
}
