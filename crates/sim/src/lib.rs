//! The simulator: quorlock's production engine in virtual time, against model nodes and a faulty network.
//!
//! ```text
//!   caller ──► guard, driver ──► Engine ──► line ──► network ──► model node
//!   (random)   (as the library's) (the product)      (delays,     (own clock, crashes,
//!                                                     breaks …)    flushes, refusals …)
//! ```
//!
//! A run follows from its seed: the [`Plan`] is drawn from the seed, and all events follow from the plan, to the
//! nanosecond. A run has two phases: faults, then healing, in which everything must recover within a bound. The run
//! checks [`SENTENCES`] all the time. Mutual exclusion is asserted only where the protocol promises it. A third of the
//! runs violate the assumptions of the protocol. Locks must overlap in some of these runs; otherwise the faults are not
//! real.
//!
//! The code under test is `quorlock_core` as it is shipped: the engine, ticks, pipelines and holds. The simulated
//! connections are code of this crate, small enough for a review. Tests compare the model nodes with real servers.

mod checker;
mod client;
mod count;
mod driver;
mod evidence_log;
mod fact;
mod guard;
mod invariants;
mod ledger;
pub mod models;
pub mod mutants;
mod network;
pub mod node;
mod plan;
mod random;
pub mod scripted;
mod shrink;
pub mod time;
mod world;

pub use count::{Count, Counts};
pub use guard::Guard;
pub use invariants::{SENTENCES, Violation};
pub use plan::{Distances, Fault, Kinds, Later, Leases, Modes, Outside, Plan};
pub use random::Random;
pub use shrink::shrink;
pub use world::Outcome;

/// The models clone millions of states. With this allocator they take half of the time that they take with glibc's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs a plan. With `traced`, the outcome has a line for each step.
pub fn run(plan: &Plan, traced: bool) -> Outcome {
    world::World::run(plan, traced)
}

/// Compiles the examples of these pages. This crate is not published, so it may depend on every crate in the examples.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/leases.md")]
mod readme {}
