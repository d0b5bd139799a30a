//! The fencing token of an attempt: one number that a quorum of the granting nodes records.

use alloc::boxed::Box;
use core::time::Duration;

use super::votes::Vote;
use super::{Attempt, Decision};
use crate::command::{Answer, Command, Counter, Failure, FailureKind, Holding};
use crate::redlock::fence::FenceRequest;
use crate::redlock::quorum::{NodeId, NodeSet};
use crate::redlock::vote::Validity;
use crate::time::Reading;

/// The state of a node in the attempt after it gave this answer to an acquire with a fencing token.
pub(super) fn vote(
    (request, attaches): (&mut FenceRequest, bool),
    node: NodeId,
    answer: &Answer,
    sent: Reading,
    took: Duration,
) -> Vote {
    match *answer {
        Answer::GrantedFenced { fence } if fence < Counter::LIMIT => {
            request.note(fence);
            request.write_back.handle_vote(node, fence);
            Vote::Granted { sent, took }
        }
        Answer::RefusedFenced { fence, ref holding } => {
            request.note(fence);
            if attaches && **holding == Holding::Free {
                return Vote::Gone { took };
            }
            Vote::Refused { took, holding: Some(holding.clone()) }
        }
        _ => Vote::Failed { failure: Failure::new(FailureKind::Protocol), took },
    }
}

impl Attempt {
    /// Requests a fencing token from `counter`. `seen` is the largest number that any node has reported to the call.
    pub fn seek_fence(&mut self, counter: Counter, seen: u64) {
        self.fence_request = Some(Box::new(FenceRequest::new(counter, seen)));
    }

    /// The command for the nodes of [`Decision::Raise`]; `None` without a fencing token.
    pub fn raise_command(&self) -> Option<Command> {
        let fence_request = self.fence_request.as_ref()?;
        Some(Command::Raise {
            keys: self.entry.keys.clone(),
            value: self.entry.value.clone(),
            counter: fence_request.counter.clone(),
            to: fence_request.write_back.number(),
        })
    }

    /// The fencing token, if the lock is held. During the attempt, the largest number that came with the votes so far.
    pub fn fence(&self) -> Option<u64> {
        self.fence_request.as_ref().map(|fence_request| fence_request.write_back.number())
    }

    /// The largest number that a node has reported to this call.
    pub(crate) fn seen(&self) -> u64 {
        self.fence_request.as_ref().map_or(0, |fence_request| fence_request.seen)
    }

    /// Takes the answer of `node` to [`Attempt::raise_command`]. A missing or foreign key proves that the vote is gone.
    pub fn handle_raised(&mut self, node: NodeId, answer: &Answer, now: Reading) -> Decision {
        let took = now.elapsed_since(self.started);
        let vote = &mut self.votes[node.index()];
        let (Some(fence_request), Vote::Granted { .. }) = (&mut self.fence_request, &vote) else {
            return Decision::Wait;
        };
        match *answer {
            Answer::Raised { fence } => {
                fence_request.note(fence);
                fence_request.write_back.handle_raised(node, fence);
            }
            Answer::Absent => *vote = Vote::Gone { took },
            Answer::Other => *vote = Vote::Refused { took, holding: None },
            Answer::Failed(ref failure) => fence_request.write_back.fail(node, failure.clone()),
            _ => fence_request.write_back.fail(node, Failure::new(FailureKind::Protocol)),
        }
        if !matches!(vote, Vote::Granted { .. }) {
            fence_request.write_back.drop_vote(node);
        }
        self.decide(now)
    }

    /// Decides the attempt after a quorum granted in time. A lock with a fencing token is acquired only when a quorum
    /// of the granting nodes has recorded the number (S18). If these nodes granted the same number, they have recorded
    /// it already. Otherwise nodes with lower counters raise them to the largest number first.
    pub(super) fn record(
        &mut self,
        validity: Validity,
        outstanding: usize,
        now: Reading,
    ) -> Decision {
        let voters: NodeSet = self.granting().collect();
        let due = now.after(self.longest_timeout);
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
        // Outstanding votes count as open, because they may bring the same number or a larger one.
        let open = awaited + outstanding;
        if quorum.is_out_of_reach(recorded, open) {
            return Decision::GiveUp(self.why_not(recorded, open));
        }
        Decision::Wait
    }

    /// The number of nodes that granted and have not failed to record the fencing token.
    pub(super) fn voters(&self) -> usize {
        self.granting().filter(|node| self.failure(*node).is_none()).count()
    }
}
