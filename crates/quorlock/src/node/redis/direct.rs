//! The driver's path to a server: from the node's pipeline to the wire and back, without a future for each batch.

use std::task::Context;

use quorlock_core::{
    Answer, Event, Failure, NodeId, NodePipeline, Reading, Ticket, TicketedCommand,
};

use super::RedisNode;
use super::link::Link;
use super::request::{Encoder, Request, Requests};
use crate::clock::Clock;
use crate::node::PushSink;

/// The driver's transport to one server. It owns all state of the connection.
pub(crate) struct Direct {
    clock: Clock,
    pipeline: NodePipeline,
    link: Link,
    /// The batch that waits for a connection; at most one.
    unsent: Option<Box<Request>>,
    /// The clock reading when commands were last taken. Answers to commands that were never sent have it as their time
    /// of sending; no vote counts from it.
    now: Reading,
    spare: Requests,
    concluded: Requests,
}

impl Direct {
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
        commands: &mut Vec<TicketedCommand>,
        now: Reading,
        encoder: &mut Encoder,
        events: &mut Vec<Event>,
    ) {
        self.now = now;
        self.pipeline.push(commands, self.link.state(), now, events);
        self.send(Some(now), encoder, events);
    }

    /// Reads the server's replies, and sends what may be sent now.
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

    /// Reports the answers of concluded requests.
    fn report(&mut self, events: &mut Vec<Event>) {
        for mut request in self.concluded.drain(..) {
            let Some(batch) = request.batch else { continue };
            let (answers, evidence) = request.exchange.take();
            let is_large = answers.len() > Encoder::KEPT;
            self.pipeline.answered(batch, answers, evidence, self.now, events);
            if self.spare.len() < NodePipeline::IN_FLIGHT_MAX && !is_large {
                self.spare.push(request);
            }
        }
    }

    /// Sends the batches that may be sent now. `now` is a current reading from before the commands were created, if the
    /// caller has one.
    fn send(&mut self, now: Option<Reading>, encoder: &mut Encoder, events: &mut Vec<Event>) {
        if self.unsent.is_none() && !self.pipeline.has_waiting() {
            return;
        }
        let now = now.unwrap_or_else(|| self.clock.now());
        while let Some(request) = self.unsent.take().or_else(|| self.next(now, events)) {
            match self.link.readiness() {
                None => {
                    self.unsent = Some(request);
                    return self.pipeline.announce(events);
                }
                Some(Err(failure)) => self.fail(&request, &failure, now, events),
                Some(Ok(())) => {
                    if let Some(batch) = request.batch {
                        // The clock was read before the first byte can leave (S4).
                        self.pipeline.sent(batch, now, events);
                    }
                    self.link.send(request, encoder, &mut self.concluded);
                }
            }
        }
        self.report(events);
    }

    /// The next batch that may be sent.
    fn next(&mut self, now: Reading, events: &mut Vec<Event>) -> Option<Box<Request>> {
        if !self.pipeline.has_waiting() {
            return None;
        }
        let mut request = self.spare.pop().unwrap_or_default();
        let commands = request.exchange.renew();
        request.batch = self.pipeline.next_batch(self.link.state(), now, commands, events);
        if request.batch.is_none() {
            self.spare.push(request);
            return None;
        }
        Some(request)
    }

    fn fail(
        &mut self,
        request: &Request,
        failure: &Failure,
        now: Reading,
        events: &mut Vec<Event>,
    ) {
        if let Some(batch) = request.batch {
            self.pipeline.failed(batch, failure, now, events);
        }
    }
}
