//! One attempt to acquire a lock: the paper's five steps, in the order of the paper.
//!
//! An [`Attempt`] is one round with one fresh token (S6). A retry is a new attempt. A late release of an older attempt
//! is therefore harmless: it deletes only a value that no other attempt ever used.
//!
//! An attempt is decided once. After a success, later answers go to the lease. After a failure, they are ignored,
//! because a release is queued behind every command and deletes a vote that a node grants late (S1).

mod diagnosis;
mod fencing;
mod slots;

use alloc::boxed::Box;
use core::time::Duration;

use crate::command::{Answer, Command, Failure, FailureKind};
use crate::keys::{Entry, Mode, Origin, intents};
use crate::redlock::fence::FenceRequest;
use crate::redlock::quorum::{NodeId, NodeSet, Quorum};
use crate::redlock::release::Release;
use crate::redlock::vote::Validity;
use crate::time::Reading;
use crate::timing::Timing;

pub(crate) use self::diagnosis::why_not;
pub use self::diagnosis::{FailureReason, NodeOutcome, NodeResult};
use self::slots::{Slot, Slots};

/// One attempt, which sends the same keys and the same value to every node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Attempt {
    quorum: Quorum,
    timing: Timing,
    node_timeout: Duration,
    entry: Entry,
    started: Reading,
    slots: Slots,
    /// Boxed because most locks have no fencing token.
    fence_request: Option<Box<FenceRequest>>,
}

/// The state of an attempt, decided by the answers so far.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum Decision {
    /// The outcome depends on outstanding answers.
    Wait,
    /// A quorum granted with different counters. The nodes in this set must raise theirs ([`Attempt::raise_command`]).
    Raise(NodeSet),
    /// The lock is held for this validity.
    Acquired(Validity),
    /// The lock is not held, and the release (step 5) is due.
    GiveUp(FailureReason),
}

impl Attempt {
    /// Starts an attempt. `connecting` returns whether the connection to a node is still being made.
    pub fn start(
        entry: Entry,
        quorum: Quorum,
        timing: Timing,
        node_timeout: Duration,
        connecting: impl Fn(NodeId) -> bool,
        now: Reading,
    ) -> Self {
        // Step 1: get the current time.
        let started = now;
        let answer_due = now.after(node_timeout);
        let connection_due = now.after(timing.connect_timeout().saturating_add(node_timeout));
        let slots = Slots::new(quorum.nodes(), |node| {
            let is_connecting = connecting(NodeId::new(node));
            Slot::Outstanding { due: if is_connecting { connection_due } else { answer_due } }
        });
        Self { quorum, timing, node_timeout, entry, started, slots, fence_request: None }
    }

    /// Step 2: the command for every node, with the same keys and value. It is sent to all nodes at the same time, each
    /// with a timeout that is small compared with the ttl. The first `prefix_bytes` of each key are the client's
    /// prefix.
    pub fn command(&self, prefix_bytes: u16) -> Command {
        let ttl_ms = self.timing.ttl_ms();
        let from = match &self.entry.origin {
            Origin::Absent => None,
            Origin::Detached(from) => Some(from.value.clone()),
            Origin::Taken(from) => return Command::Take { taken: self.entry.taken(from), ttl_ms },
        };
        let Entry { keys, mode, value, .. } = &self.entry;
        let (keys, mode, value) = (keys.clone(), *mode, value.clone());
        match (mode, &self.fence_request, from) {
            (Mode::Exclusive, Some(fence_request), from) => {
                let proposal = fence_request.proposal(self.started);
                let counter = fence_request.counter.clone();
                match from {
                    Some(from) => {
                        Command::AttachFenced { keys, from, value, ttl_ms, counter, proposal }
                    }
                    None => Command::AcquireFenced { keys, value, ttl_ms, counter, proposal },
                }
            }
            (_, _, Some(from)) => Command::Attach { keys, mode, from, value, ttl_ms },
            (Mode::Exclusive, None, None) => Command::Acquire { keys, value, ttl_ms },
            (Mode::Shared, _, None) => {
                let intents = intents(&keys, prefix_bytes);
                Command::AcquireShared { keys, intents, value, ttl_ms }
            }
        }
    }

    /// Notes that the connection to `node` is being made or, with `is_being_made` false, that it has been made. Making
    /// a connection has a timeout of its own, and the node's time to answer begins after that.
    pub fn handle_connection(&mut self, node: NodeId, is_being_made: bool, now: Reading) {
        if let Slot::Outstanding { due } = &mut self.slots[node.index()] {
            let connect_timeout = self.timing.connect_timeout();
            let before = if is_being_made { connect_timeout } else { Duration::ZERO };
            *due = now.after(before.saturating_add(self.node_timeout));
        }
    }

