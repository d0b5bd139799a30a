//! The one clock of a run: the boot clock, which all processes of a machine share and which goes on
//! while one of them stands still.

use quorlock_sim::time::{SECOND, Time};
use rustix::time::{ClockId, clock_gettime};

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;

/// Elsewhere the monotonic clock is the best there is; on macOS it counts sleep.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// Now, in nanoseconds.
pub(crate) fn now() -> Time {
    let now = clock_gettime(CLOCK);
    now.tv_sec * SECOND + now.tv_nsec
}

/// How far the wall clock is ahead of the boot clock: moves only when somebody steps or slews it.
pub(crate) fn wall_ahead() -> Time {
    let wall = clock_gettime(ClockId::Realtime);
    wall.tv_sec * SECOND + wall.tv_nsec - now()
}

/// A span of time as text.
pub(crate) fn seconds(span: Time) -> String {
    format!("{:.3} s", span as f64 / SECOND as f64)
}
