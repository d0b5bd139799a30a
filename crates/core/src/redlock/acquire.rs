//! One attempt to acquire a lock: the paper's five steps, in the order of the paper.
//!
//! An [`Attempt`] is one round with one fresh token (S6). A retry is a new attempt. A late release of an older attempt
//! is therefore harmless: it deletes only a value that no other attempt ever used.
//!
//! An attempt is decided once. After a success, later answers go to the held lock. After a failure, they are ignored,
//! because a release is queued behind every command and deletes a vote that a node grants late (S1).

mod diagnosis;
mod fencing;
mod votes;

use alloc::boxed::Box;
use core::time::Duration;

use crate::command::{AcquireForm, Answer, AttachForm, Command, Failure, FailureKind};
use crate::keys::{Entry, Mode, Origin, intents};
use crate::redlock::fence::FenceRequest;
use crate::redlock::quorum::{NodeId, NodeSet, Quorum};
use crate::redlock::release::Release;
use crate::redlock::vote::Validity;
use crate::time::Reading;
use crate::timing::{ROUND_TRIPS_AWAITED, Timing};

pub(crate) use self::diagnosis::why_not;
pub use self::diagnosis::{FailureReason, NodeOutcome, NodeResult};
use self::votes::{Vote, Votes};

/// One attempt, which sends the same keys and the same value to every node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Attempt {
    quorum: Quorum,
    timing: Timing,
    /// The longest timeout of any node.
    longest_timeout: Duration,
    entry: Entry,
    started: Reading,
    votes: Votes,
    /// Boxed because most locks have no fencing token.
    fence_request: Option<Box<FenceRequest>>,
}

/// The state of an attempt, decided by the answers so far.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum Decision {
    /// The outcome depends on outstanding answers.
    Wait,
    /// A quorum granted with different counters. The nodes in this set must raise theirs ([`Attempt::raise_command`]).
    Raise(NodeSet),
    /// The lock is held for this validity.
    Acquired(Validity),
    /// The lock is not held, and the release (step 5) is due.
    GiveUp(FailureReason),
}

impl Attempt {
    /// Starts an attempt. `round_trip` returns the usual round trip to a node, from which the node's timeout follows,
    /// and `connecting` whether the connection to a node is still being made. `farthest` is the longest round trip if
    /// no connection is being made.
    pub fn start(
        entry: Entry,
        quorum: Quorum,
        timing: Timing,
        farthest: Option<Duration>,
        round_trip: impl Fn(NodeId) -> Duration,
        connecting: impl Fn(NodeId) -> bool,
        now: Reading,
    ) -> Self {
        // Step 1: get the current time.
        let started = now;
        let mut longest_timeout = timing.node_timeout(Duration::ZERO);
        let votes = match farthest {
            // All nodes are so near that their timeout does not depend on the round trip. It is computed once.
            Some(farthest) if farthest <= longest_timeout / ROUND_TRIPS_AWAITED => {
                let due = now.after(longest_timeout);
                Votes::new(quorum.nodes(), |_| Vote::Outstanding { due })
            }
            _ => Votes::new(quorum.nodes(), |node| {
                let node = NodeId::new(node);
                let answer = timing.node_timeout(round_trip(node));
                longest_timeout = longest_timeout.max(answer);
                let connection =
                    if connecting(node) { timing.connect_timeout() } else { Duration::ZERO };
                Vote::Outstanding { due: now.after(connection.saturating_add(answer)) }
            }),
        };
        Self { quorum, timing, longest_timeout, entry, started, votes, fence_request: None }
    }

    /// Step 2: the command for every node, with the same keys and value. It is sent to all nodes at the same time, each
    /// with a timeout that is small compared with the ttl. The first `prefix_bytes` of each key are the client's
    /// prefix.
    pub fn command(&self, prefix_bytes: u16) -> Command {
        let ttl_ms = self.timing.ttl_ms();
        let Entry { keys, mode, value, origin } = self.entry.clone();
        let fenced = self.fence_request.as_ref().filter(|_| mode == Mode::Exclusive);
        let fenced = fenced.map(|it| (it.counter.clone(), it.proposal(self.started)));
        let form = match (origin, fenced) {
            (Origin::Taken(from), _) => AcquireForm::Taken(from),
            (Origin::Detached(from), fenced) => {
                let form = match fenced {
                    Some((counter, proposal)) => AttachForm::Fenced { counter, proposal },
                    None => mode.into(),
                };
                return Command::Attach { keys, from: from.value.clone(), value, ttl_ms, form };
            }
            (Origin::Absent, Some((counter, proposal))) => {
                AcquireForm::Fenced { counter, proposal }
            }
            (Origin::Absent, None) => match mode {
                Mode::Exclusive => AcquireForm::Plain,
                Mode::Shared => AcquireForm::Shared { intents: intents(&keys, prefix_bytes) },
            },
        };
        Command::Acquire { keys, value, ttl_ms, form }
    }

    /// Notes that the connection to `node` is being made or, with `is_being_made` false, that it has been made. Making
    /// a connection has a timeout of its own, and the node's time to answer begins after that.
    pub fn handle_connection(
        &mut self,
        node: NodeId,
        is_being_made: bool,
        round_trip: Duration,
        now: Reading,
    ) {
        if let Vote::Outstanding { due } = &mut self.votes[node.index()] {
            let node_timeout = self.timing.node_timeout(round_trip);
            self.longest_timeout = self.longest_timeout.max(node_timeout);
            let connect_timeout = self.timing.connect_timeout();
            let before = if is_being_made { connect_timeout } else { Duration::ZERO };
            *due = now.after(before.saturating_add(node_timeout));
        }
    }

