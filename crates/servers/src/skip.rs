//! Tests that need a real server, on machines that have none.

use std::env;
use std::fs::OpenOptions;
use std::io::{self, Write as _};

use crate::{NotFound, SERVER_VARIABLE, ServerBinary, find};

/// Set where a test without a server must fail instead of being skipped: by `cargo xtask test`.
pub const REQUIRE_VARIABLE: &str = "QUORLOCK_REQUIRE_SERVERS";

/// Names a file that gets a line for every skipped test, so that somebody can count them.
pub const SKIP_LOG_VARIABLE: &str = "QUORLOCK_SKIP_LOG";

/// The server for the test of this name, or `None` after [`skip`] was called.
///
/// # Panics
/// When there is no server and `QUORLOCK_REQUIRE_SERVERS` is set, and when `QUORLOCK_SERVER`
/// names something unusable: in both cases somebody counts on the test being run.
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

/// How the line of [`not_for`] begins.
pub const NOT_FOR: &str = "NOT FOR ";

/// Says on the standard error, where the test harness does not swallow it, that a test did not
/// run, and notes it in the file that `QUORLOCK_SKIP_LOG` names.
pub fn skip(test: &str, why: &str) {
    tell(test, &format!("SKIPPED ({why}): {test}\n"));
}

/// The same for a test that is about what other versions do than this one: with those it runs, so
/// nobody need count it among what was not shown.
pub fn not_for(binary: &ServerBinary, test: &str, why: &str) {
    let ServerBinary { flavor, version, .. } = binary;
    tell(test, &format!("{NOT_FOR}{flavor} {version} ({why}): {test}\n"));
}

/// A test about TLS does not run with a server that was built without. If that is the one server that was
/// chosen for all tests, it is [`not_for`] it; else it was skipped.
pub fn without_tls(binary: &ServerBinary, test: &str) {
    if env::var_os(SERVER_VARIABLE).is_some_and(|value| !value.is_empty()) {
        not_for(binary, test, "it was built without TLS");
    } else {
        skip(test, "no server that was built with TLS");
    }
}

fn tell(test: &str, line: &str) {
    // The harness captures what `eprintln!` prints, not what is written to the stream itself.
    let shown = io::stderr().write_all(line.as_bytes());
    let noted = env::var_os(SKIP_LOG_VARIABLE).map_or(Ok(()), |path| {
        OpenOptions::new().create(true).append(true).open(path)?.write_all(line.as_bytes())
    });
    if let Err(error) = shown.and(noted) {
        panic!("{test} was skipped, and that cannot be told: {error}");
    }
}
