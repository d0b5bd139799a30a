//! Explores the engine with a model checker (stateright). Within bounds, this covers every order of commands, answers,
//! pauses and faults, and every pace of the clocks.
//!
//! The model runs `quorlock_core::Engine` as it is shipped, with the simulator's model nodes and invariants. Time is
//! counted in ticks from the present (Lamport: real-time model checking is really simple), so that equal states are
//! recognised.
//!
//! Nodes are interchangeable, and so are clients with the same behaviour. So the model explores only one order in which
//! the nodes carry out the first client's first command, and one order in which such clients begin.

mod bounds;
mod delivery;
mod others;
mod rare_events;
mod replica;
mod scenarios;
mod shared;
mod steps;
mod world;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quorlock_core::{Reading, RestartGuard, Verb};
use stateright::{Checker, HasDiscoveries, Model, Property};

use self::bounds::{Bounds, TICK, Verbs};
use self::rare_events::{Rare, Witnesses};
pub use self::scenarios::{Exploration, SMALL, Scenario, negatives, positives};
use self::steps::Step;
use self::world::{CLIENTS, Call, ModelLink, ModelWorld, NODES, Pace, RESOURCES, SERVERS};
use crate::fact::{ClientId, NodeIndex};
use crate::time::Time;

struct Timed {
    bounds: Bounds,
    only: Option<&'static str>,
    seen: Witnesses,
    /// A violation was found. A breadth-first search finds the shortest trace first, so later violations are ignored.
    failed: AtomicBool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Want(ClientId),
    GiveBack(ClientId),
    CheckGuard(ClientId),
    Extend(ClientId),
    Downgrade(ClientId),
    /// If `fast`, the node's clock has run fast, so the key expires just before the command. No client knows this yet.
    Execute {
        client: ClientId,
        node: NodeIndex,
        fast: bool,
    },
    Zombie(ClientId, NodeIndex),
    Bury(ClientId, NodeIndex),
    Deliver(ClientId, NodeIndex),
    Cut(ClientId, NodeIndex),
    Wake(ClientId),
    Flush(NodeIndex),
    Vanish {
        node: NodeIndex,
        key: usize,
    },
    Restart(NodeIndex),
    /// The replica gets the master's data.
    Replicate,
    Promote,
    /// The client connects to the promoted server, and no longer to the old master.
    Move(ClientId),
    /// A client's `WAIT` times out: the replica has not acknowledged the write.
    Unacknowledged(ClientId),
    /// Time passes. The first array is the pace of each client's clocks, the second marks the clients that are paused.
    Tick([Pace; CLIENTS], [bool; CLIENTS]),
}

impl Model for Timed {
    type State = ModelWorld;
    type Action = Action;

    fn init_states(&self) -> Vec<ModelWorld> {
        let worlds = ModelWorld::all(&self.bounds, self.only);
        if self.bounds.others.is_some() {
            let heard = |world: &ModelWorld| {
                let mut step = self.step_of(world, false);
                step.hear_all();
                step.done().0
            };
            return worlds.iter().map(heard).collect();
        }
        if !self.bounds.attaches() {
            return worlds;
        }
        let detached = |unanswered| {
            let mut step = self.step_of(&worlds[0], false);
            step.detach_first(unanswered);
            step.done().0
        };
        [false, true].map(detached).into()
    }

    fn actions(&self, world: &ModelWorld, actions: &mut Vec<Action>) {
        if world.violation.is_some() {
            return;
        }
        for client in 0..self.bounds.clients {
            self.client_actions(world, client, actions);
        }
        if self.bounds.replica.is_some() {
            self.replica_actions(world, actions);
        }
        for node in 0..SERVERS {
            if world.flushes > 0 && is_surplus(world, node) {
                actions.push(Action::Flush(node));
            }
            if world.restarts > 0 && world.stored(node).is_some() {
                actions.push(Action::Restart(node));
            }
            for (key, name) in RESOURCES.iter().enumerate().filter(|_| world.vanishing > 0) {
                if world.nodes[node].stored(name, 0).is_some() {
                    actions.push(Action::Vanish { node, key });
                }
            }
        }
        for paused in self.pauses(world) {
            for paces in self.all_paces(world) {
                let odd = paces.iter().filter(|pace| apart(**pace)).count();
                if odd <= usize::from(world.suspends) {
                    actions.push(Action::Tick(paces, paused));
                }
            }
        }
    }

