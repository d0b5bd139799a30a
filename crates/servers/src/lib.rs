#![doc = include_str!("../README.md")]

#[cfg(feature = "certificates")]
pub mod certificates;
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

/// The variable with the command line of `cargo xtask bench`. The benchmark's report contains it.
pub const BENCH_COMMAND_VARIABLE: &str = "QUORLOCK_BENCH_COMMAND";
