//! The record of one call, and the decisions that need only this record.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use super::history::AttemptHistory;
use super::intents::Intent;
use super::{AttemptReport, Refusal, RefusalKind};
use crate::client::contention::{believed, mix};
use crate::client::gap;
use crate::client::wait::Waiting;
use crate::command::{Command, Holding};
use crate::keys::{Mode, intents};
use crate::redlock::acquire::{Attempt, FailureReason, NodeOutcome, NodeResult};
use crate::redlock::inspect::Inspection;
use crate::redlock::quorum::Quorum;
use crate::redlock::retry::{Delay, Retry, after_expiry};
use crate::request::{Request, Wait};
use crate::time::{BootTime, Reading};

/// Shortest time between two inspections of a lock that readers hold, if pushes trigger the inspections.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A call that has not got its lock yet.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Call {
    pub(super) request: Request,
    pub(super) started: Reading,
    pub(super) deadline: Option<BootTime>,
    /// Time of this record's entry in the deadline index: its deadline or earlier. `None` without an entry.
    pub(super) wake: Option<BootTime>,
    pub(super) round: u32,
    pub(super) phase: Phase,
    pub(super) history: AttemptHistory,
    pub(super) pace: Pace,
    /// State of the lock on each node; `None` if no attempt and no inspection has shown it.
    pub(super) waiting: Option<Waiting>,
    /// Time until a quorum may be free by expiry or, while nodes are untrusted, is trusted. `None` if unknown.
    pub(super) free_in: Option<Duration>,
    pub(super) contention: Contention,
    pub(super) trust_wait: TrustWait,
    /// The intent of a waiting writer. Boxed because few calls have one.
    pub(super) intent: Option<Box<Intent>>,
}

/// The round trip and randomness of the last attempt.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Pace {
    pub(super) round_trip: Duration,
    pub(super) word: u64,
    /// Number of further random words that were derived from `word`.
    pub(super) draws: u32,
}

/// The call's experience with other contenders.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Contention {
    /// Number of consecutive pauses in which the call polls, because too few nodes would push a release.
    pub(super) polls: u32,
    /// Number of consecutive pauses that began although a quorum of nodes seemed free.
    pub(super) opens: u32,
    /// Whether the contenders of the last attempt split the votes, so that none of them got a quorum.
    pub(super) split: bool,
    /// Whether the attempt began because the lock seemed free.
    pub(super) seemed_free: bool,
    /// Number of times that the lock became free and another client took it.
    pub(super) missed: u32,
    /// Whether the call inspects the lock before its first attempt, because this process has just released the lock and
    /// other processes wait.
    pub(super) looks_first: bool,
    /// Number of commands about the call's intent, by which a waiting writer keeps new readers out.
    pub(super) announcements: u32,
    pub(super) looked_at: Option<BootTime>,
    /// Time at which a client of another library last held one of the keys; `None` if none was seen.
    pub(super) foreign_seen: Option<BootTime>,
    /// Whether the call now leaves the lock to clients that poll (a gap): it inspects or pauses, and does not attempt.
    pub(super) leaves_gap: bool,
    /// Whether the next attempt does not wait for the end of a gap, in which the lock is left to clients that poll:
    /// such a client has just had the lock, or the call has waited long enough.
    pub(super) skips_gap: bool,
}

/// The state of a call that waits for trusted nodes.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct TrustWait {
    /// Whether the caller was notified of the untrusted nodes.
    pub(super) is_reported: bool,
    /// Times until which the call waits for checks of untrusted nodes, even after its own wait. The second, later time
    /// applies while the client reads other nodes' clocks to compute a node's floor. `None` before.
    pub(super) settles_by: Option<[BootTime; 2]>,
    /// Whether the call's own wait is over, and the call only waits for checks of untrusted nodes.
    pub(super) settling: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::large_enum_variant, reason = "every call makes an attempt, and most make but one")]
pub(super) enum Phase {
    /// The call waits in the local queue.
    Queued,
    /// No other caller of this process blocks the call. Its attempt begins at the end of the current event or, if that
    /// event is an answer, with the next event that is not an answer.
    Starting,
    /// An attempt is in flight.
    Attempting(Attempt),
    /// Nodes were asked for the holder: after an attempt or, with `again`, before the next attempt.
    Looking { inspection: Inspection, again: bool },
    /// The call waits until the next attempt or, with `again`, until the next inspection of the lock. From
    /// `yields_from` on, another caller of this process may attempt instead; `None` means that none may, because each
    /// would have to wait too.
    Pausing { until: BootTime, again: bool, yields_from: Option<BootTime> },
    /// The call pauses, and another caller of this process has its turn.
    Yielded { until: BootTime },
}

