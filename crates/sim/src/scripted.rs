//! A scripted world, for tests of the engine: what callers, nodes and connections do is said step by step, and what
//! comes of it is the same every time. Model nodes, guards, ledger and invariants are the simulator's.
//!
//! A link carries each command by itself, and its time of sending is when the engine gave it out: no pipeline,
//! session or supervisor stands between. What a client is told, it is told at once.

pub mod asking;
mod guarded;
mod links;
mod nodes;
mod rules;
mod shadow;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

use quorlock_core::{
    Answer, Effect, Engine, Event, LockId, Quorum, Reading, Request, Ticket, TicketedCommand,
    Token, Value,
};

use self::guarded::{Guarded, Says};
use self::links::{ScriptedLink, Step, Wires};
use crate::checker::{Checker, Moment};
use crate::count::Counts;
use crate::driver::Driver;
use crate::evidence_log::EvidenceLog;
use crate::fact::{ClientId, Fact, NodeIndex};
use crate::guard::{GuardId, Guards};
use crate::invariants::{Invariants, nothing_left};
use crate::ledger::{Drift, Ledger};
use crate::node::{Kind, ModelNode};
use crate::plan::Outside;
use crate::time::{Clock, MS, Time};
use crate::view::{Surroundings, Terms};

/// What the wall clocks show at the start.
pub const EPOCH: Time = 1_000_000 * MS;

/// From a client to a node, or back, in milliseconds, unless set otherwise.
pub const ONE_WAY: i64 = 1;

/// An answer that a client has got.
#[derive(Clone, Debug)]
pub struct Delivered {
    /// Who got it.
    pub client: usize,
    /// Of which node.
    pub node: usize,
    /// When the command was sent.
    pub sent: Reading,
    /// What was answered.
    pub ticket: Ticket,
    /// What was said.
    pub answer: Answer,
}

impl fmt::Debug for ScriptedWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("now", &self.now).finish_non_exhaustive()
    }
}

/// Clients (one engine each, and its guards), model nodes, and between each two of them a connection that keeps
/// order.
pub struct ScriptedWorld {
    /// The true time.
    pub now: Time,
    /// The engines, by client.
    pub engines: Vec<Engine>,
    /// What a test sets.
    pub settings: Settings,
    /// What engines have said: when, in milliseconds, which client's, and what.
    pub log: Vec<(i64, usize, Effect)>,
    /// The counters that were raised for fences.
    pub raising: Raising,
    quorum: Quorum,
    nodes: Vec<Node>,
    wires: Wires,
    witness: Witness,
    calls: Calls,
    /// Clients look at what nodes say of themselves.
    guarded: Option<Guarded>,
}

/// What a test sets in its world.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The random word for every delay; `None`: a different one each time.
    pub jitter: Option<u64>,
    /// What nodes have answered so far, if answers are to come a second time.
    pub history: Option<Vec<Delivered>>,
    /// Compares every step with that of a rebased engine.
    pub shadowed: bool,
    /// No node has lost a key before its time, so that no two locks may overlap.
    pub assume_no_loss: bool,
    /// How far the clients' wall clock is ahead of their boot clock.
    wall: Time,
}

/// What nodes were asked to raise their counters to.
#[derive(Clone, Debug, Default)]
pub struct Raising {
    /// How often a fence was shown that had to be raised first, or passed on.
    pub count: usize,
    /// The last of them, by whose value it was and the node.
    to: BTreeMap<(Value, NodeIndex), u64>,
}

/// Checks what happens, and counts it.
struct Witness {
    watch: Checker,
    counts: Counts,
}

/// The calls that tests have made.
#[derive(Default)]
struct Calls {
    /// The client of each lock.
    owners: Vec<usize>,
    /// How many random tokens have been drawn.
    tokens: u64,
    asked: VecDeque<(ClientId, Event)>,
    /// Clients are being told what was asked.
    is_telling: bool,
}

/// A node, and what is odd about it.
struct Node {
    model: ModelNode,
    is_frozen: bool,
    /// A lock can be taken and given back here, and not looked at: the user may not `GET`.
    is_blind: bool,
    says: Says,
}

