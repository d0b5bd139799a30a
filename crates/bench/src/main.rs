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
mod machine;
mod plan;
mod report;
mod rivals;
mod sample;
mod subjects;
mod table;
mod targets;
mod testbed;
mod worker;
mod workers;
mod workloads;

use std::process::ExitCode;

fn main() -> ExitCode {
    args::main()
}
