//! The options of a call.

use std::sync::Arc;
use std::time::Duration;

use quorlock_core::{Delay, Retry, Timing, TimingError, TimingOptions};

use crate::error::InvalidRequest;

/// The options of a call, and the client's defaults for them.
#[derive(Clone, Debug)]
pub(crate) struct CallDefaults {
    pub(crate) timing: TimingOptions,
    /// `None` waits without a bound.
    pub(crate) wait: Option<Duration>,
    pub(crate) retry: Retry,
    pub(crate) automatic: bool,
    pub(crate) keeps_on_loss: bool,
    pub(crate) max_hold: Duration,
    pub(crate) owner: Arc<str>,
    pub(crate) fenced: bool,
}

/// The longest description of an owner, in bytes.
pub const OWNER_BYTES_MAX: usize = 256;

impl CallDefaults {
    pub(crate) fn new() -> Self {
        Self {
            timing: TimingOptions::default(),
            wait: Some(Duration::from_secs(10)),
            retry: Retry::default(),
            automatic: true,
            keeps_on_loss: false,
            max_hold: crate::env::DEFAULT_MAX_HOLD,
            owner: "".into(),
            fenced: false,
        }
    }

    /// Checks that the options fit each other.
    pub(crate) fn check(&self) -> Result<Timing, InvalidRequest> {
        let timing = Timing::new(self.timing)?;
        if self.max_hold < timing.ttl() {
            let (max_hold, ttl) = (self.max_hold, timing.ttl());
            return Err(TimingError::HoldTooShort { max_hold, ttl }.into());
        }
        if self.owner.len() > OWNER_BYTES_MAX || self.owner.chars().any(char::is_control) {
            return Err(InvalidRequest::Owner { max: OWNER_BYTES_MAX });
        }
        let (min, max) = match self.retry.delay {
            Delay::Between { min, max } => (min, max),
            Delay::Adaptive { ceiling } => (Duration::ZERO, ceiling),
        };
        if min > max || max.is_zero() || self.retry.attempts_max == Some(0) {
            return Err(InvalidRequest::Retry { min, max });
        }
        Ok(timing)
    }
}
