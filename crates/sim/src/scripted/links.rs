//! Connections: when they are made and break, and which messages are held back.

use quorlock_core::{
    Answer, Command, Event, Evidence, FailureKind, NodeId, NodeState, Reading, Supervisor, Ticket,
    TicketedCommand,
};

use super::ScriptedWorld;
use crate::fact::{ClientId, NodeIndex};
use crate::time::{MS, Time, duration};
use crate::world::{SimEvent, World};

#[derive(Debug, Default)]
pub(super) struct HeldBack {
    which: Option<fn(&Command) -> bool>,
    orders: Vec<TicketedCommand>,
}

impl World {
    pub(crate) fn is_held_back(
        &mut self,
        client: ClientId,
        node: NodeIndex,
        order: &TicketedCommand,
    ) -> bool {
        if self.by_hand.is_none() {
            return false;
        }
        self.check_order(client, node, order);
        let held_back = &mut self.by_hand_mut().held_back[client][node];
        let is_held = held_back.which.is_some_and(|which| which(&order.1));
        held_back.orders.extend(is_held.then(|| order.clone()));
        is_held
    }
}

impl ScriptedWorld {
    /// Sets the one-way delay of a node, for commands and for answers.
    pub fn set_one_way(&mut self, node: usize, ms: i64) {
        (0..self.clients()).for_each(|client| self.set_one_way_of(client, node, ms));
    }

    /// Sets the one-way delay for one client.
    pub fn set_one_way_of(&mut self, client: usize, node: usize, ms: i64) {
        self.world.network.ways.as_mut().expect("by hand")[client][node].one_way = ms * MS;
    }

    /// Sets the delay of a node's pushes, independent of its replies.
    pub fn set_push_way(&mut self, node: usize, ms: i64) {
        let ways = self.world.network.ways.iter_mut().flatten();
        ways.for_each(|ways| ways[node].push = Some(ms * MS));
    }

    /// Pauses a node's process, or continues it. When it continues, it carries out the commands that arrived meanwhile.
    pub fn freeze(&mut self, node: usize, frozen: bool) {
        self.frozen[node] = frozen;
        self.go_on();
    }

    /// Holds back a node's answers while `mute` is true.
    pub fn mute(&mut self, node: usize, mute: bool) {
        self.mute[node] = mute;
        self.go_on();
    }

    /// Delivers the messages that waited for paused or mute nodes.
    fn go_on(&mut self) {
        for what in std::mem::take(&mut self.parked) {
            self.world.plan_in(0, what);
        }
    }

    pub(super) fn waits_for_node(&self, what: &SimEvent) -> bool {
        let node = |wire: usize| self.world.network.wires[wire].node;
        match what {
            SimEvent::Request(parcel) => self.frozen[node(parcel.wire)],
            SimEvent::Reply { wire, .. } | SimEvent::Push { wire, .. } => self.mute[node(*wire)],
            _ => false,
        }
    }

    /// Whether this event is a command that arrives after its connection broke.
    pub(super) fn is_orphan(&self, what: &SimEvent) -> bool {
        let SimEvent::Request(parcel) = what else { return false };
        let wire = &self.world.network.wires[parcel.wire];
        !wire.open_here && self.now() <= wire.lost_after && self.now() >= wire.held_until
    }

    /// Keeps the answers that reach a client, so that a test can deliver them a second time.
    pub(super) fn keep_answers(&mut self, what: &SimEvent) {
        let SimEvent::Reply { wire, reply } = what else { return };
        let (client, node) =
            (self.world.network.wires[*wire].client, self.world.network.wires[*wire].node);
        let batches = &self.world.clients[client].transports[node].unanswered;
        let batch = reply.parcel.batch.and_then(|id| batches.get(&id));
        let Some(sent) = batch.and_then(|batch| batch.exchange.sent_at()) else { return };
        for ((ticket, _), answer) in reply.parcel.orders.iter().zip(&reply.answers) {
            let is_unsent = matches!(answer, Answer::Failed(failure)
                if !failure.may_have_been_executed());
            if !is_unsent {
                let answered = made_up(node, sent, *ticket, answer.clone());
                self.history.push((client, answered));
            }
        }
    }

