//! Nodes: what their processes do with what arrives.

use quorlock_core::{Answer, Key};

use super::{Happening, Mend, Parcel, Process, Server, World};
use crate::fact::{Fact, Mishap, NodeIndex};
use crate::network::Direction;
use crate::node::{Connection, Health, Kind, ModelNode};
use crate::plan::Fault;
use crate::time::{Clock, MS, SECOND};

impl World {
    pub(crate) fn start_servers(&mut self) {
        for node in 0..self.plan.quorum.nodes() {
            let random = &mut self.random.clients;
            let wall = random.between(1_000_000 * SECOND, 2_000_000 * SECOND);
            let clock = Clock::new(wall, self.plan.node_ppm[node]);
            let kind = Kind {
                expires_at_once: random.coin(),
                deletes_natively: random.coin(),
                pushes: random.percent(80),
            };
            let node = ModelNode::new(clock, kind);
            let (process, stuck) = (Process::Runs, Vec::new());
            self.servers.push(Server { node, process, stuck, silent: false, ahead: 0 });
        }
    }

    /// A batch reaches its node.
    pub(crate) fn receive(&mut self, parcel: Box<Parcel>) {
        let wire = &self.network.wires[parcel.wire];
        let (node, client) = (wire.node, wire.client);
        if !parcel.duplicate {
            if !wire.open_there || self.now > wire.lost_after {
                // A process that runs again knows nothing of the connection, and says so.
                if wire.open_here && self.servers[node].process == Process::Runs {
                    let arrival = self.network.arrival(parcel.wire, Direction::Back, self.now);
                    self.plan_at(arrival, Happening::Broken(parcel.wire));
                }
                return;
            }
            if !wire.open_here && wire.held_until > self.now {
                return self.plan_at(wire.held_until, Happening::Request(parcel));
            }
        }
        match self.servers[node].process {
            Process::Down => {
                let silent = self.servers[node].silent;
                if !silent && !parcel.duplicate {
                    self.reset(parcel.wire);
                }
            }
            Process::Frozen => self.servers[node].stuck.push(*parcel),
            Process::Runs => self.serve(node, client, *parcel),
        }
    }

    fn serve(&mut self, node: NodeIndex, client: usize, mut parcel: Parcel) {
        let zombie = !self.network.wires[parcel.wire].open_here;
        let duplicate = parcel.duplicate;
        let by = Connection(parcel.wire as u64);
        let mut answers: Vec<Answer> = Vec::with_capacity(parcel.orders.len());
        for (ticket, command) in &parcel.orders {
            let answer = self.servers[node].node.execute(by, command, self.now);
            let (ticket, answer_ref) = (*ticket, &answer);
            self.note(&Fact::Executed {
                node,
                client,
                ticket,
                command,
                answer: answer_ref,
                zombie,
                duplicate,
            });
            answers.push(answer);
        }
        self.deliver_pushes(node);
        if duplicate {
            return;
        }
        if !zombie {
            let arrival = self.network.arrival(parcel.wire, Direction::Back, self.now);
            let (wire, batch) = (parcel.wire, parcel.batch);
            self.plan_at(arrival, Happening::Reply { wire, batch, answers });
        }
        let random = &mut self.random.faults[Fault::Duplicates as usize];
        if self.plan.has(Fault::Duplicates) && !self.healing && random.percent(4) {
            parcel.duplicate = true;
            let late = random.span(self.plan.ttl_max / 2);
            self.plan_in(late, Happening::Request(Box::new(parcel)));
        }
    }

    pub(crate) fn deliver_pushes(&mut self, node: NodeIndex) {
        for (Connection(wire), key) in self.servers[node].node.take_pushes() {
            let wire = wire as usize;
            let arrival = self.network.stray(wire, self.now);
            self.plan_at(arrival, Happening::Push { wire, key: Some(key) });
        }
    }

    /// Every client that is connected is told that everything has changed.
    pub(crate) fn push_everything(&mut self, node: NodeIndex) {
        let open = |it: &crate::network::Wire| it.node == node && it.open_here && it.open_there;
        let wires: Vec<usize> =
            (0..self.network.wires.len()).filter(|wire| open(&self.network.wires[*wire])).collect();
        for wire in wires {
            let arrival = self.network.stray(wire, self.now);
            self.plan_at(arrival, Happening::Push { wire, key: None });
        }
    }

