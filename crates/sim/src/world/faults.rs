//! Faults: each kind occurs at random times until the healing phase.

use quorlock_core::{Event, FailureKind};

use super::{Mend, Process, SimEvent, World};
use crate::client::Still;
use crate::count::Count;
use crate::driver::Driver;
use crate::fact::{ClientId, FaultEvent, NodeIndex};
use crate::mutants::{Mutant, is_active};
use crate::network::Direction;
use crate::node::Health;
use crate::plan::{Fault, Outside};
use crate::random::Random;
use crate::time::{MS, Time};

impl World {
    pub(crate) fn plan_fault(&mut self, fault: Fault) {
        let mean = self.mean_of(fault);
        let span = self.chance(fault).span(mean);
        self.plan_in(span, SimEvent::Fault(fault));
    }

    fn mean_of(&self, fault: Fault) -> Time {
        match fault {
            Fault::Distrust => self.plan.load.max_ttl * 2,
            // In runs that violate an assumption, votes are lost often, so that locks overlap in some of these runs.
            Fault::Losses if self.plan.outside.is_some() => self.plan.load.max_ttl / 2,
            _ => self.plan.faults.every,
        }
    }

    pub(super) fn chance(&mut self, fault: Fault) -> &mut Random {
        &mut self.random.faults[fault as usize]
    }

    pub(crate) fn strike(&mut self, fault: Fault) {
        if self.progress.healing {
            return;
        }
        self.plan_fault(fault);
        let ttl = self.plan.load.max_ttl;
        let nodes = self.servers.len();
        let node = self.chance(fault).index(nodes);
        let alive: Vec<ClientId> =
            (0..self.clients.len()).filter(|client| self.clients[*client].life.alive).collect();
        let client = match alive.len() {
            0 => return,
            count => alive[self.chance(fault).index(count)],
        };
        let span = self.chance(fault).span(ttl);
        match fault {
            Fault::Resets => self.cut(client, node),
            Fault::Partitions => self.partition(client, node, span),
            Fault::Freezes => {
                self.record.counts.add(Count::NodeFreezes);
                self.freeze_node(node);
                self.plan_in(span, SimEvent::Mend(Mend::Thaw(node)));
            }
            Fault::Crashes => self.crash(node, span),
            Fault::Refusals => self.sicken(node, span),
            Fault::Pauses => self.pause(client, span),
            Fault::Suspends => self.suspend(client, span),
            Fault::WallSteps => {
                let by = self.chance(fault).between(-2 * ttl, 2 * ttl);
                let by = if self.plan.later.small_steps { by / 20 } else { by };
                self.step_wall(client, by);
            }
            Fault::ClientCrashes => self.crash_client(client, span),
            Fault::Occupants => self.occupy(node, span),
            Fault::Losses => self.lose_votes(),
            Fault::NodeSteps => self.set_node_clock(node),
            Fault::Distrust => self.distrust(node, span),
            // Nothing happens here: `World::tick` stalls some ticks, and `World::serve` repeats some batches.
            Fault::Stalls | Fault::Duplicates => {}
        }
    }

    /// Breaks one connection, or all connections of a node.
    fn cut(&mut self, client: ClientId, node: NodeIndex) {
        let of_all = self.chance(Fault::Resets).percent(20);
        let here_first = self.chance(Fault::Resets).coin();
        for client in 0..self.clients.len() {
            let wire = self.clients[client].transports[node].wire;
            if let Some(wire) = wire.filter(|_| self.clients[client].life.alive && of_all) {
                self.reset_by(wire, here_first);
            }
        }
        if let Some(wire) = self.clients[client].transports[node].wire {
            self.note_fault(FaultEvent::Reset { client, node });
            self.reset_by(wire, here_first);
        }
    }

    /// Breaks a connection. With `here_first`, the client's end breaks first, and commands may still reach the node.
    /// Otherwise the node's end breaks first.
    fn reset_by(&mut self, wire: usize, here_first: bool) {
        if here_first {
            self.plan_in(0, SimEvent::Broken(wire));
        } else {
            self.reset(wire);
        }
    }

