//! A held lock over time: votes that are raised or proved gone, extension, and the latched loss.
//!
//! Two clocks tick in a lease and neither knows of the other: the extension, every third of the
//! ttl, and the loss deadline, `margin` before the validity ends. If extending fails, in whatever
//! way, the loss comes at its time; if anything proves too many votes gone, it comes at once.
//! Once lost, a lease stays lost (S13): no answer can raise it any more.

mod extending;
mod handover;
mod votes;

use alloc::boxed::Box;
use core::time::Duration;

use self::extending::Extending;
use self::votes::HeldVotes;
use crate::ids::LockId;
use crate::keys::{Entry, Keys, Mode};
use crate::loss::LossCause;
use crate::redlock::acquire::Attempt;
use crate::redlock::extend::Extension;
use crate::redlock::fence::Fenced;
use crate::redlock::hold::Hold;
use crate::redlock::quorum::{NodeSet, Quorum};
use crate::redlock::release::Release;
use crate::redlock::vote::{HoldLimit, Validity};
use crate::request::Request;
use crate::time::{BootTime, Reading, nanos};
use crate::timing::Timing;
use crate::token::Token;

/// The core's record of a held lock.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Lease {
    /// Time under which the deadline index has this record: its deadline or earlier.
    pub(crate) wake: Option<BootTime>,
    entry: Entry,
    token: Token,
    quorum: Quorum,
    timing: Timing,
    votes: HeldVotes,
    guard: GuardTerms,
    tenure: Tenure,
    acquire_round: u32,
    round: u32,
    extending: Extending,
    confirmation: Confirmation,
    /// From this round on it is a reader's, if it was a writer's before.
    downgraded_in: Option<u32>,
    lost: Option<LossCause>,
    /// Boxed, because most locks have no fence.
    fenced: Option<Box<Fenced>>,
}

/// What the guard that has the lock now may do with it; another's after a hand-over.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct GuardTerms {
    /// Whose guard it is.
    holder: LockId,
    /// It is extended automatically.
    automatic: bool,
    /// After a loss the nodes are asked to delete nothing until the holder gives the lock back.
    keeps_on_loss: bool,
    /// As long as the guard may hold it.
    hold_until: BootTime,
}

/// How the nodes confirmed the latest round of extending.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) enum Confirmation {
    /// All nodes confirmed it. The same before the first round.
    #[default]
    Full,
    /// A quorum confirmed it, and not all nodes.
    Quorum,
    /// No quorum confirmed it.
    None,
}

/// This process's time with a lock, from the attempt on, over all hand-overs.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Tenure {
    began: Reading,
    /// As long as anybody may hold it under this token.
    token_until: BootTime,
    handover_count: u32,
    /// As of the attempt: the round trip, and a random word that it has not used.
    round_trip_ns: u64,
    jitter: u64,
}

impl Lease {
    /// The lease that a successful attempt begins.
    pub(crate) fn begin(
        attempt: Attempt,
        request: &Request,
        validity: Validity,
        (holder, token, round): (LockId, Token, u32),
        (round_trip, jitter): (Duration, u64),
        now: Reading,
    ) -> Self {
        let timing = request.timing;
        let guard = GuardTerms::new(holder, request, now);
        let reached = attempt.reached();
        let (quorum, entry, fence_request) = attempt.into_parts();
        Self {
            wake: None,
            entry,
            token,
            quorum,
            timing,
            votes: HeldVotes::new(validity, reached),
            acquire_round: round,
            round,
            tenure: Tenure {
                began: now,
                token_until: guard.hold_until,
                handover_count: 0,
                round_trip_ns: nanos(round_trip),
                jitter,
            },
            extending: Extending::begin(guard.automatic.then(|| now.after(timing.extend_every()))),
            guard,
            confirmation: Confirmation::default(),
            downgraded_in: None,
            lost: None,
            fenced: fence_request.map(|fence_request| Box::new(Fenced::new(*fence_request))),
        }
    }

    /// The lock's keys.
    pub(crate) const fn keys(&self) -> &Keys {
        &self.entry.keys
    }

    /// Whom it excludes.
    pub(crate) const fn mode(&self) -> Mode {
        self.entry.mode
    }

    /// Whose guard holds it.
    pub(crate) const fn holder(&self) -> LockId {
        self.guard.holder
    }

    /// The token under which the nodes keep it, and how often it was handed over.
    pub(crate) const fn token_and_handovers(&self) -> (Token, u32) {
        (self.token, self.tenure.handover_count)
    }

    /// When this process got it.
    pub(crate) const fn began(&self) -> Reading {
        self.tenure.began
    }

    /// The round trip as of the attempt, and a random word that it has not used.
    pub(crate) const fn pace(&self) -> (Duration, u64) {
        (self.round_trip(), self.tenure.jitter)
    }

    const fn round_trip(&self) -> Duration {
        Duration::from_nanos(self.tenure.round_trip_ns)
    }

