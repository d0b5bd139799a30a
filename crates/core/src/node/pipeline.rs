//! The commands for one node: decides when they are sent, in which batches, and in which order the answers are
//! reported.
//!
//! A command is sent at once if no batch waits for a connection and few batches are in flight. Otherwise commands wait,
//! and go together in the next batch (group commit). The answers are reported in the order of sending, also across
//! connections. Otherwise the engine could apply an old "extended" after a later "absent".

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;

use crate::client::engine::Event;
use crate::command::{Answer, Command, Failure, FailureKind};
use crate::ids::Ticket;
use crate::node::evidence::Evidence;
use crate::redlock::quorum::NodeId;
use crate::time::Reading;

/// A command, and the ticket (lock, round and verb) that its answer carries.
pub type TicketedCommand = (Ticket, Command);

/// Whether a node can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeState {
    /// There is a connection.
    Up,
    /// The client is connecting. Commands wait until the attempt to connect succeeds, fails or times out.
    Connecting,
    /// The node has been silent for too long: only releases are sent until it answers.
    Suspended(Failure),
    /// The node cannot be reached. Commands fail at once.
    Down(Failure),
}

impl NodeState {
    /// Ends a suspension, because the node has answered. Returns whether the node was suspended.
    #[doc(hidden)]
    pub fn resume(&mut self) -> bool {
        let is_suspended = matches!(self, Self::Suspended(_));
        if is_suspended {
            *self = Self::Up;
        }
        is_suspended
    }
}

/// Identifies a batch of one pipeline.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BatchId(pub u64);

/// The commands that wait for one node, and the batches in flight.
///
/// Each method adds the resulting events for the engine to `events`.
#[derive(Clone, Debug)]
pub struct NodePipeline {
    node: NodeId,
    batch_max: usize,
    waiting: VecDeque<TicketedCommand>,
    /// Whether `waiting` contains only releases, because the node is suspended.
    only_releases: bool,
    /// The tickets of the batches in flight, in the order of sending.
    tickets: VecDeque<Ticket>,
    in_flight: VecDeque<InFlight>,
    /// The id of the first batch in flight, or of the next batch.
    first: u64,
    /// Empty vectors, reused for answers.
    spare: Vec<Vec<(Ticket, Answer)>>,
}

/// A batch that is to be sent, or was sent.
#[derive(Clone, Debug)]
struct InFlight {
    count: usize,
    /// The reading before the first byte could leave. `None` while the batch waits for a connection.
    sent: Option<Reading>,
    /// Whether the engine was notified that the batch waits for a connection.
    announced: bool,
    outcome: Option<(Vec<Answer>, Evidence)>,
}

impl NodePipeline {
    /// Largest number of commands in a batch.
    pub const BATCH_MAX: usize = 512;

    /// Largest number of batches in flight.
    pub const IN_FLIGHT_MAX: usize = 4;

    /// Largest number of waiting commands. Further commands fail.
    pub const QUEUE_MAX: usize = 65_536;

    /// An empty pipeline.
    pub const fn new(node: NodeId) -> Self {
        Self {
            node,
            batch_max: Self::BATCH_MAX,
            waiting: VecDeque::new(),
            only_releases: false,
            tickets: VecDeque::new(),
            in_flight: VecDeque::new(),
            first: 0,
            spare: Vec::new(),
        }
    }

    /// Sets the largest number of commands in a batch, instead of [`BATCH_MAX`](Self::BATCH_MAX).
    #[must_use]
    pub const fn with_batch_max(mut self, batch_max: usize) -> Self {
        self.batch_max = batch_max;
        self
    }

    /// Takes commands, in order.
    pub fn push(
        &mut self,
        commands: &mut Vec<TicketedCommand>,
        state: &NodeState,
        now: Reading,
        events: &mut Vec<Event>,
    ) {
        if let NodeState::Suspended(failure) = state {
            self.keep_releases(commands, failure, now, events);
        } else {
            self.only_releases = false;
        }
        if commands.len() <= Self::QUEUE_MAX.saturating_sub(self.waiting.len()) {
            if self.waiting.is_empty() {
                // The commands move without a copy, because the two collections swap their memory.
                let empty = mem::replace(&mut self.waiting, mem::take(commands).into());
                *commands = empty.into();
            } else {
                self.waiting.extend(commands.drain(..));
            }
        } else {
            let full = Failure::unsent(FailureKind::QueueFull);
            self.fail(commands.drain(..), &full, now, events);
        }
    }