struct Stage<'a> {
    now: Reading,
    nodes: &'a [Node],
}

impl Surroundings for Stage<'_> {
    fn reading(&self, _: ClientId) -> Reading {
        self.now
    }

    fn tick_reading(&self, _: ClientId) -> Reading {
        self.now
    }

    fn can_look(&self, _: ClientId) -> bool {
        true
    }

    fn node(&self, node: NodeIndex) -> &ModelNode {
        &self.nodes[node].model
    }
}

impl Driver for ScriptedWorld {
    fn note(&mut self, fact: &Fact<'_>) {
        let now = self.reading();
        let may_overlap = match &self.guarded {
            Some(guarded) => guarded.may_overlap,
            None => !self.settings.assume_no_loss,
        };
        let guarded = self.guarded.as_ref();
        let terms = Terms {
            outside: may_overlap.then_some(Outside::Losses),
            quarantine: guarded.map_or(0, |it| it.quarantine),
            durable: guarded.map_or(&[], |it| &it.durable),
            ..Terms::sound(self.quorum)
        };
        let around = &Stage { now, nodes: &self.nodes };
        let moment = Moment { now: self.now, reading: Some(now), terms, around };
        let verdict = self.witness.watch.note(fact, moment, &mut self.witness.counts, |_, _| {});
        if let Err(violation) = verdict {
            panic!("{violation}");
        }
    }

    fn guards(&mut self) -> &mut Guards {
        &mut self.witness.watch.guards
    }

    fn ledger(&self) -> &Ledger {
        &self.witness.watch.ledger
    }

    fn reading(&self, _: ClientId) -> Reading {
        self.reading()
    }

    fn begun(&mut self, client: ClientId, lock: LockId, token: Token) {
        let round_trip = self.engines[client].quorum_round_trip();
        self.note(&Fact::Begun { client, lock, token, round_trip });
    }

    fn order(&mut self, client: ClientId, node: NodeIndex, (ticket, command): TicketedCommand) {
        self.check_order(client, node, ticket, &command);
        self.send(client, node, ticket, command);
    }

    fn ask(&mut self, client: ClientId, event: Event) {
        self.calls.asked.push_back((client, event));
    }

    /// It is looked at for as long as the world exists.
    fn forget(&mut self, _: GuardId) {}

    fn carried_out(&mut self, client: ClientId, effect: &Effect) {
        match effect {
            Effect::Acquired { lock, .. } => self.granted(GuardId { client, lock: *lock }),
            Effect::Changed { lock, .. } => {
                let given_back = self.guard(*lock).given_back;
                assert!(!given_back, "what is given back does not change (S13)");
            }
            Effect::Lost { lock, .. } => {
                assert!(self.find(*lock).is_some(), "only what is held is lost");
            }
            _ => {}
        }
    }
}

impl ScriptedWorld {
    /// One client, `nodes` nodes, a majority.
    ///
    /// # Panics
    /// If there are no nodes.
    pub fn new(nodes: usize) -> Self {
        Self::with(1, Quorum::majority(nodes).expect("there are nodes"))
    }

    /// So many clients, with these nodes.
    pub fn with(clients: usize, quorum: Quorum) -> Self {
        let kind = Kind { expires_at_once: true, deletes_natively: false, pushes: true };
        let node = || Node {
            model: ModelNode::new(Clock::new(EPOCH, 0), kind),
            is_frozen: false,
            is_blind: false,
            says: Says::default(),
        };
        let links = || std::iter::repeat_with(ScriptedLink::new).take(quorum.nodes()).collect();
        let mut world = Self {
            now: 0,
            engines: vec![idle(quorum); clients],
            settings: Settings {
                jitter: Some(0),
                history: None,
                shadowed: false,
                assume_no_loss: true,
                wall: EPOCH,
            },
            log: Vec::new(),
            raising: Raising::default(),
            quorum,
            nodes: std::iter::repeat_with(node).take(quorum.nodes()).collect(),
            wires: Wires {
                links: std::iter::repeat_with(links).take(clients).collect(),
                asleep_until: vec![0; clients],
                orphans: VecDeque::new(),
                has_orphans: false,
            },
            witness: Witness {
                watch: Checker::new(
                    Ledger::new(quorum, Drift::default(), EvidenceLog::default()),
                    Invariants::new(quorum.nodes(), None),
                ),
                counts: Counts::default(),
            },
            calls: Calls::default(),
            guarded: None,
        };
        (0..clients).for_each(|client| world.note(&Fact::Started { client }));
        world
    }

