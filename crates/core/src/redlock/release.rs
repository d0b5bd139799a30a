//! Releasing on every node, for a reason or another: one machine from the first compare-and-delete
//! to the last answer, including what stays *owed* when a node cannot be reached.
//!
//! A release is queued behind the acquire on the same connection. When that connection breaks, the
//! release is owed: it is sent again, because to compare and delete twice does no harm, until the
//! key must have expired anyway.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use crate::command::{Answer, Command, Failure, FailureKind};
use crate::ids::LockId;
use crate::keys::Entry;
use crate::redlock::quorum::{NodeId, NodeSet, Quorum};
use crate::redlock::vote::Validity;
use crate::time::{BootTime, Reading};
use crate::timing::Timing;
use crate::token::Value;

/// How long after the ttl a release is kept in mind that has neither been answered nor failed.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

/// One token being released on every node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Release {
    /// Time under which the deadline index has this record: its deadline or earlier.
    pub(crate) wake: Option<BootTime>,
    entry: Entry,
    quorum: Quorum,
    ttl: Duration,
    /// The round of the attempt whose token this is.
    attempt: u32,
    /// Nodes that a command with this token may have reached.
    reached: NodeSet,
    /// Nodes whose vote was held when the release began.
    held: NodeSet,
    /// When it is let go of, whatever is known by then: the key has expired by itself.
    until: BootTime,
    answers: Answers,
    /// What has failed, and has not been answered since: most of the time, nothing.
    failed: BTreeMap<NodeId, Failed>,
    report: Option<Report>,
}

/// Which nodes have said what of our key.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Answers {
    /// Nodes whose answer is awaited.
    awaited: NodeSet,
    deleted: NodeSet,
    absent: NodeSet,
    other: NodeSet,
    not_ours: NodeSet,
}

impl Answers {
    /// The node said that our key is not there.
    fn is_gone(&self, node: NodeId) -> bool {
        [self.absent, self.other, self.not_ours].iter().any(|said| said.contains(node))
    }
}

/// A node to which the release has failed.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Failed {
    failure: Failure,
    /// It is to be sent again. If not, it has been; or there is nothing to release: no command with
    /// this token ever reached the node, or the key has expired since.
    owed: bool,
    until: BootTime,
}

/// A key that may still be on a node, because its release has failed there.
pub(crate) struct Leftover {
    pub(crate) node: NodeId,
    pub(crate) value: Value,
    /// The node is known to have set it.
    pub(crate) was_granted: bool,
    pub(crate) failure: Failure,
}

/// The part that a waiting caller is interested in.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Report {
    /// Who waits.
    holder: LockId,
    was_valid: bool,
    due: BootTime,
    time_is_up: bool,
}

impl Release {
    /// Step 5 of a failed attempt. Nobody waits for it.
    pub(crate) fn after_attempt(
        entry: Entry,
        quorum: Quorum,
        timing: &Timing,
        (reached, held): (NodeSet, NodeSet),
        now: Reading,
    ) -> Self {
        let until = now.after(timing.ttl().saturating_add(GIVE_UP_AFTER));
        Self {
            wake: None,
            entry,
            quorum,
            ttl: timing.ttl(),
            attempt: 0,
            reached,
            held,
            until,
            answers: Answers { awaited: quorum.all(), ..Answers::default() },
            failed: BTreeMap::new(),
            report: None,
        }
    }

    /// Notes which attempt's token this is, for [`Release::handle_unreached`].
    pub(crate) fn of_attempt(self, attempt: u32) -> Self {
        Self { attempt, ..self }
    }

    /// The end of a lease that was given back at `called`. With `report`, its holder is told the
    /// outcome once it is clear, or after the time given.
    pub(crate) fn of_lease(
        entry: Entry,
        timing: &Timing,
        reached: NodeSet,
        (validity, called): (&Validity, Reading),
        report: Option<(LockId, Duration)>,
        (quorum, now): (Quorum, Reading),
    ) -> Self {
        let mut release =
            Self::after_attempt(entry, quorum, timing, (reached, validity.held()), now);
        release.report = report.map(|(holder, timeout)| Report {
            holder,
            was_valid: validity.lasts(Duration::ZERO, called),
            due: now.after(timeout),
            time_is_up: false,
        });
        release
    }

