//! Numbers that tie answers to their requests.

use crate::command::Answer;
use crate::redlock::quorum::NodeId;
use crate::time::Reading;

/// Identifies one call, and later its guard. The driver assigns increasing numbers and reuses none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LockId(pub u64);

/// Ties an answer to its command: the command carries the ticket out, and the answer brings it back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket {
    /// The call that sent the command.
    pub lock: LockId,
    /// The number of the round of commands. An answer to an older round does not count for a newer one (S1).
    pub round: u32,
    /// The purpose of the command.
    pub verb: Verb,
}

/// The answer of one node to one command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeAnswer<'a> {
    pub(crate) node: NodeId,
    /// A clock reading that was taken before the first byte of the command could leave (S4).
    pub(crate) sent: Reading,
    /// The connection of the answer, and the number of flushes that the node had announced on it. `None` if the node need
    /// not show evidence.
    pub(crate) epoch: Option<(u64, u64)>,
    pub(crate) ticket: Ticket,
    pub(crate) answer: &'a Answer,
}

/// The purpose of a command.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Verb {
    /// Requests a vote for an attempt.
    Acquire,
    /// Reads the current holder of a lock.
    Inspect,
    /// Prolongs a vote.
    Extend,
    /// Asks a node that has lost its vote for a held lock to grant the vote again.
    Heal,
    /// Raises the fencing counter of a node that has voted for the lock.
    Raise,
    /// Ends the node's vote: deletes the key, or removes the reader from it.
    Release,
    /// Checks a node's votes: reads its `INFO`, or writes its adoption (starts a wait) or its marker (ends it).
    Trust,
    /// Sets, renews or withdraws the intent by which a waiting writer keeps new readers out.
    Announce,
}