    /// Breaks the connections to a node. Commands in flight arrive `orphans_after` milliseconds later, or are lost.
    pub fn cut(&mut self, node: usize, orphans_after: Option<i64>) {
        self.world.by_hand_mut().orphans_after = orphans_after.map(|ms| ms * MS);
        self.mute(node, false);
        for client in 0..self.clients() {
            if let Some(wire) = self.world.clients[client].transports[node].wire {
                self.world.broken(wire);
            }
            self.world.not_connected(client, node, FailureKind::Unreachable);
        }
    }

    /// Takes the server down: commands fail at once, unsent.
    pub fn down(&mut self, node: usize) {
        self.cut(node, None);
    }

    /// Breaks the connections to a node and begins new ones, which are not complete yet.
    pub fn connecting(&mut self, node: usize) {
        self.cut(node, None);
        for client in &mut self.world.clients {
            client.transports[node].supervisor = Supervisor::new(duration(Time::MAX));
        }
    }

    /// Lets the pending connections fail.
    pub fn connecting_failed(&mut self, node: usize) {
        for client in 0..self.clients() {
            if *self.state(client, node) == NodeState::Connecting {
                self.world.not_connected(client, node, FailureKind::ConnectTimeout);
            }
        }
    }

    /// Completes the connections. Commands that waited are sent first, and each client is notified, whether or
    /// not a command waited.
    pub fn up(&mut self, node: usize) {
        self.up_unnoticed(node);
        for client in 0..self.clients() {
            self.tell(client, Event::Connected { node: NodeId::new(node) });
        }
    }

    /// Completes the connections. A client is notified only if a command waited.
    pub fn up_unnoticed(&mut self, node: usize) {
        for client in 0..self.clients() {
            if *self.state(client, node) != NodeState::Up {
                self.world.connect_by_hand(client, node, true);
            }
        }
    }

    fn state(&self, client: ClientId, node: NodeIndex) -> &NodeState {
        self.world.clients[client].transports[node].supervisor.state()
    }

    /// Replaces the connections to a node.
    pub fn reconnect(&mut self, node: usize) {
        self.connecting(node);
        self.up_unnoticed(node);
    }

    /// Makes the node report lost or replaced data on its connections.
    pub fn say_flushed(&mut self, node: usize) {
        let wires = self.world.network.wires.iter_mut();
        wires.filter(|wire| wire.node == node).for_each(|wire| wire.flushes += 1);
    }

    /// Starts or stops losing all messages from a client to a node.
    pub fn lose(&mut self, client: usize, node: usize, is_lost: bool) {
        let held_back = &mut self.world.by_hand_mut().held_back[client][node];
        *held_back = HeldBack { which: is_lost.then_some(|_| true), orders: Vec::new() };
    }

    /// Holds back those commands of a client to a node for which `which` returns true. Later commands overtake them.
    pub fn hold_back(&mut self, client: usize, node: usize, which: fn(&Command) -> bool) {
        self.world.by_hand_mut().held_back[client][node].which = Some(which);
    }

    /// Sends the commands that were held back, and holds back no more.
    pub fn let_go(&mut self, client: usize, node: usize) {
        let held_back = std::mem::take(&mut self.world.by_hand_mut().held_back[client][node]);
        self.world.clients[client].transports[node].outbox.extend(held_back.orders);
        self.world.send_waiting(client, node);
    }

    /// Passes an answer to a client, whether or not a node sent it.
    pub fn answer(
        &mut self,
        client: usize,
        node: usize,
        sent: Reading,
        ticket: Ticket,
        answer: Answer,
    ) {
        self.tell(client, made_up(node, sent, ticket, answer));
    }
}

/// An answer that the test makes up: no node sent it.
fn made_up(node: NodeIndex, sent: Reading, ticket: Ticket, answer: Answer) -> Event {
    let (node, evidence) = (NodeId::new(node), Evidence::NotRequired);
    Event::Answered { node, sent, evidence, answers: vec![(ticket, answer)] }
}
