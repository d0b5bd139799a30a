//! Nodes: how the processes of model nodes handle messages.

use std::sync::Arc;

use quorlock_core::marker::Marker;
use quorlock_core::{
    Answer, Command, Evidence, Failure, FailureKind, Key, MarkerSeen, RestartGuard,
};

use super::scripts::Script;
use super::{Mend, Parcel, Process, Reply, Server, SimEvent, World};
use crate::count::Count;
use crate::fact::{Fact, FaultEvent, NodeIndex};
use crate::network::Direction;
use crate::node::{ConnectionId, Health, Kind, ModelNode, Run};
use crate::plan::{Fault, HALF_DRIFT_PPM};
use crate::time::{Clock, MS, SECOND, Time};

/// The base of wall clocks: a day in 2025, because the engine writes dates into values. It is a multiple of 6 h, so it
/// leaves the remainders of drawn times as they are. These remainders set the clocks of nodes and clients in old seeds.
pub(super) const DATE: Time = 81_670 * 21_600 * SECOND;

/// The time on correct wall clocks at the start.
pub(super) const WALL: Time = DATE + 1_500_000 * SECOND;

/// The uptime of servers that have run for a long time.
const LONG: Time = 1_000 * SECOND;

type SaidInfo = Result<Arc<str>, Failure>;

impl World {
    pub(crate) fn start_servers(&mut self) {
        for node in 0..self.plan.servers.quorum.nodes() {
            let random = &mut self.random.clients;
            let wall = DATE + random.between(1_000_000 * SECOND, 2_000_000 * SECOND);
            // With fencing tokens, clocks differ by less than the hour that floors (lower bounds for tokens) allow for.
            let wall = match self.plan.load.fenced {
                0 => wall,
                _ if self.plan.clocks.sober => WALL + wall % (2 * SECOND) - SECOND,
                _ => WALL + wall % (1_200 * SECOND),
            };
            let is_behind = self.plan.later.behind.contains(&node);
            let wall = if is_behind { wall - 5 * 3_600 * SECOND } else { wall };
            let clock = Clock::new(wall, self.plan.clocks.node_ppm[node]);
            let is_replicated = self.plan.later.replicated;
            let kind = Kind {
                expires_at_once: random.coin(),
                deletes_natively: random.coin(),
                pushes: random.percent(80) || is_replicated,
            };
            let mut node = ModelNode::new(clock, kind);
            self.progress.runs += 1;
            // Two names of one server report the same `run_id`.
            let one = self.plan.servers.duplicates && self.servers.len() == 1;
            node.run = Run::new(if one { 1 } else { self.progress.runs }, wall);
            if self.plan.guard == RestartGuard::Strict {
                node.keep_undo();
            }
            node.run.keeps_log = self.plan.later.durable.contains(&self.servers.len());
            let sound_since = if self.plan.servers.prepared { self.prepare(&mut node) } else { 0 };
            let (process, stuck) = (Process::Runs, Vec::new());
            let (silent, ahead) = (false, 0);
            self.servers.push(Server {
                node,
                process,
                stuck,
                known_scripts: Script::ALL.into(),
                silent,
                ahead,
                sound_since,
                has_jumped: false,
            });
            if is_replicated {
                self.add_replica(self.servers.len() - 1);
            }
        }
    }

    fn prepare(&self, node: &mut ModelNode) -> Time {
        let keeps_log = node.run.keeps_log;
        node.run = Run { keeps_log, ..Run::new(node.run.id, node.clock.at(0) - LONG) };
        let run_id = format!("{:040x}", node.run.id).into();
        let cluster = self.setting.rules.cluster.clone();
        let marker = Marker { cluster, run_id, promoted_at: -1, floor: 0 };
        if self.plan.guard == RestartGuard::Strict {
            node.set(&self.setting.rules.marker, Some(marker.to_string().into_bytes()), None, 0);
        }
        -LONG
    }

