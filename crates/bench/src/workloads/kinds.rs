//! Compares the kinds of locks: plain, fenced, shared, and with several keys. Also measures a writer among readers.

use std::time::Duration;

use ::quorlock::{Client, Guard, LockOptions};

use super::{Bench, progress};
use crate::clock;
use crate::report::Cell;
use crate::sample::{Latencies, Started};
use crate::subjects::closed_loop::{AsyncSubject, Locker};
use crate::subjects::quorlock::{builder, named, went_well};
use crate::subjects::{Flavor, Subject, key};
use crate::testbed;

pub(crate) const NAME: &str = "kinds";

/// The prefix of the names of this workload's targets.
pub(crate) const TARGETS: &str = "kinds";

/// The workload in which all readers lock one key.
pub(crate) const ONE_KEY: &str = "kinds_one_key";

/// The workload with a writer among readers.
pub(crate) const WRITER: &str = "kinds_writer";

/// The number of readers that contend with the writer.
pub(crate) const READERS: usize = 8;

pub(crate) const HOLD: Duration = Duration::from_millis(50);

const NODES: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    Fenced,
    Shared,
    Keys(usize),
}

/// The kinds of locks that are compared, each with the name of its subject in the report.
const KINDS: [(&str, Kind); 5] = [
    ("plain", Kind::Plain),
    ("fenced", Kind::Fenced),
    ("shared", Kind::Shared),
    ("two keys", Kind::Keys(2)),
    ("eight keys", Kind::Keys(8)),
];

#[derive(Clone)]
struct KindLocker {
    client: Client,
    kind: Kind,
}

impl KindLocker {
    async fn acquire_with(&self, key: &str, options: LockOptions) -> Result<Guard, String> {
        let call = match self.kind {
            Kind::Plain => self.client.acquire(key),
            Kind::Fenced => {
                let call = self.client.acquire_fenced(key).options(options);
                return call.await.map(Guard::from).map_err(|error| error.to_string());
            }
            Kind::Shared => self.client.acquire_shared(key),
            Kind::Keys(count) => {
                let keys: Vec<String> = (0..count).map(|nth| format!("{key}:{nth}")).collect();
                self.client.acquire(keys)
            }
        };
        call.options(options).await.map_err(|error| error.to_string())
    }
}

impl Locker for KindLocker {
    type Guard = Guard;

    async fn acquire(&self, key: &str) -> Result<Guard, String> {
        self.acquire_with(key, LockOptions::new()).await
    }

    async fn release(guard: Guard) -> Result<(), String> {
        <Client as Locker>::release(guard).await
    }
}

fn subject(
    bench: &Bench,
    (name, kind): (&'static str, Kind),
) -> Result<AsyncSubject<KindLocker>, String> {
    let urls = testbed::urls(&bench.testbed[..NODES]);
    let AsyncSubject { locker: client, runtime, .. } = named(name, builder(urls), bench.flavor)?;
    Ok(AsyncSubject { name, locker: KindLocker { client, kind }, runtime })
}

/// Measures pairs of each kind of lock with a key per locker, readers on one key, and a writer among readers.
pub(crate) fn run(bench: &mut Bench) {
    for lockers in [1, 8, 64] {
        progress(&format!("{NAME}, N={NODES}, c={lockers}"));
        let subjects = KINDS.iter().map(|one| subject(bench, *one));
        let subjects: Result<Vec<Box<dyn Subject>>, String> =
            subjects.map(|it| it.map(|it| Box::new(it) as Box<dyn Subject>)).collect();
        let subjects = match subjects {
            Ok(subjects) => subjects,
            Err(why) => return bench.figures.not_run("quorlock", NAME, why),
        };
        bench.interleave(NAME, subjects, |bench, subject| {
            subject.pairs(lockers, bench.warm_up())?;
            let sample = subject.pairs(lockers, bench.sample)?;
            let cell = Cell::new(NAME, subject.name(), NODES, lockers);
            bench.figures.add_pairs(cell, &sample);
            if subject.name() == "shared" {
                subject.contended(lockers, bench.warm_up())?;
                let sample = subject.contended(lockers, bench.sample)?;
                bench.figures.add_pairs(Cell { workload: ONE_KEY, ..cell }, &sample);
            }
            Ok(())
        });
    }
    progress(&format!("{WRITER}, N={NODES}: {READERS} readers and a writer, holds of {HOLD:?}"));
    for _ in 0..bench.rounds {
        if let Err(why) = writer_among_readers(bench) {
            return bench.figures.not_run("quorlock", WRITER, why);
        }
    }
}

/// Readers and a writer contend for one lock, and each acquires again as soon as it has released. Each has its own
/// client, as if it were a separate process.
fn writer_among_readers(bench: &mut Bench) -> Result<(), String> {
    let lockers = |kind, count| (0..count).map(move |_| ("client", kind));
    let clients: Result<Vec<_>, String> = lockers(Kind::Shared, READERS)
        .chain(lockers(Kind::Plain, 1))
        .map(|one| subject(bench, one))
        .collect();
    let clients = clients?;
    let runtime = Flavor::MultiThread.runtime()?;
    let until = clock::now() + 10 * bench.sample;
    let started = Started::now();
    let (reads, waits) = runtime.block_on(async {
        let tasks: Vec<_> = clients
            .iter()
            .map(|client| tokio::spawn(hold_again(client.locker.clone(), until)))
            .collect();
        let mut all = Vec::new();
        for task in tasks {
            all.push(task.await.map_err(|panic| panic.to_string())??);
        }
        let waits = all.pop().unwrap_or_default();
        let mut reads = Latencies::default();
        all.into_iter().for_each(|one| reads.add(one));
        Ok::<_, String>((reads, waits))
    })?;
    let elapsed = started.end(&reads)?.elapsed;
    let holds = |quantile: f64| {
        let nanos = waits.histogram().value_at_quantile(quantile);
        nanos as f64 / HOLD.as_nanos() as f64
    };
    let cell = Cell::new(WRITER, "quorlock", NODES, 9);
    bench.figures.add(cell, "writer_p50_wait_holds", holds(0.5));
    bench.figures.add(cell, "writer_p99_wait_holds", holds(0.99));
    bench.figures.add(cell, "writes", waits.count() as f64);
    bench.figures.add(cell, "reads_per_s", reads.count() as f64 / elapsed.as_secs_f64());
    Ok(())
}

/// Acquires and holds the lock again and again. Returns the duration of each wait for the lock.
async fn hold_again(locker: KindLocker, until: Duration) -> Result<Latencies, String> {
    let mut waits = Latencies::default();
    while clock::now() < until {
        let asked = clock::now();
        let options = LockOptions::new().wait(Duration::from_secs(60));
        let guard = locker.acquire_with(&key(WRITER, 0), options).await?;
        waits.record(clock::now() - asked);
        tokio::time::sleep(HOLD).await;
        went_well(WRITER, guard.release().await.outcome)?;
    }
    Ok(waits)
}