    /// Counts the answer of `node` to the command that was sent at `sent`.
    pub fn handle_answer(
        &mut self,
        node: NodeId,
        sent: Reading,
        answer: &Answer,
        now: Reading,
    ) -> Decision {
        let took = now.elapsed_since(self.started);
        let slot = &mut self.slots[node.index()];
        // A node timeout only ends the wait for the node. A grant that arrives later but before the decision still
        // counts, and its validity runs from the time when its own command was sent.
        let awaited = match slot {
            Slot::Outstanding { .. } => true,
            Slot::Failed { failure, .. } => failure.kind() == FailureKind::Silent,
            Slot::Granted { .. } | Slot::Refused { .. } | Slot::Gone { .. } => false,
        };
        if awaited {
            let attaches = matches!(self.entry.origin, Origin::Detached(_));
            let sent = if mutant!(ValidityFromReply) { now } else { sent };
            *slot = match (answer, &mut self.fence_request) {
                (Answer::Granted, None) => Slot::Granted { sent, took },
                (Answer::Refused | Answer::Other, None) => Slot::Refused { took, holding: None },
                (Answer::Absent, None) => Slot::Gone { took },
                (Answer::Failed(failure), _) => Slot::Failed { failure: failure.clone(), took },
                (answer, Some(request)) => {
                    fencing::vote((request, attaches), node, answer, sent, took)
                }
                (_, None) => Slot::Failed { failure: Failure::new(FailureKind::Protocol), took },
            };
        }
        self.decide(now)
    }

    /// Ends the wait for nodes past their timeout, and calls `timed_out` for each of them.
    pub fn handle_time(&mut self, now: Reading, mut timed_out: impl FnMut(NodeId)) -> Decision {
        let took = now.elapsed_since(self.started);
        for (node, slot) in self.quorum.node_ids().zip(&mut *self.slots) {
            if let Slot::Outstanding { due } = slot
                && due.has_come(now)
            {
                *slot = Slot::Failed { failure: Failure::new(FailureKind::Silent), took };
                timed_out(node);
            }
        }
        if let Some(fence_request) = &mut self.fence_request {
            fence_request.write_back.handle_time(now, timed_out);
        }
        self.decide(now)
    }

    /// Step 3: acquired if and only if a majority granted and enough of the validity is left. Both success and failure
    /// are decided as early as possible (V2).
    pub(crate) fn decide(&mut self, now: Reading) -> Decision {
        let (mut granted, mut outstanding) = (0, 0);
        for slot in &*self.slots {
            match slot {
                Slot::Granted { .. } => granted += 1,
                Slot::Outstanding { .. } => outstanding += 1,
                Slot::Refused { .. } | Slot::Failed { .. } | Slot::Gone { .. } => {}
            }
        }
        let more = usize::from(mutant!(QuorumLessOne) && self.quorum.needed() > 1);
        if self.quorum.is_reached(granted + more) {
            let validity = self.validity();
            // The clock was read after the deciding answer (S5). So a process that slept while all answers were in the
            // socket's buffer finds too little validity.
            let min_validity = self.timing.min_validity();
            let enough = min_validity.is_zero() || validity.valid_for(now) >= min_validity;
            if enough && validity.lasts(Duration::ZERO, now) || mutant!(NoClockCheck) {
                return self.record(validity, outstanding, now);
            }
            return Decision::GiveUp(self.why_too_late(outstanding));
        }
        // An attach waits for all answers, because they show whether the lock is gone or another client has it.
        let is_awaited = outstanding > 0 && matches!(self.entry.origin, Origin::Detached(_));
        if self.quorum.is_out_of_reach(granted, outstanding) && !is_awaited {
            return Decision::GiveUp(self.why_not(self.voters(), outstanding));
        }
        Decision::Wait
    }

    /// Step 4: a vote counts for the ttl less the drift, from a time before its command was sent. The lock is valid
    /// until the Q-th largest end of its votes.
    fn validity(&self) -> Validity {
        let votes = self.slots.iter().map(|slot| match slot {
            Slot::Granted { sent, .. } => Some(*sent),
            _ => None,
        });
        Validity::new(votes, self.quorum, self.timing.term(), self.timing.margin())
    }

    /// Step 5: on failure, release on *every* node, also on those that seemed not to grant. Each
    /// release follows the acquire on the same connection. `round` is the attempt's own round.
    #[must_use]
    pub fn give_up(&self, round: u32, now: Reading) -> Release {
        let votes = (self.reached(), self.granting().collect());
        let mut entry = self.entry.clone();
        if !self.gives_back() {
            entry = entry.held();
        }
        Release::new(entry, round, (self.quorum, &self.timing), votes, now)
    }

    /// Whether too few nodes for a quorum can still have the detached lock's value. A writer's value never returns
    /// where it is absent. A reader's value may: another attach may have replaced it, and restores it on failure.
    pub(crate) fn is_gone(&self) -> bool {
        let gone = self.count(|slot| matches!(slot, Slot::Gone { .. }));
        self.quorum.is_out_of_reach(self.quorum.nodes() - gone, 0)
    }

    /// Whether a failed attach restores the value that it replaced. Another attach may have failed at the same moment,
    /// and one of the next attempts can succeed once both have restored the value.
    fn gives_back(&self) -> bool {
        (self.entry.mode == Mode::Shared || !self.is_gone()) && !mutant!(AttachNotGivenBack)
    }
}
