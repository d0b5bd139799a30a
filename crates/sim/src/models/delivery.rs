//! Passes events to the engines of a model, and carries out their effects (the engine's outputs).

use std::collections::BTreeSet;
use std::time::Duration;

use quorlock_core::{
    Answer, Effect, Event, Evidence, Extended, Failure, FailureKind, FailureReason, Keys, LockId,
    LossCause, Mode, NodeId, Reading, RefusalKind, TicketedCommand, Token, TrustState, Verb,
};

use super::bounds::Verbs;
use super::rare_events::Rare;
use super::replica::OLD;
use super::shared::Shared;
use super::steps::Step;
use super::world::{Call, HANDED_OUT, LOCK, ModelWorld, NODES, NOW, SERVERS, token};
use crate::checker::Moment;
use crate::count::Counts;
use crate::driver::Driver;
use crate::fact::{ClientId, Fact, NodeIndex};
use crate::guard::{Guard, GuardId, Guards};
use crate::invariants::{Surroundings, Terms, Violation};
use crate::ledger::Ledger;
use crate::node::ModelNode;

struct Nodes<'a>(&'a [Shared<ModelNode>; SERVERS]);

impl Surroundings for Nodes<'_> {
    fn reading(&self, _: ClientId) -> Reading {
        NOW
    }

    fn tick_reading(&self, _: ClientId) -> Reading {
        NOW
    }

    fn can_check(&self, _: ClientId) -> bool {
        true
    }

    fn node(&self, node: NodeIndex) -> &ModelNode {
        &self.0[node]
    }
}

impl Driver for Step<'_> {
    fn note(&mut self, fact: &Fact<'_>) {
        if let Some(trace) = &mut self.trace
            && !matches!(fact, Fact::TickOver { .. } | Fact::Sent { .. })
        {
            trace.push(fact.to_string());
        }
        let ModelWorld { watch, nodes, .. } = &mut self.world;
        let (terms, around) = (Terms::sound(self.bounds.quorum()), &Nodes(nodes));
        let moment = Moment { now: 0, reading: Some(NOW), terms, around };
        let verdict = watch.change().note(fact, moment, &mut Counts::default(), |_, _| {});
        if let Err(violation) = verdict {
            self.violated(violation);
        }
    }

    fn guards(&mut self) -> &mut Guards {
        &mut self.world.watch.change().guards
    }

    fn ledger(&self) -> &Ledger {
        &self.world.watch.ledger
    }

    fn reading(&self, _: ClientId) -> Reading {
        NOW
    }

    fn order(&mut self, client: ClientId, node: NodeIndex, (ticket, command): TicketedCommand) {
        self.note(&Fact::Sent { client, node, ticket, command: &command });
        let server = self.server(client, node);
        self.greet(client, server);
        let said = match ticket.verb {
            // Without `looks`, inspections fail. To answer them would only multiply the states: they change nothing on
            // the nodes, and the retry delay is fixed.
            Verb::Inspect if !self.bounds.looks => {
                (Answer::Failed(Failure::new(FailureKind::Rejected)), Evidence::NotRequired)
            }
            // Commands about trust take no time, unless the connection has other commands in flight.
            Verb::Trust
                if self.world.links[client][server].is_empty()
                    && !self.bounds.competes(&command) =>
            {
                self.carry_out_proved(client, server, ticket, &command)
            }
            _ => {
                let link = self.world.links[client][server].change();
                return link.commands.push_back((NOW, ticket, command));
            }
        };
        let (node, answers) = (NodeId::new(node), vec![(ticket, said.0)]);
        self.ask(client, Event::Answered { node, sent: NOW, evidence: said.1, answers });
    }

    fn begun(&mut self, client: ClientId, lock: LockId, token: Token) {
        let round_trip = Duration::ZERO;
        self.note(&Fact::Begun { client, lock, token, round_trip });
    }

    fn carried_out(&mut self, client: ClientId, effect: &Effect) {
        match effect {
            Effect::Acquired { attempts, .. } => self.granted(client, *attempts),
            Effect::Detached { detached, .. } => self.detached(client, detached.as_deref()),
            effect => self.witness(client, effect),
        }
    }

    /// Queues an event for the engine of the client that takes this step. Other clients get no events in this step.
    fn ask(&mut self, _: ClientId, event: Event) {
        self.events.push_back(event);
    }
}

