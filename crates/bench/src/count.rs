//! A fixed number of pairs and nothing else: a program to count instructions in.
//!
//! `cargo xtask instructions` runs it twice under valgrind. What the two runs have in common, the
//! starting of servers and the client's connecting, is not in the difference.

use std::sync::Arc;
use std::time::Duration;

use quorlock::{LockOptions, RestartGuard};

use crate::subjects::quorlock::{builder, went_well};
use crate::subjects::{Flavor, key};
use crate::testbed::{self, Testbed};

/// So long that nothing is extended, however slow a run under valgrind is: instructions that depend
/// on the time would make the count depend on it.
const TTL: Duration = Duration::from_secs(10);

/// `lockers` acquire and release, each its own key, `pairs` times altogether, on five servers; with
/// the restart guard or without.
///
/// # Errors
/// If there are no servers, or a lock is not to be had.
pub(crate) fn run(lockers: usize, pairs: usize, guard: bool) -> Result<(), String> {
    if lockers == 0 || pairs == 0 || !pairs.is_multiple_of(lockers) {
        return Err(format!("{lockers} lockers cannot share {pairs} pairs evenly"));
    }
    let testbed = Testbed::start(&testbed::server(None)?, 5)?;
    let urls = testbed::urls(testbed.first(5));
    Flavor::CurrentThread.runtime()?.block_on(async {
        // A task, as the lockers are: what is polled by `block_on` itself is polled more often.
        let all = tokio::spawn(all(urls, lockers, pairs / lockers, guard));
        all.await.map_err(|error| error.to_string())?
    })
}

async fn all(urls: Vec<String>, lockers: usize, each: usize, guard: bool) -> Result<(), String> {
    let builder = builder(urls)
        .options(LockOptions::new().ttl(TTL).wait(Duration::from_secs(60)))
        .max_ttl(TTL);
    let guard = if guard { RestartGuard::Strict } else { RestartGuard::Off };
    let builder = builder.restart_guard(guard);
    if guard == RestartGuard::Strict {
        // A client that waits until new servers vote sends commands, which would be counted.
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
