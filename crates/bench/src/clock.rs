//! Clocks. The monotonic clock is shared by all processes of a machine, so times of different processes are comparable.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

pub(crate) fn now() -> Duration {
    read(ClockId::Monotonic)
}

/// User and system CPU time of all threads of this process.
pub(crate) fn cpu() -> Duration {
    read(ClockId::ProcessCPUTime)
}

/// Time since the Unix epoch.
pub(crate) fn wall() -> Duration {
    read(ClockId::Realtime)
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    // These clocks are never before their epoch, and the nanoseconds are below 10^9.
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}
