//! A held lock over time: its votes (answers prolong them or prove them gone), its extensions, and its final loss.
//!
//! A held lock has two independent timers: the next extension, every third of the ttl, and the loss, `margin` before
//! the end of the validity. If extensions fail, for any reason, the loss timer ends the lock. If answers prove that too
//! many votes are gone, the lock ends at once. A lost lock stays lost (S13), and no answer raises its votes.

mod detaching;
mod extending;
mod handover;
mod votes;

use alloc::boxed::Box;
use core::time::Duration;

pub use self::detaching::Detached;
use self::detaching::Detaching;
use self::extending::Extending;
use self::votes::HeldVotes;
use crate::client::contention::PastTurn;
use crate::ids::LockId;
use crate::keys::{Entry, Keys, Mode};
use crate::loss::LossCause;
use crate::redlock::acquire::Attempt;
use crate::redlock::fence::Fenced;
use crate::redlock::hold::Hold;
use crate::redlock::quorum::{NodeSet, Quorum};
use crate::redlock::release::{CONFIRM_WITHIN, Release};
use crate::redlock::vote::{HoldLimit, Validity};
use crate::request::Request;
use crate::time::{BootTime, Reading, nanos};
use crate::timing::Timing;
use crate::token::Token;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct HeldLock {
    /// Time of this record's entry in the engine's deadline index: at or before its deadline. `None` without an entry.
    pub(crate) wake: Option<BootTime>,
    /// Last time at which a client of another library, which polls, held one of the keys. In gaps (periods left to such
    /// clients) the lock is not handed over. `None` if none was seen, or the call leaves no gaps.
    pub(crate) foreign_seen: Option<BootTime>,
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
    /// The round of the downgrade from writer to reader; `None` without a downgrade.
    downgraded_in: Option<u32>,
    lost: Option<LossCause>,
    detaching: Option<Detaching>,
    /// Boxed because most locks have no fencing token.
    fenced: Option<Box<Fenced>>,
}

/// The conditions under which the present guard holds the lock. A hand-over replaces them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct GuardTerms {
    holder: LockId,
    automatic: bool,
    keeps_on_loss: bool,
    /// Time beyond which no extension reaches (`max_hold`).
    hold_until: BootTime,
}

/// How the nodes confirmed the latest round of extending.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) enum Confirmation {
    /// All nodes confirmed the round, or no round has begun.
    #[default]
    Full,
    /// A quorum confirmed the round, and not all nodes.
    Quorum,
    /// No quorum confirmed the round.
    None,
}

/// The period in which this process has held the lock, over all hand-overs.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Tenure {
    began: Reading,
    /// No guard holds the lock under this token beyond this time: the `max_hold` of the first guard.
    token_until: BootTime,
    handover_count: u32,
    /// Whether the lock has a place in the local queue. A lock that was attached has none.
    is_queued: bool,
    /// Round trip to a quorum at the time of the attempt, in nanoseconds.
    round_trip_ns: u64,
    /// Random word of the attempt. The back-off after the release uses it.
    jitter: u64,
}

impl HeldLock {
    pub(crate) fn begin(
        attempt: &mut Attempt,
        request: &Request,
        validity: Validity,
        (holder, token, round): (LockId, Token, u32),
        (round_trip, jitter): (Duration, u64),
        now: Reading,
    ) -> Self {
        let timing = request.timing;
        let guard = GuardTerms::new(holder, request, now);
        let (reached, unanswered) = (attempt.reached(), attempt.unanswered());
        let (quorum, entry, fence_request) = attempt.take_parts();
        Self {
            wake: None,
            foreign_seen: None,
            entry,
            token,
            quorum,
            timing,
            votes: HeldVotes::new(validity, reached, unanswered, request.attaches()),
            acquire_round: round,
            round,
            tenure: Tenure {
                began: now,
                token_until: guard.hold_until,
                handover_count: 0,
                is_queued: !request.attaches(),
                round_trip_ns: nanos(round_trip),
                jitter,
            },
            extending: Extending::begin(guard.automatic.then(|| now.after(timing.extend_every()))),
            guard,
            confirmation: Confirmation::default(),
            downgraded_in: None,
            lost: None,
            detaching: None,
            fenced: fence_request.map(|fence_request| Box::new(Fenced::new(*fence_request))),
        }
    }

    pub(crate) const fn keys(&self) -> &Keys {
        &self.entry.keys
    }

    pub(crate) const fn mode(&self) -> Mode {
        self.entry.mode
    }

    pub(crate) const fn is_queued(&self) -> bool {
        self.tenure.is_queued
    }

    pub(crate) const fn holder(&self) -> LockId {
        self.guard.holder
    }

    /// The token and the number of hand-overs. Together they identify a guard (S24).
    pub(crate) const fn token_and_handovers(&self) -> (Token, u32) {
        (self.token, self.tenure.handover_count)
    }

    /// Whether this process backs off after the release, in favour of other processes. It does so only after an
    /// exclusive lock: a reader blocks only writers, and a waiting writer keeps new readers out by an intent.
    pub(crate) fn backs_off(&self) -> bool {
        self.lost.is_none() && self.mode() == Mode::Exclusive
    }

    /// The data about this process's hold of the lock from which the back-off after the release is computed.
    pub(crate) fn past_turn(&self, now: Reading) -> PastTurn {
        let had = (self.tenure.began.boot(), self.is_exhausted(now));
        (had, (self.round_trip(), self.tenure.jitter))
    }