    fn partition(&mut self, client: ClientId, node: NodeIndex, span: Time) {
        self.record.counts.add(Count::Partitions);
        let chance = self.chance(Fault::Partitions);
        let ways: &[Direction] = match chance.below(3) {
            0 => &[Direction::There],
            1 => &[Direction::Back],
            _ => &[Direction::There, Direction::Back],
        };
        // Blocks messages between one client and one node, one client and the other nodes, or all clients and one node.
        let shape = chance.below(3);
        let nodes = self.servers.len();
        let pairs: Vec<(ClientId, NodeIndex)> = match shape {
            0 => vec![(client, node)],
            1 => (0..nodes).filter(|other| *other != node).map(|node| (client, node)).collect(),
            _ => (0..self.clients.len()).map(|client| (client, node)).collect(),
        };
        for (client, node) in pairs {
            self.network.block(client, node, ways, self.now + span);
            let requests = ways.contains(&Direction::There);
            let replies = ways.contains(&Direction::Back);
            self.note_fault(FaultEvent::Blocked { client, node, requests, replies, span });
        }
    }

    /// Kills a node. If the node loses its data, it stays down until none of its earlier votes can count.
    fn crash(&mut self, node: NodeIndex, span: Time) {
        if self.servers[node].process == Process::Down {
            return;
        }
        let keeps_data = self.chance(Fault::Crashes).coin() || self.forgets_nothing(node);
        let silent = self.chance(Fault::Crashes).percent(30);
        self.kill_node(node, keeps_data, silent);
        let down = if keeps_data {
            self.record.counts.add(Count::NodeCrashes);
            span
        } else {
            self.record.counts.add(Count::NodeLosses);
            self.quarantine() + span
        };
        self.plan_in(down, SimEvent::Mend(Mend::StartNode(node)));
    }

    fn sicken(&mut self, node: NodeIndex, span: Time) {
        let health = self.chance(Fault::Refusals).pick(&[
            Health::Refusing(FailureKind::Loading),
            Health::Refusing(FailureKind::Busy),
            Health::Refusing(FailureKind::Forbidden),
            Health::ReadOnly(FailureKind::ReadOnly),
            Health::ReadOnly(FailureKind::CannotPersist),
            Health::OutOfMemory,
            Health::Garbled,
        ]);
        // The node is a replica, which must refuse writes until it is promoted, so its health must not change here.
        if self.servers[node].node.health == Health::ReadOnly(FailureKind::ReadOnly) {
            return;
        }
        self.record.counts.add(Count::NodeRefusals);
        self.servers[node].node.health = health;
        self.note_fault(FaultEvent::NodeHealth { node, health });
        self.plan_in(span, SimEvent::Mend(Mend::Cure(node)));
    }

    /// Pauses a client's process, as a garbage collection or SIGSTOP does.
    pub(crate) fn pause(&mut self, client: ClientId, span: Time) {
        if self.clients[client].life.still.is_none() && self.clients[client].life.alive {
            self.record.counts.add(Count::Pauses);
            self.clients[client].life.still = Some(Still { clocks_stop: false, catch_up: 0 });
            self.note_fault(FaultEvent::Paused { client, span });
            self.plan_in(span, SimEvent::Mend(Mend::Resume(client)));
        }
    }

