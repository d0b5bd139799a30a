//! The state of a model: two clients with the production engine, three model nodes, and what is on
//! its way between them; all seen from the present, so that it is always now.

use std::collections::VecDeque;
use std::time::Duration;

use quorlock_core::{
    Answer, Command, Effect, Engine, Event, Extended, Failure, FailureKind, LockId, LossCause,
    MarkerSeen, NodeId, Proof, Quorum, Reading, RefusalKind, RestartGuard, Standing, Ticket, Token,
    Verb, WhyNot,
};

use quorlock_core::marker::Marker;

use super::bounds::{Bounds, TICK};
use super::rare::{Rare, Witnesses};
use super::shared::Shared;
use crate::count::Counts;
use crate::fact::{ClientId, Fact, Mishap, NodeIndex};
use crate::guard::{Guard, GuardId, Guards};
use crate::invariants::{Invariants, Violation};
use crate::ledger::Ledger;
use crate::node::{Connection, Kind, ModelNode, Run};
use crate::plan::Modes;
use crate::proofs::Proofs;
use crate::time::{Clock, SECOND, Time};
use crate::view::{Surroundings, View};

pub(crate) const NODES: usize = 3;
pub(crate) const CLIENTS: usize = 2;

/// Each client makes one call.
const LOCK: LockId = LockId(0);

/// What they lock.
pub(crate) const RESOURCE: &str = "orders";

/// It is always now.
const NOW: Reading = Reading::new(0, 0);

/// What is new when a lock is handed out: nobody else has one that he may rely on.
pub(crate) const HANDED_OUT: &str = "handed out";

/// Everything there is.
#[derive(Clone, PartialEq, Hash, Debug)]
pub(crate) struct World {
    pub(crate) clients: [Client; CLIENTS],
    pub(crate) nodes: [Shared<ModelNode>; NODES],
    pub(crate) links: [[Shared<Link>; NODES]; CLIENTS],
    pub(crate) watch: Shared<Watch>,
    /// What is left of the budgets.
    pub(crate) flushes: u8,
    pub(crate) vanishing: u8,
    pub(crate) restarts: u8,
    pub(crate) breaks: u8,
    pub(crate) suspends: u8,
    pub(crate) pauses: u8,
    /// The invariant that did not hold. Nothing comes after it.
    pub(crate) violation: Option<&'static str>,
}

#[derive(Clone, PartialEq, Hash, Debug)]
pub(crate) struct Client {
    pub(crate) engine: Shared<Engine>,
    pub(crate) call: Call,
    pub(crate) attempts: u8,
    pub(crate) extensions: u8,
    /// After so many ticks its clock may fall behind again.
    pub(crate) steady_for: u8,
    /// It has held the lock.
    pub(crate) held: bool,
    /// For so many ticks it has stood still.
    pub(crate) paused: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Call {
    NotYet,
    Waiting,
    Holding,
    Over,
}

/// The time of a node, as it says it.
const TIME: &str = "server_time_usec:0\r\n";

/// A command and when it was sent.
pub(crate) type Sent<T> = (Reading, Ticket, T);

/// What is on its way between a client and a node, in order; apart from what was sent on a connection
/// that is dead by now.
#[derive(Clone, Default, PartialEq, Hash, Debug)]
pub(crate) struct Link {
    pub(crate) commands: VecDeque<Sent<Command>>,
    pub(crate) answers: VecDeque<Sent<(Answer, Proof)>>,
    pub(crate) zombies: VecDeque<Sent<Command>>,
    /// The connection, counted, and whether the node has been asked on it what it is.
    pub(crate) epoch: u64,
    pub(crate) greeted: bool,
}

/// What is noted, and held against the invariants that the simulator has too.
#[derive(Clone, PartialEq, Hash, Debug)]
pub(crate) struct Watch {
    pub(crate) guards: Guards,
    pub(crate) ledger: Ledger,
    invariants: Invariants,
}

/// How a client's clocks go in one tick.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pace {
    Even,
    /// Both stand still.
    Slow,
    /// The boot clock stands still: the machine was suspended by its host.
    BootStops,
    /// The wall clock does: it was set back.
    WallStops,
}

