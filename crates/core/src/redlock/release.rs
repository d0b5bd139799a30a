//! The release of one token on every node, from the first compare-and-delete to the last answer.
//!
//! A release follows the acquire on the same connection. If the connection breaks, the release is *owed*: the engine
//! sends it again until the key must have expired. A repeated compare-and-delete does no harm.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use crate::command::{Answer, Command, Failure, FailureKind};
use crate::ids::LockId;
use crate::keys::Entry;
use crate::redlock::quorum::{NodeId, NodeSet, Quorum};
use crate::time::{BootTime, Reading};
use crate::timing::Timing;
use crate::token::Value;

/// A release without an answer is forgotten when the ttl and this time have passed.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

/// A caller that released a valid lock waits for a quorum's confirmation for at most this time. Meanwhile a release that
/// failed is sent again.
pub const CONFIRM_WITHIN: Duration = Duration::from_secs(5);

/// One token being released on every node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Release {
    /// Time of this record's entry in the engine's deadline index: at or before its deadline. `None` without an entry.
    pub(crate) wake: Option<BootTime>,
    entry: Entry,
    quorum: Quorum,
    timing: Timing,
    /// Round of the attempt for which the token was generated.
    attempt: u32,
    /// Nodes that a command with this token may have reached.
    reached: NodeSet,
    /// Nodes whose vote was held when the release began.
    held: NodeSet,
    /// Time at which the release is forgotten in any case, because the key has expired.
    until: BootTime,
    answers: Answers,
    /// Nodes where the release failed, unless the node answered later. Usually empty.
    failed: BTreeMap<NodeId, Failed>,
    /// Nodes that may have executed the release, although the answer was lost. If such a node says later that it does
    /// not have the key, it may have deleted it by then.
    unclear: NodeSet,
    report: Option<Report>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Answers {
    /// Nodes that have not answered the release so far.
    awaited: NodeSet,
    deleted: NodeSet,
    absent: NodeSet,
    other: NodeSet,
    not_ours: NodeSet,
    /// Nodes in `absent` that have lost all their data.
    emptied: NodeSet,
}

