//! The benchmark of quorlock: `cargo xtask bench`.
//!
//! Subjects take turns on the same real servers (`subjects/`); what they do is a
//! workload (`workloads/`), what comes out of it a report (`report.rs`), and whether it is good
//! enough is decided in `targets.rs`. No number is asserted in tests.

mod args;
mod clock;
mod count;
mod crew;
mod held;
mod lab;
mod machine;
pub mod own;
#[cfg(feature = "plots")]
mod page;
mod plan;
#[cfg(feature = "plots")]
mod plot;
mod report;
#[cfg(feature = "rivals")]
mod rivals;
#[cfg(feature = "plots")]
mod saved;
mod slice;
mod story;
mod subjects;
mod table;
mod targets;
mod worker;
mod workloads;

/// The README's examples are compiled with this crate, whose program writes the figures there.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}

pub use crate::args::main;
pub use crate::machine::COMMAND_VARIABLE;
pub use crate::table::columns;
