//! The transports to all nodes, and the commands of a tick for each of them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use quorlock_core::{
    Answer, Command, Event, NodeId, NodeSet, Quorum, Reading, RestartGuard, Rules, Ticket,
    TicketedCommand,
};

use super::Metrics;
use crate::clock::Clock;
use crate::node::ready::{INBOX, Ready};
use crate::node::redis::Encoder;
use crate::node::transport::Transport;
use crate::node::{ClientNode, Inbox};

pub(super) struct Transports {
    /// The transport to each node; `None` if the node has panicked.
    transports: Vec<Option<Transport>>,
    /// The commands of this tick for each node.
    outbox: Vec<Vec<TicketedCommand>>,
    encoder: Encoder,
    /// Pushes from the nodes.
    inbox: Inbox,
}

impl Transports {
    pub(super) fn new(quorum: Quorum, rules: &Rules, nodes: &[ClientNode], clock: Clock) -> Self {
        let marker = (rules.guard != RestartGuard::Off).then(|| rules.marker.clone());
        let writes = rules.guard == RestartGuard::Strict;
        let inbox = Inbox::new(nodes.len());
        let mut transports = Vec::new();
        for (id, node) in quorum.node_ids().zip(nodes) {
            let push_sink = inbox.push_sink(id).with_marker(marker.clone()).registering(writes);
            let push_sink = push_sink.durable(rules.durable.contains(id));
            transports.push(Some(Transport::new(id, node, push_sink, clock)));
        }
        let outbox = transports.iter().map(|_| Vec::new()).collect();
        Self { transports, outbox, encoder: Encoder::default(), inbox }
    }

    /// Polls the transports that were woken, and takes the pushes from the nodes. `woken` has the bits of [`Ready::take`].
    pub(super) fn poll(&mut self, woken: u64, ready: &Ready, answered: &mut Vec<Event>) {
        for (place, transport) in self.transports.iter_mut().enumerate() {
            if woken & (1 << place) != 0 {
                let cx = &mut ready.context(place);
                work(transport, |transport| transport.poll(cx, &mut self.encoder, answered));
            }
        }
        if woken & (1 << INBOX) != 0 {
            self.inbox.take(&mut ready.context(INBOX), answered);
        }
    }

    /// Sends the command to each of these nodes at the end of the tick.
    pub(super) fn send(&mut self, nodes: NodeSet, ticket: Ticket, command: Command) {
        let mut nodes = nodes.iter();
        let Some(first) = nodes.next() else { return };
        for node in nodes {
            self.outbox[node.index()].push((ticket, command.clone()));
        }
        self.outbox[first.index()].push((ticket, command));
    }

    /// Gives each transport its commands. Adds to `answered` the commands that fail at once.
    pub(super) fn flush(
        &mut self,
        now: Reading,
        ready: &Ready,
        metrics: &Metrics,
        answered: &mut Vec<Event>,
    ) {
        for (place, orders) in self.outbox.iter_mut().enumerate() {
            if !orders.is_empty() {
                let count = u64::try_from(orders.len()).unwrap_or(u64::MAX);
                metrics.nodes[place].commands.fetch_add(count, Ordering::Relaxed);
                work(&mut self.transports[place], |transport| {
                    transport.take(orders, now, &mut self.encoder, answered);
                    if transport.sends_when_polled() {
                        ready.note(place);
                    }
                });
                orders.clear();
                orders.shrink_to(ORDERS_KEPT);
            }
        }
        self.encoder.forget();
    }

    pub(super) fn reuse(&mut self, node: NodeId, answers: Vec<(Ticket, Answer)>) {
        if let Some(transport) = &mut self.transports[node.index()] {
            transport.reuse(answers);
        }
    }
}

/// Lets a transport work. If its node panics, the client continues without the node, whose commands time out in the
/// engine.
fn work(transport: &mut Option<Transport>, work: impl FnOnce(&mut Transport)) {
    if let Some(working) = transport
        && catch_unwind(AssertUnwindSafe(|| work(working))).is_err()
    {
        tracing::error!("a node panicked; it is not used any more");
        *transport = None;
    }
}

/// Memory for this many commands to a node is reused. Ticks with more commands are rare.
const ORDERS_KEPT: usize = 256;
