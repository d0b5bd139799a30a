//! What is known of one call, and what follows from it.

mod history;
mod intent;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

pub(super) use self::history::AttemptHistory;
pub(super) use self::intent::{Intent, Withdrawal};
use super::{AttemptReport, Refusal, RefusalKind};
use crate::client::contention::{believed, mix};
use crate::client::wait::Waiting;
use crate::command::{Command, Holding};
use crate::keys::{Mode, intents};
use crate::redlock::acquire::{Attempt, FailureReason, NodeOutcome, NodeResult};
use crate::redlock::inspect::Inspection;
use crate::redlock::quorum::Quorum;
use crate::redlock::retry::{Delay, Retry, after_expiry};
use crate::request::{Request, Wait};
use crate::time::{BootTime, Reading};

/// A lock that readers hold is looked at no more often than this because of a push.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A call that has not got its lock yet.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Call {
    pub(super) request: Request,
    pub(super) started: Reading,
    pub(super) deadline: Option<BootTime>,
    /// Time under which the deadline index has this record: its deadline or earlier.
    pub(super) wake: Option<BootTime>,
    pub(super) round: u32,
    pub(super) phase: Phase,
    pub(super) history: AttemptHistory,
    pub(super) pace: Pace,
    /// What is known of the lock since the last attempt.
    pub(super) waiting: Option<Waiting>,
    pub(super) free_in: Option<Duration>,
    pub(super) contention: Contention,
    pub(super) trust_wait: TrustWait,
    /// Boxed, because most of the time there is none.
    pub(in crate::client::engine) intent: Option<Box<Intent>>,
}

/// As of the last attempt.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Pace {
    pub(super) round_trip: Duration,
    /// A random word, and how many have been made of it.
    pub(super) word: u64,
    pub(super) draws: u32,
}

/// How the call has fared against others that want the lock.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Contention {
    /// How often in a row it was not known when the lock will be free.
    pub(super) polls: u32,
    /// How often in a row the lock seemed to be free, and was not.
    pub(super) opens: u32,
    /// The last attempt had votes, and others had the rest.
    pub(super) split: bool,
    /// The attempt under way was made because the lock seemed to have come free.
    pub(super) woken: bool,
    /// How often the lock came free, and another got it.
    pub(super) missed: u32,
    /// This process has just had the lock, others want it too: it looks before it tries.
    pub(super) polite: bool,
    /// How often readers were told something.
    pub(super) said: u32,
    /// When the last look ended.
    pub(super) looked_at: Option<BootTime>,
}

/// What the call knows of its wait for nodes to be trusted.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct TrustWait {
    /// The caller has been told that nodes are not to be trusted, and which.
    pub(super) is_told: bool,
    /// Until when it lets what was asked about trust be answered, however short its wait; and if the time of
    /// other nodes is awaited.
    pub(super) settles_by: Option<[BootTime; 2]>,
    /// At its end, it lets that be answered now.
    pub(super) settling: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::large_enum_variant, reason = "every call makes an attempt, and most make but one")]
pub(super) enum Phase {
    /// In the local queue.
    Queued,
    /// Its turn has come, and it begins when all answers at hand have been given.
    Starting,
    /// The nodes have been asked.
    Attempting(Attempt),
    /// Nodes are asked who holds the lock: after an attempt; or, `again`, before one, to see whether it
    /// is worth making.
    Looking { inspection: Inspection, again: bool },
    /// Waiting for the next attempt, or to look `again`. If that is for reasons of its own, another caller
    /// of this process may try from `lent` on.
    Pausing { until: BootTime, again: bool, lent: Option<BootTime> },
    /// As before, and another caller of this process has its turn meanwhile.
    Aside { until: BootTime },
}

impl Call {
    pub(super) fn new(request: Request, now: Reading) -> Self {
        let deadline = match request.wait {
            Wait::For(wait) => Some(now.after(wait)),
            Wait::Once | Wait::Forever => None,
        };
        Self {
            request,
            started: now,
            deadline,
            wake: None,
            round: 0,
            phase: Phase::Queued,
            history: AttemptHistory::new(now),
            pace: Pace::default(),
            waiting: None,
            free_in: None,
            contention: Contention::default(),
            trust_wait: TrustWait::default(),
            intent: None,
        }
    }

    /// When time next changes something.
    pub(super) fn due(&self) -> Option<BootTime> {
        let phase = match &self.phase {
            Phase::Queued | Phase::Starting => None,
            Phase::Attempting(attempt) => attempt.deadline(),
            Phase::Looking { inspection, .. } => Some(inspection.deadline()),
            Phase::Pausing { until, .. } | Phase::Aside { until } => Some(*until),
        };
        let renewal = self.intent.as_ref().map(|intent| intent.renew_at);
        [phase, self.deadline, renewal].into_iter().flatten().min()
    }

