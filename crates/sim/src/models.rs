//! The engine under a model checker (stateright), with time: every order in which commands, answers,
//! clocks, pauses and faults can interleave, within bounds.
//!
//! What is checked is `quorlock_core::Engine` as it is shipped, between the simulator's model nodes
//! and under the simulator's invariants. Time is counted in ticks and seen from the present (Lamport:
//! real-time model checking is really simple), so that a state is known again whenever it comes.
//!
//! Nodes are alike, so those that carry out the first client's first command are called the first, the
//! second and the third in this order; clients that do the same are alike too.

mod bounds;
mod rare;
mod scenarios;
mod shared;
mod world;

use std::sync::atomic::{AtomicBool, Ordering};

use quorlock_core::{Reading, Verb};
use stateright::{Checker, HasDiscoveries, Model, Property};

use self::bounds::{Bounds, TICK};
use self::rare::{Rare, Witnesses};
pub use self::scenarios::{Found, Scenario, negatives, positives};
use self::world::{CLIENTS, Call, Link, NODES, Pace, Step, World};
use crate::fact::{ClientId, NodeIndex};
use crate::time::Time;

/// A model that can be checked.
struct Timed {
    bounds: Bounds,
    only: Option<&'static str>,
    seen: Witnesses,
    /// A violation has been found: the first one is the nearest.
    failed: AtomicBool,
}

/// What can happen next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Want(ClientId),
    GiveBack(ClientId),
    Look(ClientId),
    Extend(ClientId),
    Execute(ClientId, NodeIndex),
    Zombie(ClientId, NodeIndex),
    Bury(ClientId, NodeIndex),
    Deliver(ClientId, NodeIndex),
    Cut(ClientId, NodeIndex),
    Wake(ClientId),
    /// Begins to stand still, or goes on.
    Pause(ClientId),
    RunFast(NodeIndex),
    Flush(NodeIndex),
    Tick([Pace; CLIENTS]),
}

impl Model for Timed {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.bounds, self.only)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.violation.is_some() {
            return;
        }
        for client in 0..CLIENTS {
            self.client_actions(world, client, actions);
        }
        for node in 0..NODES {
            let Some((_, left)) = world.stored(node) else { continue };
            if left <= Time::from(self.bounds.node_fast) * TICK {
                actions.push(Action::RunFast(node));
            }
            if world.flushes > 0 && is_surplus(world, node) {
                actions.push(Action::Flush(node));
            }
        }
        if self.time_may_pass(world) {
            for first in self.paces(world, 0) {
                for second in self.paces(world, 1) {
                    let odd = [first, second].iter().filter(|pace| apart(**pace)).count();
                    if odd <= usize::from(world.suspends) {
                        actions.push(Action::Tick([first, second]));
                    }
                }
            }
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        Some(self.step(world, action, false).0)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        // Of many violations in one block of states the last would be kept; the first is wanted.
        vec![Property::always("every invariant holds", |model: &Self, world: &World| {
            world.violation.is_none() || model.failed.swap(true, Ordering::Relaxed)
        })]
    }
}

impl Timed {
    /// One step, and line by line what happens in it.
    fn step(&self, world: &World, action: Action, traced: bool) -> (World, Vec<String>) {
        let mut step = Step {
            world: world.clone(),
            bounds: &self.bounds,
            seen: &self.seen,
            trace: traced.then(Vec::new),
        };
        match action {
            Action::Want(client) => step.want(client),
            Action::GiveBack(client) => step.give_back(client),
            Action::Look(client) => step.look(client),
            Action::Extend(client) => step.extend(client),
            Action::Execute(client, node) => step.execute(client, node),
            Action::Zombie(client, node) => step.execute_zombie(client, node),
            Action::Bury(client, node) => step.bury(client, node),
            Action::Deliver(client, node) => step.deliver(client, node),
            Action::Cut(client, node) => step.cut(client, node),
            Action::Wake(client) => step.wake(client),
            Action::Pause(client) => step.pause(client),
            Action::RunFast(node) => step.run_fast(node),
            Action::Flush(node) => step.flush(node),
            Action::Tick(paces) => step.tick(paces),
        }
        step.done()
    }

