//! Real Redis and Valkey servers on this machine, for tests, for `quorlock demo` and for benchmarks.
//!
//! The crate finds a server binary ([`mod@find`]), runs it without touching anything else on the
//! machine ([`Server`], [`Nodes`]), and does to it what production does to servers: kills it,
//! stops it, starts it again empty. Nothing is downloaded here; `cargo xtask servers` does that.
//!
//! ```
//! use quorlock_servers::{Nodes, ServerOptions, find_or_skip};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let Some(binary) = find_or_skip("the example of quorlock-servers") else { return Ok(()) };
//! let nodes = Nodes::start(&binary, 5, ServerOptions::default())?;
//! nodes[0].kill()?;
//! assert_eq!(nodes.iter().filter(|node| node.is_running()).count(), 4);
//! # Ok(())
//! # }
//! ```
//!
//! With the feature `proxy` there is a way to a server on which connections break (`proxy::Proxy`).
//!
//! Each server lives in a temporary directory of its own and ends with its [`Server`]: on drop,
//! while a panic unwinds, and, where util-linux's `setpriv` is installed, also when this process
//! is killed with SIGKILL. Elsewhere a killed process leaves its servers behind.
//!
//! Unix only: stopping and continuing a process has no counterpart on Windows.

pub mod find;
mod nodes;
mod options;
#[cfg(feature = "proxy")]
pub mod proxy;
pub mod resp;
mod server;
mod skip;
mod spawn;

pub use find::{
    Flavor, NotFound, SERVER_VARIABLE, ServerBinary, Version, find, find_all, find_in, find_named,
};
pub use nodes::Nodes;
pub use options::{Listen, ServerOptions, TlsFiles};
pub use resp::Reply;
pub use server::{Server, StartError};
pub use skip::{
    NOT_FOR, REQUIRE_VARIABLE, SKIP_LOG_VARIABLE, find_or_skip, not_for, skip, without_tls,
};
pub use spawn::spawn;
