//! The messages between worker processes and the program, one line of JSON each. All times are nanoseconds of
//! the boot clock.

use quorlock_sim::time::Time;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The addresses of the nodes' proxies.
    pub(crate) urls: Vec<String>,
    pub(crate) seed: u64,
    pub(crate) quorum: usize,
    pub(crate) max_ttl: Time,
    pub(crate) exact: bool,
    pub(crate) guarded: bool,
}

pub(crate) const CLIENTS: usize = 2;

pub(crate) const CALLERS: usize = 2;

/// The resources. A call asks for one of them, for several with fencing tokens, or for several without.
pub(crate) const RESOURCES: [&str; 6] = ["orders", "stock", "shelf", "till", "vault", "safe"];

pub(crate) const fn is_fenced(resource: usize) -> bool {
    resource >= RESOURCES.len() / 2
}

/// A message of a worker. A worker reports a hold after the grant, and its end before the release. If the
/// worker is killed in between, its recorded hold is too short, never too long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WorkerMessage {
    /// The caller got the locks of these resources.
    Holds { caller: usize, resources: Vec<usize>, grant: Grant },
    /// The lock is valid until then.
    StillHolds { caller: usize, until: Time },
    /// The hold ended then, or a loss was noticed then.
    Held { caller: usize, until: Time, lost: Option<String> },
    /// The caller did not get the lock.
    Refused { caller: usize, why: Refused },
    /// The caller asks for the numbers of its resources, and shows its fencing token if it has one.
    Reads { caller: usize },
    /// The caller writes one more than it has read to each number, by its fencing token, or by the validity of
    /// its lock if it has none.
    Writes { caller: usize, read: Vec<u64>, until: Time },
    /// The caller becomes a reader then. It says so before it downgrades, because other readers may come at once.
    Downgrades { caller: usize, at: Time },
    /// Whether the downgrade was confirmed in time.
    Downgraded { caller: usize, confirmed: bool },
    /// The reader has seen these numbers and has its lock until then, so the numbers must be the same.
    Compares { caller: usize, read: Vec<u64>, until: Time },
    /// The library did something that it must not do.
    Odd { caller: usize, what: String },
    /// The client was shut down, and still owes this number of releases.
    Closed { client: usize, owed: usize },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Grant {
    pub(crate) asked: Time,
    pub(crate) at: Time,
    /// The end of the validity, as of `at`.
    pub(crate) until: Time,
    pub(crate) token: String,
    pub(crate) fence: Option<u64>,
    pub(crate) is_reader: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refused {
    Contended,
    NoQuorum,
    NodesUntrusted,
    TooSlow,
    Cancelled,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Told {
    /// The numbers for this caller; `None` if its fencing token was refused.
    Numbers { caller: usize, numbers: Option<Vec<u64>> },
    /// Whether all numbers of this caller were written.
    Written { caller: usize, written: bool },
    /// The numbers of this caller were compared.
    Compared { caller: usize },
    /// The faults are over: hold locks briefly.
    Calm,
    /// Release everything and end.
    Stop,
}
