//! The clock of a run: the boot clock. All processes of a machine share it, and it runs on while a process is stopped.

use std::thread;
use std::time::Duration;

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

/// Converts a span of nanoseconds, which must not be negative, into a `Duration`.
pub(crate) fn nanos(span: Time) -> Duration {
    Duration::from_nanos(span.unsigned_abs())
}

/// Looks for a result again and again until there is one, and at most until the deadline.
pub(crate) fn wait_for<T>(deadline: Time, mut result: impl FnMut() -> Option<T>) -> Option<T> {
    loop {
        let result = result();
        if result.is_some() || now() >= deadline {
            return result;
        }
        thread::sleep(Duration::from_millis(5));
    }
}
