//! The engine's sink: carries out its effects.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use quorlock_core::{
    Effect, Extended, Failure, FailureKind, NodeOutcome, Quorum, Reading, Refusal, RefusalKind,
    Sink,
};

use super::Metrics;
use super::callers::Callers;
use super::transports::Transports;
use crate::guard::{DriverSide, GuardToken, Reply};
use crate::node::NodeState;
use crate::stats::NodeTrustState;

pub(super) struct Outputs<'a> {
    pub(super) callers: &'a mut Callers,
    pub(super) transports: &'a mut Transports,
    pub(super) names: &'a [Arc<str>],
    /// The number of replicas of each node; empty if no node has any.
    pub(super) replicas: &'a [u32],
    pub(super) metrics: &'a Metrics,
    pub(super) quorum: Quorum,
    pub(super) now: Reading,
}

impl Outputs<'_> {
    /// Adds the probable cause to the failure of a silent node with replicas: its answer waits for the replicas. The
    /// answer itself comes too late to show this: servers end `WAIT` up to 0.1 s late, when most calls no longer wait.
    fn explain_silence(&self, effect: &mut Effect) {
        let nodes = match effect {
            Effect::NotAcquired { refusal, .. } => &mut refusal.nodes,
            Effect::Waiting { report, .. } => &mut report.nodes,
            Effect::Extended { outcome: Extended::Unconfirmed(nodes), .. }
            | Effect::Health { nodes, .. }
            | Effect::EntryExtended { nodes, .. } => nodes,
            _ => return,
        };
        for (result, replicas) in nodes.iter_mut().zip(self.replicas) {
            if let NodeOutcome::Failed(failure) = &mut result.said
                && failure.kind() == FailureKind::Silent
                && *replicas > 0
            {
                let detail = "a vote waits until every replica has it; quorlock doctor shows whether one is away";
                *failure = failure.clone().with_detail(detail);
            }
        }
    }
}

/// Corrects a refusal that names other holders although the reachable nodes are no quorum any more. A call makes no attempt
/// while it waits for a holder, so the answers to its last attempt may be old.
fn note_down(refusal: &mut Refusal, transports: &Transports, quorum: Quorum) {
    let down: Vec<Option<Failure>> = transports.down().collect();
    let up = down.iter().filter(|failure| failure.is_none()).count();
    if refusal.kind != RefusalKind::Contended || !quorum.is_out_of_reach(up, 0) {
        return;
    }
    (refusal.kind, refusal.retry_after) = (RefusalKind::NoQuorum, None);
    for (report, failure) in refusal.nodes.iter_mut().zip(down) {
        if let Some(failure) = failure {
            report.said = NodeOutcome::Failed(failure);
        }
    }
}

impl Sink for Outputs<'_> {
    fn push(&mut self, mut effect: Effect) {
        if !self.replicas.is_empty() {
            self.explain_silence(&mut effect);
        }
        let callers = &mut *self.callers;
        // An error of `send` means that the caller is gone, and is ignored.
        match effect {
            Effect::Send { nodes, ticket, command } => {
                self.transports.enqueue(nodes, ticket, command)
            }
            Effect::Acquired { lock, token, handover_count, hold, fence, .. } => {
                callers.grant(lock, (GuardToken::new(token, handover_count), fence), hold);
            }
            Effect::NotAcquired { lock, mut refusal } => {
                if let Some(side) = callers.locks.remove(&lock) {
                    note_down(&mut refusal, self.transports, self.quorum);
                    side.finish(Reply::Refused(Box::new(refusal)));
                }
            }
            Effect::Waiting { lock, report } => {
                if let Some(DriverSide { progress: Some(progress), .. }) = callers.locks.get(&lock)
                {
                    progress(report);
                }
            }
            Effect::Changed { lock, validity } => {
                if let Some(cell) = callers.held(lock) {
                    cell.update(validity);
                }
            }
            Effect::Extended { lock, outcome } => {
                for reply in callers.extends.remove(&lock).into_iter().flatten() {
                    let _ = reply.send(outcome.clone());
                }
            }
            Effect::Health { lock, is_confirmed, is_lost, nodes } => {
                if let Some(cell) = callers.held(lock) {
                    cell.confirm((is_confirmed, is_lost), nodes, self.names);
                }
            }
            Effect::Lost { lock, cause } => {
                if let Some(cell) = callers.held(lock) {
                    if mutant!(LossToldLate) {
                        let cell = cell.clone();
                        let lose_late = async move {
                            tokio::task::yield_now().await;
                            cell.lose(cause);
                        };
                        return drop(tokio::spawn(lose_late));
                    }
                    cell.lose(cause);
                }
            }
            Effect::Released { lock, report } => {
                if let Some(side) = callers.locks.remove(&lock) {
                    callers.notified += 1;
                    side.finish(Reply::Released(report));
                } else if let Some(reply) = callers.entry_releases.remove(&lock) {
                    let _ = reply.send(report);
                }
            }
            Effect::Detached { lock, detached } => {
                if let Some(reply) = callers.detaching.remove(&lock) {
                    let _ = reply.send(detached);
                }
            }
            Effect::EntryExtended { lock, validity, nodes } => {
                if let Some(reply) = callers.entry_extensions.remove(&lock) {
                    let _ = reply.send((validity, nodes));
                }
            }
            Effect::Inspected { lock, nodes } => {
                if let Some(reply) = callers.inspections.remove(&lock) {
                    let _ = reply.send(nodes);
                }
            }
            Effect::TimedOut { node } => {
                self.metrics.nodes[node.index()].timeouts.fetch_add(1, Ordering::Relaxed);
            }
            Effect::Woken { .. } => {
                self.metrics.wakeups.fetch_add(1, Ordering::Relaxed);
            }
            Effect::Drained => {
                callers.drained = true;
                for reply in callers.closing.drain(..) {
                    let _ = reply.send(());
                }
            }
            Effect::Superseded { lock, .. } => {
                if let Some(cell) = callers.held(lock) {
                    cell.supersede();
                }
            }
            Effect::TrustState { node, trust_state } => {
                let shown = NodeTrustState::new(&trust_state, &NodeState::Up, self.now);
                let name = &self.names[node.index()];
                match shown {
                    NodeTrustState::Refused(_) => tracing::warn!("node {name}: {shown}"),
                    _ => tracing::debug!("node {name}: {shown}"),
                }
                self.metrics.nodes[node.index()].set_trust_state(trust_state);
            }
            Effect::FloorOfFew { node, clocks } => {
                let name = &self.names[node.index()];
                tracing::warn!(
                    "node {name} may have lost its counters of fencing tokens, and its new floor rests on the \
                     clocks of {clocks} other nodes, fewer than a quorum, because the others did not answer; \
                     make sure that the clocks of the nodes agree"
                );
            }
        }
    }
}
