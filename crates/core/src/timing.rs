//! The times of one lock. Their relations are checked here, once.

use alloc::format;
use alloc::string::String;
use core::fmt;
use core::num::NonZeroU64;
use core::time::Duration;

use crate::display::{ceil_ms, exactly};
use crate::time::nanos;

/// The shortest ttl (invariant S16). Drift, margin and a round trip would use up a shorter one.
pub const TTL_MIN: Duration = Duration::from_millis(100);

/// The longest ttl. It bounds how long a crashed holder blocks other clients, and how long a restarted node must wait.
pub const TTL_CEILING: Duration = Duration::from_secs(24 * 3600);

/// A node's answer is awaited for at least this number of the node's round trips.
pub const ROUND_TRIPS_AWAITED: u32 = 4;

/// The shortest ttl with which a node at this distance is awaited for [`ROUND_TRIPS_AWAITED`] round trips: the node
/// timeout is at most a fifth of the ttl. Rounded up to a tenth of a second.
pub fn shortest_ttl(round_trip: Duration) -> Duration {
    let ttl = round_trip.saturating_mul(5 * ROUND_TRIPS_AWAITED);
    let tenths = u64::try_from(ttl.as_nanos().div_ceil(100_000_000)).unwrap_or(u64::MAX);
    Duration::from_millis(tenths.saturating_mul(100)).max(TTL_MIN)
}

/// The times that a caller may choose. [`Timing::new`] checks their relations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TimingOptions {
    /// The time for which a node keeps the key, rounded down to whole milliseconds.
    pub ttl: Duration,
    /// The longest ttl that any client of these nodes uses.
    pub max_ttl: Duration,
    /// The allowed clock rate error ε, in parts per million of the ttl.
    pub drift_ppm: u32,
    /// The allowed wall-clock jump and rounding error δ.
    pub drift_constant: Duration,
    /// The time before the end of the validity at which the holder gives a lock up; `None` means max(2 % of ttl, 5 ms).
    pub margin: Option<Duration>,
    /// The smallest remaining validity of a granted lock.
    pub min_validity: Duration,
    /// The timeout of a node's answer; `None` means that it follows from the ttl and the round trip.
    pub node_timeout: Option<Duration>,
    /// The timeout of a connection attempt, after which the node counts as failed.
    pub connect_timeout: Duration,
}

impl Default for TimingOptions {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(10),
            max_ttl: Duration::from_secs(30),
            drift_ppm: 10_000,
            drift_constant: Duration::from_millis(2),
            margin: None,
            min_validity: Duration::ZERO,
            node_timeout: None,
            connect_timeout: Duration::from_secs(5),
        }
    }
}

/// The times of one lock. Every value of this type satisfies the relations of the protocol.
///
/// Each held lock stores a copy, so the fields are plain numbers, half as large as a [`Duration`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Timing {
    ttl_ms: u64,
    term_ns: u64,
    margin_ns: u64,
    min_validity_ns: u64,
    node_timeout_ns: Option<NonZeroU64>,
    connect_timeout_ns: u64,
}

impl Timing {
    /// Checks the options against each other. Contradictory options are refused, never clamped.
    ///
    /// # Errors
    /// The first relation that is not satisfied, with the times that contradict each other.
    pub fn new(options: TimingOptions) -> Result<Self, TimingError> {
        let TimingOptions {
            ttl,
            max_ttl,
            drift_ppm,
            drift_constant,
            margin,
            min_validity,
            node_timeout,
            connect_timeout,
        } = options;
        if ttl < TTL_MIN {
            return Err(TimingError::TtlTooShort { ttl });
        }
        if max_ttl > TTL_CEILING {
            return Err(TimingError::MaxTtlTooLong { max_ttl });
        }
        if ttl > max_ttl {
            return Err(TimingError::TtlTooLong { ttl, max_ttl });
        }
        // The ttl is rounded down once, here, so the commands and the validity use the same number.
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let ttl = Duration::from_millis(ttl_ms);
        if let Some(node_timeout) = node_timeout
            && (node_timeout.is_zero() || node_timeout > ttl / 4)
        {
            return Err(TimingError::NodeTimeout { node_timeout, ttl });
        }
        if connect_timeout.is_zero() {
            return Err(TimingError::ConnectTimeoutZero);
        }
        let drift = parts_per_million(ttl, drift_ppm).saturating_add(drift_constant);
        let margin = margin.unwrap_or_else(|| (ttl / 50).max(Duration::from_millis(5)));
        let reserved = drift.saturating_add(margin.max(min_validity));
        if reserved >= ttl {
            return Err(TimingError::NothingLeft { drift, margin, min_validity, ttl });
        }
        let term = if mutant!(NoDrift) { ttl } else { ttl - drift };
        Ok(Self {
            ttl_ms,
            term_ns: nanos(term),
            margin_ns: nanos(margin),
            min_validity_ns: nanos(min_validity),
            node_timeout_ns: node_timeout.map(nanos).and_then(NonZeroU64::new),
            connect_timeout_ns: nanos(connect_timeout),
        })
    }