    /// What the guard that has it knows of it.
    pub(crate) fn hold(&self) -> Hold {
        Hold::new(self.votes.validity.clone(), self.automatic_limit(), self.mode())
    }

    /// The bound of an extension.
    pub(crate) fn limit(&self) -> HoldLimit {
        HoldLimit { ttl: self.timing.ttl(), until: self.guard.hold_until }
    }

    fn automatic_limit(&self) -> Option<HoldLimit> {
        self.guard.automatic.then(|| self.limit())
    }

    /// The lock's fence, if it has one.
    pub(crate) fn fence(&self) -> Option<u64> {
        self.fenced.as_ref().map(|fenced| fenced.fence)
    }

    /// The votes held.
    pub(crate) const fn validity(&self) -> &Validity {
        &self.votes.validity
    }

    /// Why the lease is lost, if it is.
    pub(crate) const fn lost(&self) -> Option<LossCause> {
        self.lost
    }

    /// The round of the attempt that began this lease.
    pub(crate) const fn acquire_round(&self) -> u32 {
        self.acquire_round
    }

    /// The cause if the passing of time alone ends the lease now.
    pub(crate) fn due_loss(&self, now: Reading) -> Option<LossCause> {
        if self.lost.is_some() {
            return None;
        }
        self.votes.validity.why_over(self.automatic_limit(), now)
    }

    /// Why the lease must be given up now, if it must, after a node's answer has taken its vote away.
    /// What was due by time was latched before the answer was looked at, so this is the answer's doing.
    pub(crate) fn proved_loss(&self, now: Reading) -> Option<LossCause> {
        if self.lost.is_some() || self.votes.validity.lasts(Duration::ZERO, now) {
            return None;
        }
        let overwritten = !self.votes.overwritten.is_empty();
        Some(if overwritten { LossCause::KeyOverwritten } else { LossCause::KeyGone })
    }

    /// After a loss nothing is released until the holder gives the lock back.
    pub(crate) const fn keeps_on_loss(&self) -> bool {
        self.guard.keeps_on_loss
    }

    /// Latches the loss; terminal.
    pub(crate) fn lose(&mut self, cause: LossCause) {
        debug_assert!(self.lost.is_none(), "a lease is lost once");
        self.lost.get_or_insert(cause);
        self.extending = Extending::default();
        self.confirmation = Confirmation::default();
    }

    /// The release on every node that ends this lease. With `report`, its outcome is told: by the
    /// votes as they are known now, and by the time at which it was given back.
    pub(crate) fn end(&self, report: bool, now: Reading) -> Release {
        let called = self.handover().map_or(now, |handover| handover.called);
        let mut release = Release::of_lease(
            self.entry.clone(),
            &self.timing,
            self.votes.reached,
            (&self.votes.validity, called),
            report.then(|| (self.guard.holder, self.node_timeout())),
            (self.quorum, now),
        )
        .of_attempt(self.acquire_round);
        if self.lost.is_some() {
            release.mark_lost();
        }
        release
    }

    /// All nodes, whether or not they have granted it.
    pub(crate) fn nodes(&self) -> NodeSet {
        self.quorum.all()
    }

    /// The number for the next commands of this lock.
    pub(crate) fn next_round(&mut self) -> u32 {
        self.round += 1;
        self.round
    }

    /// When time next changes something.
    pub(crate) fn deadline(&self, now: Reading) -> Option<BootTime> {
        if self.lost.is_some() {
            return None;
        }
        let round = self.extension().map(Extension::deadline);
        let handover = self.handover().and_then(|handover| handover.write_back.deadline());
        match [self.extending.at, round, handover].into_iter().flatten().min() {
            Some(at) if self.votes.validity.lasts(at.remaining(now), now) => Some(at),
            _ => Some(now.after(self.votes.validity.remaining(now))),
        }
    }

    pub(crate) fn renumber(&mut self, to: impl Fn(LockId) -> LockId) {
        self.guard.holder = to(self.guard.holder);
    }

    pub(crate) fn shift(&mut self, base: Reading) {
        self.wake = self.wake.map(|at| at.shifted(base));
        self.votes.shift(base);
        self.guard.hold_until = self.guard.hold_until.shifted(base);
        self.tenure.token_until = self.tenure.token_until.shifted(base);
        self.tenure.began = self.tenure.began.shifted(base);
        self.extending.shift(base);
        if let Some(fenced) = &mut self.fenced {
            fenced.shift(base);
        }
    }

    fn node_timeout(&self) -> Duration {
        self.timing.node_timeout(self.round_trip())
    }
}

impl GuardTerms {
    fn new(holder: LockId, request: &Request, now: Reading) -> Self {
        let Request { automatic, keeps_on_loss, max_hold, .. } = *request;
        Self { holder, automatic, keeps_on_loss, hold_until: now.after(max_hold) }
    }
}