impl Pace {
    const fn advance(self) -> Reading {
        match self {
            Self::Even => Reading::new(TICK, TICK),
            Self::Slow => NOW,
            Self::BootStops => Reading::new(0, TICK),
            Self::WallStops => Reading::new(TICK, 0),
        }
    }
}

/// A step of a world.
pub(crate) struct Step<'a> {
    pub(crate) world: World,
    pub(crate) bounds: &'a Bounds,
    pub(crate) seen: &'a Witnesses,
    /// What happens, line by line, if that is wanted.
    pub(crate) trace: Option<Vec<String>>,
}

struct Nodes<'a>(&'a [Shared<ModelNode>; NODES]);

impl Surroundings for Nodes<'_> {
    fn reading(&self, _: ClientId) -> Reading {
        NOW
    }

    fn turn_reading(&self, _: ClientId) -> Reading {
        NOW
    }

    fn can_look(&self, _: ClientId) -> bool {
        true
    }

    fn node(&self, node: NodeIndex) -> &ModelNode {
        &self.0[node]
    }
}

pub(crate) fn quorum() -> Quorum {
    match Quorum::majority(NODES) {
        Ok(quorum) => quorum,
        Err(error) => unreachable!("there are nodes: {error}"),
    }
}

/// An engine for which a round trip takes no time, whatever is observed.
fn engine(rules: quorlock_core::Rules) -> Engine {
    Engine::guarded(quorum(), rules).with_fixed_round_trip(Duration::ZERO)
}

/// The token of a client's attempt.
fn token(client: ClientId, attempt: u8) -> Token {
    Token::new([16 * (client as u8 + 10) + attempt; Token::BYTES])
}

impl World {
    /// The beginnings. `only`: this invariant alone is checked.
    pub(crate) fn all(bounds: &Bounds, only: Option<&str>) -> Vec<Self> {
        match bounds.fresh {
            true => (0..NODES).map(|fresh| Self::new(bounds, only, Some(fresh))).collect(),
            false => vec![Self::new(bounds, only, None)],
        }
    }

    fn new(bounds: &Bounds, only: Option<&str>, fresh: Option<NodeIndex>) -> Self {
        let rules = bounds.rules(NODES, quorum().needed());
        let client = Client {
            engine: Shared::new(engine(rules.clone())),
            call: Call::NotYet,
            attempts: 0,
            extensions: 0,
            steady_for: 0,
            held: false,
            paused: 0,
        };
        // The worst of its kind: a key is gone as soon as it may be.
        let kind = Kind { expires_at_once: true, deletes_natively: false, pushes: false };
        let node = |id: NodeIndex| {
            let mut node = ModelNode::new(Clock::new(0, 0), kind);
            node.run = Run { started_s: -bounds.grown_s(), ..Run::new(id as u64, 0) };
            if fresh == Some(id) {
                node.run = Run::new(id as u64, 0);
            } else if bounds.guard != RestartGuard::Off {
                let (cluster, run_id) = (rules.cluster.clone(), format!("{id:040x}").into());
                let marker = Marker { cluster, run_id, promoted_at: -1, floor: 0 };
                node.set(&rules.marker, Some(marker.to_string().into_bytes()), None, 0);
            }
            Shared::new(node)
        };
        let link = Shared::new(Link::default());
        let watch = Watch {
            guards: Guards::default(),
            ledger: Ledger::new(quorum(), bounds.assumed(), Proofs::new(&rules, Modes::default())),
            invariants: Invariants::new(NODES, only.map(str::to_owned)),
        };
        Self {
            clients: [client.clone(), client],
            nodes: std::array::from_fn(node),
            links: std::array::from_fn(|_| std::array::from_fn(|_| link.clone())),
            watch: Shared::new(watch),
            flushes: bounds.flushes,
            vanishing: bounds.vanishing.unwrap_or(0),
            restarts: bounds.restarts,
            breaks: bounds.breaks,
            suspends: bounds.suspends,
            pauses: bounds.pauses,
            violation: None,
        }
    }

