//! The subjects of the benchmark. All acquire and release with a ttl of 10 s, each locker on a key of its own, and
//! otherwise with their default settings.

pub(crate) mod blocking;
pub(crate) mod closed_loop;
pub(crate) mod quorlock;
pub(crate) mod raw;
pub(crate) mod rslock;

use std::time::Duration;

use quorlock_servers::Server;

pub(crate) use self::closed_loop::Flavor;
use crate::rivals;
use crate::sample::Sample;

/// The default ttl of all workloads.
pub(crate) const TTL: Duration = Duration::from_secs(10);

pub(crate) trait Subject {
    /// The name in the report.
    fn name(&self) -> &'static str;

    /// Whether the subject is a separate program. It warms up by itself, and the servers count its warm-up too, so the
    /// report leaves out its commands per pair.
    fn is_external(&self) -> bool {
        false
    }

    /// Runs `lockers` lockers until the time is over. Each acquires and releases a key of its own, one pair at a time.
    ///
    /// # Errors
    /// The reason for which there are no figures.
    fn pairs(&mut self, lockers: usize, time: Duration) -> Result<Sample, String>;

    /// Runs callers of one process that contend for one key, one pair at a time each.
    ///
    /// # Errors
    /// As [`Subject::pairs`].
    fn contended(&mut self, contenders: usize, time: Duration) -> Result<Sample, String> {
        let _ = (contenders, time);
        Err("it has no driver for contention in one process".to_owned())
    }

    /// Begins `rate` pairs of acquire and release per second on schedule, each with a key of its own. Pairs in flight do
    /// not delay the schedule. The latency counts from the scheduled start.
    ///
    /// # Errors
    /// As [`Subject::pairs`].
    fn open_loop(&mut self, rate: u64, time: Duration) -> Result<Sample, String> {
        let _ = (rate, time);
        Err("it has no driver for an open loop".to_owned())
    }
}

/// Creates a subject for a group of servers.
pub(crate) type Make = fn(&[Server], Flavor) -> Result<Box<dyn Subject>, String>;

/// The constructors of all subjects by name.
pub(crate) const ALL: &[(&str, Make)] = &[
    ("quorlock", |servers, flavor| Ok(Box::new(quorlock::new(servers, flavor)?))),
    ("quorlock-blocking", |servers, _| Ok(Box::new(blocking::Blocking::new(servers)?))),
    ("raw", |servers, _| Ok(Box::new(raw::Raw::new(servers)?))),
    ("rslock", |servers, flavor| Ok(Box::new(rslock::new(servers, flavor)?))),
    ("redis-py", |servers, _| external("redis-py", servers)),
    ("pottery", |servers, _| external("pottery", servers)),
    ("node-redlock 4", |servers, _| external("node-redlock 4", servers)),
    ("node-redlock 5", |servers, _| external("node-redlock 5", servers)),
];

/// The subjects in [`ALL`] that are programs of other languages.
pub(crate) const EXTERNAL: &[&str] = &["redis-py", "pottery", "node-redlock 4", "node-redlock 5"];

fn external(name: &str, servers: &[Server]) -> Result<Box<dyn Subject>, String> {
    Ok(Box::new(rivals::find(name)?.on(servers)?))
}

pub(crate) fn external_versions() -> impl Iterator<Item = (String, String)> {
    rivals::RIVALS.iter().map(|rival| (rival.name.to_owned(), rival.version.to_owned()))
}

pub(crate) fn key(subject: &str, locker: usize) -> String {
    format!("bench/{subject}/{locker}")
}
