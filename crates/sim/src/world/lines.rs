//! Lines: how commands get from a client to a node and their answers back.
//!
//! As `crates/quorlock/src/node/line.rs` and the supervisor in `redis/supervise.rs`: a few batches in flight,
//! answers handed on in the order of sending, nothing sent twice; a node that is silent for too long
//! is suspended, then its connection replaced, and the old one kept until the new one is there.

use std::collections::VecDeque;

use quorlock_core::{
    Answer, Command, Event, Failure, FailureKind, Key, NodeId, Proof, RestartGuard,
};

use super::{Happening, Looks, Parcel, Process, World};
use crate::client::{Batch, IN_FLIGHT_MAX, Line, Link, Order};
use crate::count::Count;
use crate::fact::{ClientId, Fact, NodeIndex};
use crate::mutants::{Mutant, is_active};
use crate::network::{ConnectionId, Direction};
use crate::node::Connection;
use crate::plan::CONNECT_TIMEOUT;
use crate::time::{MS, SECOND, Time};

impl World {
    /// Takes a command; it is sent when the turn is over.
    pub(crate) fn order(&mut self, client: ClientId, node: NodeIndex, order: Order) {
        self.clients[client].lines[node].waiting.push_back(order);
    }

    /// Sends what waits, as far as the link and the batches in flight allow.
    pub(crate) fn send_waiting(&mut self, client: ClientId, node: NodeIndex) {
        loop {
            let line = &mut self.clients[client].lines[node];
            match line.link {
                Link::Down(kind) => {
                    let orders = line.waiting.drain(..).collect();
                    return self.fail_orders(client, node, orders, kind);
                }
                // A release may go behind what is in a silent connection; all else fails at once.
                Link::Suspended => {
                    let (releases, rest): (VecDeque<Order>, VecDeque<Order>) =
                        std::mem::take(&mut line.waiting)
                            .into_iter()
                            .partition(|(_, command)| command.is_release());
                    line.waiting = releases;
                    self.fail_orders(client, node, rest.into(), FailureKind::Suspended);
                }
                Link::Up | Link::Connecting => {}
            }
            let line = &mut self.clients[client].lines[node];
            let unsent = line.in_flight.back().is_some_and(|batch| batch.sent.is_none());
            if line.waiting.is_empty() || unsent || line.in_flight.len() >= IN_FLIGHT_MAX {
                break;
            }
            let count = line.waiting.len().min(self.plan.batch_max);
            let orders = line.waiting.drain(..count).collect();
            self.batches += 1;
            let (id, sent, answers, proof) = (self.batches, None, None, Proof::Vouched);
            line.in_flight.push_back(Batch { id, sent, announced: false, orders, answers, proof });
            if line.wire.is_some() {
                self.send_batch(client, node);
            }
        }
        let it = &mut self.clients[client];
        let batch = it.lines[node].in_flight.back_mut();
        if let Some(batch) = batch.filter(|batch| batch.sent.is_none() && !batch.announced) {
            batch.announced = true;
            it.answered.push(Event::Connecting { node: NodeId::new(node) });
            self.wake(client);
        }
    }

    /// Reads the clock, and sends the batch that has not been sent yet.
    fn send_batch(&mut self, client: ClientId, node: NodeIndex) {
        let mode = self.guard_of(client);
        let it = &mut self.clients[client];
        let reading = it.machine.read(self.now);
        let line = &mut it.lines[node];
        let Some(wire) = line.wire else { return };
        if !line.awaits() {
            line.alive_at = self.now;
        }
        let Some(batch) = line.in_flight.back_mut().filter(|batch| batch.sent.is_none()) else {
            return;
        };
        batch.sent = Some((wire, reading));
        if batch.announced {
            it.answered.push(Event::Connected { node: NodeId::new(node) });
        }
        let (id, orders, announced) = (batch.id, batch.orders.clone(), batch.announced);
        let looks = (mode != RestartGuard::Off).then(|| {
            let greets = |(_, command): &Order| matches!(command, Command::Greet);
            let info = !std::mem::replace(&mut line.greeted, true) || orders.iter().any(greets);
            let votes = orders.iter().any(|(_, command)| command.is_about_votes());
            Looks { epoch: line.epoch, info, marker: info || votes }
        });
        if !std::mem::replace(&mut line.watched, true) {
            self.plan_in(self.plan.silence, Happening::Watch { client, node });
        }
        if announced {
            self.wake(client);
        }
        for (ticket, command) in &orders {
            self.note(&Fact::Sent { client, node, ticket: *ticket, command });
        }
        // The clock was read; until the first byte leaves, the process may stand still.
        let arrival = self.network.arrival(wire, Direction::There, self.now);
        let parcel = Box::new(Parcel { wire, batch: id, orders, looks, duplicate: false });
        self.plan_at(arrival, Happening::Request(parcel));
    }