    // What callers do.

    /// The first client's caller wants a lock.
    pub fn acquire(&mut self, request: Request) -> LockId {
        self.acquire_by(0, request)
    }

    /// Somebody wants a lock.
    pub fn acquire_by(&mut self, client: usize, request: Request) -> LockId {
        let lock = LockId(self.calls.owners.len() as u64);
        self.calls.owners.push(client);
        self.tell(client, Event::Acquire { lock, request });
        lock
    }

    /// Acquires and waits until the lock is held.
    ///
    /// # Panics
    /// If it never is.
    pub fn hold(&mut self, request: Request) -> LockId {
        let lock = self.acquire(request);
        while self.find(lock).is_none() {
            assert!(self.step(i64::MAX), "the lock is never granted");
        }
        lock
    }

    /// The caller does not want it any more.
    pub fn cancel(&mut self, lock: LockId) {
        self.tell(self.owner(lock), Event::Cancel { lock });
    }

    /// Gives a lock back, perhaps a second time.
    pub fn release(&mut self, lock: LockId, report: bool) {
        let guard = GuardId { client: self.owner(lock), lock };
        if self.guard(lock).given_back {
            return self.tell(guard.client, Event::Release { lock, report });
        }
        self.give_back(guard, report);
        self.tell_all();
    }

    /// An engine is told something, and what comes of it is done.
    pub fn tell(&mut self, client: usize, event: Event) {
        self.ask(client, event);
        self.tell_all();
    }

    fn tell_all(&mut self) {
        if std::mem::replace(&mut self.calls.is_telling, true) {
            return;
        }
        while let Some((client, event)) = self.calls.asked.pop_front() {
            self.tick(client, event);
        }
        self.calls.is_telling = false;
    }

