//! Time that has passed, and processor time. Both are read from the system directly: the monotonic
//! clock is the same in all processes of a machine, so that their times can be compared.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The monotonic clock.
pub(crate) fn now() -> Duration {
    read(ClockId::Monotonic)
}

/// The processor time, user and system, of all threads of this process so far.
pub(crate) fn cpu() -> Duration {
    read(ClockId::ProcessCPUTime)
}

/// The wall clock, since 1970.
pub(crate) fn wall() -> Duration {
    read(ClockId::Realtime)
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    // These clocks are never before their epoch, and a nanosecond part is below 10^9.
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Nanoseconds, as they are written down by the million.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Microseconds, as they are reported.
pub(crate) fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}
