//! The transports to all nodes, and the commands of a tick for each node.

use std::collections::VecDeque;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quorlock_core::{
    Answer, Command, Commands, Event, Failure, FailureKind, NodeId, NodeSet, Quorum, Reading,
    RestartGuard, Rules, Ticket, TicketedCommand,
};

use super::Metrics;
use crate::clock::Clock;
use crate::error::group;
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
    /// The connections about which the engine has decided in this tick: whether it has identified the node there.
    identified: Vec<(NodeId, u64, bool)>,
    reach: Reach,
}

/// Which nodes can be reached, as bits, and what the log says about it.
struct Reach {
    names: Vec<Arc<str>>,
    quorum: Quorum,
    /// The nodes with a connection.
    up: u64,
    /// The nodes that cannot be reached. The others are being connected to.
    down: u64,
    /// Whether the last line of the log about this says that no quorum can be reached.
    is_cut_off: bool,
}

impl Transports {
    pub(super) fn new(
        quorum: Quorum,
        (rules, takes_locks): (&Rules, bool),
        nodes: &[ClientNode],
        clock: Clock,
    ) -> Self {
        let marker = (rules.guard != RestartGuard::Off).then(|| rules.marker.clone());
        let writes = rules.guard == RestartGuard::Strict;
        let inbox = Inbox::new(nodes.len());
        let mut transports = Vec::new();
        for (id, node) in quorum.node_ids().zip(nodes) {
            let push_sink = inbox.push_sink(id).with_marker(marker.clone()).registering(writes);
            let push_sink = push_sink.durable(rules.durable.contains(id)).taking_locks(takes_locks);
            transports.push(Some(Transport::new(id, node, push_sink, clock)));
        }
        let outbox = transports.iter().map(|_| Vec::new()).collect();
        let names = rules.names.clone();
        let reach = Reach { names, quorum, up: 0, down: 0, is_cut_off: false };
        Self {
            reach,
            transports,
            commands: Vec::new(),
            outbox,
            former: VecDeque::new(),
            encoder: Encoder::default(),
            inbox,
            identified: Vec::new(),
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
            if self.reach.note(place, transport.as_ref()) {
                self.log_reach();
            }
        }
        if woken & (1 << INBOX) != 0 {
            self.inbox.take(&mut ready.context(INBOX), answered);
        }
    }

    /// For each node, the failure that makes the node unreachable now; `None` if it can be reached.
    pub(super) fn down(&self) -> impl Iterator<Item = Option<Failure>> {
        let panicked =
            || Failure::unsent(FailureKind::Unreachable).with_detail("its driver panicked");
        self.transports.iter().map(move |transport| match transport {
            Some(transport) => transport.down(),
            None => Some(panicked()),
        })
    }

    /// Logs when no quorum of nodes can be reached any more, and when a quorum is connected again.
    fn log_reach(&mut self) {
        let Reach { names, quorum, up, down, is_cut_off } = &self.reach;
        let left = quorum.nodes() - down.count_ones() as usize;
        if !is_cut_off && quorum.is_out_of_reach(left, 0) {
            let failed = names.iter().zip(self.down());
            let failed = failed.filter_map(|(name, failure)| Some((&**name, failure?)));
            let groups = group(failed, |one, other| one == other);
            let failures: Vec<String> =
                groups.iter().map(|(nodes, why)| format!("{}: {why}", nodes.join(", "))).collect();
            tracing::warn!("no quorum of nodes can be reached: {}", failures.join("; "));
            self.reach.is_cut_off = true;
        } else if *is_cut_off && up.count_ones() as usize >= quorum.needed() {
            tracing::info!("a quorum of nodes is connected again");
            self.reach.is_cut_off = false;
        }
    }

    /// Queues a command for each of these nodes. It is sent at the end of the tick.
    #[inline]
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
        // Before the commands of the tick, because the engine decided in full knowledge of this.
        for (node, connection, is_trusted) in self.identified.drain(..) {
            work(&mut self.transports[node.index()], |transport| {
                let connection = (connection, is_trusted);
                transport.note_identified(connection, now, &mut self.encoder, answered);
            });
        }
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

    /// Notes whether the engine has identified the node on this connection.
    pub(super) fn note_identified(&mut self, node: NodeId, connection: u64, is_trusted: bool) {
        self.identified.push((node, connection, is_trusted));
    }

    /// Notes the usual round trip to a node.
    pub(super) fn note_round_trip(&mut self, node: NodeId, round_trip: Duration) {
        if let Some(transport) = &mut self.transports[node.index()] {
            transport.note_round_trip(round_trip);
        }
    }

    pub(super) fn reuse(&mut self, node: NodeId, answers: Vec<(Ticket, Answer)>) {
        if let Some(transport) = &mut self.transports[node.index()] {
            transport.reuse(answers);
        }
    }
}

impl Reach {
    /// Notes the state of a node. Returns whether it has changed. `None`: the node has panicked.
    fn note(&mut self, place: usize, transport: Option<&Transport>) -> bool {
        let bit = 1 << place;
        let (is_up, is_down) = transport.map_or((false, true), Transport::reach);
        let before = (self.up, self.down);
        self.up = if is_up { self.up | bit } else { self.up & !bit };
        self.down = if is_down { self.down | bit } else { self.down & !bit };
        before != (self.up, self.down)
    }
}

/// Lets a transport work. If it panics, the client continues without the node, whose commands time out in the engine.
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