    /// Takes the next batch, and adds its commands to `commands`. Returns `None` if no command waits, too many batches
    /// are in flight, or the node is down and the commands fail. Also returns `None` while a batch waits for a
    /// connection: only one batch may wait, so that a release does not overtake its acquire.
    pub fn next_batch(
        &mut self,
        state: &NodeState,
        now: Reading,
        commands: &mut Vec<Command>,
        events: &mut Vec<Event>,
    ) -> Option<BatchId> {
        if self.waiting.is_empty() {
            return None;
        }
        match state {
            NodeState::Down(failure) => {
                let waiting = mem::take(&mut self.waiting);
                self.fail(waiting, failure, now, events);
                return None;
            }
            NodeState::Suspended(failure) if !self.only_releases => {
                let mut waiting = mem::take(&mut self.waiting).into();
                self.keep_releases(&mut waiting, failure, now, events);
                self.waiting = waiting.into();
                self.only_releases = true;
            }
            NodeState::Suspended(_) | NodeState::Up | NodeState::Connecting => {}
        }
        let one_waits = self.in_flight.back().is_some_and(|batch| batch.sent.is_none());
        if self.waiting.is_empty() || one_waits || self.in_flight.len() >= Self::IN_FLIGHT_MAX {
            return None;
        }
        let count = self.waiting.len().min(self.batch_max);
        self.tickets.reserve(count);
        commands.reserve(count);
        for (ticket, command) in self.waiting.drain(..count) {
            self.tickets.push_back(ticket);
            commands.push(command);
        }
        let id = BatchId(self.first + self.in_flight.len() as u64);
        self.in_flight.push_back(InFlight { count, sent: None, announced: false, outcome: None });
        Some(id)
    }

    /// Whether commands wait.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Reports that a batch waits for its connection, once for each batch.
    pub fn announce(&mut self, events: &mut Vec<Event>) {
        let last = self.in_flight.back_mut().filter(|it| it.sent.is_none() && it.outcome.is_none());
        if let Some(batch) = last.filter(|batch| !batch.announced) {
            batch.announced = true;
            events.push(Event::Connecting { node: self.node });
        }
    }

    /// Notes that the batch is being sent. Its votes count from the reading `at`, which was taken before the first byte
    /// could leave (S4).
    pub fn sent(&mut self, id: BatchId, at: Reading, events: &mut Vec<Event>) {
        let node = self.node;
        let Some(batch) = self.batch(id).filter(|batch| batch.sent.is_none()) else { return };
        batch.sent = Some(at);
        if batch.announced {
            events.push(Event::Connected { node });
        }
    }

    /// Takes the answers to a batch: one answer or failure for each command. The engine receives them behind the
    /// answers of all earlier batches.
    ///
    /// If the number of answers is wrong, they belong to no commands, and all fail. An answer to a batch that was never
    /// sent is no vote, and fails too. A command that was sent may have been executed, even if its connection failed (S8).
    pub fn answered(
        &mut self,
        id: BatchId,
        answers: &mut Vec<Answer>,
        evidence: Evidence,
        now: Reading,
        events: &mut Vec<Event>,
    ) {
        let is_first = id.0 == self.first;
        let Some(batch) = self.batch(id) else { return };
        if answers.len() != batch.count {
            answers.clear();
            answers.resize(batch.count, Answer::Failed(Failure::new(FailureKind::Protocol)));
        }
        for answer in &mut *answers {
            match (&*answer, batch.sent) {
                (Answer::Failed(failure), Some(_)) if failure.kind().is_about_reach() => {
                    let failure = failure.clone();
                    let is_unsent = mutant!(BrokenIsUnsent);
                    *answer = Answer::Failed(match is_unsent {
                        true => failure.unexecuted(),
                        false => failure.executed(),
                    });
                }
                (Answer::Failed(_), _) | (_, Some(_)) => {}
                (_, None) => *answer = Answer::Failed(Failure::new(FailureKind::Protocol)),
            }
        }
        if !is_first {
            batch.outcome = Some((mem::take(answers), evidence));
            return;
        }
        self.report(answers, evidence, now, events);
        while let Some(batch) = self.in_flight.front_mut()
            && let Some((mut answers, evidence)) = batch.outcome.take()
        {
            self.report(&mut answers, evidence, now, events);
        }
    }

