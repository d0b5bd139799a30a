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
    /// The subject's name in the report.
    fn name(&self) -> &'static str;

    /// Whether the subject is a separate program. It warms up by itself, and the servers count its warm-up too, so the
    /// report leaves out its commands per pair.
    fn is_external(&self) -> bool {
        false
    }

    /// Runs `lockers` lockers until the time is over. Each acquires and releases a key of its own, one pair at a time.
    ///
    /// # Errors
    /// The reason why there are no figures.
    fn pairs(&mut self, lockers: usize, time: Duration) -> Result<Sample, String>;

    /// Runs `contenders` tasks of one process that all acquire and release the same key, one pair at a time each.
    ///
    /// # Errors
    /// As [`Subject::pairs`].
    fn contended(&mut self, contenders: usize, time: Duration) -> Result<Sample, String> {
        let _ = (contenders, time);
        Err("it has no driver for contention in one process".to_owned())
    }

    /// Begins `rate` pairs of acquire and release per second on schedule, each with a key of its own. Pairs in flight
    /// do not delay the schedule. The latency counts from the scheduled start.
    ///
    /// # Errors
    /// As [`Subject::pairs`].
    fn open_loop(&mut self, rate: usize, time: Duration) -> Result<Sample, String> {
        let _ = (rate, time);
        Err("it has no driver for an open loop".to_owned())
    }
}

/// The subjects that run inside this program, not as programs of other languages.
pub(crate) const OURS: [&str; 4] = ["quorlock", "quorlock-blocking", "raw", "rslock"];

/// Creates a subject for a group of servers.
///
/// # Errors
/// If the subject cannot run on these servers.
pub(crate) fn make(
    name: &str,
    servers: &[Server],
    flavor: Flavor,
) -> Result<Box<dyn Subject>, String> {
    Ok(match name {
        "quorlock" => Box::new(quorlock::new(servers, flavor)?),
        "quorlock-blocking" => Box::new(blocking::Blocking::new(servers)?),
        "raw" => Box::new(raw::Raw::new(servers)?),
        "rslock" => Box::new(rslock::new(servers, flavor)?),
        other => Box::new(rivals::find(other)?.on(servers)?),
    })
}

pub(crate) fn external_versions() -> impl Iterator<Item = (String, String)> {
    rivals::RIVALS.iter().map(|rival| (rival.name.to_owned(), rival.version.to_owned()))
}

pub(crate) fn key(subject: &str, locker: usize) -> String {
    format!("bench/{subject}/{locker}")
}
