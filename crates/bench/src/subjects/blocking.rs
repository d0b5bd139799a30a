//! The blocking client: one client per process, and a thread per locker.

use std::thread;
use std::time::Duration;

use ::quorlock::blocking::Client;
use quorlock_servers::Server;

use super::quorlock::{builder, went_well};
use super::{Subject, key};
use crate::sample::{Latencies, Sample, Started};
use crate::{clock, testbed};

const NAME: &str = "quorlock-blocking";

pub(crate) struct Blocking {
    client: Client,
}

impl Blocking {
    /// Creates a client.
    ///
    /// # Errors
    /// If the client cannot be built.
    pub(crate) fn new(servers: &[Server]) -> Result<Self, String> {
        let client = builder(testbed::urls(servers)).blocking().build();
        let client = client.map_err(|error| error.to_string())?;
        Ok(Self { client })
    }

    fn closed_loop(&self, key: &str, until: Duration) -> Result<Latencies, String> {
        let mut latencies = Latencies::default();
        let mut now = clock::now();
        while now < until {
            let guard = self.client.acquire(key).call().map_err(|error| error.to_string())?;
            went_well(key, guard.release().outcome)?;
            let done = clock::now();
            latencies.record(done - now);
            now = done;
        }
        Ok(latencies)
    }
}

impl Subject for Blocking {
    fn name(&self) -> &'static str {
        NAME
    }

    fn pairs(&mut self, lockers: usize, time: Duration) -> Result<Sample, String> {
        let started = Started::now();
        let until = clock::now() + time;
        let this = &*self;
        let latencies = thread::scope(|scope| {
            let threads: Vec<_> = (0..lockers)
                .map(|locker| scope.spawn(move || this.closed_loop(&key(NAME, locker), until)))
                .collect();
            let mut all = Latencies::default();
            for thread in threads {
                all.add(thread.join().map_err(|_| "a locker panicked".to_owned())??);
            }
            Ok::<_, String>(all)
        })?;
        started.end(&latencies)
    }
}

impl std::fmt::Debug for Blocking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Blocking").field(&self.client).finish()
    }
}
