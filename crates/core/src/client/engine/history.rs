//! The attempts of a call, and the report of the last one.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::ToString as _;
use alloc::vec::Vec;

use crate::command::{Answer, Failure, Holding};
use crate::redlock::acquire::{FailureReason, NodeOutcome, NodeResult, why_not};
use crate::redlock::quorum::{NodeId, Quorum};
use crate::redlock::release::Leftover;
use crate::time::Reading;
use crate::token::{Token, Value};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct AttemptHistory {
    pub(super) count: u32,
    pub(super) began: Reading,
    pub(super) token: Option<Token>,
    /// The reason why the last attempt failed, and the answer of each node; `None` before the first failure.
    pub(super) last: Option<(FailureReason, Vec<NodeResult>)>,
    /// Largest fencing counter that a node reported, if the lock has a fencing token.
    pub(super) number_seen: u64,
    /// The writer's value in the latest report of a quorum of nodes, if the call attaches a lock.
    named: Option<Box<[u8]>>,
}

impl AttemptHistory {
    pub(super) const fn new(now: Reading) -> Self {
        Self { count: 0, began: now, token: None, last: None, number_seen: 0, named: None }
    }

    /// Notes the fencing counter in an answer that arrived too late for its attempt.
    pub(super) fn note_number(&mut self, answer: &Answer) {
        if let Answer::GrantedFenced { fence } | Answer::RefusedFenced { fence, .. } = answer {
            self.number_seen = self.number_seen.max(*fence);
        }
    }

    /// Corrects the report for nodes that refused because they still have the vote of an earlier attempt of this call.
    /// The release of that vote failed there, so these nodes count as failed, not as held by another client.
    pub(super) fn note_leftovers(&mut self, quorum: Quorum, leftovers: &[Leftover]) {
        let Some((why, nodes)) = &mut self.last else { return };
        let mut is_any = false;
        for Leftover { node, value, was_granted, failure } in leftovers {
            let said = &mut nodes[node.index()].said;
            let is_own = match said {
                NodeOutcome::Refused(Some(holding)) => holding.is_of(value),
                // No inspection has found another holder, so the vote that this call's earlier attempt got explains the
                // refusal.
                NodeOutcome::Refused(None) => *was_granted,
                _ => false,
            };
            if is_own {
                let cause = failure.detail().map_or_else(|| failure.kind().to_string(), Into::into);
                let detail = format!(
                    "the vote of an earlier attempt could not be taken back there: {cause}"
                );
                *said = NodeOutcome::Failed(Failure::new(failure.kind()).with_detail(detail));
                is_any = true;
            }
        }
        if is_any && *why == FailureReason::Contended {
            let open = nodes.iter().filter(|node| node.said == NodeOutcome::Nothing).count();
            *why = why_not(quorum, nodes, open);
        }
    }

    /// Notes the writer's value, other than `except`, that a quorum of nodes reported. Returns whether two reports in a
    /// row named the same value, which shows that another client holds the lock. A single report may show the value of
    /// an attach that is about to fail.
    pub(super) fn note_holder(&mut self, quorum: Quorum, except: &Value) -> bool {
        let nodes = self.last.iter().flat_map(|(_, nodes)| nodes);
        let values = nodes.filter_map(|node| writer_of(&node.said));
        let values: Vec<&[u8]> = values.filter(|value| *value != except.as_bytes()).collect();
        let count_of = |value: &[u8]| values.iter().filter(|it| **it == value).count();
        let named = values.iter().find(|value| quorum.is_reached(count_of(value)));
        let named = named.map(|value| Box::from(*value));
        let is_again = named.is_some() && named == self.named;
        self.named = named;
        is_again
    }

    /// Whether the reported reason of the failure may change when outstanding answers arrive.
    pub(super) fn is_ambiguous(&self, quorum: Quorum) -> bool {
        let Some((FailureReason::Contended, nodes)) = &self.last else { return false };
        self.count > 0 && why_not(quorum, nodes, 0) != FailureReason::Contended
    }

