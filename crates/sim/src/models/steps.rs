//! The steps that can happen in a model's world: actions of callers and nodes, faults, and the passing of time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::{
    Answer, Command, Detached, DetachedFrom, Entry, EntryOf, Event, Evidence, Failure, FailureKind,
    MarkerSeen, NodeId, Origin, RestartGuard, TakenFrom, Ticket, Verb,
};

use super::bounds::{Bounds, TICK, Verbs};
use super::rare_events::{Rare, Witnesses};
use super::world::{
    CLIENTS, Call, LOCK, ModelLink, ModelWorld, NODES, NOW, Pace, RESOURCES, Sent, engine,
};
use crate::driver::Driver;
use crate::fact::{ClientId, Fact, FaultEvent, NodeIndex};
use crate::guard::GuardId;
use crate::node::{ConnectionId, Run};
use crate::time::{SECOND, Time};

pub(crate) struct Step<'a> {
    pub(crate) world: ModelWorld,
    pub(crate) bounds: &'a Bounds,
    pub(crate) seen: &'a Witnesses,
    pub(crate) trace: Option<Vec<String>>,
    /// Queued events for the engine of the step's client.
    pub(crate) events: VecDeque<Event>,
    /// If the step delivers an answer: the verb of the command that was answered.
    pub(crate) verb: Option<Verb>,
}

/// The line with the node's time in its reply to `INFO`. Models remove it, because their present is always time 0.
const TIME: &str = "server_time_usec:0\r\n";

