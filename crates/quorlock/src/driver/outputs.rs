//! The engine's sink: carries out its effects.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use quorlock_core::{
    Effect, Extended, Failure, FailureKind, NodeId, NodeOutcome, Quorum, Reading, Refusal,
    RefusalKind, Sink, TrustState,
};

use super::Metrics;
use super::callers::{Callers, reply};
use super::transports::Transports;
use crate::guard::GuardToken;
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
                && failure.detail().is_none()
                && *replicas > 0
            {
                let detail = "a vote waits until every replica has it; quorlock doctor shows whether one is away";
                *failure = failure.clone().with_detail(detail);
            }
        }
    }

    fn note_trust_state(&self, node: NodeId, trust_state: TrustState) {
        let (name, metrics) = (&self.names[node.index()], &self.metrics.nodes[node.index()]);
        let shown = NodeTrustState::new(&trust_state, &NodeState::Up, self.now);
        match shown {
            NodeTrustState::Refused(_) => tracing::warn!("node {name}: {shown}"),
            _ => tracing::debug!("node {name}: {shown}"),
        }
        metrics.set_trust_state(trust_state);
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
        let (callers, names) = (&mut *self.callers, self.names);
        match effect {
            // The nodes.
            Effect::Send { nodes, ticket, command } => {
                self.transports.enqueue(nodes, ticket, command);
            }
            Effect::Identified { node, connection, is_trusted } => {
                self.transports.note_identified(node, connection, is_trusted);
            }
            // Replies to callers.
            Effect::Acquired { lock, token, handover_count, hold, fence, .. } => {
                callers.grant(lock, (GuardToken::new(token, handover_count), fence), hold);
            }
            Effect::NotAcquired { lock, mut refusal } => {
                note_down(&mut refusal, self.transports, self.quorum);
                callers.refuse(lock, refusal);
            }
            Effect::Waiting { lock, report } => callers.report(lock, report),
            Effect::Extended { lock, outcome } => callers.reply_extended(lock, &outcome),
            Effect::Released { lock, report } => callers.reply_released(lock, report),
            Effect::Detached { lock, detached } => reply(&mut callers.detaching, lock, detached),
            Effect::EntryExtended { lock, validity, nodes } => {
                reply(&mut callers.entry_extensions, lock, (validity, nodes));
            }
            Effect::Inspected { lock, nodes, doubts } => {
                reply(&mut callers.inspections, lock, (nodes, doubts));
            }
            Effect::Drained => callers.reply_closed(),
            // Held locks.
            Effect::Changed { lock, validity } => callers.held(lock, |it| it.update(validity)),
            Effect::Health { lock, is_confirmed, is_lost, nodes } => {
                callers.held(lock, |it| it.confirm((is_confirmed, is_lost), nodes, names));
            }
            Effect::Superseded { lock, .. } => callers.held(lock, |it| it.supersede()),
            Effect::Lost { lock, cause } => callers.held(lock, |it| it.lose(cause)),
            // Statistics and the log.
            Effect::TimedOut { node } => {
                self.metrics.nodes[node.index()].timeouts.fetch_add(1, Ordering::Relaxed);
            }
            Effect::WaitEnded { .. } => {
                self.metrics.wakeups.fetch_add(1, Ordering::Relaxed);
            }
            Effect::TrustState { node, trust_state } => self.note_trust_state(node, trust_state),
            Effect::FloorOfFew { node, clocks } => {
                let name = &names[node.index()];
                tracing::warn!(
                    "node {name} may have lost its counters of fencing tokens, and its new floor rests on the \
                     clocks of {clocks} other nodes, fewer than a quorum, because the others did not answer; \
                     make sure that the clocks of the nodes agree"
                );
            }
        }
    }
}
