//! The async client with its defaults, as a task on the callers' runtime.

use ::quorlock::Client;
use quorlock_servers::Server;

use super::closed_loop::{AsyncSubject, Locker};
use super::{Flavor, TTL};
use crate::lab;

impl Locker for Client {
    async fn pair(&self, key: &str) -> Result<(), String> {
        let guard = self.acquire(key).await.map_err(|error| error.to_string())?;
        let released = guard.release().await;
        if released.is_released() { Ok(()) } else { Err(format!("{key}: {:?}", released.outcome)) }
    }
}

/// A client of these servers, connected.
///
/// # Errors
/// If it cannot be built.
pub(crate) fn new(servers: &[Server], flavor: Flavor) -> Result<AsyncSubject<Client>, String> {
    let runtime = flavor.runtime()?;
    let builder = Client::builder().nodes(lab::urls(servers)).ttl(TTL);
    let client = {
        let _inside = runtime.enter();
        builder.build().map_err(|error| error.to_string())?
    };
    Ok(AsyncSubject { name: "quorlock", locker: client, runtime })
}