impl Step<'_> {
    /// Ends the step. Returns the world after it, and the trace.
    pub(crate) fn done(mut self) -> (ModelWorld, Vec<String>) {
        if self.bounds.guard != RestartGuard::Off {
            (0..self.bounds.clients).for_each(|client| self.forget(client));
        }
        self.world.watch.change().rebase(0, |_| NOW);
        self.world.seal();
        (self.world, self.trace.unwrap_or_default())
    }

    /// Resets a client whose call is over and which has nothing in flight: its engine becomes as new. So worlds that
    /// differ only in such a client are one state. This hides nothing: the client would only inspect nodes, and send
    /// releases without effect to nodes that lost its lock in a restart. Neither changes the holders of the lock.
    fn forget(&mut self, client: ClientId) {
        let ModelWorld { clients, links, watch, .. } = &mut self.world;
        let is_idle = links[client].iter().all(|link| link.is_empty());
        if clients[client].call == Call::Over && is_idle {
            *clients[client].engine.change() = engine(self.bounds, client);
            links[client].iter_mut().for_each(|link| *link.change() = ModelLink::default());
            clients[client].server = 0;
            watch.change().ledger.forget(client);
        }
    }

    pub(crate) fn want(&mut self, client: ClientId) {
        self.go_on(client);
        let request = self.bounds.request(client, self.world.lease.as_ref());
        self.world.clients[client].call = Call::Waiting;
        self.note(&Fact::Wanted { client, lock: LOCK, request: &request });
        self.tell(client, Event::Acquire { lock: LOCK, request });
    }

    /// The holder releases the lock, whether it is still valid or not.
    pub(crate) fn give_up(&mut self, client: ClientId) {
        self.go_on(client);
        let guard = GuardId { client, lock: LOCK };
        if matches!(self.bounds.verbs, Verbs::Take { .. }) {
            self.detach(guard);
        } else {
            self.world.clients[client].call = Call::Over;
            self.release_guard(guard, false);
        }
        self.tell_all(client);
    }

    /// The first client acquires the lock and detaches it. If `unanswered`, the connection to the last node breaks, and
    /// the command on it may still arrive.
    pub(crate) fn detach_first(&mut self, unanswered: bool) {
        self.want(0);
        let last = NODES - 1;
        if unanswered {
            self.cut(0, last);
        }
        for node in 0..if unanswered { last } else { NODES } {
            self.execute(0, node, false);
            self.deliver(0, node, None);
        }
        self.detach(GuardId { client: 0, lock: LOCK });
        self.tell_all(0);
        // Without an answer from the last node, the detach ends at the node timeout, so a tick must pass.
        if self.world.lease.is_none() {
            self.tick([Pace::Even; CLIENTS], [false; CLIENTS]);
            self.wake(0);
        }
    }

    /// Handles the engine's report of a detached lock. If the lock is lost instead (`None`), releases the guard.
    pub(super) fn detached(&mut self, client: ClientId, detached: Option<&Detached>) {
        self.world.clients[client].call = Call::Over;
        let Some(Detached { entry, unanswered, .. }) = detached.cloned() else {
            return self.release_guard(GuardId { client, lock: LOCK }, false);
        };
        self.ask(client, Event::Forget { lock: LOCK });
        let (Verbs::Take { by_value }, Origin::Taken(from)) = (self.bounds.verbs, &entry.origin)
        else {
            self.world.lease = Some(DetachedFrom { value: entry.value, unanswered });
            return;
        };
        let origin = Origin::Taken(Arc::new(TakenFrom { by_value, ..(**from).clone() }));
        let timing = self.bounds.request(client, None).timing;
        let (valid_for, entry) = (timing.ttl(), Entry { origin, ..entry });
        let entry = EntryOf { entry, timing, unanswered };
        self.ask(client, Event::ReleaseEntry { lock: LOCK, entry, valid_for });
    }

    /// The holder checks its guard, and finds that the lock has ended.
    pub(crate) fn check_guard(&mut self, client: ClientId) {
        self.go_on(client);
        let guard = GuardId { client, lock: LOCK };
        let held = self.guards().of_mut(guard);
        if held.is_some_and(|held| held.hold.latch_end(NOW).is_some()) {
            self.tell_end(guard);
            self.tell_all(client);
        }
    }

    pub(crate) fn extend(&mut self, client: ClientId) {
        self.go_on(client);
        self.world.clients[client].extensions += 1;
        self.note(&Fact::ExtendAsked { guard: GuardId { client, lock: LOCK } });
        self.tell(client, Event::Extend { lock: LOCK });
    }

    pub(crate) fn downgrade(&mut self, client: ClientId) {
        self.go_on(client);
        self.seen.add(Rare::Downgrade);
        self.world.clients[client].downgrades += 1;
        self.become_reader(GuardId { client, lock: LOCK });
        self.tell_all(client);
    }

    /// A node carries out the next command of a client. If `fast`, the node's clock has run fast, so the lock's key
    /// expires on the node just before the command.
    pub(crate) fn execute(&mut self, client: ClientId, node: NodeIndex, fast: bool) {
        if fast {
            self.run_fast(node);
        }
        let link = self.world.links[client][node].change();
        let Some((sent, ticket, command)) = link.commands.pop_front() else { return };
        // Zombies are commands still in flight on an old connection. This command arrives before them.
        let overtakes = !link.zombies.is_empty();
        let before = self.bounds.replica.map(|_| (*self.world.nodes[node]).clone());
        let answer = self.carry_out_proved(client, node, ticket, &command);
        self.executed(client, node, &command, before);
        if overtakes {
            self.seen.add(Rare::Reordered);
        }
        if matches!(ticket.verb, Verb::Release | Verb::Trust) || self.bounds.prompt {
            // The client gets this answer at once; the model explores no later delivery of it. Nothing waits for the
            // answer to a release. The answer to a command about trust (`INFO`, the marker, or the wait for a new
            // marker) depends only on the node; see `tick`. With `bounds.prompt`, every answer arrives at once.
            return self.answer(client, node, (sent, ticket, answer));
        }
        self.world.links[client][node].change().answers.push_back((sent, ticket, answer));
    }

    /// A node carries out a command as a batch of its own. The answer comes with the evidence of such a batch: the
    /// node's `INFO` and its marker.
    pub(super) fn carry_out_proved(
        &mut self,
        client: ClientId,
        node: NodeIndex,
        ticket: Ticket,
        command: &Command,
    ) -> (Answer, Evidence) {
        if self.bounds.guard == RestartGuard::Off {
            return (self.serve(client, node, ticket, command, false), Evidence::NotRequired);
        }
        let info = (*command == Command::Identify).then(|| self.info(node));
        let answer = self.serve(client, node, ticket, command, false);
        let has_marker = info.is_some() || command.is_about_votes();
        (answer, self.evidence(client, node, info, has_marker))
    }

    /// Identifies the node on a new connection, before the first command is sent there. The greeting takes no time. No
    /// command of a model with the restart guard prolongs a lock without a guard, so the verdict declines none.
    pub(super) fn greet(&mut self, client: ClientId, node: NodeIndex) {
        if self.bounds.guard == RestartGuard::Off || self.world.links[client][node].identified {
            return;
        }
        self.world.links[client][node].change().identified = true;
        let info = Some(self.info(node));
        let evidence = self.evidence(client, node, info, true);
        let connection = self.connection(client, node);
        let (node, round_trip) = (NodeId::new(self.bounds.name(client, node)), Duration::ZERO);
        self.ask(client, Event::Greeted { node, connection, sent: NOW, round_trip, evidence });
    }

    /// The number of the connection, counted from one.
    fn connection(&self, client: ClientId, node: NodeIndex) -> u64 {
        self.world.links[client][node].epoch + 1
    }

    /// In a model the present is always time 0, so the time in `INFO` carries no information and is removed.
    fn info(&self, node: NodeIndex) -> Result<Arc<str>, Failure> {
        self.world.nodes[node].info(0).map(|text| text.replace(TIME, "").into())
    }

    /// The nodes of a model send no push about a loss of data, which makes the loss harder for the client to notice.
    fn evidence(
        &mut self,
        client: ClientId,
        node: NodeIndex,
        info: Option<Result<Arc<str>, Failure>>,
        has_marker: bool,
    ) -> Evidence {
        let (by, key) = (ConnectionId(client as u64), self.bounds.rules().marker);
        let marker = has_marker.then(|| self.world.nodes[node].change().marker(by, &key, 0));
        let marker = marker.unwrap_or(MarkerSeen::NotAsked);
        let epoch = self.connection(client, node);
        Evidence::Seen { epoch, flushes: 0, info, marker, acknowledged: None }
    }

    /// A node carries out a command that was still in flight on a connection that has ended.
    pub(crate) fn execute_zombie(&mut self, client: ClientId, node: NodeIndex) {
        let zombie = self.world.links[client][node].change().zombies.pop_front();
        let Some((_, ticket, command)) = zombie else { return };
        if self.serve(client, node, ticket, &command, true) == Answer::Granted {
            self.seen.add(Rare::ZombieSet);
        }
    }

    fn serve(
        &mut self,
        client: ClientId,
        node: NodeIndex,
        ticket: Ticket,
        command: &Command,
        zombie: bool,
    ) -> Answer {
        let by = ConnectionId(client as u64);
        let it = self.world.nodes[node].change();
        let answer = &it.execute(by, command, 0);
        // A command that reads the key makes the node promise a push when the key changes. No push arrives in a model,
        // so the promise is deleted, as if the connection had ended. Otherwise promises would multiply the states.
        it.disconnect(by);
        let duplicate = false;
        if matches!(answer, Answer::Raised { .. }) {
            self.seen.add(Rare::Raise);
        }
        if matches!(answer, Answer::Watched(_)) {
            self.seen.add(Rare::Watched);
        }
        if matches!(command, Command::GiveBack { .. }) && *answer == Answer::Deleted {
            self.seen.add(Rare::GivenBack);
        }
        if command.taken().is_some() && command.is_release() && *answer == Answer::Other {
            self.seen.add(Rare::EqualKept);
        }
        if *answer == Answer::Marked {
            self.seen.add(Rare::Adopted);
        }
        self.competed(client, command, answer);
        // The present is time 0, so a running node was started at a negative time. A vote is too early if the node has
        // run for less than the ttl plus 1 % (the allowed clock error).
        let uptime = -self.world.nodes[node].run.started_s * SECOND;
        let early = uptime < Time::from(self.bounds.ttl) * TICK / 100 * 101;
        self.note(&Fact::Executed {
            node: self.bounds.name(client, node),
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

    pub(crate) fn deliver(&mut self, client: ClientId, node: NodeIndex, by: Option<u32>) {
        self.go_on(client);
        if let Some(mut answer) = self.world.links[client][node].change().answers.pop_front() {
            if let Evidence::Seen { acknowledged, .. } = &mut answer.2.1 {
                *acknowledged = by.map(Ok);
                if let Some(by) = by {
                    self.seen.add(if by > 0 { Rare::Acknowledged } else { Rare::Unacknowledged });
                }
            }
            self.answer(client, node, answer);
        }
    }

    fn answer(&mut self, client: ClientId, node: NodeIndex, answer: Sent<(Answer, Evidence)>) {
        let (sent, ticket, (answer, evidence)) = answer;
        let node = NodeId::new(self.bounds.name(client, node));
        self.tell(
            client,
            Event::Answered { node, sent, evidence, answers: vec![(ticket, answer)] },
        );
    }

    /// A connection breaks, and a new one is made at once. The client learns that every command on the old one has
    /// failed. A command that was in flight may still reach the node, even after commands on the new connection.
    pub(crate) fn cut(&mut self, client: ClientId, node: NodeIndex) {
        let is_answered = self.world.links[client][node].answers.is_empty();
        self.seen.add(if is_answered { Rare::Break } else { Rare::BreakUnanswered });
        self.world.breaks -= 1;
        self.reconnect(client, node);
    }

    pub(super) fn reconnect(&mut self, client: ClientId, node: NodeIndex) {
        let reset = FaultEvent::Reset { client, node: self.bounds.name(client, node) };
        self.note(&Fact::FaultEvent(reset));
        let link = self.world.links[client][node].change();
        let failed = Answer::Failed(Failure::new(FailureKind::Unreachable));
        let answers = std::mem::take(&mut link.answers);
        let commands = std::mem::take(&mut link.commands);
        let answers = answers.into_iter().map(|(sent, ticket, _)| (sent, ticket));
        let lost: Vec<_> =
            answers.chain(commands.iter().map(|(sent, ticket, _)| (*sent, *ticket))).collect();
        link.zombies.extend(commands);
        if self.bounds.replica.is_some() || self.bounds.others.is_some() {
            (link.epoch, link.identified, link.lags) = (link.epoch + 1, false, false);
        }
        for (sent, ticket) in lost {
            self.answer(client, node, (sent, ticket, (failed.clone(), Evidence::NotRequired)));
        }
    }

    pub(crate) fn bury(&mut self, client: ClientId, node: NodeIndex) {
        self.world.links[client][node].change().zombies.clear();
    }

    pub(crate) fn flush(&mut self, node: NodeIndex) {
        self.seen.add(Rare::Flush);
        self.world.flushes -= 1;
        self.world.nodes[node].change().flush();
        self.note(&Fact::FaultEvent(FaultEvent::NodeFlushed { node }));
    }

    /// The lock key with this index vanishes from a node; the counter for fencing tokens stays.
    pub(crate) fn vanish(&mut self, node: NodeIndex, key: usize) {
        self.seen.add(Rare::Vanished);
        self.world.vanishing -= 1;
        self.world.nodes[node].change().delete(RESOURCES[key], 0);
        self.note(&Fact::FaultEvent(FaultEvent::KeyDeleted { node }));
    }

    /// A node is killed and started again at once, without its data. The answers that the node has given still arrive.
    /// The commands that it had not carried out fail.
    pub(crate) fn restart(&mut self, node: NodeIndex) {
        self.seen.add(Rare::Restarted);
        let value_there = self.world.stored(node).map(|(value, _)| value);
        let is_held =
            self.world.watch.guards.iter().any(|(_, guard)| {
                guard.is_valid(NOW) && Some(guard.value().as_bytes()) == value_there
            });
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
            let failures = std::mem::take(&mut link.commands)
                .into_iter()
                .map(|(sent, ticket, _)| (sent, ticket, (failed.clone(), Evidence::NotRequired)));
            link.answers.extend(failures);
            link.epoch += 1;
            link.identified = false;
        }
        self.note(&Fact::FaultEvent(FaultEvent::NodeCrashed {
            node,
            keeps_data: false,
            silent: false,
        }));
        self.note(&Fact::FaultEvent(FaultEvent::NodeStarted { node }));
    }

    /// Sets a node's clock ahead by the remaining time of the lock's key, so that the key expires now. This simulates a
    /// clock that has run fast since the key was written.
    fn run_fast(&mut self, node: NodeIndex) {
        self.seen.add(Rare::FastClock);
        let left = self.world.stored(node).map_or(0, |(_, left)| left);
        self.world.nodes[node].change().rebase(left);
        self.note(&Fact::FaultEvent(FaultEvent::NodeStepped { node, by: left }));
    }

    pub(crate) fn wake(&mut self, client: ClientId) {
        self.go_on(client);
        self.tell(client, Event::Wake);
    }

    fn go_on(&mut self, client: ClientId) {
        if std::mem::take(&mut self.world.clients[client].paused) > 0 {
            self.note(&Fact::FaultEvent(FaultEvent::Resumed { client }));
        }
    }

    /// Pauses some clients, or keeps them paused for one more tick. Their answers wait in their sockets.
    fn pause(&mut self, paused: [bool; CLIENTS]) {
        for (client, paused) in paused.into_iter().enumerate() {
            let it = &mut self.world.clients[client].paused;
            *it += u8::from(paused);
            if *it == 1 && paused {
                self.world.pauses -= 1;
                self.seen.add(Rare::Pause);
                self.note(&Fact::FaultEvent(FaultEvent::Paused { client, span: TICK }));
            }
        }
    }

    pub(crate) fn tick(&mut self, paces: [Pace; CLIENTS], paused: [bool; CLIENTS]) {
        self.pause(paused);
        let advance_of = |client: ClientId| paces[client].advance();
        if let Some(trace) = &mut self.trace {
            let odd = |client: ClientId| match paces[client] {
                Pace::Even => None,
                Pace::Slow => Some(format!("the clocks of client {client} stand still")),
                Pace::BootStops => Some(format!("the boot clock of client {client} stands still")),
                Pace::WallStops => Some(format!("the wall clock of client {client} stands still")),
            };
            trace.extend((0..CLIENTS).filter_map(odd));
        }
        // After a tick in which both of a client's clocks stood still, the clocks must run for `client_slow` ticks
        // before they may stand still again. This bounds the error of their rate.
        let ticks_between = self.bounds.client_slow;
        let count = self.bounds.clients;
        for (client, it) in self.world.clients.iter_mut().enumerate().take(count) {
            let advance = advance_of(client);
            if advance != NOW {
                let (engine, _) = it.engine.rebased(advance, LOCK.0);
                *it.engine.change() = engine;
            }
            it.steady_for = it.steady_for.saturating_sub(1);
            match paces[client] {
                Pace::Even => {}
                Pace::Slow => {
                    it.steady_for = ticks_between;
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
            let advance = advance_of(client);
            for link in links.iter_mut().filter(|link| !link.is_empty()) {
                let link = link.change();
                link.commands.iter_mut().for_each(|(sent, ..)| *sent = sent.shifted(advance));
                link.answers.iter_mut().for_each(|(sent, ..)| *sent = sent.shifted(advance));
                link.zombies.iter_mut().for_each(|(sent, ..)| *sent = sent.shifted(advance));
            }
        }
        self.world.watch.change().rebase(TICK, advance_of);
        if self.bounds.guard != RestartGuard::Off {
            // With the restart guard, a client with a due deadline is woken at once, so that it inspects nodes in time.
            // Other orders within the tick need not be explored: what other clients do within the tick does not affect
            // a node's `INFO` and marker. A restart does, but the model also explores restarts before the tick.
            for client in 0..self.bounds.clients {
                let it = &self.world.clients[client];
                if it.call != Call::Over && it.engine.is_due(NOW) {
                    self.tell(client, Event::Wake);
                }
            }
        }
    }
}
