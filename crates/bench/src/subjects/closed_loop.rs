//! Runs async subjects. All of them run the same tasks on the same kind of runtime.

use std::future::Future;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

use super::{Subject, key};
use crate::clock;
use crate::sample::{Latencies, Sample, Started};

/// Maximum number of pairs (acquire and release) in flight. A subject that reaches it cannot keep up with the rate.
const PILE: usize = 50_000;

/// The tokio runtime of async subjects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub(crate) enum Flavor {
    /// One thread per core, as with `#[tokio::main]`.
    #[default]
    MultiThread,
    CurrentThread,
}

impl Flavor {
    pub(crate) fn runtime(self) -> Result<Runtime, String> {
        let mut builder = match self {
            Self::MultiThread => Builder::new_multi_thread(),
            Self::CurrentThread => Builder::new_current_thread(),
        };
        builder.enable_all().build().map_err(|error| format!("no tokio runtime: {error}"))
    }
}

/// An async lock client, so that the same loops measure quorlock and rslock.
pub(crate) trait Locker: Clone + Send + Sync + 'static {
    type Guard: Send;

    fn acquire(&self, key: &str) -> impl Future<Output = Result<Self::Guard, String>> + Send;

    /// # Errors
    /// If the lock was lost before the release.
    fn release(guard: Self::Guard) -> impl Future<Output = Result<(), String>> + Send;

    /// Acquires the lock of this key and releases it.
    fn pair(&self, key: &str) -> impl Future<Output = Result<(), String>> + Send {
        async move { Self::release(self.acquire(key).await?).await }
    }
}

/// An async subject: its client and its runtime.
pub(crate) struct AsyncSubject<L> {
    pub(crate) name: &'static str,
    pub(crate) locker: L,
    pub(crate) runtime: Runtime,
}

impl<L: Locker> AsyncSubject<L> {
    /// Runs one task per key until the time is over.
    fn on_keys(
        &self,
        keys: impl Iterator<Item = String>,
        time: Duration,
    ) -> Result<Sample, String> {
        let started = Started::now();
        let until = clock::now() + time;
        let latencies = self.runtime.block_on(async {
            // Each locker is a task of its own, like each request in a server. If `block_on` polled the lockers, they
            // would stay on this thread, and each of their steps would need a switch between threads.
            let tasks: Vec<_> = keys
                .map(|key| tokio::spawn(closed_loop(self.locker.clone(), key, until)))
                .collect();
            let mut all = Latencies::default();
            for task in tasks {
                all.add(task.await.map_err(|panic| panic.to_string())??);
            }
            Ok::<_, String>(all)
        })?;
        started.end(&latencies)
    }
}

impl<L: Locker> Subject for AsyncSubject<L> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn pairs(&mut self, lockers: usize, time: Duration) -> Result<Sample, String> {
        self.on_keys((0..lockers).map(|locker| key(self.name, locker)), time)
    }

    fn contended(&mut self, contenders: usize, time: Duration) -> Result<Sample, String> {
        self.on_keys((0..contenders).map(|_| key(self.name, 0)), time)
    }

    fn open_loop(&mut self, rate: usize, time: Duration) -> Result<Sample, String> {
        let (due, mut schedule) = mpsc::unbounded_channel();
        let clock =
            thread::spawn(move || keep_time(rate, time, |nth, at| due.send((nth, at)).is_ok()));
        let started = Started::now();
        let latencies = self.runtime.block_on(async {
            let (done, mut latencies) = mpsc::unbounded_channel();
            let under_way = Arc::new(());
            let locker = self.locker.clone();
            let name = self.name;
            let pump = tokio::spawn(async move {
                while let Some((nth, due)) = schedule.recv().await {
                    if Arc::strong_count(&under_way) > PILE {
                        return Err(format!("it cannot keep up with {rate} pairs/s"));
                    }
                    let (locker, done) = (locker.clone(), done.clone());
                    let place = under_way.clone();
                    tokio::spawn(async move {
                        let result = locker.pair(&key(name, nth)).await;
                        // After the first error the receiver no longer exists, so a failed `send` is no error.
                        let _ = done.send(result.map(|()| clock::now().saturating_sub(due)));
                        drop(place);
                    });
                }
                Ok(())
            });
            let mut all = Latencies::default();
            while let Some(latency) = latencies.recv().await {
                all.record(latency?);
            }
            pump.await.map_err(|panic| panic.to_string())??;
            Ok::<_, String>(all)
        });
        // The thread ends when the time is over, or when the receiver no longer exists.
        let _ = clock.join();
        started.end(&latencies?)
    }
}

async fn closed_loop<L: Locker>(
    locker: L,
    key: String,
    until: Duration,
) -> Result<Latencies, String> {
    let mut latencies = Latencies::default();
    let mut now = clock::now();
    while now < until {
        locker.pair(&key).await?;
        let done = clock::now();
        latencies.record(done - now);
        now = done;
    }
    Ok(latencies)
}

/// Calls `due` at the start time of each pair, or as soon after as the kernel wakes this thread. The schedule does not
/// wait for answers.
pub(crate) fn keep_time(rate: usize, time: Duration, mut due: impl FnMut(usize, Duration) -> bool) {
    let start = clock::now();
    let mut nth = 0;
    loop {
        let at = start + Duration::from_nanos(nth as u64 * 1_000_000_000 / rate as u64);
        if at >= start + time {
            return;
        }
        let now = clock::now();
        if at > now {
            thread::sleep(at - now);
        }
        if !due(nth, at) {
            return;
        }
        nth += 1;
    }
}
