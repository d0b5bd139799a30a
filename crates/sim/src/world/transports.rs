//! Transports carry commands from a client to a node, and answers back.
//!
//! The production [`NodePipeline`] decides which commands wait and which are in flight. The production [`Supervisor`]
//! decides when a connection is made, suspended, probed and replaced.
//!
//! [`NodePipeline`]: quorlock_core::NodePipeline
//! [`Supervisor`]: quorlock_core::Supervisor

use std::sync::Arc;

use quorlock_core::supervisor::Task;
use quorlock_core::{
    Arrivals, BatchId, Event, Evidence, Exchange, Failure, FailureKind, Form, Key, MarkerSeen,
    NodeId, NodeState, RestartGuard, Ticket,
};

use super::{AskedEvidence, Parcel, Reply, SimEvent, World};
use crate::client::{Batch, Client, Transport};
use crate::count::Count;
use crate::fact::{ClientId, Fact, NodeIndex};
use crate::mutants::{Mutant, is_active};
use crate::network::{Direction, Wire, WireId};
use crate::node::ConnectionId;
use crate::time::{Time, duration, time};

impl World {
    /// Sends waiting commands, as far as the connection and the batches in flight allow.
    pub(crate) fn send_waiting(&mut self, client: ClientId, node: NodeIndex) {
        // The batch that waits for a connection goes first.
        self.send_batch(client, node);
        let Client { transports, arrivals: Arrivals { answered, .. }, machine, .. } =
            &mut self.clients[client];
        let (transport, now) = (&mut transports[node], machine.read(self.now));
        if !transport.outbox.is_empty() {
            let commands = Arc::new(std::mem::take(&mut transport.outbox));
            let members: Vec<usize> = (0..commands.len()).collect();
            transport.pipeline.push(
                &commands,
                &members,
                transport.supervisor.state(),
                now,
                answered,
            );
        }
        loop {
            let Client { transports, arrivals: Arrivals { answered, .. }, .. } =
                &mut self.clients[client];
            let (transport, mut exchange) = (&mut transports[node], Exchange::default());
            let state = transport.supervisor.state();
            let next = transport.pipeline.next_batch(state, now, &mut exchange, answered);
            let Some(id) = next else { break };
            transport.unanswered.insert(id, Batch { exchange, wire: None });
            self.send_batch(client, node);
        }
        let Client { transports, arrivals: Arrivals { answered, .. }, .. } =
            &mut self.clients[client];
        transports[node].pipeline.announce(answered);
        self.wake_if_told(client);
    }

    fn wake_if_told(&mut self, client: ClientId) {
        if !self.clients[client].arrivals.answered.is_empty() {
            self.wake(client);
        }
    }

    pub(super) fn send_batch(&mut self, client: ClientId, node: NodeIndex) {
        let Client { transports, arrivals: Arrivals { answered, .. }, machine, .. } =
            &mut self.clients[client];
        let (transport, reading) = (&mut transports[node], machine.read(self.now));
        let (awaits, identified) = (transport.awaits(), transport.identified);
        let Some((id, batch)) = transport.unanswered.iter_mut().next_back() else { return };
        if batch.wire.is_some() {
            return;
        }
        let Some(wire) = transport.wire else { return };
        let Some(is_trusted) = identified else { return self.greet_by_hand(client, node) };
        if !awaits {
            transport.signs.heard_at = self.now;
        }
        let id = *id;
        batch.wire = Some(wire);
        transport.pipeline.sent(&mut batch.exchange, reading, answered);
        if !is_trusted {
            transport.pipeline.decline(&mut batch.exchange, reading, answered);
        }
        self.plan_look(client, node);
        self.wake_if_told(client);
        self.send_exchange(client, node, id);
    }

    /// Sends the commands of a batch, or sends some of them again, for example after the node forgot a script.
    fn send_exchange(&mut self, client: ClientId, node: NodeIndex, id: BatchId) {
        let Transport { unanswered, session, epoch, .. } =
            &mut self.clients[client].transports[node];
        let Some(Batch { exchange, wire: Some(wire) }) = unanswered.get_mut(&id) else { return };
        session.prepare(exchange);
        let orders = exchange.to_send().cloned().collect();
        let wire = *wire;
        let (whole, asked) = (exchange.form() == Form::Text, exchange.evidence_request());
        let asked_evidence = AskedEvidence {
            epoch: *epoch,
            info: asked.info,
            marker: asked.marker,
            acknowledgement: asked.acknowledgement,
        };
        let asked_evidence = (self.guard_of(client) != RestartGuard::Off).then_some(asked_evidence);
        self.send(Parcel {
            wire,
            batch: Some(id),
            greets: false,
            orders,
            whole,
            asked_evidence,
            duplicate: false,
        });
    }

    fn send(&mut self, parcel: Parcel) {
        let (client, node) =
            (self.network.wires[parcel.wire].client, self.network.wires[parcel.wire].node);
        for (ticket, command) in &parcel.orders {
            self.note(&Fact::Sent { client, node, ticket: *ticket, command });
        }
        // The delay counts from now. The client may have been paused since it read the sending time of the parcel.
        let arrival = self.network.arrival(parcel.wire, Direction::There, self.now);
        self.plan_at(arrival, SimEvent::Request(Box::new(parcel)));
    }