    fn client_actions(&self, world: &World, client: ClientId, actions: &mut Vec<Action>) {
        let it = &world.clients[client];
        let active = matches!(it.call, Call::Waiting | Call::Holding);
        if it.paused || world.pauses > 0 && active {
            actions.push(Action::Pause(client));
        }
        match it.call {
            _ if it.paused => {}
            Call::NotYet => actions.push(Action::Want(client)),
            Call::Holding => {
                actions.push(Action::GiveBack(client));
                let guard = world.guard(client);
                if let Some(guard) = guard.filter(|guard| guard.ended.is_none()) {
                    if !guard.is_valid(Reading::default()) {
                        actions.push(Action::Look(client));
                    } else if it.extensions < self.bounds.extensions[client] {
                        actions.push(Action::Extend(client));
                    }
                }
            }
            Call::Waiting | Call::Over => {}
        }
        if !it.paused && it.engine.is_due(Reading::default()) {
            actions.push(Action::Wake(client));
        }
        for (node, link) in world.links[client].iter().enumerate() {
            let in_order = self.is_in_order(world, client, node);
            if in_order && !link.commands.is_empty() {
                actions.push(Action::Execute(client, node));
            }
            if !link.answers.is_empty() && !it.paused {
                actions.push(Action::Deliver(client, node));
            }
            if !link.zombies.is_empty() {
                actions.extend([Action::Zombie(client, node), Action::Bury(client, node)]);
            }
            let busy = !link.commands.is_empty() || !link.answers.is_empty();
            if world.breaks > 0 && busy && in_order {
                actions.push(Action::Cut(client, node));
            }
        }
    }

    /// Nodes are alike, and clients may be: they are named by the order in which the first commands
    /// leave their links.
    fn is_in_order(&self, world: &World, client: ClientId, node: NodeIndex) -> bool {
        let first = |link: &Link| {
            let front = link.commands.front();
            front.is_some_and(|(_, ticket, _)| ticket.verb == Verb::Acquire && ticket.round == 1)
        };
        let begun = world.clients[0].attempts > 0 && !first(&world.links[0][0]);
        match client {
            0 => {
                let waits = first(&world.links[0][node]);
                !waits || world.links[0][..node].iter().all(|link| !first(link))
            }
            _ => begun || !self.bounds.alike,
        }
    }

    /// Everything has a bound: nothing that is under way is older, nobody is later.
    fn time_may_pass(&self, world: &World) -> bool {
        let ticks = |ticks: u32| Time::from(ticks) * TICK;
        let young = |sent: &Reading, limit: u32| {
            let age = (-sent.boot().as_nanos()).max(-sent.real_ns());
            age < ticks(limit)
        };
        let Bounds { command_age, answer_age, pause, .. } = self.bounds;
        let links_in_time = (0..CLIENTS).all(|client| {
            let limit = if world.clients[client].paused { pause } else { answer_age };
            world.links[client].iter().all(|link| {
                link.commands.iter().all(|(sent, ..)| young(sent, command_age))
                    && link.answers.iter().all(|(sent, ..)| young(sent, limit))
                    && link.zombies.iter().all(|(sent, ..)| young(sent, answer_age))
            })
        });
        let slow = |client: ClientId| {
            let paused = world.clients[client].paused;
            let slow = |link: &Link| {
                !link.commands.is_empty() || !link.answers.is_empty() && !paused
            };
            world.links[client].iter().filter(|link| slow(link)).count()
        };
        if slow(0) + slow(1) > self.bounds.slow_links {
            return false;
        }
        let clients_in_time = (0..CLIENTS).all(|client| {
            let it = &world.clients[client];
            let late = it.engine.deadline().map_or(-1, |at| -at.as_nanos());
            let lost = world.guard(client).is_some_and(|guard| guard.told_lost);
            // Who does not stand still is in time, and gives back what is lost.
            if it.paused { late < ticks(pause) } else { late < 0 && !lost }
        });
        let busy = world.clients.iter().any(|it| matches!(it.call, Call::Waiting | Call::Holding));
        let all_over = world.clients.iter().all(|it| it.call == Call::Over);
        let keys = (0..NODES).any(|node| world.stored(node).is_some());
        links_in_time && clients_in_time && !all_over && (busy || keys)
    }

    /// How a client's clocks may go now.
    fn paces(&self, world: &World, client: ClientId) -> Vec<Pace> {
        let it = &world.clients[client];
        let mut paces = vec![Pace::Even];
        if matches!(it.call, Call::Waiting | Call::Holding) {
            if self.bounds.client_slow > 0 && it.steady_for == 0 {
                paces.push(Pace::Slow);
            }
            if world.suspends > 0 {
                paces.extend([Pace::BootStops, Pace::WallStops]);
            }
        }
        paces
    }
}

fn apart(pace: Pace) -> bool {
    matches!(pace, Pace::BootStops | Pace::WallStops)
}

/// The protocol promises mutual exclusion while fewer than 2Q − N votes of a holder with exactly Q
/// vanish early; with two of three that is none. What may vanish is the third: all nodes have the
/// same value, and none of the others loses it sooner than this one would have.
fn is_surplus(world: &World, node: NodeIndex) -> bool {
    let Some((value, left)) = world.stored(node) else { return false };
    (0..NODES).all(|other| {
        world.stored(other).is_some_and(|(its, its_left)| its == value && its_left >= left)
    })
}
