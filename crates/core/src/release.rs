//! Releasing on every node, for a reason or another: one machine from the first compare-and-delete
//! to the last answer, including what stays *owed* when a node cannot be reached.
//!
//! A release is queued behind the acquire on the same connection. When that connection breaks, the
//! release is owed: it is sent again, because to compare and delete twice does no harm, until the
//! key must have expired anyway.

use alloc::vec::Vec;
use core::time::Duration;

use crate::command::{Answer, Command, Failure, FailureKind};
use crate::engine::LockId;
use crate::quorum::{NodeId, NodeSet, Quorum};
use crate::time::{BootTime, Reading};
use crate::timing::Timing;
use crate::token::{Key, Value};
use crate::vote::Validity;

/// How long after the ttl a release is kept in mind that has neither been answered nor failed.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

/// One token being released on every node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Release {
    key: Key,
    value: Value,
    quorum: Quorum,
    ttl: Duration,
    /// The round of the attempt whose token this is.
    attempt: u32,
    /// A command with this token may have reached the node.
    reached: NodeSet,
    /// The node's vote was held when the release began.
    held: NodeSet,
    slots: Vec<Slot>,
    report: Option<Report>,
}

/// What is known of one node in this release.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Slot {
    /// When it is let go of, whatever is known by then: the key has expired by itself.
    until: BootTime,
    state: SlotState,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum SlotState {
    Sent,
    Owed(Failure),
    Deleted,
    Absent,
    Other,
    NotOurs,
    /// Failed, and nothing is owed: no command with this token ever reached the node, or the key
    /// has expired since.
    Over(Failure),
}

impl SlotState {
    /// The node said that our key is not there.
    const fn is_gone(&self) -> bool {
        matches!(self, Self::Absent | Self::Other | Self::NotOurs)
    }

    /// An answer is awaited, or the release is owed.
    const fn is_open(&self) -> bool {
        matches!(self, Self::Sent | Self::Owed(_))
    }

