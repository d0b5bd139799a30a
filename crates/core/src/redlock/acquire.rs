//! One attempt to acquire a lock: the paper's five steps.
//!
//! An [`Attempt`] is one round with one fresh token (S6); a retry is a new attempt. That is what
//! makes a late release of an older attempt harmless: it compares a value nobody else ever used.
//!
//! The attempt decides nothing twice. After a yes, later answers go to the lease. After a no, they
//! go nowhere: a release is queued behind every command, so whatever the node granted is void (S1).

mod report;
mod slots;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use crate::command::{Answer, Command, Counter, Failure, FailureKind, Holding};
use crate::keys::{Entry, Mode, intents};
use crate::redlock::fence::FenceRequest;
use crate::redlock::quorum::{NodeId, NodeSet, Quorum};
use crate::redlock::release::Release;
use crate::redlock::vote::Validity;
use crate::time::{BootTime, Reading};
use crate::timing::Timing;

pub(crate) use self::report::why_not;
pub use self::report::{NodeOutcome, NodeResult};
use self::slots::{Slot, Slots};

/// One attempt: the same keys and value asked of every node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Attempt {
    quorum: Quorum,
    timing: Timing,
    node_timeout: Duration,
    entry: Entry,
    started: Reading,
    slots: Slots,
    /// Of a lock that is to have a fence. Boxed, because most have none.
    fence_request: Option<Box<FenceRequest>>,
}

/// What follows from the answers so far.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum Decision {
    /// Not decided: more answers are awaited.
    Wait,
    /// A quorum has granted, but not with the same number: ask these nodes to raise theirs
    /// ([`Attempt::raise_command`]).
    Raise(NodeSet),
    /// The lock is held, as long as this says.
    Acquired(Validity),
    /// The lock is not held; step 5 is due.
    GiveUp(FailureReason),
}

/// Why an attempt failed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FailureReason {
    /// Nodes refused, and without these refusals a quorum would have been possible: somebody else
    /// holds the lock, or wants it too.
    Contended,
    /// Too many nodes failed: no quorum was possible, whatever the others say.
    NoQuorum,
    /// A quorum granted, but too late: too little validity was left.
    TooSlow,
    /// Too many nodes are not trusted, or not yet: no quorum is possible, whatever the others say.
    NodesUntrusted,
}

