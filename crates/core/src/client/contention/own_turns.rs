//! The back-off of a process after its own release.

use core::time::Duration;

use crate::time::{BootTime, Reading};

/// Number of consecutive acquisitions after which a process without known rivals backs off, because it cannot see
/// processes that wait.
const TAKES_MAX: u32 = 128;

/// Duration of consecutive acquisitions after which a process without known rivals backs off, because it cannot see
/// processes that wait.
const TAKES_FOR: Duration = Duration::from_millis(100);

/// Longest addition to the back-off of a process that keeps taking the lock from its rivals. The addition grows with
/// the time that the process held the lock.
const LONGER_MAX: Duration = Duration::from_millis(8);

/// The latest turns of this process with a lock, and the time at which it may attempt again.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct OwnTurns {
    /// Number of consecutive acquisitions: this process acquired again before another process could.
    takes: u32,
    first_take: Option<BootTime>,
    pub(super) resume_at: Option<BootTime>,
    /// Number of additions to the back-off since a rival was last seen; at most two. Each addition doubles the next.
    pub(super) retakes: u32,
}

impl OwnTurns {
    /// Notes a release, after which the usual back-off is `stay_away`.
    pub(super) fn note_release(
        &mut self,
        (had_since, was_long): (BootTime, bool),
        stay_away: Duration,
        knows_rivals: bool,
        now: Reading,
    ) {
        let in_a_row = self.resume_at.is_none_or(|at| had_since <= at.after(2 * stay_away));
        if !in_a_row {
            (self.takes, self.first_take) = (0, None);
        }
        self.takes += 1;
        let first_take = *self.first_take.get_or_insert(had_since);
        let long = first_take.after(TAKES_FOR).has_come(now);
        if was_long || knows_rivals || long || self.takes >= TAKES_MAX {
            (self.takes, self.first_take) = (0, None);
            let longer =
                if knows_rivals { self.stay_longer(had_since, now) } else { Duration::ZERO };
            self.resume_at = Some(now.after(stay_away + longer));
        } else {
            // No back-off is needed. If the next grant comes soon after this time, the next release counts it as a
            // consecutive acquisition.
            self.resume_at = Some(now.boot());
        }
    }

    /// The addition to the back-off: a part of the time that this process held the lock, doubled after each consecutive
    /// acquisition. A rival that wakes late or pauses for long misses the free lock, and its next pauses are
    /// longer. The holder cannot see this, so it leaves the rival more time after each acquisition.
    fn stay_longer(&mut self, had_since: BootTime, now: Reading) -> Duration {
        let held = Duration::from_nanos(now.boot().as_nanos().abs_diff(had_since.as_nanos()));
        let longer = (held / 4) * (1 << self.retakes);
        self.retakes = (self.retakes + 1).min(2);
        longer.min(LONGER_MAX)
    }

    pub(super) fn shift(&mut self, base: Reading) {
        self.first_take = self.first_take.map(|at| at.shifted(base));
        self.resume_at = self.resume_at.map(|at| at.shifted(base));
    }
}
