//! Time: the true time, which no process can read, and the clocks that approximate it.
//!
//! Every event happens at a point of true time. Each client's machine has a boot clock and a wall clock, and each node
//! has a wall clock. Clocks run a little fast or slow, jump, or stop.

use std::time::Duration;

use quorlock_core::Reading;

/// A point of true time, or a span of it, in nanoseconds.
pub type Time = i64;

/// A microsecond.
pub const US: Time = 1_000;

/// A millisecond.
pub const MS: Time = 1_000_000;

/// A second.
pub const SECOND: Time = 1_000 * MS;

/// Converts a time, which must not be negative.
pub(crate) const fn duration(time: Time) -> Duration {
    Duration::from_nanos(time.unsigned_abs())
}

pub(crate) fn time(duration: Duration) -> Time {
    Time::try_from(duration.as_nanos()).unwrap_or(Time::MAX)
}

/// A clock: a linear function of true time, until its rate or its time is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Clock {
    since: Time,
    shown: i64,
    ppm: i64,
}

impl Clock {
    /// A clock that shows `shown` at true time 0, and runs `ppm` parts per million fast.
    pub const fn new(shown: i64, ppm: i64) -> Self {
        Self { since: 0, shown, ppm }
    }

    /// The time on the clock, in nanoseconds.
    pub const fn at(&self, now: Time) -> i64 {
        let passed = now - self.since;
        self.shown
            + passed
            + passed / 1_000_000 * self.ppm
            + passed % 1_000_000 * self.ppm / 1_000_000
    }

    /// The true time at which the clock will show `shown`, at its present rate.
    pub fn when(&self, shown: i64) -> Time {
        let rate = i128::from(1_000_000 + self.ppm.max(-999_999));
        let ahead = i128::from(shown.saturating_sub(self.shown)) * 1_000_000 / rate;
        let mut when = self.since.saturating_add(i64::try_from(ahead).unwrap_or(i64::MAX / 2));
        // The division rounds down twice, so the result may be a little early.
        while when < i64::MAX / 4 && self.at(when) < shown {
            when += 1;
        }
        when
    }

    /// Sets the clock ahead or back.
    pub fn step(&mut self, by: i64, now: Time) {
        *self = Self { since: now, shown: self.at(now) + by, ..*self };
    }

    /// From now on the clock runs `ppm` parts per million fast. Minus one million stops it.
    pub fn run(&mut self, ppm: i64, now: Time) {
        *self = Self { since: now, shown: self.at(now), ppm };
    }

    /// The rate of the clock, in parts per million fast.
    pub const fn ppm(&self) -> i64 {
        self.ppm
    }
}

/// The clocks of a client's machine.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// This clock also counts the time while the machine is suspended. quorlock's timers use it.
    pub boot: Clock,
    /// This clock may jump. After a pause of a virtual machine, it is behind until it is set right.
    pub wall: Clock,
}

impl Machine {
    /// Reads both clocks.
    pub const fn read(&self, now: Time) -> Reading {
        Reading::new(self.boot.at(now), self.wall.at(now))
    }
}

/// The elapsed time between two readings, by the clock that advanced more (docs/algorithm.md, Clocks). This does not use
/// the engine's code, because the engine is under test.
pub fn elapsed(earlier: Reading, later: Reading) -> i64 {
    let boot = later.boot().as_nanos() - earlier.boot().as_nanos();
    boot.max(later.real_ns() - earlier.real_ns()).max(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_found_at_the_point_where_it_shows_a_time() {
        for ppm in [-20_000, -1, 0, 1, 5_000, 100_000] {
            let mut clock = Clock::new(77, ppm);
            clock.step(-3 * SECOND, 5 * MS);
            for ahead in [1, 999_999, SECOND, 40 * SECOND + 17] {
                let shown = clock.at(5 * MS) + ahead;
                let when = clock.when(shown);
                assert!(clock.at(when) >= shown && clock.at(when - 1) <= shown, "{ppm} {ahead}");
            }
        }
    }

    #[test]
    fn a_clock_that_stands_still_goes_on_from_there() {
        let mut clock = Clock::new(0, 0);
        clock.run(-1_000_000, 10);
        assert_eq!(clock.at(1_000), 10);
        clock.run(0, 1_000);
        assert_eq!(clock.at(1_005), 15);
    }
}
