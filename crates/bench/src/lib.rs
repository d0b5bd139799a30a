//! The benchmark of quorlock: `cargo xtask bench`.
//!
//! Subjects take turns on the same real servers (`subjects/`); what they do is a
//! workload (`workloads/`), what comes out of it a report (`report.rs`), and whether it is good
//! enough is decided in `targets.rs`. No number is asserted in tests.

mod args;
mod clock;
mod count;
mod handover_stats;
mod held;
pub mod live;
mod machine;
mod plan;
mod report;
#[cfg(feature = "rivals")]
mod rivals;
mod sample;
mod subjects;
mod table;
mod targets;
mod testbed;
mod worker;
mod workers;
mod workloads;

pub use crate::args::main;
pub use crate::machine::COMMAND_VARIABLE;
pub use crate::table::columns;
