//! A simulated world that an engine test controls: the test sets each step of callers, nodes and connections. The
//! result is the same every time.
//!
//! Ticks, pipelines, sessions, nodes, guards and invariants are those of the simulator's random runs. In place of
//! random numbers, the test sets all durations, makes and breaks connections, and holds messages back. There is no
//! supervisor. A driver begins its tick as soon as it has input.

pub mod asking;
mod guarded;
mod links;
mod nodes;
mod rules;
mod shadow;

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use quorlock_core::{
    Command, Effect, Engine, Event, LockId, Quorum, Reading, Request, RestartGuard, Rules, Value,
};

use self::guarded::Says;
use self::links::HeldBack;
pub(crate) use self::shadow::Shadow;
use crate::client::{Client, Transport};
use crate::driver::Driver;
use crate::fact::{ClientId, Fact};
use crate::guard::GuardId;
use crate::invariants::nothing_left;
use crate::network::Way;
use crate::node::{Kind, ModelNode};
use crate::plan::{Outside, Plan};
use crate::time::{Clock, MS, Machine, Time};
use crate::world::{SimEvent, World};

/// The time on all wall clocks at the start.
pub const EPOCH: Time = 1_000_000 * MS;

/// Default delay from a client to a node, or back, in milliseconds.
pub const ONE_WAY: i64 = 1;

/// The settings and records of a world that a test controls.
#[derive(Debug)]
pub(crate) struct ByHand {
    /// The random number that every attempt gets for its delays; `None` gives each attempt a different number.
    jitter: Option<u64>,
    words: u64,
    /// Repeats each step on a copy of the engine with shifted times, and checks that the results agree.
    is_shadowed: bool,
    /// The effects (outputs) of all engines: the time in milliseconds, the client, and the effect.
    log: Vec<(i64, usize, Effect)>,
    held_back: Vec<Vec<HeldBack>>,
    /// The delay with which commands still arrive after their connection broke; `None` loses such commands.
    pub(crate) orphans_after: Option<Time>,
    /// Nodes refuse `GET`, as for a user without the right to read, but still set and delete locks.
    is_blind: bool,
    says: Vec<Says>,
    is_guarded: bool,
}

/// Clients with one engine each, model nodes, and an ordered connection between each client and each node.
pub struct ScriptedWorld {
    world: World,
    owners: Vec<ClientId>,
    asleep_until: Vec<Time>,
    /// Per node: whether its process is paused (`frozen`), and whether its answers are held back (`mute`).
    frozen: Vec<bool>,
    mute: Vec<bool>,
    parked: Vec<SimEvent>,
    /// A node has carried out a command that arrived after its connection had broken.
    has_orphans: bool,
    /// The answers that clients got from nodes, each as an event.
    history: Vec<(ClientId, Event)>,
}

impl fmt::Debug for ScriptedWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("now", &self.world.now).finish_non_exhaustive()
    }
}

impl World {
    pub(crate) fn by_hand(&self) -> &ByHand {
        self.by_hand.as_deref().expect("a test drives it")
    }

    pub(crate) fn by_hand_mut(&mut self) -> &mut ByHand {
        self.by_hand.as_deref_mut().expect("a test drives it")
    }

    pub(crate) fn carried_out_by_hand(&mut self, client: ClientId, effect: &Effect) {
        let entry = (self.now / MS, client, effect.clone());
        self.by_hand_mut().log.push(entry);
        self.check_effect(client, effect);
    }

    /// Copies the engine before a step, if the test wants each step repeated with shifted times.
    pub(crate) fn shadow(&self, client: ClientId, event: &Event) -> Option<Shadow> {
        let is_shadowed = self.by_hand.as_ref().is_some_and(|by_hand| by_hand.is_shadowed);
        is_shadowed.then(|| Shadow::new(&self.clients[client].engine, event))
    }
}

