//! A builder, or a client, from the variables of this process.

use std::env;
use std::sync::Arc;

use super::{Class, Deployment, SettingError, class_of, is_blank, unknown_variables, variable_of};
use crate::builder::ClientBuilder;
use crate::client::Client;
use crate::error::BuildError;

impl Client {
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
        ClientBuilder::from_env()?.build().map_err(blamed)
    }
}

impl ClientBuilder {
    /// The builder that the environment describes, by the variables that the command line reads too.
    ///
    /// | variable | method |
    /// |---|---|
    /// | `QUORLOCK_NODES`: URLs between commas; required | [`nodes`](Self::nodes) |
    /// | `QUORLOCK_QUORUM` | [`quorum`](Self::quorum) |
    /// | `QUORLOCK_KEY_PREFIX` | [`key_prefix`](Self::key_prefix) |
    /// | `QUORLOCK_MAX_TTL`, such as `30s` | [`max_ttl`](Self::max_ttl); locks then have a ttl of at most this |
    /// | `QUORLOCK_RESTART_GUARD`: `strict`, `observe` or `off` | [`restart_guard`](Self::restart_guard) |
    /// | `QUORLOCK_DURABLE`: names between commas | [`durable_nodes`](Self::durable_nodes) |
    /// | `QUORLOCK_NODE_TIMEOUT`, such as `50ms` | [`LockOptions::node_timeout`](crate::LockOptions::node_timeout) |
    /// | `QUORLOCK_CONNECT_TIMEOUT`, such as `1s` | [`connect_timeout`](Self::connect_timeout) |
    /// | `QUORLOCK_YIELD_TO_POLLERS`: `yes` or `no` | [`LockOptions::yield_to_pollers`](crate::LockOptions::yield_to_pollers) |
    /// | `QUORLOCK_USERNAME` | [`username`](Self::username) |
    /// | `QUORLOCK_PASSWORD_FILE`, a path; or `QUORLOCK_PASSWORD` | [`password`](Self::password) |
    /// | `QUORLOCK_TLS_CA`, `QUORLOCK_TLS_CERT`, `QUORLOCK_TLS_KEY`: paths of PEM files | [`tls`](Self::tls) |
    /// | `QUORLOCK_TLS_SERVER_NAME` | [`tls_server_name`](Self::tls_server_name) |
    ///
    /// An empty variable counts as not set. No configuration file is read, and no variable that describes a single
    /// call of the command line (`QUORLOCK_TTL`, `QUORLOCK_WAIT`, …). A `tracing` event at WARN reports variables
    /// `QUORLOCK_…` that quorlock does not know.
    ///
    /// # Errors
    /// [`BuildError::Environment`] names the variable that cannot be used, or that `QUORLOCK_NODES` is not set. The
    /// message never contains a password. Nothing was sent.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// use quorlock::{ClientBuilder, LockOptions};
    ///
    /// # fn main() -> Result<(), quorlock::BuildError> {
    /// let options = LockOptions::new().ttl(Duration::from_secs(5));
    /// let client = ClientBuilder::from_env()?.options(options).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_env() -> Result<Self, BuildError> {
        let blame = |error: SettingError| BuildError::Environment {
            variable: variable_of(error.setting),
            reason: error.reason,
            source: error.source,
        };
        if let Some(line) = unknown_variables() {
            tracing::warn!("environment: {line}");
        }
        let deployment = Deployment::read(|variable| env::var_os(variable)).map_err(blame)?;
        if deployment.nodes.is_empty() {
            let reason = "not set; it lists the nodes, as in redis://10.0.0.1,redis://10.0.0.2";
            return Err(blame(SettingError::new("node", reason)));
        }
        deployment.builder().map_err(blame)
    }
}

/// Adds the environment variables of the wrong settings to the error. Without such variables it stays as it is.
pub(crate) fn blamed(error: BuildError) -> BuildError {
    let variables = error.settings().iter().map(|setting| variable_of(setting)).filter(|name| {
        class_of(name) == Some(Class::Deployment)
            && env::var_os(name).is_some_and(|text| !is_blank(&text))
    });
    let variable = variables.collect::<Vec<_>>().join(", ");
    if variable.is_empty() {
        return error;
    }
    let reason = error.to_string();
    BuildError::Environment { variable, reason, source: Some(Arc::new(error)) }
}
