//! The user's configuration of a node, and its errors.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::credentials::{Credentials, Provider, function};
use super::redis::target::{Target, looks_like_a_host};
use super::tls::Tls;
use crate::error::Reason;
use crate::text::printable;

/// The address of a node, and the credentials for it.
///
/// Parsed from `URL` or `NAME=URL`. The schemes are `redis://`, `rediss://` (TLS), `valkey://`, `valkeys://` (TLS),
/// `redis+unix://`, `valkey+unix://` and `unix://`: `redis://[user][:password@]host[:port][/db]`,
/// `redis+unix:///path?db=1&user=u&pass=p`. `host` and `host:port` alone stand for `redis://`. For a server whose
/// certificate has another name than the host: `rediss://host?tls-server-name=NAME`. For a server with one replica that
/// may take its place: `redis://host?replicas=1` ([`NodeConfig::replicas`]).
///
/// `redis+sentinel://host1:26379/NAME?sentinel=host2:26379&sentinel=host3:26379&replicas=1` is the master that these
/// Sentinels, at most nine, call `NAME`; with `rediss+sentinel://`, TLS is used to the Sentinels and to the master. At
/// each connect the client asks one Sentinel after the other for the master's address. They share the connect timeout
/// with the connection to the master in equal parts. `replicas` is required. The URL's user and password are the
/// master's; `sentinel-user` and `sentinel-password` are the Sentinels', and `db` is the database.
///
/// Messages show the name of the node; without a name, `host:port` or the path, or the Sentinels' name for the master.
/// `Debug` and errors never show a password.
///
/// ```
/// # use quorlock::node::NodeConfig;
/// let config = NodeConfig::parse("a=rediss://app:secret@redis-a.internal:6380")?;
/// assert_eq!(config.name(), "a");
/// assert_eq!(config.address(), "redis-a.internal:6380");
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok::<(), quorlock::node::NodeConfigError>(())
/// ```
#[derive(Clone)]
pub struct NodeConfig {
    pub(super) name: String,
    pub(super) target: Target,
    pub(super) tls: Option<Tls>,
    pub(super) credentials: Option<Provider>,
    pub(super) on_warning: Option<OnWarning>,
}

/// Called with each warning about a file that cannot be used.
pub(crate) type OnWarning = Arc<dyn Fn(&str) + Send + Sync>;

impl NodeConfig {
    /// Parses `URL` or `NAME=URL`.
    ///
    /// # Errors
    /// If the URL is malformed or has an unknown scheme, or the name is not 1 to 64 letters, digits, `.`, `_` and `-`.
    pub fn parse(text: &str) -> Result<Self, NodeConfigError> {
        Self::parse_named(text, is_name)
    }

    /// Parses a node of an old list. It may also have the name of a node without a name, such as `127.0.0.1:7001`.
    pub(crate) fn parse_old(text: &str) -> Result<Self, NodeConfigError> {
        let is_address = |name: &str| name.contains(':') && looks_like_a_host(name);
        Self::parse_named(text, |name| is_name(name) || is_address(name) || name.starts_with('/'))
    }

    fn parse_named(text: &str, is_name: impl Fn(&str) -> bool) -> Result<Self, NodeConfigError> {
        let text = text.trim();
        let (name, url) = match text.split_once('=') {
            Some((name, url)) if !name.contains("://") => (Some(name.trim()), url.trim()),
            _ => (None, text),
        };
        if let Some(name) = name
            && !is_name(name)
        {
            // The text before the first `=` may be the beginning of a URL whose password contains the `=`. So this
            // text is redacted.
            let may_be_a_url = name.contains([':', '@', '/', '?', '#']);
            let shown = || format!("\"{}\"", printable(name).chars().take(120).collect::<String>());
            let name = if may_be_a_url { redacted(name) } else { shown() };
            return Err(NodeConfigError::Name { name });
        }
        let target = Target::parse(url).map_err(|Reason { text, source }| {
            NodeConfigError::Url { url: redacted(url), reason: text, source }
        })?;
        let name = name.map_or_else(|| target.name(), str::to_owned);
        Ok(Self { name, target, tls: None, credentials: None, on_warning: None })
    }

