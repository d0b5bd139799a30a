//! The clock of a client.

use std::time::Duration;

use quorlock_core::Reading;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// The clock that a client reads.
///
/// Each call of `is_valid()` reads this clock, because a remembered validity may be out of date.
/// `std::time::Instant` is not used anywhere, because it stops while the machine sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Clock {
    /// The operating system's boot clock, which counts while the machine sleeps, together with the wall clock, which
    /// may be the only clock that shows a pause of the virtual machine. The default, and the only clock for production.
    #[default]
    System,
    /// The clock of the tokio runtime, for tests under `tokio::time::pause`. It does not count while the machine
    /// sleeps, and has no wall clock.
    Tokio,
}

/// The boot clock is read before and after the wall clock. If these two readings are further apart than this time, in
/// nanoseconds, the process was paused in between, and the wall clock's reading may be stale.
const PAIR_GAP_MAX: i64 = 1_000_000;

/// The most tries to read both clocks. A process that is paused in every try takes the readings of the last try.
const PAIR_TRIES: usize = 4;

impl Clock {
    pub(crate) fn now(self) -> Reading {
        match self {
            Self::System => system_pair(),
            Self::Tokio => {
                let now = tokio_nanos();
                Reading::new(now, now)
            }
        }
    }
}

/// Reads the boot clock, the wall clock, and the boot clock again. Repeats the readings if they took too long.
fn system_pair() -> Reading {
    let mut before = nanos(clock_gettime(BOOT));
    for _ in 1..PAIR_TRIES {
        let real = wall();
        let after = nanos(clock_gettime(BOOT));
        if after - before <= PAIR_GAP_MAX {
            return Reading::new(after, real);
        }
        before = after;
    }
    let real = wall();
    Reading::new(nanos(clock_gettime(BOOT)), real)
}

fn wall() -> i64 {
    let real = nanos(clock_gettime(ClockId::Realtime));
    #[cfg(quorlock_stepped_clock)]
    let real = real.saturating_add(step());
    real
}

/// Interval at which the driver looks for a simulated step, because the kernel does not report it.
#[cfg(quorlock_stepped_clock)]
pub(crate) const STEP_CHECK: Duration = Duration::from_millis(5);

/// The simulated step of the wall clock in nanoseconds, in the build that chaos makes: the number in the file that
/// `QUORLOCK_CLOCK_OFFSET_FILE` names, or zero. A preloaded library could not step this clock, because it is read without
/// libc.
#[cfg(quorlock_stepped_clock)]
fn step() -> i64 {
    use std::path::PathBuf;
    use std::sync::OnceLock;
    static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let file =
        FILE.get_or_init(|| std::env::var_os("QUORLOCK_CLOCK_OFFSET_FILE").map(PathBuf::from));
    let text = file.as_ref().and_then(|file| std::fs::read_to_string(file).ok());
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const BOOT: ClockId = ClockId::Boottime;

/// Other systems offer no better clock than the monotonic one. On macOS it counts while the machine sleeps.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const BOOT: ClockId = ClockId::Monotonic;

fn nanos(time: Timespec) -> i64 {
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}

fn tokio_nanos() -> i64 {
    use std::sync::OnceLock;
    // tokio's instants have no numeric value, so the time counts from the first instant that was seen. It begins at one
    // day, so that times shortly before that instant are not negative.
    static START: OnceLock<tokio::time::Instant> = OnceLock::new();
    let now = tokio::time::Instant::now();
    let start = *START.get_or_init(|| now);
    let day = Duration::from_secs(86_400);
    let since = match now.checked_duration_since(start) {
        Some(ahead) => day + ahead,
        None => day.saturating_sub(start - now),
    };
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_pair_moves_forward_and_its_parts_together() {
        let first = Clock::System.now();
        std::thread::sleep(Duration::from_millis(20));
        let second = Clock::System.now();
        let boot = second.boot().as_nanos() - first.boot().as_nanos();
        let elapsed = second.elapsed_since(first);
        assert!(boot >= 20_000_000);
        assert!(elapsed >= Duration::from_millis(20));
    }
}
