//! Clients: the turns of the driver.

use quorlock_core::{
    Effect, Engine, Event, LockId, Reading, RestartGuard, Rules, Step, TicketedCommand, Token,
};

use super::nodes::WALL;
use super::{Mend, SimEvent, World};
use crate::client::{Client, ClientTick, Transport};
use crate::count::Count;
use crate::driver::Driver;
use crate::fact::{ClientId, Fact, NodeIndex};
use crate::guard::{GuardId, Guards};
use crate::ledger::Ledger;
use crate::plan::Fault;
use crate::time::{Clock, MS, Machine, SECOND, Time, US};

impl Driver for World {
    fn note(&mut self, fact: &Fact<'_>) {
        Self::note(self, fact);
    }

    fn guards(&mut self) -> &mut Guards {
        &mut self.watch.guards
    }

    fn ledger(&self) -> &Ledger {
        &self.watch.ledger
    }

    fn reading(&self, client: ClientId) -> Reading {
        self.clients[client].machine.read(self.now)
    }

    /// It is sent when the turn is over.
    fn order(&mut self, client: ClientId, node: NodeIndex, order: TicketedCommand) {
        self.clients[client].transports[node].outbox.push(order);
    }

    fn ask(&mut self, client: ClientId, event: Event) {
        self.clients[client].arrivals.asked.push(event);
        self.wake(client);
    }

    fn begun(&mut self, client: ClientId, lock: LockId, token: Token) {
        let it = &mut self.clients[client];
        let round_trip = it.engine.quorum_round_trip();
        it.slowest = round_trip.max(it.slowest);
        self.note(&Fact::Begun { client, lock, token, round_trip });
    }

    fn carried_out(&mut self, client: ClientId, effect: &Effect) {
        match effect {
            Effect::Acquired { lock, .. } => self.granted(GuardId { client, lock: *lock }),
            Effect::NotAcquired { lock, .. } => self.refused(client, *lock),
            Effect::Lost { lock, .. } => self.lost(GuardId { client, lock: *lock }),
            Effect::Drained => self.clients[client].life.drained = true,
            Effect::FloorOfFew { .. } => self.record.counts.add(Count::FewClocks),
            _ => {}
        }
    }
}

impl World {
    /// A new process on a machine of its own.
    pub(crate) fn start_client(&mut self) -> ClientId {
        let id = self.clients.len();
        let ppm = self.ppm_of(id);
        let random = &mut self.random.clients;
        let boot = Clock::new(random.between(SECOND, 1_000_000 * SECOND), ppm);
        let wall = random.between(1_000_000 * SECOND, 2_000_000 * SECOND);
        let wall = Clock::new(self.client_wall(wall), ppm);
        let mut machine = Machine { boot, wall };
        machine.boot.step(0, self.now);
        machine.wall.step(0, self.now);
        let engine = Engine::guarded(self.plan.servers.quorum, self.rules_of(id));
        let transports = self
            .plan
            .servers
            .quorum
            .node_ids()
            .map(|node| Transport::new(node, &self.plan))
            .collect();
        self.clients.push(Client::new(engine, transports, machine, self.plan.load.callers));
        self.note(&Fact::Started { client: id });
        for node in 0..self.servers.len() {
            self.supervise(id, node);
        }
        for caller in 0..self.plan.load.callers {
            self.plan_next_wish(id, caller);
        }
        id
    }

    /// By how much a client's clocks run fast, in parts per million.
    pub(crate) fn ppm_of(&self, client: ClientId) -> i64 {
        self.plan.clocks.client_ppm[client % self.plan.clocks.client_ppm.len()]
    }

    /// What this client measures nodes by.
    fn rules_of(&self, client: ClientId) -> Rules {
        Rules { guard: self.guard_of(client), ..self.setting.rules.clone() }
    }

    /// How much this client makes of what nodes say of themselves.
    pub(crate) fn guard_of(&self, client: ClientId) -> RestartGuard {
        self.plan.later.modes.of(client).unwrap_or(self.plan.guard)
    }

    /// What a client's wall clock shows: anything; or where there are fences, what the nodes' show, if
    /// all are set right, and else hours more or less as well.
    fn client_wall(&self, drawn: Time) -> Time {
        const HOUR: Time = 3_600 * SECOND;
        match drawn / SECOND % 3 {
            _ if self.plan.load.fenced == 0 => drawn,
            _ if self.plan.clocks.sober => WALL + self.now + drawn % (2 * MS) - MS,
            0 => WALL + self.now,
            1 => WALL + self.now + drawn % (6 * HOUR) - 2 * HOUR,
            _ => drawn,
        }
    }