    fn tick(&mut self, client: ClientId, event: Event) {
        match &event {
            Event::Acquire { lock, request } => {
                self.note(&Fact::Wanted { client, lock: *lock, request });
            }
            Event::Cancel { lock } => self.note(&Fact::Cancelled { client, lock: *lock }),
            _ => {}
        }
        self.note(&Fact::Tick { client });
        self.note_event(client, &event);
        let now = self.reading();
        let waking = event == Event::Wake;
        let (mut effects, mut drawn) = (Vec::new(), Vec::new());
        let before = self.settings.shadowed.then(|| (self.engines[client].clone(), event.clone()));
        let (tokens, jitter) = (&mut self.calls.tokens, self.settings.jitter);
        let mut entropy = |lock| {
            *tokens += 1;
            let mut token = [0; Token::BYTES];
            token[..8].copy_from_slice(&tokens.to_be_bytes());
            let word = jitter.unwrap_or(tokens.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            drawn.push((lock, Token::new(token), word));
            (Token::new(token), word)
        };
        self.engines[client].handle(event, now, &mut entropy, &mut effects);
        if let Some((before, event)) = before {
            let drawn = drawn.iter().map(|(_, token, word)| (*token, *word)).collect();
            shadow::check((&before, &event, now), drawn, &self.engines[client], &effects);
        }
        let deadline = self.engines[client].deadline();
        assert!(
            !waking || deadline.is_none_or(|at| at > now.boot()),
            "a deadline that has come is dealt with: {deadline:?} at {now:?}"
        );
        self.log.extend(effects.iter().map(|effect| (self.now / MS, client, effect.clone())));
        let begun = drawn.into_iter().map(|(lock, token, _)| (lock, token)).collect();
        self.carry_out_all(client, &effects, begun);
        if self.engines[client].has_attempt_to_begin() {
            self.calls.asked.push_front((client, Event::Wake));
        }
        // What is due is dealt with when the engine is told of the time.
        if !self.engines[client].is_due(now) {
            self.note(&Fact::TickOver { client });
        }
    }

    /// The client's process stands still: nothing is delivered to it, no timer fires.
    pub fn sleep(&mut self, client: usize, ms: i64) {
        self.wires.asleep_until[client] = self.now + ms * MS;
    }

    /// The clients' wall clocks are set.
    pub fn step_wall(&mut self, ms: i64) {
        self.settings.wall += ms * MS;
    }

    // Time.

    /// What all clients' clocks show.
    pub const fn reading(&self) -> Reading {
        Reading::new(self.now, self.now + self.settings.wall)
    }

    /// Runs for so many milliseconds.
    pub fn run_for(&mut self, ms: i64) {
        self.run_until(self.now / MS + ms);
    }

    /// Runs until so many milliseconds after the start.
    pub fn run_until(&mut self, ms: i64) {
        while self.step(ms * MS) {}
        self.now = ms * MS;
        self.look();
    }

    /// Runs until nothing is under way and no timer is set.
    ///
    /// # Panics
    /// If that takes ten minutes.
    pub fn settle(&mut self) {
        let bound = self.now + 600_000 * MS;
        while self.step(bound) {}
        for engine in &self.engines {
            assert_eq!(engine.deadline(), None, "it never comes to rest: {engine:#?}");
        }
    }

    /// One step, if there is one by `limit`.
    fn step(&mut self, limit: Time) -> bool {
        let Some((due, step)) = self.next_step().filter(|(due, _)| *due <= limit) else {
            return false;
        };
        self.now = due;
        self.look();
        match step {
            Step::Orphan => {
                if let Some((_, node, (client, ticket, command))) = self.wires.orphans.pop_front() {
                    self.execute((client, true), node, ticket, &command);
                    self.wires.has_orphans = true;
                }
            }
            Step::Request(client, node) => self.request(client, node),
            Step::Push(client, node) => self.pushed(client, node),
            Step::Reply(client, node) => self.reply(client, node),
            Step::Deadline(client) => self.tell(client, Event::Wake),
        }
        true
    }

    /// Drops every guard, mends everything, and shows that nothing is left: no key of ours on any
    /// node (unless an orphan was set free), no record, no deadline, no place in a queue.
    ///
    /// # Panics
    /// If something is left.
    pub fn finish(&mut self) {
        self.wires.asleep_until.fill(0);
        for node in 0..self.nodes.len() {
            self.refuse(node, None);
            self.freeze(node, false);
            self.mute(node, false);
            self.set_one_way(node, ONE_WAY);
            self.up(node);
        }
        for lock in 0..self.calls.owners.len() as u64 {
            self.cancel(LockId(lock));
        }
        let held: Vec<LockId> = self.witness.watch.guards.iter().map(|(id, _)| id.lock).collect();
        for lock in held {
            self.release(lock, false);
        }
        self.settle();
        for client in 0..self.engines.len() {
            // It owes nothing.
            self.note(&Fact::Drained { client });
        }
        for node in self.nodes.iter().filter(|_| !self.wires.has_orphans) {
            let left = nothing_left::first(&node.model, &self.witness.watch.ledger, self.now);
            assert_eq!(left, None, "a key is left behind");
        }
        for client in 0..self.engines.len() {
            let lock = self.acquire_by(client, asking::once("afterwards"));
            self.run_for(3 * ONE_WAY);
            self.release(lock, false);
            self.settle();
            self.now += 60_000 * MS;
            let engine = self.engines[client].rebased(self.reading(), 0).0;
            assert_eq!(engine, idle(self.quorum), "something has leaked");
        }
    }
}

/// What the names of counters begin with.
const COUNTERS: &str = "fence of ";

/// An engine with nothing in it, which knows how far the nodes are.
fn idle(quorum: Quorum) -> Engine {
    Engine::new(quorum).with_fixed_round_trip(Duration::from_millis(2 * ONE_WAY.unsigned_abs()))
}