    /// Suspends a whole machine. Both clocks usually continue. If a host pauses a virtual machine, its boot
    /// clock may stop, and the wall clock is set right afterwards.
    fn suspend(&mut self, client: ClientId, span: Time) {
        if self.clients[client].life.still.is_some() {
            return;
        }
        // If the boot clock stops, only the wall clock shows the pause, and a jump back would hide the pause. So the
        // boot clock stops only if the wall clock does not jump, or if the run violates the assumption about clocks.
        let may_stop =
            !self.plan.has(Fault::WallSteps) || self.plan.outside == Some(Outside::Clocks);
        let mut stops = may_stop && self.chance(Fault::Suspends).coin();
        let mut wall_stops = stops && self.chance(Fault::Suspends).coin();
        self.record.counts.add(Count::Suspends);
        let mut catch_up = 0;
        if is_active(Mutant::ClockStopsInSuspend) {
            (stops, wall_stops) = (true, true);
        }
        let machine = &mut self.clients[client].machine;
        if stops {
            self.record.counts.add(Count::BootStops);
            machine.boot.run(-1_000_000, self.now);
        }
        if wall_stops {
            let ppm = machine.wall.ppm();
            machine.wall.run(-1_000_000, self.now);
            if !is_active(Mutant::ClockStopsInSuspend) {
                catch_up = span + span / 1_000_000 * ppm;
            }
            if self.plan.outside == Some(Outside::Clocks) && self.random.clients.coin() {
                // The wall clock is set right only some time after the machine has continued.
                let mend = Mend::SetWallRight(client, catch_up);
                self.plan_in(2 * span, SimEvent::Mend(mend));
                catch_up = 0;
            }
        }
        self.clients[client].life.still = Some(Still { clocks_stop: true, catch_up });
        let boot_stops = stops;
        self.note_fault(FaultEvent::Suspended { client, span, boot_stops, wall_stops });
        self.plan_in(span, SimEvent::Mend(Mend::Resume(client)));
    }

    /// Continues a client. Deferred events happen now, in order.
    pub(crate) fn resume(&mut self, client: ClientId) {
        let ppm = self.ppm_of(client);
        let it = &mut self.clients[client];
        let Some(still) = it.life.still.take() else { return };
        if !it.life.alive {
            return;
        }
        for clock in [&mut it.machine.boot, &mut it.machine.wall] {
            clock.run(ppm, self.now);
        }
        it.machine.wall.step(still.catch_up, self.now);
        let deferred = std::mem::take(&mut it.life.deferred);
        for what in deferred {
            self.plan_in(0, what);
        }
        if self.clients[client].ticks.stalled.is_none() {
            self.set_timer(client);
        }
        self.note_fault(FaultEvent::Resumed { client });
    }

    pub(crate) fn step_wall(&mut self, client: ClientId, by: Time) {
        if self.clients[client].life.alive {
            self.record.counts.add(Count::WallSteps);
            self.clients[client].machine.wall.step(by, self.now);
            self.note_fault(FaultEvent::WallStepped { client, by });
        }
    }

    fn crash_client(&mut self, client: ClientId, span: Time) {
        if self.chance(Fault::ClientCrashes).percent(25)
            && self.clients[client].life.still.is_none()
        {
            self.note_fault(FaultEvent::ClientShutDown { client });
            self.ask(client, Event::Close);
            return self.plan_in(span, SimEvent::Mend(Mend::EndClient(client)));
        }
        self.record.counts.add(Count::ClientCrashes);
        let reading = self.clients[client].machine.read(self.now);
        let holds = self
            .watch
            .guards
            .iter()
            .any(|(id, guard)| id.client == client && guard.is_valid(reading));
        if holds {
            self.record.counts.add(Count::HolderCrashes);
        }
        self.end_client(client);
        self.plan_in(span / 4, SimEvent::Mend(Mend::StartClient));
    }

    pub(crate) fn end_client(&mut self, client: ClientId) {
        if self.clients[client].life.alive {
            self.note_fault(FaultEvent::ClientCrashed { client });
            self.kill_client(client);
        }
    }

