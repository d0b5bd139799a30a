//! Reading the holder and remaining time of a lock from several nodes, without changing the lock.

use alloc::vec::Vec;
use core::time::Duration;

use crate::command::{Answer, Failure, FailureKind, Holding};
use crate::redlock::acquire::{NodeOutcome, NodeResult};
use crate::redlock::quorum::{NodeId, NodeSet, Quorum};
use crate::time::{BootTime, Reading};
use crate::timing::ROUND_TRIPS_AWAITED;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Inspection {
    /// Time of this record's entry in the engine's deadline index: at or before its deadline. `None` without an entry.
    pub(crate) wake: Option<BootTime>,
    quorum: Quorum,
    started: Reading,
    due: BootTime,
    /// The timeout of a connection that is still being made, and the shortest timeout of an answer. Both are zero for the
    /// inspection of a waiting call, which does not wait for connections.
    timeouts: (Duration, Duration),
    /// The result of each node; `None` while its answer is outstanding.
    results: Vec<Option<NodeResult>>,
    /// For each node, the connection of its answer, and the number of flushes that the node had announced on it: see
    /// [`NodeAnswer::epoch`](crate::ids::NodeAnswer). Empty for the inspection of a waiting call.
    epochs: Vec<Option<(u64, u64)>>,
}

impl Inspection {
    /// Starts an inspection of the lock on the nodes in `asked`. It ends at `due` at the latest.
    pub(crate) fn start(quorum: Quorum, asked: NodeSet, due: BootTime, now: Reading) -> Self {
        let not_asked = NodeResult::new(NodeOutcome::NotAsked, Duration::ZERO);
        let result = |node| (!asked.contains(node)).then(|| not_asked.clone());
        let results = quorum.node_ids().map(result).collect();
        let timeouts = Default::default();
        Self { wake: None, quorum, started: now, due, timeouts, results, epochs: Vec::new() }
    }

    /// Waits also for nodes whose connections are still being made.
    #[must_use]
    pub(crate) fn awaiting_connections(self, timeouts: (Duration, Duration)) -> Self {
        Self { timeouts, ..self }
    }

    pub(crate) fn asked(&self) -> impl Iterator<Item = NodeId> {
        self.quorum.node_ids().filter(|node| !self.is_not_asked(*node))
    }

    fn is_not_asked(&self, node: NodeId) -> bool {
        let result = self.results[node.index()].as_ref();
        result.is_some_and(|result| result.said == NodeOutcome::NotAsked)
    }

    /// Adds a node to those that are asked. Returns whether the node was not among them before.
    pub(crate) fn ask_too(&mut self, node: NodeId) -> bool {
        let is_new = self.is_not_asked(node);
        if is_new {
            self.results[node.index()] = None;
        }
        is_new
    }

    pub(crate) fn handle_answer(&mut self, node: NodeId, answer: &Answer, now: Reading) {
        let said = match answer {
            Answer::Seen(holding) | Answer::Watched(holding) => NodeOutcome::Seen(holding.clone()),
            Answer::Failed(failure) => NodeOutcome::Failed(failure.clone()),
            _ => NodeOutcome::Failed(Failure::new(FailureKind::Protocol)),
        };
        let took = now.elapsed_since(self.started);
        self.results[node.index()].get_or_insert(NodeResult::new(said, took));
    }

    /// Notes on which connection this node answers. Called before [`handle_answer`](Self::handle_answer).
    pub(crate) fn note_epoch(&mut self, node: NodeId, epoch: Option<(u64, u64)>) {
        if self.results[node.index()].is_none() {
            self.epochs.resize(self.results.len(), None);
            self.epochs[node.index()] = epoch;
        }
    }

    /// The connection of a node's answer, and the number of flushes that the node had announced on it.
    pub(crate) fn epoch(&self, node: NodeId) -> Option<(u64, u64)> {
        self.epochs.get(node.index()).copied().flatten()
    }

    /// Waits longer for the answer of this node. `connected` is the round trip of a connection that was made; `None`
    /// means that the connection is being made.
    pub(crate) fn await_answer(&mut self, node: NodeId, connected: Option<Duration>, now: Reading) {
        let (connect_timeout, timeout) = self.timeouts;
        let time = match connected {
            Some(round_trip) => timeout.max(round_trip * ROUND_TRIPS_AWAITED),
            None => connect_timeout.saturating_add(timeout),
        };
        if self.results[node.index()].is_none() {
            self.due = self.due.max(now.after(time));
        }
    }

    pub(crate) fn handle_time(&mut self, now: Reading) {
        if self.due.has_come(now) {
            self.results = self.report(now).into_iter().map(Some).collect();
        }
    }

    /// Whether every asked node has answered or timed out.
    pub(crate) fn is_over(&self) -> bool {
        self.results.iter().all(Option::is_some)
    }

    pub(crate) const fn deadline(&self) -> BootTime {
        self.due
    }

    pub(crate) fn seen(&self, node: NodeId) -> Option<&Holding> {
        match &self.results[node.index()].as_ref()?.said {
            NodeOutcome::Seen(holding) => Some(holding),
            _ => None,
        }
    }

    pub(crate) const fn quorum(&self) -> Quorum {
        self.quorum
    }

    pub(crate) fn report(&self, now: Reading) -> Vec<NodeResult> {
        NodeResult::all_so_far(&self.results, now.elapsed_since(self.started))
    }

    pub(crate) fn shift(&mut self, base: Reading) {
        self.wake = self.wake.map(|at| at.shifted(base));
        self.started = self.started.shifted(base);
        self.due = self.due.shifted(base);
    }
}
