//! What a guard knows of its lock: until when it is valid, and how it has ended.
//!
//! The guard asks it at every question, with a reading made for that question. So nobody has to announce the end
//! of the validity; the side that sees it tells the engine.

use core::time::Duration;

use crate::keys::Mode;
use crate::loss::LossCause;
use crate::redlock::vote::{HoldLimit, Validity};
use crate::time::Reading;

/// The guard's side of a held lock.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Hold {
    validity: Validity,
    limit: Option<HoldLimit>,
    mode: Mode,
    ended: Option<Ended>,
    superseded: bool,
}

/// How a hold ends; for ever (S13).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ended {
    /// It was lost, for this reason.
    Lost(LossCause),
    /// It was given back.
    Released,
}

impl Hold {
    /// A hold that was just granted. `limit`: of the automatic extension, if there is any.
    pub const fn new(validity: Validity, limit: Option<HoldLimit>, mode: Mode) -> Self {
        Self { validity, limit, mode, ended: None, superseded: false }
    }

    /// Whom the lock excludes.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// A writer becomes a reader: call this before the engine is told, so that nobody takes the lock for a writer's
    /// when the first byte leaves. Returns whether the engine is to be told; it is once, while the lock is held.
    pub fn downgrade(&mut self) -> bool {
        let is_first = self.ended.is_none() && self.mode == Mode::Exclusive;
        if !mutant!(DowngradeBeforeMode) || !is_first {
            self.mode = Mode::Shared;
        }
        is_first
    }

    /// For how long the lock is held from now; `None`: it has ended, or is over now.
    pub fn remaining(&self, now: Reading) -> Option<Duration> {
        if self.ended.is_some() {
            return None;
        }
        Some(self.validity.remaining(now)).filter(|remaining| !remaining.is_zero())
    }

    /// Looks whether the validity is over, and latches that. Returns the cause if that is seen only now: then the
    /// engine is to be told ([`Event::RunOut`](crate::Event::RunOut)), or it would go on extending for nobody.
    pub fn look(&mut self, now: Reading) -> Option<LossCause> {
        if self.ended.is_some() {
            return None;
        }
        let cause = self.validity.why_over(self.limit, now)?;
        self.ended = Some(Ended::Lost(cause));
        if mutant!(EndUntold) { None } else { Some(cause) }
    }

    /// The engine has other votes. They count only while the lock is held by the clock as it is now: what was over
    /// is never valid again (S13). Returns what [`look`](Self::look) does.
    pub fn update(&mut self, validity: Validity, now: Reading) -> Option<LossCause> {
        if mutant!(GuardValidAgain) {
            self.ended.take_if(|ended| matches!(ended, Ended::Lost(_)));
            self.validity = validity;
            return None;
        }
        let cause = self.look(now);
        if self.ended.is_none() {
            self.validity = validity;
        }
        cause
    }

    /// The lock is lost. Returns whether it was held until now.
    pub fn lose(&mut self, cause: LossCause) -> bool {
        let was_held = self.ended.is_none();
        self.ended.get_or_insert(Ended::Lost(cause));
        was_held
    }

    /// The lock is given back: call this before the engine is told, so that the guard is invalid before the
    /// first byte of a release can leave (S14). Returns whether the engine is to be told; it is once.
    pub fn release(&mut self) -> bool {
        let is_first = !self.is_released();
        if !mutant!(ReleaseBeforeInvalid) {
            self.ended = Some(Ended::Released);
        }
        is_first
    }

    /// Somebody has been given a larger fence. Returns whether that is news.
    pub const fn supersede(&mut self) -> bool {
        !core::mem::replace(&mut self.superseded, true)
    }

    /// The votes, as they are known.
    pub const fn validity(&self) -> &Validity {
        &self.validity
    }

    /// How it has ended, as far as anybody has looked.
    pub const fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// Whether it has been given back.
    pub const fn is_released(&self) -> bool {
        matches!(self.ended, Some(Ended::Released))
    }

    /// Whether somebody has been given a larger fence.
    pub const fn is_superseded(&self) -> bool {
        self.superseded
    }

    /// The same with `base` as the origin of time; see [`Engine::rebased`](crate::Engine::rebased).
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

    /// Of a vote that was asked for at this time.
    fn validity(sent: Reading) -> Validity {
        Validity::new([Some(sent)], Quorum::majority(1).unwrap(), SECOND, Duration::ZERO)
    }

    fn hold() -> Hold {
        Hold::new(validity(at(0)), None, Mode::Exclusive)
    }

    #[test]
    fn the_end_is_seen_once_and_for_all() {
        let mut hold = hold();
        assert_eq!((hold.remaining(at(400)), hold.look(at(999))), (Some(SECOND * 3 / 5), None));
        assert_eq!(hold.remaining(at(1000)), None);
        assert_eq!(hold.look(at(1000)), Some(LossCause::Expired));
        assert_eq!(hold.look(at(1000)), None, "the engine is told once");
        assert_eq!(hold.remaining(at(0)), None, "whatever the clock says later");
    }

    #[test]
    fn votes_told_after_the_end_do_not_bring_the_lock_back() {
        let mut hold = hold();
        assert_eq!(hold.update(validity(at(500)), at(600)), None);
        assert_eq!(hold.remaining(at(1000)), Some(SECOND / 2));
        // They were asked for in time; but the guard may have been asked meanwhile, and was over.
        assert_eq!(hold.update(validity(at(1400)), at(1600)), Some(LossCause::Expired));
        assert_eq!(hold.update(validity(at(1600)), at(1600)), None);
        assert!(!hold.lose(LossCause::KeyGone));
        assert_eq!(
            (hold.remaining(at(1600)), hold.ended()),
            (None, Some(Ended::Lost(LossCause::Expired)))
        );
    }

    #[test]
    fn a_release_is_told_once_also_after_a_loss() {
        let mut hold = hold();
        assert!(hold.lose(LossCause::KeyGone));
        assert!(hold.release() && hold.is_released());
        assert!(!hold.release() && !hold.lose(LossCause::Expired) && hold.is_released());
    }

    #[test]
    fn the_cause_is_told_apart() {
        let limit = HoldLimit { ttl: SECOND, until: at(1900).boot() };
        let over = |limit, now| Hold::new(validity(at(0)), limit, Mode::Exclusive).look(now);
        assert_eq!(over(Some(limit), at(1000)), Some(LossCause::HoldLimit));
        let later = HoldLimit { until: at(2000).boot(), ..limit };
        assert_eq!(over(Some(later), at(1000)), Some(LossCause::Expired), "it could be extended");
        let stepped = Reading::new(at(500).boot().as_nanos(), at(5000).real_ns());
        assert_eq!(over(Some(later), stepped), Some(LossCause::ClockJumped));
    }

    #[test]
    fn a_larger_fence_is_news_once() {
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
