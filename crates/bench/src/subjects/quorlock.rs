//! The async client with its defaults, as a task on the callers' runtime.

use ::quorlock::{Client, ClientBuilder, LockOptions, Outcome, RestartGuard};
use quorlock_servers::Server;

use super::closed_loop::{AsyncSubject, Locker};
use super::{Flavor, TTL};
use crate::testbed;

impl Locker for Client {
    async fn pair(&self, key: &str) -> Result<(), String> {
        let guard = self.acquire(key).await.map_err(|error| error.to_string())?;
        went_well(key, guard.release().await.outcome)
    }
}

/// Whether the lock was held to the end. That too few nodes said in time that they have given it back
/// is no failure, on a machine that is loaded to the brim: the time that this took counts.
pub(crate) fn went_well(key: &str, outcome: Outcome) -> Result<(), String> {
    match outcome {
        Outcome::Released | Outcome::Unknown => Ok(()),
        other => Err(format!("the lock on {key} was not held to the end: {other:?}")),
    }
}

/// How every client here is built, unless its workload is about what is different: without the
/// restart guard, for the servers are fresh, and nobody beside has one.
pub(crate) fn builder(urls: impl IntoIterator<Item = String>) -> ClientBuilder {
    Client::builder()
        .nodes(urls)
        .options(LockOptions::new().ttl(TTL))
        .restart_guard(RestartGuard::Off)
}

/// A client of these servers.
///
/// # Errors
/// If it cannot be built.
pub(crate) fn new(servers: &[Server], flavor: Flavor) -> Result<AsyncSubject<Client>, String> {
    named("quorlock", builder(testbed::urls(servers)), flavor)
}

/// A client that is told apart from others.
///
/// # Errors
/// If it cannot be built.
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
