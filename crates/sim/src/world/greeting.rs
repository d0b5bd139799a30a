//! Connections: a client dials a node, greets it, and sends no batch before the engine has decided whether the greeting
//! has identified the node.

use quorlock_core::{
    Event, Evidence, Failure, FailureKind, NodeId, NodeState, RestartGuard, Session,
};

use super::{AskedEvidence, Parcel, Process, SimEvent, World};
use crate::client::{Client, Dials, Greeting};
use crate::count::Count;
use crate::fact::{ClientId, Fact, NodeIndex};
use crate::network::WireId;
use crate::time::duration;

impl World {
    pub(super) fn dial(&mut self, client: ClientId, node: NodeIndex) {
        let transport = &mut self.clients[client].transports[node];
        transport.dials.count += 1;
        let dial = transport.dials.count;
        transport.dials.present = Some(dial);
        let arrival = self.network.dial(client, node, self.now);
        let latest = self.now + self.plan.connect_timeout();
        self.clients[client].transports[node].dials.latest = latest;
        self.turn_to_name(node);
        let is_lost = self.servers[node].process == Process::Down && self.servers[node].silent;
        let hears = !is_lost;
        let in_time = arrival <= latest && hears;
        let at = if in_time { arrival } else { latest };
        self.plan_at(at, SimEvent::Dialled { client, node, dial, in_time });
    }

    pub(crate) fn dialled(&mut self, client: ClientId, node: NodeIndex, dial: u64, in_time: bool) {
        if self.by_hand.is_some() {
            return self.greet_by_hand(client, node);
        }
        let transport = &mut self.clients[client].transports[node];
        if transport.dials.present != Some(dial) {
            return;
        }
        let side = self.turn_to_name(node);
        if in_time && self.servers[node].process != Process::Down {
            return self.greet(client, node, side);
        }
        let dials = &mut self.clients[client].transports[node].dials;
        dials.present = None;
        if let Some(greeting) = dials.greeting.take() {
            self.drop_wire(greeting.wire);
        }
        self.record.counts.add(Count::ConnectionsRefused);
        let kind = if in_time { FailureKind::Unreachable } else { FailureKind::ConnectTimeout };
        self.not_connected(client, node, kind);
    }

    /// The node has accepted the connection. Sends the greeting, whose reply identifies the node. A frozen node accepts
    /// connections, and does not answer.
    fn greet(&mut self, client: ClientId, node: NodeIndex, side: Option<bool>) {
        let parcel = self.greeting(client, node, side);
        let dials = &self.clients[client].transports[node].dials;
        let (dial, latest) = (dials.count, dials.latest);
        self.plan_at(latest, SimEvent::Dialled { client, node, dial, in_time: false });
        self.send_without_batch(parcel);
    }

    fn greeting(&mut self, client: ClientId, node: NodeIndex, side: Option<bool>) -> Parcel {
        let wire = self.network.connect(client, node);
        self.network.wires[wire].side = side;
        self.greeting_on(client, node, wire)
    }

    fn greeting_on(&mut self, client: ClientId, node: NodeIndex, wire: WireId) -> Parcel {
        let Client { transports, machine, .. } = &mut self.clients[client];
        let (sent, dials) = (machine.read(self.now), &mut transports[node].dials);
        dials.greeting = Some(Greeting { wire, sent, sent_at: self.now });
        let asked =
            AskedEvidence { epoch: dials.count, info: true, marker: true, acknowledgement: false };
        let asked_evidence = (self.guard_of(client) != RestartGuard::Off).then_some(asked);
        let (orders, duplicate) = (Vec::new(), false);
        Parcel { wire, batch: None, greets: true, orders, whole: false, asked_evidence, duplicate }
    }

    pub(super) fn greeted(
        &mut self,
        client: ClientId,
        node: NodeIndex,
        wire: WireId,
        evidence: Evidence,
    ) {
        let dials = &mut self.clients[client].transports[node].dials;
        if let Some(greeting) = dials.greeting.take_if(|greeting| greeting.wire == wire) {
            dials.present = None;
            self.connected(client, node, greeting, Some(evidence));
        }
    }