    pub(crate) fn guard(&self, client: ClientId) -> Option<&Guard> {
        self.watch.guards.of(GuardId { client, lock: LOCK })
    }

    /// The value under the key on a node and how much longer the node keeps it.
    pub(crate) fn stored(&self, node: NodeIndex) -> Option<(&[u8], Time)> {
        let stored = self.nodes[node].stored(RESOURCE, 0)?;
        Some((stored.value.as_deref()?, stored.expires_ms? * crate::time::MS))
    }

    fn seal(&mut self) {
        self.clients.iter_mut().for_each(|client| client.engine.seal());
        self.nodes.iter_mut().for_each(Shared::seal);
        self.links.iter_mut().flatten().for_each(Shared::seal);
        self.watch.seal();
    }
}

impl Step<'_> {
    /// The world after the step.
    pub(crate) fn done(mut self) -> (World, Vec<String>) {
        if self.bounds.guard != RestartGuard::Off {
            (0..CLIENTS).for_each(|client| self.forget(client));
        }
        self.world.watch.change().rebase(0, |_| NOW);
        self.world.seal();
        (self.world, self.trace.unwrap_or_default())
    }

    /// Whose call is over, and of whom nothing is under way, is as one who has not come: it would only
    /// look at nodes, and release on nodes that were started again what they have forgotten.
    fn forget(&mut self, client: ClientId) {
        let World { clients, links, watch, .. } = &mut self.world;
        let is_idle = links[client].iter().all(|link| link.is_empty());
        if clients[client].call == Call::Over && is_idle {
            let rules = self.bounds.rules(NODES, quorum().needed());
            *clients[client].engine.change() = engine(rules);
            links[client].iter_mut().for_each(|link| *link.change() = Link::default());
            watch.change().ledger.forget(client);
        }
    }

    fn guard(&mut self, client: ClientId) -> Option<&mut Guard> {
        self.world.watch.change().guards.of_mut(GuardId { client, lock: LOCK })
    }

    fn violated(&mut self, violation: Violation) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("!!! {}: {}", violation.invariant, violation.what));
        }
        self.world.violation.get_or_insert(violation.invariant);
    }

    fn note(&mut self, fact: &Fact<'_>) {
        if let Some(trace) = &mut self.trace
            && !matches!(fact, Fact::TurnOver { .. } | Fact::Sent { .. })
        {
            trace.push(fact.to_string());
        }
        let World { watch, nodes, .. } = &mut self.world;
        let Watch { guards, ledger, invariants } = watch.change();
        ledger.note(fact, Some(NOW));
        let around = &Nodes(nodes);
        let view = View {
            now: 0,
            quorum: quorum(),
            outside: None,
            spare_counters: 0,
            quarantine: 0,
            lasting: &[],
            guards,
            ledger,
            around,
        };
        if let Err(violation) = invariants.check(fact, &view, &mut Counts::default()) {
            self.violated(violation);
        }
    }

    /// A caller wants the lock.
    pub(crate) fn want(&mut self, client: ClientId) {
        self.go_on(client);
        let request = self.bounds.request(client);
        self.world.clients[client].call = Call::Waiting;
        self.note(&Fact::Wanted { client, lock: LOCK, request: &request });
        self.tell(client, Event::Acquire { lock: LOCK, request });
    }

    /// The holder gives the lock back, valid or not: the guard is invalid first (S14).
    pub(crate) fn give_back(&mut self, client: ClientId) {
        self.go_on(client);
        let guard = GuardId { client, lock: LOCK };
        let mut late = false;
        self.world.clients[client].call = Call::Over;
        if let Some(held) = self.guard(client) {
            held.given_back = true;
            held.hold.release();
            late = !held.hold.is_released();
        }
        self.note(&Fact::ReleaseAsked { guard, report: late });
        if !late {
            self.world.watch.change().guards.remove(guard);
        }
        self.tell(client, Event::Release { lock: LOCK, report: late });
    }

    /// The holder looks, and sees the end.
    pub(crate) fn look(&mut self, client: ClientId) {
        self.go_on(client);
        let ran_out = self.guard(client).is_some_and(|held| held.hold.look(NOW).is_some());
        if ran_out {
            let event = self.see_end(client);
            self.tell(client, event);
        }
    }

    fn see_end(&mut self, client: ClientId) -> Event {
        self.note(&Fact::EndSeen { guard: GuardId { client, lock: LOCK } });
        if let Some(held) = self.guard(client) {
            held.run_out = true;
        }
        Event::RunOut { lock: LOCK }
    }

    /// The holder wants the lock extended.
    pub(crate) fn extend(&mut self, client: ClientId) {
        self.go_on(client);
        self.world.clients[client].extensions += 1;
        self.note(&Fact::ExtendAsked { guard: GuardId { client, lock: LOCK } });
        self.tell(client, Event::Extend { lock: LOCK });
    }

    /// A node carries out the next command of a client.
    pub(crate) fn execute(&mut self, client: ClientId, node: NodeIndex, fast: bool) {
        if fast {
            self.run_fast(node);
        }
        let link = self.world.links[client][node].change();
        let Some((sent, ticket, command)) = link.commands.pop_front() else { return };
        let overtakes = !link.zombies.is_empty();
        let answer = self.carry_out_proved(client, node, ticket, &command);
        if overtakes {
            self.seen.add(Rare::Reordered);
        }
        if matches!(ticket.verb, Verb::Release | Verb::Trust) || self.bounds.prompt {
            // To a release: nobody waits for it and nothing depends on it: one order stands for all.
            return self.answer(client, node, (sent, ticket, answer));
        }
        self.world.links[client][node].change().answers.push_back((sent, ticket, answer));
    }

    /// As a batch of its own, with what goes with it.
    fn carry_out_proved(
        &mut self,
        client: ClientId,
        node: NodeIndex,
        ticket: Ticket,
        command: &Command,
    ) -> (Answer, Proof) {
        if self.bounds.guard == RestartGuard::Off {
            return (self.carry_out(client, node, ticket, command, false), Proof::Vouched);
        }
        let link = self.world.links[client][node].change();
        let greeted = std::mem::replace(&mut link.greeted, true);
        let epoch = link.epoch;
        let info = (!greeted || *command == Command::Greet).then(|| self.world.nodes[node].info(0));
        // It is always now, so its time says nothing.
        let info = info.map(|text| text.map(|text| text.replace(TIME, "").into()));
        let answer = self.carry_out(client, node, ticket, command, false);
        let marker = if info.is_some() || command.is_about_votes() {
            let key = self.bounds.rules(NODES, quorum().needed()).marker;
            let by = Connection(client as u64);
            match self.world.nodes[node].change().get(by, &key, 0) {
                Ok(None) => MarkerSeen::Missing,
                Ok(Some(text)) => MarkerSeen::Text(text.into()),
                Err(failure) => MarkerSeen::Failed(failure),
            }
        } else {
            MarkerSeen::NotAsked
        };
        // Its nodes push nothing: it is the harder case.
        (answer, Proof::Seen { epoch, flushes: 0, info, marker })
    }

    /// A node carries out a command of a dead connection.
    pub(crate) fn execute_zombie(&mut self, client: ClientId, node: NodeIndex) {
        let zombie = self.world.links[client][node].change().zombies.pop_front();
        let Some((_, ticket, command)) = zombie else { return };
        if self.carry_out(client, node, ticket, &command, true) == Answer::Granted {
            self.seen.add(Rare::ZombieSet);
        }
    }

    fn carry_out(
        &mut self,
        client: ClientId,
        node: NodeIndex,
        ticket: Ticket,
        command: &Command,
        zombie: bool,
    ) -> Answer {
        let by = Connection(client as u64);
        let answer = &self.world.nodes[node].change().execute(by, command, 0);
        let duplicate = false;
        if matches!(answer, Answer::Raised { .. }) {
            self.seen.add(Rare::Raise);
        }
        if *answer == Answer::Marked {
            self.seen.add(Rare::Adopted);
        }
        let age = -self.world.nodes[node].run.started_s * SECOND;
        let early = age < Time::from(self.bounds.ttl) * TICK / 100 * 101;
        self.note(&Fact::Executed {
            node,
            client,
            ticket,
            command,
            answer,
            zombie,
            duplicate,
            early,
        });
        answer.clone()
    }

    /// A client deals with the next answer of a node.
    pub(crate) fn deliver(&mut self, client: ClientId, node: NodeIndex) {
        self.go_on(client);
        if let Some(answer) = self.world.links[client][node].change().answers.pop_front() {
            self.answer(client, node, answer);
        }
    }

    fn answer(&mut self, client: ClientId, node: NodeIndex, answer: Sent<(Answer, Proof)>) {
        let (sent, ticket, (answer, proof)) = answer;
        let node = NodeId::new(node);
        self.tell(client, Event::Answered { node, sent, proof, answers: vec![(ticket, answer)] });
    }

    /// A connection breaks, and is made again at once. The client is told that everything on it has
    /// failed; what was under way may still arrive, behind what it sends next.
    pub(crate) fn cut(&mut self, client: ClientId, node: NodeIndex) {
        self.seen.add(Rare::Break);
        self.world.breaks -= 1;
        self.note(&Fact::Mishap(Mishap::Reset { client, node }));
        let link = self.world.links[client][node].change();
        let failed = Answer::Failed(Failure::new(FailureKind::Unreachable));
        let answers = std::mem::take(&mut link.answers);
        let commands = std::mem::take(&mut link.commands);
        let answers = answers.into_iter().map(|(sent, ticket, _)| (sent, ticket));
        let lost: Vec<_> =
            answers.chain(commands.iter().map(|(sent, ticket, _)| (*sent, *ticket))).collect();
        link.zombies.extend(commands);
        for (sent, ticket) in lost {
            self.answer(client, node, (sent, ticket, (failed.clone(), Proof::Vouched)));
        }
    }

    /// What was under way on a dead connection gets lost.
    pub(crate) fn bury(&mut self, client: ClientId, node: NodeIndex) {
        self.world.links[client][node].change().zombies.clear();
    }

    /// A node loses its key.
    pub(crate) fn flush(&mut self, node: NodeIndex) {
        self.seen.add(Rare::Flush);
        self.world.flushes -= 1;
        self.world.nodes[node].change().flush();
        self.note(&Fact::Mishap(Mishap::NodeFlushed { node }));
    }

    /// A node's key vanishes; its counter stays.
    pub(crate) fn vanish(&mut self, node: NodeIndex) {
        self.seen.add(Rare::Vanished);
        self.world.vanishing -= 1;
        self.world.nodes[node].change().delete(RESOURCE, 0);
        self.note(&Fact::Mishap(Mishap::KeyDeleted { node }));
    }

    /// A node is killed and started again at once, without its data. What it has answered still arrives;
    /// what it was sent has failed.
    pub(crate) fn restart(&mut self, node: NodeIndex) {
        self.seen.add(Rare::Restarted);
        let valued = self.world.stored(node).map(|(value, _)| value);
        let is_held = self
            .world
            .watch
            .guards
            .iter()
            .any(|(_, guard)| guard.is_valid(NOW) && Some(guard.value().as_bytes()) == valued);
        if is_held {
            self.seen.add(Rare::RestartedHeld);
        }
        self.world.restarts -= 1;
        let it = self.world.nodes[node].change();
        it.crash(false);
        it.run = Run::new(it.run.id + NODES as u64, 0);
        for links in &mut self.world.links {
            let link = links[node].change();
            let failed = Answer::Failed(Failure::new(FailureKind::Unreachable));
            let lost = std::mem::take(&mut link.commands).into_iter();
            let lost =
                lost.map(|(sent, ticket, _)| (sent, ticket, (failed.clone(), Proof::Vouched)));
            link.answers.extend(lost);
            link.epoch += 1;
            link.greeted = false;
        }
        self.note(&Fact::Mishap(Mishap::NodeCrashed { node, keeps_data: false, silent: false }));
        self.note(&Fact::Mishap(Mishap::NodeStarted { node }));
    }

    /// A node's clock has run fast all the time: its key is over now.
    fn run_fast(&mut self, node: NodeIndex) {
        self.seen.add(Rare::FastClock);
        let left = self.world.stored(node).map_or(0, |(_, left)| left);
        self.world.nodes[node].change().rebase(left);
        self.note(&Fact::Mishap(Mishap::NodeStepped { node, by: left }));
    }

    /// The time of a client has come.
    pub(crate) fn wake(&mut self, client: ClientId) {
        self.go_on(client);
        self.tell(client, Event::Wake);
    }

    /// A client's process goes on, if it has stood still.
    fn go_on(&mut self, client: ClientId) {
        if std::mem::take(&mut self.world.clients[client].paused) > 0 {
            self.note(&Fact::Mishap(Mishap::Resumed { client }));
        }
    }

    /// Some clients stand still from now on, with their answers in their sockets.
    fn pause(&mut self, paused: [bool; CLIENTS]) {
        for (client, paused) in paused.into_iter().enumerate() {
            let it = &mut self.world.clients[client].paused;
            *it += u8::from(paused);
            if *it == 1 && paused {
                self.world.pauses -= 1;
                self.seen.add(Rare::Pause);
                self.note(&Fact::Mishap(Mishap::Paused { client, span: TICK }));
            }
        }
    }

    /// Time passes.
    pub(crate) fn tick(&mut self, paces: [Pace; CLIENTS], paused: [bool; CLIENTS]) {
        self.pause(paused);
        let base = |client: ClientId| paces[client].advance();
        if let Some(trace) = &mut self.trace {
            let odd = |client: ClientId| match paces[client] {
                Pace::Even => None,
                Pace::Slow => Some(format!("the clocks of client {client} stand still")),
                Pace::BootStops => Some(format!("the boot clock of client {client} stands still")),
                Pace::WallStops => Some(format!("the wall clock of client {client} stands still")),
            };
            trace.extend((0..CLIENTS).filter_map(odd));
        }
        let again = self.bounds.client_slow;
        for (client, it) in self.world.clients.iter_mut().enumerate() {
            let advance = base(client);
            if advance != NOW {
                let (engine, _) = it.engine.rebased(advance, LOCK.0);
                *it.engine.change() = engine;
            }
            it.steady_for = it.steady_for.saturating_sub(1);
            match paces[client] {
                Pace::Even => {}
                Pace::Slow => {
                    it.steady_for = again;
                    self.seen.add(Rare::SlowClock);
                }
                Pace::BootStops | Pace::WallStops => {
                    self.world.suspends -= 1;
                    self.seen.add(Rare::OneClock);
                }
            }
        }
        for node in &mut self.world.nodes {
            let keys = node.all(0).count();
            if keys > 0 {
                node.change().rebase(TICK);
            }
            if node.run.started_s > -self.bounds.grown_s() {
                node.change().run.started_s -= TICK / SECOND;
            }
            if node.all(0).count() < keys {
                self.seen.add(Rare::KeyExpired);
            }
        }
        for (client, links) in self.world.links.iter_mut().enumerate() {
            let base = base(client);
            for link in links.iter_mut().filter(|link| !link.is_empty()) {
                let link = link.change();
                link.commands.iter_mut().for_each(|(sent, ..)| *sent = sent.shifted(base));
                link.answers.iter_mut().for_each(|(sent, ..)| *sent = sent.shifted(base));
                link.zombies.iter_mut().for_each(|(sent, ..)| *sent = sent.shifted(base));
            }
        }
        self.world.watch.change().rebase(TICK, base);
        if self.bounds.guard != RestartGuard::Off {
            // Who looks at nodes is in time. What nodes say of themselves depends on nothing that others
            // do within a tick, but for a restart, which comes before the tick as well.
            for client in 0..CLIENTS {
                let it = &self.world.clients[client];
                if it.call != Call::Over && it.engine.is_due(NOW) {
                    self.tell(client, Event::Wake);
                }
            }
        }
    }

    /// As the driver does: carries out what comes of an event.
    fn tell(&mut self, client: ClientId, event: Event) {
        if let Event::Answered { node, sent, proof, answers } = &event {
            self.note(&Fact::Proved { client, node: node.index(), sent: *sent, proof });
            for (ticket, answer) in answers {
                let (node, sent, ticket) = (node.index(), *sent, *ticket);
                self.note(&Fact::Told { client, node, sent, ticket, answer });
                if matches!(answer, Answer::Absent | Answer::Other) && ticket.verb == Verb::Extend {
                    self.seen.add(Rare::ProofOfLoss);
                }
            }
        }
        let verb = match &event {
            Event::Answered { answers, .. } => answers.first().map(|(ticket, _)| ticket.verb),
            _ => None,
        };
        let yes = match &event {
            Event::Answered { node, answers, .. } => {
                answers.iter().any(|(_, answer)| *answer == Answer::Granted).then_some(*node)
            }
            _ => None,
        };
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut effects = Vec::new();
            let it = &mut self.world.clients[client];
            let attempts = &mut it.attempts;
            let mut entropy = |_| {
                *attempts += 1;
                (token(client, *attempts), 0)
            };
            it.engine.change().handle(event, NOW, &mut entropy, &mut effects);
            for effect in effects {
                self.carry(client, effect, verb, &mut events);
            }
            if events.is_empty() && self.world.clients[client].engine.has_attempt_to_begin() {
                events.push_back(Event::Wake);
            }
        }
        let standing = yes.and_then(|node| self.world.clients[client].engine.standing(node));
        if matches!(standing, Some(Standing::Quarantined { .. })) {
            self.seen.add(Rare::Voided);
        }
        self.note(&Fact::TurnOver { client });
    }

    fn carry(
        &mut self,
        client: ClientId,
        effect: Effect,
        verb: Option<Verb>,
        events: &mut VecDeque<Event>,
    ) {
        let guard = GuardId { client, lock: LOCK };
        match effect {
            Effect::Send { nodes, ticket, command } => {
                if ticket.verb == Verb::Acquire {
                    let token = token(client, self.world.clients[client].attempts);
                    let (lock, round_trip) = (ticket.lock, Duration::ZERO);
                    self.note(&Fact::Begun { client, lock, token, round_trip });
                }
                for id in nodes.iter() {
                    let (node, command) = (id.index(), &command);
                    self.note(&Fact::Ordered { client, node, ticket, command });
                    self.note(&Fact::Sent { client, node, ticket, command });
                    if ticket.verb == Verb::Inspect {
                        // Looks change nothing on the nodes, and the delay between attempts is given.
                        let answer = Answer::Failed(Failure::new(FailureKind::Rejected));
                        let answers = vec![(ticket, answer)];
                        events.push_back(Event::Answered {
                            node: id,
                            sent: NOW,
                            proof: Proof::Vouched,
                            answers,
                        });
                        continue;
                    }
                    if ticket.verb == Verb::Trust && self.world.links[client][node].is_empty() {
                        // Looks take no time, unless something is before them on the connection.
                        let (answer, proof) = self.carry_out_proved(client, node, ticket, command);
                        self.note(&Fact::Proved { client, node, sent: NOW, proof: &proof });
                        let answers = vec![(ticket, answer)];
                        events.push_back(Event::Answered { node: id, sent: NOW, proof, answers });
                        continue;
                    }
                    let link = self.world.links[client][node].change();
                    link.commands.push_back((NOW, ticket, command.clone()));
                }
            }
            Effect::Acquired { token, hold, attempts, turn, fence, .. } => {
                let request = self.bounds.request(client);
                let guard = Guard::new(request, (token, turn, fence), hold);
                self.granted(client, guard, attempts);
            }
            Effect::NotAcquired { refusal, .. } => {
                self.note(&Fact::NotAcquired { client, lock: LOCK, refusal: &refusal });
                self.world.clients[client].call = Call::Over;
                match refusal.kind {
                    RefusalKind::TooSlow => self.seen.add(Rare::TooSlow),
                    RefusalKind::Contended => self.seen.add(Rare::Contended),
                    _ => {}
                }
            }
            Effect::Waiting { story, .. } => match story.why {
                WhyNot::TooSlow => self.seen.add(Rare::TooSlow),
                WhyNot::Unsafe => {}
                WhyNot::Contended => self.seen.add(Rare::Contended),
                WhyNot::NoQuorum => {}
            },
            Effect::Changed { validity, .. } => {
                let ran_out = self
                    .guard(client)
                    .is_some_and(|held| held.hold.update(validity.clone(), NOW).is_some());
                if ran_out {
                    events.push_back(self.see_end(client));
                }
                self.note(&Fact::Changed { guard, validity: &validity });
                match verb {
                    Some(Verb::Acquire) => self.seen.add(Rare::LateGrant),
                    Some(Verb::Heal) => self.seen.add(Rare::Heal),
                    _ => {}
                }
            }
            Effect::Lost { cause, .. } => {
                self.note(&Fact::Lost { guard, cause });
                if let Some(held) = self.guard(client) {
                    held.told_lost = true;
                    held.hold.lose(cause);
                }
                match cause {
                    LossCause::Expired => self.seen.add(Rare::LostExpired),
                    LossCause::KeyGone | LossCause::KeyOverwritten => {
                        self.seen.add(Rare::LostVotesGone)
                    }
                    _ => {}
                }
            }
            Effect::Extended { outcome, .. } => {
                self.note(&Fact::Extension { guard, outcome: &outcome });
                match outcome {
                    Extended::Confirmed => self.seen.add(Rare::Extended),
                    Extended::Unconfirmed(_) => self.seen.add(Rare::Unconfirmed),
                    _ => {}
                }
            }
            Effect::Released { report, .. } => {
                self.note(&Fact::Released { guard, report: &report });
                self.world.watch.change().guards.remove(guard);
            }
            Effect::TimedOut { node } => {
                self.note(&Fact::TimedOut { client, node: node.index() });
            }
            Effect::Standing { .. }
            | Effect::FloorOfFew { .. }
            | Effect::Superseded { .. }
            | Effect::Inspected { .. }
            | Effect::Woken { .. }
            | Effect::Drained => {}
        }
    }

    fn granted(&mut self, client: ClientId, guard: Guard, attempts: u32) {
        let id = GuardId { client, lock: LOCK };
        self.world.watch.change().guards.insert(id, guard);
        self.world.clients[client].call = Call::Holding;
        self.world.clients[client].held = true;
        self.note(&Fact::Granted { guard: id, attempts });
        self.seen.add(Rare::Grant);
        if attempts > 1 {
            self.seen.add(Rare::Retry);
        }
        let valid = |(other, held): &(GuardId, &Guard)| *other != id && held.is_valid(NOW);
        let other = self.world.watch.guards.iter().find(valid).map(|(other, _)| other);
        if let Some(other) = other.filter(|_| self.bounds.vanishing.is_none()) {
            let what = format!("{id} is handed out, and {other} is held");
            self.violated(Violation { invariant: HANDED_OUT, what, at: 0 });
        }
        if self.world.clients[1 - client].held {
            self.seen.add(Rare::InTurn);
        }
    }
}

impl Watch {
    /// Another origin of time, and what is of no interest any more is forgotten.
    fn rebase(&mut self, by: Time, base: impl Fn(ClientId) -> Reading) {
        self.guards.rebase(&base);
        self.ledger.rebase(&base);
        self.invariants.rebase(by, &base, &self.guards);
    }
}

impl Link {
    pub(crate) fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.answers.is_empty() && self.zombies.is_empty()
    }
}
