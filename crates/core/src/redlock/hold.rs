//! The guard's copy of a held lock: the end of its validity, and the way in which it ended.
//!
//! The guard checks the copy with a new clock reading at each query, so it sees the end of the validity without a
//! notification. The first of guard and driver to see the end notifies the engine.

use core::time::Duration;

use crate::keys::Mode;
use crate::loss::LossCause;
use crate::redlock::vote::{HoldLimit, Validity};
use crate::time::Reading;

/// The guard's copy of a held lock.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Hold {
    validity: Validity,
    limit: Option<HoldLimit>,
    mode: Mode,
    ended: Option<Ended>,
    superseded: bool,
}

/// The way in which a hold ended. It never changes (S13).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ended {
    /// The lock was lost.
    Lost(LossCause),
    /// The holder released the lock.
    Released,
}

impl Hold {
    /// A new hold. `limit` is the limit of the automatic extension, if there is one.
    pub const fn new(validity: Validity, limit: Option<HoldLimit>, mode: Mode) -> Self {
        Self { validity, limit, mode, ended: None, superseded: false }
    }

    /// Writer or reader.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Turns a writer into a reader. Call this before the engine receives
    /// [`Event::Downgrade`](crate::Event::Downgrade), so that the guard is a reader's before any node is asked.
    /// Returns whether the engine must receive the event, which happens once while the lock is held.
    pub fn downgrade(&mut self) -> bool {
        let is_first = self.ended.is_none() && self.mode == Mode::Exclusive;
        if !mutant!(DowngradeBeforeMode) || !is_first {
            self.mode = Mode::Shared;
        }
        is_first
    }

    /// The remaining time of the lock; `None` if it has ended.
    pub fn remaining(&self, now: Reading) -> Option<Duration> {
        if self.ended.is_some() {
            return None;
        }
        Some(self.validity.remaining(now)).filter(|remaining| !remaining.is_zero())
    }

    /// Latches the end of the validity if its time has come. Returns the cause the first time. The engine must then
    /// receive [`Event::RunOut`](crate::Event::RunOut), or it would keep extending a lock without a holder.
    pub fn latch_end(&mut self, now: Reading) -> Option<LossCause> {
        if self.ended.is_some() {
            return None;
        }
        let cause = self.validity.why_over(self.limit, now)?;
        self.ended = Some(Ended::Lost(cause));
        if mutant!(EndUnreported) { None } else { Some(cause) }
    }

    /// Takes new votes from the engine. They count only if the lock is still valid now, because an expired lock never
    /// becomes valid again (S13). Returns the same as [`latch_end`](Self::latch_end).
    pub fn update(&mut self, validity: Validity, now: Reading) -> Option<LossCause> {
        if mutant!(GuardValidAgain) {
            self.ended.take_if(|ended| matches!(ended, Ended::Lost(_)));
            self.validity = validity;
            return None;
        }
        let cause = self.latch_end(now);
        if self.ended.is_none() {
            self.validity = validity;
        }
        cause
    }

    /// Latches a loss. Returns whether the lock was held until now.
    pub fn lose(&mut self, cause: LossCause) -> bool {
        let was_held = self.ended.is_none();
        self.ended.get_or_insert(Ended::Lost(cause));
        was_held
    }

    /// Ends the hold by a release. Call this before the engine receives [`Event::Release`](crate::Event::Release), so
    /// that the guard is invalid before the first byte of the release leaves (S14). Returns whether the engine must
    /// receive the event, which happens once.
    pub fn release(&mut self) -> bool {
        let is_first = !self.is_released();
        if !mutant!(ReleaseBeforeInvalid) {
            self.ended = Some(Ended::Released);
        }
        is_first
    }

    /// Notes that another client has a larger fencing token. Returns whether this is new.
    pub const fn supersede(&mut self) -> bool {
        !core::mem::replace(&mut self.superseded, true)
    }

    /// The votes that the guard has from the engine, and the validity that follows from them.
    pub const fn validity(&self) -> &Validity {
        &self.validity
    }