    /// In a world that a test controls: makes a connection at once. The greeting takes no time. It happens when the
    /// first batch waits for it, or, with `greets`, in the next step of the world at the latest.
    pub(crate) fn connect_by_hand(&mut self, client: ClientId, node: NodeIndex, greets: bool) {
        self.clients[client].transports[node].dials.count += 1;
        self.greeting(client, node, None);
        let Dials { greeting, count: dial, .. } = self.clients[client].transports[node].dials;
        if let Some(greeting) = greeting {
            self.connected(client, node, greeting, None);
        }
        if greets {
            self.plan_in(0, SimEvent::Dialled { client, node, dial, in_time: true });
        }
    }

    /// In a world that a test controls: greets on the connection that [`connect_by_hand`](Self::connect_by_hand) made.
    pub(super) fn greet_by_hand(&mut self, client: ClientId, node: NodeIndex) {
        let greeting = self.clients[client].transports[node].dials.greeting;
        if let Some(Greeting { wire, .. }) = greeting.filter(|_| self.by_hand.is_some()) {
            let parcel = self.greeting_on(client, node, wire);
            let evidence = self.evidence_for(node, &parcel);
            let greeting = self.clients[client].transports[node].dials.greeting.take();
            if let Some(greeting) = greeting {
                self.report_greeting(client, node, greeting, evidence);
            }
        }
    }

    /// Notes whether the engine trusts the node on this connection. The tick's end sends the batches that waited.
    pub(crate) fn note_identified(
        &mut self,
        client: ClientId,
        node: NodeId,
        (connection, is_trusted): (u64, bool),
    ) {
        let transport = &mut self.clients[client].transports[node.index()];
        if transport.wire.is_some() && transport.epoch == connection {
            transport.identified = Some(is_trusted);
        }
    }

    pub(crate) fn not_connected(&mut self, client: ClientId, node: NodeIndex, kind: FailureKind) {
        let (now, failure) = (duration(self.now), Failure::unsent(kind));
        let transport = &mut self.clients[client].transports[node];
        transport.supervisor.not_connected(now, failure.clone(), self.random.transports.word());
        if matches!(transport.supervisor.state(), NodeState::Down(_)) {
            self.note(&Fact::Disconnected { client, node, why: "no connection can be made" });
            self.fail_batches(client, node, None, &failure);
            self.send_waiting(client, node);
        }
        self.supervise(client, node);
    }

    fn connected(
        &mut self,
        client: ClientId,
        node: NodeIndex,
        greeting: Greeting,
        evidence: Option<Evidence>,
    ) {
        let wire = greeting.wire;
        let is_guarded = self.guard_of(client) != RestartGuard::Off;
        let transport = &mut self.clients[client].transports[node];
        if !transport.supervisor.connected(duration(self.now), transport.activity()) {
            self.drop_wire(wire);
            return self.supervise(client, node);
        }
        let old = transport.wire.replace(wire);
        (transport.epoch, transport.identified) = (transport.dials.count, None);
        let is_replicated = self.network.wires[wire].side.is_some();
        transport.session = Session::new(is_guarded).replicated(is_replicated);
        (transport.signs.heard_at, transport.signs.is_probed) = (self.now, false);
        let again = transport.dials.count > 1;
        match old {
            Some(_) => self.record.counts.add(Count::Replacements),
            None if again => self.record.counts.add(Count::Reconnections),
            None => {}
        }
        self.note(&Fact::Connected { client, node, replaces: old.is_some() });
        if let Some(old) = old {
            self.give_up_wire(old);
            let failure = Failure::unsent(FailureKind::Unreachable);
            self.fail_batches(client, node, Some(old), &failure);
        }
        if let Some(evidence) = evidence {
            self.report_greeting(client, node, greeting, evidence);
        }
        self.send_waiting(client, node);
        self.supervise(client, node);
    }

    fn report_greeting(
        &mut self,
        client: ClientId,
        node: NodeIndex,
        Greeting { sent, sent_at, .. }: Greeting,
        evidence: Evidence,
    ) {
        let (round_trip, silence) = (duration(self.now - sent_at), self.plan.wiring.silence);
        let Client { transports, arrivals, .. } = &mut self.clients[client];
        let transport = &mut transports[node];
        transport.note_round_trip(round_trip, silence);
        if let Evidence::Seen { marker, .. } = &evidence {
            transport.session.identify(marker);
        }
        let (node, connection) = (NodeId::new(node), transport.epoch);
        arrivals.answered.push(Event::Greeted { node, connection, sent, round_trip, evidence });
        self.wake(client);
    }
}
