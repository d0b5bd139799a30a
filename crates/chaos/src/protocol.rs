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

/// What they all want.
pub(crate) const RESOURCES: [&str; 4] = ["orders", "stock", "till", "vault"];

/// Whether its holders get numbers: all of them, or none.
pub(crate) const fn is_fenced(resource: usize) -> bool {
    resource >= RESOURCES.len() / 2
}

/// What a worker says. It says that it holds a lock after it has been granted, and that it does not
/// hold it any more before it begins to give it back: whatever kills it in between, nobody is
/// believed to hold a lock for longer than it does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WorkerMessage {
    /// This caller has been granted the lock, and may rely on it until then.
    Holds { caller: usize, resource: usize, grant: Grant },
    /// It may rely on it until then.
    StillHolds { caller: usize, until: Time },
    /// It has held it until then, or it had been lost by then.
    Held { caller: usize, until: Time, lost: Option<String> },
    /// It has not been granted it.
    Refused { caller: usize, why: Refused },
    /// It wants to know what the number of the resource it holds is, and shows its fence, if it has one.
    Reads { caller: usize },
    /// It wants that to be one more than what it has read, and relies on its fence; or, if it has none,
    /// on its lock until then.
    Writes { caller: usize, read: u64, until: Time },
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Told {
    /// The number that this caller has asked for; nothing if its fence was refused.
    Number { caller: usize, number: Option<u64> },
    /// Whether what this caller wanted to write was written.
    Written { caller: usize, written: bool },
    /// All is well now: hold locks briefly.
    Calm,
    /// Give everything back, and end.
    Stop,
}