    pub(crate) fn receive(&mut self, parcel: Box<Parcel>) {
        let wire = &self.network.wires[parcel.wire];
        let (node, client) = (wire.node, wire.client);
        self.turn_to_wire(parcel.wire);
        let wire = &self.network.wires[parcel.wire];
        if !parcel.duplicate {
            if !wire.open_there || self.now > wire.lost_after {
                // A restarted process resets the connections of its predecessor.
                if wire.open_here && self.servers[node].process == Process::Runs {
                    let arrival = self.network.arrival(parcel.wire, Direction::Back, self.now);
                    self.plan_at(arrival, SimEvent::Broken(parcel.wire));
                }
                return;
            }
            if !wire.open_here && wire.held_until > self.now {
                return self.plan_at(wire.held_until, SimEvent::Request(parcel));
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
            Process::Runs => {
                if let Some(parcel) = self.queue_behind_wait(*parcel) {
                    self.serve(node, client, parcel);
                }
            }
        }
    }

    pub(super) fn serve(&mut self, node: NodeIndex, client: usize, mut parcel: Parcel) {
        let zombie = !self.network.wires[parcel.wire].open_here;
        let duplicate = parcel.duplicate;
        let by = ConnectionId(parcel.wire as u64);
        let mut answers: Vec<Answer> = Vec::with_capacity(parcel.orders.len());
        let (info, first) = self.info_before(node, &parcel);
        if parcel.greets {
            self.servers[node].known_scripts = Script::ALL.into();
        }
        let mut flush_at = self.flush_within(parcel.orders.len());
        self.forget_scripts(node);
        let mut unknown = Vec::new();
        for (place, (ticket, command)) in parcel.orders.iter().enumerate() {
            if flush_at.take_if(|at| *at == place).is_some() {
                self.flush_node(node);
            }
            if !self.knows_script_of(node, command, parcel.whole) {
                unknown.push(place);
                answers.push(Answer::Failed(Failure::unsent(FailureKind::Rejected)));
                continue;
            }
            let early = self.is_early(node);
            let answer = match command {
                Command::Announce { .. } if self.plan.later.kinds.is_deaf => Answer::Announced,
                Command::Inspect { .. } | Command::Watch { .. } if self.is_blind() => {
                    Answer::Failed(Failure::new(FailureKind::Rejected))
                }
                _ => self.servers[node].node.execute(by, command, self.now),
            };
            let (ticket, answer_ref) = (*ticket, &answer);
            self.note(&Fact::Executed {
                node,
                client,
                ticket,
                command,
                answer: answer_ref,
                zombie,
                duplicate,
                early,
            });
            answers.push(answer);
        }
        if flush_at.is_some() {
            self.flush_node(node);
        }
        let evidence = self.evidence(node, &parcel, (info, first));
        self.deliver_pushes(node);
        self.replicate(node);
        if duplicate {
            return;
        }
        // The network repeats only a batch that was carried out completely.
        let is_done = unknown.is_empty();
        if !zombie {
            let arrival = self.network.arrival(parcel.wire, Direction::Back, self.now);
            let (wire, parcel) = (parcel.wire, parcel.clone());
            let reply = Box::new(Reply { parcel, answers, evidence, unknown });
            if let Some(reply) = self.hold_back(node, reply) {
                self.plan_at(arrival, SimEvent::Reply { wire, reply });
            }
        }
        let random = &mut self.random.faults[Fault::Duplicates as usize];
        if self.plan.has(Fault::Duplicates)
            && !self.progress.healing
            && random.percent(4)
            && is_done
        {
            parcel.duplicate = true;
            let late = random.span(self.plan.load.max_ttl / 2);
            self.plan_in(late, SimEvent::Request(Box::new(parcel)));
        }
    }

    /// The `INFO` that a batch requests before its commands, and the number of flushes reported on the connection.
    fn info_before(&self, node: NodeIndex, parcel: &Parcel) -> (Option<SaidInfo>, u64) {
        let is_asked = parcel.asked_evidence.is_some_and(|asked_evidence| asked_evidence.info);
        (is_asked.then(|| self.info(node)), self.network.wires[parcel.wire].flushes)
    }

    /// The evidence that follows the commands of a batch. `INFO` read before a replacement of the data says nothing
    /// about the present data, so it is dropped.
    fn evidence(
        &mut self,
        node: NodeIndex,
        parcel: &Parcel,
        (info, first): (Option<SaidInfo>, u64),
    ) -> Evidence {
        let Some(asked) = parcel.asked_evidence else { return Evidence::NotRequired };
        let (by, key) = (ConnectionId(parcel.wire as u64), &self.setting.rules.marker);
        let marker = asked.marker.then(|| self.servers[node].node.marker(by, key, self.now));
        let marker = marker.unwrap_or(MarkerSeen::NotAsked);
        let flushes = self.network.wires[parcel.wire].flushes;
        let info = info.filter(|_| first == flushes);
        Evidence::Seen { epoch: asked.epoch, flushes, info, marker, acknowledged: None }
    }

    /// The evidence of a greeting that takes no time.
    pub(super) fn evidence_for(&mut self, node: NodeIndex, greeting: &Parcel) -> Evidence {
        self.servers[node].known_scripts = Script::ALL.into();
        let info = self.info_before(node, greeting);
        self.evidence(node, greeting, info)
    }

    fn forget_scripts(&mut self, node: NodeIndex) {
        let forgets = self.plan.later.forgets_scripts && !self.progress.healing;
        if forgets && self.random.scripts.below(40) == 0 {
            self.record.counts.add(Count::ScriptFlushes);
            let (kinds, random) = (&self.plan.later.kinds, &mut self.random.kinds);
            // The node keeps some scripts, selected at random, as if another client had loaded them again.
            let is_told = |_: &Script| kinds.is_any() && random.coin();
            self.servers[node].known_scripts.retain(is_told);
        }
    }

    /// Whether a node can carry out a command. A command with the text of its script also loads the script.
    fn knows_script_of(&mut self, node: NodeIndex, command: &Command, is_told: bool) -> bool {
        let server = &mut self.servers[node];
        let Some(script) = Script::of(command, server.node.kind()) else { return true };
        if is_told {
            server.known_scripts.insert(script);
        }
        server.known_scripts.contains(&script)
    }

    /// Draws whether the node is flushed within a batch, and before which command.
    fn flush_within(&mut self, commands: usize) -> Option<usize> {
        if !self.plan.has(Fault::Distrust) || self.progress.healing {
            return None;
        }
        let chance = &mut self.random.faults[Fault::Distrust as usize];
        (chance.below(500) == 0).then(|| chance.index(commands + 1))
    }

    pub(crate) fn flush_node(&mut self, node: NodeIndex) {
        self.record.counts.add(Count::Flushes);
        self.servers[node].node.flush();
        self.servers[node].sound_since = self.now;
        self.note_fault(FaultEvent::NodeFlushed { node });
        self.push_everything(node);
        self.may_stray(node);
    }

    pub(crate) fn deliver_pushes(&mut self, node: NodeIndex) {
        for (ConnectionId(wire), key) in self.servers[node].node.take_pushes() {
            let wire = wire as usize;
            let arrival = self.network.stray(wire, self.now);
            self.plan_at(arrival, SimEvent::Push { wire, key: Some(key) });
        }
    }

    /// If the node sends pushes, it pushes to each client that all keys have changed, before its next reply.
    pub(crate) fn push_everything(&mut self, node: NodeIndex) {
        let here = self.side_of(node);
        let open = |it: &crate::network::Wire| {
            it.node == node && it.side == here && it.open_here && it.open_there
        };
        let wires: Vec<usize> =
            (0..self.network.wires.len()).filter(|wire| open(&self.network.wires[*wire])).collect();
        for wire in wires {
            let arrival = self.network.stray(wire, self.now);
            if self.servers[node].node.pushes() {
                self.network.wires[wire].flushes += 1;
                self.plan_at(arrival, SimEvent::Push { wire, key: None });
            }
        }
    }

    pub(crate) fn reset(&mut self, wire: usize) {
        let Some(it) = self.network.wires.get_mut(wire).filter(|it| it.open_there) else { return };
        it.open_there = false;
        self.turn_to_wire(wire);
        let node = self.network.wires[wire].node;
        self.servers[node].node.disconnect(ConnectionId(wire as u64));
        let arrival = self.network.arrival(wire, Direction::Back, self.now);
        self.plan_at(arrival, SimEvent::Broken(wire));
    }

    pub(crate) fn kill_node(&mut self, node: NodeIndex, keeps_data: bool, silent: bool) {
        let server = &mut self.servers[node];
        server.process = Process::Down;
        server.silent = silent;
        server.stuck.clear();
        server.node.crash(keeps_data);
        self.note_fault(FaultEvent::NodeCrashed { node, keeps_data, silent });
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

    pub(super) fn reset_all(&mut self, node: NodeIndex) {
        for wire in 0..self.network.wires.len() {
            if self.network.wires[wire].node == node {
                self.reset(wire);
            }
        }
    }

    pub(crate) fn start_node(&mut self, node: NodeIndex) {
        if self.servers[node].process == Process::Down {
            self.progress.runs += 1;
            let keeps_log = self.forgets_nothing(node);
            let server = &mut self.servers[node];
            server.process = Process::Runs;
            let run = Run::new(self.progress.runs, server.node.clock.at(self.now));
            server.node.run = Run { keeps_log, ..run };
            if keeps_log {
                self.record.counts.add(Count::DurableRestarts);
            } else {
                server.sound_since = self.now;
            }
            self.note_fault(FaultEvent::NodeStarted { node });
            self.may_stray(node);
        }
    }

    pub(crate) fn forgets_nothing(&self, node: NodeIndex) -> bool {
        self.plan.later.durable.contains(&node)
    }

    fn merge(&mut self) {
        let [first, second, ..] = &mut self.servers[..] else { return };
        if second.process != Process::Runs {
            return;
        }
        (second.node.run, second.node.clock) = (first.node.run, first.node.clock);
        second.node.copy(&first.node, self.now);
        (second.sound_since, second.ahead) = (first.sound_since, first.ahead);
        second.has_jumped = first.has_jumped;
        self.record.counts.add(Count::Merges);
        self.note_fault(FaultEvent::NodeOverwritten { node: 1 });
        self.reset_all(1);
    }

    pub(crate) fn freeze_node(&mut self, node: NodeIndex) {
        if self.servers[node].process == Process::Runs {
            self.servers[node].process = Process::Frozen;
            self.note_fault(FaultEvent::NodeFrozen { node });
        }
    }

    /// Continues a frozen node. It handles the commands of each connection in order, the connections in any order.
    pub(crate) fn thaw_node(&mut self, node: NodeIndex) {
        if self.servers[node].process != Process::Frozen {
            return;
        }
        self.servers[node].process = Process::Runs;
        self.note_fault(FaultEvent::NodeThawed { node });
        let mut stuck = std::mem::take(&mut self.servers[node].stuck);
        if self.random.transports.coin() {
            let turned = self.random.transports.coin();
            let key = |parcel: &Parcel| parcel.wire as i64 * if turned { -1 } else { 1 };
            stuck.sort_by_key(|parcel| key(parcel));
        }
        for parcel in stuck {
            let client = self.network.wires[parcel.wire].client;
            self.serve(node, client, parcel);
        }
    }

    pub(crate) fn cure_node(&mut self, node: NodeIndex) {
        let server = &mut self.servers[node];
        if server.node.health != Health::Good {
            if server.node.health == Health::ReadOnly(FailureKind::ReadOnly) {
                // A promotion starts a new replication history, so its offset differs from that of the last promotion.
                let offset = server.node.run.promoted_at.unwrap_or(0) + 1 + self.now / SECOND;
                server.node.run.promoted_at = Some(offset);
            }
            server.node.health = Health::Good;
            self.note_fault(FaultEvent::NodeHealth { node, health: Health::Good });
        }
    }

    pub(crate) fn vacate(&mut self, node: NodeIndex, key: &Key) {
        let stored = self.servers[node].node.stored(key, self.now);
        let ours = |value: &Vec<u8>| self.watch.ledger.knows(value);
        if stored.is_some_and(|stored| !stored.values().any(ours)) {
            self.servers[node].node.delete(key, self.now);
            self.deliver_pushes(node);
            self.note_fault(FaultEvent::KeyVacated { node });
        }
    }

    /// Whether the node restarted or lost data so recently that its votes must not count. Clients see the node's uptime
    /// and the length of its wait for a new marker only by the node's own clock. If that clock runs too fast, this
    /// check measures by that clock too. If it jumped ahead by more than the assumptions allow, this returns false.
    fn is_early(&self, node: NodeIndex) -> bool {
        let server = &self.servers[node];
        let is_off = server.ahead > MS;
        let (passed, ppm) = (self.now - server.sound_since, server.node.clock.ppm());
        let ahead = if ppm > HALF_DRIFT_PPM { passed / 1_000_000 * ppm } else { 0 };
        !is_off && passed + ahead < self.plan.load.max_ttl / 100 * 101
    }

    /// The time for which a node without its data must stay down: until no earlier vote of this node can count.
    pub(crate) fn quarantine(&self) -> i64 {
        self.plan.load.max_ttl * 102 / 100 + 3 * MS
    }

    pub(crate) fn mend(&mut self, mend: Mend) {
        match mend {
            Mend::Resume(client) => self.resume(client),
            Mend::SetWallRight(client, by) => self.step_wall(client, by),
            Mend::StartClient if self.progress.healing => {}
            Mend::StartClient => {
                self.start_client();
            }
            Mend::EndClient(client) => {
                if !self.progress.healing {
                    self.end_client(client);
                    self.start_client();
                }
            }
            Mend::Depart(client) => self.depart(client),
            Mend::StartNode(node) => self.start_node(node),
            Mend::Thaw(node) => self.thaw_node(node),
            Mend::Cure(node) => self.cure_node(node),
            Mend::Vacate(node, key) => self.vacate(node, &key),
            Mend::Litter(node, key) => self.litter(node, key),
            Mend::KeepKeys(node) => self.evict(node, false),
            Mend::SetNode(..) | Mend::SetWall(..) | Mend::Pause(..) if self.progress.healing => {}
            Mend::SetNode(node, by) => {
                self.servers[node].ahead += by.max(0);
                self.servers[node].node.clock.step(by, self.now);
                self.record.counts.add(if by < 0 { Count::JumpsBack } else { Count::JumpsAhead });
                self.note_fault(FaultEvent::NodeStepped { node, by });
            }
            Mend::Pause(client, span) => self.pause(client, span),
            Mend::Leave => {
                self.freeze_node(0);
                self.plan_in(33 * SECOND / 2, SimEvent::Mend(Mend::Merge));
                self.plan_in(18 * SECOND, SimEvent::Mend(Mend::Thaw(0)));
            }
            Mend::Merge => self.merge(),
            Mend::MarkForOthers(node, adoption) => self.mark_for_others(node, adoption),
            Mend::SendStraysAway(node) => self.send_strays_away(node),
            Mend::SetWall(client, by) => {
                self.record.counts.add(Count::ClientJumps);
                self.step_wall(client, by);
            }
        }
    }
}