    /// Counts the answer of `node` to the command that was sent at `sent`.
    pub fn handle_answer(
        &mut self,
        node: NodeId,
        sent: Reading,
        answer: &Answer,
        now: Reading,
    ) -> Decision {
        let took = now.elapsed_since(self.started);
        let vote = &mut self.votes[node.index()];
        // A node timeout only ends the wait for the node. A grant that arrives later but before the decision still
        // counts, and its validity runs from the time when its own command was sent.
        let awaited = match vote {
            Vote::Outstanding { .. } => true,
            Vote::Failed { failure, .. } => failure.kind() == FailureKind::Silent,
            Vote::Granted { .. } | Vote::Refused { .. } | Vote::Gone { .. } => false,
        };
        if awaited {
            let attaches = matches!(self.entry.origin, Origin::Detached(_));
            let sent = if mutant!(ValidityFromReply) { now } else { sent };
            *vote = match (answer, &mut self.fence_request) {
                (Answer::Granted, None) => Vote::Granted { sent, took },
                (Answer::Refused | Answer::Other, None) => Vote::Refused { took, holding: None },
                (Answer::Absent, None) => Vote::Gone { took },
                (Answer::Failed(failure), _) => Vote::Failed { failure: failure.clone(), took },
                (answer, Some(request)) => {
                    fencing::vote((request, attaches), node, answer, sent, took)
                }
                (_, None) => Vote::Failed { failure: Failure::new(FailureKind::Protocol), took },
            };
        }
        self.decide(now)
    }

    /// Ends the wait for nodes past their timeout, and calls `timed_out` for each of them.
    pub fn handle_time(&mut self, now: Reading, mut timed_out: impl FnMut(NodeId)) -> Decision {
        let took = now.elapsed_since(self.started);
        for (node, vote) in self.quorum.node_ids().zip(&mut *self.votes) {
            if let Vote::Outstanding { due } = vote
                && due.has_come(now)
            {
                *vote = Vote::Failed { failure: Failure::new(FailureKind::Silent), took };
                timed_out(node);
            }
        }
        if let Some(fence_request) = &mut self.fence_request {
            fence_request.write_back.handle_time(now, timed_out);
        }
        self.decide(now)
    }

    /// Step 3: acquired if and only if a majority granted and enough of the validity is left. Both success and failure
    /// are decided as early as possible (V2).
    pub(crate) fn decide(&mut self, now: Reading) -> Decision {
        let (mut granted, mut outstanding) = (0, 0);
        for vote in &*self.votes {
            match vote {
                Vote::Granted { .. } => granted += 1,
                Vote::Outstanding { .. } => outstanding += 1,
                Vote::Refused { .. } | Vote::Failed { .. } | Vote::Gone { .. } => {}
            }
        }
        let more = usize::from(mutant!(QuorumLessOne) && self.quorum.needed() > 1);
        if self.quorum.is_reached(granted + more) {
            let validity = self.validity();
            // The clock was read after the deciding answer (S5). So a process that slept while all answers were in the
            // socket's buffer finds too little validity.
            let min_validity = self.timing.min_validity();
            let enough = min_validity.is_zero() || validity.valid_for(now) >= min_validity;
            if enough && validity.lasts(Duration::ZERO, now) || mutant!(NoClockCheck) {
                return self.record(validity, outstanding, now);
            }
            return Decision::GiveUp(self.why_too_late(outstanding));
        }
        // An attach waits for all answers, because they show whether the lock is gone or another client has it.
        let is_awaited = outstanding > 0 && matches!(self.entry.origin, Origin::Detached(_));
        if self.quorum.is_out_of_reach(granted, outstanding) && !is_awaited {
            return Decision::GiveUp(self.why_not(self.voters(), outstanding));
        }
        Decision::Wait
    }

    /// Step 4: a vote counts for the ttl less the drift, from a time before its command was sent. The lock is valid
    /// until the Q-th largest end of its votes.
    fn validity(&self) -> Validity {
        let votes = self.votes.iter().map(|vote| match vote {
            Vote::Granted { sent, .. } => Some(*sent),
            _ => None,
        });
        Validity::new(votes, self.quorum, self.timing.term(), self.timing.margin())
    }

    /// Step 5: on failure, release on *every* node, also on those that seemed not to grant. Each
    /// release follows the acquire on the same connection. `round` is the attempt's own round.
    #[must_use]
    pub fn give_up(&self, round: u32, now: Reading) -> Release {
        let votes = (self.reached(), self.granting().collect());
        let mut entry = self.entry.clone();
        if !self.gives_back() {
            entry = entry.held();
        }
        Release::new(entry, round, (self.quorum, &self.timing), votes, now)
    }

    /// Whether too few nodes for a quorum can still have the detached lock's value. A writer's value never returns
    /// where it is absent. A reader's value may: another attach may have replaced it, and restores it on failure.
    pub(crate) fn is_gone(&self) -> bool {
        let gone = self.count(|vote| matches!(vote, Vote::Gone { .. }));
        self.quorum.is_out_of_reach(self.quorum.nodes() - gone, 0)
    }

    /// Whether a failed attach restores the value that it replaced. Another attach may have failed at the same moment,
    /// and one of the next attempts can succeed once both have restored the value.
    fn gives_back(&self) -> bool {
        (self.entry.mode == Mode::Shared || !self.is_gone()) && !mutant!(AttachNotGivenBack)
    }
}