    /// Returns the name that messages show for the node.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns `host:port`, the socket's path, or the first Sentinel and its name for the master: `host:port/NAME`.
    pub fn address(&self) -> String {
        self.target.address()
    }

    /// Whether the URL contains a password for the server.
    pub fn has_password(&self) -> bool {
        self.target.password.is_some()
    }

    /// Sets the password. It replaces the URL's.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.target.password = Some(password.to_owned());
        self
    }

    /// Sets the ACL user. It replaces the URL's.
    #[must_use]
    pub fn username(mut self, username: &str) -> Self {
        self.target.username = Some(username.to_owned());
        self
    }

    /// Sets a function that returns user and password. The client calls it for every new connection, so a token that
    /// expires or a password that changes needs no restart. Its result replaces those of the URL and of the builder.
    ///
    /// An open connection stays logged in. The function may wait, for example for a token service;
    /// [`connect_timeout`](crate::ClientBuilder::connect_timeout) bounds the call together with the connecting. While
    /// the function fails or panics, the node counts as unreachable, and the client calls it again when it tries to
    /// connect. Messages show its error, so the error must not contain a secret.
    ///
    /// ```
    /// use quorlock::node::{Credentials, NodeConfig};
    ///
    /// let path = "/run/secrets/redis-token";
    /// let node = NodeConfig::parse("a=rediss://app@redis-a.internal:6380")?.credentials(move || async move {
    ///     let token = tokio::fs::read_to_string(path).await?;
    ///     Ok::<_, std::io::Error>(Credentials::password(token.trim_end()))
    /// });
    /// # Ok::<(), quorlock::node::NodeConfigError>(())
    /// ```
    #[must_use]
    pub fn credentials<F, Fut, E>(mut self, ask: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        self.credentials = Some(Provider::Function(function(ask)));
        self
    }

    /// Sets the file that contains the password, without the line end. It replaces the password of the URL and that of
    /// [`password`](Self::password); the user stays. [`ClientBuilder::password_file`](crate::ClientBuilder::password_file)
    /// sets it for all nodes, and describes when the file is read.
    ///
    /// # Errors
    /// [`ClientBuilder::build`](crate::ClientBuilder::build) refuses a file that cannot be read, is empty, is not UTF-8
    /// text, or has more than 4 MiB.
    #[must_use]
    pub fn password_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.credentials = Some(Provider::of_file(path.into()));
        self
    }

    /// Sets the number of replicas of this node that may take its place under the same name. Default 0. It replaces the
    /// URL's.
    ///
    /// With k > 0, each batch that asks for votes ends with a write and `WAIT k`. The votes count only if all k
    /// replicas acknowledge the write within three quarters of the default node timeout. So a lock costs one more round
    /// trip, from the master to its replicas, and there is no lock while a replica is away. After a promotion the node
    /// waits for `max_ttl` × 1.01 + 2 s, as after a restart.
    ///
    /// All clients must have the same number. A client refuses a node with more replicas than k: raise k in all clients
    /// before you add a replica. The node needs RESP3, the rights `+wait` and `+client|tracking`, and
    /// [`RestartGuard::Strict`](crate::RestartGuard::Strict). [`ClientBuilder::build`](crate::ClientBuilder::build)
    /// refuses it with another restart guard, and as a durable node. `GUARANTEES.md` ("Nodes with replicas") describes
    /// how two clients may still hold one lock.
    ///
    /// ```
    /// # use quorlock::node::NodeConfig;
    /// let config = NodeConfig::parse("locks=redis://locks.internal:6379")?.replicas(1);
    /// assert!(NodeConfig::parse("redis://locks.internal?replicas=one").is_err());
    /// # Ok::<(), quorlock::node::NodeConfigError>(())
    /// ```
    ///
    /// Source: `docs/algorithm.md`, "Nodes with replicas".
    #[must_use]
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.target.replicas = replicas;
        self
    }

    /// Sets the certificates for TLS, or the files or the function that they come from. Default: the system's roots. Has
    /// no effect on a node without TLS. [`ClientBuilder::tls`](crate::ClientBuilder::tls) sets them for all nodes.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets the name that the server's certificate must have, instead of the URL's host. Use it if the URL has an IP
    /// address, or the host of a tunnel.
    ///
    /// [`ClientBuilder::build`](crate::ClientBuilder::build) refuses an invalid name, or a name for a node without TLS.
    #[must_use]
    pub fn tls_server_name(mut self, name: impl Into<String>) -> Self {
        self.target.tls_server_name = Some(name.into());
        self
    }

    /// The number of replicas whose acknowledgement a vote needs.
    pub const fn replica_count(&self) -> u32 {
        self.target.replicas
    }

    /// Whether the node has a password of its own: the one of the server or of its Sentinels.
    pub(crate) fn has_any_password(&self) -> bool {
        self.target.has_any_password() || self.credentials.is_some()
    }

    /// The password in the URL.
    pub(crate) fn password_in_url(&self) -> Option<&str> {
        self.target.password.as_deref()
    }

    /// The URL without passwords.
    pub(crate) fn url(&self) -> String {
        self.target.url()
    }

    /// The URL with the database of another node, and with TLS if the other node has it.
    pub(crate) fn url_like(&self, other: &Self) -> String {
        self.target.like(&other.target).url()
    }

    pub(crate) fn tls_server_name_unless_set(mut self, name: &str) -> Self {
        self.target.tls_server_name.get_or_insert_with(|| name.to_owned());
        self
    }

    pub(crate) fn tls_unless_set(self, tls: &Tls) -> Self {
        Self { tls: self.tls.or_else(|| Some(tls.clone())), ..self }
    }

    pub(crate) fn credentials_unless_set(mut self, credentials: &Provider) -> Self {
        if !self.has_password() {
            self.credentials.get_or_insert_with(|| credentials.clone());
        }
        self
    }

    /// Whether both URLs have the same user and password.
    pub(crate) fn has_log_in_of(&self, other: &Self) -> bool {
        self.target.login() == other.target.login()
    }

    /// With the user and the password of another node's URL, unless this node's URL has some.
    pub(crate) fn log_in_unless_set(mut self, other: &Self) -> Self {
        if self.target.login().is_none() {
            self.target.username.clone_from(&other.target.username);
            self.target.password.clone_from(&other.target.password);
        }
        self
    }

    pub(crate) fn warns(mut self, on_warning: Option<OnWarning>) -> Self {
        self.on_warning = on_warning;
        self
    }
}

