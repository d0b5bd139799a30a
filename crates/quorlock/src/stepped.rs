//! The simulated step of the wall clock, only in builds with `--cfg quorlock_stepped_clock`, which chaos makes. A
//! preloaded library could not step this clock, because it is read without libc.

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// Interval at which the driver looks for a simulated step, because the kernel does not report it.
pub(crate) const LOOK: Duration = Duration::from_millis(5);

/// Reads the step in nanoseconds from the file that `QUORLOCK_CLOCK_OFFSET_FILE` names. Zero if there is none.
pub(crate) fn offset() -> i64 {
    static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let file =
        FILE.get_or_init(|| std::env::var_os("QUORLOCK_CLOCK_OFFSET_FILE").map(PathBuf::from));
    let text = file.as_ref().and_then(|file| fs::read_to_string(file).ok());
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}
