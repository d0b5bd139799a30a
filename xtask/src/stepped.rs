//! `cargo xtask stepped`: checks the guarantees of `quorlock run` during wall-clock jumps.

use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;

use quorlock_servers::{REQUIRE_VARIABLE, SERVER_VARIABLE, ServerBinary};

use crate::{Outcome, cargo, chaos};

/// Builds the program `quorlock` with a wall clock that tests can set forward or back. Then runs the test `TEST`.
pub(crate) fn run(workspace: &Path, server: &ServerBinary, _args: &[OsString]) -> Outcome {
    let program = chaos::build(workspace)?.with_file_name("quorlock");
    let test = ["--workspace", "--test", "promise", "--", "--nocapture", "--exact", TEST];
    let mut cargo = cargo(workspace);
    cargo.arg("test").args(test).env("QUORLOCK_STEPPED", program).env(REQUIRE_VARIABLE, "1");
    cargo.env(SERVER_VARIABLE, &server.path).stderr(Stdio::inherit());
    let output = cargo.output().map_err(|error| format!("cargo: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    // cargo succeeds even if no test has the name `TEST`, so the output must show that one test passed.
    Ok(output.status.success() && said.contains(" 1 passed; 0 failed"))
}

const TEST: &str = "before::the_wall_clock_steps";