    /// There is something for the driver to do.
    pub(crate) fn wake(&mut self, client: ClientId) {
        let (it, random) = (&mut self.clients[client], &mut self.random.clients);
        if it.ticks.is_due || it.ticks.stalled.is_some() || !it.life.alive {
            return;
        }
        it.ticks.is_due = true;
        let late = if random.percent(5) { random.span(MS) } else { random.between(US, 30 * US) };
        self.plan_in(late, SimEvent::Tick(client));
    }

    /// Takes in all that has come, and reads the clock.
    pub(crate) fn tick(&mut self, client: ClientId) {
        let stalls = self.plan.has(Fault::Stalls)
            && !self.progress.healing
            && self.random.faults[Fault::Stalls as usize].percent(2);
        let it = &mut self.clients[client];
        it.ticks.is_due = false;
        let honest = it.machine.read(self.now);
        it.ticks.stalled = Some(ClientTick { tick: it.arrivals.tick(|| honest), honest });
        self.note(&Fact::Tick { client });
        if stalls {
            let mean = self.plan.load.ttl_max / 2;
            let span = self.random.faults[Fault::Stalls as usize].span(mean);
            self.record.counts.add(Count::Stalls);
            self.plan_in(span, SimEvent::Carry(client));
        } else {
            self.carry_on(client);
        }
    }

    /// Hands everything to the engine and carries out what comes of it.
    pub(crate) fn carry_on(&mut self, client: ClientId) {
        let Some(tick) = &mut self.clients[client].ticks.stalled else { return };
        let now = tick.tick.now();
        let steps: Vec<Step<Event>> = tick.tick.steps().collect();
        for step in steps {
            let (Step::Event(event) | Step::Asked(event)) = step;
            self.tell(client, event, now);
        }
        if !self.clients[client].life.alive {
            return;
        }
        self.note(&Fact::TickOver { client });
        self.clients[client].ticks.stalled = None;
        for node in 0..self.servers.len() {
            self.send_waiting(client, node);
        }
        let arrivals = &self.clients[client].arrivals;
        if !arrivals.answered.is_empty() || !arrivals.asked.is_empty() {
            self.wake(client);
        }
        self.set_timer(client);
    }

    /// Wakes the driver when the engine's deadline has come by its boot clock.
    pub(crate) fn set_timer(&mut self, client: ClientId) {
        let it = &mut self.clients[client];
        it.ticks.timer += 1;
        let number = it.ticks.timer;
        if let Some(at) = it.engine.deadline() {
            let when = it.machine.boot.when(at.as_nanos());
            if when < i64::MAX / 4 {
                self.plan_at(when, SimEvent::Timer(client, number));
            }
        }
    }

    fn tell(&mut self, client: ClientId, event: Event, now: Reading) {
        self.note_event(client, &event);
        let (mut effects, mut drawn) = (Vec::new(), Vec::new());
        let tokens = &mut self.random.tokens;
        let mut entropy = |lock| {
            let (token, word) = (Token::new(tokens.bytes()), tokens.word());
            drawn.push((lock, token));
            (token, word)
        };
        self.clients[client].engine.handle(event, now, &mut entropy, &mut effects);
        self.carry_out_all(client, &effects, drawn.clone());
        for (lock, _) in drawn {
            self.stand_still_before_answers(client, lock);
        }
    }

    /// The paper's worst client: it asks, stands still, and goes on with all answers in its sockets when there is
    /// hardly anything left of the lock.
    fn stand_still_before_answers(&mut self, client: ClientId, lock: LockId) {
        if !self.plan.later.small_steps || self.progress.healing || !self.random.later.percent(4) {
            return;
        }
        let Some(timing) = self.watch.ledger.request(client, lock).map(|request| request.timing)
        else {
            return;
        };
        let most = (timing.term().saturating_sub(timing.margin())).as_nanos() as Time;
        let span = most - self.random.later.between(0, self.plan.load.ttl_max / 12);
        self.record.counts.add(Count::StillBeforeAnswers);
        self.plan_in(US, SimEvent::Mend(Mend::Pause(client, span.max(US))));
    }

    /// Kills a process. What it held nobody gives back.
    pub(crate) fn kill_client(&mut self, client: ClientId) {
        let it = &mut self.clients[client];
        it.life.alive = false;
        it.life.deferred.clear();
        it.ticks.stalled = None;
        let wires: Vec<usize> =
            it.transports.iter().filter_map(|transport| transport.wire).collect();
        for wire in wires {
            self.give_up_wire(wire);
        }
        self.watch.guards.remove_all_of(client);
    }

    /// The lock's number for a new call.
    pub(crate) fn new_lock(&mut self, client: ClientId) -> LockId {
        let it = &mut self.clients[client];
        it.locks += 1;
        LockId(it.locks)
    }
}
