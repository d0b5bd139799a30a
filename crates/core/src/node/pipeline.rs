//! The commands for one node: decides when they are sent, in which batches, and in which order the answers are
//! reported.
//!
//! A command is sent at once if no batch waits for a connection and few batches are in flight. Otherwise commands wait,
//! and go together in the next batch (group commit). The answers are reported in the order of sending, also across
//! connections. Otherwise the engine could apply an old "extended" after a later "absent".

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::client::engine::Event;
use crate::command::{Answer, Command, Failure, FailureKind};
use crate::ids::Ticket;
use crate::node::evidence::Evidence;
use crate::node::session::Exchange;
use crate::redlock::quorum::NodeId;
use crate::time::Reading;

/// A command, and the ticket (lock, round and verb) that its answer carries.
pub type TicketedCommand = (Ticket, Command);

/// The commands that the engine emits in one tick (one pass over the arrived events). All nodes' batches share them.
pub type Commands = Arc<Vec<TicketedCommand>>;

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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct BatchId(pub u64);

/// The commands that wait for one node, and the order of the batches in flight.
///
/// Each method adds the resulting events for the engine to `events`.
#[derive(Clone, Debug)]
pub struct NodePipeline {
    node: NodeId,
    batch_max: usize,
    waiting: VecDeque<TicketedCommand>,
    /// The list of the last [`push`](NodePipeline::push), if its commands can be the next batch without being copied to
    /// `waiting`. `members` are the indexes of these commands in the list.
    fresh: Option<Commands>,
    members: Vec<usize>,
    /// Whether `waiting` contains only releases, because the node is suspended and its other commands have failed.
    only_releases: bool,
    /// The id of the next batch.
    next: u64,
    /// The id of the batch whose answers are reported next.
    first: u64,
    unsent: Option<Unsent>,
    /// Answers that arrived before those of an earlier batch.
    early: BTreeMap<BatchId, Event>,
    /// Empty vectors, reused for answers.
    spare: Vec<Vec<(Ticket, Answer)>>,
}

