//! `cargo xtask stepped`: what is promised of commands when the wall clock is stepped.

use std::path::Path;
use std::process::ExitCode;

use quorlock_servers::{SERVER_VARIABLE, ServerBinary};

use crate::{cargo, chaos};

/// Builds a command line whose wall clock can be stepped, and runs the test that does it.
pub(crate) fn run(workspace: &Path, server: &ServerBinary) -> ExitCode {
    let program = match chaos::build(workspace) {
        Ok(chaos) => chaos.with_file_name("quorlock"),
        Err(code) => return code,
    };
    let test = ["--workspace", "--test", "promise", "--", "--nocapture", "the_wall_clock_steps"];
    let mut cargo = cargo(workspace);
    cargo.arg("test").args(test).env("QUORLOCK_STEPPED", program);
    match cargo.env(SERVER_VARIABLE, &server.path).status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