    fn next_state(&self, world: &ModelWorld, action: Action) -> Option<ModelWorld> {
        Some(self.step(world, action, false).0)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        // Stateright keeps the last violation of a block of states. To keep the first, this property fails only once.
        vec![Property::always("every invariant holds", |model: &Self, world: &ModelWorld| {
            world.violation.is_none() || model.failed.swap(true, Ordering::Relaxed)
        })]
    }
}

impl Timed {
    /// Takes one step. The second result is the trace of the step, empty unless `traced`.
    fn step(&self, world: &ModelWorld, action: Action, traced: bool) -> (ModelWorld, Vec<String>) {
        let mut step = self.step_of(world, traced);
        match action {
            Action::Want(client) => step.want(client),
            Action::GiveBack(client) => step.give_up(client),
            Action::CheckGuard(client) => step.check_guard(client),
            Action::Extend(client) => step.extend(client),
            Action::Downgrade(client) => step.downgrade(client),
            Action::Execute { client, node, fast } => step.execute(client, node, fast),
            Action::Zombie(client, node) => step.execute_zombie(client, node),
            Action::Bury(client, node) => step.bury(client, node),
            Action::Deliver(client, node) => step.deliver(client, node, self.bounds.acknowledged()),
            Action::Cut(client, node) => step.cut(client, node),
            Action::Wake(client) => step.wake(client),
            Action::Flush(node) => step.flush(node),
            Action::Vanish { node, key } => step.vanish(node, key),
            Action::Restart(node) => step.restart(node),
            Action::Replicate => step.replicate(),
            Action::Promote => step.promote(),
            Action::Move(client) => step.move_on(client),
            Action::Unacknowledged(client) => step.deliver(client, 0, Some(0)),
            Action::Tick(paces, paused) => step.tick(paces, paused),
        }
        step.done()
    }