    /// For people; `held`: the node's vote was held.
    fn tell(&self, held: bool) -> NodeReleased {
        match self {
            Self::Deleted => NodeReleased::Deleted,
            Self::Absent | Self::NotOurs if held => NodeReleased::LostEarly,
            Self::Absent | Self::NotOurs => NodeReleased::NeverGranted,
            Self::Other => NodeReleased::Other,
            Self::Sent => NodeReleased::Unanswered,
            Self::Owed(failure) | Self::Over(failure) => NodeReleased::Failed(failure.clone()),
        }
    }
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
        key: Key,
        value: Value,
        quorum: Quorum,
        timing: &Timing,
        reached: NodeSet,
        now: Reading,
    ) -> Self {
        let until = now.after(timing.ttl().saturating_add(GIVE_UP_AFTER));
        let slot = |_| Slot { until, state: SlotState::Sent };
        let slots = quorum.node_ids().map(slot).collect();
        let (ttl, held) = (timing.ttl(), NodeSet::default());
        Self { key, value, quorum, ttl, attempt: 0, reached, held, slots, report: None }
    }

    /// Notes which attempt's token this is, for [`Release::handle_unreached`].
    pub(crate) fn of_attempt(self, attempt: u32) -> Self {
        Self { attempt, ..self }
    }

    /// The end of a lease. With `report`, its holder is told the outcome once it is clear, or
    /// after the time given.
    pub(crate) fn of_lease(
        (key, value): (Key, Value),
        timing: &Timing,
        reached: NodeSet,
        validity: &Validity,
        report: Option<(LockId, Duration)>,
        (quorum, now): (Quorum, Reading),
    ) -> Self {
        let mut release = Self::after_attempt(key, value, quorum, timing, reached, now);
        release.held = validity.held();
        release.report = report.map(|(holder, timeout)| Report {
            holder,
            was_valid: validity.lasts(Duration::ZERO, now),
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
        let tell = self.report.is_some();
        Command::Release { key: self.key.clone(), value: self.value.clone(), tell }
    }

    /// Takes a node's answer.
    pub fn handle_answer(&mut self, node: NodeId, answer: Answer, now: Reading) {
        let slot = &mut self.slots[node.index()];
        if slot.state != SlotState::Sent {
            return;
        }
        // A release that failed is owed, unless there is nothing to release.
        let owed = self.reached.contains(node);
        let failed = |failure| match owed {
            true => SlotState::Owed(failure),
            false => SlotState::Over(failure),
        };
        slot.state = match answer {
            Answer::Deleted => SlotState::Deleted,
            Answer::Absent => SlotState::Absent,
            Answer::Other => SlotState::Other,
            Answer::NotOurs => SlotState::NotOurs,
            Answer::Failed(failure) => failed(failure),
            _ => failed(Failure::new(FailureKind::Protocol)),
        };
        // Everything that could have made the key was sent before the first failure, so a ttl
        // after that one the key is gone. A failure to send again does not put that off.
        if matches!(slot.state, SlotState::Owed(_)) {
            slot.until = slot.until.min(now.after(self.ttl));
        }
    }

    /// The acquire of this attempt turns out never to have reached the node: nothing is owed
    /// there, and nobody who waits for what is owed has to wait for it.
    pub(crate) fn handle_unreached(&mut self, node: NodeId, attempt: u32) {
        let slot = &mut self.slots[node.index()];
        if attempt == self.attempt {
            self.reached.remove(node);
            if let SlotState::Owed(failure) = &slot.state {
                slot.state = SlotState::Over(failure.clone());
            }
        }
    }

    /// Sends the release again if it is owed to this node.
    pub fn resend(&mut self, node: NodeId) -> Option<Command> {
        let slot = &mut self.slots[node.index()];
        if !matches!(slot.state, SlotState::Owed(_)) {
            return None;
        }
        slot.state = SlotState::Sent;
        Some(self.command())
    }

    /// Lets go of what has become pointless: releases of keys that have expired. Whoever waits for
    /// the outcome is told what is known by its time, with the answers that have come till then.
    pub fn handle_time(&mut self, now: Reading) {
        if let Some(report) = &mut self.report {
            report.time_is_up |= report.due.remaining(now).is_zero();
        }
        for slot in &mut self.slots {
            if slot.until.remaining(now).is_zero() {
                slot.state = match &slot.state {
                    SlotState::Owed(failure) => SlotState::Over(failure.clone()),
                    SlotState::Sent => SlotState::Over(Failure::new(FailureKind::Silent)),
                    _ => continue,
                };
            }
        }
    }

    /// When time next changes something.
    pub fn deadline(&self) -> Option<BootTime> {
        let open = self.slots.iter().filter(|slot| slot.state.is_open()).map(|slot| slot.until);
        open.chain(self.report.as_ref().map(|report| report.due)).min()
    }

    /// The release is owed to this node.
    pub fn is_owed_to(&self, node: NodeId) -> bool {
        matches!(self.slots[node.index()].state, SlotState::Owed(_))
    }

    /// Nothing is awaited, nothing owed, nobody waits for the outcome.
    pub fn is_over(&self) -> bool {
        self.report.is_none() && !self.slots.iter().any(|slot| slot.state.is_open())
    }

    /// The outcome and whom to tell, once, as soon as it is clear or its time is up.
    pub fn poll_report(&mut self) -> Option<(LockId, ReleaseReport)> {
        let report = self.report.as_ref()?;
        let holder = report.holder;
        let outcome = self.outcome(report.was_valid, report.time_is_up)?;
        self.report = None;
        let slots = self.quorum.node_ids().zip(&self.slots);
        let nodes = slots.map(|(node, slot)| slot.state.tell(self.held.contains(node))).collect();
        Some((holder, ReleaseReport { outcome, handed_over: false, nodes }))
    }

    fn outcome(&self, was_valid: bool, time_is_up: bool) -> Option<Outcome> {
        let count =
            |is: fn(&SlotState) -> bool| self.slots.iter().filter(|slot| is(&slot.state)).count();
        let deleted = count(|state| matches!(state, SlotState::Deleted));
        if was_valid && self.quorum.is_reached(deleted) {
            return Some(Outcome::Released);
        }
        if !time_is_up && count(|state| matches!(state, SlotState::Sent)) > 0 {
            return None;
        }
        // Definitely gone, although held: if without these there is no quorum, the lock had been
        // lost before we gave it back.
        let (mut gone, mut never) = (0, 0);
        for (node, slot) in self.quorum.node_ids().zip(&self.slots) {
            let held = self.held.contains(node);
            gone += usize::from(held && slot.state.is_gone());
            never += usize::from(!held && slot.state != SlotState::Deleted);
        }
        let proved_lost =
            gone > 0 && self.quorum.is_out_of_reach(self.quorum.nodes() - gone - never, 0);
        if was_valid && !proved_lost {
            return Some(Outcome::Unknown);
        }
        let taken = count(|state| *state == SlotState::Other) > 0;
        Some(if taken { Outcome::TakenByOther } else { Outcome::Expired })
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
        for slot in &mut self.slots {
            slot.until = slot.until.shifted(base);
        }
        if let Some(report) = &mut self.report {
            report.due = report.due.shifted(base);
        }
    }
}

/// How a release went, by our clock and the nodes' answers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReleaseReport {
    /// The outcome.
    pub outcome: Outcome,
    /// The lock was passed on to the next caller of this process: no node was asked.
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
