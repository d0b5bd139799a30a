//! Clients: the turns of the driver.

use quorlock_core::{
    Effect, Engine, Event, Hold, LockId, NodeId, Proof, Reading, RestartGuard, Rules, Step, Token,
    Verb,
};

use super::nodes::WALL;
use super::{Happening, Mend, World};
use crate::client::{Client, Line, Turn};
use crate::count::Count;
use crate::fact::{ClientId, Fact};
use crate::guard::{Guard, GuardId};
use crate::plan::Fault;
use crate::time::{Clock, MS, Machine, SECOND, Time, US};

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
        let engine = Engine::guarded(self.plan.quorum, self.rules_of(id));
        let lines = self.plan.quorum.node_ids().map(|node| Line::new(node, &self.plan)).collect();
        self.clients.push(Client::new(engine, lines, machine, self.plan.callers));
        self.note(&Fact::Started { client: id });
        for node in 0..self.servers.len() {
            self.supervise(id, node);
        }
        for caller in 0..self.plan.callers {
            self.plan_next_wish(id, caller);
        }
        id
    }

    /// By how much a client's clocks run fast, in parts per million.
    pub(crate) fn ppm_of(&self, client: ClientId) -> i64 {
        self.plan.client_ppm[client % self.plan.client_ppm.len()]
    }

    /// What this client measures nodes by.
    fn rules_of(&self, client: ClientId) -> Rules {
        Rules { guard: self.guard_of(client), ..self.rules.clone() }
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
            _ if self.plan.fenced == 0 => drawn,
            _ if self.plan.sober => WALL + self.now + drawn % (2 * MS) - MS,
            0 => WALL + self.now,
            1 => WALL + self.now + drawn % (6 * HOUR) - 2 * HOUR,
            _ => drawn,
        }
    }

    /// There is something for the driver to do.
    pub(crate) fn wake(&mut self, client: ClientId) {
        let (it, random) = (&mut self.clients[client], &mut self.random.clients);
        if it.turn_is_due || it.stalled.is_some() || !it.alive {
            return;
        }
        it.turn_is_due = true;
        let late = if random.percent(5) { random.span(MS) } else { random.between(US, 30 * US) };
        self.plan_in(late, Happening::Turn(client));
    }

    /// Takes in all that has come, and reads the clock.
    pub(crate) fn turn(&mut self, client: ClientId) {
        let stalls = self.plan.has(Fault::Stalls)
            && !self.healing
            && self.random.faults[Fault::Stalls as usize].percent(2);
        let it = &mut self.clients[client];
        it.turn_is_due = false;
        let honest = it.machine.read(self.now);
        it.stalled = Some(Turn { tick: it.arrivals.tick(|| honest), honest });
        self.note(&Fact::Turn { client });
        if stalls {
            let mean = self.plan.ttl_max / 2;
            let span = self.random.faults[Fault::Stalls as usize].span(mean);
            self.counts.add(Count::Stalls);
            self.plan_in(span, Happening::Carry(client));
        } else {
            self.carry_on(client);
        }
    }

    /// Hands everything to the engine and carries out what comes of it.
    pub(crate) fn carry_on(&mut self, client: ClientId) {
        let Some(turn) = &mut self.clients[client].stalled else { return };
        let now = turn.tick.now();
        let steps: Vec<Step<Event>> = turn.tick.steps().collect();
        for step in steps {
            let (Step::Event(event) | Step::Asked(event)) = step;
            self.tell(client, event, now);
        }
        if !self.clients[client].alive {
            return;
        }
        self.note(&Fact::TurnOver { client });
        self.clients[client].stalled = None;
        for node in 0..self.servers.len() {
            self.send_waiting(client, node);
        }
        let arrivals = &self.clients[client].arrivals;
        if !arrivals.answered.is_empty() || !arrivals.asked.is_empty() {
            self.wake(client);
        }
        self.set_alarm(client);
    }

    /// Wakes the driver when the engine's deadline has come by its boot clock.
    pub(crate) fn set_alarm(&mut self, client: ClientId) {
        let it = &mut self.clients[client];
        it.alarm += 1;
        let number = it.alarm;
        if let Some(at) = it.engine.deadline() {
            let when = it.machine.boot.when(at.as_nanos());
            if when < i64::MAX / 4 {
                self.plan_at(when, Happening::Alarm(client, number));
            }
        }
    }

    fn tell(&mut self, client: ClientId, event: Event, now: Reading) {
        match &event {
            Event::Answered { node, sent, answers, proof } => {
                let (node, sent) = (node.index(), *sent);
                if *proof != Proof::Vouched {
                    self.note(&Fact::Proved { client, node, sent, proof });
                }
                for (ticket, answer) in answers {
                    let ticket = *ticket;
                    self.note(&Fact::Told { client, node, sent, ticket, answer });
                }
            }
            Event::Pushed { node, keys } => {
                let key = keys.as_ref().and_then(|keys| keys.first());
                self.note(&Fact::Pushed { client, node: node.index(), key });
            }
            _ => {}
        }
        let (mut effects, mut drawn) = (Vec::new(), Vec::new());
        let tokens = &mut self.random.tokens;
        let mut entropy = |lock| {
            let (token, word) = (Token::new(tokens.bytes()), tokens.word());
            drawn.push((lock, token));
            (token, word)
        };
        self.clients[client].engine.handle(event, now, &mut entropy, &mut effects);
        let mut begun = drawn.clone();
        for effect in effects {
            self.carry_out(client, effect, &mut begun);
        }
        // Those that look before they ask.
        for (lock, token) in begun {
            self.begun(client, lock, token);
        }
        for (lock, _) in drawn {
            self.stand_still_before_answers(client, lock);
        }
    }

    /// Does what the engine says; `begun` are the attempts that have begun meanwhile and have not been noted.
    fn carry_out(&mut self, client: ClientId, effect: Effect, begun: &mut Vec<(LockId, Token)>) {
        match effect {
            Effect::Send { nodes, ticket, command } => {
                let is_its = |(lock, _): &(LockId, Token)| {
                    ticket.verb == Verb::Acquire && *lock == ticket.lock
                };
                if let Some(place) = begun.iter().position(is_its) {
                    let (lock, token) = begun.remove(place);
                    self.begun(client, lock, token);
                }
                for node in nodes.iter().map(NodeId::index) {
                    self.note(&Fact::Ordered { client, node, ticket, command: &command });
                    self.order(client, node, (ticket, command.clone()));
                }
            }
            Effect::Acquired { lock, token, hold, attempts, turn, fence } => {
                let made = (token, turn, fence);
                self.grant(GuardId { client, lock }, made, hold, attempts);
            }
            Effect::NotAcquired { lock, refusal } => {
                self.note(&Fact::NotAcquired { client, lock, refusal: &refusal });
                self.refused(client, lock);
            }
            Effect::Changed { lock, validity } => {
                let guard = GuardId { client, lock };
                let reading = self.clients[client].machine.read(self.now);
                let held = self.guards.of_mut(guard);
                if held.and_then(|held| held.hold.update(validity.clone(), reading)).is_some() {
                    self.tell_end(guard);
                }
                self.note(&Fact::Changed { guard, validity: &validity });
            }
            Effect::Lost { lock, cause } => {
                let guard = GuardId { client, lock };
                self.note(&Fact::Lost { guard, cause });
                if let Some(held) = self.guards.of_mut(guard) {
                    held.told_lost = true;
                    held.hold.lose(cause);
                }
                self.lost(guard);
            }
            Effect::Extended { lock, outcome } => {
                let guard = GuardId { client, lock };
                self.note(&Fact::Extension { guard, outcome: &outcome });
            }
            Effect::Released { lock, report } => {
                let guard = GuardId { client, lock };
                self.note(&Fact::Released { guard, report: &report });
                self.guards.remove(guard);
            }
            Effect::Waiting { lock, .. } => self.note(&Fact::Waiting { client, lock }),
            Effect::Woken { lock } => self.note(&Fact::Woken { client, lock }),
            Effect::TimedOut { node } => {
                self.note(&Fact::TimedOut { client, node: node.index() });
            }
            Effect::Drained => {
                self.clients[client].drained = true;
                self.note(&Fact::Drained { client });
            }
            Effect::Superseded { lock, fence } => {
                self.note(&Fact::Superseded { guard: GuardId { client, lock }, fence });
            }
            Effect::Standing { node, standing } => {
                let node = node.index();
                self.note(&Fact::Standing { client, node, standing: &standing });
            }
            Effect::FloorOfFew { node, .. } => {
                self.counts.add(Count::FewClocks);
                self.note(&Fact::FloorOfFew { client, node: node.index() });
            }
            Effect::Inspected { .. } => {}
        }
    }

    /// An attempt has begun; if it asks at once, its commands follow.
    fn begun(&mut self, client: ClientId, lock: LockId, token: Token) {
        let it = &mut self.clients[client];
        let round_trip = it.engine.quorum_round_trip();
        it.slowest = round_trip.max(it.slowest);
        self.note(&Fact::Begun { client, lock, token, round_trip });
    }

    /// The paper's worst client: it asks, stands still, and goes on with all answers in its sockets when there is
    /// hardly anything left of the lock.
    fn stand_still_before_answers(&mut self, client: ClientId, lock: LockId) {
        if !self.plan.later.small_steps || self.healing || !self.random.later.percent(4) {
            return;
        }
        let Some(timing) = self.ledger.request(client, lock).map(|request| request.timing) else {
            return;
        };
        let most = (timing.term().saturating_sub(timing.margin())).as_nanos() as Time;
        let span = most - self.random.later.between(0, self.plan.ttl_max / 12);
        self.counts.add(Count::StillBeforeAnswers);
        self.plan_in(US, Happening::Mend(Mend::Pause(client, span.max(US))));
    }

    fn grant(&mut self, id: GuardId, made: (Token, u32, Option<u64>), hold: Hold, attempts: u32) {
        let Some(request) = self.ledger.request(id.client, id.lock).cloned() else {
            return self.violated(
                crate::invariants::unique_guards::NAME,
                format!("{id}: nobody has asked for it"),
            );
        };
        let guard = Guard::new(request, made, hold);
        self.guards.insert(id, guard);
        self.note(&Fact::Granted { guard: id, attempts });
        self.granted(id);
    }

    /// Kills a process. What it held nobody gives back.
    pub(crate) fn kill_client(&mut self, client: ClientId) {
        let it = &mut self.clients[client];
        it.alive = false;
        it.deferred.clear();
        it.stalled = None;
        let wires: Vec<usize> = it.lines.iter().filter_map(|line| line.wire).collect();
        for wire in wires {
            self.give_up_wire(wire);
        }
        self.guards.remove_all_of(client);
    }

    /// The lock's number for a new call.
    pub(crate) fn new_lock(&mut self, client: ClientId) -> LockId {
        let it = &mut self.clients[client];
        it.locks += 1;
        LockId(it.locks)
    }
}
