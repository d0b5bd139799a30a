//! A node without a client.

use std::fmt;
use std::sync::Arc;
use std::task::Context;

use quorlock_core::{Event, Key, NodeId, TicketedCommand};

use super::Inbox;
use super::redis::Encoder;
use super::transport::{ClientNode, Transport};
use crate::clock::Clock;

/// A node that a test compares with another one. The test takes the place of the engine: it gives the commands, and takes
/// the events. Between test and node is the driver's transport.
pub struct NodeUnderTest {
    transport: Transport,
    encoder: Encoder,
    inbox: Inbox,
}

impl NodeUnderTest {
    /// Makes a transport to this node. The marker under this key is the evidence that a server's answers count.
    pub fn new(node: &ClientNode, marker: Key) -> Self {
        let (id, inbox) = (NodeId::new(0), Inbox::new(1));
        let push_sink = inbox.push_sink(id).with_marker(Some(marker));
        let transport = Transport::new(id, node, push_sink, Clock::System);
        Self { transport, encoder: Encoder::default(), inbox }
    }

    /// Takes commands, which are sent now or at a later poll.
    pub fn take(&mut self, commands: Vec<TicketedCommand>, events: &mut Vec<Event>) {
        let members: Vec<usize> = (0..commands.len()).collect();
        let commands = Arc::new(commands);
        self.encoder.begin(&commands);
        let now = Clock::System.now();
        self.transport.take((&commands, &members), now, &mut self.encoder, events);
        self.encoder.end();
    }

    /// Trusts the node on this connection, as the engine does after [`Event::Greeted`]. Until then commands wait.
    pub fn trust(&mut self, connection: u64, events: &mut Vec<Event>) {
        let now = Clock::System.now();
        self.transport.note_identified((connection, true), now, &mut self.encoder, events);
    }

    /// Sends the commands that wait, and takes answers and pushes. Later ones wake the task of `cx`.
    pub fn poll(&mut self, cx: &mut Context<'_>, events: &mut Vec<Event>) {
        self.transport.poll(cx, &mut self.encoder, events);
        self.inbox.take(cx, events);
    }
}

impl fmt::Debug for NodeUnderTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeUnderTest").finish_non_exhaustive()
    }
}