    /// Answers have come.
    pub(crate) fn reply(
        &mut self,
        wire: ConnectionId,
        id: u64,
        answers: Vec<Answer>,
        proof: Proof,
    ) {
        let (client, node) = (self.network.wires[wire].client, self.network.wires[wire].node);
        let line = &mut self.clients[client].lines[node];
        if let Some(late) = line.given_up.remove(&id) {
            line.in_flight.push_front(late);
        } else if !self.network.wires[wire].open_here {
            return;
        }
        line.alive_at = self.now;
        if line.link == Link::Suspended && line.wire == Some(wire) {
            line.link = Link::Up;
        }
        if let Some(batch) = line.in_flight.iter_mut().find(|batch| batch.id == id) {
            (batch.answers, batch.proof) = (Some(answers), proof);
            let tickets: Vec<_> = batch.orders.iter().map(|(ticket, _)| *ticket).collect();
            for ticket in tickets {
                self.note(&Fact::Arrived { client, node, ticket });
            }
        }
        self.hand_on(client, node);
        self.send_waiting(client, node);
    }

    /// News have come.
    pub(crate) fn push(&mut self, wire: ConnectionId, key: Option<Key>) {
        let (client, node) = (self.network.wires[wire].client, self.network.wires[wire].node);
        if self.network.wires[wire].open_here {
            let keys = key.map(|key| vec![key]);
            let event = Event::Pushed { node: NodeId::new(node), keys };
            self.clients[client].answered.push(event);
            self.wake(client);
        }
    }

    /// Hands on answers in the order of sending, also across connections.
    fn hand_on(&mut self, client: ClientId, node: NodeIndex) {
        let it = &mut self.clients[client];
        let in_flight = &mut it.lines[node].in_flight;
        while let Some(Batch { answers: Some(_), .. }) = in_flight.front() {
            let Some(batch) = in_flight.pop_front() else { break };
            let sent = batch.sent.map_or(it.machine.read(self.now), |(_, sent)| sent);
            let tickets = batch.orders.into_iter().map(|(ticket, _)| ticket);
            let answers = tickets.zip(batch.answers.unwrap_or_default()).collect();
            it.answered.push(Event::Answered {
                node: NodeId::new(node),
                sent,
                proof: batch.proof,
                answers,
            });
        }
        if !it.answered.is_empty() {
            self.wake(client);
        }
    }

    /// Orders that are not even tried.
    fn fail_orders(
        &mut self,
        client: ClientId,
        node: NodeIndex,
        orders: Vec<Order>,
        kind: FailureKind,
    ) {
        if orders.is_empty() {
            return;
        }
        let it = &mut self.clients[client];
        let failed = |(ticket, _)| (ticket, Answer::Failed(Failure::unsent(kind)));
        let answers = orders.into_iter().map(failed).collect();
        let sent = it.machine.read(self.now);
        it.answered.push(Event::Answered {
            node: NodeId::new(node),
            sent,
            proof: Proof::Vouched,
            answers,
        });
        self.wake(client);
    }

    /// Everything that was sent on this connection, or if `None` waits for one, has failed.
    fn fail_batches(
        &mut self,
        client: ClientId,
        node: NodeIndex,
        wire: Option<ConnectionId>,
        failure: &Failure,
    ) {
        let Line { in_flight, given_up, .. } = &mut self.clients[client].lines[node];
        for batch in in_flight {
            if batch.sent.map(|(wire, _)| wire) == wire && batch.answers.is_none() {
                if is_active(Mutant::VoteFromOldEpoch) && wire.is_some() {
                    given_up.insert(batch.id, batch.clone());
                }
                batch.answers = Some(vec![Answer::Failed(failure.clone()); batch.orders.len()]);
            }
        }
        self.hand_on(client, node);
    }

    /// The client does not listen to a connection any more. What was under way is lost, or arrives
    /// all the same, or does so much later.
    pub(crate) fn give_up_wire(&mut self, wire: ConnectionId) {
        let (now, zombie_for) = (self.now, self.plan.zombie_for);
        let it = &mut self.network.wires[wire];
        it.open_here = false;
        match self.random.lines.below(3) {
            0 => it.lost_after = now,
            1 => {}
            _ => it.held_until = now + self.random.lines.between(0, zombie_for),
        }
        let (client, node) = (it.client, it.node);
        self.servers[node].node.disconnect(Connection(wire as u64));
        self.note(&Fact::GivenUp { client, node });
    }