impl Answers {
    /// Whether the node answered that it does not have the key with our value.
    fn is_gone(&self, node: NodeId) -> bool {
        [self.absent, self.other, self.not_ours].iter().any(|said| said.contains(node))
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Failed {
    failure: Failure,
    /// Whether the release must be sent again. False if it is in flight again, if no command with this token reached
    /// the node, or if the key has expired.
    owed: bool,
    until: BootTime,
}

/// A key that may still be on a node, because its release failed.
pub(crate) struct Leftover {
    pub(crate) node: NodeId,
    pub(crate) value: Value,
    pub(crate) was_granted: bool,
    pub(crate) failure: Failure,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Report {
    holder: LockId,
    was_valid: bool,
    /// Time until which the caller waits for nodes that have not answered, although they decide nothing any more.
    answers_due: BootTime,
    /// Time until which the caller waits for a quorum's confirmation: [`CONFIRM_WITHIN`], or the end of the lock.
    due: BootTime,
    answers_are_due: bool,
    time_is_up: bool,
}

impl Release {
    /// The release of the token that was generated for the round `attempt`. No caller awaits the outcome.
    pub(crate) fn new(
        entry: Entry,
        attempt: u32,
        (quorum, timing): (Quorum, &Timing),
        (reached, held): (NodeSet, NodeSet),
        now: Reading,
    ) -> Self {
        let until = now.after(timing.ttl().saturating_add(GIVE_UP_AFTER));
        Self {
            wake: None,
            entry,
            quorum,
            timing: *timing,
            attempt,
            reached,
            held,
            until,
            answers: Answers { awaited: quorum.all(), ..Answers::default() },
            failed: BTreeMap::new(),
            unclear: NodeSet::default(),
            report: None,
        }
    }

    /// Makes the engine notify the holder of the outcome once it is clear. `was_valid` means that the lock was valid when
    /// the holder called for the release, and `valid_for` is what is left of the validity now. A holder of a valid lock
    /// waits until a quorum has confirmed, the lock is over, or [`CONFIRM_WITHIN`] has passed, as long as the nodes that
    /// have not answered, and the releases that will be sent again, can make a quorum. Otherwise nothing but
    /// `answers_due` bounds the wait.
    pub(crate) fn report_to(
        &mut self,
        holder: LockId,
        (was_valid, valid_for): (bool, Duration),
        answers_due: BootTime,
        now: Reading,
    ) {
        let due = now.after(valid_for.min(CONFIRM_WITHIN)).max(answers_due);
        let (answers_are_due, time_is_up) = (false, false);
        self.report =
            Some(Report { holder, was_valid, answers_due, due, answers_are_due, time_is_up });
    }

    /// Lets the caller wait longer for the first answer of this node; see [`Timing::answer_timeout`].
    pub(crate) fn await_answer(&mut self, node: NodeId, connected: Option<Duration>, now: Reading) {
        let at = now.after(self.timing.answer_timeout(connected));
        if let Some(report) = &mut self.report
            && self.answers.awaited.contains(node)
            && !self.failed.contains_key(&node)
            && !report.answers_are_due
        {
            report.answers_due = report.answers_due.max(at);
            report.due = report.due.max(report.answers_due);
        }
    }

    /// Decides the outcome by the answers so far, because the engine is about to drop this record.
    pub(crate) fn give_up(&mut self) {
        if let Some(report) = &mut self.report {
            report.time_is_up = true;
        }
    }

    /// The command for every node.
    pub fn command(&self) -> Command {
        self.entry.release(self.report.is_some())
    }

    /// The nodes that a command with this token may have reached.
    pub(crate) fn reached(&self) -> NodeSet {
        self.reached
    }

    /// Takes the answer of a node.
    pub fn handle_answer(&mut self, node: NodeId, answer: &Answer, now: Reading) {
        if !self.answers.awaited.contains(node) {
            return;
        }
        self.answers.awaited.remove(node);
        let is_gone = matches!(answer, Answer::Absent | Answer::Other | Answer::NotOurs);
        if is_gone && self.unclear.contains(node) {
            // The failure stays, because it is not known whether the lock was lost there. The key is gone.
            if let Some(failed) = self.failed.get_mut(&node) {
                (failed.owed, failed.until) = (false, now.boot());
            }
            return;
        }
        let said = match answer {
            Answer::Deleted => &mut self.answers.deleted,
            Answer::Absent => &mut self.answers.absent,
            Answer::Other => &mut self.answers.other,
            Answer::NotOurs => &mut self.answers.not_ours,
            Answer::Failed(failure) => return self.fail(node, failure.clone(), now),
            _ => return self.fail(node, Failure::new(FailureKind::Protocol), now),
        };
        said.insert(node);
        self.failed.remove(&node);
    }

    /// Notes that the node, which has just answered, lost all its data since it was last trusted.
    pub(crate) fn note_lost_data(&mut self, node: NodeId) {
        if self.answers.absent.contains(node) {
            self.answers.emptied.insert(node);
        }
    }

    /// Notes a failed release. It is sent again if a command with this token may have reached the node.
    fn fail(&mut self, node: NodeId, failure: Failure, now: Reading) {
        let owed = self.reached.contains(node);
        if failure.may_have_been_executed() {
            self.unclear.insert(node);
        }
        let mut until = self.until_of(node);
        if owed {
            // All commands that can set the key were sent before the first failure. So the key expires within a ttl
            // after this failure, and later failures do not move this time.
            until = until.min(now.after(self.timing.ttl()));
        }
        self.failed.insert(node, Failed { failure, owed, until });
    }

    /// Notes that the acquire of `attempt` never reached the node, so a release that fails there is not sent again.
    pub(crate) fn handle_unreached(&mut self, node: NodeId, attempt: u32) {
        if attempt == self.attempt {
            self.reached.remove(node);
            if let Some(failed) = self.failed.get_mut(&node) {
                failed.owed = false;
            }
        }
    }

    /// Returns the command to send again if the release failed on this node and must be repeated.
    pub fn resend(&mut self, node: NodeId) -> Option<Command> {
        let failed = self.failed.get_mut(&node).filter(|failed| failed.owed)?;
        failed.owed = false;
        self.answers.awaited.insert(node);
        Some(self.command())
    }

    /// Ends the wait for nodes whose key has expired. When the caller has waited long enough, the outcome follows
    /// from the answers so far.
    pub fn handle_time(&mut self, now: Reading) {
        if let Some(report) = &mut self.report {
            report.answers_are_due |= report.answers_due.has_come(now);
            report.time_is_up |= report.due.has_come(now);
        }
        for node in self.answers.awaited.iter() {
            let until = self.until_of(node);
            if until.has_come(now) {
                self.answers.awaited.remove(node);
                let failure = Failure::new(FailureKind::Silent);
                self.failed.insert(node, Failed { failure, owed: false, until });
            }
        }
        for failed in self.failed.values_mut() {
            failed.owed &= !failed.until.has_come(now);
        }
    }

    /// The next time at which the release needs attention; `None` if it is over.
    pub fn deadline(&self) -> Option<BootTime> {
        let awaited = self.answers.awaited;
        let is_open = |(node, failed): &(&NodeId, &Failed)| failed.owed || awaited.contains(**node);
        let failed = self.failed.iter().filter(is_open).map(|(_, failed)| failed.until).min();
        // The times of failed nodes are never later than `until`, so `until` only matters if no node has failed.
        let awaited = failed.or_else(|| (!awaited.is_empty()).then_some(self.until));
        let next = |report: &Report| {
            if report.answers_are_due { report.due } else { report.answers_due }
        };
        self.report.as_ref().map(next).into_iter().chain(awaited).min()
    }

    /// The time at which this node's key has certainly expired.
    fn until_of(&self, node: NodeId) -> BootTime {
        self.failed.get(&node).map_or(self.until, |failed| failed.until)
    }

    /// The keys that may still be on nodes: the release failed there, and the keys have not expired.
    pub(crate) fn leftovers(&self, now: Reading) -> impl Iterator<Item = Leftover> {
        let may_be_there = move |(node, failed): &(&NodeId, &Failed)| {
            self.reached.contains(**node) && !failed.until.has_come(now)
        };
        self.failed.iter().filter(may_be_there).map(|(node, failed)| Leftover {
            node: *node,
            value: self.entry.value.clone(),
            was_granted: self.held.contains(*node),
            failure: failed.failure.clone(),
        })
    }

    /// Whether the release failed on this node and must be sent again.
    pub fn is_owed_to(&self, node: NodeId) -> bool {
        self.failed.get(&node).is_some_and(|failed| failed.owed)
    }

    /// Whether no answer is outstanding, no release is owed, and no caller awaits the outcome.
    pub fn is_over(&self) -> bool {
        self.report.is_none()
            && self.answers.awaited.is_empty()
            && !self.failed.values().any(|failed| failed.owed)
    }

    /// Returns the waiting caller and the outcome once, as soon as the outcome is clear or the time is up.
    pub fn poll_report(&mut self) -> Option<(LockId, ReleaseReport)> {
        let report = self.report.as_ref()?;
        let holder = report.holder;
        let outcome = self.outcome(report)?;
        self.report = None;
        let nodes = self.quorum.node_ids().map(|node| self.tell(node)).collect();
        Some((holder, ReleaseReport { outcome, handed_over: false, nodes }))
    }

    fn outcome(&self, report: &Report) -> Option<Outcome> {
        let &Report { was_valid, answers_are_due, time_is_up, .. } = report;
        let deleted = self.answers.deleted.len();
        if was_valid && self.quorum.is_reached(deleted) {
            return Some(Outcome::Released);
        }
        // A release that is owed to a node for another reason than a missing right may still succeed there.
        let is_hopeful = |failed: &&Failed| failed.owed && !failed.failure.kind().is_about_rights();
        let mut open = self.answers.awaited.len();
        if !self.failed.is_empty() {
            open += self.failed.values().filter(is_hopeful).count();
        }
        let may_be_confirmed = was_valid && !self.quorum.is_out_of_reach(deleted, open);
        let are_answers_due = answers_are_due || self.answers.awaited.is_empty();
        if !time_is_up && (may_be_confirmed || !are_answers_due) {
            return None;
        }
        // Nodes that lost their vote, and nodes without a vote. If the rest is no quorum, the lock was lost early.
        let gone = self.held.iter().filter(|node| self.answers.is_gone(*node)).count();
        let never =
            |node: &NodeId| !self.held.contains(*node) && !self.answers.deleted.contains(*node);
        let never = self.quorum.node_ids().filter(never).count();
        let proved_lost =
            gone > 0 && self.quorum.is_out_of_reach(self.quorum.nodes() - gone - never, 0);
        if was_valid && !proved_lost {
            return Some(Outcome::Unknown);
        }
        let taken = !self.answers.other.is_empty();
        Some(if taken { Outcome::TakenByOther } else { Outcome::Expired })
    }

    fn tell(&self, node: NodeId) -> NodeReleased {
        if self.answers.deleted.contains(node) {
            return NodeReleased::Deleted;
        }
        if self.answers.other.contains(node) {
            return NodeReleased::Other;
        }
        match self.failed.get(&node) {
            _ if self.answers.emptied.contains(node) && self.held.contains(node) => {
                NodeReleased::LostWithData
            }
            _ if self.answers.is_gone(node) && self.held.contains(node) => NodeReleased::LostEarly,
            _ if self.answers.is_gone(node) => NodeReleased::NeverGranted,
            // Also if the release has been sent again: the failure says more than that there is no answer yet.
            Some(failed) => NodeReleased::Failed(failed.failure.clone()),
            _ => NodeReleased::Unanswered,
        }
    }

    pub(crate) fn awaited_by(&self) -> Option<LockId> {
        self.report.as_ref().map(|report| report.holder)
    }

    pub(crate) fn renumber(&mut self, to: impl Fn(LockId) -> LockId) {
        if let Some(report) = &mut self.report {
            report.holder = to(report.holder);
        }
    }

    pub(crate) fn shift(&mut self, base: Reading) {
        self.wake = self.wake.map(|at| at.shifted(base));
        self.until = self.until.shifted(base);
        for failed in self.failed.values_mut() {
            failed.until = failed.until.shifted(base);
        }
        if let Some(report) = &mut self.report {
            report.answers_due = report.answers_due.shifted(base);
            report.due = report.due.shifted(base);
        }
    }
}

/// The result of a release, determined by the client's clock and the answers of the nodes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReleaseReport {
    /// The outcome over all nodes.
    pub outcome: Outcome,
    /// Whether the next caller of this process took the lock over. Then no node was asked to delete it.
    pub handed_over: bool,
    /// The answer of each node, in the order of the client's list.
    pub nodes: Vec<NodeReleased>,
}

/// The outcome of a release.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// The lock was valid at the call, and a quorum deleted it, so the lock is free.
    Released,
    /// The lock was lost or had expired before the call. The release deleted no other client's key.
    Expired,
    /// Like [`Self::Expired`], but a node has another client's value under the key.
    TakenByOther,
    /// The lock was valid, but too few nodes answered. The lock expires within its ttl.
    Unknown,
}

/// The answer of one node to a release.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum NodeReleased {
    /// The node deleted the key.
    Deleted,
    /// The node had no key, and had not granted.
    NeverGranted,
    /// The node had granted, but the key was gone.
    LostEarly,
    /// Like [`Self::LostEarly`], but the node has lost all its data since its votes last counted: it has announced that,
    /// or its server was restarted. Only with a restart guard.
    LostWithData,
    /// The node has another value under the key and kept it.
    Other,
    /// The node had not answered when the outcome was clear.
    Unanswered,
    /// The node was not asked, because the next caller of this process took the lock over.
    HandedOver,
    /// The release failed. If the node may have the key, the release is sent again.
    Failed(Failure),
}
