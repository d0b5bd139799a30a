//! The commands for one node: which wait, which are under way, and in which order the answers are told.
//!
//! A command that finds nothing before it is sent at once. While a batch is on its way, commands gather, and go
//! with the next one (group commit). A few batches are in flight at a time. Their answers are told in the
//! order of sending, also across connections: an old "extended" is never taken for news after a newer "gone".

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;

use crate::command::{Answer, Command, Failure, FailureKind};
use crate::engine::{Event, Ticket};
use crate::proof::Proof;
use crate::quorum::NodeId;
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
pub struct BatchId(u64);

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
    outcome: Option<(Vec<Answer>, Proof)>,
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
        proof: Proof,
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
            batch.outcome = Some((mem::take(answers), proof));
            return;
        }
        self.tell(answers, proof, now, told);
        while let Some(batch) = self.in_flight.front_mut()
            && let Some((mut answers, proof)) = batch.outcome.take()
        {
            self.tell(&mut answers, proof, now, told);
        }
    }

    /// The batch has failed as a whole.
    pub fn failed(&mut self, id: BatchId, failure: &Failure, now: Reading, told: &mut Vec<Event>) {
        let count = self.tickets(id).count();
        let mut answers = alloc::vec![Answer::Failed(failure.clone()); count];
        self.answered(id, &mut answers, Proof::Vouched, now, told);
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
        proof: Proof,
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
        let event = Event::Answered { node: self.node, sent, proof, answers: both };
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
            let (node, proof) = (self.node, Proof::Vouched);
            told.push(Event::Answered { node, sent: now, proof, answers });
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;
    use alloc::vec;

    use super::*;
    use crate::engine::{LockId, Verb};
    use crate::token::{Token, Value};

    const NOW: Reading = Reading::new(0, 0);

    /// A pipeline, and the state of its node.
    struct Setting {
        pipeline: NodePipeline,
        state: NodeState,
        told: Vec<Event>,
        next: Vec<(BatchId, Vec<u64>)>,
    }

    impl Setting {
        fn new() -> Self {
            let (pipeline, state) = (NodePipeline::new(NodeId::new(0)), NodeState::Up);
            Self { pipeline, state, told: Vec::new(), next: Vec::new() }
        }

        /// Takes commands, and gives away what is to be sent.
        fn push(&mut self, commands: impl IntoIterator<Item = TicketedCommand>) {
            let mut commands = commands.into_iter().collect();
            self.pipeline.push(&mut commands, &self.state, NOW, &mut self.told);
            assert!(commands.is_empty());
            self.give();
        }

        fn give(&mut self) {
            let mut commands = Vec::new();
            while let Some(id) =
                self.pipeline.next_batch(&self.state, NOW, &mut commands, &mut self.told)
            {
                self.next.push((id, commands.drain(..).map(|it| number(&it)).collect()));
            }
        }

        /// The batches that were given away, by their locks' numbers.
        fn given(&self) -> Vec<Vec<u64>> {
            self.next.iter().map(|(_, locks)| locks.clone()).collect()
        }

        fn send(&mut self, batch: usize) {
            self.pipeline.sent(self.next[batch].0, NOW, &mut self.told);
            self.give();
        }

        fn answer(&mut self, batch: usize, answers: Vec<Answer>) {
            let id = self.next[batch].0;
            let mut answers = answers;
            self.pipeline.answered(id, &mut answers, Proof::Vouched, NOW, &mut self.told);
            self.give();
        }

        /// What the engine was told of answers: which locks they belong to.
        fn told(&mut self) -> Vec<(Vec<u64>, Vec<Answer>)> {
            let answered = |event| match event {
                Event::Answered { answers, .. } => Some(answers),
                _ => None,
            };
            let told = self.told.drain(..).filter_map(answered);
            told.map(|told| told.into_iter().map(|(ticket, it)| (ticket.lock.0, it)).unzip())
                .collect()
        }
    }

    fn number(command: &Command) -> u64 {
        match command {
            Command::Acquire { key, .. } | Command::Release { key, .. } => key.parse().unwrap(),
            _ => panic!("not used here: {command:?}"),
        }
    }

    fn acquire(number: u64) -> TicketedCommand {
        let (key, value) = (number.to_string().into(), Value::new(&Token::new([7; 20]), ""));
        let ticket = Ticket { lock: LockId(number), round: 1, verb: Verb::Acquire };
        (ticket, Command::Acquire { key, value, ttl_ms: 1000 })
    }

    fn release(number: u64) -> TicketedCommand {
        let (ticket, Command::Acquire { key, value, .. }) = acquire(number) else { unreachable!() };
        (Ticket { verb: Verb::Release, ..ticket }, Command::Release { key, value, tell: true })
    }

    #[test]
    fn few_batches_are_in_flight_and_none_is_too_large() {
        let mut it = Setting::new();
        it.push((0..3 * 512).map(acquire));
        (0..3).for_each(|batch| it.send(batch));
        it.push([acquire(0)]);
        it.send(3);
        it.push([acquire(1)]);
        it.push([acquire(2)]);
        let sizes = |it: &Setting| it.given().iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes(&it), [512, 512, 512, 1], "the others wait");
        it.answer(1, vec![Answer::Refused; 512]);
        assert!(it.told().is_empty() && it.given().len() == 4, "the first is awaited");
        it.answer(0, vec![Answer::Refused; 512]);
        assert_eq!(sizes(&it), [512, 512, 512, 1, 2]);
        let told: Vec<u64> = it.told().into_iter().flat_map(|(locks, _)| locks).collect();
        assert!(told.is_sorted() && told.len() == 1024);
    }

    #[test]
    fn a_batch_that_waits_for_a_connection_is_announced_once() {
        let mut it = Setting::new();
        it.push([acquire(1)]);
        it.push([release(1)]);
        it.pipeline.announce(&mut it.told);
        it.pipeline.announce(&mut it.told);
        assert!(matches!(it.told[..], [Event::Connecting { .. }]));
        assert_eq!(it.given(), [vec![1]], "one waits at a time");
        it.send(0);
        assert!(matches!(it.told[1..], [Event::Connected { .. }]));
        assert_eq!(it.given(), [vec![1], vec![1]]);
    }

    #[test]
    fn a_suspended_node_is_sent_nothing_but_releases() {
        let mut it = Setting::new();
        let failure = Failure::unsent(FailureKind::Suspended);
        let fails =
            |locks: &[u64]| (locks.to_vec(), vec![Answer::Failed(failure.clone()); locks.len()]);
        it.push([acquire(1)]);
        it.push([acquire(2), release(2), acquire(3)]);
        assert!(it.told().is_empty());
        it.state = NodeState::Suspended(failure.clone());
        // What waits is looked through, and what comes.
        it.push([release(3), acquire(4), release(4)]);
        assert_eq!(it.told(), [fails(&[4]), fails(&[2, 3])]);
        it.push([acquire(5), release(5)]);
        assert_eq!(it.told(), [fails(&[5])]);
        it.send(0);
        assert_eq!(it.given(), [vec![1], vec![2, 3, 4, 5]], "the releases, in order");

        it.state = NodeState::Up;
        it.send(1);
        it.push([acquire(6)]);
        it.push([acquire(7)]);
        it.state = NodeState::Suspended(failure.clone());
        it.push([release(7)]);
        assert_eq!(it.told(), [fails(&[7])], "suspended again, it is looked through again");
        assert_eq!(it.given()[2..], [vec![6]]);
    }

    #[test]
    fn a_node_that_is_down_fails_everything_at_once() {
        let mut it = Setting::new();
        let failure = Failure::unsent(FailureKind::Unreachable);
        it.push([acquire(1)]);
        it.state = NodeState::Down(failure.clone());
        it.push([acquire(2), release(2)]);
        assert_eq!(it.told(), [(vec![2, 2], vec![Answer::Failed(failure); 2])]);
        assert_eq!(it.given(), [vec![1]]);
    }

    #[test]
    fn answers_that_cannot_be_right_are_no_votes() {
        let mut it = Setting::new();
        let protocol = Answer::Failed(Failure::new(FailureKind::Protocol));
        it.push([acquire(1), acquire(2)]);
        it.send(0);
        it.answer(0, vec![Answer::Granted]);
        assert_eq!(it.told(), [(vec![1, 2], vec![protocol.clone(); 2])], "one answer too few");
        it.answer(0, vec![Answer::Granted; 2]);
        assert!(it.told().is_empty(), "it is over");

        it.push([acquire(3), acquire(4)]);
        let unsent = Answer::Failed(Failure::unsent(FailureKind::Unreachable));
        it.answer(1, vec![Answer::Granted, unsent.clone()]);
        assert_eq!(it.told(), [(vec![3, 4], vec![protocol, unsent])], "it was never sent");
    }

    #[test]
    fn what_was_sent_may_have_been_executed_whatever_is_said_of_it() {
        let mut it = Setting::new();
        it.push([acquire(1), acquire(2)]);
        it.send(0);
        let unsent = |kind| Answer::Failed(Failure::unsent(kind));
        let declined = unsent(FailureKind::Rejected);
        it.answer(0, vec![unsent(FailureKind::Unreachable), declined.clone()]);
        let broken = Answer::Failed(Failure::new(FailureKind::Unreachable));
        assert_eq!(it.told(), [(vec![1, 2], vec![broken, declined])]);
    }

    #[test]
    fn no_more_than_so_much_waits_for_a_node() {
        let mut it = Setting::new();
        it.push([acquire(0)]);
        it.push((1..=NodePipeline::QUEUE_MAX as u64).map(acquire));
        assert!(it.told().is_empty());
        it.push([acquire(1_000_000)]);
        let full = Answer::Failed(Failure::unsent(FailureKind::QueueFull));
        assert_eq!(it.told(), [(vec![1_000_000], vec![full])]);
        it.send(0);
        it.push([acquire(1_000_001)]);
        assert!(it.told().is_empty(), "there is room again");
        assert_eq!(it.given().concat().len(), 513);
    }
}