    /// Decides which reason the call reports at its end. Nodes without an answer count as failed.
    pub(super) fn settle(&mut self, quorum: Quorum) {
        if self.count > 0
            && let Some((why @ (FailureReason::Contended | FailureReason::NoQuorum), nodes)) =
                &mut self.last
        {
            *why = why_not(quorum, nodes, 0);
        }
    }

    /// Adds an answer that arrived after the last attempt had failed.
    pub(super) fn note_late(
        &mut self,
        quorum: Quorum,
        node: NodeId,
        answer: &Answer,
        now: Reading,
    ) {
        let Some((why @ (FailureReason::Contended | FailureReason::NoQuorum), nodes)) =
            &mut self.last
        else {
            return;
        };
        let report = &mut nodes[node.index()];
        if self.count == 0 || report.said != NodeOutcome::Nothing {
            return;
        }
        report.said = match answer {
            Answer::Granted | Answer::GrantedFenced { .. } => NodeOutcome::Granted,
            Answer::Refused | Answer::Other => NodeOutcome::Refused(None),
            Answer::Absent => NodeOutcome::Seen(Holding::Free),
            Answer::RefusedFenced { holding, .. } => {
                NodeOutcome::Refused(Some((**holding).clone()))
            }
            Answer::Failed(failure) => NodeOutcome::Failed(failure.clone()),
            _ => return,
        };
        report.took = now.elapsed_since(self.began);
        let open = nodes.iter().filter(|node| node.said == NodeOutcome::Nothing).count();
        *why = why_not(quorum, nodes, open);
    }

    /// Reports the unfinished first attempt of a call that ends. If an earlier inspection found a holder, nodes that
    /// did not answer the attempt are reported with their answer to the inspection.
    pub(super) fn note_cut_short(
        &mut self,
        why: FailureReason,
        nodes: Vec<NodeResult>,
        quorum: Quorum,
    ) {
        if let Some((_, before)) = self.last.take() {
            let pairs = nodes.iter().cloned().zip(before);
            let merged: Vec<NodeResult> = pairs
                .map(|(cut, before)| if cut.said == NodeOutcome::Nothing { before } else { cut })
                .collect();
            if why_not(quorum, &merged, 0) == FailureReason::Contended {
                self.last = Some((FailureReason::Contended, merged));
                return;
            }
        }
        self.last = Some((why, nodes));
    }

    pub(super) fn is_permission_denied(&self, quorum: Quorum) -> bool {
        let about_rights = |report: &&NodeResult| matches!(&report.said, NodeOutcome::Failed(failure) if failure.kind().is_about_rights());
        let nodes = self.last.iter().flat_map(|(_, nodes)| nodes);
        quorum.is_out_of_reach(quorum.nodes() - nodes.filter(about_rights).count(), 0)
    }

    /// Whether distrust is the only obstacle: if the untrusted nodes were trusted, nodes that are up could be a quorum.
    pub(super) fn wants_trust_alone(&self, quorum: Quorum) -> bool {
        let Some((FailureReason::NoQuorum, nodes)) = &self.last else { return false };
        let failures = || {
            nodes.iter().filter_map(|report| match &report.said {
                NodeOutcome::Failed(failure) => Some(failure.kind().is_about_trust()),
                _ => None,
            })
        };
        let down = failures().filter(|is_about_trust| !is_about_trust).count();
        failures().any(|is_about_trust| is_about_trust)
            && !quorum.is_out_of_reach(quorum.nodes() - down, 0)
    }

    pub(super) fn is_excluded(&self) -> bool {
        matches!(self.last, Some((FailureReason::NodesUntrusted, _)))
    }
}

/// The writer's value that a node reported as the holder; `None` if the node reported no writer.
fn writer_of(said: &NodeOutcome) -> Option<&[u8]> {
    let NodeOutcome::Refused(Some(holding)) = said else { return None };
    holding.each().iter().find_map(|it| match it {
        Holding::Held { value, .. } => Some(&**value),
        _ => None,
    })
}
