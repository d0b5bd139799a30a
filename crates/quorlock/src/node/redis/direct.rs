//! The line to a server: from the node's pipeline to the wire and back, without a future for each batch.

use std::sync::Arc;
use std::task::Context;

use quorlock_core::{
    Answer, BatchId, Event, Failure, NodeId, NodePipeline, NodeState, Reading, Ticket,
    TicketedCommand,
};
use tokio::sync::watch;

use super::RedisNode;
use super::connection::Connection;
use super::parcel::{Encoder, Parcel, To};
use super::server::{ConnectionStatus, Server};
use super::supervise::{Reader, supervise};
use crate::clock::Clock;
use crate::node::{BoxFuture, PushSink};

/// The way to one server, for the client that drives it.
pub(crate) struct Direct {
    server: Arc<Server>,
    clock: Clock,
    pipeline: NodePipeline,
    status: watch::Receiver<ConnectionStatus>,
    /// As the link says.
    state: NodeState,
    connections: Connections,
    /// The batch that waits for a connection; there is one at most.
    unsent: Option<(BatchId, Box<Parcel>)>,
    /// When commands were taken last. What fails without being sent is told with this time, which counts for
    /// nothing.
    now: Reading,
    /// Kept for their memory.
    #[expect(clippy::vec_box, reason = "they go to the wire and back, and are large")]
    parcels: Vec<Box<Parcel>>,
    delivered: Vec<(BatchId, Box<Parcel>)>,
}

/// The connection, and those before it.
#[derive(Default)]
struct Connections {
    current: Option<Arc<Connection>>,
    /// It has not been polled yet, and so it wakes nobody.
    is_new: bool,
    /// Those whose parcels have not all come back.
    former: Vec<Arc<Connection>>,
}

impl Connections {
    /// Takes in which one it is now.
    fn update(&mut self, now: Option<&Arc<Connection>>) {
        let epoch = |it: &Arc<Connection>| it.epoch;
        if self.current.as_ref().map(epoch) != now.map(epoch) {
            self.former.extend(std::mem::replace(&mut self.current, now.cloned()));
            self.is_new = true;
        }
    }
}

impl Direct {
    pub(crate) fn new(id: NodeId, node: &RedisNode, clock: Clock) -> Self {
        let mut status = node.server.status.subscribe();
        status.mark_changed();
        Self {
            server: node.server.clone(),
            clock,
            pipeline: NodePipeline::new(id),
            status,
            state: NodeState::Connecting,
            connections: Connections::default(),
            unsent: None,
            now: clock.now(),
            parcels: Vec::new(),
            delivered: Vec::new(),
        }
    }

    /// Keeps the server connected. To be polled by the task that polls the line, and before it.
    pub(crate) fn background(&self, push_sink: PushSink) -> BoxFuture<()> {
        Box::pin(supervise(self.server.clone(), push_sink, Reader::Pipeline))
    }

    /// Takes commands for the server, and sends them if they need not wait; `now` was read before they were made.
    pub(crate) fn take(
        &mut self,
        commands: &mut Vec<TicketedCommand>,
        now: Reading,
        encoder: &mut Encoder,
        events: &mut Vec<Event>,
    ) {
        self.now = now;
        self.look();
        self.pipeline.push(commands, &self.state, now, events);
        self.send(Some(now), encoder, events);
    }

