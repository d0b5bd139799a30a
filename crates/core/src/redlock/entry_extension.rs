//! Extending a lock that no guard of this client holds: a detached lock, or a lock with the caller's value.
//!
//! Nothing that the caller knows about the lock counts as a vote. The lock is valid until the Q-th largest end of the
//! votes that the nodes prolong in this round.

use alloc::vec::Vec;
use core::time::Duration;

use crate::command::{Answer, Failure, FailureKind};
use crate::redlock::acquire::NodeResult;
use crate::redlock::extend::{Extension, Progress};
use crate::redlock::quorum::{NodeId, Quorum};
use crate::redlock::vote::Validity;
use crate::time::{BootTime, Reading};
use crate::timing::Timing;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct EntryExtension {
    /// Time of this record's entry in the engine's deadline index: at or before its deadline. `None` without an entry.
    pub(crate) wake: Option<BootTime>,
    quorum: Quorum,
    timing: Timing,
    round: Extension,
    /// For each node, the time at which the extension was sent, if the node prolonged its vote.
    prolonged: Vec<Option<Reading>>,
}

impl EntryExtension {
    /// Starts the round. It ends at `due` at the latest.
    pub(crate) fn start(quorum: Quorum, timing: Timing, due: BootTime, now: Reading) -> Self {
        let round = Extension::start(0, quorum, due, now);
        Self { wake: None, quorum, timing, round, prolonged: alloc::vec![None; quorum.nodes()] }
    }

    /// Marks a node as failed because its vote would not count. No command goes to the node.
    pub(crate) fn bar(&mut self, node: NodeId, failure: Failure, now: Reading) {
        self.round.handle_answer(node, &Answer::Failed(failure), now);
    }

    /// Waits longer for the answer of this node; see [`Timing::answer_timeout`].
    pub(crate) fn await_answer(&mut self, node: NodeId, connected: Option<Duration>, now: Reading) {
        if self.round.awaits(node) {
            self.round.due = self.round.due.max(now.after(self.timing.answer_timeout(connected)));
        }
    }

    pub(crate) fn handle_answer(
        &mut self,
        node: NodeId,
        sent: Reading,
        answer: &Answer,
        now: Reading,
    ) {
        self.round.handle_answer(node, answer, now);
        if *answer == Answer::Extended {
            self.prolonged[node.index()] = Some(sent);
        }
    }

    pub(crate) fn handle_time(&mut self, now: Reading) {
        self.round.handle_time(now);
    }

    /// The validity, if a quorum prolonged its votes in time, and the nodes' answers. `None` while this is undecided.
    pub(crate) fn outcome(&self, now: Reading) -> Option<(Option<Validity>, Vec<NodeResult>)> {
        let validity = match self.round.progress() {
            Progress::Open => return None,
            Progress::Failed => None,
            Progress::Confirmed => {
                let votes = self.prolonged.iter().copied();
                let (term, margin) = (self.timing.term(), self.timing.margin());
                let validity = Validity::new(votes, self.quorum, term, margin);
                // The clock was read after the deciding answer (S5), so a process that slept gets no validity.
                Some(validity).filter(|validity| validity.lasts(Duration::ZERO, now))
            }
        };
        Some((validity, self.round.report(now)))
    }

    /// See [`NodeResult::explain_silence`].
    pub(crate) fn explain_silence(
        &self,
        nodes: &mut [NodeResult],
        round_trip: impl Fn(NodeId) -> Duration,
    ) {
        NodeResult::explain_silence(nodes, &self.timing, round_trip);
    }

    pub(crate) const fn deadline(&self) -> BootTime {
        self.round.due
    }

    pub(crate) fn shift(&mut self, base: Reading) {
        self.wake = self.wake.map(|at| at.shifted(base));
        self.round.shift(base);
        self.prolonged.iter_mut().flatten().for_each(|sent| *sent = sent.shifted(base));
    }
}

/// The reason why a node with an unanswered command of an earlier holder is not asked for its vote.
pub(crate) fn vote_does_not_count() -> Failure {
    Failure::unsent(FailureKind::Silent).with_detail(
        "not asked, because it had not answered a command of the process that detached the lock",
    )
}
