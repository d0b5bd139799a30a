//! `cargo xtask stepped`: checks the guarantees of `quorlock run` during wall-clock jumps.

use std::ffi::OsString;
use std::path::Path;
use std::process::{ExitCode, Stdio};

use quorlock_servers::{REQUIRE_VARIABLE, SERVER_VARIABLE, ServerBinary};

use crate::{cargo, chaos};

/// Builds a command line whose wall clock a test can set forward or back, and runs that test.
pub(crate) fn run(workspace: &Path, server: &ServerBinary, _args: &[OsString]) -> ExitCode {
    let program = match chaos::build(workspace) {
        Ok(chaos) => chaos.with_file_name("quorlock"),
        Err(code) => return code,
    };
    let test = ["--workspace", "--test", "promise", "--", "--nocapture", "--exact", TEST];
    let mut cargo = cargo(workspace);
    cargo.arg("test").args(test).env("QUORLOCK_STEPPED", program).env(REQUIRE_VARIABLE, "1");
    cargo.env(SERVER_VARIABLE, &server.path).stderr(Stdio::inherit());
    let Ok(output) = cargo.output() else { return ExitCode::FAILURE };
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    // cargo succeeds even if no test has the name `TEST`, so the output must show that one test passed.
    match output.status.success() && said.contains(" 1 passed; 0 failed") {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

const TEST: &str = "before::the_wall_clock_steps";