    /// Fails a batch as a whole.
    pub fn failed(
        &mut self,
        id: BatchId,
        failure: &Failure,
        now: Reading,
        events: &mut Vec<Event>,
    ) {
        let count = self.tickets(id).count();
        let mut answers = alloc::vec![Answer::Failed(failure.clone()); count];
        self.answered(id, &mut answers, Evidence::NotRequired, now, events);
    }

    /// The tickets of a batch.
    pub fn tickets(&self, id: BatchId) -> impl Iterator<Item = Ticket> {
        let place = usize::try_from(id.0.wrapping_sub(self.first)).unwrap_or(usize::MAX);
        let before = self.in_flight.iter().take(place).map(|batch| batch.count).sum();
        let count = self.in_flight.get(place).map_or(0, |batch| batch.count);
        self.tickets.iter().skip(before).take(count).copied()
    }

    fn batch(&mut self, id: BatchId) -> Option<&mut InFlight> {
        let place = usize::try_from(id.0.wrapping_sub(self.first)).ok()?;
        self.in_flight.get_mut(place).filter(|batch| batch.outcome.is_none())
    }

    /// Reports the answers to the first batch in flight.
    fn report(
        &mut self,
        answers: &mut Vec<Answer>,
        evidence: Evidence,
        now: Reading,
        events: &mut Vec<Event>,
    ) {
        let Some(InFlight { count, sent, .. }) = self.in_flight.pop_front() else { return };
        self.first += 1;
        let sent = if mutant!(TimedByAnswer) { now } else { sent.unwrap_or(now) };
        if mutant!(AnswersMixed) {
            answers.reverse();
        }
        let mut both = self.spare.pop().unwrap_or_default();
        both.reserve(count);
        for (ticket, answer) in self.tickets.drain(..count).zip(answers.drain(..)) {
            both.push((ticket, answer));
        }
        let event = Event::Answered { node: self.node, sent, evidence, answers: both };
        match mutant!(AnswersOutOfOrder) {
            true => events.insert(0, event),
            false => events.push(event),
        }
    }

    /// Reuses the memory of an [`Event::Answered`].
    pub fn reuse(&mut self, mut answers: Vec<(Ticket, Answer)>) {
        if self.spare.len() < Self::IN_FLIGHT_MAX && answers.capacity() <= 2 * Self::BATCH_MAX {
            answers.clear();
            self.spare.push(answers);
        }
    }

    /// Keeps the releases for a suspended node, which are sent behind the commands on its silent connection. All other
    /// commands fail at once.
    fn keep_releases(
        &self,
        commands: &mut Vec<TicketedCommand>,
        failure: &Failure,
        now: Reading,
        events: &mut Vec<Event>,
    ) {
        let (releases, rest): (Vec<_>, Vec<_>) =
            mem::take(commands).into_iter().partition(|(_, command)| command.is_release());
        *commands = releases;
        self.fail(rest, failure, now, events);
    }

    /// Reports that commands have failed without being sent.
    fn fail(
        &self,
        commands: impl IntoIterator<Item = TicketedCommand>,
        failure: &Failure,
        now: Reading,
        events: &mut Vec<Event>,
    ) {
        let failed = |(ticket, _)| (ticket, Answer::Failed(failure.clone()));
        let answers: Vec<_> = commands.into_iter().map(failed).collect();
        if !answers.is_empty() {
            let (node, evidence) = (self.node, Evidence::NotRequired);
            events.push(Event::Answered { node, sent: now, evidence, answers });
        }
    }
}

#[cfg(test)]
mod tests;