    /// This record is about to be forgotten: the outcome is what is known by now.
    pub(crate) fn give_up(&mut self) {
        if let Some(report) = &mut self.report {
            report.time_is_up = true;
        }
    }

    /// The lease was already lost: only the outcome is of interest.
    pub(crate) fn mark_lost(&mut self) {
        if let Some(report) = &mut self.report {
            report.was_valid = false;
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

    /// Takes a node's answer.
    pub fn handle_answer(&mut self, node: NodeId, answer: Answer, now: Reading) {
        if !self.answers.awaited.contains(node) {
            return;
        }
        self.answers.awaited.remove(node);
        let said = match answer {
            Answer::Deleted => &mut self.answers.deleted,
            Answer::Absent => &mut self.answers.absent,
            Answer::Other => &mut self.answers.other,
            Answer::NotOurs => &mut self.answers.not_ours,
            Answer::Failed(failure) => return self.fail(node, failure, now),
            _ => return self.fail(node, Failure::new(FailureKind::Protocol), now),
        };
        said.insert(node);
        self.failed.remove(&node);
    }

    /// A release that failed is owed, unless there is nothing to release.
    fn fail(&mut self, node: NodeId, failure: Failure, now: Reading) {
        let owed = self.reached.contains(node);
        let mut until = self.until_of(node);
        if owed {
            // Everything that could have made the key was sent before the first failure, so a ttl
            // after that one the key is gone. A failure to send again does not put that off.
            until = until.min(now.after(self.ttl));
        }
        self.failed.insert(node, Failed { failure, owed, until });
    }

    /// The acquire of this attempt turns out never to have reached the node: nothing is owed
    /// there, and nobody who waits for what is owed has to wait for it.
    pub(crate) fn handle_unreached(&mut self, node: NodeId, attempt: u32) {
        if attempt == self.attempt {
            self.reached.remove(node);
            if let Some(failed) = self.failed.get_mut(&node) {
                failed.owed = false;
            }
        }
    }

    /// Sends the release again if it is owed to this node.
    pub fn resend(&mut self, node: NodeId) -> Option<Command> {
        let failed = self.failed.get_mut(&node).filter(|failed| failed.owed)?;
        failed.owed = false;
        self.answers.awaited.insert(node);
        Some(self.command())
    }

    /// Lets go of what has become pointless: releases of keys that have expired. A caller that
    /// waits for the outcome is told what is known by its time, with the answers that have come
    /// until then.
    pub fn handle_time(&mut self, now: Reading) {
        if let Some(report) = &mut self.report {
            report.time_is_up |= report.due.remaining(now).is_zero();
        }
        for node in self.answers.awaited.iter() {
            let until = self.until_of(node);
            if until.remaining(now).is_zero() {
                self.answers.awaited.remove(node);
                let failure = Failure::new(FailureKind::Silent);
                self.failed.insert(node, Failed { failure, owed: false, until });
            }
        }
        for failed in self.failed.values_mut() {
            failed.owed &= !failed.until.remaining(now).is_zero();
        }
    }

    /// When time next changes something.
    pub fn deadline(&self) -> Option<BootTime> {
        let awaited = self.answers.awaited.iter().map(|node| self.until_of(node));
        let owed = self.failed.values().filter(|failed| failed.owed).map(|failed| failed.until);
        awaited.chain(owed).chain(self.report.as_ref().map(|report| report.due)).min()
    }

    /// When this node's key has expired for certain.
    fn until_of(&self, node: NodeId) -> BootTime {
        self.failed.get(&node).map_or(self.until, |failed| failed.until)
    }

    /// The keys that are still on nodes, for all that is known: the release has failed there, and they have not expired.
    pub(crate) fn leftovers(&self, now: Reading) -> impl Iterator<Item = Leftover> {
        let may_be_there = move |(node, failed): &(&NodeId, &Failed)| {
            self.reached.contains(**node) && !failed.until.remaining(now).is_zero()
        };
        self.failed.iter().filter(may_be_there).map(|(node, failed)| Leftover {
            node: *node,
            value: self.entry.value.clone(),
            was_granted: self.held.contains(*node),
            failure: failed.failure.clone(),
        })
    }

    /// The release is owed to this node.
    pub fn is_owed_to(&self, node: NodeId) -> bool {
        self.failed.get(&node).is_some_and(|failed| failed.owed)
    }

    /// Nothing is awaited, nothing owed, nobody waits for the outcome.
    pub fn is_over(&self) -> bool {
        self.report.is_none()
            && self.answers.awaited.is_empty()
            && !self.failed.values().any(|failed| failed.owed)
    }

    /// The outcome and whom to tell, once, as soon as it is clear or its time is up.
    pub fn poll_report(&mut self) -> Option<(LockId, ReleaseReport)> {
        let report = self.report.as_ref()?;
        let holder = report.holder;
        let outcome = self.outcome(report.was_valid, report.time_is_up)?;
        self.report = None;
        let nodes = self.quorum.node_ids().map(|node| self.tell(node)).collect();
        Some((holder, ReleaseReport { outcome, handed_over: false, nodes }))
    }

    fn outcome(&self, was_valid: bool, time_is_up: bool) -> Option<Outcome> {
        if was_valid && self.quorum.is_reached(self.answers.deleted.len()) {
            return Some(Outcome::Released);
        }
        if !self.answers.awaited.is_empty() && !time_is_up {
            return None;
        }
        // Definitely gone, although held: if without these there is no quorum, the lock had been
        // lost before we gave it back.
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

    /// What the node said, for people.
    fn tell(&self, node: NodeId) -> NodeReleased {
        if self.answers.deleted.contains(node) {
            return NodeReleased::Deleted;
        }
        if self.answers.other.contains(node) {
            return NodeReleased::Other;
        }
        match self.failed.get(&node) {
            _ if self.answers.is_gone(node) && self.held.contains(node) => NodeReleased::LostEarly,
            _ if self.answers.is_gone(node) => NodeReleased::NeverGranted,
            Some(failed) if !self.answers.awaited.contains(node) => {
                NodeReleased::Failed(failed.failure.clone())
            }
            _ => NodeReleased::Unanswered,
        }
    }

    /// Who waits for the outcome.
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
            report.due = report.due.shifted(base);
        }
    }
}

/// How a release went, by our clock and the nodes' answers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReleaseReport {
    /// How the release went.
    pub outcome: Outcome,
    /// The lock was passed on to the next caller of this process: no node was asked to delete it.
    pub handed_over: bool,
    /// What each node said, in the order of the client's list.
    pub nodes: Vec<NodeReleased>,
}

/// The outcome of a release.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// The lock was valid when the release was called, and a quorum deleted it: it is free.
    Released,
    /// The lock had been lost or had expired before the release was called; nothing of another's
    /// was touched.
    Expired,
    /// As `Expired`, and somebody else's value was seen under the key.
    TakenByOther,
    /// The lock was valid, but too few nodes answered; it is gone within its ttl at the latest.
    Unknown,
}

/// What one node said to a release.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum NodeReleased {
    /// It deleted our key.
    Deleted,
    /// It had no key, and had not given its vote either.
    NeverGranted,
    /// It had given its vote, but the key was gone.
    LostEarly,
    /// It holds another value under the key, which was left alone.
    Other,
    /// It had not answered when the outcome was clear.
    Unanswered,
    /// It was not asked: the lock was passed on to the next caller of this process.
    HandedOver,
    /// It failed; if it may hold the key, the release is owed.
    Failed(Failure),
}
