//! Skips tests that need a real server if the machine has none.

use std::env;
use std::fs::OpenOptions;
use std::io::{self, Write as _};

use crate::{NotFound, SERVER_VARIABLE, ServerBinary, find};

/// The variable that makes a test without a server fail instead of being skipped. `cargo xtask test` sets it.
pub const REQUIRE_VARIABLE: &str = "QUORLOCK_REQUIRE_SERVERS";

/// The variable with the path of a file to which each skipped test appends a line. `cargo xtask test` counts the lines.
pub const SKIP_LOG_VARIABLE: &str = "QUORLOCK_SKIP_LOG";

/// Returns the server for a test. If there is none, calls [`skip`] and returns `None`.
///
/// # Panics
/// If there is no server and `QUORLOCK_REQUIRE_SERVERS` is set, or if `QUORLOCK_SERVER` is unusable.
pub fn find_or_skip(test: &str) -> Option<ServerBinary> {
    match find() {
        Ok(binary) => Some(binary),
        Err(NotFound::Nowhere) if env::var_os(REQUIRE_VARIABLE).is_none() => {
            skip(test, "no Redis or Valkey server found");
            None
        }
        Err(help) => panic!("{test} needs a server: {help}"),
    }
}

/// The prefix of the log lines of [`not_for`].
pub const NOT_FOR: &str = "NOT FOR ";

/// Reports a skipped test in the file that `QUORLOCK_SKIP_LOG` names, and on standard error, past the capture of the
/// test harness.
pub fn skip(test: &str, why: &str) {
    tell(test, &format!("SKIPPED ({why}): {test}\n"));
}

/// Reports that a test does not apply to this server version. The test runs with other versions, so `cargo xtask test`
/// does not count it as skipped.
pub fn not_for(binary: &ServerBinary, test: &str, why: &str) {
    let ServerBinary { flavor, version, .. } = binary;
    tell(test, &format!("{NOT_FOR}{flavor} {version} ({why}): {test}\n"));
}

/// Reports that a test about TLS cannot use a server without TLS. If `QUORLOCK_SERVER` selects one server for all
/// tests, this counts as [`not_for`], otherwise as [`skip`].
pub fn without_tls(binary: &ServerBinary, test: &str) {
    if env::var_os(SERVER_VARIABLE).is_some_and(|value| !value.is_empty()) {
        not_for(binary, test, "it was built without TLS");
    } else {
        skip(test, "no server that was built with TLS");
    }
}

fn tell(test: &str, line: &str) {
    // The harness captures `eprintln!`, but not writes to the stream itself.
    let shown = io::stderr().write_all(line.as_bytes());
    let noted = env::var_os(SKIP_LOG_VARIABLE).map_or(Ok(()), |path| {
        OpenOptions::new().create(true).append(true).open(path)?.write_all(line.as_bytes())
    });
    if let Err(error) = shown.and(noted) {
        panic!("{test} was skipped, and that cannot be told: {error}");
    }
}
