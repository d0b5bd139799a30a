//! The builder of a client. `build` checks the relations between settings, refuses contradictions and clamps nothing.

mod settings;
mod topology;

use std::error::Error;
use std::fmt;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::RestartGuard;

pub(crate) use self::settings::Settings;
pub use self::topology::Topology;
use crate::client::Client;
use crate::clock::Clock;
use crate::error::BuildError;
use crate::node::{Credentials, MemoryNode, NodeConfig, Provider, Tls, function};
use crate::options::LockOptions;

/// Builds a [`Client`], or a [`blocking::Client`](crate::blocking::Client). [`ClientBuilder::build`] checks the bounds of
/// every setting before anything is sent.
///
/// A clone builds a client with the same settings. The clones share the nodes in memory.
#[derive(Clone)]
#[must_use = "a builder does nothing until build() is called"]
pub struct ClientBuilder<C = Client> {
    pub(crate) settings: Settings,
    client: PhantomData<fn() -> C>,
}

impl Client {
    /// A builder with the default settings.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::new()
    }
}

impl ClientBuilder {
    /// The longest key prefix, in bytes.
    pub const PREFIX_BYTES_MAX: usize = 1024;

    pub(crate) fn new() -> Self {
        Self::of(Settings::default())
    }

    /// Checks all settings and starts the client, as a task on the current tokio runtime or on
    /// [its own thread](Self::own_thread). The runtime must have I/O and time enabled. The client connects in the background,
    /// so no node needs to be up.
    ///
    /// The task runs as long as its runtime does. A call from another runtime waits while the task's runtime is blocked, even
    /// beyond [`wait`](LockOptions::wait).
    ///
    /// # Errors
    /// [`BuildError`] with the values that do not fit. Nothing was sent.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use quorlock::{Client, LockOptions};
    /// let options =
    ///     LockOptions::new().ttl(Duration::from_secs(1)).node_timeout(Duration::from_millis(300));
    /// let builder = Client::builder()
    ///     .nodes(["a=redis://10.0.0.1", "b=redis://10.0.0.2", "c=redis://10.0.0.3"])
    ///     .options(options);
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

    /// Adds nodes by URL, or by `NAME=URL`: independent masters, none a replica of another. All clients of a lock must have
    /// the same list. 1 to 31 nodes; three or five are usual.
    pub fn nodes<S: AsRef<str>>(mut self, urls: impl IntoIterator<Item = S>) -> Self {
        self.settings.nodes.extend(urls.into_iter().map(|url| NodeConfig::parse(url.as_ref())));
        self
    }

    /// Adds one node with its own configuration; see [`ClientBuilder::nodes`].
    pub fn node(mut self, node: NodeConfig) -> Self {
        self.settings.nodes.push(Ok(node));
        self
    }

    /// Adds nodes in memory, which take the place of servers in a test.
    pub fn memory_nodes(mut self, nodes: impl IntoIterator<Item = MemoryNode>) -> Self {
        self.settings.memory_nodes.extend(nodes);
        self
    }

    /// Sets the number of nodes that must grant a lock: from the majority (the default) up to all of them. All clients of a
    /// lock must have the same number. A higher quorum Q of N nodes survives more votes that are lost early (2Q−N−1), and
    /// fewer nodes that are down (N−Q).
    pub fn quorum(mut self, needed: usize) -> Self {
        self.settings.quorum = Some(needed);
        self
    }

