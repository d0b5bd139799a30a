//! What worker processes and the program say to each other: one line of JSON each. All times are
//! nanoseconds of the boot clock.

use quorlock_sim::time::Time;
use serde::{Deserialize, Serialize};

/// What a worker process is started with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// A list of ways to the nodes.
    pub(crate) urls: Vec<String>,
    pub(crate) seed: u64,
    pub(crate) quorum: usize,
    pub(crate) max_ttl: Time,
    pub(crate) exact: bool,
    pub(crate) guarded: bool,
}

/// How many clients are in a process.
pub(crate) const CLIENTS: usize = 2;

/// How many callers share a client.
pub(crate) const CALLERS: usize = 2;

/// What they all want: one of them, or several of those with fences, or of those without.
pub(crate) const RESOURCES: [&str; 6] = ["orders", "stock", "shelf", "till", "vault", "safe"];

/// Whether its holders get numbers: all of them, or none.
pub(crate) const fn is_fenced(resource: usize) -> bool {
    resource >= RESOURCES.len() / 2
}

/// What a worker says. It says that it holds a lock after it has been granted, and that it does not
/// hold it any more before it begins to give it back: whatever kills it in between, nobody is
/// believed to hold a lock for longer than it does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WorkerMessage {
    /// This caller has been granted the lock of these, and may rely on it until then.
    Holds { caller: usize, resources: Vec<usize>, grant: Grant },
    /// It may rely on it until then.
    StillHolds { caller: usize, until: Time },
    /// It has held it until then, or it had been lost by then.
    Held { caller: usize, until: Time, lost: Option<String> },
    /// It has not been granted it.
    Refused { caller: usize, why: Refused },
    /// It wants to know what the numbers of the resources that it holds are, and shows its fence, if it has one.
    Reads { caller: usize },
    /// It wants each to be one more than what it has read, and relies on its fence; or, if it has none,
    /// on its lock until then.
    Writes { caller: usize, read: Vec<u64>, until: Time },
    /// It holds its lock as a reader only, from then on. Said before it asks for that: others may read as soon
    /// as it has asked.
    Downgrades { caller: usize, at: Time },
    /// That was confirmed in time, or not.
    Downgraded { caller: usize, confirmed: bool },
    /// As a reader it has seen these numbers, and relies on its lock until then: they must be the same still.
    Compares { caller: usize, read: Vec<u64>, until: Time },
    /// The library has said or done what it must not.
    Odd { caller: usize, what: String },
    /// This client has been shut down, and owes so many releases all the same.
    Closed { client: usize, owed: usize },
}

/// A lock that was granted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Grant {
    /// When it was asked for,
    pub(crate) asked: Time,
    /// when that call had returned,
    pub(crate) at: Time,
    /// and until when it was valid then.
    pub(crate) until: Time,
    pub(crate) token: String,
    /// If it was asked for one.
    pub(crate) fence: Option<u64>,
    /// It was asked for as a reader.
    pub(crate) is_reader: bool,
}

/// Why a lock was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refused {
    Contended,
    NoQuorum,
    /// Too few nodes are to be trusted at the moment.
    NodesUntrusted,
    TooSlow,
    /// The caller did not want it any more.
    Cancelled,
}

/// What a worker is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Told {
    /// The numbers that this caller has asked for; nothing if its fence was refused.
    Numbers { caller: usize, numbers: Option<Vec<u64>> },
    /// Whether all that this caller wanted to write was written.
    Written { caller: usize, written: bool },
    /// What this caller has read was compared.
    Compared { caller: usize },
    /// All is well now: hold locks briefly.
    Calm,
    /// Give everything back, and end.
    Stop,
}