    /// The client learns that a connection is gone.
    pub(crate) fn broken(&mut self, wire: ConnectionId) {
        if !self.network.wires[wire].open_here {
            return;
        }
        let (client, node) = (self.network.wires[wire].client, self.network.wires[wire].node);
        self.counts.add(Count::ConnectionsBroken);
        self.give_up_wire(wire);
        let line = &mut self.clients[client].lines[node];
        if line.wire == Some(wire) {
            line.link = Link::Connecting;
            line.wire = None;
            line.dial = None;
            self.note(&Fact::Disconnected { client, node, why: "the connection is broken" });
            let pause = self.backoff(client, node);
            self.plan_in(pause, Happening::Redial { client, node });
        }
        let failure = Failure::new(FailureKind::Unreachable);
        self.fail_batches(client, node, Some(wire), &failure);
        self.send_waiting(client, node);
    }

    /// Begins to connect.
    pub(crate) fn dial(&mut self, client: ClientId, node: NodeIndex) {
        let line = &mut self.clients[client].lines[node];
        if line.dial.is_some() || line.link == Link::Up {
            return;
        }
        line.dials += 1;
        let dial = line.dials;
        line.dial = Some(dial);
        let arrival = self.network.dial(client, node, self.now);
        let latest = self.now + CONNECT_TIMEOUT;
        let refused = self.servers[node].process == Process::Down && !self.servers[node].silent;
        let hears = self.servers[node].process == Process::Runs || refused;
        let in_time = arrival <= latest && hears;
        let at = if in_time { arrival } else { latest };
        self.plan_at(at, Happening::Dialled { client, node, dial, in_time });
    }

    /// An attempt to connect is over.
    pub(crate) fn dialled(&mut self, client: ClientId, node: NodeIndex, dial: u64, in_time: bool) {
        let line = &mut self.clients[client].lines[node];
        if line.dial != Some(dial) {
            return;
        }
        line.dial = None;
        if in_time && self.servers[node].process == Process::Runs {
            return self.connected(client, node);
        }
        self.counts.add(Count::ConnectionsRefused);
        let line = &mut self.clients[client].lines[node];
        if line.link != Link::Suspended {
            let kind = if in_time { FailureKind::Unreachable } else { FailureKind::ConnectTimeout };
            line.link = Link::Down(kind);
            self.note(&Fact::Disconnected { client, node, why: "no connection can be made" });
            self.fail_batches(client, node, None, &Failure::unsent(kind));
            self.send_waiting(client, node);
        }
        let pause = self.backoff(client, node);
        self.plan_in(pause, Happening::Redial { client, node });
    }

    fn connected(&mut self, client: ClientId, node: NodeIndex) {
        let line = &mut self.clients[client].lines[node];
        if line.link == Link::Up {
            // The old connection answers again; the new one is not needed.
            return;
        }
        let old = line.wire.take();
        let wire = self.network.connect(client, node);
        line.wire = Some(wire);
        line.epoch += 1;
        line.greeted = false;
        line.link = Link::Up;
        line.alive_at = self.now;
        line.failures = line.failures.min(1);
        let again = line.dials > 1;
        match old {
            Some(_) => self.counts.add(Count::Replacements),
            None if again => self.counts.add(Count::Reconnections),
            None => {}
        }
        self.note(&Fact::Connected { client, node, replaces: old.is_some() });
        if let Some(old) = old {
            self.give_up_wire(old);
            let failure = Failure::new(FailureKind::Unreachable);
            self.fail_batches(client, node, Some(old), &failure);
        }
        self.send_batch(client, node);
        self.clients[client].answered.push(Event::Pushed { node: NodeId::new(node), keys: None });
        self.wake(client);
        self.send_waiting(client, node);
    }

    /// Has the node been silent for too long?
    pub(crate) fn watch(&mut self, client: ClientId, node: NodeIndex) {
        let (silence, replace_after) = (self.plan.silence, self.plan.replace_after);
        let line = &mut self.clients[client].lines[node];
        line.watched = false;
        if line.wire.is_none() {
            return;
        }
        if !line.awaits() {
            if line.link == Link::Suspended {
                line.link = Link::Up;
            }
            return;
        }
        line.watched = true;
        let silent_for = self.now - line.alive_at;
        let next = if silent_for < silence {
            silence - silent_for
        } else {
            if line.link == Link::Up {
                line.link = Link::Suspended;
                self.counts.add(Count::Suspensions);
                self.note(&Fact::Disconnected { client, node, why: "silent, and suspended" });
                self.send_waiting(client, node);
            }
            if silent_for >= silence + replace_after {
                self.dial(client, node);
            }
            (silence + replace_after - silent_for).max(self.backoff(client, node))
        };
        self.plan_in(next, Happening::Watch { client, node });
    }

    /// Doubling, jittered in its upper half.
    fn backoff(&mut self, client: ClientId, node: NodeIndex) -> Time {
        let failures = &mut self.clients[client].lines[node].failures;
        let full = ((50 * MS) << (*failures).min(5)).min(SECOND);
        *failures += 1;
        full / 2 + self.random.lines.between(0, full / 2)
    }
}
