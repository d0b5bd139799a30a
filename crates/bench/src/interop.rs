//! quorlock and rslock as workers of `cargo xtask interop`, with their default options.

#[path = "../rivals/interop/protocol.rs"]
mod protocol;

use std::time::Duration;

use quorlock::{Client, LockOptions, Outcome};

use crate::machine;

/// The hidden subcommand that starts a worker.
pub(crate) const WORKER: &str = "interop-worker";

/// Serves the protocol of `rivals/interop/worker.py`. The nodes are `HOST:PORT,HOST:PORT,…`.
///
/// # Errors
/// If the library is unknown, or a client cannot be built.
pub(crate) fn main(library: &str, nodes: &str) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let urls = nodes.split(',').map(|node| format!("redis://{node}"));
    let served = match library {
        "quorlock" => {
            let _inside = runtime.enter();
            let client = Client::builder().nodes(urls).build().map_err(|why| why.to_string())?;
            let acquire = |key: &str, ttl_ms| {
                let options = LockOptions::new().ttl(Duration::from_millis(ttl_ms));
                match runtime.block_on(async { client.acquire(key).options(options).await }) {
                    Ok(guard) => Ok(Some(guard)),
                    Err(error) if error.is_contended() => Ok(None),
                    Err(error) => Err(error.to_string()),
                }
            };
            protocol::serve(env!("CARGO_PKG_VERSION"), acquire, |guard| {
                // `Unknown`: on an overloaded machine, too few nodes may confirm the release in time.
                match runtime.block_on(guard.release()).outcome {
                    Outcome::Released | Outcome::Unknown => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
        }
        "rslock" => {
            let manager = rslock::LockManager::new(urls.collect());
            let acquire = |key: &str, ttl_ms| {
                let lock = manager.lock(key, Duration::from_millis(ttl_ms));
                match runtime.block_on(lock) {
                    Ok(lock) => Ok(Some(lock)),
                    Err(rslock::LockError::Unavailable) => Ok(None),
                    Err(error) => Err(error.to_string()),
                }
            };
            protocol::serve(&machine::versions()["rslock"], acquire, |lock| {
                runtime.block_on(manager.unlock(&lock));
                Ok(())
            })
        }
        other => return Err(format!("no worker for {other:?}")),
    };
    served.map_err(|error| error.to_string())
}
