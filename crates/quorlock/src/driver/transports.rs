//! The transports to all nodes, and the commands of a tick for each node.

use std::collections::VecDeque;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use quorlock_core::{
    Answer, Command, Commands, Event, Failure, NodeId, NodeSet, Quorum, Reading, RestartGuard,
    Rules, Ticket, TicketedCommand,
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
    commands: Vec<TicketedCommand>,
    /// For each node, the places of its commands in `commands`.
    outbox: Vec<Vec<usize>>,
    /// The command lists of former ticks. A list is reused when no batch in flight refers to it.
    former: VecDeque<Commands>,
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
        Self {
            transports,
            commands: Vec::new(),
            outbox,
            former: VecDeque::new(),
            encoder: Encoder::default(),
            inbox,
        }
    }

    /// Polls the transports that were woken, and takes the pushes from the nodes. `woken` has the bits of [`Ready::take`].
    pub(super) fn poll(&mut self, woken: u64, ready: &Ready, answered: &mut Vec<Event>) {
        let mut transports = woken & ((1 << self.transports.len()) - 1);
        while transports != 0 {
            let place = transports.trailing_zeros() as usize;
            transports &= transports - 1;
            let cx = &mut ready.context(place);
            let transport = &mut self.transports[place];
            work(transport, |transport| transport.poll(cx, &mut self.encoder, answered));
        }
        if woken & (1 << INBOX) != 0 {
            self.inbox.take(&mut ready.context(INBOX), answered);
        }
    }

    /// For each node, the failure that makes the node unreachable now; `None` if it can be reached.
    pub(super) fn down(&self) -> impl Iterator<Item = Option<Failure>> {
        // The state of a node that is no server comes from foreign code, which may panic.
        let down =
            |transport: &Transport| catch_unwind(AssertUnwindSafe(|| transport.down())).ok()?;
        self.transports.iter().map(move |transport| transport.as_ref().and_then(down))
    }

    /// Queues a command for each of these nodes. It is sent at the end of the tick.
    pub(super) fn enqueue(&mut self, nodes: NodeSet, ticket: Ticket, command: Command) {
        for node in nodes.iter() {
            self.outbox[node.index()].push(self.commands.len());
        }
        self.commands.push((ticket, command));
    }

    /// Gives each transport its commands. Adds to `answered` the answers to commands that fail at once.
    pub(super) fn flush(
        &mut self,
        now: Reading,
        ready: &Ready,
        metrics: &Metrics,
        answered: &mut Vec<Event>,
    ) {
        if self.commands.is_empty() {
            return;
        }
        let commands = self.share();
        self.encoder.begin(&commands);
        for (place, outbox) in self.outbox.iter_mut().enumerate() {
            if !outbox.is_empty() {
                let count = u64::try_from(outbox.len()).unwrap_or(u64::MAX);
                metrics.nodes[place].commands.fetch_add(count, Ordering::Relaxed);
                work(&mut self.transports[place], |transport| {
                    transport.take((&commands, outbox), now, &mut self.encoder, answered);
                    if transport.sends_when_polled() {
                        ready.note(place);
                    }
                });
                outbox.clear();
                outbox.shrink_to(COMMANDS_KEPT);
            }
        }
        self.encoder.end();
        if commands.capacity() <= COMMANDS_KEPT && self.former.len() < LISTS_KEPT {
            self.former.push_back(commands);
        }
    }

    /// Moves the commands of this tick to a list that all transports share.
    fn share(&mut self) -> Commands {
        let free = self.former.iter_mut().position(|list| Arc::get_mut(list).is_some());
        let list = free.and_then(|place| self.former.swap_remove_front(place));
        let mut list = list.unwrap_or_default();
        if let Some(list) = Arc::get_mut(&mut list) {
            list.clear();
            mem::swap(list, &mut self.commands);
        }
        list
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

/// After a tick, memory for at most this many commands is kept for reuse. Ticks with more commands are rare.
const COMMANDS_KEPT: usize = 256;

/// The most lists that are kept to be reused. The batches in flight to five nodes refer to at most 20 lists.
const LISTS_KEPT: usize = 32;