    fn step_of(&self, world: &ModelWorld, traced: bool) -> Step<'_> {
        Step {
            world: world.clone(),
            bounds: &self.bounds,
            seen: &self.seen,
            trace: traced.then(Vec::new),
            events: VecDeque::new(),
            verb: None,
        }
    }

    fn client_actions(&self, world: &ModelWorld, client: ClientId, actions: &mut Vec<Action>) {
        let it = &world.clients[client];
        match it.call {
            Call::NotYet if client > 0 && self.bounds.in_turn && !world.clients[0].held => {}
            Call::NotYet if self.is_early(world, client) => {}
            Call::NotYet => actions.push(Action::Want(client)),
            Call::Holding => {
                let guard = world.guard(client);
                if guard.is_some_and(|guard| !guard.is_released) {
                    actions.push(Action::GiveBack(client));
                }
                if let Some(guard) = guard.filter(|guard| guard.hold.ended().is_none()) {
                    if !guard.is_valid(Reading::default()) {
                        actions.push(Action::CheckGuard(client));
                    } else {
                        if it.extensions < self.bounds.extensions[client] {
                            actions.push(Action::Extend(client));
                        }
                        if it.downgrades < self.bounds.downgrades[client] {
                            actions.push(Action::Downgrade(client));
                        }
                    }
                }
            }
            Call::Waiting | Call::Over => {}
        }
        // With the restart guard, a client whose call has ended only inspects nodes. This affects no other client, so
        // the model does not explore the deadlines of such a client.
        let done = it.call == Call::Over && self.bounds.guard != RestartGuard::Off;
        if !done && it.engine.is_due(Reading::default()) {
            actions.push(Action::Wake(client));
        }
        for (node, link) in world.links[client].iter().enumerate() {
            let in_order = self.is_in_order(world, client, node);
            if in_order && self.is_open(link) && !link.commands.is_empty() {
                actions.push(Action::Execute { client, node, fast: false });
                let fast = ticks(self.bounds.node_fast);
                if world.stored(node).is_some_and(|(_, left)| left <= fast) {
                    actions.push(Action::Execute { client, node, fast: true });
                }
            }
            if !link.answers.is_empty() && !link.lags {
                actions.push(Action::Deliver(client, node));
            }
            if !link.zombies.is_empty() {
                actions.extend([Action::Zombie(client, node), Action::Bury(client, node)]);
            }
            let busy = !link.commands.is_empty() || !link.answers.is_empty();
            if client == 0 && world.breaks > 0 && busy && in_order {
                actions.push(Action::Cut(client, node));
            }
        }
    }

    /// Whether an interchangeable client with a smaller number must begin before this client. The third client also
    /// begins only when the first client's call is over.
    fn is_early(&self, world: &ModelWorld, client: ClientId) -> bool {
        let call = |client: ClientId| world.clients[client].call;
        let is_in_turn = client == 0
            || call(client - 1) != Call::NotYet && (client == 1 || call(client - 2) == Call::Over);
        self.bounds.alike && self.bounds.verbs != Verbs::Plain && !is_in_turn
    }

    /// Whether this command may leave its link now. Nodes, and clients with the same behaviour, are interchangeable, so
    /// they are numbered in the order in which their first commands leave. Other orders are not explored.
    fn is_in_order(&self, world: &ModelWorld, client: ClientId, node: NodeIndex) -> bool {
        let first = |link: &ModelLink| {
            let front = link.commands.front();
            front.is_some_and(|(_, ticket, _)| ticket.verb == Verb::Acquire && ticket.round == 1)
        };
        let lead = usize::from(self.bounds.attaches());
        let links = &world.links[lead];
        let begun = world.clients[lead].attempts > 0 && !first(&links[0]);
        if client == lead {
            return !first(&links[node]) || links[..node].iter().all(|link| !first(link));
        }
        begun || !self.bounds.alike || self.bounds.modes[client] != self.bounds.modes[0]
    }

    /// Returns the smallest sets of clients that must be paused so that time can pass. Empty if time must not pass.
    fn pauses(&self, world: &ModelWorld) -> Vec<[bool; CLIENTS]> {
        let clients = &world.clients[..self.bounds.clients];
        let busy = clients.iter().any(|it| matches!(it.call, Call::Waiting | Call::Holding));
        let all_over = clients.iter().all(|it| it.call == Call::Over);
        let keys = (0..SERVERS).any(|node| world.has_keys(node));
        if self.bounds.vanishing.is_some() || all_over || !busy && !keys {
            return Vec::new();
        }
        for count in 0..=self.bounds.clients {
            let some = (0..1_usize << self.bounds.clients)
                .filter(|some| some.count_ones() as usize == count)
                .map(|some| std::array::from_fn(|client| some >> client & 1 == 1));
            let some: Vec<_> = some.filter(|paused| self.may_pass(world, *paused)).collect();
            if !some.is_empty() {
                return some;
            }
        }
        Vec::new()
    }

    /// Whether a tick keeps all ages and delays within their bounds.
    fn may_pass(&self, world: &ModelWorld, paused: [bool; CLIENTS]) -> bool {
        let Bounds { command_age, answer_age, pause, slow_links, zombie_age, .. } = self.bounds;
        let age = |sent: &Reading| (-sent.boot().as_nanos()).max(-sent.real_ns());
        let (mut slow, mut newly) = (0, 0);
        for (client, it) in world.clients.iter().enumerate().take(self.bounds.clients) {
            let active = matches!(it.call, Call::Waiting | Call::Holding);
            match (it.paused > 0, paused[client]) {
                (true, false) => return false,
                (false, true) if active => newly += 1,
                (false, true) => return false,
                _ => {}
            }
            let limit = ticks(if paused[client] { pause } else { answer_age });
            for link in &world.links[client] {
                let sets = link.commands.iter().map(|(sent, ..)| (sent, ticks(command_age)));
                let answers = link.answers.iter().map(|(sent, ..)| (sent, limit));
                let zombies = link.zombies.iter().map(|(sent, ..)| (sent, ticks(zombie_age)));
                if sets.chain(answers).chain(zombies).any(|(sent, limit)| age(sent) >= limit) {
                    return false;
                }
                let waits = !link.answers.is_empty() && !paused[client];
                slow += usize::from(!link.commands.is_empty() || waits);
            }
            let done = it.call == Call::Over && self.bounds.guard != RestartGuard::Off;
            let due = it.engine.deadline().filter(|_| !done);
            let late = due.map_or(-1, |at| -at.as_nanos());
            let lost = world.guard(client).is_some_and(|guard| guard.is_lost);
            // Time must not pass while a client that is not paused has a due deadline, or a lost lock to release.
            if !paused[client] && (late >= 0 || lost) || u32::from(it.paused) >= pause {
                return false;
            }
        }
        slow <= slow_links && newly <= usize::from(world.pauses)
    }

    fn all_paces(&self, world: &ModelWorld) -> Vec<[Pace; CLIENTS]> {
        let mut all = vec![[Pace::Even; CLIENTS]];
        for client in 0..self.bounds.clients {
            let paces = self.paces(world, client);
            let with = |one: [Pace; CLIENTS]| {
                paces.iter().map(move |pace| {
                    let mut one = one;
                    one[client] = *pace;
                    one
                })
            };
            all = all.into_iter().flat_map(with).collect();
        }
        all
    }

    fn paces(&self, world: &ModelWorld, client: ClientId) -> Vec<Pace> {
        let it = &world.clients[client];
        let mut paces = vec![Pace::Even];
        if self.bounds.client_slow > 0 && it.steady_for == 0 && self.is_last_tick(world, client) {
            paces.push(Pace::Slow);
        }
        if world.suspends > 0 && matches!(it.call, Call::Waiting | Call::Holding) {
            paces.extend([Pace::BootStops, Pace::WallStops]);
        }
        paces
    }

    /// Whether the client's votes end with the next tick of its clocks. A client's clock may fall behind only in this
    /// tick, where a lag does most harm: it makes all votes last longer. After this tick the lock is over. A lag before
    /// this tick would not affect the votes that the client requests after the lag.
    fn is_last_tick(&self, world: &ModelWorld, client: ClientId) -> bool {
        let age = ticks(self.bounds.ttl - self.bounds.drift - 1);
        match world.clients[client].call {
            Call::NotYet | Call::Over => false,
            Call::Holding => world.guard(client).is_some_and(|guard| {
                let left = guard.hold.validity().remaining(Reading::default());
                !left.is_zero() && left <= Duration::from_nanos(TICK.unsigned_abs())
            }),
            Call::Waiting => world.links[client].iter().any(|link| {
                let commands = link.commands.iter().map(|(sent, ticket, _)| (sent, ticket));
                let answers = link.answers.iter().map(|(sent, ticket, _)| (sent, ticket));
                commands.chain(answers).any(|(sent, ticket)| {
                    ticket.verb == Verb::Acquire && -sent.boot().as_nanos() == age
                })
            }),
        }
    }
}

fn ticks(ticks: u32) -> Time {
    Time::from(ticks) * TICK
}

fn apart(pace: Pace) -> bool {
    matches!(pace, Pace::BootStops | Pace::WallStops)
}

/// Whether the node's vote may vanish. The protocol promises mutual exclusion while fewer than 2Q − N votes of a holder
/// with exactly Q votes vanish early. With Q = 2 of N = 3, none of two votes may vanish. So a vote may vanish only if
/// the holder has a third one: all nodes have the same value, and no other node loses it sooner than this node.
fn is_surplus(world: &ModelWorld, node: NodeIndex) -> bool {
    let Some((value, left)) = world.stored(node) else { return false };
    (0..NODES).all(|other| {
        world.stored(other).is_some_and(|(its, its_left)| its == value && its_left >= left)
    })
}