    /// Handles the answers to a batch or to part of it. Returns the batch when all its answers have arrived.
    fn conclude(&mut self, id: BatchId, reply: Reply) -> Option<Exchange> {
        let Reply { parcel, answers, mut evidence, unknown } = reply;
        let (client, node) =
            (self.network.wires[parcel.wire].client, self.network.wires[parcel.wire].node);
        let transport = &mut self.clients[client].transports[node];
        let Batch { exchange, .. } = transport.unanswered.get_mut(&id)?;
        for (place, answer) in answers.into_iter().enumerate() {
            exchange.answer(if unknown.contains(&place) { Err(Form::Text) } else { Ok(answer) });
        }
        let mut is_misread = false;
        if let Evidence::Seen { marker, .. } = &mut evidence
            && let MarkerSeen::Text(said) = marker
        {
            let read = exchange.marker(said.as_bytes());
            is_misread = read != *marker;
            *marker = read;
        }
        let again = transport.session.end_sending(exchange, evidence);
        let asked_again = if again { exchange.places().len() } else { 0 };
        (0..asked_again).for_each(|_| self.record.counts.add(Count::AskedAgain));
        (asked_again..unknown.len()).for_each(|_| self.record.counts.add(Count::AskedTooLate));
        let answered = if again { None } else { transport.unanswered.remove(&id) };
        if is_misread {
            self.note(&Fact::Misread { client, node });
        }
        if let Some(Batch { exchange, .. }) = answered {
            return Some(exchange);
        }
        for (place, (ticket, _)) in parcel.orders.iter().enumerate() {
            if !unknown.contains(&place) {
                self.note(&Fact::Arrived { client, node, ticket: *ticket });
            }
        }
        self.send_exchange(client, node, id);
        None
    }

    pub(crate) fn reply(&mut self, wire: WireId, reply: Reply) {
        let (client, node) = (self.network.wires[wire].client, self.network.wires[wire].node);
        let transport = &mut self.clients[client].transports[node];
        let late = reply.parcel.batch.and_then(|id| transport.given_up.remove(&id));
        if late.is_none() && !self.network.wires[wire].open_here {
            return;
        }
        if reply.parcel.greets {
            return self.greeted(client, node, wire, reply.evidence);
        }
        transport.signs.heard_at = self.now;
        let Some(id) = reply.parcel.batch else {
            transport.signs.is_probed = false;
            return;
        };
        if transport.wire == Some(wire) {
            transport.supervisor.heard();
        }
        let arrived: Vec<Ticket>;
        if let Some((sent, tickets)) = late {
            arrived = tickets.clone();
            let answers = tickets.into_iter().zip(reply.answers).collect();
            let (node, evidence) = (NodeId::new(node), reply.evidence);
            let event = Event::Answered { node, sent, evidence, answers };
            self.clients[client].arrivals.answered.push(event);
        } else {
            let Some(mut exchange) = self.conclude(id, reply) else {
                return self.send_waiting(client, node);
            };
            arrived = exchange.commands().map(|(ticket, _)| *ticket).collect();
            let Client { transports, arrivals: Arrivals { answered, .. }, machine, .. } =
                &mut self.clients[client];
            let now = machine.read(self.now);
            transports[node].pipeline.answered(&mut exchange, now, answered);
        }
        for ticket in arrived {
            self.note(&Fact::Arrived { client, node, ticket });
        }
        self.wake_if_told(client);
        self.send_waiting(client, node);
    }

    pub(crate) fn push(&mut self, wire: WireId, key: Option<Key>) {
        let (client, node) = (self.network.wires[wire].client, self.network.wires[wire].node);
        if self.network.wires[wire].open_here {
            let keys = key.map(|key| vec![key]);
            let event = Event::Pushed { node: NodeId::new(node), keys };
            self.clients[client].arrivals.answered.push(event);
            self.wake(client);
        }
    }

    /// Fails the batches that were sent on this connection, or, for `None`, the batches that wait for a connection.
    pub(super) fn fail_batches(
        &mut self,
        client: ClientId,
        node: NodeIndex,
        wire: Option<WireId>,
        failure: &Failure,
    ) {
        let Client { transports, arrivals: Arrivals { answered, .. }, machine, .. } =
            &mut self.clients[client];
        let Transport { unanswered, session, given_up, pipeline, .. } = &mut transports[node];
        // Uses a copy of the session, because the present connection still needs the session unchanged.
        let (now, session) = (machine.read(self.now), &mut session.clone());
        unanswered.retain(|id, Batch { exchange, wire: its_wire }| {
            if *its_wire != wire {
                return true;
            }
            if let Some(sent) = exchange.sent_at().filter(|_| is_active(Mutant::VoteFromOldEpoch)) {
                given_up.insert(*id, (sent, exchange.commands().map(|(it, _)| *it).collect()));
            }
            // A session may ask for another exchange of the same batch, for example because the server forgot a script.
            // No exchange follows on a broken wire, so each of them fails at once. Answers that have arrived stay.
            loop {
                exchange.fail(failure);
                if !session.end_sending(exchange, Evidence::NotRequired) {
                    break;
                }
            }
            pipeline.answered(exchange, now, answered);
            false
        });
        self.wake_if_told(client);
    }

