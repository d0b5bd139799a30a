//! The driver's transport to one node.
//!
//! [`NodePipeline`] decides which commands are sent together, when, and in which order their answers are reported. The
//! transport to a server is [`ServerTransport`], that to a node in memory is [`Memory`].

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{FuturesOrdered, Stream};
use quorlock_core::{
    Answer, Command, Commands, Event, Evidence, Exchange, Failure, NodeId, NodePipeline, Reading,
    Ticket,
};

use super::redis::{Encoder, ServerTransport};
use super::{BoxFuture, MemoryNode, NodeState, PushSink, RedisNode};
use crate::clock::Clock;

/// A node of a client.
#[derive(Clone, Debug)]
pub enum ClientNode {
    /// A server. The driver owns the connection to it.
    Server(RedisNode),
    /// A node in memory.
    Memory(MemoryNode),
}

impl ClientNode {
    /// The name that messages show for the node.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Server(server) => server.name(),
            Self::Memory(node) => node.name(),
        }
    }

    /// Whether the node can be used now.
    pub(crate) fn state(&self) -> NodeState {
        match self {
            Self::Server(server) => server.state(),
            Self::Memory(node) => node.state(),
        }
    }

    /// The database with the locks; zero for a node that is not a server.
    pub(crate) fn database(&self) -> u32 {
        match self {
            Self::Server(server) => server.database(),
            Self::Memory(_) => 0,
        }
    }
}

pub(crate) enum Transport {
    Server(Box<ServerTransport>),
    Memory(Box<Memory>),
}

impl Transport {
    pub(crate) fn new(id: NodeId, node: &ClientNode, push_sink: PushSink, clock: Clock) -> Self {
        match node {
            ClientNode::Server(server) => {
                Self::Server(Box::new(ServerTransport::new(id, server, push_sink, clock)))
            }
            ClientNode::Memory(node) => {
                node.add_listener(push_sink);
                Self::Memory(Box::new(Memory::new(id, node.clone(), clock)))
            }
        }
    }

    /// Takes commands for the node; `now` was read before the commands were created. Sends them now, or when it is
    /// polled. Adds to `events` the events for the engine.
    pub(crate) fn take(
        &mut self,
        commands: (&Commands, &[usize]),
        now: Reading,
        encoder: &mut Encoder,
        events: &mut Vec<Event>,
    ) {
        match self {
            Self::Server(transport) => transport.take(commands, now, encoder, events),
            Self::Memory(transport) => transport.take(commands, now, events),
        }
    }

    /// Notes whether the engine has identified the node on this connection, and sends the batches that waited for that.
    pub(crate) fn note_identified(
        &mut self,
        connection: (u64, bool),
        now: Reading,
        encoder: &mut Encoder,
        events: &mut Vec<Event>,
    ) {
        if let Self::Server(transport) = self {
            transport.note_identified(connection, now, encoder, events);
        }
    }

    /// Notes the usual round trip to the node.
    pub(crate) fn note_round_trip(&mut self, round_trip: Duration) {
        if let Self::Server(transport) = self {
            transport.note_round_trip(round_trip);
        }
    }

    /// Whether the node is connected, and whether it cannot be reached.
    pub(crate) fn reach(&self) -> (bool, bool) {
        let reach = |state: &NodeState| {
            let is_down = matches!(state, NodeState::Suspended(_) | NodeState::Down(_));
            (*state == NodeState::Up, is_down)
        };
        match self {
            Self::Server(transport) => reach(transport.state()),
            Self::Memory(transport) => reach(&transport.node.state()),
        }
    }

    /// The failure that makes the node unreachable now; `None` if it can be reached.
    pub(crate) fn down(&self) -> Option<Failure> {
        let state = match self {
            Self::Server(transport) => transport.state().clone(),
            Self::Memory(transport) => transport.node.state(),
        };
        match state {
            NodeState::Suspended(failure) | NodeState::Down(failure) => Some(failure),
            _ => None,
        }
    }

    /// Whether the transport must be polled after it has taken commands.
    pub(crate) fn sends_when_polled(&self) -> bool {
        matches!(self, Self::Memory(_))
    }

    /// Sends the commands that wait, and reads answers. Adds to `events` the events for the engine.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        encoder: &mut Encoder,
        events: &mut Vec<Event>,
    ) {
        match self {
            Self::Server(transport) => transport.poll(cx, encoder, events),
            Self::Memory(transport) => transport.poll(cx, events),
        }
    }

    pub(crate) fn reuse(&mut self, answers: Vec<(Ticket, Answer)>) {
        match self {
            Self::Server(transport) => transport.reuse(answers),
            Self::Memory(transport) => transport.pipeline.reuse(answers),
        }
    }
}

/// The transport to a node in memory.
pub(crate) struct Memory {
    node: MemoryNode,
    clock: Clock,
    pipeline: NodePipeline,
    in_flight: FuturesOrdered<BoxFuture<(Exchange, Vec<Answer>)>>,
    /// The clock reading when commands were last taken. It is the time of sending in the answers to commands that were
    /// never sent. Such an answer is never a vote.
    now: Reading,
}

impl Memory {
    fn new(id: NodeId, node: MemoryNode, clock: Clock) -> Self {
        let (pipeline, in_flight) = (NodePipeline::new(id), FuturesOrdered::new());
        Self { node, clock, pipeline, in_flight, now: clock.now() }
    }

    fn take(&mut self, commands: (&Commands, &[usize]), now: Reading, events: &mut Vec<Event>) {
        self.now = now;
        self.pipeline.push(commands.0, commands.1, &self.node.state(), now, events);
    }

    fn poll(&mut self, cx: &mut Context<'_>, events: &mut Vec<Event>) {
        loop {
            while let Poll::Ready(Some(answered)) = Pin::new(&mut self.in_flight).poll_next(cx) {
                let (mut exchange, answers) = answered;
                exchange.answer_all(answers, Evidence::NotRequired);
                self.pipeline.answered(&mut exchange, self.now, events);
            }
            if !self.send(events) {
                return self.pipeline.announce(events);
            }
        }
    }

    /// Sends the next batch. Returns whether there was a batch; the caller then polls its future.
    fn send(&mut self, events: &mut Vec<Event>) -> bool {
        if !self.pipeline.has_waiting() {
            return false;
        }
        let (mut exchange, state) = (Exchange::default(), self.node.state());
        if self.pipeline.next_batch(&state, self.now, &mut exchange, events).is_none() {
            return false;
        }
        let commands: Vec<Command> =
            exchange.to_send().map(|(_, command)| command.clone()).collect();
        // The clock is read before the node has the commands (S4).
        let at = self.clock.now();
        let (is_sent, answers) = self.node.execute(&commands);
        if is_sent {
            self.pipeline.sent(&mut exchange, at, events);
        }
        self.in_flight.push_back(Box::pin(async move { (exchange, answers.await) }));
        true
    }
}