/// The batch that [`NodePipeline::next_batch`] returned last, until it is sent. It waits if there is no connection.
#[derive(Clone, Copy, Debug, Default)]
struct Unsent {
    /// Whether the engine was notified that the batch waits for a connection.
    is_announced: bool,
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
            fresh: None,
            members: Vec::new(),
            only_releases: false,
            next: 0,
            first: 0,
            unsent: None,
            early: BTreeMap::new(),
            spare: Vec::new(),
        }
    }

    /// Sets the largest number of commands in a batch, instead of [`BATCH_MAX`](Self::BATCH_MAX).
    #[must_use]
    pub const fn with_batch_max(mut self, batch_max: usize) -> Self {
        self.batch_max = batch_max;
        self
    }

    /// The node of the pipeline.
    pub const fn node(&self) -> NodeId {
        self.node
    }

    /// Adds the commands of this list that have the indexes in `members`, in order.
    pub fn push(
        &mut self,
        commands: &Commands,
        members: &[usize],
        state: &NodeState,
        now: Reading,
        events: &mut Vec<Event>,
    ) {
        self.copy_fresh();
        if !matches!(state, NodeState::Suspended(_)) {
            self.only_releases = false;
        }
        let is_usable = matches!(state, NodeState::Up | NodeState::Connecting);
        let fits = (1..=self.batch_max).contains(&members.len());
        if is_usable && fits && self.waiting.is_empty() && self.may_begin() {
            self.fresh = Some(commands.clone());
            self.members.extend_from_slice(members);
            return;
        }
        let before = self.waiting.len();
        self.waiting.extend(members.iter().map(|place| commands[*place].clone()));
        if let NodeState::Suspended(failure) = state {
            self.keep_releases(before, failure, now, events);
        }
        if self.waiting.len() > Self::QUEUE_MAX {
            let full = Failure::unsent(FailureKind::QueueFull);
            self.fail_waiting(before, &full, now, events);
        }
    }

    /// Copies the commands of the last [`push`](Self::push) to `waiting`.
    fn copy_fresh(&mut self) {
        if let Some(commands) = self.fresh.take() {
            self.waiting.extend(self.members.drain(..).map(|place| commands[place].clone()));
        }
    }

    /// Whether another batch may be in flight.
    fn may_begin(&self) -> bool {
        self.unsent.is_none() && self.next - self.first < Self::IN_FLIGHT_MAX as u64
    }

    /// Takes the next batch, and puts its commands into `exchange`. Returns `None` if no command waits, too many
    /// batches are in flight, or the node is down and the commands fail. Also returns `None` while a batch waits for a
    /// connection: only one batch may wait, so that a release does not overtake its acquire.
    pub fn next_batch(
        &mut self,
        state: &NodeState,
        now: Reading,
        exchange: &mut Exchange,
        events: &mut Vec<Event>,
    ) -> Option<BatchId> {
        match state {
            NodeState::Up | NodeState::Connecting => {}
            NodeState::Down(failure) => {
                self.copy_fresh();
                self.fail_waiting(0, failure, now, events);
            }
            NodeState::Suspended(failure) => {
                self.copy_fresh();
                if !self.only_releases {
                    self.keep_releases(0, failure, now, events);
                    self.only_releases = true;
                }
            }
        }
        if !self.has_waiting() || !self.may_begin() {
            return None;
        }
        let id = BatchId(self.next);
        self.next += 1;
        self.unsent = Some(Unsent::default());
        exchange.begin(id, self.spare.pop());
        match self.fresh.take() {
            Some(commands) => exchange.share(commands, &mut self.members),
            None => {
                let count = self.waiting.len().min(self.batch_max);
                exchange.own(self.waiting.drain(..count));
            }
        }
        Some(id)
    }

    /// Whether commands wait.
    pub fn has_waiting(&self) -> bool {
        self.fresh.is_some() || !self.waiting.is_empty()
    }

    /// Reports that a batch waits for its connection, once for each batch.
    pub fn announce(&mut self, events: &mut Vec<Event>) {
        if let Some(Unsent { is_announced: is_announced @ false }) = &mut self.unsent {
            *is_announced = true;
            events.push(Event::Connecting { node: self.node });
        }
    }

    /// Fails, unsent, the commands of this batch that prolong a lock without a guard. The caller declines them on a
    /// connection on which the engine has not identified the node ([`Effect::Identified`]).
    ///
    /// A node that restarted with old data may hold the value of a lock that another client has held since. Its
    /// quarantine outlasts every key that it had, unless a command prolongs the key meanwhile (S10, S32). Extensions by a
    /// guard are sent: while a guard is valid, no other client can have held the lock.
    ///
    /// [`Effect::Identified`]: crate::Effect::Identified
    pub fn decline(&mut self, exchange: &mut Exchange, now: Reading, events: &mut Vec<Event>) {
        if mutant!(ProlongedUnidentified) {
            return;
        }
        let answers = exchange.decline();
        if !answers.is_empty() {
            let (node, evidence) = (self.node, Evidence::NotRequired);
            events.push(Event::Answered { node, sent: now, evidence, answers });
        }
    }

    /// Notes that the batch is being sent. Its votes count from the reading `at`, which was taken before the first byte
    /// could leave (S4).
    pub fn sent(&mut self, exchange: &mut Exchange, at: Reading, events: &mut Vec<Event>) {
        exchange.sent = Some(at);
        if self.unsent.take().is_some_and(|unsent| unsent.is_announced) {
            events.push(Event::Connected { node: self.node });
        }
    }

    /// Takes the answers to a batch: one answer or failure for each command. The engine receives them after the answers
    /// of all earlier batches.
    ///
    /// If the number of answers is wrong, no answer can be assigned to a command, so all commands of the batch fail.
    /// Commands of a batch that was never sent also fail, whatever the answers. A command that was sent may have been
    /// executed, even if its connection failed (S8).
    pub fn answered(&mut self, exchange: &mut Exchange, now: Reading, events: &mut Vec<Event>) {
        if exchange.sent.is_none() {
            self.unsent = None;
        }
        let (sent, id) = (exchange.sent.take(), exchange.id);
        let (mut answers, evidence) = exchange.take();
        for (_, answer) in &mut answers {
            match (&*answer, sent) {
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
        if mutant!(AnswersMixed) {
            let (tickets, mut mixed): (Vec<_>, Vec<_>) = answers.drain(..).unzip();
            mixed.reverse();
            answers.extend(tickets.into_iter().zip(mixed));
        }
        let sent = if mutant!(TimedByAnswer) { now } else { sent.unwrap_or(now) };
        let event = Event::Answered { node: self.node, sent, evidence, answers };
        if id.0 != self.first {
            self.early.insert(id, event);
            return;
        }
        self.report(event, events);
        while let Some(event) = self.early.remove(&BatchId(self.first)) {
            self.report(event, events);
        }
    }

    /// Reports the answers to the first batch in flight.
    fn report(&mut self, event: Event, events: &mut Vec<Event>) {
        self.first += 1;
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

    /// Keeps the waiting releases, because a suspended node still gets releases: they follow the earlier commands on
    /// its silent connection. All other waiting commands from this index on fail at once.
    fn keep_releases(
        &mut self,
        from: usize,
        failure: &Failure,
        now: Reading,
        events: &mut Vec<Event>,
    ) {
        let is_release = |(_, command): &TicketedCommand| command.is_release();
        let (releases, rest): (Vec<_>, Vec<_>) = self.waiting.drain(from..).partition(is_release);
        self.waiting.extend(rest);
        self.fail_waiting(from, failure, now, events);
        self.waiting.extend(releases);
    }

    /// Reports that the waiting commands from this index on have failed without being sent.
    fn fail_waiting(
        &mut self,
        from: usize,
        failure: &Failure,
        now: Reading,
        events: &mut Vec<Event>,
    ) {
        let failed = |(ticket, _)| (ticket, Answer::Failed(failure.clone()));
        let answers: Vec<_> = self.waiting.drain(from..).map(failed).collect();
        if !answers.is_empty() {
            let (node, evidence) = (self.node, Evidence::NotRequired);
            events.push(Event::Answered { node, sent: now, evidence, answers });
        }
    }
}

#[cfg(test)]
mod tests;
