//! Time as the core sees it: readings handed in by the driver, never taken here.
//!
//! A [`Reading`] is a *pair*: the boot clock, which counts while the machine sleeps, and the wall
//! clock. Neither is enough alone. The boot clock misses a virtual machine that was paused by its
//! host; the wall clock can be set back. Validity therefore uses the larger of the two elapsed
//! times (protocol, section 9). A wall clock that jumps forward reads as a pause and ends a lock
//! early, which is the safe side. One that jumps back is ignored.
//!
//! Timers are points on the boot clock alone ([`BootTime`]). They may fire late; nothing that
//! matters is decided by a timer, always by the reading that came with the event.

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

    /// How long until this point, zero once it has come.
    pub fn remaining(self, now: Reading) -> Duration {
        duration(self.0.saturating_sub(now.boot_ns))
    }

    pub(crate) fn shifted(self, base: Reading) -> Self {
        Self(self.0.saturating_sub(base.boot_ns))
    }
}

/// One look at both clocks, in nanoseconds; made by the driver, never by the core.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Reading {
    boot_ns: i64,
    real_ns: i64,
}

impl Reading {
    /// A reading of the boot clock and, as close to it as can be had, of the wall clock.
    pub const fn new(boot_ns: i64, real_ns: i64) -> Self {
        Self { boot_ns, real_ns }
    }

    /// The boot clock's part.
    pub const fn boot(self) -> BootTime {
        BootTime(self.boot_ns)
    }

    /// The wall clock's part, in nanoseconds since the Unix epoch.
    pub const fn real_ns(self) -> i64 {
        self.real_ns
    }

    /// The time that has passed since `earlier`: the larger of what the two clocks say.
    ///
    /// Never negative: a clock that ran backwards has, for a lease, stood still.
    pub fn elapsed_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }

    /// The same in nanoseconds.
    pub(crate) fn nanos_since(self, earlier: Self) -> u64 {
        let boot = self.boot_ns.saturating_sub(earlier.boot_ns);
        let real = self.real_ns.saturating_sub(earlier.real_ns);
        let elapsed = if mutant!(BootClockAlone) { boot } else { boot.max(real) };
        u64::try_from(elapsed).unwrap_or(0)
    }

    /// The point on the boot clock `delay` from now.
    pub fn after(self, delay: Duration) -> BootTime {
        self.boot().after(delay)
    }

    /// The same reading with `base` as the origin of time.
    #[must_use]
    pub const fn shifted(self, base: Self) -> Self {
        Self {
            boot_ns: self.boot_ns.saturating_sub(base.boot_ns),
            real_ns: self.real_ns.saturating_sub(base.real_ns),
        }
    }
}

/// In nanoseconds; what does not fit is centuries, and cut off.
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
