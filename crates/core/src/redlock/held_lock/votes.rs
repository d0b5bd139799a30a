//! The votes of a held lock, and the effect of answers on them.

use alloc::collections::BTreeMap;

use super::HeldLock;
use crate::command::{Answer, Failure, FailureKind};
use crate::ids::{NodeAnswer, Ticket};
use crate::redlock::quorum::{NodeId, NodeSet};
use crate::redlock::vote::Validity;
use crate::time::Reading;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct HeldVotes {
    pub(super) validity: Validity,
    /// Nodes that a command with the token may have reached.
    pub(super) reached: NodeSet,
    /// Nodes that have not answered a command which sets the key where it is absent. Such a command may still be
    /// executed, however much time has passed.
    unanswered: NodeSet,
    /// Nodes that have not answered the attach of a detached lock, which (unlike an acquire) sets no absent key.
    pub(super) attaching: NodeSet,
    /// For nodes with several unanswered commands that set an absent key, the number beyond the first. Usually empty.
    also_unanswered: BTreeMap<NodeId, u32>,
    /// For each vote that an answer proved gone, the time when the answered command was sent. A grant for a command
    /// that was sent earlier is stale, however late it arrives.
    gone: BTreeMap<NodeId, Reading>,
    /// Nodes with another value under the key, by their last answer about the vote.
    pub(super) overwritten: NodeSet,
}

impl HeldVotes {
    pub(super) fn new(
        validity: Validity,
        reached: NodeSet,
        unanswered: NodeSet,
        attaches: bool,
    ) -> Self {
        let (gone, overwritten) = (BTreeMap::new(), NodeSet::default());
        let also_unanswered = BTreeMap::new();
        let (attaching, unanswered) = match attaches {
            true => (unanswered, NodeSet::default()),
            false => (NodeSet::default(), unanswered),
        };
        Self { validity, reached, unanswered, also_unanswered, attaching, gone, overwritten }
    }

    /// Notes that a command which may set the key was sent to these nodes.
    pub(super) fn note_sent(&mut self, nodes: NodeSet) {
        for node in nodes.iter() {
            if self.unanswered.contains(node) {
                *self.also_unanswered.entry(node).or_default() += 1;
            }
            self.unanswered.insert(node);
        }
    }

    /// Notes the answer to a command that may set the key. A failed command may still be executed, unless it was never
    /// sent.
    fn note_answered(&mut self, node: NodeId, answer: &Answer) {
        self.attaching.remove(node);
        let is_over =
            !matches!(answer, Answer::Failed(failure) if failure.may_have_been_executed());
        if !is_over {
            return;
        }
        match self.also_unanswered.get_mut(&node) {
            Some(count @ 2..) => *count -= 1,
            Some(_) => drop(self.also_unanswered.remove(&node)),
            None => self.unanswered.remove(node),
        }
    }

    fn raise(&mut self, node: NodeId, sent: Reading, now: Reading) {
        self.validity.raise(node, sent, now);
        self.overwritten.remove(node);
    }

    /// Drops a vote that an answer proved gone. Returns whether the vote was held.
    fn drop_vote(&mut self, node: NodeId, sent: Reading, answer: &Answer) -> bool {
        let had = self.validity.has_vote_of(node);
        self.validity.drop_vote(node);
        if had && *answer == Answer::Other {
            self.overwritten.insert(node);
        }
        let gone = self.gone.entry(node).or_insert(sent);
        *gone = (*gone).max(sent);
        had
    }

    /// Whether a later command proved the vote gone.
    fn is_stale(&self, node: NodeId, sent: Reading) -> bool {
        self.gone.get(&node).is_some_and(|gone| sent.boot() < gone.boot())
    }

    pub(super) fn shift(&mut self, base: Reading) {
        self.validity.shift(base);
        self.gone.values_mut().for_each(|gone| *gone = gone.shifted(base));
    }
}

impl HeldLock {
    /// Takes the answer to a heal, or a late answer to the acquire. A grant counts from the time when its command was
    /// sent, and only while the lock is held. Returns whether the votes changed.
    pub(crate) fn handle_vote(&mut self, answer: NodeAnswer<'_>, now: Reading) -> bool {
        let NodeAnswer { node, sent, answer, .. } = answer;
        self.votes.note_answered(node, answer);
        let number = match (answer, &self.fenced) {
            (Answer::Granted, None) => None,
            (Answer::GrantedFenced { fence }, Some(_)) => Some(*fence),
            // The command was sent before the downgrade, when the lock still had a fencing token. The vote counts, and
            // the number is not needed any more.
            (Answer::GrantedFenced { .. }, None) if self.downgraded_in.is_some() => None,
            _ => return false,
        };
        if self.lost.is_some() || self.votes.is_stale(node, sent) {
            return false;
        }
        // The guard's token never changes (S18), but the next guard's token must be larger than this vote's number.
        if let (Some(fenced), Some(number)) = (&mut self.fenced, number) {
            fenced.note(number);
        }
        if !mutant!(HealNotReached) {
            self.votes.reached.insert(node);
        }
        self.votes.raise(node, sent, now);
        true
    }

