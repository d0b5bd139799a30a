//! What a client is made from. Relations are checked once, here; refused, never clamped.

mod settings;
mod topology;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::{RestartGuard, Retry};

use self::settings::Settings;
pub use self::topology::Topology;
use crate::client::Client;
use crate::clock::Clock;
use crate::error::BuildError;
use crate::node::{Node, NodeConfig, Tls};

/// The longest key prefix, in bytes.
pub const PREFIX_BYTES_MAX: usize = 1024;

/// Builds a [`Client`], or a [`blocking::Client`](crate::blocking::Client). Every option's bounds are
/// checked by [`ClientBuilder::build`], before anything is sent.
///
/// A clone builds a client with the same settings. Custom nodes are shared by the clones.
#[must_use = "a builder does nothing until build() is called"]
pub struct ClientBuilder<C = Client> {
    pub(crate) settings: Settings,
    /// The type of client that `build` makes.
    client: PhantomData<fn() -> C>,
}

impl Client {
    /// A builder with the default settings.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::new()
    }
}

impl ClientBuilder {
    pub(crate) fn new() -> Self {
        Self::of(Settings::new())
    }

    /// Checks everything and starts the client: as a task on the current tokio runtime, which must
    /// have I/O and time enabled, or on its own thread. Connections are made in the background; no
    /// node need be up.
    ///
    /// As a task it lives as long as that runtime runs. A call from another runtime waits while
    /// this one stands still, even longer than `wait` says.
    ///
    /// # Errors
    /// [`BuildError`]: what does not fit, with the values. Nothing was sent.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use quorlock::Client;
    /// let builder = Client::builder()
    ///     .nodes(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])
    ///     .ttl(Duration::from_secs(1))
    ///     .node_timeout(Duration::from_millis(300));
    /// assert_eq!(
    ///     builder.build().unwrap_err().to_string(),
    ///     "node timeout (300ms) must be above zero and at most a quarter of ttl (1s)",
    /// );
    /// ```
    pub fn build(self) -> Result<Client, BuildError> {
        self.settings.build()
    }
}

impl<C> ClientBuilder<C> {
    pub(crate) fn of(settings: Settings) -> Self {
        Self { settings, client: PhantomData }
    }

    /// Adds nodes by URL, or `NAME=URL`: independent masters, no replicas of each other. Every
    /// client of a lock must be given the same list. 1 to 31 nodes; three or five are usual.
    pub fn nodes<S: AsRef<str>>(mut self, urls: impl IntoIterator<Item = S>) -> Self {
        self.settings.nodes.extend(urls.into_iter().map(|url| NodeConfig::parse(url.as_ref())));
        self
    }

    /// Adds one node that was configured by itself; see [`ClientBuilder::nodes`].
    pub fn node(mut self, node: NodeConfig) -> Self {
        self.settings.nodes.push(Ok(node));
        self
    }

    /// Adds nodes of another kind: [`MemoryNode`](crate::node::MemoryNode)s, or your own.
    pub fn custom_nodes<N: Node>(mut self, nodes: impl IntoIterator<Item = N>) -> Self {
        self.settings.custom.extend(nodes.into_iter().map(|node| Arc::new(node) as Arc<dyn Node>));
        self
    }

    /// How many nodes must grant: from the majority (the default) up to all of them. All clients of
    /// a lock must agree. A higher quorum survives more votes that vanish early (2Q−N−1), and fewer
    /// nodes that are down (N−Q).
    pub fn quorum(mut self, needed: usize) -> Self {
        self.settings.quorum = Some(needed);
        self
    }

