//! The messages between worker processes and the program, one JSON object per line. Times are boot clock nanoseconds.

use quorlock_sim::time::Time;
use serde::{Deserialize, Serialize};

use crate::plan::RoundPlan;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The addresses of the nodes' proxies.
    pub(crate) urls: Vec<String>,
    pub(crate) seed: u64,
    pub(crate) quorum: usize,
    pub(crate) max_ttl: Time,
    pub(crate) exact: bool,
    pub(crate) guarded: bool,
    /// Whether a call may wait for its lock. Otherwise the start of a call is the start of its only attempt.
    pub(crate) waits: bool,
}

impl Job {
    pub(crate) fn new(plan: &RoundPlan, place: usize, urls: Vec<String>) -> Self {
        let &RoundPlan { quorum, max_ttl, exact, guarded, .. } = plan;
        // Callers draw random numbers from this seed. It is not the plan's seed, so their draws differ from the plan's.
        let seed = plan.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(place as u64 + 1);
        Self { urls, seed, quorum, max_ttl, exact, guarded, waits: true }
    }
}

pub(crate) const CLIENTS: usize = 2;

pub(crate) const CALLERS: usize = 2;

/// The resources; the second half has fencing tokens. A call asks for one resource, or for several of the same half.
pub(crate) const RESOURCES: [&str; 6] = ["orders", "stock", "shelf", "till", "vault", "safe"];

pub(crate) const fn is_fenced(resource: usize) -> bool {
    resource >= RESOURCES.len() / 2
}

/// A message of a caller of a worker, sent with the number of the caller. A worker reports a hold after the grant, and the end of the hold before the release. So the
/// recorded hold of a worker that is killed may be too short, but never too long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WorkerMessage {
    /// The caller got the locks of these resources.
    Holds { grant: Grant },
    /// The caller's lock is valid until this time.
    StillHolds { until: Time },
    /// The hold ended at this time. After a loss, it is the last time at which the caller could rely on the lock.
    Held { until: Time, lost: Option<String> },
    /// The caller did not get the lock.
    Refused { why: String },
    /// The caller requests the numbers of its resources, and presents its fencing token if it has one.
    Reads,
    /// The caller writes each number that it has read, plus one. The fencing token permits the write; without a token,
    /// the validity of the lock does.
    Writes { read: Vec<u64>, until: Time },
    /// The caller becomes a reader at this time. Sent before the downgrade, which lets other readers in.
    Downgrades { at: Time },
    /// The caller's downgrade call has ended. `confirmed`: it succeeded before the caller stopped waiting.
    Downgraded { confirmed: bool },
    /// The reader has read these numbers of its resources. They must still be current, as its lock is held until `until`.
    Compares { read: Vec<u64>, until: Time },
    /// The library has violated its contract with the caller, as `what` says.
    Odd { what: String },
    /// The client was shut down. This number of its releases is unconfirmed.
    Closed { owed: usize },
    /// The caller begins an operation, on this lease if the operation is about a lease.
    Calls { operation: Operation, lease: Option<usize>, at: Time },
    /// The caller has detached its lock, and has not held it since `from`. By its text, the lease ends at `until`.
    Detached { text: String, from: Time, until: Time },
    /// The caller has extended the lease by a call at `asked`. By its new text, the lease ends at `until`.
    Prolonged { lease: usize, text: String, asked: Time, until: Time },
    /// The caller requests a lease of another process.
    Seeks,
    /// An operation has ended that may leave a key on the nodes. From now on, the key lives for at most a ttl.
    Left,
}

/// An operation of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Operation {
    Acquire,
    Take,
    Detach,
    Attach,
    ExtendLease,
    ReleaseLease,
}

impl Operation {
    pub(crate) const ALL: [Self; 6] = [
        Self::Acquire,
        Self::Take,
        Self::Detach,
        Self::Attach,
        Self::ExtendLease,
        Self::ReleaseLease,
    ];

    /// Whether a run checks that this operation is frequent enough among all operations.
    pub(crate) const fn is_frequent(self) -> bool {
        matches!(self, Self::Take | Self::Detach | Self::Attach)
    }

    /// Whether the operation may end the lease before the time that the lease's text states.
    pub(crate) const fn may_end_lease(self) -> bool {
        matches!(self, Self::Attach | Self::ReleaseLease)
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Take => "take",
            Self::Detach => "detach",
            Self::Attach => "attach",
            Self::ExtendLease => "extend_lease",
            Self::ReleaseLease => "release_lease",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Grant {
    pub(crate) resources: Vec<usize>,
    pub(crate) asked: Time,
    pub(crate) at: Time,
    /// The end of the validity, computed at `at`.
    pub(crate) until: Time,
    pub(crate) fence: Option<u64>,
    pub(crate) is_reader: bool,
    /// The lease that the caller attached, if it did not acquire the lock.
    pub(crate) lease: Option<usize>,
}

/// A message to a worker, sent with the number of the caller that it answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ControllerMessage {
    /// The numbers for this caller; `None` if the store refused its fencing token.
    Numbers { numbers: Option<Vec<u64>> },
    /// Whether all numbers of this caller were written.
    Written { written: bool },
    /// The comparison that this caller requested is done.
    Compared,
    /// A lease (index, text) for this caller, and the time at which the caller shall use it; `None` if there is none.
    Lease { lease: Option<(usize, String, Time)> },
    /// The faults have ended: from now on, callers hold each lock only briefly.
    Calm,
    /// The worker must release its locks, shut its clients down and end.
    Stop,
}