    /// The command to look at the lock, and, if the call is going to wait, to be told of changes.
    pub(super) fn look(&self) -> Command {
        let Request { keys, mode, prefix_bytes, .. } = &self.request;
        let keys = keys.clone();
        let intents = (*mode == Mode::Shared).then(|| intents(&keys, *prefix_bytes));
        match self.is_to_watch() {
            true => Command::Watch { keys, intents },
            false => Command::Inspect { keys, intents },
        }
    }

    /// The call's time is up, and it only waits until the nodes have answered about their trust.
    pub(super) fn awaits_settling(&self) -> bool {
        let Some(ends) = &self.trust_wait.settles_by else { return false };
        matches!(&self.phase, Phase::Pausing { until, .. } | Phase::Aside { until } if ends.contains(until))
    }

    /// There is to be no further attempt.
    pub(super) fn is_to_end(&self, now: Reading) -> bool {
        self.request.wait == Wait::Once || self.is_spent() || self.is_out_of_time(now)
    }

    /// The caller's patience is at its end by then.
    pub(super) fn is_over_by(&self, then: BootTime) -> bool {
        self.deadline.is_some_and(|at| at < then)
    }

    /// The caller's patience is at its end.
    pub(super) fn is_out_of_time(&self, now: Reading) -> bool {
        self.deadline.is_some_and(|at| at.remaining(now).is_zero())
    }

    /// For how long at most to let others go first: half of what is left of the wait.
    pub(super) fn patience(&self, now: Reading) -> Duration {
        self.deadline.map_or(Duration::MAX, |at| at.remaining(now) / 2)
    }

    /// Whether this call may look before its first attempt. A caller that has chosen fixed delays wants them
    /// whatever the nodes say; and who makes one attempt alone does not want to wait for it.
    pub(super) fn may_look_first(&self) -> bool {
        self.is_to_watch() && self.request.retry.attempts_max != Some(1)
    }

    /// Whether there is time to look, to let others go first, to look again, and then to try: half of
    /// what is left is given to the others, and three round trips must fit into the rest.
    pub(super) fn has_time_to_look(&self, now: Reading) -> bool {
        3 * believed(self.pace.round_trip) <= self.patience(now)
    }

    /// Whether the nodes are to tell when the lock changes.
    pub(super) fn is_to_watch(&self) -> bool {
        let adaptive = matches!(self.request.retry.delay, Delay::Adaptive { .. });
        adaptive && self.request.wait != Wait::Once && !self.is_spent()
    }

    /// There were as many attempts as there may be.
    pub(super) fn is_spent(&self) -> bool {
        self.request.retry.attempts_max.is_some_and(|max| self.history.count >= max)
    }

    pub(super) fn is_open(&self) -> bool {
        self.waiting.as_ref().is_some_and(Waiting::is_open)
    }

    /// A look is over when all have answered; one for a call that waits, as soon as it seems that
    /// the lock is to be had. One that is the last of its call also waits for the answers to the attempt
    /// that tell whether the lock is held, or too few nodes are up.
    pub(super) fn has_seen_enough(&self, quorum: Quorum, now: Reading) -> bool {
        match &self.phase {
            Phase::Looking { inspection, .. } => {
                inspection.is_over() && !(self.is_to_end(now) && self.history.is_ambiguous(quorum))
                    || self.is_to_watch() && self.is_open()
            }
            _ => false,
        }
    }

    /// Writes into the story of the last attempt whom the nodes have been seen to hold the lock for.
    /// Where there was no attempt yet, what was seen is the story.
    pub(super) fn note_holders(&mut self, now: Reading) {
        let Phase::Looking { inspection, .. } = &self.phase else {
            return;
        };
        if self.history.count == 0 {
            let mut nodes: Vec<_> =
                inspection.report(now).into_iter().map(NodeResult::seen_as_refusal).collect();
            // Who was not asked this time stands by what it said before.
            for (node, before) in nodes
                .iter_mut()
                .zip(self.history.last.take().into_iter().flat_map(|(_, nodes)| nodes))
            {
                if node.said == NodeOutcome::NotAsked {
                    *node = before;
                }
            }
            // Others hold it, or have their turn first; but as with an attempt (S26), not if too few
            // nodes have answered for a quorum.
            let told = |node: &&NodeResult| {
                matches!(node.said, NodeOutcome::Seen(_) | NodeOutcome::Refused(_))
            };
            let enough = inspection.quorum().is_reached(nodes.iter().filter(told).count());
            let why = if enough { FailureReason::Contended } else { FailureReason::NoQuorum };
            self.history.last = Some((why, nodes));
            return;
        }
        let Some((_, nodes)) = &mut self.history.last else {
            return;
        };
        for node in inspection.asked() {
            let Some(seen) = inspection.seen(node) else { continue };
            match &mut nodes[node.index()].said {
                NodeOutcome::Refused(holding) => *holding = Some(seen.clone()),
                // It had not answered in time; it does now.
                said @ NodeOutcome::Nothing if *seen == Holding::Free => {
                    *said = NodeOutcome::Seen(Holding::Free);
                }
                said @ NodeOutcome::Nothing => *said = NodeOutcome::Refused(Some(seen.clone())),
                _ => {}
            }
        }
    }

