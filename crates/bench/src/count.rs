//! Runs a fixed number of pairs (an acquire and its release), so that valgrind can count their instructions.
//!
//! `cargo xtask instructions` runs this program twice with different numbers of pairs. The difference of the counts is
//! the cost of the additional pairs, without the start of the servers and the connections of the client.

use std::sync::Arc;
use std::time::Duration;

use quorlock::{LockOptions, RestartGuard};

use crate::subjects::quorlock::{builder, went_well};
use crate::subjects::{Flavor, key};
use crate::testbed;

/// Long enough that no lock is extended, even under valgrind. Extensions depend on the time, and would make the count
/// vary.
const TTL: Duration = Duration::from_secs(10);

/// Runs `pairs` pairs in total on five servers. Each of the `lockers` tasks has its own key. `guard` switches the
/// restart guard on. With `take`, the locks have values of their callers.
///
/// # Errors
/// If there are no servers, or an acquire fails.
pub(crate) fn run(lockers: usize, pairs: usize, (guard, take): (bool, bool)) -> Result<(), String> {
    if lockers == 0 || pairs == 0 || !pairs.is_multiple_of(lockers) {
        return Err(format!("{lockers} lockers cannot share {pairs} pairs evenly"));
    }
    let servers = testbed::start(&testbed::server(None)?, 5, &[])?;
    let urls = servers.urls();
    Flavor::CurrentThread.runtime()?.block_on(async {
        // The work runs in a task. `block_on` would poll it more often, and those polls would be counted too.
        let all = tokio::spawn(all(urls, lockers, pairs / lockers, (guard, take)));
        all.await.map_err(|error| error.to_string())?
    })
}

async fn all(
    urls: Vec<String>,
    lockers: usize,
    each: usize,
    (guard, take): (bool, bool),
) -> Result<(), String> {
    let builder = builder(urls)
        .options(LockOptions::new().ttl(TTL).wait(Duration::from_secs(60)))
        .max_ttl(TTL);
    let guard = if guard { RestartGuard::Strict } else { RestartGuard::Off };
    let builder = builder.restart_guard(guard);
    if guard == RestartGuard::Strict {
        // Makes the servers vote at once. Otherwise the client's wait for their votes would be counted too.
        let marked =
            quorlock_admin::init::fresh(&builder).await.map_err(|error| error.to_string())?;
        assert_eq!(marked.voting(), 5, "all servers of the laboratory are sound");
    }
    let client = builder.build();
    let client = Arc::new(client.map_err(|error| error.to_string())?);
    let lockers: Vec<_> = (0..lockers)
        .map(|locker| {
            let client = client.clone();
            tokio::spawn(async move {
                let key = key("count", locker);
                for _ in 0..each {
                    if take {
                        let taken = client.take(&*key, "worker", TTL).await;
                        let taken = taken.map_err(|error| error.to_string())?;
                        went_well(&key, taken.release().await.outcome)?;
                        continue;
                    }
                    let guard = client.acquire(&*key).await.map_err(|error| error.to_string())?;
                    went_well(&key, guard.release().await.outcome)?;
                }
                Ok::<(), String>(())
            })
        })
        .collect();
    for locker in lockers {
        locker.await.map_err(|error| error.to_string())??;
    }
    client.shutdown(Duration::from_secs(10)).await.map_err(|error| error.to_string())
}