    /// The client gives up a connection. Messages in flight are lost or still arrive, some of them much later.
    pub(crate) fn give_up_wire(&mut self, wire: WireId) {
        self.drop_wire(wire);
        let Wire { client, node, .. } = self.network.wires[wire];
        self.note(&Fact::GivenUp { client, node });
    }

    /// The client gives up a connection that has carried no batch.
    pub(super) fn drop_wire(&mut self, wire: WireId) {
        let (now, zombie_for) = (self.now, self.plan.wiring.zombie_for);
        let it = &mut self.network.wires[wire];
        it.open_here = false;
        match (&self.by_hand, &mut self.random.transports) {
            (Some(by_hand), _) => match by_hand.orphans_after {
                Some(after) => it.held_until = now + after,
                None => it.lost_after = now,
            },
            (None, random) => match random.below(3) {
                0 => it.lost_after = now,
                1 => {}
                _ => it.held_until = now + random.between(0, zombie_for),
            },
        }
        let node = it.node;
        self.servers[node].node.disconnect(ConnectionId(wire as u64));
    }

    pub(crate) fn broken(&mut self, wire: WireId) {
        if !self.network.wires[wire].open_here {
            return;
        }
        let (client, node) = (self.network.wires[wire].client, self.network.wires[wire].node);
        self.record.counts.add(Count::ConnectionsBroken);
        let transport = &mut self.clients[client].transports[node];
        let is_present = transport.wire == Some(wire);
        let greeting = transport.dials.greeting.take_if(|greeting| greeting.wire == wire);
        if greeting.is_some() && !is_present {
            transport.dials.present = None;
            self.drop_wire(wire);
            return self.not_connected(client, node, FailureKind::Unreachable);
        }
        self.give_up_wire(wire);
        let transport = &mut self.clients[client].transports[node];
        let failure = Failure::unsent(FailureKind::Unreachable);
        if is_present {
            (transport.wire, transport.signs.is_probed) = (None, false);
            (transport.dials.present, transport.identified) = (None, None);
            let given_up = transport.dials.greeting.take();
            let entropy = self.random.transports.word();
            transport.supervisor.broken(duration(self.now), failure.clone(), entropy);
            self.note(&Fact::Disconnected { client, node, why: "the connection is broken" });
            if let Some(greeting) = given_up {
                self.drop_wire(greeting.wire);
            }
        }
        self.fail_batches(client, node, Some(wire), &failure);
        self.send_waiting(client, node);
        if is_present {
            self.supervise(client, node);
        }
    }

    pub(crate) fn supervise(&mut self, client: ClientId, node: NodeIndex) {
        if self.by_hand.is_some() {
            return;
        }
        let transport = &mut self.clients[client].transports[node];
        let was_up = *transport.supervisor.state() == NodeState::Up;
        let task = transport.supervisor.next_task(duration(self.now), transport.activity());
        let is_suspended = matches!(transport.supervisor.state(), NodeState::Suspended(_));
        if was_up && is_suspended {
            self.record.counts.add(Count::Suspensions);
            self.note(&Fact::Disconnected { client, node, why: "silent, and suspended" });
            self.send_waiting(client, node);
        }
        match task {
            Some(Task::Connect) => self.dial(client, node),
            Some(Task::Probe) => self.probe(client, node),
            None => {}
        }
        self.clients[client].transports[node].next_look.at = Time::MAX;
        self.plan_look(client, node);
    }

    fn plan_look(&mut self, client: ClientId, node: NodeIndex) {
        if self.by_hand.is_some() {
            return;
        }
        let transport = &mut self.clients[client].transports[node];
        let next = transport.supervisor.next_task_at(duration(self.now), transport.activity());
        let Some(next) = next.map(time).filter(|next| *next < transport.next_look.at) else {
            return;
        };
        transport.next_look.at = next;
        transport.next_look.number += 1;
        let number = transport.next_look.number;
        self.plan_at(next, SimEvent::Look { client, node, number });
    }

    fn probe(&mut self, client: ClientId, node: NodeIndex) {
        let transport = &mut self.clients[client].transports[node];
        let Some(wire) = transport.wire else { return };
        (transport.signs.is_probed, transport.signs.heard_at) = (true, self.now);
        self.record.counts.add(Count::Probes);
        let (orders, asked_evidence) = (Vec::new(), None);
        self.send_without_batch(Parcel {
            wire,
            batch: None,
            greets: false,
            orders,
            whole: false,
            asked_evidence,
            duplicate: false,
        });
    }

    pub(super) fn send_without_batch(&mut self, parcel: Parcel) {
        let arrival = self.network.arrival(parcel.wire, Direction::There, self.now);
        self.plan_at(arrival, SimEvent::Request(Box::new(parcel)));
    }
}
