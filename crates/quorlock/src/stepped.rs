//! How far the wall clock was stepped, in builds with `--cfg quorlock_stepped_clock` alone, which chaos
//! makes: nothing that is preloaded reaches a clock that is read without libc.

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// The kernel tells nobody of a step that is only pretended, so it is looked for this often.
pub(crate) const LOOK: Duration = Duration::from_millis(5);

/// The nanoseconds that stand in the file that `QUORLOCK_CLOCK_OFFSET_FILE` names; none, no step.
pub(crate) fn offset() -> i64 {
    static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let file =
        FILE.get_or_init(|| std::env::var_os("QUORLOCK_CLOCK_OFFSET_FILE").map(PathBuf::from));
    let text = file.as_ref().and_then(|file| fs::read_to_string(file).ok());
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}
