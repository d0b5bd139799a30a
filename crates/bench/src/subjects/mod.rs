//! What is measured. All subjects do the same: acquire and release, ttl 10 s, each locker on a key
//! of its own, and otherwise as their makers deliver them.

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

/// The ttl of every lock here, unless a workload says otherwise.
pub(crate) const TTL: Duration = Duration::from_secs(10);

/// One of those that are measured.
pub(crate) trait Subject {
    /// As it is called in the report.
    fn name(&self) -> &'static str;

    /// A program of its own. It warms up by itself, so what the servers count is not all measured.
    fn is_external(&self) -> bool {
        false
    }

    /// So many lockers acquire and release, each its own key, one pair after the other, until the
    /// time is over.
    ///
    /// # Errors
    /// Why it could not; then it has no figures.
    fn pairs(&mut self, lockers: usize, time: Duration) -> Result<Sample, String>;

    /// This number of callers of one process want the same key, one pair after the other.
    ///
    /// # Errors
    /// As [`Subject::pairs`].
    fn contended(&mut self, contenders: usize, time: Duration) -> Result<Sample, String> {
        let _ = (contenders, time);
        Err("it has no driver for contention in one process".to_owned())
    }

    /// `rate` pairs per second are begun when they are due, each with its own key, no matter how
    /// many are under way; latency counts from when each was due.
    ///
    /// # Errors
    /// As [`Subject::pairs`].
    fn open_loop(&mut self, rate: u64, time: Duration) -> Result<Sample, String> {
        let _ = (rate, time);
        Err("it has no driver for an open loop".to_owned())
    }
}

/// Creates a subject for some servers.
pub(crate) type Make = fn(&[Server], Flavor) -> Result<Box<dyn Subject>, String>;

/// Every subject of this program by its name.
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

/// Those of [`ALL`] that are programs of other languages.
pub(crate) const EXTERNAL: &[&str] = &["redis-py", "pottery", "node-redlock 4", "node-redlock 5"];

fn external(name: &str, servers: &[Server]) -> Result<Box<dyn Subject>, String> {
    Ok(Box::new(rivals::find(name)?.on(servers)?))
}

/// Which libraries they use.
pub(crate) fn external_versions() -> impl Iterator<Item = (String, String)> {
    rivals::RIVALS.iter().map(|rival| (rival.name.to_owned(), rival.version.to_owned()))
}

/// The key of a locker.
pub(crate) fn key(subject: &str, locker: usize) -> String {
    format!("bench/{subject}/{locker}")
}
