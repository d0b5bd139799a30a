//! The healing phase: the faults end, and then each waiting call must get its lock within a time limit.

use std::time::Duration;

use quorlock_core::Wait;
use quorlock_core::{Event, FailureKind, Origin, Request, Retry};

use super::{Process, World};
use crate::client::CallerState;
use crate::driver::Driver;
use crate::fact::{ClientId, FaultEvent, span};
use crate::guard::GuardId;
use crate::invariants::{deadlock_free, fault_tolerance, no_starvation, nothing_left};
use crate::node::Health;
use crate::time::{MS, SECOND, Time};

impl World {
    /// Ends all faults, except those of a minority of nodes in some runs, and kills some clients. Then each call that
    /// still waits must get its lock in time, and a new client must get one lock on each resource.
    pub(crate) fn heal(&mut self) {
        self.progress.healing = true;
        self.note_fault(FaultEvent::Healing);
        self.network.heal(self.now);
        self.hurry();
        self.mend_all();
        let waiting = self.settle_callers();
        let newcomer = self.start_newcomer();
        self.start_readers();
        self.leave_litter();
        let healed_at = self.now;
        let mut bound = 0;
        // Late answers lengthen the measured round trips and with them the back-off, so the bound is computed again.
        while bound < self.plan.bound() + self.backoff() {
            bound = self.plan.bound() + self.backoff();
            self.run_until(healed_at + bound, |world| world.all_is_well(newcomer, &waiting));
            if self.has_failed() || self.all_is_well(newcomer, &waiting) {
                return;
            }
        }
        if !self.plan.grants() {
            return;
        }
        let who = self.who_still_waits(newcomer, &waiting);
        let what = format!("{who} has no lock {} after the faults have ended", span(bound));
        let minority = !self.plan.servers.down_to_the_end.is_empty();
        self.violated(
            match () {
                () if minority => fault_tolerance::NAME,
                () if self.plan.later.kinds.readers_stay => no_starvation::NAME,
                () => deadlock_free::NAME,
            },
            what,
        );
    }

    /// The longest contention back-off: 38 round trips for each recent holder, and twice 64 for the waiting callers. A
    /// round trip counts as at most 100 ms (`contention.rs` in the core), by the client's own clocks.
    fn backoff(&self) -> Time {
        let alive = || self.clients.iter().enumerate().filter(|(_, it)| it.life.alive);
        let longest = alive().map(|(_, it)| it.slowest.as_nanos() as Time).max().unwrap_or(0);
        let ppm = alive().map(|(id, _)| self.ppm_of(id)).min().unwrap_or(0);
        let stays = self.plan.load.callers as Time + 1;
        // A back-off is up to 8 ms longer if the client held the lock several times in a row.
        let longer = stays * 8 * MS;
        let round_trips = 38 * stays + 2 * 64;
        (longest.clamp(MS / 10, 100 * MS) * round_trips + longer) * 1_000_000 / (1_000_000 + ppm)
    }

    fn mend_all(&mut self) {
        let down = self.plan.servers.down_to_the_end.clone();
        for node in 0..self.servers.len() {
            if down.contains(&node) {
                match self.random.healing.below(3) {
                    0 => self.freeze_node(node),
                    1 if self.servers[node].process == Process::Runs => {
                        let silent = self.random.healing.coin();
                        self.kill_node(node, true, silent);
                    }
                    _ => {
                        // Promotes a replica, so that clients learn that its data may have changed.
                        if self.servers[node].node.health == Health::ReadOnly(FailureKind::ReadOnly)
                        {
                            self.cure_node(node);
                        }
                        let health = Health::Refusing(FailureKind::Loading);
                        self.servers[node].node.health = health;
                        self.note_fault(FaultEvent::NodeHealth { node, health });
                    }
                }
                continue;
            }
            if self.servers[node].process == Process::Down {
                // A node that loses its data must stay down until none of its earlier votes counts.
                let down = super::SimEvent::Mend(super::Mend::StartNode(node));
                self.plan_in(self.quarantine(), down);
            }
            self.thaw_node(node);
            self.cure_node(node);
            self.evict(node, false);
            self.send_strays_away(node);
            for key in self.setting.keys.clone() {
                self.vacate(node, &key);
            }
        }
        for client in 0..self.clients.len() {
            self.resume(client);
        }
    }

    /// Kills some clients, and releases the locks of the other clients. Returns these other clients.
    fn settle_callers(&mut self) -> Vec<ClientId> {
        for client in 0..self.clients.len() {
            if !self.clients[client].life.alive {
                continue;
            }
            if self.random.healing.percent(30) {
                self.note_fault(FaultEvent::ClientCrashed { client });
                self.kill_client(client);
                continue;
            }
            for caller in 0..self.clients[client].callers.len() {
                match self.clients[client].callers[caller].state {
                    CallerState::Idle => {
                        self.clients[client].callers[caller].state = CallerState::Over
                    }
                    CallerState::Holding { lock, .. } => {
                        let report = self.random.healing.coin();
                        self.release_guard(GuardId { client, lock }, report);
                        self.clients[client].callers[caller].state = CallerState::Over;
                    }
                    CallerState::Waiting { .. } | CallerState::Over => {}
                }
            }
        }
        (0..self.clients.len()).filter(|client| self.clients[*client].life.alive).collect()
    }