    /// The ttl in whole milliseconds, as commands carry it.
    pub const fn ttl_ms(&self) -> u64 {
        self.ttl_ms
    }

    /// The ttl as a duration.
    pub const fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }

    /// The time for which a vote counts from its time of sending: T − (ε·T + δ).
    pub const fn term(&self) -> Duration {
        Duration::from_nanos(self.term_ns)
    }

    /// The margin: a lock counts as lost this time before the end of its validity.
    pub const fn margin(&self) -> Duration {
        Duration::from_nanos(self.margin_ns)
    }

    /// The smallest remaining validity of a granted lock.
    pub const fn min_validity(&self) -> Duration {
        Duration::from_nanos(self.min_validity_ns)
    }

    /// The timeout of a connection attempt.
    pub const fn connect_timeout(&self) -> Duration {
        Duration::from_nanos(self.connect_timeout_ns)
    }

    /// The timeout of a node's answer, as configured or from the round trip to this node.
    ///
    /// Without a configured timeout it is min(5 % of ttl, 50 ms). It is at least [`ROUND_TRIPS_AWAITED`] round trips, so
    /// that a distant node does not count as failed, and at most a fifth of the ttl.
    pub fn node_timeout(&self, round_trip: Duration) -> Duration {
        if let Some(configured) = self.node_timeout_ns {
            return Duration::from_nanos(configured.get());
        }
        let ttl = self.ttl_ms * 1_000_000;
        let usual = (ttl / 20).min(50_000_000);
        let distant = nanos(round_trip).saturating_mul(ROUND_TRIPS_AWAITED.into());
        Duration::from_nanos(usual.max(distant).min(ttl / 5))
    }

    /// The time for which an answer is awaited. `connected` is the round trip of a connection that was made; `None` means
    /// that the connection is being made, which has a timeout of its own.
    pub(crate) fn answer_timeout(&self, connected: Option<Duration>) -> Duration {
        match connected {
            Some(round_trip) => self.node_timeout(round_trip),
            None => self.connect_timeout().saturating_add(self.node_timeout(Duration::ZERO)),
        }
    }

    /// The setting that is too short for a node at this distance, for people: its answer is awaited for less than
    /// [`ROUND_TRIPS_AWAITED`] round trips. `None` if the node timeout is long enough.
    pub fn too_short_for(&self, round_trip: Duration) -> Option<String> {
        let timeout = self.node_timeout(round_trip);
        let needed = round_trip.saturating_mul(ROUND_TRIPS_AWAITED);
        if timeout >= needed {
            return None;
        }
        let late = match round_trip.saturating_sub(timeout) {
            Duration::ZERO => String::new(),
            late => format!("answers {late:.1?} too late: "),
        };
        Some(match self.node_timeout_ns {
            Some(_) => format!(
                "{late}a round trip takes {round_trip:.1?} and the node timeout is {timeout:.1?}, choose at least \
                 {}, or none",
                exactly(ceil_ms(needed))
            ),
            None => format!(
                "{late}a round trip takes {round_trip:.1?}, choose a ttl of at least {}",
                exactly(shortest_ttl(round_trip))
            ),
        })
    }

    /// The time between two automatic extensions: a third of the ttl, so the lock survives one failed extension.
    pub fn extend_every(&self) -> Duration {
        self.ttl() / 3
    }

    /// The delay before a failed automatic extension is retried.
    pub fn extend_retry(&self) -> Duration {
        self.ttl() / 10
    }
}

fn parts_per_million(duration: Duration, ppm: u32) -> Duration {
    let nanos = duration.as_nanos().saturating_mul(ppm.into()).div_ceil(1_000_000);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Two times that contradict each other. Nothing was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TimingError {
    /// The ttl is below [`TTL_MIN`].
    TtlTooShort {
        /// The requested ttl.
        ttl: Duration,
    },
    /// The longest ttl is above [`TTL_CEILING`].
    MaxTtlTooLong {
        /// The requested longest ttl.
        max_ttl: Duration,
    },
    /// The ttl is above the longest ttl that the clients of these nodes use.
    TtlTooLong {
        /// The requested ttl.
        ttl: Duration,
        /// The longest ttl allowed.
        max_ttl: Duration,
    },
    /// The node timeout is zero or more than a quarter of the ttl.
    NodeTimeout {
        /// The requested node timeout.
        node_timeout: Duration,
        /// The ttl of the lock.
        ttl: Duration,
    },
    /// The connect timeout is zero.
    ConnectTimeoutZero,
    /// Drift, margin and smallest validity leave nothing of the ttl.
    NothingLeft {
        /// The drift: ε·T + δ.
        drift: Duration,
        /// The margin before the end of the validity.
        margin: Duration,
        /// The smallest validity of a granted lock.
        min_validity: Duration,
        /// The ttl of the lock.
        ttl: Duration,
    },
    /// The longest hold is shorter than one ttl.
    HoldTooShort {
        /// The requested longest hold.
        max_hold: Duration,
        /// The ttl of the lock.
        ttl: Duration,
    },
}

impl fmt::Display for TimingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |time: &Duration| exactly(*time);
        match self {
            Self::TtlTooShort { ttl } => {
                write!(f, "ttl ({}) must be at least {TTL_MIN:?}", shown(ttl))
            }
            Self::MaxTtlTooLong { max_ttl } => {
                write!(f, "max_ttl ({}) must be at most {}", shown(max_ttl), exactly(TTL_CEILING))
            }
            Self::TtlTooLong { ttl, max_ttl } => {
                write!(f, "ttl ({}) must not be above max_ttl ({})", shown(ttl), shown(max_ttl))
            }
            Self::NodeTimeout { node_timeout, ttl } => write!(
                f,
                "node timeout ({}) must be above zero and at most a quarter of ttl ({})",
                shown(node_timeout),
                shown(ttl)
            ),
            Self::ConnectTimeoutZero => write!(f, "connect timeout must be above zero"),
            Self::NothingLeft { drift, margin, min_validity, ttl } => write!(
                f,
                "drift ({}) plus the larger of margin ({}) and min_validity ({}) must be less than ttl ({})",
                shown(drift),
                shown(margin),
                shown(min_validity),
                shown(ttl)
            ),
            Self::HoldTooShort { max_hold, ttl } => {
                write!(f, "max_hold ({}) must be at least ttl ({})", shown(max_hold), shown(ttl))
            }
        }
    }
}

