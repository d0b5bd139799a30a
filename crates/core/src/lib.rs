//! The core of quorlock: the whole client as one state machine, without a clock, a socket or a
//! random generator inside. It is internal to quorlock and follows no semantic versioning.
//!
//! Events go in with the time ([`Engine::handle`]), and effects come out. A driver executes the effects and decides
//! nothing, so the simulator and the model checker examine the production client itself. The crate is `no_std`, so code
//! that reads a clock does not compile:
//!
//! ```compile_fail
//! #![no_std]
//! let now = std::time::Instant::now();
//! ```
//!
//! # The steps of the Redlock paper, and where they are
//!
//! | the paper's step | here |
//! |---|---|
//! | 1 get the current time | [`Attempt::start`] |
//! | 2 ask every node, same key and value, small timeout | [`Attempt::command`] |
//! | 3 a majority, and less time elapsed than the validity | `Attempt::decide` |
//! | 4 validity = ttl − elapsed − drift | [`Validity`], per vote |
//! | 5 on failure, release on all nodes | [`Attempt::give_up`] |
//! | retry after a random delay | [`Retry`] |
//! | extending | [`Effect::Extended`], `redlock/extend.rs` |
//!
//! The folder `redlock` is this algorithm for one lock, `node` is one server as the client sees it, and `client` is
//! many locks in one process.
//!
//! # Words
//!
//! - A **node** is one independent master.
//! - A **resource** is stored under a **key**.
//! - A **token** identifies the attempt that set a key.
//! - A **vote** is one node's grant, good for a **ttl** less **drift**.
//! - A **quorum** of votes makes a lock. Its **validity** is the time for which these votes count.
//! - An **attempt** is one round of asking.
//! - A **held lock** is one that a guard of this client holds.

#![no_std]

extern crate alloc;

#[cfg(test)]
extern crate std;

/// Whether this mutant (a deliberate fault for tests) is switched on; see `mutants.rs`.
#[cfg(quorlock_mutants)]
macro_rules! mutant {
    ($name:ident) => {
        $crate::mutants::is_active($crate::mutants::Mutant::$name)
    };
}

/// Without `--cfg quorlock_mutants`, no mutant is ever switched on.
#[cfg(not(quorlock_mutants))]
macro_rules! mutant {
    ($name:ident) => {
        false
    };
}

/// Compiles and runs the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

mod client;
mod command;
pub mod display;
mod ids;
pub mod keys;
mod loss;
#[cfg(quorlock_mutants)]
pub mod mutants;
mod node;
mod redlock;
mod request;
pub mod store;
mod time;
mod timing;
mod token;

pub use crate::client::engine::{
    AttemptReport, Effect, Engine, Entropy, EntryOf, Event, Extended, Refusal, RefusalKind, Sink,
};
pub use crate::client::tick::{Arrivals, Tick};
pub use crate::command::{
    AcquireForm, Adopted, Answer, AttachForm, Command, Counter, Difference, ExtendForm, Failure,
    FailureKind, HealForm, Holding, Reader, ReleaseForm, Script,
};
pub use crate::ids::{LockId, Ticket, Verb};
pub use crate::keys::{DetachedFrom, Entry, Keys, Mode, Origin, TakenFrom};
pub use crate::loss::LossCause;
pub use crate::node::evidence::{Evidence, MarkerSeen};
pub use crate::node::pipeline::{BatchId, Commands, NodePipeline, NodeState, TicketedCommand};
pub use crate::node::session::{EvidenceRequest, Exchange, Form, Session};
pub use crate::node::supervisor::Supervisor;
pub use crate::node::trust::{Fault, RestartGuard, Rules, TrustState, Words, in_time};
pub use crate::node::{info, marker, supervisor};
pub use crate::redlock::acquire::{Attempt, Decision, FailureReason, NodeOutcome, NodeResult};
pub use crate::redlock::held_lock::Detached;
pub use crate::redlock::hold::{Ended, Hold};
pub use crate::redlock::quorum::{NODE_COUNT_MAX, NodeId, NodeSet, Quorum, QuorumError};
pub use crate::redlock::release::{CONFIRM_WITHIN, NodeReleased, Outcome, ReleaseReport};
pub use crate::redlock::retry::{Delay, POLL_CEILING, Retry};
pub use crate::redlock::vote::{HoldLimit, Validity};
pub use crate::request::{Request, Wait};
pub use crate::time::{BootTime, Reading};
pub use crate::timing::{
    ROUND_TRIPS_AWAITED, TTL_CEILING, TTL_MIN, Timing, TimingError, TimingOptions, shortest_ttl,
};
pub use crate::token::{Key, Token, Value};