    /// If a reader has come or gone, a look shows whether it was the last one. It comes soon, and no more often than
    /// every 10 ms.
    pub(super) fn look_if_stale(&mut self, now: Reading) {
        let is_stale = self.waiting.as_ref().is_some_and(Waiting::is_stale);
        if let Phase::Pausing { until, again, .. } = &mut self.phase
            && is_stale
        {
            let next = self.contention.looked_at.map_or(now.boot(), |at| at.after(LOOK_EVERY));
            (*until, *again) = ((*until).min(next.max(now.boot())), true);
        }
    }

    /// Notes in what time a quorum may be free by expiry alone, as far as is known.
    pub(super) fn note_free_in(&mut self, now: Reading) {
        self.free_in = self.waiting.as_ref().and_then(|waiting| waiting.free_in(now));
    }

    /// Counts a pause that begins now, with what is known by now: how often in a row the lock seemed to be
    /// free and was not, and how often it could not be told when it will be.
    pub(super) fn count_pause(&mut self) {
        let watches = self.is_to_watch();
        if watches && self.is_open() {
            (self.contention.polls, self.contention.opens) = (0, self.contention.opens + 1);
            return;
        }
        if watches {
            self.contention.opens = 0;
        }
        match (self.is_watched(), self.free_in) {
            (true, Some(_)) => self.contention.polls = 0,
            (true, None) => {}
            (false, _) => self.contention.polls += 1,
        }
    }

    /// For how long to wait by these rules. Who contends for a free lock again counts in the same `step` as
    /// the others.
    pub(super) fn pause(&self, retry: Retry, step: Duration, now: Reading) -> Duration {
        let (round_trip, word) = (self.pace.round_trip, self.pace.word);
        if self.is_to_watch() && self.is_open() {
            // Given back while we asked: at once. But if votes are split, or others are faster time
            // and again, only jitter helps.
            return match self.contention.opens {
                1 if !self.contention.split => Duration::ZERO,
                opens => retry.delay(opens, word, step.min(round_trip), None),
            };
        }
        let watched = self.is_watched();
        let soonest = self.waiting.as_ref().and_then(|waiting| waiting.may_be_free_in(now));
        match (self.free_in, retry.delay) {
            (Some(_), _) if watched && mutant!(WaitersTrustPush) => Duration::from_secs(3600),
            // A foreign key with a long ttl on few nodes says nothing about the nodes that were not asked.
            (Some(free_in), Delay::Adaptive { ceiling }) if watched => {
                free_in.min(soonest.unwrap_or(free_in).saturating_add(ceiling)) + after_expiry(word)
            }
            // Held for ever, by something foreign: who knows whether it ever tells.
            (None, Delay::Adaptive { ceiling }) if watched => ceiling,
            _ => retry.delay(self.contention.polls, word, round_trip, self.free_in),
        }
    }

    /// So many nodes will tell that a release cannot go unnoticed.
    pub(super) fn is_watched(&self) -> bool {
        self.is_to_watch() && self.waiting.as_ref().is_some_and(Waiting::is_watched)
    }

    pub(super) fn report(&self, now: Reading) -> Option<AttemptReport> {
        let (why, nodes) = self.history.last.as_ref()?;
        let elapsed = now.elapsed_since(self.started);
        Some(AttemptReport {
            why: *why,
            attempts: self.history.count,
            elapsed,
            nodes: nodes.clone(),
        })
    }

    pub(super) fn refusal(&self, kind: RefusalKind, now: Reading) -> Refusal {
        Refusal {
            kind,
            attempts: self.history.count,
            elapsed: now.elapsed_since(self.started),
            nodes: self.history.last.as_ref().map(|(_, nodes)| nodes.clone()).unwrap_or_default(),
            retry_after: self.free_in,
        }
    }
}

impl Pace {
    /// A random word, a different one each time.
    pub(super) fn draw(&mut self) -> u64 {
        self.draws += 1;
        mix(self.word, self.draws)
    }
}

impl From<FailureReason> for RefusalKind {
    fn from(why: FailureReason) -> Self {
        match why {
            FailureReason::Contended => Self::Contended,
            FailureReason::NoQuorum => Self::NoQuorum,
            FailureReason::TooSlow => Self::TooSlow,
            FailureReason::NodesUntrusted => Self::NodesUntrusted,
        }
    }
}