    /// The node's side has closed a connection.
    pub(crate) fn reset(&mut self, wire: usize) {
        let Some(it) = self.network.wires.get_mut(wire).filter(|it| it.open_there) else { return };
        it.open_there = false;
        self.servers[it.node].node.disconnect(Connection(wire as u64));
        let arrival = self.network.arrival(wire, Direction::Back, self.now);
        self.plan_at(arrival, Happening::Broken(wire));
    }

    /// The process is killed.
    pub(crate) fn kill_node(&mut self, node: NodeIndex, keeps_data: bool, silent: bool) {
        let server = &mut self.servers[node];
        server.process = Process::Down;
        server.silent = silent;
        server.stuck.clear();
        server.node.crash(keeps_data);
        self.note_mishap(Mishap::NodeCrashed { node, keeps_data, silent });
        for wire in 0..self.network.wires.len() {
            if self.network.wires[wire].node == node && self.network.wires[wire].open_there {
                if silent {
                    self.network.wires[wire].open_there = false;
                } else {
                    self.reset(wire);
                }
            }
        }
    }

    pub(crate) fn start_node(&mut self, node: NodeIndex) {
        if self.servers[node].process == Process::Down {
            self.servers[node].process = Process::Runs;
            self.note_mishap(Mishap::NodeStarted { node });
        }
    }

    pub(crate) fn freeze_node(&mut self, node: NodeIndex) {
        if self.servers[node].process == Process::Runs {
            self.servers[node].process = Process::Frozen;
            self.note_mishap(Mishap::NodeFrozen { node });
        }
    }

    /// It goes on with what it was sent: each connection's in order, but which connection first is
    /// anybody's guess.
    pub(crate) fn thaw_node(&mut self, node: NodeIndex) {
        if self.servers[node].process != Process::Frozen {
            return;
        }
        self.servers[node].process = Process::Runs;
        self.note_mishap(Mishap::NodeThawed { node });
        let mut stuck = std::mem::take(&mut self.servers[node].stuck);
        if self.random.lines.coin() {
            let turned = self.random.lines.coin();
            let key = |parcel: &Parcel| parcel.wire as i64 * if turned { -1 } else { 1 };
            stuck.sort_by_key(|parcel| key(parcel));
        }
        for parcel in stuck {
            let client = self.network.wires[parcel.wire].client;
            self.serve(node, client, parcel);
        }
    }

    pub(crate) fn cure_node(&mut self, node: NodeIndex) {
        if self.servers[node].node.health != Health::Good {
            self.servers[node].node.health = Health::Good;
            self.note_mishap(Mishap::NodeHealth { node, health: Health::Good });
        }
    }

    /// What sits on a key and is nobody's lock goes away.
    pub(crate) fn vacate(&mut self, node: NodeIndex, key: &Key) {
        let stored = self.servers[node].node.stored(key, self.now);
        let ours = |value: &Vec<u8>| self.ledger.knows(value);
        if stored.is_some_and(|stored| !stored.value.as_ref().is_some_and(ours)) {
            self.servers[node].node.delete(key, self.now);
            self.deliver_pushes(node);
            self.note_mishap(Mishap::KeyVacated { node });
        }
    }

    /// How long a node must stay down that has lost its data: until no vote can count any more that
    /// it had given before.
    pub(crate) fn quarantine(&self) -> i64 {
        self.plan.ttl_max * 102 / 100 + 3 * MS
    }

    pub(crate) fn mend(&mut self, mend: Mend) {
        match mend {
            Mend::Resume(client) => self.resume(client),
            Mend::SetWallRight(client, by) => self.step_wall(client, by),
            Mend::StartClient if self.healing => {}
            Mend::StartClient => {
                self.start_client();
            }
            Mend::EndClient(client) => {
                if !self.healing {
                    self.end_client(client);
                    self.start_client();
                }
            }
            Mend::StartNode(node) => self.start_node(node),
            Mend::Thaw(node) => self.thaw_node(node),
            Mend::Cure(node) => self.cure_node(node),
            Mend::Vacate(node, key) => self.vacate(node, &key),
        }
    }
}
