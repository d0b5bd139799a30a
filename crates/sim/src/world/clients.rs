//! Clients: how each client starts, runs its ticks, and is killed.
//!
//! A tick is one iteration of the client's driver. [`World::tick`] takes in everything that has arrived and reads the
//! clock. [`World::carry_on`] gives the events to the engine and sends the commands; after a stall, `SimEvent::Carry`
//! calls it. For each event, `Driver::carry_out_all` carries out the effects (the engine's outputs). After each effect
//! it calls `Driver::carried_out`, which does the work that only this world needs.

use quorlock_core::{
    Effect, Engine, Entry, Event, LockId, NodeId, Reading, RestartGuard, Rules, TicketedCommand,
    Token,
};

use super::nodes::{DATE, WALL};
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

    /// The command is sent at the end of the tick.
    fn order(&mut self, client: ClientId, node: NodeIndex, order: TicketedCommand) {
        if self.is_held_back(client, node, &order) {
            return;
        }
        self.clients[client].transports[node].outbox.push(order);
    }

    fn entry_of(&self, client: ClientId, lock: LockId) -> Option<Entry> {
        self.extending.get(&(client, lock)).cloned()
    }

    fn ask(&mut self, client: ClientId, event: Event) {
        if let Event::ExtendEntry { lock, entry, .. } = &event {
            self.extending.insert((client, *lock), entry.entry.clone());
        }
        self.clients[client].arrivals.requests.push((event, ()));
        self.wake(client);
    }

    fn begun(&mut self, client: ClientId, lock: LockId, token: Token) {
        let client_state = &mut self.clients[client];
        let round_trip = client_state.engine.quorum_round_trip();
        client_state.slowest = round_trip.max(client_state.slowest);
        self.note(&Fact::Begun { client, lock, token, round_trip });
    }

    fn carried_out(&mut self, client: ClientId, effect: &Effect) {
        if let Effect::Identified { node, connection, is_trusted } = effect {
            return self.note_identified(client, *node, (*connection, *is_trusted));
        }
        if self.by_hand.is_some() {
            return self.carried_out_by_hand(client, effect);
        }
        match effect {
            Effect::Acquired { lock, .. } => self.granted(GuardId { client, lock: *lock }),
            Effect::NotAcquired { lock, .. } => self.refused(client, *lock),
            Effect::Lost { lock, .. } => self.lost(GuardId { client, lock: *lock }),
            Effect::Detached { lock, detached } => {
                self.detached(GuardId { client, lock: *lock }, detached.as_deref());
            }
            Effect::EntryExtended { validity, .. } => self.entry_extended(validity.as_ref()),
            Effect::Drained => self.clients[client].life.drained = true,
            Effect::FloorOfFew { .. } => self.record.counts.add(Count::FewClocks),
            _ => {}
        }
    }

    /// Keeps the guards of a scripted world, because its test may inspect them at any time.
    fn forget(&mut self, guard: GuardId) {
        if self.by_hand.is_none() {
            self.watch.guards.remove(guard);
        }
    }
}