    /// Takes in what the server has said, and sends what may be sent now.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        encoder: &mut Encoder,
        events: &mut Vec<Event>,
    ) {
        self.look();
        self.connections.is_new = false;
        for connection in std::mem::take(&mut self.connections.former) {
            // One that is closed by what is heard now may have more to give back.
            let was_closed = connection.wire.is_closed();
            self.hear(&connection, cx, encoder, events);
            if !was_closed {
                self.connections.former.push(connection);
            }
        }
        if let Some(connection) = self.connections.current.clone() {
            self.hear(&connection, cx, encoder, events);
        }
        // A server that was silent for too long may have answered.
        self.look();
        self.send(None, encoder, events);
        if self.connections.is_new {
            cx.waker().wake_by_ref();
        }
    }

    /// Takes back what came with answers, for its memory.
    pub(crate) fn reuse(&mut self, answers: Vec<(Ticket, Answer)>) {
        self.pipeline.reuse(answers);
    }

    /// The server is not as it was when the line was last polled.
    pub(crate) fn is_changed(&self) -> bool {
        self.connections.is_new || self.status.has_changed().unwrap_or(false)
    }

    /// Looks how the server is.
    fn look(&mut self) {
        if !self.status.has_changed().unwrap_or(false) {
            return;
        }
        let status = self.status.borrow_and_update();
        self.state.clone_from(&status.state);
        self.connections.update(status.connection.as_ref());
    }

    /// Takes in what the server has said on this connection.
    fn hear(
        &mut self,
        connection: &Connection,
        cx: &mut Context<'_>,
        encoder: &mut Encoder,
        events: &mut Vec<Event>,
    ) {
        let mut delivered = std::mem::take(&mut self.delivered);
        connection.wire.poll_parcels(cx, &mut delivered);
        for (batch, parcel) in delivered.drain(..) {
            self.conclude(connection, batch, parcel, encoder, events);
        }
        self.delivered = delivered;
    }

    fn conclude(
        &mut self,
        connection: &Connection,
        batch: BatchId,
        mut parcel: Box<Parcel>,
        encoder: &mut Encoder,
        events: &mut Vec<Event>,
    ) {
        while connection.conclude(&self.server, &mut parcel) {
            match connection.send(&self.server, parcel, To::Pipeline(batch), encoder) {
                Ok(()) => return,
                Err(unsent) => parcel = unsent,
            }
        }
        let (answers, evidence) = parcel.exchange.take();
        let is_large = answers.len() > Encoder::KEPT;
        self.pipeline.answered(batch, answers, evidence, self.now, events);
        if self.parcels.len() < NodePipeline::IN_FLIGHT_MAX && !is_large {
            self.parcels.push(parcel);
        }
    }

    /// Sends what waits, as far as it may be sent. `now`: a reading from before the commands were made, if it is of
    /// this moment.
    fn send(&mut self, now: Option<Reading>, encoder: &mut Encoder, events: &mut Vec<Event>) {
        if self.unsent.is_none() && !self.pipeline.has_waiting() {
            return;
        }
        let now = now.unwrap_or_else(|| self.clock.now());
        while let Some((batch, parcel)) = self.unsent.take().or_else(|| self.next(now, events)) {
            match self.settled() {
                None => {
                    self.unsent = Some((batch, parcel));
                    return self.pipeline.announce(events);
                }
                Some(Err(failure)) => self.pipeline.failed(batch, &failure, now, events),
                Some(Ok(connection)) => {
                    // The clock was read before the first byte can leave (S4).
                    self.pipeline.sent(batch, now, events);
                    let sent = connection.send(&self.server, parcel, To::Pipeline(batch), encoder);
                    if let Err(unsent) = sent {
                        self.conclude(&connection, batch, unsent, encoder, events);
                    }
                }
            }
        }
    }

    /// The next batch that may be sent.
    fn next(&mut self, now: Reading, events: &mut Vec<Event>) -> Option<(BatchId, Box<Parcel>)> {
        if !self.pipeline.has_waiting() {
            return None;
        }
        let mut parcel = self.parcels.pop().unwrap_or_default();
        let commands = parcel.exchange.renew();
        match self.pipeline.next_batch(&self.state, now, commands, events) {
            Some(batch) => Some((batch, parcel)),
            None => {
                self.parcels.push(parcel);
                None
            }
        }
    }

    /// The connection, or why there is none; `None` while that is open.
    fn settled(&self) -> Option<Result<Arc<Connection>, Failure>> {
        ConnectionStatus::settle(&self.state, self.connections.current.as_ref())
    }
}