    /// Takes an answer to an extension of the present or an earlier round. A confirmation raises the end of this node's
    /// vote. An answer that the key is gone drops the vote. A failure changes nothing (S11, S12). Returns whether the
    /// votes changed.
    pub(crate) fn handle_extended(&mut self, answer: NodeAnswer<'_>, now: Reading) -> bool {
        let NodeAnswer { node, sent, ticket: Ticket { round, .. }, answer, .. } = answer;
        if self.lost.is_some() {
            return false;
        }
        match answer {
            Answer::Extended if self.votes.is_stale(node, sent) => false,
            Answer::Failed(_) if !mutant!(ExtensionCountsUnknown) => false,
            Answer::Downgraded if !mutant!(DowngradeProlongs) => false,
            Answer::Extended | Answer::Downgraded | Answer::Failed(_) => {
                self.votes.raise(node, sent, now);
                true
            }
            Answer::Absent | Answer::Other if self.is_before_downgrade(round) => false,
            Answer::Absent | Answer::Other => self.drop_vote(node, sent, answer),
            _ => false,
        }
    }

    /// Whether a command belongs to the time before the downgrade. The node may have executed it after the downgrade,
    /// when the value was a reader's already, so "absent" proves nothing. The answer to a later command is proof.
    fn is_before_downgrade(&self, round: u32) -> bool {
        self.downgraded_in.is_some_and(|downgraded_in| round < downgraded_in)
            && !mutant!(OldAnswersDrop)
    }

    /// Takes the answer to a command of the attempt or of a hand-over that raises a node's counter. An answer that the
    /// key is gone drops the vote. Returns whether the votes changed.
    pub(crate) fn handle_raised(&mut self, answer: NodeAnswer<'_>) -> bool {
        let NodeAnswer { node, sent, ticket: Ticket { round, .. }, answer, .. } = answer;
        if self.lost.is_some() {
            return false;
        }
        if matches!(answer, Answer::Absent | Answer::Other) && !self.is_before_downgrade(round) {
            return self.drop_vote(node, sent, answer);
        }
        let Some(fenced) = self.fenced.as_mut().filter(|_| self.votes.validity.has_vote_of(node))
        else {
            return false;
        };
        let handover = fenced.handover.as_mut().filter(|handover| handover.round == round);
        let write_back = handover.map(|handover| &mut handover.write_back);
        match (answer, write_back) {
            (&Answer::Raised { fence }, Some(write_back)) => {
                let above = mutant!(HandOverRecordedAbove);
                let counted = if above { fence.min(write_back.number()) } else { fence };
                write_back.handle_raised(node, counted);
            }
            (&Answer::Raised { fence }, None) => fenced.note(fence),
            (Answer::Failed(failure), Some(write_back)) => write_back.fail(node, failure.clone()),
            (_, Some(write_back)) => write_back.fail(node, Failure::new(FailureKind::Protocol)),
            _ => {}
        }
        false
    }

    /// Notes that a node has given a larger fencing token to another client. Returns whether the holder must be
    /// notified, which happens once per guard.
    pub(crate) fn handle_superseded(&mut self, by: u64) -> bool {
        match &mut self.fenced {
            Some(fenced) if self.lost.is_none() && fenced.handover.is_none() => {
                by > fenced.fence && !core::mem::replace(&mut fenced.superseded, true)
            }
            _ => false,
        }
    }

    /// Drops a gone vote, and the node's record of the next guard's fencing token. Returns whether the vote was held.
    fn drop_vote(&mut self, node: NodeId, sent: Reading, answer: &Answer) -> bool {
        if mutant!(AbsentKeepsVote) {
            return false;
        }
        if let Some(fenced) = &mut self.fenced
            && let Some(handover) = &mut fenced.handover
        {
            handover.write_back.drop_vote(node);
        }
        self.votes.drop_vote(node, sent, answer)
    }

    /// The nodes that have not answered a command which sets the key where it is absent.
    pub(super) fn unanswered(&self) -> NodeSet {
        self.votes.unanswered
    }

    /// Notes that the acquire of `attempt` never reached the node, so a failed release is not sent there again.
    pub(crate) fn handle_unreached(&mut self, node: NodeId, attempt: u32) {
        if attempt == self.acquire_round {
            self.votes.reached.remove(node);
        }
    }
}