impl Attempt {
    /// Starts an attempt. `connecting` tells which nodes are still being connected to.
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
        let slots = quorum
            .node_ids()
            .map(|node| if connecting(node) { connection_due } else { answer_due })
            .map(|due| Slot::Outstanding { due })
            .collect();
        Self { quorum, timing, node_timeout, entry, started, slots, fence_request: None }
    }

    /// The lock is to have a fence, which is counted there; no number above `seen` has been told to
    /// this call so far.
    pub fn seek_fence(&mut self, counter: Counter, seen: u64) {
        self.fence_request = Some(Box::new(FenceRequest::new(counter, seen)));
    }

    /// Step 2: the same keys and value for every node, all at the same time, each node with a
    /// timeout that is small against the ttl. The first `prefix_bytes` of each key are the client's prefix.
    pub fn command(&self, prefix_bytes: u16) -> Command {
        let Entry { keys, mode, value } = self.entry.clone();
        let ttl_ms = self.timing.ttl_ms();
        match (mode, &self.fence_request) {
            (Mode::Exclusive, None) => Command::Acquire { keys, value, ttl_ms },
            (Mode::Exclusive, Some(fence_request)) => {
                let proposal = fence_request.proposal(self.started);
                let counter = fence_request.counter.clone();
                Command::AcquireFenced { keys, value, ttl_ms, counter, proposal }
            }
            (Mode::Shared, _) => {
                let intents = intents(&keys, prefix_bytes);
                Command::AcquireShared { keys, intents, value, ttl_ms }
            }
        }
    }

    /// What [`Decision::Raise`] asks for.
    pub fn raise_command(&self) -> Option<Command> {
        let fence_request = self.fence_request.as_ref()?;
        Some(Command::Raise {
            keys: self.entry.keys.clone(),
            value: self.entry.value.clone(),
            counter: fence_request.counter.clone(),
            to: fence_request.write_back.number(),
        })
    }

    /// The lock's fence, once it is held. Until then: the number that is about to become the fence.
    pub fn fence(&self) -> Option<u64> {
        self.fence_request.as_ref().map(|fence_request| fence_request.write_back.number())
    }

    /// The largest number that the call has been told.
    pub(crate) fn seen(&self) -> u64 {
        self.fence_request.as_ref().map_or(0, |fence_request| fence_request.seen)
    }

    /// Counts a node's answer to a command that was sent at `sent`.
    pub fn handle_answer(
        &mut self,
        node: NodeId,
        sent: Reading,
        answer: Answer,
        now: Reading,
    ) -> Decision {
        let took = now.elapsed_since(self.started);
        let slot = &mut self.slots[node.index()];
        // A node timeout only stops waiting: a grant that comes late, but before the decision,
        // counts, from its own time of sending.
        let awaited = match slot {
            Slot::Outstanding { .. } => true,
            Slot::Failed { failure, .. } => failure.kind() == FailureKind::Silent,
            Slot::Granted { .. } | Slot::Refused { .. } | Slot::Gone { .. } => false,
        };
        if awaited {
            let sent = if mutant!(ValidityFromReply) { now } else { sent };
            *slot = match (answer, &mut self.fence_request) {
                (Answer::Granted, None) => Slot::Granted { sent, took },
                (Answer::Refused, None) => Slot::Refused { took, holding: None },
                (Answer::GrantedFenced { fence }, Some(fence_request))
                    if fence < Counter::LIMIT =>
                {
                    fence_request.note(fence);
                    fence_request.write_back.handle_vote(node, fence);
                    Slot::Granted { sent, took }
                }
                (Answer::RefusedFenced { fence, holding }, Some(fence_request)) => {
                    fence_request.note(fence);
                    Slot::Refused { took, holding: Some(holding) }
                }
                (Answer::Failed(failure), _) => Slot::Failed { failure, took },
                _ => Slot::Failed { failure: Failure::new(FailureKind::Protocol), took },
            };
        }
        self.decide(now)
    }

    /// Takes a node's answer to [`Attempt::raise_command`]. That our key is not there any more, or not
    /// there either, proves the vote gone.
    pub fn handle_raised(&mut self, node: NodeId, answer: Answer, now: Reading) -> Decision {
        let took = now.elapsed_since(self.started);
        let slot = &mut self.slots[node.index()];
        let (Some(fence_request), Slot::Granted { .. }) = (&mut self.fence_request, &slot) else {
            return Decision::Wait;
        };
        match answer {
            Answer::Raised { fence } => {
                fence_request.note(fence);
                fence_request.write_back.handle_raised(node, fence);
            }
            Answer::Absent => *slot = Slot::Gone { took },
            Answer::Other => *slot = Slot::Refused { took, holding: None },
            Answer::Failed(failure) => fence_request.write_back.fail(node, failure),
            _ => fence_request.write_back.fail(node, Failure::new(FailureKind::Protocol)),
        }
        if !matches!(slot, Slot::Granted { .. }) {
            fence_request.write_back.drop_vote(node);
        }
        self.decide(now)
    }

    /// Stops waiting for nodes whose time is up; calls `timed_out` for each.
    pub fn handle_time(&mut self, now: Reading, mut timed_out: impl FnMut(NodeId)) -> Decision {
        let took = now.elapsed_since(self.started);
        for (node, slot) in self.quorum.node_ids().zip(&mut *self.slots) {
            if let Slot::Outstanding { due } = slot
                && due.remaining(now).is_zero()
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

    /// The connection to `node` has been made: its time to answer runs from now.
    pub fn handle_connected(&mut self, node: NodeId, now: Reading) {
        if let Slot::Outstanding { due } = &mut self.slots[node.index()] {
            *due = now.after(self.node_timeout);
        }
    }

    /// The connection to `node` is being made: that has a bound of its own.
    pub fn handle_connecting(&mut self, node: NodeId, now: Reading) {
        if let Slot::Outstanding { due } = &mut self.slots[node.index()] {
            *due = now.after(self.timing.connect_timeout().saturating_add(self.node_timeout));
        }
    }

    /// The node is not asked: its vote would not count.
    pub(crate) fn bar(&mut self, node: NodeId, failure: Failure) {
        self.slots[node.index()] = Slot::Failed { failure, took: Duration::ZERO };
    }

    /// When the next node's time is up.
    pub fn deadline(&self) -> Option<BootTime> {
        let slots = self.slots.iter().filter_map(|slot| match slot {
            Slot::Outstanding { due } => Some(*due),
            _ => None,
        });
        let raises = self
            .fence_request
            .as_ref()
            .and_then(|fence_request| fence_request.write_back.deadline());
        slots.chain(raises).min()
    }

    /// Step 3: acquired if and only if a majority granted, and what is left of the validity is
    /// enough. Decided as early as possible, both ways (V2).
    fn decide(&mut self, now: Reading) -> Decision {
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
            // The clock was read after the deciding answer (S5): a process that slept with all
            // its answers in the socket's buffer holds nothing.
            let valid_for = validity.valid_for(now);
            let enough = valid_for >= self.timing.min_validity();
            if enough && valid_for > self.timing.margin() || mutant!(NoClockCheck) {
                return match self.fence_request {
                    None => Decision::Acquired(validity),
                    Some(_) => self.record(validity, outstanding, now),
                };
            }
            // Who granted and could not record the fence is why there is none, and not the time.
            let voters = self.voters();
            return Decision::GiveUp(match self.quorum.is_out_of_reach(voters, outstanding) {
                true => self.why_not(voters, outstanding),
                false => FailureReason::TooSlow,
            });
        }
        if self.quorum.is_out_of_reach(granted, outstanding) {
            return Decision::GiveUp(self.why_not(self.voters(), outstanding));
        }
        Decision::Wait
    }

    /// How many nodes have granted, and have not failed since to record the fence.
    fn voters(&self) -> usize {
        self.granting().filter(|node| self.failure(*node).is_none()).count()
    }

    /// Why a node has failed, be it to grant or to record the fence.
    fn failure(&self, node: NodeId) -> Option<&Failure> {
        match &self.slots[node.index()] {
            Slot::Failed { failure, .. } => Some(failure),
            Slot::Granted { .. } => self.fence_request.as_ref()?.write_back.failure(node),
            Slot::Outstanding { .. } | Slot::Refused { .. } | Slot::Gone { .. } => None,
        }
    }

    /// A quorum has granted. A lock with a fence is acquired when a quorum of its nodes have recorded
    /// it (S18): at once, if they all granted the same number; else after they have been raised to it.
    fn record(&mut self, validity: Validity, outstanding: usize, now: Reading) -> Decision {
        let voters: NodeSet = self.granting().collect();
        let due = now.after(self.node_timeout);
        let quorum = self.quorum;
        let Some(fence_request) = &mut self.fence_request else {
            return Decision::Acquired(validity);
        };
        let (recorded, _) = fence_request.write_back.counts();
        let more = usize::from(mutant!(QuorumLessOne) && quorum.needed() > 1);
        if quorum.is_reached(recorded + more) || mutant!(NoWriteBack) {
            return Decision::Acquired(validity);
        }
        let below = fence_request.write_back.ask(voters, due);
        if !below.is_empty() {
            return Decision::Raise(below);
        }
        let (recorded, awaited) = fence_request.write_back.counts();
        // A vote that is still to come may come with the number, or with a larger one.
        let open = awaited + outstanding;
        if quorum.is_out_of_reach(recorded, open) {
            return Decision::GiveUp(self.why_not(recorded, open));
        }
        Decision::Wait
    }

    /// Step 4: the validity is what is left of the ttl, counted from before the sending, less the
    /// drift; per node, so that the lock is valid until the Q-th largest end.
    fn validity(&self) -> Validity {
        let votes = self.slots.iter().map(|slot| match slot {
            Slot::Granted { sent, .. } => Some(*sent),
            _ => None,
        });
        Validity::new(votes, self.quorum, self.timing.term(), self.timing.margin())
    }

    /// Step 5: on failure, release on *every* node, also those that seemed not to grant: each
    /// release goes behind the acquire on the same connection.
    #[must_use]
    pub fn give_up(&self, now: Reading) -> Release {
        let entry = self.entry.clone();
        let votes = (self.reached(), self.granting().collect());
        Release::after_attempt(entry, self.quorum, &self.timing, votes, now)
    }

    /// Which nodes a command of this attempt may have reached.
    pub(crate) fn reached(&self) -> NodeSet {
        let reached = |slot: &Slot| match slot {
            Slot::Failed { failure, .. } if mutant!(NoReleaseToTimedOut) => {
                failure.kind() != FailureKind::Silent
            }
            Slot::Failed { failure, .. } => failure.may_have_been_executed(),
            _ => true,
        };
        self.quorum.node_ids().filter(|node| reached(&self.slots[node.index()])).collect()
    }

    /// Why there is no quorum, when the caller's patience ends before the attempt is decided: who
    /// has not answered by then counts as failed.
    pub(crate) fn why_not_yet(&self) -> FailureReason {
        self.why_not(self.voters(), 0)
    }

    /// Contention is never inferred from an I/O error (S26): the refusals must have been decisive,
    /// that is, without them there might be a quorum, with the votes that could still come
    /// (`outstanding`). The first refusal that decides must not make "too few nodes" of a lock that
    /// is held, only because the other holders' nodes have not been heard yet.
    fn why_not(&self, granted: usize, outstanding: usize) -> FailureReason {
        let distrusted = self.failures().filter(|failure| failure.kind().is_about_trust()).count();
        if self.quorum.is_out_of_reach(self.quorum.nodes() - distrusted, 0) {
            return FailureReason::NodesUntrusted;
        }
        let refused = self.count(|slot| matches!(slot, Slot::Refused { .. }));
        if refused > 0 && self.quorum.is_reached(granted + refused + outstanding) {
            FailureReason::Contended
        } else {
            FailureReason::NoQuorum
        }
    }

    /// So many nodes fail for want of rights that waiting cannot help.
    pub(crate) fn is_permission_denied(&self) -> bool {
        let failed = self.failures().filter(|failure| failure.kind().is_about_rights()).count();
        self.quorum.is_out_of_reach(self.quorum.nodes() - failed, 0)
    }

    fn failures(&self) -> impl Iterator<Item = &Failure> {
        self.quorum.node_ids().filter_map(|node| self.failure(node))
    }

    /// The nodes that refused.
    pub(crate) fn refusing(&self) -> impl Iterator<Item = NodeId> {
        let refused = |slot: &Slot| matches!(slot, Slot::Refused { .. });
        self.quorum.node_ids().filter(move |node| refused(&self.slots[node.index()]))
    }

    /// The nodes to be asked to tell when the lock changes: all that refused, and where those are too
    /// few to tell, because others failed or were faster, of the rest as many as it takes. A node that
    /// granted, or may have, is asked behind the release there, and tells who came next.
    pub(crate) fn telling(&self) -> NodeSet {
        let outstanding = |slot: &Slot| matches!(slot, Slot::Outstanding { .. });
        let outstanding =
            self.quorum.node_ids().filter(|node| outstanding(&self.slots[node.index()]));
        let missing = self.quorum.telling().saturating_sub(self.refusing().count());
        self.refusing().chain(self.granting().chain(outstanding).take(missing)).collect()
    }

    /// The nodes that granted.
    pub(crate) fn granting(&self) -> impl Iterator<Item = NodeId> {
        let granted = |slot: &Slot| matches!(slot, Slot::Granted { .. });
        self.quorum.node_ids().filter(move |node| granted(&self.slots[node.index()]))
    }

    /// What each node said, for people.
    pub(crate) fn report(&self, now: Reading) -> Vec<NodeResult> {
        let so_far = now.elapsed_since(self.started);
        // Who granted, and then failed to raise its number, is told of as failed.
        let tell = |(node, slot): (NodeId, &Slot)| match slot {
            Slot::Outstanding { .. } => NodeResult::new(NodeOutcome::Nothing, so_far),
            Slot::Granted { took, .. } => match self.failure(node) {
                None => NodeResult::new(NodeOutcome::Granted, *took),
                Some(failure) => NodeResult::new(NodeOutcome::Failed(failure.clone()), so_far),
            },
            Slot::Refused { took, holding } => {
                NodeResult::new(NodeOutcome::Refused(holding.as_deref().cloned()), *took)
            }
            Slot::Failed { failure, took } => {
                NodeResult::new(NodeOutcome::Failed(failure.clone()), *took)
            }
            Slot::Gone { took } => NodeResult::new(NodeOutcome::Seen(Holding::Free), *took),
        };
        self.quorum.node_ids().zip(&*self.slots).map(tell).collect()
    }

    /// What of it lives on in the lease.
    pub(crate) fn into_parts(self) -> (Quorum, Entry, Option<Box<FenceRequest>>) {
        (self.quorum, self.entry, self.fence_request)
    }

    pub(crate) fn shift(&mut self, base: Reading) {
        self.started = Reading::default();
        for slot in &mut *self.slots {
            match slot {
                Slot::Outstanding { due } => *due = due.shifted(base),
                Slot::Granted { sent, took } => {
                    (*sent, *took) = (sent.shifted(base), Duration::ZERO);
                }
                Slot::Refused { took, .. } | Slot::Failed { took, .. } | Slot::Gone { took } => {
                    *took = Duration::ZERO;
                }
            }
        }
        if let Some(fence_request) = &mut self.fence_request {
            fence_request.shift(base);
        }
    }

    fn count(&self, is: impl Fn(&Slot) -> bool) -> usize {
        self.slots.iter().filter(|slot| is(slot)).count()
    }
}