impl Step<'_> {
    fn violated(&mut self, violation: Violation) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("!!! {}: {}", violation.invariant, violation.what));
        }
        self.world.violation.get_or_insert(violation.invariant);
    }

    /// Gives the engine an event and carries out its effects, as the driver does.
    pub(super) fn tell(&mut self, client: ClientId, event: Event) {
        self.ask(client, event);
        self.tell_all(client);
    }

    pub(super) fn tell_all(&mut self, client: ClientId) {
        let mut yes = None;
        self.verb = None;
        if let Some(Event::Answered { node, answers, .. }) = self.events.front() {
            self.verb = answers.first().map(|(ticket, _)| ticket.verb);
            let is_yes = answers.iter().any(|(_, answer)| *answer == Answer::Granted);
            yes = is_yes.then_some(*node);
            let is_gone = |answer: &Answer| matches!(answer, Answer::Absent | Answer::Other);
            if self.verb == Some(Verb::Extend) && answers.iter().any(|(_, answer)| is_gone(answer))
            {
                self.seen.add(Rare::ProofOfLoss);
            }
        }
        while let Some(event) = self.events.pop_front() {
            self.note_event(client, &event);
            let mut effects = Vec::new();
            let it = &mut self.world.clients[client];
            let (attempts, mut begun) = (&mut it.attempts, Vec::new());
            let mut entropy = |lock| {
                *attempts += 1;
                begun.push((lock, token(client, *attempts)));
                (token(client, *attempts), 0)
            };
            it.engine.change().handle(event, NOW, &mut entropy, &mut effects);
            self.carry_out_all(client, &effects, begun);
            if self.events.is_empty() && self.world.clients[client].engine.has_attempt_to_begin() {
                self.events.push_back(Event::Wake);
            }
        }
        let trust_state = yes.and_then(|node| self.world.clients[client].engine.trust_state(node));
        if matches!(trust_state, Some(TrustState::Quarantined { .. })) {
            self.seen.add(Rare::Voided);
        }
        self.note(&Fact::TickOver { client });
    }

    fn witness(&mut self, client: ClientId, effect: &Effect) {
        if matches!(effect, Effect::Waiting { .. } | Effect::NotAcquired { .. }) && self.is_split()
        {
            self.seen.add(Rare::Split);
        }
        let rare = match effect {
            Effect::NotAcquired { refusal, .. } => {
                self.world.clients[client].call = Call::Over;
                match refusal.kind {
                    RefusalKind::TooSlow => Rare::TooSlow,
                    RefusalKind::Contended => Rare::Contended,
                    RefusalKind::NodesUntrusted if self.bounds.others.is_some() => Rare::Barred,
                    _ => return,
                }
            }
            Effect::Waiting { report, .. } => match report.why {
                FailureReason::TooSlow => Rare::TooSlow,
                FailureReason::Contended => Rare::Contended,
                FailureReason::NodesUntrusted | FailureReason::NoQuorum => return,
            },
            Effect::Changed { .. } => match self.verb {
                Some(Verb::Acquire) => Rare::LateGrant,
                Some(Verb::Heal) => Rare::Heal,
                _ => return,
            },
            Effect::Lost { cause, .. } => match cause {
                LossCause::Expired => Rare::LostExpired,
                LossCause::KeyGone | LossCause::KeyOverwritten => Rare::LostVotesGone,
                _ => return,
            },
            Effect::Extended { outcome, .. } => match outcome {
                Extended::Confirmed => Rare::Extended,
                Extended::Unconfirmed(_) => Rare::Unconfirmed,
                _ => return,
            },
            _ => return,
        };
        self.seen.add(rare);
    }

    /// Whether the nodes store at least two values other than the detached lock's. Each attach sets its own value.
    fn is_split(&self) -> bool {
        let Some(lease) = &self.world.lease else { return false };
        let values = (0..NODES).filter_map(|node| Some(self.world.stored(node)?.0));
        values.filter(|value| *value != lease.value.as_bytes()).collect::<BTreeSet<_>>().len() > 1
    }

    fn granted(&mut self, client: ClientId, attempts: u32) {
        let id = GuardId { client, lock: LOCK };
        self.world.clients[client].call = Call::Holding;
        self.world.clients[client].held = true;
        self.seen.add(Rare::Grant);
        if let Verbs::Attach { rival } = self.bounds.verbs {
            self.seen.add(match client {
                1 => Rare::FirstAttaches,
                _ if rival == Some(client) => Rare::RivalAcquires,
                _ => Rare::SecondAttaches,
            });
        }
        if self.bounds.is_other(client) {
            self.seen.add(Rare::GrantedToOthers);
        }
        if attempts > 1 {
            self.seen.add(Rare::Retry);
        }
        if self.world.promoted {
            let is_old = self.world.clients[client].server == OLD;
            self.seen.add(if is_old { Rare::GrantedByOld } else { Rare::GrantedByNew });
        }
        let its =
            self.world.watch.guards.of(id).map(|it| (it.request.keys.clone(), it.hold.mode()));
        let excludes = |held: &Guard| {
            let is_other = |(keys, mode): &(Keys, Mode)| {
                held.request.keys.overlaps(keys) && held.hold.mode().excludes(*mode)
            };
            its.as_ref().is_some_and(is_other)
        };
        let valid = |(other, held): &(GuardId, &Guard)| {
            *other != id && held.is_valid(NOW) && excludes(held)
        };
        let other = self.world.watch.guards.iter().find(valid).map(|(other, _)| other);
        if let Some(other) = other.filter(|_| self.bounds.vanishing.is_none()) {
            let what = format!("{id} is granted, and {other} is held");
            self.violated(Violation { invariant: HANDED_OUT, what, at: 0 });
        }
        let mut others = self.world.clients.iter().enumerate().filter(|(it, _)| *it != client);
        if others.any(|(_, it)| it.held) {
            self.seen.add(Rare::InTurn);
        }
        let reads =
            |(_, held): &(GuardId, &Guard)| held.is_valid(NOW) && held.hold.mode() == Mode::Shared;
        if self.world.watch.guards.iter().filter(reads).count() > 1 {
            self.seen.add(Rare::Together);
        }
    }
}
