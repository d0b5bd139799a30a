//! The driver's path to a server: from the node's pipeline to the wire and back, without a future for each batch.

use std::task::Context;

use quorlock_core::{Answer, Commands, Event, NodeId, NodePipeline, NodeState, Reading, Ticket};

use super::RedisNode;
use super::link::Link;
use super::wire_batch::{Encoder, WireBatch, WireBatches};
use crate::clock::Clock;
use crate::node::PushSink;

/// The driver's transport to one server. It owns all state of the connection.
pub(crate) struct Direct {
    clock: Clock,
    pipeline: NodePipeline,
    link: Link,
    /// The batch that waits for a connection; at most one.
    unsent: Option<Box<WireBatch>>,
    /// The clock reading when commands last arrived from the engine. It is the time of sending in the answers to
    /// commands that were never sent. Such an answer is never a vote.
    now: Reading,
    /// Concluded batches, whose memory is used again for new batches.
    spare: WireBatches,
    concluded: WireBatches,
}

impl Direct {
    pub(crate) fn state(&self) -> &NodeState {
        self.link.state()
    }

    pub(crate) fn new(id: NodeId, node: &RedisNode, push_sink: PushSink, clock: Clock) -> Self {
        Self {
            clock,
            pipeline: NodePipeline::new(id),
            link: Link::new(node.server.clone(), push_sink),
            unsent: None,
            now: clock.now(),
            spare: Vec::new(),
            concluded: Vec::new(),
        }
    }

    /// Takes commands for the server, and sends them unless they must wait; `now` was read before the commands were
    /// created.
    pub(crate) fn take(
        &mut self,
        commands: (&Commands, &[usize]),
        now: Reading,
        encoder: &mut Encoder,
        events: &mut Vec<Event>,
    ) {
        self.now = now;
        self.pipeline.push(commands.0, commands.1, self.link.state(), now, events);
        self.send(Some(now), encoder, events);
    }

    /// Reads the server's replies, and sends the batches that may be sent now.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        encoder: &mut Encoder,
        events: &mut Vec<Event>,
    ) {
        self.link.poll(cx, encoder, &mut self.concluded);
        self.report(events);
        self.send(None, encoder, events);
    }

    pub(crate) fn reuse(&mut self, answers: Vec<(Ticket, Answer)>) {
        self.pipeline.reuse(answers);
    }

    /// Reports the answers of concluded batches.
    fn report(&mut self, events: &mut Vec<Event>) {
        if self.concluded.is_empty() {
            return;
        }
        for mut batch in self.concluded.drain(..) {
            let is_large = batch.exchange.command_count() > Encoder::KEPT;
            self.pipeline.answered(&mut batch.exchange, self.now, events);
            if self.spare.len() < NodePipeline::IN_FLIGHT_MAX && !is_large {
                self.spare.push(batch);
            }
        }
    }

    /// Sends the batches that may be sent now. `now` is a current reading from before the commands were created. With
    /// `None`, this function reads the clock.
    fn send(&mut self, now: Option<Reading>, encoder: &mut Encoder, events: &mut Vec<Event>) {
        if self.unsent.is_none() && !self.pipeline.has_waiting() {
            return;
        }
        let now = now.unwrap_or_else(|| self.clock.now());
        while let Some(mut batch) = self.unsent.take().or_else(|| self.next(now, events)) {
            match self.link.readiness() {
                None => {
                    self.unsent = Some(batch);
                    return self.pipeline.announce(events);
                }
                Some(Err(failure)) => {
                    batch.exchange.fail(&failure);
                    self.concluded.push(batch);
                    // Answers stay in order: `next` may report failures of later commands, so this one comes first.
                    self.report(events);
                }
                Some(Ok(())) => {
                    // The clock was read before the first byte can leave (S4).
                    self.pipeline.sent(&mut batch.exchange, now, events);
                    self.link.send(batch, encoder, &mut self.concluded);
                }
            }
        }
        self.report(events);
    }

    /// The next batch of the pipeline; `None` if no batch may be sent now.
    fn next(&mut self, now: Reading, events: &mut Vec<Event>) -> Option<Box<WireBatch>> {
        if !self.pipeline.has_waiting() {
            return None;
        }
        let mut batch = self.spare.pop().unwrap_or_default();
        let state = self.link.state();
        if self.pipeline.next_batch(state, now, &mut batch.exchange, events).is_none() {
            self.spare.push(batch);
            return None;
        }
        Some(batch)
    }
}
