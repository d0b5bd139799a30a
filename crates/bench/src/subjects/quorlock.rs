//! The async client with its default settings, on the runtime of its callers.

use ::quorlock::{Client, ClientBuilder, Guard, LockOptions, Outcome, RestartGuard};
use quorlock_servers::Server;

use super::closed_loop::{AsyncSubject, Locker};
use super::{Flavor, TTL};
use crate::testbed;

impl Locker for Client {
    type Guard = Guard;

    async fn acquire(&self, key: &str) -> Result<Guard, String> {
        Self::acquire(self, key).await.map_err(|error| error.to_string())
    }

    async fn release(guard: Guard) -> Result<(), String> {
        went_well("its key", guard.release().await.outcome)
    }
}

/// Returns an error if the lock was lost. `Unknown` is no error: on an overloaded machine, too few nodes may confirm a
/// release in time. The figures include the time of that release.
pub(crate) fn went_well(key: &str, outcome: Outcome) -> Result<(), String> {
    match outcome {
        Outcome::Released | Outcome::Unknown => Ok(()),
        other => Err(format!("the lock on {key} was not held to the end: {other:?}")),
    }
}

/// The default builder of all workloads. The restart guard is off, because the servers are fresh and no other subject
/// has such a guard.
pub(crate) fn builder(urls: impl IntoIterator<Item = String>) -> ClientBuilder {
    Client::builder()
        .nodes(urls)
        .options(LockOptions::new().ttl(TTL))
        .restart_guard(RestartGuard::Off)
}

/// Creates a client.
///
/// # Errors
/// If the client cannot be built.
pub(crate) fn new(servers: &[Server], flavor: Flavor) -> Result<AsyncSubject<Client>, String> {
    named("quorlock", builder(testbed::urls(servers)), flavor)
}

/// Creates a client with a name for the report.
///
/// # Errors
/// If the client cannot be built.
pub(crate) fn named(
    name: &'static str,
    builder: ClientBuilder,
    flavor: Flavor,
) -> Result<AsyncSubject<Client>, String> {
    let runtime = flavor.runtime()?;
    let client = {
        let _inside = runtime.enter();
        builder.build().map_err(|error| error.to_string())?
    };
    Ok(AsyncSubject { name, locker: client, runtime })
}