impl fmt::Debug for NodeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeConfig")
            .field("name", &self.name)
            .field("address", &self.address())
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

impl std::str::FromStr for NodeConfig {
    type Err = NodeConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

/// An error in a node's configuration. Nothing was sent.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeConfigError {
    /// The URL cannot be used.
    #[error("node URL {url}: {reason}")]
    Url {
        /// The URL, in quotes, without its password.
        url: String,
        /// The cause, in words.
        reason: String,
        /// The error of the URL's parser.
        source: Option<Arc<dyn Error + Send + Sync>>,
    },
    /// The name is empty or too long, or has other characters than letters, digits, `.`, `_` and `-`.
    #[error("node name {name}: a name has 1 to 64 letters, digits, '.', '_' or '-'")]
    Name {
        /// The name, in quotes, without a part that may be a password.
        name: String,
    },
    /// The file with the password cannot be used.
    #[error("node {node}: {reason}")]
    PasswordFile {
        /// The node's name.
        node: String,
        /// The file, and the cause in words.
        reason: String,
        /// The error of the operating system.
        source: Option<Arc<dyn Error + Send + Sync>>,
    },
    /// A certificate or key cannot be used.
    #[error("node {node}: TLS: {reason}")]
    Tls {
        /// The node's name.
        node: String,
        /// The cause, in words.
        reason: String,
        /// The error of the TLS library.
        source: Option<Arc<dyn Error + Send + Sync>>,
    },
}

