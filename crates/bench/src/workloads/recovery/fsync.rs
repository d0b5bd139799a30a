//! The same pairs on servers without persistence, on servers that may lose a second of writes, and on servers that
//! write every command to disk before the reply.

use std::io::Write as _;
use std::time::Duration;

use quorlock_servers::Server;

use super::{NODES, ratios};
use crate::clock;
use crate::report::Cell;
use crate::sample::{Sample, Started, repeat};
use crate::subjects::{Subject, quorlock};
use crate::testbed;
use crate::workloads::{Bench, progress};

const NAME: &str = "recovery_fsync";

/// The subjects, and the arguments that set the persistence of their servers.
const SERVERS: [(&str, &[&str]); 3] = [
    ("no persistence", &["--appendonly", "no"]),
    ("everysec", &["--appendonly", "yes", "--appendfsync", "everysec", NO_REWRITE.0, NO_REWRITE.1]),
    ("always", &["--appendonly", "yes", "--appendfsync", "always", NO_REWRITE.0, NO_REWRITE.1]),
];

/// Disables the rewriting of the append-only file, because a rewrite would distort the measurement in which it happens.
const NO_REWRITE: (&str, &str) = ("--auto-aof-rewrite-percentage", "0");

/// The subject that measures the disk alone.
const DISK: &str = "one write and fsync";

/// The number of bytes per write in [`disk`], about as many as an acquire appends to the append-only file.
const APPENDED: usize = 150;

/// Measures 64 lockers, whose commands often share an fsync, and one locker, whose commands almost never do.
pub(crate) fn run(bench: &mut Bench) {
    let start = |(name, args): &(&'static str, &[&str])| {
        testbed::start(&bench.binary, NODES, args).map(|testbed| (*name, testbed))
    };
    let labs: Vec<_> = match SERVERS.iter().map(start).collect() {
        Ok(labs) => labs,
        Err(why) => return bench.figures.not_run("quorlock", NAME, why),
    };
    for lockers in [1, 64] {
        progress(&format!("{NAME}, N={NODES}, c={lockers}"));
        let mut subjects: Vec<Box<dyn Subject>> = Vec::new();
        for (name, testbed) in &labs {
            match quorlock::named(name, quorlock::builder(testbed.urls()), bench.flavor) {
                Ok(subject) => subjects.push(Box::new(subject)),
                Err(why) => bench.figures.not_run(name, NAME, why),
            }
        }
        bench.interleave(NAME, subjects, |bench, subject| {
            let testbed = labs.iter().find(|(name, _)| *name == subject.name());
            let (_, testbed) = testbed.ok_or("it has no servers")?;
            turn(bench, subject, testbed, lockers)
        });
        ratios(&mut bench.figures, NAME, &SERVERS.map(|(name, _)| name), lockers);
    }
    for _ in 0..bench.rounds {
        match disk(bench.sample) {
            Ok(sample) => {
                let cell = Cell::new(NAME, DISK, 1, 1);
                bench.figures.add(cell, "p50_us", sample.p50_us);
                bench.figures.add(cell, "p99_us", sample.p99_us);
            }
            Err(why) => return bench.figures.not_run(DISK, NAME, why),
        }
    }
}

fn turn(
    bench: &mut Bench,
    subject: &mut dyn Subject,
    servers: &[Server],
    lockers: usize,
) -> Result<(), String> {
    subject.pairs(lockers, bench.warm_up())?;
    let before = appends(servers)?;
    let sample = subject.pairs(lockers, bench.sample)?;
    let appends = appends(servers)? - before;

    let cell = Cell::new(NAME, subject.name(), NODES, lockers);
    bench.figures.add_pairs(cell, &sample);
    bench.figures.add(cell, "appends_per_pair", appends / sample.pairs as f64);
    Ok(())
}

/// Returns the number of writes to the append-only files of the servers: the kernel's count of all write calls, minus
/// the server's count of writes to clients. With `--appendfsync always`, the server calls fsync after each such write.
fn appends(servers: &[Server]) -> Result<f64, String> {
    let written = |server: &Server| {
        let pid = server.pid().ok_or("a server has ended")?;
        let path = format!("/proc/{pid}/io");
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let count = text.lines().find_map(|line| line.strip_prefix("syscw: ")?.parse::<u64>().ok());
        count.ok_or_else(|| format!("{path} has no syscw"))
    };
    let written: Result<u64, String> = servers.iter().map(written).sum();
    Ok(written? as f64 - testbed::counter(servers, "total_writes_processed")? as f64)
}

/// Measures a small append followed by an fsync.
fn disk(time: Duration) -> Result<Sample, String> {
    let failed = |error: std::io::Error| format!("a file in the temporary folder: {error}");
    let mut file = tempfile::tempfile().map_err(failed)?;
    let started = Started::now();
    let latencies = repeat(clock::now() + time, 1, || {
        file.write_all(&[b'x'; APPENDED]).and_then(|()| file.sync_data()).map_err(failed)
    })?;
    started.end(&latencies)
}
