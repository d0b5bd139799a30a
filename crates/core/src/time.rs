//! Time in the core. The driver reads the clocks; the core never does.
//!
//! A [`Reading`] is a *pair* of clocks: the boot clock, which counts while the machine sleeps, and the wall clock.
//! Neither is enough alone. The boot clock misses the time in which a host pauses its virtual machine, and the wall
//! clock can be set back. So the validity uses the larger of the two elapsed times (docs/algorithm.md, Clocks). A wall
//! clock that jumps forward looks like a pause and ends a lock early, which is safe. A jump back has no effect.
//!
//! Timers are points on the boot clock alone ([`BootTime`]). A timer may fire late, so the clock reading that comes
//! with an event decides, not the timer.

use core::time::Duration;

/// A point on the boot clock, in nanoseconds since an arbitrary start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct BootTime(i64);

impl BootTime {
    /// The point `nanos` nanoseconds after the start of the boot clock.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the start of the boot clock.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// The point `delay` later.
    pub fn after(self, delay: Duration) -> Self {
        Self(self.0.saturating_add_unsigned(nanos(delay)))
    }

    /// The time until this point; zero if it has passed.
    pub fn remaining(self, now: Reading) -> Duration {
        duration(self.0.saturating_sub(now.boot_ns))
    }

    /// Whether this point has passed.
    pub(crate) const fn has_come(self, now: Reading) -> bool {
        self.0 <= now.boot_ns
    }

    pub(crate) fn shifted(self, base: Reading) -> Self {
        Self(self.0.saturating_sub(base.boot_ns))
    }
}

/// A reading of both clocks, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Reading {
    boot_ns: i64,
    real_ns: i64,
}

impl Reading {
    /// A reading of the boot clock and, at nearly the same moment, of the wall clock.
    pub const fn new(boot_ns: i64, real_ns: i64) -> Self {
        Self { boot_ns, real_ns }
    }

    /// The time of the boot clock.
    pub const fn boot(self) -> BootTime {
        BootTime(self.boot_ns)
    }

    /// The time of the wall clock, in nanoseconds since the Unix epoch.
    pub const fn real_ns(self) -> i64 {
        self.real_ns
    }

    /// The elapsed time since `earlier`, by the clock that advanced more.
    ///
    /// Never negative: a clock that was set back counts as stopped.
    pub fn elapsed_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }

    /// As [`Reading::elapsed_since`], in nanoseconds.
    pub(crate) fn nanos_since(self, earlier: Self) -> u64 {
        let since = |now: i64, then: i64| if now > then { now.abs_diff(then) } else { 0 };
        let boot = since(self.boot_ns, earlier.boot_ns);
        let real = since(self.real_ns, earlier.real_ns);
        if mutant!(BootClockAlone) { boot } else { boot.max(real) }
    }

    /// The point on the boot clock `delay` after this reading.
    pub fn after(self, delay: Duration) -> BootTime {
        self.boot().after(delay)
    }

    /// The reading relative to `base`.
    #[must_use]
    pub const fn shifted(self, base: Self) -> Self {
        Self {
            boot_ns: self.boot_ns.saturating_sub(base.boot_ns),
            real_ns: self.real_ns.saturating_sub(base.real_ns),
        }
    }
}

/// Nanoseconds, capped at `u64::MAX`, which are centuries.
pub(crate) const fn nanos(duration: Duration) -> u64 {
    let nanos = duration.as_nanos();
    if nanos > u64::MAX as u128 { u64::MAX } else { nanos as u64 }
}

fn duration(nanos: i64) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn elapsed_is_the_larger_of_both_clocks() {
        let start = Reading::new(10 * SECOND, 100 * SECOND);
        let slept_by_the_host = Reading::new(11 * SECOND, 130 * SECOND);
        assert_eq!(slept_by_the_host.elapsed_since(start), Duration::from_secs(30));
        let set_back = Reading::new(11 * SECOND, 50 * SECOND);
        assert_eq!(set_back.elapsed_since(start), Duration::from_secs(1));
    }

    #[test]
    fn elapsed_is_never_negative() {
        let start = Reading::new(10 * SECOND, 100 * SECOND);
        assert_eq!(Reading::new(0, 0).elapsed_since(start), Duration::ZERO);
    }

    #[test]
    fn far_away_times_saturate_instead_of_wrapping() {
        let never = Reading::default().after(Duration::MAX);
        assert_eq!(never, BootTime::from_nanos(i64::MAX));
        assert!(never.remaining(Reading::new(-SECOND, 0)) > Duration::from_secs(u32::MAX.into()));
    }
}