    /// How the hold ended. `None` does not mean that the lock is valid now: only [`latch_end`](Self::latch_end) notes
    /// an expiry.
    pub const fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// Whether the holder released the lock.
    pub const fn is_released(&self) -> bool {
        matches!(self.ended, Some(Ended::Released))
    }

    /// Whether another client has a larger fencing token.
    pub const fn is_superseded(&self) -> bool {
        self.superseded
    }

    /// Moves all times so that `base` becomes zero; see [`Engine::rebased`](crate::Engine::rebased).
    pub fn rebase(&mut self, base: Reading) {
        self.validity = self.validity.rebased(base);
        if let Some(HoldLimit { until, .. }) = &mut self.limit {
            *until = until.shifted(base);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redlock::quorum::Quorum;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(ms: i64) -> Reading {
        Reading::new(ms * 1_000_000, ms * 1_000_000)
    }

    /// The validity of one vote that was requested at this time.
    fn validity(sent: Reading) -> Validity {
        Validity::new([Some(sent)], Quorum::majority(1).unwrap(), SECOND, Duration::ZERO)
    }

    fn hold() -> Hold {
        Hold::new(validity(at(0)), None, Mode::Exclusive)
    }

    #[test]
    fn the_end_is_latched_once() {
        let mut hold = hold();
        assert_eq!(
            (hold.remaining(at(400)), hold.latch_end(at(999))),
            (Some(SECOND * 3 / 5), None)
        );
        assert_eq!(hold.remaining(at(1000)), None);
        assert_eq!(hold.latch_end(at(1000)), Some(LossCause::Expired));
        assert_eq!(hold.latch_end(at(1000)), None, "the engine is notified once");
        assert_eq!(hold.remaining(at(0)), None, "even if the clock is set back");
    }

    #[test]
    fn votes_after_the_end_do_not_revive_the_lock() {
        let mut hold = hold();
        assert_eq!(hold.update(validity(at(500)), at(600)), None);
        assert_eq!(hold.remaining(at(1000)), Some(SECOND / 2));
        // The requests for these votes were sent in time, but the votes arrive after the end of the validity.
        assert_eq!(hold.update(validity(at(1400)), at(1600)), Some(LossCause::Expired));
        assert_eq!(hold.update(validity(at(1600)), at(1600)), None);
        assert!(!hold.lose(LossCause::KeyGone));
        assert_eq!(
            (hold.remaining(at(1600)), hold.ended()),
            (None, Some(Ended::Lost(LossCause::Expired)))
        );
    }

    #[test]
    fn a_release_is_reported_once_also_after_a_loss() {
        let mut hold = hold();
        assert!(hold.lose(LossCause::KeyGone));
        assert!(hold.release() && hold.is_released());
        assert!(!hold.release() && !hold.lose(LossCause::Expired) && hold.is_released());
    }

    #[test]
    fn each_cause_is_recognised() {
        let limit = HoldLimit { ttl: SECOND, until: at(1900).boot() };
        let over = |limit, now| Hold::new(validity(at(0)), limit, Mode::Exclusive).latch_end(now);
        assert_eq!(over(Some(limit), at(1000)), Some(LossCause::HoldLimit));
        let later = HoldLimit { until: at(2000).boot(), ..limit };
        assert_eq!(
            over(Some(later), at(1000)),
            Some(LossCause::Expired),
            "an extension was possible"
        );
        let stepped = Reading::new(at(500).boot().as_nanos(), at(5000).real_ns());
        assert_eq!(over(Some(later), stepped), Some(LossCause::ClockJumped));
    }

    #[test]
    fn a_larger_fence_is_new_once() {
        let mut hold = hold();
        assert!(hold.supersede() && hold.is_superseded() && !hold.supersede());
    }

    #[test]
    fn with_another_origin_of_time_it_is_the_same() {
        let limit = HoldLimit { ttl: SECOND, until: at(1900).boot() };
        let mut hold = Hold::new(validity(at(300)), Some(limit), Mode::Exclusive);
        hold.rebase(at(300));
        let limit = HoldLimit { ttl: SECOND, until: at(1600).boot() };
        assert_eq!(hold, Hold::new(validity(at(0)), Some(limit), Mode::Exclusive));
    }
}
