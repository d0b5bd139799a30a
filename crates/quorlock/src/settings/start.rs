//! A builder, or a client, from the environment of this process, and from the configuration file.

use std::ffi::OsStr;

use super::{Class, Setting, Values, unknown_variables};
use crate::builder::ClientBuilder;
use crate::client::Client;
use crate::error::{BuildError, Reason};

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
        Values::of_environment()?.start(ClientBuilder::<Self>::build)
    }

    /// Starts the client that the environment and the configuration file describe; see
    /// [`ClientBuilder::from_settings`], which also lets you change settings.
    ///
    /// # Errors
    /// As [`ClientBuilder::from_settings`] and [`ClientBuilder::build`]. An error about a value names its variable, or
    /// its key and the file.
    #[cfg(feature = "config-file")]
    pub fn from_settings() -> Result<Self, BuildError> {
        Values::of_environment_or_file()?.start(ClientBuilder::<Self>::build)
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
    /// | `QUORLOCK_PASSWORD` | [`password`](Self::password) |
    /// | `QUORLOCK_PASSWORD_FILE`, a path; it wins over `QUORLOCK_PASSWORD` | [`password_file`](Self::password_file) |
    /// | `QUORLOCK_TLS_CA`, `QUORLOCK_TLS_CERT`, `QUORLOCK_TLS_KEY`: paths of PEM files | [`tls`](Self::tls) with files |
    /// | `QUORLOCK_TLS_SERVER_NAME` | [`tls_server_name`](Self::tls_server_name) |
    ///
    /// An empty variable counts as not set. No configuration file is read; `from_settings` (feature `config-file`)
    /// reads one. No variable is read that describes a single call of the command line (`QUORLOCK_TTL`, `QUORLOCK_WAIT`,
    /// …). A `tracing` event at WARN reports variables `QUORLOCK_…` that quorlock does not know.
    ///
    /// # Errors
    /// [`BuildError::Setting`] names the variable that cannot be used, or that `QUORLOCK_NODES` is not set. The
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
        Values::of_environment()?.start(Ok)
    }

    /// The builder that the environment and the configuration file describe, so that programs and the command line
    /// share one file. A variable of [`from_env`](Self::from_env) has precedence over the file. The file may set every
    /// option that the command line takes from it; its key is the option's long name, and `nodes` lists the nodes.
    ///
    /// ```toml
    /// nodes = ["a=redis://10.0.0.1", "b=redis://10.0.0.2", "c=redis://10.0.0.3"]
    /// username = "locker"
    /// password-file = "/etc/quorlock/password"
    /// ```
    ///
    /// `QUORLOCK_CONFIG` names the file. Without this variable it is the first of these that exists:
    /// `$XDG_CONFIG_HOME/quorlock/config.toml` (by default `~/.config/quorlock/config.toml`),
    /// `/etc/quorlock/config.toml`. A file of this list must belong to root or to this process's user, and nobody else
    /// may write it. Without a file, the variables are enough. Keys for single calls of the command line (`ttl`,
    /// `wait`, …) have no effect here.
    ///
    /// # Errors
    /// [`BuildError::Setting`] names the variable, or the key and the file, that cannot be used. It also reports an
    /// unknown key, and that neither the environment nor the file lists nodes. The message never contains a password.
    /// Nothing was sent.
    #[cfg(feature = "config-file")]
    pub fn from_settings() -> Result<Self, BuildError> {
        Values::of_environment_or_file()?.start(Ok)
    }
}

/// Clients use the settings of the nodes. `Values::builder` checks their values.
#[allow(clippy::unnecessary_wraps, reason = "the command line checks values here")]
fn is_used(setting: &'static Setting, _: &OsStr) -> Result<bool, String> {
    Ok(setting.class == Class::Deployment)
}

impl Values {
    pub(crate) fn of_environment() -> Result<Self, BuildError> {
        if let Some(line) = unknown_variables() {
            tracing::warn!("environment: {line}");
        }
        let mut values = Self::default();
        values.read_variables(&is_used)?;
        Ok(values)
    }

    #[cfg(feature = "config-file")]
    pub(crate) fn of_environment_or_file() -> Result<Self, BuildError> {
        let mut values = Self::of_environment()?;
        values.read_file(&is_used)?;
        if values.file.is_none() && values.of("node").is_none() {
            let reason = format!("not set, and there is no file {}", super::PLACES);
            return Err(BuildError::setting("QUORLOCK_NODES", reason));
        }
        Ok(values)
    }

    /// Makes the builder, and what `build` makes of it. An error names the origins of the values.
    pub(crate) fn start<T>(
        &self,
        build: impl FnOnce(ClientBuilder) -> Result<T, BuildError>,
    ) -> Result<T, BuildError> {
        if self.of("node").is_none() {
            let file =
                self.file.as_ref().map(|file| format!(", and {} has no nodes", file.display()));
            let reason = format!(
                "not set{}; it lists the nodes, as in a=redis://10.0.0.1,b=redis://10.0.0.2,c=redis://10.0.0.3",
                file.unwrap_or_default()
            );
            return Err(BuildError::setting("QUORLOCK_NODES", reason));
        }
        let named = |settings: &[&str]| {
            let sources =
                settings.iter().filter_map(|setting| Some(self.of(setting)?.source.as_str()));
            sources.collect::<Vec<_>>().join(", ")
        };
        let builder = self.builder();
        let builder =
            builder.map_err(|(name, reason)| BuildError::setting(named(&[name]), reason))?;
        build(builder).map_err(|error| match named(error.settings()) {
            origin if origin.is_empty() => error,
            origin => BuildError::setting(origin, Reason::new(error.to_string(), error)),
        })
    }
}
