//! Fences: one number, recorded on a quorum of the nodes whose votes are held.
//!
//! Every node counts for itself, and moves its counter on with each vote that it gives. A lock's fence
//! is the largest number that came with its votes; it may be shown once the counters of a quorum of
//! its nodes stand at this number, *exactly* (S18). A node that stood below it is raised to it, which
//! it lets only the holder of its vote do (S19). One that stands above it has been there before, for
//! all we know, with a number that another has shown; so it does not count.
//!
//! A holder of a later quorum of votes shares a node with this one, was given a larger number
//! there, and shows no smaller one: fences are unique, and grow, whatever the clocks do.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use crate::command::{Counter, Failure, FailureKind};
use crate::redlock::quorum::{NodeId, NodeSet};
use crate::time::{BootTime, Reading};

/// A number on its way to the counters of the nodes whose votes are held.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct WriteBack {
    number: u64,
    /// The largest that any of these nodes has told.
    largest: u64,
    /// Whose counters stand at the number.
    recorded: NodeSet,
    /// Who has been asked to raise its counter to it, and until when the answer is waited for.
    asked: NodeSet,
    awaited: BTreeMap<NodeId, BootTime>,
    failed: BTreeMap<NodeId, Failure>,
}

impl WriteBack {
    /// A number that no node stands at yet.
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

    /// The number.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// The largest that any of these nodes has told.
    pub(crate) const fn largest(&self) -> u64 {
        self.largest
    }

    /// On how many nodes it is recorded, and on how many more it may be before long.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.recorded.len(), self.awaited.len())
    }

    /// A vote came with this number. If it is larger than all before, it is the one to be recorded,
    /// and what was recorded of a smaller one is worth nothing.
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

    /// The nodes among these that stand below the number, for all we know, and have not been asked to
    /// raise it: they are from now on.
    pub(crate) fn ask(&mut self, voters: NodeSet, due: BootTime) -> NodeSet {
        let below = |node: &NodeId| !self.recorded.contains(*node) && !self.asked.contains(*node);
        let nodes: NodeSet = voters.iter().filter(below).collect();
        for node in nodes.iter() {
            self.asked.insert(node);
            self.awaited.insert(node, due);
        }
        nodes
    }

    /// The counter of a node whose vote is held stands at `fence` now. A smaller one than was asked
    /// for last answers what was asked before that.
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

    /// The node has not raised its counter, or nobody knows. If it tells later that it has, that
    /// counts.
    pub(crate) fn fail(&mut self, node: NodeId, failure: Failure) {
        if self.awaited.remove(&node).is_some() {
            self.failed.insert(node, failure);
        }
    }

    /// The node's vote is gone, and with it what it has recorded.
    pub(crate) fn drop_vote(&mut self, node: NodeId) {
        self.recorded.remove(node);
        self.awaited.remove(&node);
    }

    /// Stops waiting for nodes whose time is up; calls `timed_out` for each.
    pub(crate) fn handle_time(&mut self, now: Reading, mut timed_out: impl FnMut(NodeId)) {
        let failed = &mut self.failed;
        self.awaited.retain(|node, due| {
            let in_time = !due.remaining(now).is_zero();
            if !in_time {
                failed.insert(*node, Failure::new(FailureKind::Silent));
                timed_out(*node);
            }
            in_time
        });
    }

    /// When the next node's time is up.
    pub(crate) fn deadline(&self) -> Option<BootTime> {
        self.awaited.values().min().copied()
    }

    /// Why a node has not raised its counter, if it was to.
    pub(crate) fn failure(&self, node: NodeId) -> Option<&Failure> {
        self.failed.get(&node)
    }

    fn shift(&mut self, base: Reading) {
        self.awaited.values_mut().for_each(|due| *due = due.shifted(base));
    }
}

/// What an attempt knows of the fence that it seeks.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct FenceRequest {
    pub(crate) counter: Counter,
    /// The largest number that this call has been told of, by whomever.
    pub(crate) seen: u64,
    pub(crate) write_back: WriteBack,
}

impl FenceRequest {
    pub(crate) fn new(counter: Counter, seen: u64) -> Self {
        Self { counter, seen, write_back: WriteBack::new(0) }
    }

    /// The number that every node is asked for. If it is above all their counters, they all grant
    /// the same one, and there is nothing to be raised.
    pub(crate) fn proposal(&self, now: Reading) -> u64 {
        let micros = u64::try_from(now.real_ns() / 1000).unwrap_or(0);
        micros.max(self.seen.saturating_add(1)).min(Counter::LIMIT - 1)
    }

    /// A node has told its counter.
    pub(crate) fn note(&mut self, number: u64) {
        self.seen = self.seen.max(number);
    }

    pub(crate) fn shift(&mut self, base: Reading) {
        self.write_back.shift(base);
    }
}

/// What a held lock knows of its fence.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Fenced {
    pub(crate) counter: Counter,
    /// As it was shown; never another for the same guard (S18).
    pub(crate) fence: u64,
    /// The largest number that any node has told whose vote is held.
    pub(crate) largest: u64,
    /// The guard has been told that its fence may be superseded.
    pub(crate) superseded: bool,
    /// Boxed, because most of the time there is none.
    pub(crate) handover: Option<Box<PendingHandover>>,
}

/// A lock that nobody holds: it has been given back, and the nodes are asked to record a larger
/// number, for the next caller of this process.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct PendingHandover {
    pub(crate) round: u32,
    /// When it was given back, and whether the outcome is wanted.
    pub(crate) called: Reading,
    pub(crate) report: bool,
    pub(crate) write_back: WriteBack,
}

impl Fenced {
    pub(crate) fn new(fence_request: FenceRequest) -> Self {
        let FenceRequest { counter, write_back, .. } = fence_request;
        let (fence, largest) = (write_back.number(), write_back.largest());
        Self { counter, fence, largest, superseded: false, handover: None }
    }

    /// A node whose vote is held has told its counter.
    pub(crate) fn note(&mut self, number: u64) {
        self.largest = self.largest.max(number);
    }

    /// The number for the next guard: above all that nodes have told whose votes are held.
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