impl World {
    pub(crate) fn start_client(&mut self) -> ClientId {
        let id = self.clients.len();
        let ppm = self.ppm_of(id);
        let random = &mut self.random.clients;
        let boot = Clock::new(random.between(SECOND, 1_000_000 * SECOND), ppm);
        let wall = DATE + random.between(1_000_000 * SECOND, 2_000_000 * SECOND);
        let wall = Clock::new(self.client_wall(wall), ppm);
        let mut machine = Machine { boot, wall };
        // A jump by 0 makes the clock's error accumulate only from now, the start of the client, not from time 0.
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

    pub(crate) fn ppm_of(&self, client: ClientId) -> i64 {
        self.plan.clocks.client_ppm[client % self.plan.clocks.client_ppm.len()]
    }

    fn rules_of(&self, client: ClientId) -> Rules {
        Rules { guard: self.guard_of(client), ..self.setting.rules.clone() }
    }

    /// The restart guard of this client. `plan.later` has the settings that were added to the simulator later.
    pub(crate) fn guard_of(&self, client: ClientId) -> RestartGuard {
        self.plan.later.modes.of(client).unwrap_or(self.plan.guard)
    }

    /// The wall clock of a client at its start. `drawn` is a random time, which also selects one of the cases below.
    fn client_wall(&self, drawn: Time) -> Time {
        const HOUR: Time = 3_600 * SECOND;
        match drawn / SECOND % 3 {
            // Without fencing tokens nothing depends on the wall clock, so it shows a random time.
            _ if self.plan.load.fenced == 0 => drawn,
            // `sober`: all clocks are right. The clock shows the time of the nodes, within a millisecond.
            _ if self.plan.clocks.sober => WALL + self.now + drawn % (2 * MS) - MS,
            // Otherwise the clock shows the time of the nodes, a time within hours of it, or a random time.
            0 => WALL + self.now,
            1 => WALL + self.now + drawn % (6 * HOUR) - 2 * HOUR,
            _ => drawn,
        }
    }

    pub(crate) fn wake(&mut self, client: ClientId) {
        let (client_state, random) = (&mut self.clients[client], &mut self.random.clients);
        let ticks = &mut client_state.ticks;
        if ticks.is_due || ticks.stalled.is_some() || !client_state.life.alive {
            return;
        }
        ticks.is_due = true;
        let late = if self.by_hand.is_some() {
            0
        } else if random.percent(5) {
            random.span(MS)
        } else {
            random.between(US, 30 * US)
        };
        self.plan_in(late, SimEvent::Tick(client));
    }

    /// Begins a tick: takes in everything that has arrived, and reads the clock. The driver may stall here, between the
    /// reading and the rest of the tick.
    pub(crate) fn tick(&mut self, client: ClientId) {
        let stalls = self.plan.has(Fault::Stalls)
            && !self.progress.healing
            && self.random.faults[Fault::Stalls as usize].percent(2);
        let client_state = &mut self.clients[client];
        client_state.ticks.is_due = false;
        // The correct reading. A mutant may give the tick an earlier reading.
        let honest = client_state.machine.read(self.now);
        let tick = ClientTick { tick: client_state.arrivals.tick(|| honest), honest };
        // The tick is kept here until `carry_on` takes it: at once, or at the end of the stall.
        client_state.ticks.stalled = Some(tick);
        self.note(&Fact::Tick { client });
        if stalls {
            let mean = self.plan.load.max_ttl / 2;
            let span = self.random.faults[Fault::Stalls as usize].span(mean);
            self.record.counts.add(Count::Stalls);
            self.plan_in(span, SimEvent::Carry(client));
        } else {
            self.carry_on(client);
        }
    }

    /// Finishes the tick that [`tick`](Self::tick) began: gives each event to the engine, carries out the effects, and
    /// sends the commands.
    pub(crate) fn carry_on(&mut self, client: ClientId) {
        let Some(tick) = &mut self.clients[client].ticks.stalled else { return };
        let now = tick.tick.now();
        let mut events = Vec::new();
        tick.tick.for_each(|event, request| events.push((event, request)));
        for (event, request) in events {
            // A test made up this answer, so no connection carried it.
            let is_made_up = request.is_some() && matches!(event, Event::Answered { .. });
            if !is_made_up {
                self.note_event(client, &event);
            }
            self.tell(client, event, now);
        }
        // No effect kills its client today. This check remains, because a dead client must not send.
        if !self.clients[client].life.alive {
            return;
        }
        self.note(&Fact::TickOver { client });
        self.clients[client].ticks.stalled = None;
        for node in 0..self.servers.len() {
            self.send_waiting(client, node);
        }
        let arrivals = &self.clients[client].arrivals;
        if !arrivals.answered.is_empty() || !arrivals.requests.is_empty() {
            self.wake(client);
        }
        self.set_timer(client);
    }

    /// Plans to wake the driver when its boot clock shows the engine's deadline.
    pub(crate) fn set_timer(&mut self, client: ClientId) {
        let client_state = &mut self.clients[client];
        client_state.ticks.timer += 1;
        let number = client_state.ticks.timer;
        if let Some(at) = client_state.engine.deadline() {
            let when = client_state.machine.boot.when(at.as_nanos());
            // A stopped clock never shows the deadline. `Clock::when` then returns a time beyond this bound.
            if when < i64::MAX / 4 {
                self.plan_at(when, SimEvent::Timer(client, number));
            }
        }
    }

    fn tell(&mut self, client: ClientId, event: Event, now: Reading) {
        let (mut effects, mut drawn) = (Vec::new(), Vec::new());
        let shadow = self.shadow(client, &event);
        let answered = match &event {
            Event::Answered { node, .. } => Some(*node),
            _ => None,
        };
        let (tokens, by_hand) = (&mut self.random.tokens, &mut self.by_hand);
        let mut words = Vec::new();
        let mut entropy = |lock| {
            let (token, word) = (Token::new(tokens.bytes()), tokens.word());
            let word = by_hand.as_mut().map_or(word, |by_hand| by_hand.word());
            drawn.push((lock, token));
            words.push((token, word));
            (token, word)
        };
        self.clients[client].engine.handle(event, now, &mut entropy, &mut effects);
        if let Some(shadow) = shadow {
            shadow.check(now, words, &self.clients[client].engine, &effects);
        }
        self.note_round_trip(client, answered);
        self.carry_out_all(client, &effects, drawn.clone());
        for (lock, _) in drawn {
            self.stand_still_before_answers(client, lock);
        }
    }

    /// Notes the round trip to a node that has answered, as the library's driver does.
    fn note_round_trip(&mut self, client: ClientId, answered: Option<NodeId>) {
        let (Client { engine, transports, .. }, Some(node)) = (&mut self.clients[client], answered)
        else {
            return;
        };
        if let Some(round_trip) = engine.round_trip(node) {
            transports[node.index()].note_round_trip(round_trip, self.plan.wiring.silence);
        }
    }

    /// Simulates the worst client of the Redlock paper: it sends its requests and is paused before it reads the
    /// answers. When the client continues, all answers are in its sockets, and hardly anything is left of the lock's
    /// validity. In plans with small jumps of wall clocks (`later.small_steps`), 4 % of the attempts do this.
    fn stand_still_before_answers(&mut self, client: ClientId, lock: LockId) {
        if !self.plan.later.small_steps || self.progress.healing || !self.random.later.percent(4) {
            return;
        }
        let Some(timing) = self.watch.ledger.request(client, lock).map(|request| request.timing)
        else {
            return;
        };
        let longest = (timing.term().saturating_sub(timing.margin())).as_nanos() as Time;
        let span = longest - self.random.later.between(0, self.plan.load.max_ttl / 12);
        self.record.counts.add(Count::StillBeforeAnswers);
        self.plan_in(US, SimEvent::Mend(Mend::Pause(client, span.max(US))));
    }

    /// Kills a client's process. Its locks are not released; their keys stay on the nodes until they expire.
    pub(crate) fn kill_client(&mut self, client: ClientId) {
        let client_state = &mut self.clients[client];
        client_state.life.alive = false;
        client_state.life.deferred.clear();
        client_state.ticks.stalled = None;
        let wires: Vec<usize> = client_state.transports.iter().flat_map(Transport::wires).collect();
        for wire in wires {
            self.give_up_wire(wire);
        }
        self.watch.guards.remove_all_of(client);
    }

    /// A number for the lock of a new call. No other call of this client has it.
    pub(crate) fn new_lock(&mut self, client: ClientId) -> LockId {
        let client_state = &mut self.clients[client];
        client_state.locks += 1;
        LockId(client_state.locks)
    }
}