impl ByHand {
    pub(crate) fn word(&mut self) -> u64 {
        self.words += 1;
        self.jitter.unwrap_or(self.words.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

impl ScriptedWorld {
    /// Creates one client and `nodes` nodes. A quorum is a majority.
    ///
    /// # Panics
    /// If there are no nodes.
    pub fn new(nodes: usize) -> Self {
        Self::with(1, Quorum::majority(nodes).expect("there are nodes"))
    }

    /// Creates a world with these clients and nodes.
    pub fn with(clients: usize, quorum: Quorum) -> Self {
        let mut it = Self::without_clients(Plan::by_hand(quorum, RestartGuard::Off));
        (0..clients).for_each(|_| _ = it.join_with(idle(quorum)));
        it
    }

    fn without_clients(plan: Plan) -> Self {
        let nodes = plan.servers.quorum.nodes();
        let mut world = World::new(plan, false);
        let kind = Kind { expires_at_once: true, deletes_natively: false, pushes: true };
        for server in &mut world.servers {
            server.node = ModelNode::new(Clock::new(EPOCH, 0), kind);
        }
        world.network.ways = Some(Vec::new());
        world.by_hand = Some(Box::new(ByHand {
            jitter: Some(0),
            words: 0,
            is_shadowed: false,
            log: Vec::new(),
            held_back: Vec::new(),
            orphans_after: None,
            is_blind: false,
            says: std::iter::repeat_with(Says::default).take(nodes).collect(),
            is_guarded: world.plan.guard != RestartGuard::Off,
        }));
        Self {
            world,
            owners: Vec::new(),
            asleep_until: Vec::new(),
            frozen: vec![false; nodes],
            mute: vec![false; nodes],
            parked: Vec::new(),
            has_orphans: false,
            history: Vec::new(),
        }
    }

    fn join_with(&mut self, engine: Engine) -> usize {
        let client = self.clients();
        let world = &mut self.world;
        let nodes = world.plan.servers.quorum.node_ids();
        let transports = nodes.map(|node| Transport::new(node, &world.plan)).collect();
        let machine = Machine { boot: Clock::new(0, 0), wall: Clock::new(EPOCH, 0) };
        world.clients.push(Client::new(engine, transports, machine, 0));
        let way = Way { one_way: ONE_WAY * MS, push: None };
        let nodes = world.servers.len();
        world.network.ways.as_mut().expect("by hand").push(vec![way; nodes]);
        let held_back = std::iter::repeat_with(HeldBack::default).take(nodes).collect();
        world.by_hand_mut().held_back.push(held_back);
        self.asleep_until.push(0);
        world.note(&Fact::Started { client });
        (0..nodes).for_each(|node| world.connect_by_hand(client, node, false));
        client
    }

    /// The true time, in nanoseconds.
    pub const fn now(&self) -> Time {
        self.world.now
    }

    /// The engine of a client.
    pub fn engine(&self, client: usize) -> &Engine {
        &self.world.clients[client].engine
    }

    /// The number of clients.
    pub const fn clients(&self) -> usize {
        self.world.clients.len()
    }

    /// The effects of all engines: the time in milliseconds, the client, and the effect.
    pub fn log(&self) -> &[(i64, usize, Effect)] {
        &self.world.by_hand().log
    }

    /// The answers that clients got from nodes, each as an event.
    pub fn history(&self) -> &[(usize, Event)] {
        &self.history
    }

    /// The number of locks with fencing tokens for which the engine had to raise the counter of some nodes before it
    /// granted the lock or handed it over.
    pub fn raised(&self) -> usize {
        let raised = self.log().iter().filter_map(|(.., effect)| match effect {
            Effect::Send { command: Command::Raise { value, .. }, .. } => Some(value.clone()),
            _ => None,
        });
        let raised: BTreeSet<Value> = raised.collect();
        let fenced = self.all_guards().filter(|(_, guard)| guard.fence.is_some());
        fenced.filter(|(_, guard)| raised.contains(&guard.value())).count()
    }

    /// Sets the random number that every attempt gets for its delays; `None` gives each attempt a different number.
    pub fn set_jitter(&mut self, jitter: Option<u64>) {
        self.world.by_hand_mut().jitter = jitter;
    }

    /// From now on, repeats each step on a copy of the engine with shifted times, and checks that the results agree.
    pub fn shadow(&mut self) {
        self.world.by_hand_mut().is_shadowed = true;
    }

    /// From now on, the test may remove data of nodes, and the invariants allow two clients to hold one lock.
    pub fn promise_nothing(&mut self) {
        self.world.plan.outside = Some(Outside::Losses);
    }

    /// A caller of the first client asks for a lock.
    pub fn acquire(&mut self, request: Request) -> LockId {
        self.acquire_by(0, request)
    }

    /// A caller of this client asks for a lock.
    pub fn acquire_by(&mut self, client: usize, request: Request) -> LockId {
        let lock = self.new_lock(client);
        self.world.note(&Fact::Wanted { client, lock, request: &request });
        self.tell(client, Event::Acquire { lock, request });
        lock
    }

    fn new_lock(&mut self, client: usize) -> LockId {
        self.owners.push(client);
        LockId(self.owners.len() as u64 - 1)
    }

    /// Acquires and waits until the lock is held.
    ///
    /// Panics if the lock is never held.
    pub fn hold(&mut self, request: Request) -> LockId {
        let lock = self.acquire(request);
        while self.find(lock).is_none() {
            assert!(self.step(i64::MAX), "the lock is never granted");
        }
        lock
    }

    /// The caller cancels its call.
    pub fn cancel(&mut self, lock: LockId) {
        let client = self.owner(lock);
        self.world.note(&Fact::Cancelled { client, lock });
        self.tell(client, Event::Cancel { lock });
    }

    /// Releases a lock. A test may call this twice.
    pub fn release(&mut self, lock: LockId, report: bool) {
        let guard = GuardId { client: self.owner(lock), lock };
        if self.guard(lock).is_released {
            return self.tell(guard.client, Event::Release { lock, report });
        }
        self.world.release_guard(guard, report);
        self.turn(guard.client);
    }

    /// Passes an event to an engine and carries out the effects.
    pub fn tell(&mut self, client: usize, event: Event) {
        self.world.ask(client, event);
        self.turn(client);
    }

    /// Runs the driver until it has no pending request, and no news about connections.
    fn turn(&mut self, client: ClientId) {
        let is_due = |world: &World| {
            let arrivals = &world.clients[client].arrivals;
            let is_about_connection = |it: &Event| {
                matches!(
                    it,
                    Event::Greeted { .. } | Event::Connecting { .. } | Event::Connected { .. }
                )
            };
            !arrivals.requests.is_empty() || arrivals.answered.iter().any(is_about_connection)
        };
        while is_due(&self.world) {
            self.tick(client);
        }
    }

    fn tick(&mut self, client: ClientId) {
        self.world.tick(client);
        let (due, now) = (self.engine(client).deadline(), self.reading().boot());
        assert!(due.is_none_or(|at| at > now), "what is due is dealt with: {due:?} at {now:?}");
    }

    /// Pauses the client's process: it gets no messages, and its timers do not fire.
    pub fn sleep(&mut self, client: usize, ms: i64) {
        self.asleep_until[client] = self.now() + ms * MS;
    }

    /// Pauses a client for ever.
    pub fn leave(&mut self, client: usize) {
        self.asleep_until[client] = Time::MAX;
    }

    /// Makes the wall clocks of all clients jump.
    pub fn step_wall(&mut self, ms: i64) {
        (0..self.clients()).for_each(|client| self.world.step_wall(client, ms * MS));
    }

    /// The time on all clients' clocks.
    pub fn reading(&self) -> Reading {
        self.world.reading(0)
    }

    /// Runs for this number of milliseconds.
    pub fn run_for(&mut self, ms: i64) {
        self.run_until(self.now() / MS + ms);
    }

    /// Runs until `ms` milliseconds after the start.
    pub fn run_until(&mut self, ms: i64) {
        while self.step(ms * MS) {}
        self.world.now = ms * MS;
        self.world.look();
    }

    /// Runs until `has_come` returns true, and at most until `ms` milliseconds after the start.
    pub fn run_till(&mut self, ms: i64, has_come: impl Fn(&Self) -> bool) {
        while !has_come(self) && self.step(ms * MS) {}
    }

    /// Advances the true time by `ms` milliseconds without handling any event.
    pub fn skip(&mut self, ms: i64) {
        self.world.now += ms * MS;
    }

    /// Runs until no message is in flight and no timer is set.
    ///
    /// # Panics
    /// If an engine still has a timer after ten simulated minutes.
    pub fn settle(&mut self) {
        let bound = self.now() + 600_000 * MS;
        while self.step(bound) {}
        for client in 0..self.clients() {
            let engine = self.engine(client);
            assert_eq!(engine.deadline(), None, "the engine still has a deadline: {engine:#?}");
        }
    }

    fn step(&mut self, limit: Time) -> bool {
        while let Some((at, what)) = self.world.next_by(limit) {
            if self.waits_for_node(&what) {
                self.parked.push(what);
                continue;
            }
            if let Some(client) = self.world.concerns(&what) {
                let awake = self.asleep_until[client];
                if awake > at {
                    if awake < Time::MAX {
                        self.world.plan_at(awake, what);
                    }
                    continue;
                }
            }
            self.world.now = at.max(self.now());
            self.world.look();
            match what {
                // The tick may already have run since this event was planned.
                SimEvent::Tick(client) if self.world.clients[client].ticks.is_due => {
                    self.tick(client);
                }
                SimEvent::Tick(_) => continue,
                _ => {
                    self.has_orphans |= self.is_orphan(&what);
                    self.keep_answers(&what);
                    self.world.happen(what);
                }
            }
            return true;
        }
        false
    }

    /// Ends all faults, drops every guard, and checks that nothing is left: no client's lock on a node (unless a
    /// command from a broken connection set one), and no record, deadline or waiting call in an engine.
    ///
    /// # Panics
    /// If something is left.
    pub fn finish(&mut self) {
        self.asleep_until.fill(0);
        for node in 0..self.node_count() {
            self.refuse(node, None);
            self.freeze(node, false);
            self.mute(node, false);
            self.set_one_way(node, ONE_WAY);
            self.up(node);
        }
        for lock in 0..self.owners.len() as u64 {
            self.cancel(LockId(lock));
        }
        let held: Vec<LockId> = self.all_guards().map(|(lock, _)| lock).collect();
        for lock in held {
            self.release(lock, false);
        }
        self.settle();
        for client in 0..self.clients() {
            self.world.note(&Fact::Drained { client });
        }
        for server in self.world.servers.iter().filter(|_| !self.has_orphans) {
            let left = nothing_left::first(&server.node, &self.world.watch.ledger, self.now());
            assert_eq!(left, None, "a key is left behind");
        }
        for client in 0..self.clients() {
            let lock = self.acquire_by(client, asking::once("afterwards"));
            self.run_for(3 * ONE_WAY);
            self.release(lock, false);
            self.settle();
            self.skip(60_000);
            let engine = self.engine(client).rebased(self.reading(), 0).0;
            assert_eq!(engine, idle(self.quorum()), "something has leaked");
        }
    }

    const fn quorum(&self) -> Quorum {
        self.world.plan.servers.quorum
    }
}

const COUNTERS: &str = "fence of ";

/// The round trip that engines assume.
const ROUND_TRIP: Duration = Duration::from_millis(2 * ONE_WAY.unsigned_abs());

/// An engine with a fixed round trip and no calls.
fn idle(quorum: Quorum) -> Engine {
    Engine::new(quorum).with_fixed_round_trip(ROUND_TRIP)
}

fn guarded(quorum: Quorum, rules: Rules) -> Engine {
    Engine::guarded(quorum, rules).with_fixed_round_trip(ROUND_TRIP)
}