impl core::error::Error for TimingError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(ttl_ms: u64) -> TimingOptions {
        TimingOptions { ttl: Duration::from_millis(ttl_ms), ..TimingOptions::default() }
    }

    #[test]
    fn the_papers_drift_is_one_percent_and_two_milliseconds() {
        let timing = Timing::new(options(10_000)).unwrap();
        assert_eq!(timing.term(), Duration::from_millis(10_000 - 102));
        assert_eq!(timing.margin(), Duration::from_millis(200));
    }

    #[test]
    fn the_ttl_is_rounded_down_once_and_that_number_is_used() {
        let ttl = Duration::from_micros(1_000_900);
        let timing = Timing::new(TimingOptions { ttl, ..TimingOptions::default() }).unwrap();
        assert_eq!(timing.ttl_ms(), 1000);
        assert_eq!(timing.term(), Duration::from_millis(1000 - 12));
    }

    #[test]
    fn a_ttl_outside_its_bounds_is_refused_with_both_values() {
        let short = Timing::new(options(99)).unwrap_err();
        assert_eq!(format(&short), "ttl (99ms) must be at least 100ms");
        let long = Timing::new(options(31_000)).unwrap_err();
        assert_eq!(format(&long), "ttl (31s) must not be above max_ttl (30s)");
    }

    #[test]
    fn a_node_timeout_above_a_quarter_of_the_ttl_is_refused() {
        for (millis, good) in [(0, false), (1, true), (250, true), (251, false)] {
            let node_timeout = Some(Duration::from_millis(millis));
            let timing = Timing::new(TimingOptions { node_timeout, ..options(1000) });
            assert_eq!(timing.is_ok(), good, "{millis} ms");
        }
    }

    #[test]
    fn the_node_timeout_follows_ttl_and_round_trip() {
        let timing = Timing::new(options(10_000)).unwrap();
        assert_eq!(timing.node_timeout(Duration::ZERO), Duration::from_millis(50));
        let far = Duration::from_millis(80);
        assert_eq!(timing.node_timeout(far), Duration::from_millis(320));
        let short = Timing::new(options(200)).unwrap();
        assert_eq!(short.node_timeout(Duration::ZERO), Duration::from_millis(10));
        // Four round trips of 80 ms are more than a fifth of the ttl. The node timeout is no longer than that, so a
        // round of extending is over before the next one is due.
        assert_eq!(short.node_timeout(far), Duration::from_millis(40));
        assert_eq!(short.node_timeout(Duration::MAX), Duration::from_millis(40));
    }

    #[test]
    fn the_shortest_ttl_for_a_distance_is_twenty_round_trips() {
        for (round_trip, ttl) in [(400, 8000), (81, 1700), (1, 100)] {
            let (round_trip, ttl) = (Duration::from_millis(round_trip), Duration::from_millis(ttl));
            assert_eq!(shortest_ttl(round_trip), ttl);
            let timing = Timing::new(TimingOptions { ttl, ..TimingOptions::default() }).unwrap();
            assert!(timing.node_timeout(round_trip) >= ROUND_TRIPS_AWAITED * round_trip);
        }
        assert!(shortest_ttl(Duration::MAX) > TTL_CEILING);
    }

    #[test]
    fn times_that_leave_no_validity_are_refused() {
        let min_validity = Duration::from_millis(997);
        let timing = Timing::new(TimingOptions { min_validity, ..options(1000) });
        assert!(matches!(timing, Err(TimingError::NothingLeft { .. })));
        let timing = Timing::new(TimingOptions { drift_ppm: 1_000_000, ..options(1000) });
        assert!(matches!(timing, Err(TimingError::NothingLeft { .. })));
    }

    fn format(error: &TimingError) -> alloc::string::String {
        alloc::string::ToString::to_string(error)
    }
}
