//! The simulator: quorlock's production engine in virtual time, against model nodes and a network in
//! which everything goes wrong.
//!
//! ```text
//!   caller ──► guard, driver ──► Engine ──► line ──► network ──► model node
//!   (random)   (as the library's) (the product)      (delays,     (own clock, crashes,
//!                                                     breaks …)    flushes, refusals …)
//! ```
//!
//! A run is a seed: the [`Plan`] follows from it, and all that happens follows from the plan, to the
//! nanosecond. It has two parts: faults, then healing, in which everything must come to a good end
//! within a bound. All the while [`SENTENCES`] are checked, each in a file of its own; mutual
//! exclusion only where the protocol promises it. A third of the runs lie outside of that, and some
//! of those must overlap, or the faults are not real.
//!
//! What is under test is `quorlock_core`, as it is shipped: the engine, and with it ticks, pipelines and holds. What
//! stands for the connections is written anew here, small enough to be compared by reading; the nodes are
//! compared with real servers.

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
mod view;
mod world;

pub use count::{Count, Counts};
pub use guard::Guard;
pub use invariants::{SENTENCES, Violation};
pub use plan::{Fault, Kinds, Later, Modes, Outside, Plan};
pub use random::Random;
pub use shrink::shrink;
pub use world::Outcome;

/// Runs one plan. With `traced`, the outcome has a line for each step.
pub fn run(plan: &Plan, traced: bool) -> Outcome {
    world::World::run(plan, traced)
}

/// The examples of the README are compiled with this crate, which is not published.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}