    /// What stands before every resource to make its key. Default: nothing, so that other libraries
    /// that lock the same name are excluded. At most 1024 bytes, without `quorlock:` in them.
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.settings.prefix = prefix.into();
        self
    }

    /// The ttl of locks, unless a call says otherwise; see [`Acquire::ttl`](crate::Acquire::ttl).
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.defaults.timing.ttl = ttl;
        self
    }

    /// The longest ttl that any client of these nodes uses; at most 24 h. Default 30 s. A node that was restarted
    /// without its data must stay down for this long.
    pub fn max_ttl(mut self, max_ttl: Duration) -> Self {
        self.settings.defaults.timing.max_ttl = max_ttl;
        self
    }

    /// How long calls try, unless they say otherwise; see [`Acquire::wait`](crate::Acquire::wait).
    /// Default 10 s.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.settings.defaults.wait = Some(wait);
        self
    }

    /// How long to wait for a node's answer; above zero, at most a quarter of the ttl.
    ///
    /// Default: min(5 % of ttl, 50 ms), but at least four observed round trips. A node that is slow
    /// to answer is not waited for; if it grants later, its vote is given back or counted.
    pub fn node_timeout(mut self, node_timeout: Duration) -> Self {
        self.settings.defaults.timing.node_timeout = Some(node_timeout);
        self
    }

    /// How long a connection may take to be made, log-in included; above zero. Default 1 s. Counts
    /// against a call's wait.
    pub fn connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.settings.defaults.timing.connect_timeout = connect_timeout;
        self
    }

    /// The clock rate error to allow for, in parts per million of the ttl, and the step and rounding
    /// error; together less than the ttl. Default 10 000 (1 %) and 2 ms: the paper's
    /// ttl × 0.01 + 2 ms.
    pub fn drift(mut self, ppm: u32, constant: Duration) -> Self {
        self.settings.defaults.timing.drift_ppm = ppm;
        self.settings.defaults.timing.drift_constant = constant;
        self
    }

    /// How long before the end of its validity a lock is given up as lost; less than the ttl by the
    /// drift. Default max(2 % of ttl, 5 ms): time for the holder to notice.
    pub fn margin(mut self, margin: Duration) -> Self {
        self.settings.defaults.timing.margin = Some(margin);
        self
    }

    /// As [`Acquire::min_validity`](crate::Acquire::min_validity), for all calls.
    pub fn min_validity(mut self, min_validity: Duration) -> Self {
        self.settings.defaults.timing.min_validity = min_validity;
        self
    }

    /// How attempts follow each other. Default: after one to three observed round trips, growing
    /// up to 250 ms, or when the nodes say that the lock expires.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.settings.defaults.retry = retry;
        self
    }

    /// As [`Acquire::auto_extend`](crate::Acquire::auto_extend), for all calls.
    pub fn auto_extend(mut self, automatic: bool) -> Self {
        self.settings.defaults.automatic = automatic;
        self
    }

    /// As [`Acquire::max_hold`](crate::Acquire::max_hold), for all calls.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.settings.defaults.max_hold = max_hold;
        self
    }

    /// As [`Acquire::owner`](crate::Acquire::owner), for all calls. See
    /// [`this_process`](crate::this_process).
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.settings.defaults.owner = owner.into().into();
        self
    }

    /// Certificates for all nodes that have none of their own.
    pub fn tls(mut self, tls: Tls) -> Self {
        self.settings.tls = Some(tls);
        self
    }

    /// The name that the certificates of all nodes must have, in place of the URLs' hosts: for servers that
    /// are reached by addresses or through tunnels. A node's own name wins; see
    /// [`NodeConfig::tls_server_name`]. Refused if a node is without TLS.
    pub fn tls_server_name(mut self, name: impl Into<String>) -> Self {
        self.settings.tls_server_name = Some(name.into());
        self
    }

    /// The ACL user for all nodes; replaces those in the URLs.
    pub fn username(mut self, username: impl Into<String>) -> Self {
        self.settings.username = Some(username.into());
        self
    }

    /// The password for all nodes whose URL has none.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.settings.password = Some(password.into());
        self
    }

    /// What is made of nodes that may have forgotten their votes: restarted, flushed, promoted from a
    /// replica, evicting keys, listed twice, or another's. Default, and for production:
    /// [`RestartGuard::Strict`]: their votes do not count, and a node that was started, or is used for
    /// the first time, votes after [`max_ttl`](ClientBuilder::max_ttl) × 1.01 + 2 s.
    ///
    /// Protects only if all clients of a lock are strict. [`MemoryNode`](crate::node::MemoryNode)s are
    /// trusted in any case.
    pub fn restart_guard(mut self, guard: RestartGuard) -> Self {
        self.settings.trust.guard = guard;
        self
    }

    /// The operator's word that these nodes, by their names, forget nothing when they stop: they run with
    /// `appendonly yes` and `appendfsync always`, and did so before they last stopped. Then they vote at
    /// once when they have been restarted. All else is checked as of the others.
    pub fn durable_nodes<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.settings.trust.durable.extend(names.into_iter().map(Into::into));
        self
    }

    /// As [`Acquire::fenced`](crate::Acquire::fenced), for all calls.
    pub fn fenced(mut self) -> Self {
        self.settings.defaults.fenced = true;
        self
    }

    /// Which clock to read. Default, and for production: [`Clock::System`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.settings.clock = clock;
        self
    }

    /// Gives the client a thread of its own, with a runtime of its own.
    ///
    /// Extension then does not depend on the caller's runtime, which may be blocked; each operation
    /// of an async caller costs a hop between threads more. A blocking call costs none if another was made just
    /// before and none waits for long: its thread does the client's work while it waits. Safety depends on
    /// neither: validity is read from the clock.
    pub fn own_thread(mut self) -> Self {
        self.settings.own_thread = true;
        self
    }
}

impl<C> Clone for ClientBuilder<C> {
    fn clone(&self) -> Self {
        Self::of(self.settings.clone())
    }
}

impl<C> fmt::Debug for ClientBuilder<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder")
            .field("nodes", &self.settings.nodes)
            .field("defaults", &self.settings.defaults)
            .finish_non_exhaustive()
    }
}
