//! The delay before the next attempt.
//!
//! Two times bound the delay: the expiry of the lock, as the nodes report it, and a poll interval, because the holder
//! may release the lock at any time. The random word is an argument, so equal arguments give equal delays.

use core::time::Duration;

use crate::node::round_trip::ROUND_TRIP_MIN;

/// The longest time between two polls of a lock that another client holds, unless configured otherwise.
pub const POLL_CEILING: Duration = Duration::from_millis(250);

/// The delays between attempts, and the largest number of attempts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Retry {
    /// The delay between two attempts.
    pub delay: Delay,
    /// The largest number of attempts; `None` means as many as fit into the wait.
    pub attempts_max: Option<u32>,
}

impl Default for Retry {
    fn default() -> Self {
        Self { delay: Delay::Adaptive { ceiling: POLL_CEILING }, attempts_max: None }
    }
}

/// The delay between two attempts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(
    unpredictable_function_pointer_comparisons,
    reason = "two functions that differ may compare as equal, and no decision depends on that"
)]
pub enum Delay {
    /// A delay that follows from the answers of the nodes. While another client holds the lock, the delay lasts until
    /// the keys expire or a node pushes a change. If nodes cannot push, too few nodes answer, or contenders split the
    /// votes, the delay is one to three observed round trips, doubled each time, up to the ceiling.
    Adaptive {
        /// The longest delay if the expiry of the lock is not known.
        ceiling: Duration,
    },
    /// A uniformly distributed delay between two bounds, whatever the nodes answer. The nodes are not asked to push.
    Between {
        /// The shortest delay.
        min: Duration,
        /// The longest delay.
        max: Duration,
    },
    /// The delay that a function returns, whatever the nodes answer, and at least 50 µs. The nodes are not asked to
    /// push.
    ///
    /// The first argument is the number of failed attempts of the call, from one on. The second argument is a random
    /// word: the function draws no random number and reads no clock, so equal arguments give an equal delay.
    Custom(fn(u32, u64) -> Duration),
}

impl Retry {
    /// The delay after the `attempts`-th failure in a row for the same reason, if no push is expected.
    ///
    /// `jitter` is a random word, and `round_trip` the observed round trip. `free_in` is the time after which a quorum
    /// is free by expiry alone; `None` if the nodes' answers do not show it.
    pub fn delay(
        &self,
        attempts: u32,
        jitter: u64,
        round_trip: Duration,
        free_in: Option<Duration>,
    ) -> Duration {
        match self.delay {
            Delay::Between { min, max } => min + fraction(max.saturating_sub(min), jitter),
            Delay::Custom(delay) => delay(attempts, jitter).max(ROUND_TRIP_MIN),
            Delay::Adaptive { ceiling } => {
                let step = round_trip.max(ROUND_TRIP_MIN);
                let spread = step + fraction(2 * step, jitter);
                let grown = spread.saturating_mul(1 << attempts.saturating_sub(1).min(16));
                let poll = if grown < ceiling {
                    grown
                } else {
                    // Jitter over the upper half, so that waiters do not poll at the same time.
                    ceiling / 2 + fraction(ceiling / 2, jitter)
                };
                match free_in {
                    // A quorum that is free already means that contenders split the votes, and only jitter helps.
                    Some(free_in) if !free_in.is_zero() => poll.min(free_in + after_expiry(jitter)),
                    _ => poll,
                }
            }
        }
    }
}

/// The delay between an expiry and the next attempt. Servers round times to milliseconds, and waiters must not all
/// attempt at once.
pub(crate) fn after_expiry(jitter: u64) -> Duration {
    Duration::from_millis(1) + fraction(Duration::from_millis(1), jitter)
}

/// Scales `whole` by the random word as a fraction between 0 and 1.
pub(crate) fn fraction(whole: Duration, jitter: u64) -> Duration {
    // The product fits into 128 bits, because the duration is cut to 64 bits of nanoseconds (over 500 years).
    let nanos = (whole.as_nanos().min(u64::MAX.into()) * u128::from(jitter)) >> 64;
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_delay_lies_between_one_and_three_round_trips_and_grows_to_the_ceiling() {
        let retry = Retry::default();
        assert_eq!(retry.delay(1, 0, 2 * MS, None), 2 * MS);
        assert!(retry.delay(1, u64::MAX, 2 * MS, None) <= 6 * MS);
        assert_eq!(retry.delay(3, 0, 2 * MS, None), 8 * MS);
        for attempts in 8..100 {
            for jitter in [0, u64::MAX / 2, u64::MAX] {
                let delay = retry.delay(attempts, jitter, 2 * MS, None);
                assert!(delay >= POLL_CEILING / 2 && delay <= POLL_CEILING, "{delay:?}");
            }
        }
    }

    #[test]
    fn a_lock_about_to_expire_is_tried_right_after() {
        let delay = Retry::default().delay(20, 0, MS, Some(7 * MS));
        assert_eq!(delay, 8 * MS);
    }

    #[test]
    fn the_sources_numbers_are_expressible() {
        let php = Delay::Between { min: 100 * MS, max: 200 * MS };
        let php = Retry { delay: php, attempts_max: Some(3) };
        assert_eq!(php.delay(1, 0, MS, None), 100 * MS);
        assert!(php.delay(2, u64::MAX, MS, None) <= 200 * MS);
    }

    #[test]
    fn a_function_may_choose_the_delay_above_the_minimum() {
        let doubled = Delay::Custom(|attempts, word| MS * (1 << attempts) + fraction(MS, word));
        let retry = Retry { delay: doubled, attempts_max: None };
        assert_eq!(retry.delay(3, 0, 50 * MS, Some(MS)), 8 * MS);
        assert_eq!(retry.delay(4, 1 << 63, MS, None), 16 * MS + MS / 2);
        let none = Retry { delay: Delay::Custom(|_, _| Duration::ZERO), attempts_max: None };
        assert_eq!(none.delay(1, 0, MS, None), ROUND_TRIP_MIN);
    }

    #[test]
    fn a_delay_of_ages_is_cut_off_and_does_not_overflow() {
        let ages = Delay::Between { min: Duration::ZERO, max: Duration::MAX };
        let delay = Retry { delay: ages, attempts_max: None }.delay(1, u64::MAX, MS, None);
        assert!(delay > Duration::from_secs(100 * 365 * 24 * 3600));
    }
}
