//! How much a server may push.

use quorlock_core::{Failure, FailureKind};
use tokio::time::Instant;

/// How much a server may still push. A server pushes once for each watched key, and when all data is deleted. The
/// client closes the connection of a server that pushes far more.
#[derive(Debug)]
pub(super) struct Allowance {
    left: u64,
    since: Instant,
}

impl Allowance {
    /// The most pushes that a server may send at once, if each has less than a kilobyte. A longer push counts more.
    pub(super) const MAX: u64 = 65_536;

    /// Further pushes per second that are allowed without watched keys.
    const PER_SECOND: u64 = 1024;

    pub(super) fn new(now: Instant) -> Self {
        Self { left: Self::MAX, since: now }
    }

    pub(super) fn grant(&mut self, more: u64) {
        self.left = self.left.saturating_add(more).min(Self::MAX);
    }

    pub(super) fn take(&mut self, cost: u64, now: Instant) -> Result<(), Failure> {
        let seconds = now.duration_since(self.since).as_secs();
        if seconds > 0 {
            self.grant(seconds.saturating_mul(Self::PER_SECOND));
            self.since = now;
        }
        match self.left.checked_sub(cost) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(Failure::new(FailureKind::Flooding).with_detail(format!(
                "it pushed {} messages more than it was asked for",
                Self::MAX
            ))),
        }
    }
}