    fn lose_votes(&mut self) {
        let lossy = self.plan.servers.lossy.len();
        if lossy == 0 {
            return;
        }
        let node = self.plan.servers.lossy[self.random.faults[Fault::Losses as usize].index(lossy)];
        if self.servers[node].process != Process::Runs {
            return;
        }
        let what = match self.plan.outside {
            Some(Outside::Amnesia) => 2,
            _ => self.chance(Fault::Losses).below(3),
        };
        // With locks of several keys, only one key is deleted instead of all, so that a lock loses a part of its keys.
        let is_several = self.plan.later.kinds.several > 0;
        match what {
            0 if !is_several => {
                self.flush_node(node);
            }
            0 | 1 => {
                let place =
                    self.random.faults[Fault::Losses as usize].index(self.setting.keys.len());
                let key = self.setting.keys[place].clone();
                if self.servers[node].node.delete(&key, self.now) {
                    self.record.counts.add(Count::Deletions);
                    self.note_fault(FaultEvent::KeyDeleted { node });
                    self.deliver_pushes(node);
                }
            }
            _ => {
                let keeps_data = self.forgets_nothing(node);
                self.record.counts.add(if keeps_data {
                    Count::NodeCrashes
                } else {
                    Count::NodeAmnesia
                });
                self.kill_node(node, keeps_data, false);
                let down = self.chance(Fault::Losses).between(0, 5 * MS);
                self.plan_in(down, SimEvent::Mend(Mend::StartNode(node)));
            }
        }
    }

    fn distrust(&mut self, node: NodeIndex, span: Time) {
        if self.servers[node].process != Process::Runs {
            return;
        }
        if let Some(most) = self.plan.later.jumps {
            self.plan_jumps(node, most);
        }
        let (what, writes) = {
            let chance = self.chance(Fault::Distrust);
            (chance.below(8), 1 + chance.index(8))
        };
        match what {
            0 => self.restart_node(node, 0, Count::Restarts),
            1 | 2 | 3 | 6 if self.forgets_nothing(node) => {
                self.restart_node(node, 0, Count::Restarts);
            }
            1 => self.restart_node(node, writes, Count::TailsLost),
            2 => self.restart_node(node, 10 * writes, Count::Snapshots),
            3 => {
                self.record.counts.add(Count::NodeAmnesia);
                self.kill_node(node, false, false);
                let down = self.chance(Fault::Distrust).between(0, 5 * MS);
                self.plan_in(down, SimEvent::Mend(Mend::StartNode(node)));
            }
            4 => self.flush_node(node),
            5 => self.make_replica(node, span),
            6 => {
                // A lagging replica replaces its master. It is another process, so clients see a restart.
                self.restart_node(node, writes, Count::Promotions);
                self.start_node(node);
                let server = &mut self.servers[node];
                server.node.run.started_s -= 1_000;
                server.node.run.promoted_at = Some(self.now / MS);
                self.note_fault(FaultEvent::NodePromoted { node });
            }
            _ => {
                self.evict(node, true);
                self.plan_in(span, SimEvent::Mend(Mend::KeepKeys(node)));
            }
        }
    }

    /// Plans at most one jump of the node's clock during its quarantine (the wait after its restart), so that the
    /// length of the quarantine stays known. If the plan has jumps of wall clocks, a client's wall clock may jump too.
    fn plan_jumps(&mut self, node: NodeIndex, most: Time) {
        let (long, clients) = (self.plan.quarantine(), self.clients.len());
        let (may_set_walls, wild) =
            (self.plan.has(Fault::WallSteps), self.plan.outside == Some(Outside::Clocks));
        let random = &mut self.random.later;
        if may_set_walls && random.coin() {
            let (client, by) = (random.index(clients), random.between(-2 * long, 2 * long));
            let span = random.between(0, long);
            self.plan_in(span, SimEvent::Mend(Mend::SetWall(client, by)));
        }
        let random = &mut self.random.later;
        if self.servers[node].has_jumped || random.percent(30) {
            return;
        }
        let sign = if wild && random.coin() { 1 } else { -1 };
        let (by, span) = (random.between(long / 4, most), random.between(0, long * 2 / 3));
        self.servers[node].has_jumped = true;
        self.plan_in(span, SimEvent::Mend(Mend::SetNode(node, sign * by)));
    }

    /// Kills a node and restarts it at once, without its last `writes_lost` writes.
    fn restart_node(&mut self, node: NodeIndex, writes_lost: usize, count: Count) {
        self.record.counts.add(count);
        self.kill_node(node, true, false);
        if self.servers[node].node.undo(writes_lost) {
            self.note_fault(FaultEvent::NodeOverwritten { node });
        }
        let down = self.chance(Fault::Distrust).between(0, 5 * MS);
        self.plan_in(down, SimEvent::Mend(Mend::StartNode(node)));
    }

