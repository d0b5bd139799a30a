//! The times of one lock and the relations between them, checked once, here.

use core::fmt;
use core::num::NonZeroU64;
use core::time::Duration;

use crate::shown::exactly;
use crate::time::nanos;

/// The shortest ttl there is (invariant S16): below it drift, margin and a round trip eat it up.
pub const TTL_MIN: Duration = Duration::from_millis(100);

/// No ttl is longer than this: a crashed holder would block others for as long, and a node that was
/// restarted would have to stay down for as long.
pub const TTL_CEILING: Duration = Duration::from_secs(24 * 3600);

/// What a caller may choose; [`Timing::new`] checks how the values relate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TimingOptions {
    /// How long a node keeps the key; rounded down to whole milliseconds.
    pub ttl: Duration,
    /// The longest ttl that any client of these nodes uses.
    pub max_ttl: Duration,
    /// The clock rate error ε that is allowed for, in parts per million of the ttl.
    pub drift_ppm: u32,
    /// The clock step and rounding error δ that is allowed for.
    pub drift_constant: Duration,
    /// How long before the end of its validity a lock is given up; `None`: max(2 % of ttl, 5 ms).
    pub margin: Option<Duration>,
    /// A lock with less validity left than this is not handed out.
    pub min_validity: Duration,
    /// How long to wait for a node's answer; `None`: follows the ttl and the round trip.
    pub node_timeout: Option<Duration>,
    /// How long a connection may take to be made before its node counts as failed.
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
            connect_timeout: Duration::from_secs(1),
        }
    }
}

/// The times of one lock. Every value of this type keeps the relations of the protocol.
///
/// Each lock that is held keeps them, so they are plain numbers, half as large as a [`Duration`].
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
    /// Checks the options against each other; refuses, never clamps.
    ///
    /// # Errors
    /// The first relation that does not hold, with both values.
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
        // Rounded down once; this number is sent, and this number is reckoned with.
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

    /// The ttl in whole milliseconds, as it is sent.
    pub const fn ttl_ms(&self) -> u64 {
        self.ttl_ms
    }

    /// The ttl as a duration.
    pub const fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }

    /// How long a vote counts from the moment before it was asked for: T − (ε·T + δ).
    pub const fn term(&self) -> Duration {
        Duration::from_nanos(self.term_ns)
    }

    /// How long before the end of its validity a lock is given up as lost.
    pub const fn margin(&self) -> Duration {
        Duration::from_nanos(self.margin_ns)
    }

    /// A lock with less validity left than this is not handed out.
    pub const fn min_validity(&self) -> Duration {
        Duration::from_nanos(self.min_validity_ns)
    }

    /// How long a connection may take to be made.
    pub const fn connect_timeout(&self) -> Duration {
        Duration::from_nanos(self.connect_timeout_ns)
    }

    /// How long to wait for a node's answer, given the round trip observed so far.
    ///
    /// As configured; otherwise min(5 % of ttl, 50 ms), but at least four round trips (a node far
    /// away is not a dead node) and at most a quarter of the ttl.
    pub fn node_timeout(&self, round_trip: Duration) -> Duration {
        match self.node_timeout_ns {
            Some(configured) => Duration::from_nanos(configured.get()),
            None => (self.ttl() / 20)
                .min(Duration::from_millis(50))
                .max(round_trip.saturating_mul(4))
                .min(self.ttl() / 4),
        }
    }

    /// Time between two automatic extensions: a third of the ttl, so that one may fail.
    pub fn extend_every(&self) -> Duration {
        self.ttl() / 3
    }

    /// Time until a failed automatic extension is tried again.
    pub fn extend_retry(&self) -> Duration {
        self.ttl() / 10
    }
}

fn parts_per_million(duration: Duration, ppm: u32) -> Duration {
    let nanos = duration.as_nanos().saturating_mul(ppm.into()).div_ceil(1_000_000);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Two times that do not go together. Nothing was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TimingError {
    /// The ttl is below [`TTL_MIN`].
    TtlTooShort {
        /// The ttl asked for.
        ttl: Duration,
    },
    /// The longest ttl is above [`TTL_CEILING`].
    MaxTtlTooLong {
        /// The longest ttl asked for.
        max_ttl: Duration,
    },
    /// The ttl is above the longest that the clients of these nodes have agreed on.
    TtlTooLong {
        /// The ttl asked for.
        ttl: Duration,
        /// The longest ttl allowed.
        max_ttl: Duration,
    },
    /// The node timeout is zero or more than a quarter of the ttl.
    NodeTimeout {
        /// The node timeout asked for.
        node_timeout: Duration,
        /// The ttl it goes with.
        ttl: Duration,
    },
    /// The bound for making a connection is zero.
    ConnectTimeoutZero,
    /// Drift, margin and smallest validity leave nothing of the ttl.
    NothingLeft {
        /// The drift: ε·T + δ.
        drift: Duration,
        /// The margin before the end.
        margin: Duration,
        /// The smallest validity to hand out.
        min_validity: Duration,
        /// The ttl of the lock.
        ttl: Duration,
    },
    /// The longest hold is shorter than one ttl.
    HoldTooShort {
        /// The longest hold asked for.
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
        assert_eq!(short.node_timeout(far), Duration::from_millis(50));
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