    /// Sets the key prefix: a lock's key is this text and then the resource's name. The prefix has at most
    /// [`PREFIX_BYTES_MAX`](ClientBuilder::PREFIX_BYTES_MAX) bytes, without `quorlock:`. Default: empty, so that the
    /// lock excludes other libraries that lock the same name.
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.settings.prefix = prefix.into();
        self
    }

    /// Sets the options of all calls that do not set them. An option that `options` does not set keeps the value of an
    /// earlier call of this method.
    pub fn options(mut self, options: LockOptions) -> Self {
        self.settings.options = options.or(&self.settings.options);
        self
    }

    /// Sets the longest ttl that any client of these nodes uses; at most 24 h. Default 30 s. A node that was restarted
    /// without its data does not vote for about this long.
    pub fn max_ttl(mut self, max_ttl: Duration) -> Self {
        self.settings.times.max_ttl = max_ttl;
        self
    }

    /// Sets the time for making a connection, log-in included; above zero. Default 5 s. This time counts
    /// towards a call's [`wait`](LockOptions::wait).
    pub fn connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.settings.times.connect_timeout = connect_timeout;
        self
    }

    /// Sets the certificates of all nodes that have none of their own: texts, files, or a function that returns them
    /// ([`Tls`]).
    pub fn tls(mut self, tls: Tls) -> Self {
        self.settings.tls = Some(tls);
        self
    }

    /// Sets the name that the certificates of all nodes must have, instead of the URLs' hosts. Use it for servers
    /// behind IP addresses or tunnels. A node's own name ([`NodeConfig::tls_server_name`]) has precedence. `build`
    /// refuses the name if a node is without TLS.
    pub fn tls_server_name(mut self, name: impl Into<String>) -> Self {
        self.settings.tls_server_name = Some(name.into());
        self
    }

    /// Sets the ACL user of all nodes. It replaces users in URLs.
    pub fn username(mut self, username: impl Into<String>) -> Self {
        self.settings.username = Some(username.into());
        self
    }

    /// Sets the password of all nodes whose URL has none.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.settings.password = Some(password.into());
        self
    }

    /// Sets the file with the password of all nodes that have neither a password nor a source of passwords of their
    /// own. Line ends at the end of the file do not count. The file replaces [`password`](Self::password) and
    /// [`credentials`](Self::credentials). A relative path counts from the present working directory.
    ///
    /// [`build`](ClientBuilder::build) reads the file. Then it is read again for each new connection, on a thread of its
    /// own, so a password may change while locks are held. Open connections stay logged in. While the file cannot be
    /// read, is empty, or takes more than a quarter of [`connect_timeout`](Self::connect_timeout) to read, the client
    /// keeps the last password. One `tracing` event at WARN reports this; the next one follows only after the file was
    /// usable again. If a server refuses the password, the client reads the file once more, and logs in again at once
    /// if it changed. Otherwise it tries again later, as after any failure. A file that is a pipe is read once.
    ///
    /// # Errors
    /// `build` refuses a file that cannot be read, is empty, is not UTF-8 text, or has more than 4 MiB.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = quorlock::Client::builder()
    ///     .nodes(["a=redis://10.0.0.1", "b=redis://10.0.0.2", "c=redis://10.0.0.3"])
    ///     .username("locker")
    ///     .password_file("/run/secrets/redis-password")
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn password_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.credentials = Some(Provider::of_file(path.into()));
        self
    }

    /// Sets a function that returns user and password, for all nodes that have neither a password nor a source of
    /// passwords of their own. [`NodeConfig::credentials`] describes the function, and is the same for one node. It
    /// replaces [`password`](Self::password) and [`password_file`](Self::password_file).
    pub fn credentials<F, Fut, E>(mut self, ask: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        self.settings.credentials = Some(Provider::Function(function(ask)));
        self
    }

    /// Calls this function, which must not block, with each warning about a file that cannot be used.
    #[doc(hidden)]
    pub fn on_warning(mut self, warn: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.settings.on_warning = Some(Arc::new(warn));
        self
    }

    /// Sets the treatment of nodes that may have lost their votes: nodes that were restarted, flushed or promoted from a
    /// replica, that evict keys, are listed twice, or belong to another set of clients. Default, and for production:
    /// [`RestartGuard::Strict`], in which votes of such nodes do not count. A node that was restarted, or is used for
    /// the first time, votes after [`max_ttl`](ClientBuilder::max_ttl) × 1.01 + 2 s.
    ///
    /// The guard protects only if all clients of a lock are strict. [`MemoryNode`]s are always trusted.
    pub fn restart_guard(mut self, guard: RestartGuard) -> Self {
        self.settings.trust.guard = guard;
        self
    }

    /// Makes a client that only reads nodes. It never writes, even to a node with replicas, and must acquire no locks.
    pub(crate) fn only_inspects(mut self, guard: RestartGuard) -> Self {
        self.settings.trust.only_inspects = true;
        self.restart_guard(guard)
    }

    /// Declares that the nodes with these names lose no data when they stop: they run with `appendonly yes` and
    /// `appendfsync always`, and did so before they last stopped. They vote at once after a restart. All other checks apply
    /// to them too.
    pub fn durable_nodes<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.settings.trust.durable.extend(names.into_iter().map(Into::into));
        self
    }

    /// Sets the clock that the client reads. Default, and for production: [`Clock::System`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.settings.clock = clock;
        self
    }

    /// Whether the client runs on a thread of its own, with its own runtime. Default false for an async client; a blocking
    /// client always has its own thread.
    ///
    /// The extension of locks then does not depend on the caller's runtime, which may be blocked. Each operation of an
    /// async caller costs an additional switch between threads. A blocking call avoids this switch while calls follow
    /// each other and no call waits for long: its thread does the client's work while it waits. Safety does not depend
    /// on the choice of the thread, because validity is read from the clock.
    pub fn own_thread(mut self, own_thread: bool) -> Self {
        self.settings.own_thread = own_thread;
        self
    }
}

impl<C> fmt::Debug for ClientBuilder<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder")
            .field("nodes", &self.settings.nodes)
            .field("options", &self.settings.options)
            .finish_non_exhaustive()
    }
}
