//! rslock with its default settings.

use ::rslock::{LockGuard, LockManager};
use quorlock_servers::Server;

use super::closed_loop::{AsyncSubject, Locker};
use super::{Flavor, TTL};
use crate::testbed;

impl Locker for LockManager {
    type Guard = LockGuard;

    async fn acquire(&self, key: &str) -> Result<LockGuard, String> {
        Self::acquire(self, key, TTL).await.map_err(|error| error.to_string())
    }

    async fn release(guard: LockGuard) -> Result<(), String> {
        guard.release().await;
        Ok(())
    }
}

/// Creates a lock manager.
///
/// # Errors
/// If the runtime cannot be built.
pub(crate) fn new(servers: &[Server], flavor: Flavor) -> Result<AsyncSubject<LockManager>, String> {
    let runtime = flavor.runtime()?;
    let manager = LockManager::new(testbed::urls(servers));
    Ok(AsyncSubject { name: "rslock", locker: manager, runtime })
}
