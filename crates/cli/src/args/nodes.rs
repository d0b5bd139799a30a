//! The options that every command has.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use quorlock::RestartGuard;
use quorlock::env::{duration, restart_guard};

use super::values::number;
use crate::settings::Origins;

/// The nodes and how to talk to them
#[derive(Debug, Args)]
#[command(next_help_heading = "Nodes")]
pub(crate) struct NodeArgs {
    /// A node, repeatable: redis://, rediss://, valkey://, valkeys:// or redis+unix://, with
    /// `[user][:password@]host[:port][/db]`; NAME= before it names it. With one replica:
    /// `?replicas=1`. Behind Sentinel: `redis+sentinel://HOST[:port]/MASTER?replicas=1`, and
    /// `&sentinel=HOST[:port]` for each further Sentinel. Other users can see it with ps, so put
    /// passwords into QUORLOCK_NODES (comma separated), QUORLOCK_PASSWORD or --password-file.
    /// Without --node, QUORLOCK_NODES is used, then the file's nodes
    #[arg(long = "node", short = 'n', env = "QUORLOCK_NODES", value_name = "[NAME=]URL")]
    pub(crate) node: Vec<String>,

    #[command(flatten)]
    pub(crate) config: ConfigArg,

    /// How many nodes must grant [default: the majority]
    #[arg(long, env = "QUORLOCK_QUORUM", value_name = "N", value_parser = number::<usize>)]
    pub(crate) quorum: Option<usize>,

    /// A prefix of every KEY on the nodes
    #[arg(long, env = "QUORLOCK_KEY_PREFIX", value_name = "TEXT")]
    pub(crate) key_prefix: Option<String>,

    /// The longest TTL that any client of these nodes uses [default: 30s]
    #[arg(long, env = "QUORLOCK_MAX_TTL", value_parser = duration, value_name = "TIME")]
    pub(crate) max_ttl: Option<Duration>,

    /// What to do about nodes that were restarted, lost data, or are no independent masters. It
    /// protects a lock only if all its clients are strict [default: strict]
    ///
    /// strict: votes of nodes that are not trusted do not count. observe: their votes count, and the
    /// nodes are reported. off: nodes are not checked
    #[arg(long, env = "QUORLOCK_RESTART_GUARD", value_name = "MODE")]
    #[arg(value_parser = PossibleValuesParser::new(["strict", "observe", "off"])
        .try_map(|mode| restart_guard(&mode)))]
    pub(crate) restart_guard: Option<RestartGuard>,

    /// Names of nodes that lose nothing when they stop, and so need not wait after a restart. They
    /// run with appendonly yes and appendfsync always, and did so before they last stopped.
    /// Repeatable, or comma separated
    #[arg(long, env = "QUORLOCK_DURABLE", value_delimiter = ',', value_name = "NAME")]
    pub(crate) durable: Vec<String>,

    /// How long to wait for a node's answer, at most a quarter of the TTL [default: 5% of TTL, at
    /// most 50ms, but at least four round trips]
    #[arg(long, env = "QUORLOCK_NODE_TIMEOUT", value_parser = duration, value_name = "TIME")]
    pub(crate) node_timeout: Option<Duration>,

    /// How long connecting to a node may take [default: 1s]
    #[arg(long, env = "QUORLOCK_CONNECT_TIMEOUT", value_parser = duration, value_name = "TIME")]
    pub(crate) connect_timeout: Option<Duration>,

    /// The ACL user, for all nodes
    #[arg(long, env = "QUORLOCK_USERNAME", value_name = "NAME")]
    pub(crate) username: Option<String>,

    /// A file with the password for the nodes whose URL has none; QUORLOCK_PASSWORD holds one too
    #[arg(long, env = "QUORLOCK_PASSWORD_FILE", value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,

    /// Trust this certificate authority (PEM) instead of the system's
    #[arg(long, env = "QUORLOCK_TLS_CA", value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,

    /// Show this certificate (PEM) to the nodes
    #[arg(long, env = "QUORLOCK_TLS_CERT", value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The key (PEM) of --tls-cert
    #[arg(long, env = "QUORLOCK_TLS_KEY", value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,

    /// The name that the nodes' certificates must have, in place of the URLs' hosts: for servers
    /// that are reached by addresses or through tunnels. For one node: ?tls-server-name=NAME in its
    /// URL
    #[arg(long, env = "QUORLOCK_TLS_SERVER_NAME", value_name = "NAME")]
    pub(crate) tls_server_name: Option<String>,

    #[arg(skip)]
    pub(crate) origins: Origins,
}

impl NodeArgs {
    /// The longest wait for answers to a release of a lock with this ttl.
    pub(crate) fn node_timeout(&self, ttl: Duration) -> Duration {
        self.node_timeout.unwrap_or((ttl / 20).min(Duration::from_millis(50)))
    }
}

#[derive(Debug, Args)]
pub(crate) struct ConfigArg {
    /// Settings from this TOML file: nodes = ["…"], and most options by their long names
    ///
    /// Without it, the first of these that exists: $XDG_CONFIG_HOME/quorlock/config.toml (by default
    /// ~/.config/quorlock/config.toml), /etc/quorlock/config.toml. /dev/null stands for no file
    #[arg(long, env = "QUORLOCK_CONFIG", value_name = "FILE", global = true)]
    pub(crate) config: Option<PathBuf>,
}

/// What quorlock itself prints
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    /// Print errors only
    #[arg(long, short, env = "QUORLOCK_QUIET", global = true)]
    pub(crate) quiet: bool,

    /// Print JSON instead of text
    #[arg(long, env = "QUORLOCK_JSON", global = true)]
    pub(crate) json: bool,
}
