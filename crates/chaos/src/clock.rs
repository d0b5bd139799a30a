//! The clock of a run: the boot clock. All processes of a machine share it, and it runs on while a process is stopped.

use quorlock_sim::time::{SECOND, Time};
use rustix::time::{ClockId, clock_gettime};

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;

/// The monotonic clock, because these systems have no boot clock. On macOS, it counts the time of sleep too.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

pub(crate) fn now() -> Time {
    let now = clock_gettime(CLOCK);
    now.tv_sec * SECOND + now.tv_nsec
}

/// The difference between wall clock and boot clock. It changes only if the wall clock jumps or is slewed.
pub(crate) fn wall_ahead() -> Time {
    let wall = clock_gettime(ClockId::Realtime);
    wall.tv_sec * SECOND + wall.tv_nsec - now()
}

pub(crate) fn seconds(span: Time) -> String {
    format!("{:.3} s", span as f64 / SECOND as f64)
}