impl Call {
    pub(super) fn new(request: Request, now: Reading) -> Self {
        let ttl = request.timing.ttl();
        let deadline = match request.wait {
            // Each attempt prolongs the keys that it attaches. Without this bound, a lock that too few nodes have for a
            // quorum would stay on these nodes for as long as its callers wait.
            Wait::For(wait) if request.attaches() => Some(now.after(wait.min(ttl))),
            Wait::Forever if request.attaches() => Some(now.after(ttl)),
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

    pub(super) fn due(&self) -> Option<BootTime> {
        let phase = match &self.phase {
            // A starting call needs no wake-up: its attempt begins with the next event, and then the engine checks the
            // call's deadline.
            Phase::Starting => return None,
            Phase::Queued => None,
            Phase::Attempting(attempt) => attempt.deadline(),
            Phase::Looking { inspection, .. } => Some(inspection.deadline()),
            Phase::Pausing { until, .. } | Phase::Yielded { until } => Some(*until),
        };
        let renewal = self.intent.as_ref().map(|intent| intent.renew_at);
        [phase, self.deadline, renewal].iter().flatten().min().copied()
    }

    /// The command that inspects the lock. If the call is going to wait, the command also requests a push.
    pub(super) fn look(&self) -> Command {
        let Request { keys, mode, prefix_bytes, .. } = &self.request;
        let keys = keys.clone();
        let intents = (*mode == Mode::Shared).then(|| intents(&keys, *prefix_bytes));
        match self.is_to_watch() {
            true => Command::Watch { keys, intents },
            false => Command::Inspect { keys, intents },
        }
    }

    /// Whether the call's own wait is over, and the call only waits for checks of untrusted nodes.
    pub(super) fn awaits_settling(&self) -> bool {
        let Some(ends) = &self.trust_wait.settles_by else { return false };
        matches!(&self.phase, Phase::Pausing { until, .. } | Phase::Yielded { until } if ends.contains(until))
    }

    pub(super) fn is_to_end(&self, now: Reading) -> bool {
        self.request.wait == Wait::Once || self.is_spent() || self.is_out_of_time(now)
    }

    pub(super) fn is_over_by(&self, then: BootTime) -> bool {
        self.deadline.is_some_and(|at| at < then)
    }

    pub(super) fn is_out_of_time(&self, now: Reading) -> bool {
        self.deadline.is_some_and(|at| at.has_come(now))
    }

    /// The longest back-off: half of the remaining wait.
    pub(super) fn patience(&self, now: Reading) -> Duration {
        self.deadline.map_or(Duration::MAX, |at| at.remaining(now) / 2)
    }

    /// Whether this call may inspect the lock before its first attempt. A call with fixed delays may not, because its
    /// delays apply whatever the nodes answer. A call with a single attempt may not either.
    pub(super) fn may_look_first(&self) -> bool {
        self.is_to_watch() && self.request.retry.attempts_max != Some(1)
    }

    /// The end of the gap, in which this call leaves the lock to clients that poll; `None` if the call may attempt.
    pub(super) fn gap_until(&self, now: Reading) -> Option<BootTime> {
        let Contention { foreign_seen, skips_gap, .. } = self.contention;
        let leaves = foreign_seen.is_some() && !skips_gap && self.request.yields_to_pollers;
        let has_time = || self.may_look_first() && self.has_time_to_look(now);
        gap::open_until(foreign_seen.filter(|_| leaves && has_time()), now)
    }

    /// Notes which holders in the nodes' answers are clients of other libraries (foreign). If a foreign client holds
    /// the lock, the call attempts as soon as the lock comes free: that client has had the lock, and would otherwise
    /// acquire it again. Returns the latest time at which a foreign client is known to have held a key.
    pub(super) fn note_foreign(&mut self, now: Reading) -> Option<BootTime> {
        let Phase::Looking { inspection, .. } = &self.phase else {
            return None;
        };
        if !self.request.yields_to_pollers {
            return None;
        }
        let seen = inspection.asked().filter_map(|node| inspection.seen(node));
        let (mut is_held, mut is_foreign, mut latest) = (false, false, None);
        for holding in seen.flat_map(Holding::each).filter(|holding| **holding != Holding::Free) {
            is_held = true;
            is_foreign |= gap::is_foreign(holding);
            latest = latest.max(gap::foreign_seen(holding, now));
        }
        if is_held {
            self.contention.skips_gap = is_foreign;
        }
        self.contention.foreign_seen = self.contention.foreign_seen.max(latest);
        latest
    }

    /// Whether the remaining wait suffices for an inspection, a back-off, a second inspection and an attempt. The
    /// back-off takes at most half of the wait, so three round trips must fit into the other half.
    pub(super) fn has_time_to_look(&self, now: Reading) -> bool {
        3 * believed(self.pace.round_trip) <= self.patience(now)
    }

    /// Whether nodes are to push changes of the lock. A call that attaches polls instead: free keys do not help it, and
    /// it has no place in the local queue, in which the engine finds the calls for a push.
    pub(super) fn is_to_watch(&self) -> bool {
        let adaptive = matches!(self.request.retry.delay, Delay::Adaptive { .. });
        let is_queued = !self.request.attaches();
        adaptive && is_queued && self.request.wait != Wait::Once && !self.is_spent()
    }

    pub(super) fn is_spent(&self) -> bool {
        self.request.retry.attempts_max.is_some_and(|max| self.history.count >= max)
    }

    pub(super) fn is_open(&self) -> bool {
        self.waiting.as_ref().is_some_and(Waiting::is_open)
    }

    /// Whether the inspection may end. It ends when all nodes have answered, and for a waiting call as soon as a quorum
    /// seems free. The last inspection of a call also waits for outstanding answers to the attempt, if they decide
    /// whether the call reports a held lock or too few nodes.
    pub(super) fn has_seen_enough(&self, quorum: Quorum, now: Reading) -> bool {
        match &self.phase {
            Phase::Looking { inspection, .. } => {
                inspection.is_over() && !(self.is_to_end(now) && self.history.is_ambiguous(quorum))
                    || self.is_to_watch() && self.is_open()
            }
            _ => false,
        }
    }

    /// Completes the report of the last attempt with the holders that an inspection found. Before the first attempt,
    /// the inspection itself is the report.
    pub(super) fn note_holders(&mut self, now: Reading) {
        let Phase::Looking { inspection, .. } = &self.phase else {
            return;
        };
        if self.history.count == 0 {
            let mut nodes: Vec<_> =
                inspection.report(now).into_iter().map(NodeResult::seen_as_refusal).collect();
            // A node that this inspection did not ask keeps its earlier answer.
            for (node, before) in nodes
                .iter_mut()
                .zip(self.history.last.take().into_iter().flat_map(|(_, nodes)| nodes))
            {
                if node.said == NodeOutcome::NotAsked {
                    *node = before;
                }
            }
            // Report contention only if a quorum answered, as in an attempt (S26).
            let is_answer = |node: &&NodeResult| {
                matches!(node.said, NodeOutcome::Seen(_) | NodeOutcome::Refused(_))
            };
            let enough = inspection.quorum().is_reached(nodes.iter().filter(is_answer).count());
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
                // The node did not answer the attempt in time, so its answer to the inspection is reported.
                said @ NodeOutcome::Nothing if *seen == Holding::Free => {
                    *said = NodeOutcome::Seen(Holding::Free);
                }
                said @ NodeOutcome::Nothing => *said = NodeOutcome::Refused(Some(seen.clone())),
                _ => {}
            }
        }
    }

    /// Schedules an inspection of the lock after a push about readers, because the last reader may have released the
    /// lock. Inspections are at least [`LOOK_EVERY`] apart.
    pub(super) fn look_if_stale(&mut self, now: Reading) {
        let is_stale = self.waiting.as_ref().is_some_and(Waiting::is_stale);
        if let Phase::Pausing { until, again, .. } = &mut self.phase
            && is_stale
        {
            let next = self.contention.looked_at.map_or(now.boot(), |at| at.after(LOOK_EVERY));
            (*until, *again) = ((*until).min(next.max(now.boot())), true);
        }
    }

    /// Notes the time after which a quorum may be free even if no holder releases, if the answers show it.
    pub(super) fn note_free_in(&mut self, now: Reading) {
        self.free_in = self.waiting.as_ref().and_then(|waiting| waiting.free_in(now));
    }

    /// Counts a pause that begins now: in `opens` if a quorum seems free, in `polls` if too few nodes would push.
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

    /// The length of the next pause. `step` is the unit of random pauses, which all contenders for a free lock share.
    pub(super) fn pause(&self, retry: Retry, step: Duration, now: Reading) -> Duration {
        let (round_trip, word) = (self.pace.round_trip, self.pace.word);
        if self.is_to_watch() && self.is_open() {
            // The lock seems free already, so the call attempts at once. If contenders split the votes, or other
            // clients were faster repeatedly, the call waits for a random time, so that they do not collide again.
            return match self.contention.opens {
                1 if !self.contention.split => Duration::ZERO,
                opens => retry.delay(opens, word, step.min(round_trip), None),
            };
        }
        let watched = self.is_watched();
        let soonest = self.waiting.as_ref().and_then(|waiting| waiting.may_be_free_in(now));
        match (self.free_in, retry.delay) {
            (Some(_), _) if watched && mutant!(WaitersTrustPush) => Duration::from_secs(3600),
            // Nodes that were not asked may be free earlier, so the call does not wait for a long ttl that only a few
            // nodes reported.
            (Some(free_in), Delay::Adaptive { ceiling }) if watched => {
                free_in.min(soonest.unwrap_or(free_in).saturating_add(ceiling)) + after_expiry(word)
            }
            // A key without an expiry is not this library's. It may disappear without a push, so the call polls.
            (None, Delay::Adaptive { ceiling }) if watched => ceiling,
            _ => retry.delay(self.contention.polls, word, round_trip, self.free_in),
        }
    }

    /// Whether enough nodes will push for the call to notice every release.
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