pub(super) fn is_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=64).contains(&name.len()) && name.chars().all(good)
}

/// The URL without its query and without the text before an `@`, so that messages show no password.
fn redacted(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), url),
    };
    // If the URL lacks an `@` or a password is not encoded, the password stands in the place of the host. So text that
    // does not look like a host is not shown.
    let (shown, hidden) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
    let (mask, host) = match shown.rsplit_once('@') {
        Some((_, host)) => ("***@", host),
        None => ("", shown),
    };
    // A list of hosts without an `@` contains no password, so the list is shown.
    let is_list = !rest.contains('@')
        && host.split(',').flat_map(|part| part.split("://")).all(looks_like_a_host);
    let rest = if (looks_like_a_host(host) || is_list) && !hidden.contains('@') {
        format!("{mask}{host}")
    } else {
        "***".to_owned()
    };
    let shown: String = printable(&format!("{scheme}{rest}")).chars().take(120).collect();
    format!("\"{shown}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheme_is_read() {
        for (url, address) in [
            ("redis://a", "a:6379"),
            ("redis://a:7000/3", "a:7000"),
            ("valkey://u:p@a:7000", "a:7000"),
            ("redis://[::1]:7000", "[::1]:7000"),
            ("redis+unix:///run/r.sock", "/run/r.sock"),
            ("unix:///run/r.sock?db=2", "/run/r.sock"),
            ("rediss://a?tls-server-name=b", "a:6379"),
            ("localhost", "localhost:6379"),
            ("redis", "redis:6379"),
            ("Redis-1.internal:7000/3", "redis-1.internal:7000"),
            ("10.0.0.1:7000", "10.0.0.1:7000"),
            ("[::1]:7000", "[::1]:7000"),
        ] {
            let config = NodeConfig::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"));
            assert_eq!(config.address(), address);
            assert_eq!(config.name(), address);
        }
    }

    #[test]
    fn a_name_stands_before_the_url() {
        let config = NodeConfig::parse("a=redis+unix:///r.sock?user=u&pass=p=q").unwrap();
        assert_eq!((config.name(), config.address().as_str()), ("a", "/r.sock"));
        let config = NodeConfig::parse("redis+unix:///r.sock?user=u").unwrap();
        assert_eq!(config.name(), "/r.sock");
        assert!(matches!(NodeConfig::parse("a b=redis://h"), Err(NodeConfigError::Name { .. })));
    }

    #[test]
    fn bad_urls_are_refused_without_telling_the_password() {
        for url in [
            "",
            "6379",
            "host:hunter2",
            "user:hunter2@host",
            "/run/r.sock",
            "::1",
            "http://user:hunter2@host",
            "redis://",
            "redis://user:hunter2@host:99999",
            "redis://user:hunter2@host:6379/x",
            "redis://user:hunter2#x@host:6379",
            "redis://user:1234hunter2?x@host:6379",
            "redis://hunter2:1234#x@localhost",
            "redis://:hunter2",
            "redis://user:hunter2:127.0.0.1:7101",
            "redis://user:hunter2://host",
            "redis+unix://",
        ] {
            let error = NodeConfig::parse(url).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
        let shown = |url| NodeConfig::parse(url).unwrap_err().to_string();
        let list = shown("redis://h:1,redis://h:2");
        assert!(list.starts_with("node URL \"redis://h:1,redis://h:2\": "), "{list}");
        assert!(!shown("redis://h,:hunter2,redis://h:2").contains("hunter2"));
        let error = NodeConfig::parse("http://user:hunter2@host").unwrap_err().to_string();
        assert!(error.contains("unknown scheme \"http\""), "{error}");
    }
}