    const fn round_trip(&self) -> Duration {
        Duration::from_nanos(self.tenure.round_trip_ns)
    }

    pub(crate) fn hold(&self) -> Hold {
        Hold::new(self.votes.validity.clone(), self.automatic_limit(), self.mode())
    }

    pub(crate) const fn timing(&self) -> &Timing {
        &self.timing
    }

    pub(crate) fn limit(&self) -> HoldLimit {
        HoldLimit { ttl: self.timing.ttl(), until: self.guard.hold_until }
    }

    fn automatic_limit(&self) -> Option<HoldLimit> {
        self.guard.automatic.then(|| self.limit())
    }

    pub(crate) fn fence(&self) -> Option<u64> {
        self.fenced.as_ref().map(|fenced| fenced.fence)
    }

    pub(crate) const fn validity(&self) -> &Validity {
        &self.votes.validity
    }

    pub(crate) const fn lost(&self) -> Option<LossCause> {
        self.lost
    }

    pub(crate) const fn acquire_round(&self) -> u32 {
        self.acquire_round
    }

    /// The cause if the passing of time alone ends the lock now.
    pub(crate) fn due_loss(&self, now: Reading) -> Option<LossCause> {
        if self.lost.is_some() {
            return None;
        }
        self.votes.validity.why_over(self.automatic_limit(), now)
    }

    /// The cause if the answer of a node ends the lock now. The engine latches a loss by time before it handles the
    /// answer, so here the answer is the cause.
    pub(crate) fn proved_loss(&self, now: Reading) -> Option<LossCause> {
        if self.lost.is_some() || self.votes.validity.lasts(Duration::ZERO, now) {
            return None;
        }
        let overwritten = !self.votes.overwritten.is_empty();
        Some(if overwritten { LossCause::KeyOverwritten } else { LossCause::KeyGone })
    }

    /// Whether a lost lock keeps its keys until the holder releases it.
    pub(crate) const fn keeps_on_loss(&self) -> bool {
        self.guard.keeps_on_loss || self.is_detached()
    }

    pub(crate) fn lose(&mut self, cause: LossCause) {
        debug_assert!(self.lost.is_none(), "a lock is lost once");
        self.lost.get_or_insert(cause);
        self.extending = Extending::default();
        self.confirmation = Confirmation::default();
    }

    /// The release that ends this lock on every node. With `report`, the holder awaits the outcome, which depends on
    /// the present votes and the time of the call. `longest` is the longest round trip to any node.
    pub(crate) fn end(&self, report: bool, longest: Duration, now: Reading) -> Release {
        let validity = &self.votes.validity;
        let votes = (self.votes.reached, validity.held());
        let cluster = (self.quorum, &self.timing);
        let mut release = Release::new(self.entry.clone(), self.acquire_round, cluster, votes, now);
        if report {
            let called = self.handover().map_or(now, |handover| handover.called);
            let was_valid = self.lost.is_none() && validity.lasts(Duration::ZERO, called);
            // Counting the votes takes less time than sorting them.
            let valid_for = match validity.lasts(CONFIRM_WITHIN, now) {
                true => CONFIRM_WITHIN,
                false => validity.remaining(now),
            };
            let valid = (was_valid, valid_for);
            let answers_due = now.after(self.timing.node_timeout(longest));
            release.report_to(self.guard.holder, valid, answers_due, now);
        }
        release
    }

    pub(crate) fn nodes(&self) -> NodeSet {
        self.quorum.all()
    }

    pub(crate) fn next_round(&mut self) -> u32 {
        self.round += 1;
        self.round
    }

    pub(crate) fn deadline(&self, now: Reading) -> Option<BootTime> {
        if self.lost.is_some() {
            return None;
        }
        let round = self.extension().map(|extension| extension.due);
        let handover = self.handover().and_then(|handover| handover.write_back.deadline());
        let detaching = self.detaching.as_ref().and_then(Detaching::deadline);
        match [self.extending.at, round, handover, detaching].iter().flatten().min() {
            Some(&at) if self.votes.validity.lasts(at.remaining(now), now) => Some(at),
            _ => Some(now.after(self.votes.validity.remaining(now))),
        }
    }

    pub(crate) fn renumber(&mut self, to: impl Fn(LockId) -> LockId) {
        self.guard.holder = to(self.guard.holder);
    }

    pub(crate) fn shift(&mut self, base: Reading) {
        self.wake = self.wake.map(|at| at.shifted(base));
        self.foreign_seen = self.foreign_seen.map(|at| at.shifted(base));
        self.votes.shift(base);
        self.guard.hold_until = self.guard.hold_until.shifted(base);
        self.tenure.token_until = self.tenure.token_until.shifted(base);
        self.tenure.began = self.tenure.began.shifted(base);
        self.extending.shift(base);
        if let Some(detaching) = &mut self.detaching {
            detaching.shift(base);
        }
        if let Some(fenced) = &mut self.fenced {
            fenced.shift(base);
        }
    }
}

impl GuardTerms {
    fn new(holder: LockId, request: &Request, now: Reading) -> Self {
        let Request { automatic, keeps_on_loss, max_hold, .. } = *request;
        Self { holder, automatic, keeps_on_loss, hold_until: now.after(max_hold) }
    }
}
