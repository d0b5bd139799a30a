//! The blocking client: one client per process, and a thread per locker.

use std::thread;
use std::time::Duration;

use ::quorlock::blocking::Client;
use quorlock_servers::Server;

use super::quorlock::{builder, went_well};
use super::{Subject, key};
use crate::sample::{Latencies, Sample, Started, repeat};
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

    fn pair(&self, key: &str) -> Result<(), String> {
        let guard = self.client.acquire(key).call().map_err(|error| error.to_string())?;
        went_well(key, guard.release().outcome)
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
            let start = |locker| {
                let key = key(NAME, locker);
                scope.spawn(move || repeat(until, 1, || this.pair(&key)))
            };
            let threads: Vec<_> = (0..lockers).map(start).collect();
            let mut all = Latencies::default();
            for thread in threads {
                all.add(thread.join().map_err(|_| "a locker panicked".to_owned())??);
            }
            Ok::<_, String>(all)
        })?;
        started.end(&latencies)
    }
}
