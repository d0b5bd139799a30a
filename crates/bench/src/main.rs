//! The benchmark of quorlock: `cargo xtask bench`.
//!
//! Subjects (`subjects/`) take turns on the same real servers in each workload (`workloads/`). `report.rs` collects the
//! figures, and `targets.rs` compares them with the targets. Tests assert no figures.

mod args;
mod clock;
mod count;
mod handover_stats;
mod held;
mod interop;
mod machine;
mod plan;
mod report;
mod rivals;
mod round_trips;
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