    /// `REPLICAOF`: the node keeps its data, loses it, or gets other data. The process and its connections stay.
    fn make_replica(&mut self, node: NodeIndex, span: Time) {
        if self.servers[node].node.health != Health::Good {
            return;
        }
        self.record.counts.add(Count::Replicas);
        let health = Health::ReadOnly(FailureKind::ReadOnly);
        self.servers[node].node.health = health;
        self.note_fault(FaultEvent::NodeHealth { node, health });
        let nodes = self.servers.len();
        let other = (node + 1 + self.chance(Fault::Distrust).index(nodes)) % nodes;
        let mut is_told = self.servers[node].node.pushes();
        let changes = match self.chance(Fault::Distrust).below(4) {
            0 => false,
            // A durable node keeps its own data here. If it took other data and then restarted, it would have forgotten
            // that it was a replica, and clients would trust the other data (GUARANTEES.md).
            _ if self.forgets_nothing(node) => false,
            // The node loses its data. Nodes copy only nodes with a smaller index (below), so no two copy each other.
            choice if choice == 1 || other >= node => {
                self.servers[node].node.flush();
                // Without a push, clients notice by the missing marker (the key that shows that no data was lost).
                is_told = true;
                true
            }
            // The node takes the data of another node, which may include older data with this node's own marker.
            2 => {
                let other = self.servers[other].node.clone();
                self.servers[node].node.copy(&other, self.now);
                true
            }
            // The node takes the data of its own lagging replica: older data with this node's own marker.
            _ => {
                let writes = 1 + self.chance(Fault::Distrust).index(8);
                self.servers[node].node.undo(writes)
            }
        };
        if changes {
            self.servers[node].sound_since = self.now;
            self.note_fault(FaultEvent::NodeOverwritten { node });
            self.push_everything(node);
            // Without a push, clients would notice only at the next identification that the data was replaced
            // (GUARANTEES.md), so the node's connections end now. To end them only at the promotion would be too late:
            // until then, the replica confirms extensions that find enough time left on the key, because such
            // extensions write nothing.
            if !is_told {
                self.reset_all(node);
            }
        }
        self.plan_in(span, SimEvent::Mend(Mend::Cure(node)));
    }

    pub(crate) fn evict(&mut self, node: NodeIndex, evicts: bool) {
        if std::mem::replace(&mut self.servers[node].node.run.evicts, evicts) != evicts {
            if evicts {
                self.record.counts.add(Count::Evicting);
            }
            self.note_fault(FaultEvent::NodeEvicts { node, evicts });
        }
    }

    /// Sets a node's clock back by up to half of the longest ttl, or ahead. Within the assumptions, all jumps ahead sum
    /// up to at most 1 ms: the assumptions allow 2 ms, and the rounding of ttls uses the other millisecond.
    fn set_node_clock(&mut self, node: NodeIndex) {
        let ttl = self.plan.load.max_ttl;
        let wild = self.plan.outside == Some(Outside::Clocks);
        let chance = self.chance(Fault::NodeSteps);
        let by = if wild {
            chance.between(-ttl / 2, ttl)
        } else if chance.coin() {
            chance.between(0, MS)
        } else {
            -chance.between(0, ttl / 2)
        };
        self.step_node(node, by);
    }

    fn step_node(&mut self, node: NodeIndex, by: Time) {
        let wild = self.plan.outside == Some(Outside::Clocks);
        let server = &mut self.servers[node];
        let allowed = if wild { Time::MAX } else { MS - server.ahead };
        let limit = self.plan.back_steps();
        let by = by.min(allowed).max(-limit / 8);
        if by == 0 {
            return;
        }
        server.ahead += by.max(0);
        server.node.clock.step(by, self.now);
        self.record.counts.add(Count::NodeSteps);
        self.note_fault(FaultEvent::NodeStepped { node, by });
    }
}
