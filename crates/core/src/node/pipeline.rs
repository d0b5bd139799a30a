//! The commands for one node: which wait, which are under way, and in which order the answers are told.
//!
//! A command that finds nothing before it is sent at once. While a batch is on its way, commands gather, and go
//! with the next one (group commit). A few batches are in flight at a time. Their answers are told in the
//! order of sending, also across connections: an old "extended" is never taken for news after a newer "gone".

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;

use crate::client::engine::Event;
use crate::command::{Answer, Command, Failure, FailureKind};
use crate::ids::Ticket;
use crate::node::evidence::Evidence;
use crate::redlock::quorum::NodeId;
use crate::time::Reading;

/// A command and what it belongs to.
pub type TicketedCommand = (Ticket, Command);

/// Whether a node can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeState {
    /// It is connected.
    Up,
    /// It is being connected to; commands wait, for a bounded time.
    Connecting,
    /// It has been silent for too long: nothing but releases is sent until it answers again.
    Suspended(Failure),
    /// It cannot be reached; commands fail at once.
    Down(Failure),
}

impl NodeState {
    /// The node gave a sign of life. Returns whether it was suspended.
    #[doc(hidden)]
    pub fn resume(&mut self) -> bool {
        let is_suspended = matches!(self, Self::Suspended(_));
        if is_suspended {
            *self = Self::Up;
        }
        is_suspended
    }
}

/// Names a batch of one pipeline.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BatchId(pub u64);

/// What waits for one node, and what is in flight.
///
/// Each event that comes of a call is added to `told`, and is to be handed to the engine.
#[derive(Clone, Debug)]
pub struct NodePipeline {
    node: NodeId,
    batch_max: usize,
    waiting: VecDeque<TicketedCommand>,
    /// The node is suspended, and nothing but releases waits: looked through once, not with every command.
    only_releases: bool,
    /// Of the batches in flight, in the order of sending.
    tickets: VecDeque<Ticket>,
    in_flight: VecDeque<InFlight>,
    /// The name of the first batch in flight, or of the next one.
    first: u64,
    /// Empty; kept for their memory.
    spare: Vec<Vec<(Ticket, Answer)>>,
}

/// A batch that was given away to be sent.
#[derive(Clone, Debug)]
struct InFlight {
    count: usize,
    /// `None`: it waits for a connection.
    sent: Option<Reading>,
    /// The engine has been told that it waits.
    announced: bool,
    outcome: Option<(Vec<Answer>, Evidence)>,
}

impl NodePipeline {
    /// At most so many commands travel together.
    pub const BATCH_MAX: usize = 512;

    /// At most so many batches are in flight.
    pub const IN_FLIGHT_MAX: usize = 4;

    /// At most so many commands wait; further ones fail.
    pub const QUEUE_MAX: usize = 65_536;

    /// Nothing waits, and nothing is in flight.
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

