//! The core of quorlock: the whole client as one state machine, without a clock, a socket or a
//! random generator inside.
//!
//! Events go in with the time ([`Engine::handle`]), effects come out; a driver carries them out
//! and decides nothing. What a simulator or a model checker examines is therefore the production
//! client itself. `no_std` makes the compiler refuse what does not belong here: a clock in this
//! crate does not compile.
//!
//! ```compile_fail
//! #![no_std]
//! let now = std::time::Instant::now();
//! ```
//!
//! # The paper, and where it is
//!
//! | the paper's step | here |
//! |---|---|
//! | 1 get the current time | [`Attempt::start`](acquire::Attempt::start) |
//! | 2 ask every node, same key and value, small timeout | [`Attempt::command`](acquire::Attempt::command) |
//! | 3 a majority, and less time elapsed than the validity | `Attempt::decide` |
//! | 4 validity = ttl − elapsed − drift | [`Validity`], per vote |
//! | 5 on failure, release on all nodes | [`Attempt::give_up`](acquire::Attempt::give_up) |
//! | retry after a random delay | [`retry`] |
//! | extending | [`extend`], [`lease`] |
//!
//! # Words
//!
//! - A **node** is one independent master.
//! - A **resource** is stored under a **key**.
//! - A **token** shows whose lock it is.
//! - A **vote** is one node's grant, good for a **ttl** less **drift**.
//! - A **quorum** of votes makes a lock. Its **validity** is how long they do.
//! - An **attempt** is one round of asking.
//! - A **lease** is the record of a held lock.

#![no_std]

extern crate alloc;

#[cfg(test)]
extern crate std;

/// Whether a mistake is made that was switched on; see `mutants.rs`.
#[cfg(quorlock_mutants)]
macro_rules! mutant {
    ($name:ident) => {
        $crate::mutants::is_active($crate::mutants::Mutant::$name)
    };
}

/// No mistake is ever made.
#[cfg(not(quorlock_mutants))]
macro_rules! mutant {
    ($name:ident) => {
        false
    };
}

/// Its example is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

pub mod acquire;
pub mod command;
mod contention;
mod deadlines;
pub mod engine;
pub mod evidence;
pub mod extend;
mod fence;
pub mod hold;
pub mod info;
pub mod inspect;
pub mod keys;
pub mod lease;
pub mod marker;
#[cfg(quorlock_mutants)]
pub mod mutants;
pub mod pipeline;
pub mod queue;
pub mod quorum;
mod records;
pub mod release;
pub mod retry;
mod round_trip;
pub mod session;
pub mod shown;
pub mod supervisor;
pub mod tick;
pub mod time;
pub mod timing;
pub mod token;
pub mod trust;
pub mod vote;
pub mod wait;

pub use crate::acquire::{FailureReason, NodeOutcome, NodeResult};
pub use crate::command::{
    Adopted, Answer, Command, Counter, Failure, FailureKind, Holding, Reader,
};
pub use crate::engine::{
    AttemptReport, Effect, Engine, Entropy, Event, Extended, LockId, Refusal, RefusalKind, Request,
    Sink, Ticket, Verb,
};
pub use crate::evidence::{Evidence, MarkerSeen};
pub use crate::hold::{Ended, Hold, HoldLimit};
pub use crate::keys::{Keys, Mode};
pub use crate::lease::LossCause;
pub use crate::pipeline::{BatchId, NodePipeline, NodeState, TicketedCommand};
pub use crate::quorum::{NODE_COUNT_MAX, NodeId, NodeSet, Quorum, QuorumError};
pub use crate::release::{NodeReleased, Outcome, ReleaseReport};
pub use crate::retry::{Delay, POLL_CEILING, Retry};
pub use crate::session::{EvidenceRequest, Exchange, Form, Session};
pub use crate::supervisor::Supervisor;
pub use crate::tick::{Arrivals, Step, Tick};
pub use crate::time::{BootTime, Reading};
pub use crate::timing::{TTL_CEILING, TTL_MIN, Timing, TimingError, TimingOptions};
pub use crate::token::{Key, Token, Value};
pub use crate::trust::{Fault, RestartGuard, Rules, TrustState, Words};
pub use crate::vote::Validity;
