//! Fencing tokens: one number, recorded on a quorum of the voting nodes.
//!
//! Every node has its own counter and increases it with each vote. A lock's fencing token is the largest number that
//! came with its votes. The holder may use it once the counters of a quorum of these nodes are at *exactly* this number
//! (S18). The holder raises lower counters to it, and a node accepts this only from the holder of its vote (S19). A
//! higher counter does not count, because the node may have raised it for another holder.
//!
//! A later holder's quorum shares a node with this quorum. That node gave the later holder a larger number, and the
//! later token is at least that large. So fencing tokens are unique and grow, whatever the clocks do.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use crate::command::{Counter, Failure, FailureKind};
use crate::redlock::quorum::{NodeId, NodeSet};
use crate::time::{BootTime, Reading};

/// The record of one number, a fencing token, in the counters of a quorum: the nodes that have it so far.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct WriteBack {
    number: u64,
    /// Largest counter that a voting node has reported.
    largest: u64,
    /// Nodes whose counter equals `number`. A node with a higher counter does not belong to this set.
    recorded: NodeSet,
    /// Nodes that were asked to raise their counter.
    asked: NodeSet,
    /// For each node that was asked and has not answered, the time at which its timeout ends.
    awaited: BTreeMap<NodeId, BootTime>,
    failed: BTreeMap<NodeId, Failure>,
}

impl WriteBack {
    pub(crate) fn new(number: u64) -> Self {
        Self {
            number,
            largest: number,
            recorded: NodeSet::default(),
            asked: NodeSet::default(),
            awaited: BTreeMap::new(),
            failed: BTreeMap::new(),
        }
    }

    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    pub(crate) const fn largest(&self) -> u64 {
        self.largest
    }

    /// The number of nodes that recorded the token, and the number of nodes that may still do so.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.recorded.len(), self.awaited.len())
    }

    /// Takes the number of a vote. If it is the largest so far, it becomes the number to record, and a node that
    /// recorded a smaller number no longer counts.
    pub(crate) fn handle_vote(&mut self, node: NodeId, number: u64) {
        self.largest = self.largest.max(number);
        if number > self.number {
            let raising = !self.asked.is_empty();
            if raising && mutant!(FenceRecordedAbove) {
                return self.recorded.insert(node);
            }
            if !(raising && mutant!(LateVoteKeepsRecord)) {
                *self = Self { largest: self.largest, ..Self::new(number) };
            }
            self.number = number;
        }
        if number == self.number {
            self.recorded.insert(node);
        }
    }

    /// Returns the voters whose counter may be below the number and that were not asked to raise it. These nodes count
    /// as asked from now on.
    pub(crate) fn ask(&mut self, voters: NodeSet, due: BootTime) -> NodeSet {
        let below = |node: &NodeId| !self.recorded.contains(*node) && !self.asked.contains(*node);
        let nodes: NodeSet = voters.iter().filter(below).collect();
        for node in nodes.iter() {
            self.asked.insert(node);
            self.awaited.insert(node, due);
        }
        nodes
    }

    /// Takes a voting node's answer to a command that raises its counter. If the counter is below the present number,
    /// the answer belongs to an earlier command with a smaller number.
    pub(crate) fn handle_raised(&mut self, node: NodeId, fence: u64) {
        self.largest = self.largest.max(fence);
        if fence >= self.number {
            self.awaited.remove(&node);
            self.failed.remove(&node);
        }
        if mutant!(LateVoteKeepsRecord) && self.asked.contains(node) {
            return self.recorded.insert(node);
        }
        let above = mutant!(FenceRecordedAbove) && fence > self.number;
        if fence == self.number || above {
            self.recorded.insert(node);
        }
    }

    /// Notes that a node failed to raise its counter. A later success still counts.
    pub(crate) fn fail(&mut self, node: NodeId, failure: Failure) {
        if self.awaited.remove(&node).is_some() {
            self.failed.insert(node, failure);
        }
    }

    pub(crate) fn drop_vote(&mut self, node: NodeId) {
        self.recorded.remove(node);
        self.awaited.remove(&node);
    }

    /// Ends the wait for nodes past their timeout, and calls `timed_out` for each of them.
    pub(crate) fn handle_time(&mut self, now: Reading, mut timed_out: impl FnMut(NodeId)) {
        let failed = &mut self.failed;
        self.awaited.retain(|node, due| {
            let in_time = !due.has_come(now);
            if !in_time {
                failed.insert(*node, Failure::new(FailureKind::Silent));
                timed_out(*node);
            }
            in_time
        });
    }

    pub(crate) fn deadline(&self) -> Option<BootTime> {
        self.awaited.values().min().copied()
    }

    pub(crate) fn failure(&self, node: NodeId) -> Option<&Failure> {
        self.failed.get(&node)
    }

    fn shift(&mut self, base: Reading) {
        self.awaited.values_mut().for_each(|due| *due = due.shifted(base));
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct FenceRequest {
    pub(crate) counter: Counter,
    /// Largest number that any node has reported to this call.
    pub(crate) seen: u64,
    pub(crate) write_back: WriteBack,
}

impl FenceRequest {
    pub(crate) fn new(counter: Counter, seen: u64) -> Self {
        Self { counter, seen, write_back: WriteBack::new(0) }
    }

    /// The number to propose to every node. If it is above all counters, all nodes grant it and need no raise.
    pub(crate) fn proposal(&self, now: Reading) -> u64 {
        let micros = u64::try_from(now.real_ns() / 1000).unwrap_or(0);
        micros.max(self.seen.saturating_add(1)).min(Counter::LIMIT - 1)
    }

    pub(crate) fn note(&mut self, number: u64) {
        self.seen = self.seen.max(number);
    }

    pub(crate) fn shift(&mut self, base: Reading) {
        self.write_back.shift(base);
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Fenced {
    pub(crate) counter: Counter,
    /// The guard's fencing token. It never changes for the same guard (S18).
    pub(crate) fence: u64,
    /// Largest counter that a voting node has reported. The next guard's token must be larger.
    pub(crate) largest: u64,
    /// Whether the guard was notified that another client has a larger fencing token.
    pub(crate) superseded: bool,
    /// Boxed because a pending hand-over is rare.
    pub(crate) handover: Option<Box<PendingHandover>>,
}

/// A lock between two guards of this process. The old guard released it, and the nodes record the next guard's number.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct PendingHandover {
    pub(crate) round: u32,
    /// Time of the old guard's release.
    pub(crate) called: Reading,
    /// Whether the old guard awaits the outcome of its release.
    pub(crate) report: bool,
    pub(crate) write_back: WriteBack,
}

impl Fenced {
    pub(crate) fn new(fence_request: FenceRequest) -> Self {
        let FenceRequest { counter, write_back, .. } = fence_request;
        let (fence, largest) = (write_back.number(), write_back.largest());
        Self { counter, fence, largest, superseded: false, handover: None }
    }

    /// Notes the counter that a voting node has reported.
    pub(crate) fn note(&mut self, number: u64) {
        self.largest = self.largest.max(number);
    }

    /// The next guard's token: one more than the largest number of a voting node. `None` if no larger token exists.
    pub(crate) fn next(&self) -> Option<u64> {
        let largest = if mutant!(HandOverRecordedAbove) { self.fence } else { self.largest };
        let next = largest.checked_add(1)?;
        (next < Counter::LIMIT).then_some(next)
    }

    pub(crate) fn shift(&mut self, base: Reading) {
        if let Some(handover) = &mut self.handover {
            handover.called = handover.called.shifted(base);
            handover.write_back.shift(base);
        }
    }
}