    /// At most so many commands travel together, instead of [`BATCH_MAX`](Self::BATCH_MAX).
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
        told: &mut Vec<Event>,
    ) {
        if let NodeState::Suspended(failure) = state {
            self.keep_releases(commands, failure, now, told);
        } else {
            self.only_releases = false;
        }
        if commands.len() <= Self::QUEUE_MAX.saturating_sub(self.waiting.len()) {
            self.waiting.extend(commands.drain(..));
        } else {
            let full = Failure::unsent(FailureKind::QueueFull);
            self.fail(commands.drain(..), &full, now, told);
        }
    }

    /// The next batch, if one is to be sent; its commands are added to `commands`. Only one batch at a time waits
    /// for a connection: of several, any could be sent first, and a release must not overtake its acquire.
    pub fn next_batch(
        &mut self,
        state: &NodeState,
        now: Reading,
        commands: &mut Vec<Command>,
        told: &mut Vec<Event>,
    ) -> Option<BatchId> {
        if self.waiting.is_empty() {
            return None;
        }
        match state {
            NodeState::Down(failure) => {
                let waiting = mem::take(&mut self.waiting);
                self.fail(waiting, failure, now, told);
                return None;
            }
            NodeState::Suspended(failure) if !self.only_releases => {
                let mut waiting = mem::take(&mut self.waiting).into();
                self.keep_releases(&mut waiting, failure, now, told);
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
        for (ticket, command) in self.waiting.drain(..count) {
            self.tickets.push_back(ticket);
            commands.push(command);
        }
        let id = BatchId(self.first + self.in_flight.len() as u64);
        self.in_flight.push_back(InFlight { count, sent: None, announced: false, outcome: None });
        Some(id)
    }

    /// Whether something waits.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Says that a batch waits for its connection, if one does and that has not been said.
    pub fn announce(&mut self, told: &mut Vec<Event>) {
        let last = self.in_flight.back_mut().filter(|it| it.sent.is_none() && it.outcome.is_none());
        if let Some(batch) = last.filter(|batch| !batch.announced) {
            batch.announced = true;
            told.push(Event::Connecting { node: self.node });
        }
    }

    /// The batch is being sent: votes count from this reading, which was taken before its first byte could
    /// leave (S4).
    pub fn sent(&mut self, id: BatchId, at: Reading, told: &mut Vec<Event>) {
        let node = self.node;
        let Some(batch) = self.batch(id).filter(|batch| batch.sent.is_none()) else { return };
        batch.sent = Some(at);
        if batch.announced {
            told.push(Event::Connected { node });
        }
    }

    /// The answers to a batch have come, one for each command, or its failure. They are told when those of all
    /// batches before it are.
    ///
    /// Answers of a wrong number cannot be told apart, and an answer to what was never sent is no vote: they
    /// count as failures. What was sent may have been executed, whatever is said of its connection (S8).
    pub fn answered(
        &mut self,
        id: BatchId,
        answers: &mut Vec<Answer>,
        evidence: Evidence,
        now: Reading,
        told: &mut Vec<Event>,
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
        self.tell(answers, evidence, now, told);
        while let Some(batch) = self.in_flight.front_mut()
            && let Some((mut answers, evidence)) = batch.outcome.take()
        {
            self.tell(&mut answers, evidence, now, told);
        }
    }

    /// The batch has failed as a whole.
    pub fn failed(&mut self, id: BatchId, failure: &Failure, now: Reading, told: &mut Vec<Event>) {
        let count = self.tickets(id).count();
        let mut answers = alloc::vec![Answer::Failed(failure.clone()); count];
        self.answered(id, &mut answers, Evidence::NotRequired, now, told);
    }

    /// What the commands of a batch belong to.
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

    /// Tells the answers to the first batch in flight.
    fn tell(
        &mut self,
        answers: &mut Vec<Answer>,
        evidence: Evidence,
        now: Reading,
        told: &mut Vec<Event>,
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
            true => told.insert(0, event),
            false => told.push(event),
        }
    }

    /// Takes back what came with [`Event::Answered`], for its memory.
    pub fn reuse(&mut self, mut answers: Vec<(Ticket, Answer)>) {
        if self.spare.len() < Self::IN_FLIGHT_MAX && answers.capacity() <= 2 * Self::BATCH_MAX {
            answers.clear();
            self.spare.push(answers);
        }
    }

    /// Of what is meant for a suspended node, releases go behind what is in its silent connection. All else
    /// fails at once.
    fn keep_releases(
        &self,
        commands: &mut Vec<TicketedCommand>,
        failure: &Failure,
        now: Reading,
        told: &mut Vec<Event>,
    ) {
        let (releases, rest): (Vec<_>, Vec<_>) =
            mem::take(commands).into_iter().partition(|(_, command)| command.is_release());
        *commands = releases;
        self.fail(rest, failure, now, told);
    }

    /// Commands that are not even tried.
    fn fail(
        &self,
        commands: impl IntoIterator<Item = TicketedCommand>,
        failure: &Failure,
        now: Reading,
        told: &mut Vec<Event>,
    ) {
        let failed = |(ticket, _)| (ticket, Answer::Failed(failure.clone()));
        let answers: Vec<_> = commands.into_iter().map(failed).collect();
        if !answers.is_empty() {
            let (node, evidence) = (self.node, Evidence::NotRequired);
            told.push(Event::Answered { node, sent: now, evidence, answers });
        }
    }
}

#[cfg(test)]
mod tests;