    fn start_newcomer(&mut self) -> ClientId {
        let newcomer = self.start_client();
        let wishes = self.newcomers_wishes();
        let idle = crate::client::Caller { state: CallerState::Over, generation: u32::MAX / 2 };
        self.clients[newcomer].callers = vec![idle; wishes.len()];
        for (caller, (keys, mode)) in wishes.into_iter().enumerate() {
            let request = Request {
                fenced: self.counter_for(&keys, self.plan.load.fenced > 0 && caller == 0),
                keys,
                mode,
                prefix_bytes: 0,
                origin: Origin::Absent,
                owner: "".into(),
                timing: self.plan.load.timings[0],
                wait: Wait::Forever,
                retry: Retry::default(),
                automatic: false,
                keeps_on_loss: false,
                yields_to_pollers: true,
                max_hold: Duration::from_nanos((2 * self.plan.load.max_ttl).unsigned_abs()),
                progress: false,
            };
            self.ask_for(newcomer, caller, request);
        }
        newcomer
    }

    fn all_is_well(&self, newcomer: ClientId, waiting: &[ClientId]) -> bool {
        !waiting.iter().chain([&newcomer]).any(|client| self.waits(*client))
    }

    fn waits(&self, client: ClientId) -> bool {
        let waits = |state: CallerState| {
            matches!(state, CallerState::Waiting { .. } | CallerState::Holding { .. })
        };
        let it = &self.clients[client];
        it.life.alive && it.callers.iter().any(|caller| waits(caller.state))
    }

    fn who_still_waits(&self, newcomer: ClientId, waiting: &[ClientId]) -> String {
        let mut who = waiting.iter().chain([&newcomer]).filter(|client| self.waits(**client));
        let Some(&client) = who.next() else { return String::new() };
        let it = &self.clients[client];
        let boot = it.machine.boot.at(self.now);
        let due = it.engine.deadline().map(|at| span(at.as_nanos() - boot));
        let round_trip = it.engine.quorum_round_trip();
        format!("client {client} (due in {due:?}, round trip {round_trip:?})")
    }

    /// Ends the faults of all nodes and shuts all clients down. Every owed release (one that failed and is sent again)
    /// must be delivered, and no lock of a client may stay on a node.
    pub(crate) fn end(&mut self) {
        self.progress.closing = true;
        self.plan.servers.down_to_the_end.clear();
        for node in 0..self.servers.len() {
            self.thaw_node(node);
            self.cure_node(node);
            self.start_node(node);
        }
        for client in 0..self.clients.len() {
            if self.clients[client].life.alive {
                self.ask(client, Event::Close);
            }
        }
        // An engine retries an unanswered release for a minute and a ttl. If a guard is released after its client has
        // reported that it owes no release, that guard's release may still fail and be owed.
        let until = self.now + self.plan.bound() + 70 * SECOND;
        self.run_until(until, |world| {
            world.clients.iter().all(|it| !it.life.alive || it.life.drained && it.engine.is_idle())
        });
        if self.has_failed() {
            return;
        }
        let stuck = (0..self.clients.len())
            .find(|client| self.clients[*client].life.alive && !self.clients[*client].life.drained);
        if let Some(client) = stuck {
            let owed = self.clients[client].engine.releases_owed();
            let what = format!("client {client} is shut down and still owes {owed} releases");
            return self.violated(nothing_left::NAME, what);
        }
        self.check_nothing_left();
    }

    /// Waits until keys of crashed clients and of late commands have expired, then checks that nothing is left. An
    /// acquire may be sent late although its lock is detached by now: it waits for a pause of up to a second between
    /// two attempts to connect, and for the connection.
    fn check_nothing_left(&mut self) {
        let connected = self.now + SECOND + self.plan.connect_timeout();
        let expired: Time = connected
            + self.plan.wiring.zombie_for
            + self.plan.load.max_ttl * 2
            + self.plan.back_steps();
        self.run_until(expired, |_| false);
        if self.has_failed() {
            return;
        }
        for node in 0..self.servers.len() {
            let left = nothing_left::first(&self.servers[node].node, &self.watch.ledger, self.now);
            if let Some(key) = left {
                return self.violated(nothing_left::NAME, format!("node {node} still has {key}"));
            }
        }
        for client in 0..self.clients.len() {
            let engine = &self.clients[client].engine;
            if self.clients[client].life.alive && !engine.is_idle() {
                let what = format!("the engine of client {client} is not idle");
                return self.violated(nothing_left::NAME, what);
            }
        }
    }
}
